"""The records of `base.task_registry`, as names of `roformer_keras.tasks`."""

from roformer_keras.base.task_registry import TASKS as TASKS
from roformer_keras.base.task_registry import Task as Task
from roformer_keras.base.task_registry import TaskObjective as TaskObjective
from roformer_keras.base.task_registry import TaskOptions as TaskOptions

"""The records of `roformer_keras.base.registry`, as names of `roformer_keras.tasks`."""

from roformer_keras.base.registry import TASKS as TASKS
from roformer_keras.base.registry import Task as Task
from roformer_keras.base.registry import TaskObjective as TaskObjective
from roformer_keras.base.registry import TaskOptions as TaskOptions

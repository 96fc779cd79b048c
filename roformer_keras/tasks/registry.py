"""The records of `roformer_keras.registry`, as names of `roformer_keras.tasks`."""

from roformer_keras.registry import TASKS as TASKS
from roformer_keras.registry import Task as Task
from roformer_keras.registry import TaskObjective as TaskObjective
from roformer_keras.registry import TaskOptions as TaskOptions

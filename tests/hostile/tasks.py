"""Presets of a fine-tuned task, made without a backend."""

import functools
import json

import h5py
import numpy as np
from common import SMALL, read_files, read_json, write_file

from hostile.presets import place
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import head_of, model_heads
from roformer_keras.io.tensor import Tensor

NAN = float("nan")
HEAD = {"classes/kernel": (8, 2), "classes/bias": (2,)}


def zeros(shape):
    return Tensor(shape, "float32", lambda: np.zeros(shape, "float32"))


def write_preset(folder):
    """Writes a preset of a classifier."""
    with open_checkpoint(SMALL) as small:
        backbone = {n: t for n, t in small.tensors.items() if head_of(n) is None}
        head = {f"task/{path}": zeros(shape) for path, shape in HEAD.items()}
        task = Checkpoint(
            label="task",
            format="model",
            config=small.config,
            tensors={**backbone, **head},
            vocabulary=small.vocabulary,
            model="RoFormerTextClassifier",
            model_options={"num_classes": 2, "classes": ["坏", "好"]},
        )
        save(task, folder, "preset")


@functools.cache
def files(folder):
    """The files of a preset by name."""
    folder.parent.mkdir(exist_ok=True)
    write_preset(folder)
    return read_files(folder)


def read(folder):
    """Reads all that a model reads of a preset before it is built."""
    with open_checkpoint(folder) as checkpoint:
        config = checkpoint.config_for("RoFormerBackbone")
        heads = model_heads("RoFormerBackbone", config)
        for row in weights_to_read(checkpoint, config, heads, task_shapes=HEAD):
            checkpoint.weight(row.name)


def field(file, *keys, value):
    """An edit of a JSON file."""

    def edit(folder):
        content = read_json(folder / file)
        place(content, keys, value)
        write_file(folder / file, json.dumps(content))

    return edit


def dataset(name, value):
    """An edit that puts another dataset in the place of one."""

    def edit(folder):
        with h5py.File(folder / "task.weights.h5", "a") as file:
            file.pop(name, None)
            if isinstance(value, tuple):
                file.create_dataset(name, value, "f4")
            elif value is not None:
                file[name] = value

    return edit


def option(name, value):
    return field("task.json", "config", name, value=value)


KERNEL, BIAS = HEAD
OTHER = "class_name and registered_name must be of one"
FLOAT, FINITE = "must be a float tensor to", "must hold finite numbers,"
# An edit of the task, the exit code and words of the message.
CASES = [
    (option("num_classes", 10**9), 3, "num_classes=1,000,000,000 in task.json does no"),
    (option("vocabulary", "x"), 2, "its vocabulary is not a list of tokens"),
    (option("quantization", {"classes": {}}), 2, "withdrew quantization="),
    (field("task.json", "class_name", value="RoFormerTextRegressor"), 2, OTHER),
    (field("task.json", "class_name", value="RoFormerTagger"), 2, "'RoFormerTagger',"),
    (field("task.json", "registered_name", value=3), 2, OTHER),
    (field("task.json", "registered_name", value="builtins>exec"), 2, OTHER),
    (dataset(KERNEL, None), 3, "missing task/classes/kernel (8, 2)"),
    (dataset(KERNEL, np.zeros((8, 3), "f4")), 3, "classes/kernel has shape (8, 3), ex"),
    (dataset(KERNEL, np.zeros((2, 8), "f4")), 3, "classes/kernel has shape (2, 8), ex"),
    (dataset(KERNEL, np.zeros((8, 2), "i4")), 3, f"task/classes/kernel {FLOAT}"),
    (dataset(KERNEL, np.full((8, 2), b"x")), 3, f"task/classes/kernel {FLOAT}"),
    (dataset(KERNEL, np.full((8, 2), NAN, "f4")), 3, f"task/classes/kernel {FINITE}"),
    (dataset(BIAS, np.float32(0)), 3, "task/classes/bias has shape (), expected (2,)"),
    (dataset(BIAS, np.full(2, -np.inf, "f4")), 3, f"task/classes/bias {FINITE}"),
    (dataset(BIAS, np.full(2, 1e200)), 3, f"task/classes/bias {FINITE}"),
    (dataset(BIAS, h5py.Empty("f4")), 3, "tensor 'classes/bias' must be a dataset tha"),
    (dataset("x", np.ones(1, "f4")), 3, "unexpected task/x (1,): if these are your ow"),
    (dataset("y", (9,)), 3, "tensor 'y' declares 36 bytes, and 0 are stored:"),
]

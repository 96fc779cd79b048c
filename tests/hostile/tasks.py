"""Presets of a fine-tuned task and of an encoder-decoder, made without a backend."""

import functools
import json

import h5py
import numpy as np
from common import SMALL

from hostile.presets import place
from roformer_keras.config import Seq2SeqConfig
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import head_of, model_heads, weight_table
from roformer_keras.io.tensor import Tensor

NAN = float("nan")
HEAD = {"classes/kernel": (8, 2), "classes/bias": (2,)}
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 16}


def zeros(shape):
    return Tensor(shape, "float32", lambda: np.zeros(shape, "float32"))


def write_preset(kind, folder):
    """Writes a preset of a classifier, or of an encoder-decoder."""
    if kind == "task":
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
    else:
        config = Seq2SeqConfig(vocabulary_size=12, **SIZES)
        tensors = {r.name: zeros(r.checkpoint_shape) for r in weight_table(config)}
        model = "RoFormerSeq2Seq"
        pair = Checkpoint("pair", "model", config, tensors, model=model)
        save(pair, folder, "preset")


@functools.cache
def files(kind, folder):
    """The files of a preset by name."""
    folder.parent.mkdir(exist_ok=True)
    write_preset(kind, folder)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def read(folder):
    """Reads all that a model reads of a preset before it is built."""
    with open_checkpoint(folder) as checkpoint:
        base = "RoFormerBackbone" if checkpoint.is_task else checkpoint.model
        config = checkpoint.config_for(base)
        shapes = HEAD if checkpoint.is_task else None
        heads = model_heads(base, config)
        for row in weights_to_read(checkpoint, config, heads, task_shapes=shapes):
            checkpoint.weight(row.name)


def field(file, *keys, value):
    """An edit of a JSON file."""

    def edit(folder):
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        place(content, keys, value)
        (folder / file).write_text(json.dumps(content))

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
TASK = [
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
EMBEDDING = "token_embedding/embeddings has shape (12, 16),"
# A field of the encoder-decoder, its value, the exit code and words of the message.
SEQ2SEQ = [
    ("num_layers", 2, 3, "missing encoder_layer_1/attention/query/kernel"),
    ("num_layers", 10**12, 3, "the configuration has 1,000,000,000,000 layers,"),
    ("num_layers", 0, 2, "num_layers must be an integer of at least 1,"),
    ("num_heads", 3, 2, "hidden_dim must be a multiple of num_heads,"),
    ("num_heads", 16, 2, "hidden_dim must be a multiple of num_heads,"),
    *(("hidden_dim", value, 3, EMBEDDING) for value in (32, 10**12)),
    *(("vocabulary_size", value, 3, EMBEDDING) for value in (5, 10**10)),
    ("position_embedding", [], 2, "position_embedding must be one of 'rotary',"),
    ("norm_first", "yes", 2, "norm_first must be True or False, got 'yes'"),
    ("activation", "os.system", 2, "activation must be the name of a Keras"),
    ("activation", {}, 2, "activation must be a string, got {}"),
    ("layer_norm_epsilon", 0, 2, "layer_norm_epsilon must be a number in (0, 1],"),
    ("layer_norm_epsilon", NAN, 2, "is not valid JSON: NaN is no JSON"),
    ("dropout", 1, 2, "dropout must be a number in [0, 1), got 1"),
    ("colour", "red", 2, "Seq2SeqConfig has no field colour; it has"),
]
CASES = [
    *(("task", edit, code, message) for edit, code, message in TASK),
    *(
        ("pair", field("config.json", "config", name, value=value), code, message)
        for name, value, code, message in SEQ2SEQ
    ),
]

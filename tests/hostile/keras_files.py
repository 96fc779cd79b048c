"""`.keras` files for `keras.models.load_model`: what our classes make of lies in them.

A row is the model, the member, its keys and value (or an edit of its weights), and
what the error must say.
"""

import io
import json
import zipfile

import h5py
import numpy as np

from hostile.presets import place

NAN = float("nan")
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
MODEL = ("config",)
BACKBONE = ("config", "backbone", "config")


def changed(data, member, keys, value):
    """A `.keras` file with another value in a member, or another member."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if callable(value):
        buffer = io.BytesIO(members[member])
        with h5py.File(buffer, "a") as file:
            value(file)
        members[member] = buffer.getvalue()
    elif isinstance(value, bytes):
        members[member] = value
    else:
        content = json.loads(members[member])
        place(content, keys, value)
        members[member] = json.dumps(content).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def first(file):
    """The name of the token embedding's dataset."""
    names = []
    file.visititems(
        lambda name, node: (
            names.append(name)
            if isinstance(node, h5py.Dataset) and "reversible_embedding" in name
            else None
        )
    )
    return names[0]


def replaced(value):
    def edit(file):
        name = first(file)
        shape = file[name].shape
        del file[name]
        if value is not None:
            file[name] = value(shape)

    return edit


CASES = [
    # The backbone's configuration.
    ("lm", CONFIG, (*BACKBONE, "num_layers"), 0, "num_layers must be an integer"),
    ("lm", CONFIG, (*BACKBONE, "num_layers"), "2", "num_layers must be an integer"),
    ("lm", CONFIG, (*BACKBONE, "num_layers"), 2.0, "num_layers must be an integer"),
    ("lm", CONFIG, (*BACKBONE, "num_layers"), 3, "ValueError: "),
    ("lm", CONFIG, (*BACKBONE, "num_heads"), 3, "hidden_dim must be a multiple"),
    ("lm", CONFIG, (*BACKBONE, "num_heads"), None, "num_heads must be an integer"),
    ("lm", CONFIG, (*BACKBONE, "hidden_dim"), 16, "ValueError: "),
    ("lm", CONFIG, (*BACKBONE, "hidden_dim"), [8], "hidden_dim must be an integer"),
    ("lm", CONFIG, (*BACKBONE, "intermediate_dim"), 9, "ValueError: "),
    ("lm", CONFIG, (*BACKBONE, "vocabulary_size"), 261, "ValueError: "),
    ("lm", CONFIG, (*BACKBONE, "vocabulary_size"), -1, "must be an integer"),
    ("lm", CONFIG, (*BACKBONE, "activation"), "os.system", "Keras activation"),
    ("lm", CONFIG, (*BACKBONE, "activation"), {}, "must be a string"),
    ("lm", CONFIG, (*BACKBONE, "attention"), "x", "attention must be one of"),
    ("lm", CONFIG, (*BACKBONE, "attention_type"), [], "attention_type must be one of"),
    ("lm", CONFIG, (*BACKBONE, "rotary"), "no", "rotary must be True or False"),
    ("lm", CONFIG, (*BACKBONE, "rotary_base"), 10**400, "rotary_base must be a number"),
    ("lm", CONFIG, (*BACKBONE, "dropout"), NAN, "dropout must be a number"),
    ("lm", CONFIG, (*BACKBONE, "layer_norm_epsilon"), -1, "layer_norm_epsilon must be"),
    ("lm", CONFIG, (*BACKBONE, "model_type"), "bert", "model_type must be one of"),
    ("lm", CONFIG, (*BACKBONE, "model_type"), "roformer_v2", "ValueError: "),
    ("lm", CONFIG, (*BACKBONE, "colour"), "red", "has no field colour"),
    ("lm", CONFIG, (*BACKBONE, "performer_seed"), -1, "must be an integer"),
    ("lm", CONFIG, BACKBONE, 3, "TypeError: "),
    (
        "lm",
        CONFIG,
        BACKBONE,
        {},
        "ConfigurationError: RoFormerConfig must have vocabulary_size,",
    ),
    # The model.
    (
        "lm",
        CONFIG,
        (*MODEL, "backbone"),
        3,
        "ConfigurationError: backbone of a RoFormerMaskedLM must be a",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "backbone"),
        None,
        "ConfigurationError: backbone of a RoFormerMaskedLM must be a",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "backbone"),
        ...,
        "ConfigurationError: backbone of a RoFormerMaskedLM must be a",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "colour"),
        "red",
        "ConfigurationError: the configuration of the model:",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "output_activation"),
        "os.system",
        "ConfigurationError: activation must be the name of a Keras",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "output_activation"),
        3,
        "ConfigurationError: activation must be the name of a Keras",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "quantization"),
        3,
        "CheckpointError: quantization must be an object, got",
    ),
    (
        "lm",
        CONFIG,
        (*MODEL, "quantization"),
        {"x": 3},
        "CheckpointError: quantization of x must be a layer quantized",
    ),
    ("lm", CONFIG, MODEL, 3, "TypeError: "),
    ("lm", CONFIG, MODEL, [], "TypeError: "),
    ("lm", CONFIG, ("registered_name",), "roformer_keras>x", "TypeError: "),
    # A task.
    ("task", CONFIG, (*MODEL, "num_classes"), 3, "classes must be 3 different names"),
    ("task", CONFIG, (*MODEL, "num_classes"), 10**9, "classes must be 1000000000 d"),
    ("task", CONFIG, (*MODEL, "classes"), 3, "classes must be a list of names"),
    ("task", CONFIG, (*MODEL, "multi_label"), "no", "multi_label must be True or"),
    ("task", CONFIG, (*MODEL, "pooling"), "max", "pooling must be one of"),
    ("task", CONFIG, (*MODEL, "head_dropout"), 2, "head_dropout must be a number"),
    ("task", CONFIG, (*MODEL, "max_length"), 0, "max_length must be an integer"),
    (
        "task",
        CONFIG,
        (*MODEL, "vocabulary"),
        3,
        "VocabularyError: a vocabulary must be a path, a list of",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "vocabulary"),
        [],
        "VocabularyError: a vocabulary must hold tokens, this one is",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "vocabulary"),
        [3],
        "VocabularyError: a token must be a str without spaces, got 3",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "vocabulary"),
        ["[PAD]"],
        "VocabularyError: a vocabulary must hold [PAD], [UNK], [CLS]",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "vocabulary"),
        ...,
        "VocabularyError: a vocabulary must hold tokens, this one is",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "tokenizer"),
        3,
        "ConfigurationError: RoFormerTextClassifier holds no",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "tokenizer"),
        {"level": 3},
        "ConfigurationError: RoFormerTextClassifier holds no",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "tokenizer"),
        {"lower_case": "no"},
        "ConfigurationError: RoFormerTextClassifier holds no",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "tokenizer"),
        {"colour": "red"},
        "ConfigurationError: RoFormerTextClassifier holds no",
    ),
    (
        "task",
        CONFIG,
        (*MODEL, "colour"),
        "red",
        "ConfigurationError: the configuration of the model:",
    ),
    # Weights.
    ("lm", WEIGHTS, (), replaced(None), "ValueError: "),
    ("lm", WEIGHTS, (), replaced(lambda shape: np.zeros((9, 9), "f4")), "ValueError: "),
    (
        "lm",
        WEIGHTS,
        (),
        replaced(lambda shape: np.zeros(shape[:1], "f4")),
        "ValueError: ",
    ),
    (
        "lm",
        WEIGHTS,
        (),
        replaced(lambda shape: np.zeros(shape[::-1], "f4")),
        "ValueError: ",
    ),
    ("lm", WEIGHTS, (), replaced(lambda shape: np.full(shape, b"x")), "ValueError: "),
    (
        "lm",
        WEIGHTS,
        (),
        replaced(lambda shape: h5py.SoftLink("/nowhere")),
        "ValueError: ",
    ),
    ("lm", WEIGHTS, (), lambda file: file.pop("layers"), "ValueError: "),
    ("lm", WEIGHTS, (), b"", "OSError: "),
    ("lm", WEIGHTS, (), b"\x89HDF\r\n\x1a\n", "OSError: "),
    ("lm", CONFIG, (), b"", "JSONDecodeError: "),
    ("lm", CONFIG, (), b"[", "JSONDecodeError: "),
    ("lm", CONFIG, (), b"[" * 100_000, "RecursionError: "),
]

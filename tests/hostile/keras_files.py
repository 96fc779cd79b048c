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


NO_BACKBONE = "ConfigurationError: backbone of a RoFormerMaskedLM must be a"
OPTION = "ConfigurationError: the configuration of the model:"
NO_ACTIVATION = "ConfigurationError: activation must be the name of a Keras"
NO_TOKENIZER = "ConfigurationError: RoFormerTextClassifier holds no"
# Member, keys, value, message, of a language model. What is wrong with a field alone
# is in tests/unit/test_config.py.
LM = [
    (CONFIG, (*BACKBONE, "num_layers"), 0, "num_layers must be an integer"),
    (CONFIG, (*BACKBONE, "num_heads"), 3, "hidden_dim must be a multiple"),
    (CONFIG, (*BACKBONE, "activation"), "os.system", "Keras activation"),
    (CONFIG, (*BACKBONE, "colour"), "red", "has no field colour"),
    # Keras compares the shapes of weights.
    *(
        (CONFIG, (*BACKBONE, name), value, "ValueError: ")
        for name, value in (
            ("num_layers", 3),
            ("hidden_dim", 16),
            ("intermediate_dim", 9),
            ("vocabulary_size", 261),
            ("model_type", "roformer_v2"),
        )
    ),
    (CONFIG, BACKBONE, 3, "TypeError: "),
    (CONFIG, BACKBONE, {}, "ConfigurationError: RoFormerConfig must have vocabulary_s"),
    *((CONFIG, (*MODEL, "backbone"), value, NO_BACKBONE) for value in (3, None, ...)),
    (CONFIG, (*MODEL, "colour"), "red", OPTION),
    *(
        (CONFIG, (*MODEL, "output_activation"), value, NO_ACTIVATION)
        for value in ("os.system", 3)
    ),
    (CONFIG, (*MODEL, "quantization"), {"x": 3}, "ConfigurationError: "),
    *((CONFIG, MODEL, value, "TypeError: ") for value in (3, [])),
    (CONFIG, ("registered_name",), "roformer_keras>x", "TypeError: "),
    *(
        (WEIGHTS, (), replaced(make), "ValueError: ")
        for make in (
            None,
            lambda shape: np.zeros((9, 9), "f4"),
            lambda shape: np.zeros(shape[:1], "f4"),
            lambda shape: np.zeros(shape[::-1], "f4"),
            lambda shape: np.full(shape, b"x"),
            lambda shape: h5py.SoftLink("/nowhere"),
        )
    ),
    (WEIGHTS, (), lambda file: file.pop("layers"), "ValueError: "),
    *((WEIGHTS, (), data, "OSError: ") for data in (b"", b"\x89HDF\r\n\x1a\n")),
    *((CONFIG, (), data, "JSONDecodeError: ") for data in (b"", b"[")),
    (CONFIG, (), b"[" * 100_000, "RecursionError: "),
]
# A field of a classifier, its value, and the message.
TASK = [
    ("num_classes", 3, "classes must be 3 different names"),
    ("num_classes", 10**9, "classes must be 1000000000 d"),
    ("max_length", 0, "max_length must be an integer"),
    ("vocabulary", 3, "VocabularyError: a vocabulary must be a path, a list of"),
    *(
        ("vocabulary", value, "VocabularyError: a vocabulary must hold tokens, this")
        for value in ([], ...)
    ),
    ("vocabulary", [3], "VocabularyError: a token must be a str without spaces, got 3"),
    ("vocabulary", ["[PAD]"], "VocabularyError: a vocabulary must hold [PAD], [UNK]"),
    *(
        ("tokenizer", value, NO_TOKENIZER)
        for value in (3, {"level": 3}, {"lower_case": "no"}, {"colour": "red"})
    ),
    ("colour", "red", OPTION),
]
CASES = [
    *(("lm", *row) for row in LM),
    *(("task", CONFIG, (*MODEL, name), value, text) for name, value, text in TASK),
]

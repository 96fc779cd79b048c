"""tests/data/bert4keras/interface.json: what bert4keras's layers and functions give.

The questions are here. `answers` asks any package with bert4keras's modules, so that
the tests ask ours the same.
"""

import importlib

import numpy as np

from tools.reference.bert4keras import save_json
from tools.reference.snippets import plain

# Name of a function of `backend`, and its arguments.
OF_BACKEND = (
    ("align", [("x", (2, 3)), [0, 2], 4]),
    ("batch_gather", [("x", (2, 5)), ("ids", (2, 3), 5)]),
    ("batch_gather", [("x", (2, 5, 3)), ("ids", (2, 4), 5)]),
    ("gelu_erf", [("x", (7,))]),
    ("gelu_tanh", [("x", (7,))]),
    ("leaky_relu", [("x", (7,))]),
    ("swish", [("x", (7,))]),
    ("root_mean_square", [("x", (2, 4)), -1, True]),
    ("sequence_masking", [("x", (2, 4)), ("mask", (2, 4)), -5.0]),
    ("sequence_masking", [("x", (2, 4, 3)), ("mask", (2, 4)), 0, 1]),
    ("sequence_masking", [("x", (2, 3, 4, 4)), ("mask", (2, 4)), -9.0, [2, 3]]),
    ("sequence_masking", [("x", (2, 4)), ("mask", (2, 4)), -9.0, 1, ("x", (2, 4))]),
    ("sinusoidal_embeddings", [("x", (1, 5)), 6]),
    ("apply_rotary_position_embeddings", [("x", (1, 4, 6)), ("x", (2, 4, 3, 6))]),
    ("apply_rotary_position_embeddings", [("x", (1, 4, 6)), ("x", (2, 4, 6))]),
    ("multilabel_categorical_crossentropy", [("mask", (2, 5)), ("x", (2, 5))]),
    (
        "sparse_multilabel_categorical_crossentropy",
        [("ids", (2, 3), 6), ("x", (2, 6))],
    ),
    (
        "sparse_multilabel_categorical_crossentropy",
        [("ids", (2, 3), 6), ("x", (2, 6)), True],
    ),
    ("piecewise_linear", [150.0, {100: 1, 200: 0.1}]),
    ("piecewise_linear", [30.0, {100: 1, 200: 0.1}]),
    ("piecewise_linear", [500.0, {0: 0.5, 200: 0.1}]),
)
# Name of a layer, its options, and its inputs; a list is given as a list.
OF_LAYERS = (
    ("LayerNormalization", {}, ("x", (2, 3, 4))),
    ("LayerNormalization", {"zero_mean": False, "scale": False, "offset": False}, ...),
    ("LayerNormalization", {"conditional": True}, [("x", (2, 3, 4)), ("x", (2, 5))]),
    ("FeedForward", {"units": 6, "activation": "gelu"}, ("x", (2, 3, 4))),
    ("MultiHeadAttention", {"heads": 2, "head_size": 4}, [("x", (2, 3, 8))] * 3),
    (
        "MultiHeadAttention",
        {"heads": 2, "head_size": 4, "out_dim": 5, "key_size": 6},
        [("x", (2, 3, 8)), ("x", (2, 5, 8)), ("x", (2, 5, 8))],
    ),
    ("SinusoidalPositionEmbedding", {"output_dim": 4}, ("x", (2, 3, 4))),
    (
        "SinusoidalPositionEmbedding",
        {"output_dim": 4, "merge_mode": "mul", "custom_position_ids": True},
        [("x", (2, 3, 4)), ("ids", (2, 3), 9)],
    ),
    ("PositionEmbedding", {"input_dim": 9, "output_dim": 4}, ("x", (2, 3, 4))),
    ("GlobalPointer", {"heads": 2, "head_size": 4}, ("x", (2, 3, 8))),
    ("EfficientGlobalPointer", {"heads": 2, "head_size": 4}, ("x", (2, 3, 8))),
    (
        "EfficientGlobalPointer",
        {"heads": 3, "head_size": 5, "RoPE": False, "tril_mask": False},
        ("x", (2, 3, 8)),
    ),
    ("GlobalMaxPooling1D", {}, ("x", (2, 3, 4))),
    ("GlobalAveragePooling1D", {}, ("x", (2, 3, 4))),
)
# Layers that have losses and accuracies of tags.
OF_TAGS = (("ConditionalRandomField", {"lr_multiplier": 10}),)


def write(output):
    path = output / "data" / "bert4keras" / "interface.json"
    save_json(path, answers("bert4keras"))


def answers(package):
    """The answers of a package with bert4keras's modules, as plain JSON."""
    backend = importlib.import_module(f"{package}.backend")
    layers = importlib.import_module(f"{package}.layers")
    asker = _Asker(backend.K)
    return plain(
        {
            "backend": [asker.call(backend, *one) for one in OF_BACKEND],
            "layers": [asker.layer(layers, *one) for one in OF_LAYERS],
            "tags": [asker.tags(layers, *one) for one in OF_TAGS],
        }
    )


class _Asker:
    """Asks with the same numbers."""

    def __init__(self, K):
        self.K = K

    def _start(self):
        self.random = np.random.RandomState(0)

    def _argument(self, given):
        K = self.K
        if not (isinstance(given, tuple) and given and isinstance(given[0], str)):
            return given
        kind, shape, *limits = given
        if kind == "ids":
            return K.constant(self.random.randint(*limits, size=shape), "float32")
        if kind == "mask":
            # True at the start of each row.
            count = self.random.randint(1, shape[-1] + 1, size=(*shape[:-1], 1))
            return K.constant(np.arange(shape[-1]) < count, "float32")
        return K.constant(self.random.randn(*shape), "float32")

    def call(self, module, name, arguments):
        self._start()
        inputs = [self._argument(one) for one in arguments]
        output = getattr(module, name)(*inputs)
        return self._numbers(output)

    def _numbers(self, found):
        return np.round(np.asarray(self.K.eval(found), "float64"), 6)

    def _with_weights(self, layer):
        layer.set_weights([self.random.randn(*w.shape) for w in layer.get_weights()])

    def layer(self, layers, name, options, given):
        self._start()
        arguments = ("x", (2, 3, 4)) if given is ... else given
        several = isinstance(arguments, list)
        inputs = [
            self._argument(one) for one in (arguments if several else [arguments])
        ]
        layer = getattr(layers, name)(**options)
        layer(inputs if several else inputs[0])
        self._with_weights(layer)
        return self._numbers(layer(inputs if several else inputs[0]))

    def tags(self, layers, name, options):
        self._start()
        scores, mask = (
            self._argument(("x", (2, 5, 3))),
            self._argument(("mask", (2, 5))),
        )
        tags = self._argument(("ids", (2, 5), 3))
        layer = getattr(layers, name)(**options)
        layer(scores)
        self._with_weights(layer)
        scores = layer(scores, mask=self.K.cast(mask, "bool"))
        one_hot = self.K.one_hot(self.K.cast(tags, "int32"), 3)
        return [
            self._numbers(scores),
            self._numbers(layer.sparse_loss(tags, scores)),
            self._numbers(layer.dense_loss(one_hot, scores)),
            self._numbers(layer.sparse_accuracy(tags, scores)),
            self._numbers(layer.dense_accuracy(one_hot, scores)),
        ]

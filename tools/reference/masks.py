"""tests/data/bert4keras/masks.json: masks of Keras 2, layer by layer.

Each expression is of the layers `L`, of a masked tensor, of one with another mask, and
of a plain one. The file has the values of its result, and the mask, under it.
"""

import importlib
import itertools

import numpy as np

from tools.reference.bert4keras import save_json

IDS = [[1, 2, 0, 0], [3, 4, 2, 0]]
OTHER_IDS = [[1, 0, 3, 0], [0, 2, 2, 4]]
# Layers of one input.
ONE = """
Activation("tanh")
ActivityRegularization()
AdditiveAttention()
AlphaDropout(0.1)
Attention()
AveragePooling1D(2, 1, "same")
BatchNormalization()
Bidirectional(L.GRU(2, reset_after=False))
Bidirectional(L.LSTM(2, return_sequences=True))
Conv1D(3, 2, padding="causal")
Conv1D(3, 3, padding="same")
Cropping1D(1)
Dense(3)
Dropout(0.1)
ELU()
Flatten()
GaussianDropout(0.1)
GaussianNoise(0.1)
GlobalAveragePooling1D()
GlobalMaxPooling1D()
GRU(3)
GRU(3, return_sequences=True, go_backwards=True)
Lambda(lambda x: x * 2)
Lambda(lambda x: x[:, 0])
LayerNormalization()
LeakyReLU()
LSTM(3)
LSTM(3, return_sequences=True)
Masking()
MaxPooling1D(2, 1, "same")
Permute((1, 2))
PReLU(shared_axes=[1])
ReLU()
Reshape((4, 2, 2))
SeparableConv1D(3, 3, padding="same")
SimpleRNN(3, return_sequences=True, zero_output_for_mask=True)
SpatialDropout1D(0.1)
TimeDistributed(L.Dense(3))
TimeDistributed(L.Dropout(0.1))
UnitNormalization()
UpSampling1D(2)
ZeroPadding1D(1)
""".strip().splitlines()
# Layers of a list, and what they are given.
SEVERAL = """
Add()
Average()
Concatenate()
Dot((2, 2))
Maximum()
Minimum()
Multiply()
Subtract()
Attention()
AdditiveAttention()
""".strip().splitlines()
_PAIRS = ("[masked, plain]", "[plain, masked]", "[masked, other]", "[plain, plain]")
CASES = [
    *(f"L.{layer}(masked)" for layer in ONE if "ttention" not in layer),
    *(f"L.{layer}({pair})" for layer in SEVERAL for pair in _PAIRS),
    *(f"L.Concatenate(axis=1)({pair})" for pair in _PAIRS[2:]),
    *(f"L.Bidirectional(L.LSTM(2), merge_mode={x!r})(masked)" for x in ("sum", "ave")),
    "L.MultiHeadAttention(2, 2)(masked, plain)",
    "L.MultiHeadAttention(2, 2)(plain, masked)",
    "L.MultiHeadAttention(2, 2)(masked, other)",
    "masked * 2",
    "masked + plain",
    "masked[:, 1:]",
    "L.Multiply()([masked, L.Dense(4)(masked)])",
    "L.multiply([masked, plain])",
    "L.concatenate([masked, plain])",
    "L.concatenate([masked, other], 1)",
    "Passing()(masked)",
    *(f"Passing()({pair})" for pair in _PAIRS),
    *(f"Asking()({pair})" for pair in _PAIRS),
    "Asking()(masked)",
    "Asking()(plain)",
    "L.Dense(3)(inner(ids))",
    "outer(masked)",
    "outer(plain)",
    "L.Dense(2)(L.Add()([L.Concatenate()([masked, plain]), L.Dense(8)(other)]))",
]


def write(output):
    save_json(output / "data" / "bert4keras" / "masks.json", answers("bert4keras"))


def answers(package):
    """Expression -> values and mask, by a package with bert4keras's modules."""
    return {case: answer(package, case) for case in CASES}


def answer(package, case):
    """Values and mask of one expression, which gets a new model."""
    keras = importlib.import_module(f"{package}.layers").keras
    masks = []

    class Probe(keras.layers.Layer):
        """Writes down the mask of its input."""

        def call(self, inputs, mask=None):
            masks.append(mask)
            return inputs

    class Passing(Probe):
        """A layer of a script that passes masks on."""

        def __init__(self):
            super().__init__()
            self.supports_masking = True

        def call(self, inputs):
            return (inputs[0] if isinstance(inputs, list) else inputs) * 2

    class Asking(Passing):
        """A layer of a script that asks for masks."""

        def call(self, inputs, mask=None):
            several = mask if isinstance(mask, list) else [mask]
            return (
                super().call(inputs)
                + sum(2**i for i, one in enumerate(several) if one is not None)
                + 100 * (mask is None)
            )

    ids = [keras.layers.Input((4,)) for _ in range(2)]
    tables = [keras.layers.Embedding(5, 4, mask_zero=zero) for zero in (True, False)]
    names = {"masked": tables[0](ids[0]), "plain": tables[1](ids[0])}
    names |= {"other": tables[0](ids[1]), "L": keras.layers, "ids": ids[0]}
    names |= {"Passing": Passing, "Asking": Asking}
    names["inner"] = keras.models.Model(ids[0], names["masked"])
    x = keras.layers.Input((4, 4))
    names["outer"] = keras.models.Model(x, keras.layers.Dense(3)(x))
    model = keras.models.Model(ids, Probe()(eval(case, names)))
    numbers = itertools.count(1)
    model.set_weights(
        [
            np.reshape([np.sin(1.7 * next(numbers)) for _ in range(w.size)], w.shape)
            ** (2 if "Batch" in case else 1)
            for w in model.get_weights()
        ]
    )
    masks.clear()
    values = np.asarray(model([np.array(IDS), np.array(OTHER_IDS)]))
    (mask,) = masks
    return [
        np.round(values.astype("float64"), 5).tolist(),
        None if mask is None else np.asarray(mask).astype(int).tolist(),
    ]

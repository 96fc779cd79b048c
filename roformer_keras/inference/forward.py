"""A model's answers by a compiled function that is kept."""

import keras
import numpy as np

from roformer_keras.compiled import Compiled
from roformer_keras.layers.fused import fused
from roformer_keras.layers.projection import structure_version

__all__ = ["outputs_of"]


def outputs_of(model, inputs: dict[str, np.ndarray]):
    """What a functional model computes, without what `predict` does around it.

    The compiled function is kept with the model. It reads the weights as they are when
    it is called.

    Args:
        model: functional Keras model that takes a dict.
        inputs: arrays as it takes them, of one number of rows.

    Returns:
        NumPy arrays, nested as the model's outputs are.
    """
    version, forward = getattr(model, "_kept_forward", (None, None))
    if version != structure_version():
        version, forward = structure_version(), _compiled(model)
        model._kept_forward = (version, forward)
    count = len(next(iter(inputs.values())))
    rows = _rows_of(count)
    if rows > count:
        inputs = {name: _with_rows(array, rows) for name, array in inputs.items()}
    outputs = keras.tree.map_structure(
        keras.ops.convert_to_numpy,
        forward({k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()}),
    )
    if rows > count:
        # Of rows that are told of together there are fewer outputs.
        outputs = keras.tree.map_structure(
            lambda output: output[: len(output) * count // rows], outputs
        )
    return outputs


def _compiled(model):
    def forward(inputs):
        with fused():
            return model(inputs, training=False)

    return Compiled(forward, model.weights, any_shape=True)


def _rows_of(count):
    """Rows to which a batch is filled up: where each number of them is compiled anew,
    a power of two."""
    if keras.backend.backend() != "jax":
        return count
    return 1 << (count - 1).bit_length()


def _with_rows(array, rows):
    """The last row again and again: one of padding alone would be no text."""
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])

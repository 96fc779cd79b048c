"""Outputs of a model, by compiled functions that are kept with it."""

import keras
import numpy as np

from roformer_keras.compiled import Compiled
from roformer_keras.errors import CheckpointError
from roformer_keras.fast_model import known_sizes
from roformer_keras.layers.fused import fused, runs_on_cpu
from roformer_keras.layers.projection import Structure

# Lengths of one row that XLA computes on TensorFlow's CPUs, in float32. There is little
# but reading of weights then, which TensorFlow's own products rearrange at each call.
# Of more tokens XLA gains nothing, and loses in bfloat16.
_SHORT_LENGTHS = (16, 32)
# It takes seconds to compile: the first few such rows are computed by the graph.
_ROWS_BEFORE = 2


def run_model(model, inputs: dict[str, np.ndarray]):
    """The outputs of a functional model, without the overhead of `predict`.

    The compiled functions are kept with the model. They read the weights as they are
    when they are called.

    Args:
        model: functional Keras model that takes a dict.
        inputs: arrays as it takes them, of one number of rows and one length; or of
            one number of groups, of rows in a group, and one length.

    Returns:
        NumPy arrays, nested as the model's outputs are.
    """
    kept = getattr(model, "_kept_forward", None)
    if kept is None or kept.structure.has_changed():
        kept = model._kept_forward = _Forward(model)
    count, *group, length = inputs["token_ids"].shape
    inputs = {name: fill_rows(array) for name, array in inputs.items()}
    rows = len(inputs["token_ids"])
    short = 0 if group else kept.short_length(count, length)
    if short:
        inputs = kept.lengthened(inputs, short)
    outputs = keras.tree.map_structure(
        keras.ops.convert_to_numpy,
        (kept.of_short if short else kept.of_any)(
            {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()}
        ),
    )
    if any(np.isnan(output).any() for output in keras.tree.flatten(outputs)):
        raise CheckpointError(
            "the model's outputs must be numbers, got NaN: check the file that its "
            "weights come from, or load it with dtype='float32'"
        )
    if short:
        outputs = kept.shortened(outputs, length)
    if rows > count:
        # Groups of rows have one output each.
        outputs = keras.tree.map_structure(
            lambda output: output[: len(output) * count // rows], outputs
        )
    return outputs


class _Forward:
    """The compiled functions of a model, for one structure."""

    def __init__(self, model):
        self.structure = Structure(model)
        self._model, self._short_rows = model, 0
        policies = {layer.compute_dtype for layer in model._flatten_layers()}
        self._is_exact = policies == {"float32"}

        def of_any(inputs):
            with fused():
                return model(inputs, training=False)

        def of_short(inputs):
            return model(inputs, training=False)

        sizes = known_sizes(model)
        self.of_any = Compiled(of_any, model.weights, any_shape=True, sizes=sizes)
        self.of_short = Compiled(of_short, model.weights, any_shape=False)

    def short_length(self, count, length):
        """Columns to which a row is filled up for XLA; 0 where that does not pay."""
        if count > 1 or not self._is_exact or not runs_on_cpu():
            return 0
        found = next((most for most in _SHORT_LENGTHS if length <= most), 0)
        self._short_rows += found > 0
        return found if self._short_rows > _ROWS_BEFORE else 0

    def lengthened(self, inputs, length):
        """With padding after everything that has a length."""
        return {
            name: np.pad(array, ((0, 0), (0, length - array.shape[1])))
            if self._model.input[name].shape[1] is None
            else array
            for name, array in inputs.items()
        }

    def shortened(self, outputs, length):
        """Removes the padding from every axis of text length."""

        def cut(symbolic, output):
            axes = (
                slice(length if axis and size is None else None)
                for axis, size in enumerate(symbolic.shape)
            )
            return output[tuple(axes)]

        return keras.tree.map_structure(cut, self._model.output, outputs)


def fill_rows(array: np.ndarray) -> np.ndarray:
    """On JAX, which compiles each number of rows, fills it up to a power of two.

    The last row is repeated: a row of padding only has no `[CLS]`.
    """
    if keras.backend.backend() != "jax":
        return array
    missing = (1 << (len(array) - 1).bit_length()) - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])

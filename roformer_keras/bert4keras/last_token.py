"""A model's outputs at the last position, without the start of `Model.predict`."""

from collections.abc import Sequence

import keras
import numpy as np

from roformer_keras.base.compiled import Compiled
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras.cached_steps import CachedSteps
from roformer_keras.bert4keras.keras2_models import PREDICT, Model


class LastToken(Model):
    """The outputs of a model at the last position of each row.

    A model that allows it keeps the keys and values of the positions before; any other
    computes all positions, by a function that is kept. `predict` takes an array
    `(batch, length)`, or a list of arrays as the model has them, with rows of equal
    lengths and no padding at the end; it returns an array `(batch, ...)`, or a list.

    Args:
        model: `keras.Model`, whose outputs are `(batch, length, ...)`.

    Attributes:
        steps: the `CachedSteps` of it, or None.
    """

    def __init__(self, model: keras.Model):
        super().__init__(name=f"{model.name}_last_token")
        self.model = model
        self.steps = CachedSteps.of(model)
        self._compute = Compiled(self._last, model.weights, any_shape=True)

    def _last(self, inputs):
        several = isinstance(self.model.input, list | tuple)
        outputs = self.model(inputs if several else inputs[0], training=False)
        return keras.tree.map_structure(lambda x: x[:, -1], outputs)

    def call(self, inputs: TensorLike) -> TensorLike:
        """The outputs, in a graph of Keras."""
        return self._last(inputs if isinstance(inputs, list | tuple) else [inputs])

    def predict(
        self, x: TensorLike = None, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """The outputs for a batch of arrays, by a function that is kept."""
        if keras.Model.predict is not PREDICT:
            # Whoever put another function there, to record its calls, sees this one.
            return keras.Model.predict(self, x, *args, **options)
        return self._predict_last(x)

    def _predict_last(self, inputs):
        several = isinstance(inputs, Sequence)
        arrays = [np.asarray(x) for x in (inputs if several else [inputs])]
        if self.steps:
            return self.steps(arrays)
        tensors = [
            keras.ops.convert_to_tensor(x, given.dtype)
            for x, given in zip(arrays, self.model.inputs, strict=True)
        ]
        outputs = self._compute(tensors)
        return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

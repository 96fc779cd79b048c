"""A loss as a layer of the model."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras.basic_layers import Layer

_serializable = keras.saving.register_keras_serializable("bert4keras")


@_serializable
class Loss(Layer):
    """A layer that adds a loss to the model: subclass it with `compute_loss`.

    Args:
        output_axis: int, or list of int: which inputs it returns; None for all.

    The loss is the mean of what `compute_loss(inputs, mask)` returns. It may call
    `self.add_metric(value, name=)`, whose mean `fit` shows.
    """

    def __init__(
        self, output_axis: int | Sequence[int] | None = None, **kwargs: Unchecked
    ):
        # Labels are among the inputs.
        super().__init__(autocast=False, **kwargs)
        self.output_axis = output_axis

    def call(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        self.add_loss(ops.mean(self.compute_loss(inputs, mask)))
        return self.chosen(inputs)

    def chosen(self, values: TensorLike) -> TensorLike:
        """Of values of all inputs, those that the layer returns."""
        if self.output_axis is None:
            return values
        if isinstance(self.output_axis, list):
            return [values[i] for i in self.output_axis]
        return values[self.output_axis]

    def compute_loss(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        """The loss of the inputs, of any shape; subclasses define it."""
        raise NotImplementedError

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        return None if mask is None else self.chosen(mask)

    def compute_output_shape(self, input_shape: Sequence) -> Sequence:
        return self.chosen(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "output_axis": self.output_axis}

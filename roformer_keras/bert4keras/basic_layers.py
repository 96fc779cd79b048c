"""Layers that pass masks on, and the small ones of bert4keras's models."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from roformer_keras.base.types import Shape, TensorLike, Unchecked
from roformer_keras.bert4keras.layer_functions import (
    MERGES,
    PLAIN,
    hide_positions,
    join_sequences,
    mask_of_branches,
)
from roformer_keras.bert4keras.node_tensors import NodeTensors
from roformer_keras.layers import causal_mask, unilm_mask
from roformer_keras.layers.configured import ConfiguredLayer

_serializable = keras.saving.register_keras_serializable("bert4keras")


@_serializable
class Layer(NodeTensors, keras.layers.Layer):
    """A layer that passes masks on, the base of layers that scripts define."""

    def __init__(self, **kwargs: Unchecked):
        super().__init__(**kwargs)
        self.supports_masking = True


# === Masks ===


def _with_masks_of_keras_2(name: str) -> type[keras.Layer]:
    base = getattr(keras.layers, name)
    content = {
        "__doc__": f"`keras.layers.{name}`, with the masks of Keras 2.",
        "__module__": __name__,
        "compute_mask": mask_of_branches,
        **PLAIN.get(name, {}),
    }
    return _serializable(type(name, (NodeTensors, base), content))


@_serializable
class GlobalMaxPooling1D(NodeTensors, keras.layers.GlobalMaxPooling1D):
    """The maximum over positions that the mask leaves; Keras's ignores masks."""

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        super().__init__(*args, **kwargs)
        self.supports_masking = True

    def call(self, inputs: TensorLike, **mask: TensorLike) -> TensorLike:
        # A mask that is a named argument would be saved with the model.
        return super().call(hide_positions(self, inputs, **mask))

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        return None


# Name of a layer of Keras -> the one with the masks of Keras 2.
MASKED = {name: _with_masks_of_keras_2(name) for name in MERGES} | {
    "GlobalMaxPooling1D": GlobalMaxPooling1D,
}
Add = MASKED["Add"]


@_serializable
class Concatenate1D(Layer):
    """Sequences one after another, some of which may have no mask."""

    def call(self, inputs: TensorLike) -> TensorLike:
        return ops.concatenate(inputs, axis=1)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        return join_sequences(inputs, mask)


class _WithoutMask(Layer):
    """A base of layers whose outputs have no positions that a mask could hide."""

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        return None


class _Raw(_WithoutMask):
    """A base of layers that take ids in float32, which must not be rounded."""

    def __init__(self, **kwargs: Unchecked):
        super().__init__(autocast=False, **kwargs)


@_serializable
class LanguageModelMask(_Raw):
    """bool `(length, length)` of any `(batch, length)`: a key not after its query."""

    def call(self, inputs: TensorLike) -> TensorLike:
        return causal_mask(ops.shape(inputs)[1])[0, 0]


@_serializable
class UnifiedLanguageModelMask(_Raw):
    """bool `(batch, length, length)` of segment ids, see `unilm_mask`."""

    def call(self, inputs: TensorLike) -> TensorLike:
        return unilm_mask(inputs)[:, 0]


# === Small layers ===


@_serializable
class ScaleOffset(Layer, ConfiguredLayer):
    """A factor and an addend for each feature.

    Args:
        scale: bool. Whether there is gamma.
        offset: bool. Whether there is beta.
    """

    def __init__(self, scale: bool = True, offset: bool = True, **kwargs: Unchecked):
        super().__init__(**kwargs)
        self.scale = scale
        self.offset = offset

    def build(self, input_shape: Shape) -> None:
        self.beta = self.gamma = None
        shape = (input_shape[-1],)
        if self.offset:
            self.beta = self.add_weight(shape, initializer="zeros", name="beta")
        if self.scale:
            self.gamma = self.add_weight(shape, initializer="ones", name="gamma")

    def call(self, inputs: TensorLike) -> TensorLike:
        x = inputs * self.gamma if self.scale else inputs
        return x + self.beta if self.offset else x


@_serializable
class BiasAdd(Layer):
    """An addend for each feature."""

    def build(self, input_shape: Shape) -> None:
        shape = (input_shape[-1],)
        self.bias = self.add_weight(shape, initializer="zeros", name="bias")

    def call(self, inputs: TensorLike) -> TensorLike:
        return inputs + self.bias


@_serializable
class FirstToken(_WithoutMask):
    """The vector of the first position: `(batch, dim)` of `(batch, length, dim)`."""

    def call(self, inputs: TensorLike) -> TensorLike:
        return inputs[:, 0]


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
        """Chooses the values of the inputs that the layer returns."""
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

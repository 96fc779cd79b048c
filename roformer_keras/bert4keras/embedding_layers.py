"""Tables of tokens and positions, and positions as sines and cosines."""

import keras
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Shape, TensorLike, Unchecked
from roformer_keras.bert4keras import keras_functions as K
from roformer_keras.bert4keras.basic_layers import Layer
from roformer_keras.bert4keras.node_tensors import NodeTensors
from roformer_keras.layers import SinusoidalPositionEmbedding as _Sinusoidal
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.masks import is_token

_serializable = keras.saving.register_keras_serializable("bert4keras")


@_serializable
class Embedding(NodeTensors, keras.layers.Embedding):
    """An embedding table, which also scores tokens as the tied output of a model.

    Call arguments:
        inputs: ids `(batch, length)` of any number type; with `mode="dense"` float
            `(batch, length, output_dim)`.
        mode: `"embedding"`, or `"dense"` for the product with the table.

    The mask hides id 0, except at the first position.
    """

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        super().__init__(*args, **kwargs)
        self.autocast = False
        self.supports_masking = True

    def build(self, input_shape: Shape | None = None) -> None:
        # Called first on vectors, the table would be built for them.
        super().build()

    def call(self, inputs: TensorLike, mode: str = "embedding") -> TensorLike:
        if mode == "embedding":
            return super().call(inputs)
        table = ops.cast(self.embeddings, self.compute_dtype)
        return ops.matmul(ops.cast(inputs, self.compute_dtype), ops.transpose(table))

    def compute_output_spec(
        self, inputs: TensorLike, mode: str = "embedding"
    ) -> TensorLike:
        if mode == "embedding":
            shape = (*inputs.shape, self.output_dim)
        else:
            shape = (*inputs.shape[:-1], self.input_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        if len(inputs.shape) != 2:
            return mask
        return is_token(inputs) if self.mask_zero else None


class _Positions(Layer):
    """A base of layers whose input may be a list with position ids."""

    custom_position_ids: bool

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        return mask[0] if self.custom_position_ids and mask is not None else mask


@_serializable
class PositionEmbedding(_Positions, ConfiguredLayer):
    """A table of positions, added to or put next to the input.

    Args:
        input_dim: int. Number of positions.
        output_dim: int.
        merge_mode: `"add"`, `"mul"`, `"zero"` (the positions alone), or `"concat"`.
        embeddings_initializer: of the table.
        custom_position_ids: bool. Whether the input is a list with position ids.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        merge_mode: str = "add",
        hierarchical: Unchecked = None,
        embeddings_initializer: str | keras.Initializer = "zeros",
        custom_position_ids: bool = False,
        **kwargs: Unchecked,
    ):
        super().__init__(**kwargs)
        refuse(
            hierarchical,
            "PositionEmbedding has no hierarchical positions here; RoFormer needs "
            "no table of positions at all",
        )
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.merge_mode = merge_mode
        self.hierarchical = hierarchical
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.custom_position_ids = custom_position_ids

    def build(self, input_shape: Shape) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
        )

    def call(self, inputs: TensorLike) -> TensorLike:
        if self.custom_position_ids:
            return self.at(*inputs)
        positions = self.embeddings[None, : ops.shape(inputs)[1]]
        return _merged(inputs, positions, self.merge_mode)

    def at(self, inputs: TensorLike, position_ids: TensorLike) -> TensorLike:
        """The layer's output for inputs at positions `(batch or 1, length)`."""
        positions = K.gather(self.embeddings, position_ids)
        return _merged(inputs, positions, self.merge_mode)


def _merged(x: TensorLike, positions: TensorLike, mode: str) -> TensorLike:
    if mode == "zero":
        return positions
    positions = ops.cast(positions, x.dtype)
    if mode == "add":
        return x + positions
    if mode == "mul":
        return x * (positions + 1)
    sizes = (*ops.shape(x)[:2], positions.shape[-1])
    return ops.concatenate([x, ops.broadcast_to(positions, sizes)], axis=-1)


@_serializable
class SinusoidalPositionEmbedding(_Positions, _Sinusoidal):
    """Sines and cosines of positions, added to or put next to the input.

    Args:
        output_dim: int, even.
        merge_mode, custom_position_ids: as in `PositionEmbedding`.
    """

    def __init__(
        self,
        output_dim: int,
        merge_mode: str = "add",
        custom_position_ids: bool = False,
        **kwargs: Unchecked,
    ):
        super().__init__(output_dim=output_dim, **kwargs)
        self.merge_mode = merge_mode
        self.custom_position_ids = custom_position_ids

    def call(self, inputs: TensorLike) -> TensorLike:  # type: ignore[override]  # A list of both.
        x, position_ids = inputs if self.custom_position_ids else (inputs, None)
        return self.at(x, position_ids)

    def at(self, inputs: TensorLike, position_ids: TensorLike) -> TensorLike:
        """The layer's output for inputs at positions `(1, length)`."""
        positions = super().call(inputs, position_ids)
        return _merged(inputs, positions, self.merge_mode)

"""The layers of a block: attention, feed-forward and norm."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras import keras_functions as K
from roformer_keras.bert4keras.layer_functions import (
    align,
    find_activation,
    join_masks,
    sines_and_cosines,
)
from roformer_keras.bert4keras.node_tensors import NodeTensors
from roformer_keras.layers import FeedForward as _FeedForward
from roformer_keras.layers import LayerNorm, RMSNorm, RoPEAttention, apply_rotary

_serializable = keras.saving.register_keras_serializable("bert4keras")


@_serializable
class MultiHeadAttention(NodeTensors, RoPEAttention):
    """Attention of queries to keys and values, with an optional rotation.

    Args:
        heads, head_size: int, at least 1.
        out_dim: int. By default `heads * head_size`.
        key_size: int. Features per head of queries and keys; `head_size` by default.
        use_bias: bool.
        normalization: `"softmax"`.
        attention_scale: bool. True.
        attention_dropout: float in [0, 1), or None.
        return_attention_scores: bool. Whether to return the scaled scores too.
        kernel_initializer: of all four projections.

    Call arguments:
        inputs: list of queries, keys and values `(batch, length, dim)`, then with
            `a_bias` a mask (bool) or a bias (float) of two to four axes, or as many as
            it says, then with `p_bias="rotary"` the positions of
            `SinusoidalPositionEmbedding`.
        mask: list of the masks of these; the third hides keys.

    Returns:
        float `(batch, length, out_dim)`; a list of it and of the scores `(batch,
        heads, query, key)` with `return_attention_scores`.
    """

    original_parts: ClassVar[dict[str, str]] = {
        "query": "q_dense",
        "key": "k_dense",
        "value": "v_dense",
        "output_dense": "o_dense",
    }

    def __init__(
        self,
        heads: int,
        head_size: int,
        out_dim: int | None = None,
        key_size: int | None = None,
        use_bias: bool = True,
        normalization: str = "softmax",
        attention_scale: bool = True,
        attention_dropout: float | None = None,
        return_attention_scores: bool = False,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs: Unchecked,
    ):
        refuse(
            normalization != "softmax" or not attention_scale,
            "MultiHeadAttention is covered with normalization='softmax' and "
            f"attention_scale=True, got {normalization!r} and {attention_scale!r}",
        )
        super().__init__(
            num_heads=heads,
            head_dim=head_size,
            key_dim=key_size or head_size,
            dropout=attention_dropout or 0.0,
            # The call says whether it turns.
            rotary=False,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        self.heads = heads
        self.head_size = head_size
        self.out_dim = out_dim or heads * head_size
        self.key_size = key_size or head_size
        self.return_attention_scores = return_attention_scores

    def build(self, input_shape: Sequence) -> None:
        query, key, value = input_shape[:3]
        self.query.build(query)
        self.key.build(key)
        self.value.build(value)
        self.output_dense = self._dense(self.out_dim, "output_dense")
        self.output_dense.build((*query[:-1], self.heads * self.head_size))

    def call(  # type: ignore[override]  # A list of tensors.
        self,
        inputs: Sequence,
        mask: TensorLike = None,
        a_bias: int | None = None,
        p_bias: str | None = None,
        training: bool | None = None,
    ) -> TensorLike:
        extras = list(inputs[3:])
        visible, bias = None, None
        if mask is not None and mask[2] is not None:
            visible = mask[2][:, None, None, :]
        for _ in range(int(a_bias or 0)):
            extra_bias = extras.pop(0)
            axes = {2: [2, 3], 3: [0, 2, 3], 4: [0, 1, 2, 3]}[len(extra_bias.shape)]
            extra_bias = align(extra_bias, axes, 4)
            if K.dtype(extra_bias) != "bool":
                bias = extra_bias if bias is None else bias + extra_bias
            else:
                visible = join_masks([visible, extra_bias])
        refuse(
            p_bias not in (None, "rotary"),
            f"p_bias must be None or 'rotary', got {p_bias!r}",
        )
        output = super().call(
            tuple(ops.cast(x, self.compute_dtype) for x in inputs[:3]),
            attention_mask=visible,
            position_ids=extras.pop(0) if p_bias else None,
            residual_scores=bias,
            return_scores=self.return_attention_scores,
            training=training,
        )
        return list(output) if self.return_attention_scores else output

    def attend_with_cache(
        self,
        x: TensorLike,
        positions: TensorLike,
        visible: TensorLike,
        cache: tuple,
        cache_index: TensorLike,
    ) -> tuple:
        """Attention of new positions to themselves and to those in a cache.

        Args:
            x: float `(batch, length, dim)`.
            positions: of `SinusoidalPositionEmbedding`, or None.
            visible: bool `(batch, 1, length, keys)`.
            cache, cache_index: as in `RoPEAttention`.

        Returns:
            float `(batch, length, out_dim)`, and the updated cache.
        """
        return super().call(
            (x, x, x),
            attention_mask=visible,
            position_ids=positions,
            cache=cache,
            cache_index=cache_index,
        )

    def _heads(self, x):
        projections = (self.query, self.key, self.value)
        sizes = (self.key_size, self.key_size, self.head_size)
        return (
            ops.reshape(dense(one), (*ops.shape(one)[:2], self.heads, size))
            for one, dense, size in zip(x, projections, sizes, strict=True)
        )

    def _rotated(
        self,
        query: TensorLike,
        key: TensorLike,
        position_ids: TensorLike,
        start: int = 0,
    ) -> tuple[TensorLike, TensorLike]:
        if position_ids is None:
            return query, key
        sin, cos = sines_and_cosines(position_ids)
        return apply_rotary(query, sin, cos), apply_rotary(key, sin, cos)

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        first = None if mask is None else mask[0]
        return [first, None] if self.return_attention_scores else first

    def get_config(self) -> dict[str, Any]:
        config = keras.layers.Layer.get_config(self)
        config.update(
            heads=self.heads,
            head_size=self.head_size,
            out_dim=self.out_dim,
            key_size=self.key_size,
            use_bias=self.use_bias,
            attention_dropout=self.dropout,
            return_attention_scores=self.return_attention_scores,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
        )
        return config


@_serializable
class FeedForward(NodeTensors, _FeedForward):
    """Two dense layers with an activation between them.

    Args:
        units: int, at least 1. Of the first layer.
        activation: name or function; a list of one is that one.
        use_bias: bool.
        kernel_initializer: of both kernels.
    """

    original_parts: ClassVar[dict[str, str]] = {
        "intermediate_dense": "i0_dense",
        "output_dense": "o_dense",
    }

    def __init__(
        self,
        units: int,
        activation: str | Callable = "relu",
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs: Unchecked,
    ):
        many = activation if isinstance(activation, list) else [activation]
        refuse(
            len(many) != 1,
            "FeedForward is covered with one activation; gated units belong to "
            f"models that are not, got {activation!r}",
        )
        super().__init__(
            units,
            activation=find_activation(many[0]),
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        self.units = units

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["units"] = config.pop("intermediate_dim")
        config["activation"] = keras.activations.serialize(self.activation)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FeedForward":
        activation = keras.activations.get(config.pop("activation"))
        return cls(activation=activation, **config)


@_serializable
class LayerNormalization(NodeTensors, LayerNorm):
    """Layer normalisation, conditional on a vector on request; RMS norm as well.

    Args:
        zero_mean: bool. False, without `scale` and `offset`, is the norm of RoFormerV2.
        unit_variance: bool. True.
        epsilon: float above 0; Keras's epsilon, 1e-7, by default.
        scale, offset: bool. Whether there are gamma and beta.
        conditional: bool. Whether the input is a list with a condition.
        hidden_units, hidden_activation: of a dense layer on the condition.
    """

    def __init__(
        self,
        zero_mean: bool = True,
        unit_variance: bool = True,
        epsilon: float | None = None,
        scale: bool = True,
        offset: bool = True,
        conditional: bool = False,
        hidden_units: int | None = None,
        hidden_activation: str | Callable = "linear",
        hidden_initializer: str | keras.Initializer = "glorot_uniform",
        **kwargs: Unchecked,
    ):
        refuse(
            not unit_variance or (conditional and not (scale and offset)),
            "LayerNormalization is covered with unit_variance=True, and a "
            "conditional one with scale=True and offset=True",
        )
        super().__init__(
            epsilon or keras.config.epsilon(),
            conditional=conditional,
            condition_hidden_dim=hidden_units,
            condition_hidden_activation=hidden_activation,
            **kwargs,
        )
        self.zero_mean = zero_mean
        self.scale = scale
        self.offset = offset
        self.hidden_initializer = keras.initializers.get(hidden_initializer)

    def build(self, input_shape: Sequence) -> None:  # type: ignore[override]
        # In bert4keras's order of weights.
        shape, *condition = input_shape if self.conditional else [input_shape]
        dim = shape[-1]
        self.gamma = self.beta = None
        if self.offset:
            self.beta = self.add_weight((dim,), "zeros", name="beta", autocast=False)
        if self.scale:
            self.gamma = self.add_weight((dim,), "ones", name="gamma", autocast=False)
        if not self.conditional:
            return
        (width,) = condition
        if self.hidden_dense:
            self.hidden_dense.kernel_initializer = self.hidden_initializer
            self.hidden_dense.build(width)
            width = (*width[:-1], self.condition_hidden_dim)
        for name in ("beta_dense", "gamma_dense"):
            dense = keras.layers.Dense(
                dim,
                use_bias=False,
                kernel_initializer="zeros",
                dtype=self.dtype_policy,
                name=name,
            )
            dense.build(width)
            setattr(self, name, dense)

    def call(self, inputs: TensorLike) -> TensorLike:  # type: ignore[override]
        if self.conditional:
            return super().call(*inputs)
        if self.zero_mean and self.scale and self.offset:
            return super().call(inputs)
        x = ops.cast(inputs, "float32")
        if self.zero_mean:
            x = x - ops.mean(x, axis=-1, keepdims=True)
        x = RMSNorm.call(self, x)
        x = x * ops.cast(self.gamma, x.dtype) if self.scale else x
        return x + ops.cast(self.beta, x.dtype) if self.offset else x

    def compute_mask(self, inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
        return mask[0] if self.conditional and mask is not None else mask

    def compute_output_shape(self, input_shape: Sequence) -> Sequence:  # type: ignore[override]
        return input_shape[0] if self.conditional else input_shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["hidden_units"] = config.pop("condition_hidden_dim")
        config["hidden_activation"] = config.pop("condition_hidden_activation")
        config.update(
            zero_mean=self.zero_mean,
            scale=self.scale,
            offset=self.offset,
            hidden_initializer=keras.initializers.serialize(self.hidden_initializer),
        )
        return config

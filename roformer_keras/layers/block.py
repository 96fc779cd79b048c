"""The feed-forward layer, and the block that an encoder repeats."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.norms import activation_from_name
from roformer_keras.layers.projection import Projection
from roformer_keras.layers.recomputation import recomputed


@keras.saving.register_keras_serializable("roformer_keras")
class FeedForward(ConfiguredLayer):
    """Two dense layers with an activation between them.

    Args:
        intermediate_dim: int, at least 1.
        activation: name of a Keras activation; `"gelu"` is the exact form.
        use_bias: bool. True for RoFormer, False for RoFormerV2.
        kernel_initializer: initializer of both kernels.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(..., hidden_dim)`.

    Returns:
        float, of the shape of `x`.

    Raises:
        ConfigurationError: `intermediate_dim` is not above 0.

    Example:
        >>> ops.shape(layers.FeedForward(64)(np.ones((1, 5, 16))))
        (1, 5, 16)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.3.
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: str | Callable = "gelu",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        refuse(
            intermediate_dim < 1,
            f"intermediate_dim must be at least 1, got {intermediate_dim!r}",
        )
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.intermediate_dense = Projection(
            intermediate_dim,
            activation=activation_from_name(activation),
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="intermediate_dense",
        )

    def build(self, input_shape: Shape) -> None:
        self.intermediate_dense.build(input_shape)
        self.output_dense = Projection(
            input_shape[-1],
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="output_dense",
        )
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, x: TensorLike) -> TensorLike:
        return self.output_dense(self.intermediate_dense(x))


def _build(layer, *shapes):
    if not layer.built:
        layer.build(*shapes)


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerBlock(ConfiguredLayer):
    """Attention and feed-forward, each added to its input.

    The sum is normalised; with `norm_first` the input is normalised instead.

    Args:
        attention: layer, `RoPEAttention` or `LinearRoPEAttention`.
        feed_forward: layer, such as `FeedForward`.
        attention_norm, feed_forward_norm: layers, such as `LayerNorm` or `RMSNorm`.
        dropout: float in [0, 1). After attention and feed-forward, before the sum.
        norm_first: bool.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Attributes:
        recompute: bool, False at first. Whether training computes the block again in
            the backward pass instead of storing its activations; ignored with a cache.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        condition: float `(batch, condition_dim)`, if the norms take one.
        attention_mask, position_ids: as in the attention.
        residual_scores, return_scores: as in the attention.
        cache, cache_index, context: as in the attention.

    Returns:
        float `(batch, length, hidden_dim)`, followed by scores and cache if the
        attention returns them.

    Example:
        >>> block = layers.RoFormerBlock(
        ...     layers.RoPEAttention(num_heads=2, head_dim=8, name="attention"),
        ...     layers.FeedForward(64, name="feed_forward"),
        ...     layers.LayerNorm(name="attention_norm"),
        ...     layers.LayerNorm(name="feed_forward_norm"),
        ...     dropout=0.1,
        ... )
        >>> ops.shape(block(np.ones((1, 5, 16))))
        (1, 5, 16)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; with the attention of Su
    et al. 2021, arXiv:2104.09864.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feed_forward: keras.layers.Layer,
        attention_norm: keras.layers.Layer,
        feed_forward_norm: keras.layers.Layer,
        dropout: float = 0.0,
        norm_first: bool = False,
        **kwargs: Any,
    ):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.dropout = dropout
        self.norm_first = norm_first
        self.recompute = False
        self.attention = attention
        self.attention_output_dropout = self._dropout("attention_output_dropout")
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.feed_forward_dropout = self._dropout("feed_forward_dropout")
        self.feed_forward_norm = feed_forward_norm

    def build(self, x_shape: Shape, condition_shape: Shape | None = None) -> None:
        shapes = (x_shape,) if condition_shape is None else (x_shape, condition_shape)
        _build(self.attention, x_shape)
        _build(self.feed_forward, x_shape)
        _build(self.attention_norm, *shapes)
        _build(self.feed_forward_norm, *shapes)

    def call(
        self,
        x: TensorLike,
        attention_mask: TensorLike = None,
        position_ids: TensorLike = None,
        residual_scores: TensorLike = None,
        return_scores: bool = False,
        condition: TensorLike = None,
        cache: tuple | None = None,
        cache_index: int | TensorLike = 0,
        context: Sequence = (),
        training: bool | None = None,
    ) -> TensorLike:
        compute = functools.partial(
            self._compute,
            attention_mask=attention_mask,
            position_ids=position_ids,
            return_scores=return_scores,
            cache=cache,
            cache_index=cache_index,
            context=context,
            training=training,
        )
        tensors = {"x": x, "residual_scores": residual_scores, "condition": condition}
        if not (self.recompute and training and cache is None):
            return compute(**tensors)
        return recomputed(
            compute, self, {k: v for k, v in tensors.items() if v is not None}
        )

    def _compute(self, x, condition=None, training=None, **options):
        x = ops.cast(x, self.compute_dtype)
        x, extras = self._add(
            x,
            functools.partial(self.attention, training=training, **options),
            self.attention_norm,
            self.attention_output_dropout,
            condition,
            training,
        )
        x, _ = self._add(
            x,
            self._feed,
            self.feed_forward_norm,
            self.feed_forward_dropout,
            condition,
            training,
        )
        return (x, *extras) if extras else x

    def _dropout(self, name):
        return keras.layers.Dropout(self.dropout, dtype=self.dtype_policy, name=name)

    def _add(self, x, layer, norm, dropout, condition=None, training=None):
        """`norm(x + layer(x))`, or with `norm_first` `x + layer(norm(x))`."""
        condition = () if condition is None else (condition,)
        added = layer(norm(x, *condition) if self.norm_first else x)
        added, *extras = added if isinstance(added, tuple) else (added,)
        added = dropout(added, training=training)
        if len(added.shape) == len(x.shape):
            x = x + added
        else:
            x = ops.reshape(ops.reshape(x, (-1, x.shape[-1])) + added, ops.shape(x))
        return (x if self.norm_first else norm(x, *condition)), extras

    def _feed(self, x):
        # (batch * length, hidden_dim), also for the sum: TensorFlow fuses it with the
        # product and the bias before it, if no reshape comes between.
        return self.feed_forward(ops.reshape(x, (-1, x.shape[-1])))

    def compute_output_spec(
        self, x: TensorLike, *args: Any, **options: Any
    ) -> TensorLike:
        if options.get("return_scores") or options.get("cache") is not None:
            return super().compute_output_spec(x, *args, **options)
        # Tracing each block for a known shape would take two thirds of the time that a
        # base model takes to build.
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        arguments = {
            name: keras.saving.deserialize_keras_object(value)
            if isinstance(value, dict)
            else value
            for name, value in config.items()
        }
        return cls(**arguments)

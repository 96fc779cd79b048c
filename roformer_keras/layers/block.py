"""Norms, the feed-forward layer, and the blocks that encoder and decoder repeat."""

import functools
import math

import keras
from keras import ops

from roformer_keras.errors import ConfigurationError
from roformer_keras.layers.dropout import Dropout
from roformer_keras.layers.fused import fused_operations
from roformer_keras.layers.projection import Projection
from roformer_keras.layers.recomputation import recomputed

__all__ = [
    "FeedForward",
    "LayerNorm",
    "RMSNorm",
    "RoFormerBlock",
    "RoFormerDecoderBlock",
    "erf_gelu",
]


@keras.saving.register_keras_serializable("roformer_keras")
def erf_gelu(x):
    """The exact GELU, `x * P(X <= x)` for a standard normal X.

    Spelled with `erf`, because the `erfc` of the Keras activation has no ONNX form.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


def activation_from_name(activation):
    """A Keras activation; `"gelu"` is the exact form, as in bert4keras."""
    if activation == "gelu":
        return erf_gelu
    try:
        return keras.activations.get(activation)
    except ValueError as error:
        raise ConfigurationError(
            f"activation must be the name of a Keras activation, got {activation!r}"
        ) from error


def _check_epsilon(epsilon):
    if not epsilon > 0:
        raise ConfigurationError(f"epsilon must be above 0, got {epsilon!r}")


@keras.saving.register_keras_serializable("roformer_keras")
class LayerNorm(keras.layers.Layer):
    """Layer normalisation, on request conditional on a vector.

    `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis, in
    float32 under every dtype policy. With a condition c, gamma becomes
    `gamma + c Wg` and beta `beta + c Wb`, both products zero at first.

    Args:
        epsilon: float above 0. 1e-12 as RoFormer was trained.
        conditional: bool. Whether the layer takes a condition.
        condition_hidden_dim: int or None. Width of a dense layer on the condition.
        condition_hidden_activation: its activation.

    Call arguments:
        x: float `(..., dim)`.
        condition: float `(batch, condition_dim)`; required if `conditional`.

    Returns:
        float, of the shape of `x`.

    Source: Ba et al. 2016, arXiv:1607.06450; the condition as in bert4keras.
    """

    def __init__(
        self,
        epsilon=1e-12,
        conditional=False,
        condition_hidden_dim=None,
        condition_hidden_activation="linear",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check_epsilon(epsilon)
        self.supports_masking = True
        self.epsilon = epsilon
        self.conditional = conditional
        self.condition_hidden_dim = condition_hidden_dim
        self.condition_hidden_activation = condition_hidden_activation
        if conditional:
            self.hidden_dense = None
            if condition_hidden_dim:
                self.hidden_dense = keras.layers.Dense(
                    condition_hidden_dim,
                    activation=activation_from_name(condition_hidden_activation),
                    use_bias=False,
                    dtype=self.dtype_policy,
                    name="hidden_dense",
                )

    def build(self, x_shape, condition_shape=None):
        dim = x_shape[-1]
        self.gamma = self.add_weight(
            shape=(dim,), initializer="ones", name="gamma", autocast=False
        )
        self.beta = self.add_weight(
            shape=(dim,), initializer="zeros", name="beta", autocast=False
        )
        if self.conditional:
            if condition_shape is None:
                raise ConfigurationError(
                    "a conditional LayerNorm must be called with a condition"
                )
            if self.hidden_dense:
                self.hidden_dense.build(condition_shape)
                condition_shape = (*condition_shape[:-1], self.condition_hidden_dim)
            self.gamma_dense, self.beta_dense = (
                keras.layers.Dense(
                    dim,
                    use_bias=False,
                    kernel_initializer="zeros",
                    dtype=self.dtype_policy,
                    name=name,
                )
                for name in ("gamma_dense", "beta_dense")
            )
            self.gamma_dense.build(condition_shape)
            self.beta_dense.build(condition_shape)

    def call(self, x, condition=None):
        operations = fused_operations()
        if operations and not self.conditional:
            x = ops.cast(x, self.compute_dtype)
            return operations.layer_norm(x, self.gamma, self.beta, self.epsilon)
        x = ops.cast(x, "float32")
        # Not `ops.moments`: PyTorch's subtracts squares, and may come out below zero.
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        gamma = ops.cast(self.gamma, "float32")
        beta = ops.cast(self.beta, "float32")
        if self.conditional:
            if self.hidden_dense:
                condition = self.hidden_dense(condition)
            # (batch, dim) -> (batch, 1, ..., dim)
            axes = tuple(range(1, len(x.shape) - 1))
            gamma = gamma + ops.cast(
                ops.expand_dims(self.gamma_dense(condition), axes), "float32"
            )
            beta = beta + ops.cast(
                ops.expand_dims(self.beta_dense(condition), axes), "float32"
            )
        normalised = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normalised * gamma + beta, self.compute_dtype)

    def compute_output_shape(self, x_shape, condition_shape=None):
        return x_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            epsilon=self.epsilon,
            conditional=self.conditional,
            condition_hidden_dim=self.condition_hidden_dim,
            condition_hidden_activation=self.condition_hidden_activation,
        )
        return config


@keras.saving.register_keras_serializable("roformer_keras")
class RMSNorm(keras.layers.Layer):
    """`x / sqrt(mean(x ** 2) + epsilon)`: the norm of RoFormerV2, without parameters.

    Computed in float32 under every dtype policy.

    Args:
        epsilon: float above 0.

    Call arguments:
        x: float `(..., dim)`.

    Returns:
        float, of the shape of `x`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, epsilon=1e-12, **kwargs):
        super().__init__(**kwargs)
        _check_epsilon(epsilon)
        self.supports_masking = True
        self.epsilon = epsilon

    def call(self, x):
        x = ops.cast(x, "float32")
        square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return ops.cast(x * ops.rsqrt(square + self.epsilon), self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable("roformer_keras")
class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between them.

    Args:
        intermediate_dim: int, at least 1.
        activation: name of a Keras activation; `"gelu"` is the exact form.
        use_bias: bool. True for RoFormer, False for RoFormerV2.
        kernel_initializer: of both kernels.

    Call arguments:
        x: float `(..., hidden_dim)`.

    Returns:
        float, of the shape of `x`.
    """

    def __init__(
        self,
        intermediate_dim,
        activation="gelu",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if intermediate_dim < 1:
            raise ConfigurationError(
                f"intermediate_dim must be at least 1, got {intermediate_dim!r}"
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

    def build(self, input_shape):
        self.intermediate_dense.build(input_shape)
        self.output_dense = Projection(
            input_shape[-1],
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="output_dense",
        )
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, x):
        return self.output_dense(self.intermediate_dense(x))

    def get_config(self):
        config = super().get_config()
        config.update(
            intermediate_dim=self.intermediate_dim,
            activation=self.activation,
            use_bias=self.use_bias,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
        )
        return config


class _Block(keras.layers.Layer):
    """What both blocks share: layers as arguments, each with a norm and a sum."""

    def __init__(self, dropout, norm_first, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.dropout = dropout
        self.norm_first = norm_first

    def _dropout(self, name):
        return Dropout(self.dropout, dtype=self.dtype_policy, name=name)

    def _add(self, x, layer, norm, dropout, condition=None, training=None):
        """`norm(x + layer(x))`, or with `norm_first` `x + layer(norm(x))`.

        Returns:
            The sum, and a list of what the layer returns besides.
        """
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
        # (batch * length, hidden_dim), also for the sum: TensorFlow joins it with the
        # product and the bias before it, where no reshape stands between.
        return self.feed_forward(ops.reshape(x, (-1, x.shape[-1])))

    def compute_output_spec(self, x, *args, **options):
        if options.get("return_scores") or options.get("cache") is not None:
            return super().compute_output_spec(x, *args, **options)
        # Tracing each block for a shape that is known takes two thirds of the time in
        # which a base model is built.
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "norm_first": self.norm_first,
        }

    @classmethod
    def from_config(cls, config):
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value)
                if isinstance(value, dict)
                else value
                for name, value in config.items()
            }
        )


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerBlock(_Block):
    """Attention and feed-forward, each added to its input.

    The sum is normalised; with `norm_first` the input is normalised instead.

    Args:
        attention: layer, `RoPEAttention` or `LinearRoPEAttention`.
        feed_forward: layer, such as `FeedForward`.
        attention_norm, feed_forward_norm: layers, such as `LayerNorm` or `RMSNorm`.
        dropout: float in [0, 1). After attention and feed-forward, before the sum.
        norm_first: bool.

    Attributes:
        recompute: bool, False at first. Whether training computes the block again in
            the backward pass instead of keeping its activations; not with a cache.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        condition: float `(batch, condition_dim)`, if the norms take one.
        attention_mask, position_ids, residual_scores, return_scores, cache,
        cache_index, context: as the attention takes them.

    Returns:
        float `(batch, length, hidden_dim)`, followed by scores and cache where the
        attention returns them.

    Example:
    ```python
    block = RoFormerBlock(
        RoPEAttention(num_heads=12, head_dim=64, name="attention"),
        FeedForward(3072, name="feed_forward"),
        LayerNorm(name="attention_norm"),
        LayerNorm(name="feed_forward_norm"),
        dropout=0.1,
    )
    ```
    """

    def __init__(
        self,
        attention,
        feed_forward,
        attention_norm,
        feed_forward_norm,
        dropout=0.0,
        norm_first=False,
        **kwargs,
    ):
        super().__init__(dropout, norm_first, **kwargs)
        self.recompute = False
        self.attention = attention
        self.attention_output_dropout = self._dropout("attention_output_dropout")
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.feed_forward_dropout = self._dropout("feed_forward_dropout")
        self.feed_forward_norm = feed_forward_norm

    def build(self, x_shape, condition_shape=None):
        self.attention.build(x_shape)
        self.feed_forward.build(x_shape)
        shapes = (x_shape,) if condition_shape is None else (x_shape, condition_shape)
        self.attention_norm.build(*shapes)
        self.feed_forward_norm.build(*shapes)

    def call(
        self,
        x,
        attention_mask=None,
        position_ids=None,
        residual_scores=None,
        return_scores=False,
        condition=None,
        cache=None,
        cache_index=0,
        context=(),
        training=None,
    ):
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

    def get_config(self):
        return {
            **super().get_config(),
            "attention": keras.layers.serialize(self.attention),
            "feed_forward": keras.layers.serialize(self.feed_forward),
            "attention_norm": keras.layers.serialize(self.attention_norm),
            "feed_forward_norm": keras.layers.serialize(self.feed_forward_norm),
        }


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerDecoderBlock(_Block):
    """Self-attention, attention to an encoder's output, and feed-forward.

    Each is added to its input and the sum is normalised; with `norm_first` the input is
    normalised instead.

    Args:
        attention: `RoPEAttention`.
        cross_attention: `CrossAttention`.
        feed_forward: layer, such as `FeedForward`.
        attention_norm, cross_attention_norm, feed_forward_norm: layers, such as
            `LayerNorm`.
        dropout: float in [0, 1). After each of the three layers, before the sum.
        norm_first: bool.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        memory: the encoder's output, as `CrossAttention` takes it.
        cross_attention_mask: bool `(rows, 1, 1, memory_length)`.
        attention_mask, position_ids, cache, cache_index, context: as `RoPEAttention`
            takes them.

    Returns:
        float `(batch, length, hidden_dim)`; with a cache, a pair of that and of the
        updated cache.

    Source: Vaswani et al. 2017, arXiv:1706.03762; with `norm_first` Xiong et al. 2020,
        arXiv:2002.04745.
    """

    def __init__(
        self,
        attention,
        cross_attention,
        feed_forward,
        attention_norm,
        cross_attention_norm,
        feed_forward_norm,
        dropout=0.0,
        norm_first=False,
        **kwargs,
    ):
        super().__init__(dropout, norm_first, **kwargs)
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.attention_norm = attention_norm
        self.cross_attention_norm = cross_attention_norm
        self.feed_forward_norm = feed_forward_norm
        self.attention_output_dropout = self._dropout("attention_output_dropout")
        self.cross_attention_output_dropout = self._dropout(
            "cross_attention_output_dropout"
        )
        self.feed_forward_dropout = self._dropout("feed_forward_output_dropout")

    def build(self, x_shape, memory_shape, **shapes):
        self.attention.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.feed_forward.build(x_shape)
        self.attention_norm.build(x_shape)
        self.cross_attention_norm.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x,
        memory,
        cross_attention_mask=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        cache_index=0,
        context=(),
        training=None,
    ):
        attend = functools.partial(
            self.attention,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            cache_index=cache_index,
            context=context,
            training=training,
        )

        def attend_to_memory(x):
            return self.cross_attention(
                x, memory, attention_mask=cross_attention_mask, training=training
            )

        x, caches = self._add(
            ops.cast(x, self.compute_dtype),
            attend,
            self.attention_norm,
            self.attention_output_dropout,
            training=training,
        )
        x, _ = self._add(
            x,
            attend_to_memory,
            self.cross_attention_norm,
            self.cross_attention_output_dropout,
            training=training,
        )
        x, _ = self._add(
            x,
            self._feed,
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training=training,
        )
        return (x, *caches) if caches else x

    def get_config(self):
        return {
            **super().get_config(),
            "attention": keras.layers.serialize(self.attention),
            "cross_attention": keras.layers.serialize(self.cross_attention),
            "feed_forward": keras.layers.serialize(self.feed_forward),
            "attention_norm": keras.layers.serialize(self.attention_norm),
            "cross_attention_norm": keras.layers.serialize(self.cross_attention_norm),
            "feed_forward_norm": keras.layers.serialize(self.feed_forward_norm),
        }

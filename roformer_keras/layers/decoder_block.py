"""What a decoder has beside an encoder: attention to the encoder's output."""

import keras
from keras import ops

from roformer_keras.errors import ConfigurationError
from roformer_keras.layers.attention import RoPEAttention, attention_weights
from roformer_keras.layers.block import FeedForward, LayerNorm
from roformer_keras.layers.dropout import Dropout
from roformer_keras.layers.projection import Projection

__all__ = ["CrossAttention", "RoFormerDecoderBlock"]


@keras.saving.register_keras_serializable("roformer_keras")
class CrossAttention(keras.layers.Layer):
    """Attention of one text to another, without positions.

    Args:
        num_heads: int, at least 1.
        head_dim: int, at least 1. Features per head.
        dropout: float in [0, 1). Rate on attention weights, training only.
        kernel_initializer: of all four projections.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        memory: float `(rows, memory_length, memory_dim)`, or what `project` makes of
            it, which saves its projection where it is attended to again and again. Of
            `rows`, each serves `batch / rows` neighbouring rows of `x`.
        attention_mask: bool `(rows, 1, 1, memory_length)`; True means "may attend".

    Returns:
        float `(batch, length, hidden_dim)`.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (("num_heads", num_heads), ("head_dim", head_dim)):
            if value < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {value!r}")
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"dropout must be in [0, 1), got {dropout!r}")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.query, self.key, self.value = (
            self._dense(num_heads * head_dim, name)
            for name in ("query", "key", "value")
        )
        self.attention_dropout = Dropout(
            dropout, dtype=self.dtype_policy, name="attention_dropout"
        )

    def _dense(self, units, name):
        return Projection(
            units,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape, memory_shape, attention_mask_shape=None):
        self.query.build(x_shape)
        self.key.build(memory_shape)
        self.value.build(memory_shape)
        self.output_dense = self._dense(x_shape[-1], "output_dense")
        self.output_dense.build((*x_shape[:-1], self.num_heads * self.head_dim))

    def project(self, memory):
        """Keys and values `(rows, num_heads, memory_length, head_dim)` of a text."""
        return tuple(
            ops.transpose(self._heads(dense(memory)), (0, 2, 1, 3))
            for dense in (self.key, self.value)
        )

    def call(self, x, memory, attention_mask=None, training=None):
        keys, values = memory if isinstance(memory, tuple) else self.project(memory)
        batch, length = ops.shape(x)[:2]
        # Without positions it is all the same from where a query comes: those of the
        # rows that share keys are as many queries more of one row.
        query = ops.reshape(
            self.query(x), (ops.shape(keys)[0], -1, self.num_heads, self.head_dim)
        )
        scores = ops.einsum("bqhd,bhkd->bhqk", query, keys)
        scores = scores * ops.cast(self.head_dim**-0.5, scores.dtype)
        weights = attention_weights(scores, attention_mask)
        weights = self.attention_dropout(weights, training=training)
        mixed = ops.einsum("bhqk,bhkd->bqhd", weights, values)
        mixed = ops.reshape(mixed, (batch, length, self.num_heads * self.head_dim))
        return self.output_dense(mixed)

    def _heads(self, x):
        rows, length = ops.shape(x)[:2]
        return ops.reshape(x, (rows, length, self.num_heads, self.head_dim))

    def compute_output_shape(self, x_shape, memory_shape, attention_mask_shape=None):
        return x_shape

    def get_config(self):
        config = super().get_config()
        config.update(
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            dropout=self.dropout,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
        )
        return config


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerDecoderBlock(keras.layers.Layer):
    """Self-attention, attention to an encoder's output, and feed-forward.

    Each is added to its input, and the sum normalised; with `norm_first` the input is,
    and the sum is not. Self-attention turns by positions, the other knows of none.

    Args:
        num_heads, head_dim: of both attentions.
        intermediate_dim, activation: of the `FeedForward`.
        rotary: bool. False leaves positions out of self-attention too.
        dropout: float in [0, 1). After each of the three, before the sum.
        attention_dropout: float in [0, 1). On the weights of both attentions.
        norm_first: bool.
        layer_norm_epsilon: float above 0, of the three norms.
        kernel_initializer: of every kernel.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        memory: the encoder's output, as `CrossAttention` takes it.
        cross_attention_mask: bool `(rows, 1, 1, memory_length)`.
        attention_mask, position_ids, cache, cache_index, context: as `RoPEAttention`
            takes them.

    Returns:
        float `(batch, length, hidden_dim)`; with a cache a pair of it and of the cache,
        written to.

    Source: Vaswani et al. 2017, arXiv:1706.03762; with `norm_first` Xiong et al. 2020,
        arXiv:2002.04745.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        intermediate_dim,
        rotary=True,
        activation="relu",
        dropout=0.0,
        attention_dropout=0.0,
        norm_first=False,
        layer_norm_epsilon=1e-6,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.intermediate_dim = intermediate_dim
        self.rotary = rotary
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.norm_first = norm_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

        self.attention = RoPEAttention(
            num_heads,
            head_dim,
            rotary=rotary,
            dropout=attention_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="attention",
        )
        self.cross_attention = CrossAttention(
            num_heads,
            head_dim,
            dropout=attention_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="cross_attention",
        )
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        parts = ("attention", "cross_attention", "feed_forward")
        self.attention_norm, self.cross_attention_norm, self.feed_forward_norm = (
            LayerNorm(layer_norm_epsilon, dtype=self.dtype_policy, name=f"{part}_norm")
            for part in parts
        )
        (
            self.attention_output_dropout,
            self.cross_attention_output_dropout,
            self.feed_forward_dropout,
        ) = (
            Dropout(dropout, dtype=self.dtype_policy, name=f"{part}_output_dropout")
            for part in parts
        )

    def build(self, x_shape, memory_shape, **shapes):
        self.attention.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.feed_forward.build(x_shape)
        for norm in (
            self.attention_norm,
            self.cross_attention_norm,
            self.feed_forward_norm,
        ):
            norm.build(x_shape)

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
        caches = []

        def attend(x):
            attended = self.attention(
                x,
                attention_mask=attention_mask,
                position_ids=position_ids,
                cache=cache,
                cache_index=cache_index,
                context=context,
                training=training,
            )
            if cache is None:
                return attended
            attended, written = attended
            caches.append(written)
            return attended

        def look_up(x):
            return self.cross_attention(
                x, memory, attention_mask=cross_attention_mask, training=training
            )

        x = ops.cast(x, self.compute_dtype)
        for function, norm, dropout in (
            (attend, self.attention_norm, self.attention_output_dropout),
            (look_up, self.cross_attention_norm, self.cross_attention_output_dropout),
            (self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout),
        ):
            change = function(norm(x) if self.norm_first else x)
            x = x + dropout(change, training=training)
            if not self.norm_first:
                x = norm(x)
        return (x, *caches) if caches else x

    def compute_output_spec(self, x, memory, cache=None, **options):
        if cache is not None:
            return super().compute_output_spec(x, memory, cache=cache, **options)
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def get_config(self):
        config = super().get_config()
        for name in (
            "num_heads",
            "head_dim",
            "intermediate_dim",
            "rotary",
            "activation",
            "dropout",
            "attention_dropout",
            "norm_first",
            "layer_norm_epsilon",
        ):
            config[name] = getattr(self, name)
        config["kernel_initializer"] = keras.initializers.serialize(
            self.kernel_initializer
        )
        return config

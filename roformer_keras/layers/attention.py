"""Softmax attention with rotary positions."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.layers import long_attention
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.long_attention import may_be_long
from roformer_keras.layers.position import apply_rotary, check_layout, rotary_table
from roformer_keras.layers.projection import Projection


class ProjectedAttention(ConfiguredLayer):
    """Projections to heads and back, and the rotation; subclasses compute attention.

    Args:
        num_heads: int, at least 1.
        head_dim: int, at least 1. Features per head of the values.
        key_dim: int, even. Features per head of queries and keys. Defaults to
            `head_dim`.
        base: float above 0. Defaults to 10000.
        layout: `"interleaved"` (the default, which the checkpoints use), or
            `"half_split"`, which pairs features `(i, i + key_dim / 2)`.
        rotary: bool. False leaves queries and keys without positions.
        use_bias: bool. True for RoFormer, False for RoFormerV2.
        kernel_initializer: initializer of all four projections.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Raises:
        ConfigurationError: an argument breaks its rule.
        ValueError: the input is not of rank 3.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        key_dim: int | None = None,
        base: float = 10000.0,
        layout: str = "interleaved",
        rotary: bool = True,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        # Casting to the compute type would round fractional positions.
        super().__init__(autocast=False, **kwargs)
        key_dim = head_dim if key_dim is None else key_dim
        for name, value in (("num_heads", num_heads), ("head_dim", head_dim)):
            refuse(
                value < 1,
                f"{name} must be at least 1, got {value!r}",
            )
        refuse(
            key_dim < 1 or (rotary and key_dim % 2),
            "key_dim must be even, because RoPE turns features in pairs; "
            f"got {key_dim!r}",
        )
        check_layout(layout)
        refuse(
            not base > 0,
            f"base must be above 0, got {base!r}",
        )
        self.supports_masking = True
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.key_dim = key_dim
        self.base = base
        self.layout = layout
        self.rotary = rotary
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.query = self._dense(num_heads * key_dim, "query")
        self.key = self._dense(num_heads * key_dim, "key")
        self.value = self._dense(num_heads * head_dim, "value")

    def _dense(self, units, name):
        return Projection(
            units,
            use_bias=self.use_bias,
            # In some backends, a shared initializer object would give equal weights.
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape: Shape) -> None:
        if len(x_shape) != 3:
            raise ValueError(
                f"x must be of shape (batch, length, hidden_dim), got {tuple(x_shape)}"
            )
        for dense in (self.query, self.key, self.value):
            dense.build(x_shape)
        self.output_dense = self._dense(x_shape[-1], "output_dense")
        self.output_dense.build((*x_shape[:-1], self.num_heads * self.head_dim))

    def _heads(self, x):
        """Query, key and value: `(batch, length, heads, features per head)`."""
        batch, length = ops.shape(x)[:2]
        return (
            ops.reshape(project(x), (batch, length, self.num_heads, dim))
            for project, dim in (
                (self.query, self.key_dim),
                (self.key, self.key_dim),
                (self.value, self.head_dim),
            )
        )

    def _joined(self, mixed):
        """The layer's output, from `(batch, length, heads, head_dim)`."""
        batch, length = ops.shape(mixed)[:2]
        mixed = ops.reshape(mixed, (batch, length, self.num_heads * self.head_dim))
        return self.output_dense(mixed)

    def _rotated(self, query, key, position_ids, start=0):
        """Rotates both `(batch, length, heads, dim)` by their positions."""
        if not self.rotary:
            return query, key
        if position_ids is None:
            position_ids = ops.arange(ops.shape(query)[1])[None] + start
        sin, cos = rotary_table(position_ids, query.shape[-1], self.base, self.layout)
        return tuple(
            apply_rotary(projected, sin, cos, self.layout) for projected in (query, key)
        )


@keras.saving.register_keras_serializable("roformer_keras")
class RoPEAttention(ProjectedAttention):
    """Self-attention whose queries and keys are rotated by position.

    In each head, features `(2i, 2i + 1)` of the token at position `m` turn by
    `m * base ** (-2i / key_dim)` radians, so a score depends on content and on the
    distance between two tokens. Values are not rotated. Angles are float32 under
    every dtype policy.

    Args:
        num_heads: int, at least 1.
        head_dim: int, at least 1. Features per head of the values.
        dropout: float in [0, 1). Rate on attention weights, training only.
        kwargs: as in `ProjectedAttention`.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        attention_mask: bool, broadcastable to `(batch, num_heads, query, key)`;
            True means "may attend". A padding mask is `(batch, 1, 1, key)`.
        position_ids: float or int `(batch or 1, length)`, may be fractional.
            0, 1, 2, ... (counted from `cache_index`) if it is not given.
        residual_scores: float `(batch, num_heads, query, key)`, added to the scores.
        return_scores: bool. Whether to return the scaled scores too, before
            `residual_scores`, mask and softmax.
        cache: pair of rotated keys `(batch, num_heads, capacity, key_dim)` and
            values `(batch, num_heads, capacity, head_dim)`; see `create_cache`.
                The keys of `x` are written into it. Attention covers its whole
                capacity: the mask must hide the unwritten keys.
        cache_index: int, or int scalar tensor. Index of `x` in the cache;
            `cache_index + length` must not exceed the capacity.
        context: sequence of caches that are read and not written. Their keys precede
            those of `x` in the mask, in this order. If a context has fewer rows, each
            of its rows serves several neighbouring rows of `x`.

    Returns:
        float `(batch, length, hidden_dim)`; with `return_scores` or `cache`, a tuple
        with the scores and the updated cache.

    Raises:
        ConfigurationError: `key_dim` is odd, or another argument breaks its rule.
        ValueError: `x` is not of rank 3; names its shape.

    Example:
        >>> attention = layers.RoPEAttention(num_heads=2, head_dim=8)
        >>> ops.shape(attention(np.ones((1, 5, 16))))
        (1, 5, 16)
        >>> mask = layers.causal_mask(5)
        >>> ops.shape(attention(np.ones((1, 5, 16)), attention_mask=mask))
        (1, 5, 16)

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.
    """

    def __init__(
        self, num_heads: int, head_dim: int, dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(num_heads, head_dim, **kwargs)
        self.dropout = dropout
        refuse(not 0 <= dropout < 1, f"dropout must be in [0, 1), got {dropout!r}")
        self.attention_dropout = keras.layers.Dropout(
            dropout, dtype=self.dtype_policy, name="attention_dropout"
        )
        # True if a TensorFlow graph that trains on texts of unknown length computes
        # scores in blocks, see `long_attention`.
        self.in_blocks = False

    def call(
        self,
        x: TensorLike,
        attention_mask: TensorLike = None,
        position_ids: TensorLike = None,
        residual_scores: TensorLike = None,
        return_scores: bool = False,
        cache: tuple | None = None,
        cache_index: int | TensorLike = 0,
        context: Sequence = (),
        training: bool | None = None,
    ) -> TensorLike:
        query, key, value = self._heads(x)
        query, key = self._rotated(query, key, position_ids, cache_index)
        # (batch, heads, length, features per head): a cache in this order needs no
        # transpose for each generated token.
        query, key, value = (
            ops.transpose(projected, (0, 2, 1, 3)) for projected in (query, key, value)
        )
        if cache is not None:
            _check_room(cache[0].shape[2], cache_index, query.shape[2])
            start = (0, 0, cache_index, 0)
            key = ops.slice_update(cache[0], start, ops.cast(key, cache[0].dtype))
            value = ops.slice_update(cache[1], start, ops.cast(value, cache[1].dtype))
            cache = (key, value)

        asks_for_scores = return_scores or residual_scores is not None
        is_alone = not (asks_for_scores or context or cache)
        if is_alone and self._is_in_blocks(query, training):
            return self._attended(query, key, value, attention_mask, training)

        # Concatenating the keys would copy them for every token.
        segments = [*context, (key, value)]
        scores = [_scores(query, keys) for keys, _ in segments]
        scores = ops.concatenate(scores, axis=-1) if context else scores[0]
        # TensorFlow joins product, factor and mask in one kernel, in this order.
        scores = scores * ops.cast(self.key_dim**-0.5, scores.dtype)
        summed = scores
        if residual_scores is not None:
            summed = summed + ops.cast(residual_scores, summed.dtype)
        weights = _attention_weights(summed, attention_mask)
        weights = self.attention_dropout(weights, training=training)

        if not context:
            # Slicing is free, but its gradient is a copy. The ONNX form of `einsum`
            # would transpose the values twice.
            mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        else:
            mixed, begin = 0, 0
            for keys, values in segments:
                end = begin + keys.shape[2]
                mixed = mixed + _mixed(weights[..., begin:end], values)
                begin = end
        output = self._joined(mixed)
        extras = ((scores,) if return_scores else ()) + (
            (cache,) if cache is not None else ()
        )
        return (output, *extras) if extras else output

    def _is_in_blocks(self, query, training):
        """True if there may be too many scores to compute at once."""
        if training and query.shape[2] is None:
            return self.in_blocks
        return may_be_long(query, self.dropout if training else 0.0)

    def _attended(self, query, key, value, attention_mask, training):
        """The layer's output, for scores that may take too much memory."""
        seed, rate = None, self.dropout if training else 0.0
        if training:
            seed = self.attention_dropout.seed_generator.next if rate else int

        def plain():
            scores = _scores(query, key)
            scores = scores * ops.cast(self.key_dim**-0.5, scores.dtype)
            weights = _attention_weights(scores, attention_mask)
            return ops.matmul(weights, value)

        mask = None
        if attention_mask is not None:
            mask = _additive(attention_mask, query.dtype)
            mask = ops.reshape(mask, (*(1,) * (4 - len(mask.shape)), *ops.shape(mask)))
        mixed = long_attention.attend(
            query,
            key,
            value,
            mask,
            rate,
            seed,
            plain,
        )
        return self._joined(ops.transpose(mixed, (0, 2, 1, 3)))

    def create_cache(self, batch: int | TensorLike, capacity: int) -> tuple:
        """Zeros for `capacity` keys and values of `batch` rows, in the compute type.

        Args:
            batch: int. Rows.
            capacity: int. Tokens that the cache has room for.
        """
        return (
            ops.zeros(
                (batch, self.num_heads, capacity, self.key_dim), self.compute_dtype
            ),
            ops.zeros(
                (batch, self.num_heads, capacity, self.head_dim), self.compute_dtype
            ),
        )


def _scores(query, keys):
    """Scores `(batch, heads, query, key)`; the keys' rows divide the batch."""
    batch, heads, length, dim = query.shape
    rows = keys.shape[0]
    if rows == batch:
        return ops.einsum("bhqd,bhkd->bhqk", query, keys)
    # One product for all rows that share keys, instead of one for each row.
    query = ops.reshape(query, (rows, batch // rows, heads, length, dim))
    scores = ops.einsum("gnhqd,ghkd->gnhqk", query, keys)
    return ops.reshape(scores, (batch, heads, length, keys.shape[2]))


def _mixed(weights, values):
    """Weighted values `(batch, query, heads, head_dim)`, shared as in `_scores`."""
    batch, heads, length, _ = weights.shape
    rows = values.shape[0]
    if rows == batch:
        # The ONNX form of `einsum` would transpose the values twice.
        return ops.transpose(ops.matmul(weights, values), (0, 2, 1, 3))
    weights = ops.reshape(weights, (rows, batch // rows, *weights.shape[1:]))
    mixed = ops.einsum("gnhqk,ghkd->gnqhd", weights, values)
    return ops.reshape(mixed, (batch, length, heads, values.shape[3]))


def _check_room(capacity, index, length):
    """Refuses known sizes that do not fit: `slice_update` would move the start."""
    is_known = all(isinstance(number, int) for number in (capacity, index, length))
    if is_known and not 0 <= index <= capacity - length:
        raise ConfigurationError(
            f"a cache of capacity {capacity} has no room for {length} tokens at index "
            f"{index}: create a larger one"
        )


def _attention_weights(scores, attention_mask=None):
    """The softmax of scores `(..., key)` over the keys where a mask is True."""
    if attention_mask is not None:
        scores = scores + _additive(attention_mask, scores.dtype)
    if scores.shape[-1] == 1:
        # `ops.softmax` warns of a single key, but a text of one token is valid.
        return ops.ones_like(scores)
    return ops.softmax(scores, axis=-1)


def _additive(mask, dtype):
    """0 where a mask is True, and a number below every score where it is False.

    Adding is faster than selecting, and keeps a row without visible keys finite.
    """
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e9
    return (1.0 - ops.cast(mask, dtype)) * ops.cast(lowest, dtype)

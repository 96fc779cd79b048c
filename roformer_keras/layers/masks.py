"""Boolean masks of attention; True means "the query may attend to the key".

Every mask broadcasts to `(batch, heads, query, key)`, so that masks combine with
`ops.logical_and` whatever their shapes.
"""

from typing import Any

import keras
from keras import ops

from roformer_keras.base import visible_keys
from roformer_keras.base.errors import refuse
from roformer_keras.base.types import TensorLike
from roformer_keras.layers.configured import ConfiguredLayer


def is_token(token_ids):
    """False at padding as bert4keras defines it: id 0, except at position 0."""
    return visible_keys.is_token(ops, token_ids, _positions(token_ids))


def _positions(token_ids):
    # `arange` needs a number, which a symbolic length lacks. Counts are int32, because
    # ids of eight bits, or bool, hold no count above 255.
    return ops.cumsum(ops.ones_like(token_ids, dtype="int32"), axis=1) - 1


def padding_mask(token_ids: TensorLike) -> TensorLike:
    """Hides padding: id 0, except at position 0, as in bert4keras.

    Args:
        token_ids: int `(batch, length)`.

    Returns:
        bool `(batch, 1, 1, length)`, over the key axis.

    Example:
        >>> ops.convert_to_numpy(layers.padding_mask(np.array([[2, 7, 3, 0]])))
        array([[[[ True,  True,  True, False]]]])

    Source: bert4keras 0.11.5.
    """
    return is_token(token_ids)[:, None, None, :]


def causal_mask(
    query_length: int, key_length: int | None = None, offset: int | TensorLike = 0
) -> TensorLike:
    """Hides the tokens after the query.

    Args:
        query_length: int. Number of queries.
        key_length: int. Number of keys; `query_length` by default.
        offset: int, or int scalar tensor. Position of the first query among the keys.

    Returns:
        bool `(1, 1, query_length, key_length)`.

    Example:
        >>> ops.convert_to_numpy(layers.causal_mask(3))[0, 0].astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 1]])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """
    key_length = query_length if key_length is None else key_length
    query = ops.arange(query_length)[:, None] + offset
    return ops.less_equal(ops.arange(key_length)[None, :], query)[None, None]


def unilm_mask(segment_ids: TensorLike) -> TensorLike:
    """Shows the first segment in both directions, and the second one causally.

    A key is visible if the number of ones up to it is at most the number up to the
    query. The padding mask is separate.

    Args:
        segment_ids: int `(batch, length)`, 0 in the first segment, 1 in the second.

    Returns:
        bool `(batch, 1, length, length)`.

    Example:
        >>> mask = layers.unilm_mask(np.array([[0, 0, 1, 1]]))
        >>> ops.convert_to_numpy(mask)[0, 0].astype(int)
        array([[1, 1, 0, 0],
               [1, 1, 0, 0],
               [1, 1, 1, 0],
               [1, 1, 1, 1]])

    Source: Dong et al. 2019, arXiv:1905.03197.
    """
    order = ops.cumsum(ops.cast(segment_ids, "int32"), axis=1)
    return visible_keys.not_after(ops, order)


@keras.saving.register_keras_serializable("roformer_keras")
class AttentionMask(ConfiguredLayer):
    """The mask of a whole model: padding, and a pattern on top of it.

    Args:
        pattern: `"bidirectional"`, `"causal"` or `"unilm"`.
        pad_segments: bool. Whether segment 0 is padding too, except at position 0, as
            in bert4keras when segments share the token embedding.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        token_ids: int `(batch, length)`.
        segment_ids: int `(batch, length)`.

    Returns:
        bool `(batch, 1, 1 or length, length)`.

    Raises:
        ConfigurationError: the pattern is unknown.

    Example:
        >>> mask = layers.AttentionMask("causal")
        >>> token_ids = np.array([[2, 7, 3, 0]])
        >>> ops.shape(mask(token_ids, np.zeros_like(token_ids)))
        (1, 1, 4, 4)
    """

    def __init__(
        self, pattern: str = "bidirectional", pad_segments: bool = False, **kwargs: Any
    ):
        super().__init__(**kwargs)
        refuse(
            pattern not in ("bidirectional", "causal", "unilm"),
            f"pattern must be 'bidirectional', 'causal' or 'unilm', got {pattern!r}",
        )
        self.pattern = pattern
        self.pad_segments = pad_segments

    def call(self, token_ids: TensorLike, segment_ids: TensorLike) -> TensorLike:
        return _visible_keys(self.pattern, self.pad_segments, token_ids, segment_ids)


def _visible_keys(pattern, pad_segments, token_ids, segment_ids):
    segment_ids, positions = ops.cast(segment_ids, "int32"), _positions(token_ids)
    return visible_keys.visible_keys(
        ops, pattern, pad_segments, token_ids, segment_ids, positions
    )


@keras.saving.register_keras_serializable("roformer_keras")
class PaddingMask(ConfiguredLayer):
    """Returns its input with a Keras mask, so that the next layers ignore padding."""

    def __init__(self, pad_segments=False, **kwargs):
        super().__init__(**kwargs)
        self.pad_segments = pad_segments

    def call(self, inputs):
        return inputs[0]

    def compute_mask(self, inputs, previous_mask=None):
        return _visible_keys("bidirectional", self.pad_segments, *inputs[1:])[:, 0, 0]

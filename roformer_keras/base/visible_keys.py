"""The rule that says which tokens a query sees, for Keras, NumPy and graphs.

`xp` is `keras.ops`, `numpy`, or a `Graph` of `engines`, whose methods have their names.
"""

from types import ModuleType

import numpy as np

from roformer_keras.base.types import TensorLike


def is_token(
    xp: ModuleType | TensorLike, token_ids: TensorLike, positions: TensorLike
) -> TensorLike:
    """False at padding as bert4keras defines it: id 0, except at position 0."""
    return xp.logical_or(
        xp.logical_not(xp.equal(token_ids, np.int32(0))),
        xp.equal(positions, np.float32(0)),
    )


def visible_keys(
    xp: ModuleType | TensorLike,
    pattern: str,
    pad_segments: bool,
    token_ids: TensorLike,
    segment_ids: TensorLike,
    positions: TensorLike,
    queries: slice | None = None,
) -> TensorLike:
    """bool `(rows, 1, 1 or queries, length)`; arguments as in `layers.AttentionMask`.

    All ids are `(rows, length)`. `queries` are the positions that see keys; all of
    them if it is None.
    """
    visible = is_token(xp, token_ids, positions)
    if pad_segments:
        visible = xp.logical_and(visible, is_token(xp, segment_ids, positions))
    visible = xp.expand_dims(visible, (1, 2))
    if pattern == "bidirectional":
        return visible
    order = xp.cumsum(segment_ids, 1) if pattern == "unilm" else positions
    return xp.logical_and(visible, not_after(xp, order, queries))


def not_after(
    xp: ModuleType | TensorLike, order: TensorLike, queries: slice | None = None
) -> TensorLike:
    """bool `(rows, 1, queries, length)`: a key's order is at most that of the query."""
    of_queries = order if queries is None else order[:, queries]
    return xp.less_equal(
        xp.expand_dims(order, (1, 2)), xp.expand_dims(of_queries, (1, 3))
    )

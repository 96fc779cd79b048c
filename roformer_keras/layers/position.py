"""Positions: the sinusoidal table, and RoPE's rotation."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import TensorLike
from roformer_keras.layers.configured import ConfiguredLayer

_LAYOUTS = ("interleaved", "half_split")
# Features of one pair swap: as many as a head has.
_MOST_SWAPPED = 64


def _frequencies(dim, base):
    """`base ** (-2i / dim)` for each pair i: float32 `(dim / 2,)`."""
    refuse(
        dim % 2 or dim < 2,
        f"the number of features must be even to form pairs, got {dim}",
    )
    refuse(
        not base > 0,
        f"base must be above 0, got {base!r}",
    )
    return (float(base) ** (-np.arange(0, dim, 2, dtype="float64") / dim)).astype(
        "float32"
    )


def check_layout(layout):
    """Raises ConfigurationError if the layout is neither of the two."""
    if layout not in _LAYOUTS:
        raise ConfigurationError(
            f"layout must be one of {', '.join(map(repr, _LAYOUTS))}, got {layout!r}"
        )


def _pair_swap(dim, layout):
    """The constant matrix P for which `x @ P` turns each pair `(a, b)` to `(-b, a)`."""
    swap = np.zeros((dim, dim), dtype="float32")
    pair = np.arange(dim // 2)
    if layout == "interleaved":
        first, second = 2 * pair, 2 * pair + 1
    else:
        first, second = pair, pair + dim // 2
    swap[second, first] = -1.0
    swap[first, second] = 1.0
    return swap


def rotary_table(
    position_ids: TensorLike,
    dim: int,
    base: float = 10000.0,
    layout: str = "interleaved",
) -> TensorLike:
    """Sine and cosine of every angle of RoPE, each twice, once per feature.

    Always float32: in bfloat16, neighbouring positions above 256 are equal.

    Args:
        position_ids: float or int `(..., length)`. May be fractional.
        dim: int, even. Features per head.
        base: float above 0.
        layout: `"interleaved"` pairs features `(2i, 2i + 1)`, `"half_split"` pairs
            `(i, i + dim / 2)` as GPT-NeoX does.

    Returns:
        Two float32 tensors `(..., length, dim)`: sines and cosines.

    Raises:
        ConfigurationError: `dim` is odd, `base` is not above 0, or `layout` is unknown.

    Example:
        >>> sin, cos = layers.rotary_table(np.arange(5)[None], dim=8)
        >>> ops.shape(sin), ops.shape(cos)
        ((1, 5, 8), (1, 5, 8))

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.
    """
    check_layout(layout)
    frequencies = _frequencies(dim, base)
    if layout == "interleaved":
        frequencies = np.repeat(frequencies, 2)
    else:
        frequencies = np.concatenate([frequencies, frequencies])
    position_ids = ops.expand_dims(ops.cast(position_ids, "float32"), -1)
    angles = ops.multiply(position_ids, frequencies)
    return ops.sin(angles), ops.cos(angles)


def sinusoidal_table(
    position_ids: TensorLike, dim: int, base: float = 10000.0
) -> TensorLike:
    """Sines and cosines of positions, as features `(2i, 2i + 1)`."""
    sin, cos = rotary_table(position_ids, dim, base)
    return ops.where(np.arange(dim) % 2 == 0, sin, cos)


def apply_rotary(
    x: TensorLike, sin: TensorLike, cos: TensorLike, layout: str = "interleaved"
) -> TensorLike:
    """Turns each pair of features of `x` by the angle of its position.

    It computes `x * cos + (x @ P) * sin` with the constant pair swap P. A small matrix
    product costs far less than strided slices, and is exact in every float type because
    each of its sums has one term.

    Args:
        x: float `(batch, length, heads, dim)`.
        sin: float `(batch or 1, length, dim)`, from `rotary_table`.
        cos: float, of the same shape.
        layout: as for `rotary_table`.

    Returns:
        float, of the shape and type of `x`.

    Raises:
        ConfigurationError: `layout` is unknown.

    Example:
        >>> sin, cos = layers.rotary_table(np.array([[0.0, 1.0]]), dim=2)
        >>> x = np.array([[[[1.0, 0.0]], [[1.0, 0.0]]]], "float32")
        >>> turned = layers.apply_rotary(ops.convert_to_tensor(x), sin, cos)
        >>> ops.convert_to_numpy(turned)[0, :, 0].round(4)
        array([[1.    , 0.    ],
               [0.5403, 0.8415]], dtype=float32)

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    check_layout(layout)
    sin = ops.cast(sin, x.dtype)[:, :, None, :]
    cos = ops.cast(cos, x.dtype)[:, :, None, :]
    return x * cos + _swapped(x, layout) * sin


def _swapped(x, layout):
    """`x @ P`; many features are swapped in pieces, to avoid a wide matrix of zeros."""
    dim = x.shape[-1]
    wide = layout == "interleaved" and dim > _MOST_SWAPPED
    width = math.gcd(dim, _MOST_SWAPPED) if wide else dim
    swap = ops.convert_to_tensor(_pair_swap(width, layout), dtype=x.dtype)
    if not wide:
        return ops.matmul(x, swap)
    shape = ops.shape(x)
    pieces = ops.reshape(x, (*shape[:-1], dim // width, width))
    return ops.reshape(ops.matmul(pieces, swap), shape)


@keras.saving.register_keras_serializable("roformer_keras")
class SinusoidalPositionEmbedding(ConfiguredLayer):
    """Sines and cosines of positions, as features `(2i, 2i + 1)`.

    Args:
        output_dim: int, even.
        base: float above 0. Defaults to 10000.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: `(batch, length, ...)`; only its length is read.
        position_ids: float or int `(batch, length)`. 0, 1, 2, ... by default.

    Returns:
        float32 `(batch or 1, length, output_dim)`.

    Raises:
        ConfigurationError: `output_dim` is odd or `base` is not above 0.

    Example:
        >>> ops.shape(layers.SinusoidalPositionEmbedding(8)(np.ones((2, 5))))
        (1, 5, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """

    def __init__(self, output_dim: int, base: float = 10000.0, **kwargs: Any):
        # Casting to the compute type would round positions.
        super().__init__(autocast=False, **kwargs)
        self.output_dim = output_dim
        self.base = base
        _frequencies(output_dim, base)

    def call(self, x: TensorLike, position_ids: TensorLike = None) -> TensorLike:
        if position_ids is None:
            position_ids = ops.arange(ops.shape(x)[1])[None]
        return sinusoidal_table(position_ids, self.output_dim, self.base)

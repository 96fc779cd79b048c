"""Linear attention, whose cost grows linearly with the length.

If a weight is a product of features, `f(q) . g(k)`, the sum over keys of weighted
values is the features of the query times one matrix, `sum of g(k) v`. This matrix is
the same for every query, or grows from token to token; no pair of tokens is computed.
Features may be rotated by position, as queries and keys are in softmax attention.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_choice, check_integer, is_integer
from roformer_keras.base.config import PERFORMERS
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import TensorLike
from roformer_keras.layers.attention import ProjectedAttention

KINDS = ("linear", "cosine", *PERFORMERS)
_DEFAULT_FEATURES = 256

# Causal attention computes pairs within chunks of so many tokens.
_CHUNK = 128
# The smallest divisor; its square is still a float32.
_MIN_SUM = 1e-18
# The cosine's normaliser is a sum that cancels: smaller values are rounding errors.
_MIN_COSINE_SUM = 1e-6
# Exponents of random features stay below it, so that long sums are finite.
_MAX_EXPONENT = 60.0


# === Features ===


def elu_plus_one(x):
    """`elu(x) + 1`, which is above 0.

    Source: Katharopoulos et al. 2020, arXiv:2006.16236, equation 7.
    """
    return ops.where(x > 0, x + 1.0, ops.exp(ops.minimum(x, 0.0)))


def cosine_features(unit):
    """A 1 before a unit vector: products are `1 + cos`, from 0 to 2."""
    return ops.concatenate([ops.ones_like(unit[..., :1]), unit], axis=-1)


def orthogonal_directions(num_features, dim, seed):
    """Random vectors; each group of `dim` of them is orthogonal.

    Directions are uniform, and lengths are distributed as those of normal vectors.

    Source: Choromanski et al. 2020, arXiv:2009.14794, section 2.4.
    """
    generator = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-num_features // dim)):
        rotation, triangle = np.linalg.qr(generator.normal(size=(dim, dim)))
        # Only these signs make all rotations equally likely.
        blocks.append((rotation * np.sign(np.diag(triangle))).T)
    directions = np.concatenate(blocks)[:num_features]
    lengths = np.linalg.norm(generator.normal(size=(num_features, dim)), axis=1)
    return (directions * lengths[:, None]).astype("float32")


def positive_features(x, directions, is_query):
    """Random features whose products are `exp(q . k / sqrt(dim))` in the mean.

    Each query has a factor that makes its largest feature 1 and that the normaliser
    cancels. A key's exponent `w . k - |k|^2 / 2`, at most `|w|^2 / 2`, is clipped at
    60. Keys so long that all their exponents are below -40 vanish.

    Source: Choromanski et al. 2020, arXiv:2009.14794, section 2.3.
    """
    x = x * x.shape[-1] ** -0.25
    exponents = ops.matmul(x, directions.T)
    exponents = exponents - ops.sum(ops.square(x), axis=-1, keepdims=True) / 2
    if is_query:
        largest = ops.max(exponents, axis=-1, keepdims=True)
        return ops.exp(exponents - ops.stop_gradient(largest))
    return ops.exp(ops.minimum(exponents, _MAX_EXPONENT))


# === Sums over keys ===


def bidirectional_sums(query, key, value):
    """`sum over n of (query[m] . key[n]) value[n]` for every m."""
    total = ops.einsum("bnhf,bnhd->bhfd", key, value)
    return ops.einsum("bmhf,bhfd->bmhd", query, total)


def causal_sums(query, key, value, state=None):
    """The sums over n up to m.

    Pairs are computed within chunks of 128 tokens; the state, the sum of `key value` so
    far, passes between them. One token is a step of generation.
    """
    batch, length, heads, features = ops.shape(query)
    size = min(length, _CHUNK) if isinstance(length, int) else _CHUNK
    # Zeros after the last token add nothing to any sum.
    missing = -length % size
    query, key, value = (
        ops.reshape(
            ops.pad(tensor, ((0, 0), (0, missing), (0, 0), (0, 0))),
            (batch, (length + missing) // size, size, heads, tensor.shape[-1]),
        )
        for tensor in (query, key, value)
    )
    weights = ops.einsum("bcmhf,bcnhf->bchmn", query, key)
    weights = weights * ops.convert_to_tensor(np.tril(np.ones((size, size), "float32")))
    within = ops.einsum("bchmn,bcnhd->bcmhd", weights, value)
    totals = ops.einsum("bcnhf,bcnhd->bchfd", key, value)
    if state is None:
        state = ops.zeros((batch, heads, features, value.shape[-1]), value.dtype)
    # The states before each chunk, and after the last one.
    states = ops.cumsum(ops.concatenate([state[:, None], totals], axis=1), axis=1)
    before = ops.einsum("bcmhf,bchfd->bcmhd", query, states[:, :-1])
    sums = ops.reshape(
        within + before, (batch, length + missing, heads, value.shape[-1])
    )
    return sums[:, :length], states[:, -1]


# === Layer ===


@keras.saving.register_keras_serializable("roformer_keras")
class LinearRoPEAttention(ProjectedAttention):
    """Self-attention of linear cost, with rotary positions.

    The output is `sum of a(m, n) v[n] / sum of b(m, n)` over the visible keys n, where
    R is the rotation of `RoPEAttention` and f a map to features above 0:

    - `"linear"`: a is `(R f(q)) . (R f(k))` and b `f(q) . f(k)`, f is `elu_plus_one`.
      The normaliser is not rotated, so it is never near 0; weights may be negative, and
      need not sum to 1.
    - `"cosine"`: a and b are `1 + (R q / |q|) . (R k / |k|)`: probabilities.
    - `"performer"`: as `"linear"`, with random features whose product has the mean of
      softmax attention. More features come nearer to it.
    - `"rotary_performer"`: a and b are `f(R q) . f(R k)` with the same features, which
      approximate softmax attention with RoPE; weights are probabilities.

    It has the projections of `RoPEAttention`, by the same names. Features, angles,
    sums and normalisers are float32 under every dtype policy. Without weights of pairs,
    there is no dropout on them.

    Args:
        num_heads: int, at least 1.
        head_dim: int, at least 1. Features per head of the values.
        kind: `"linear"`, `"cosine"`, `"performer"` or `"rotary_performer"`.
        causal: bool. Whether a token sees no later ones.
        num_features: int, even. Random features per head of both Performers; 256 by
            default.
        seed: int, at least 0. Seed of the random features, which no file stores.
        kwargs: as in `ProjectedAttention`.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        attention_mask: bool `(batch or 1, num_heads or 1, 1, key)`; True means "may be
            attended to".
        position_ids: float or int `(batch or 1, length)`, may be fractional.
            0, 1, 2, ... (counted from `cache_index`) if it is not given.
        cache: pair of the sums of keys times values `(batch, num_heads, features,
            head_dim)` and of keys `(batch, num_heads, features, 1)`, float32, over the
            preceding tokens; see `create_cache`. Only if `causal`.
        cache_index: int, or int scalar tensor. Number of preceding tokens.
        residual_scores, return_scores, context: refused; `RoPEAttention` takes them.

    Returns:
        float `(batch, length, hidden_dim)`; with a cache, a pair of it and the updated
        cache.

    Raises:
        ConfigurationError: an argument breaks its rule, or the mask differs between
            queries.
        ValueError: `x` is not of rank 3; names its shape.

    Example:
        >>> attention = layers.LinearRoPEAttention(2, 8, "performer", num_features=32)
        >>> ops.shape(attention(np.ones((1, 100, 16))))
        (1, 100, 16)

    Source: Su et al. 2021, arXiv:2104.09864, equation 19; Choromanski et al. 2020,
    arXiv:2009.14794; for the cosine https://kexue.fm/archives/7546.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        kind: str = "linear",
        causal: bool = False,
        num_features: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(num_heads, head_dim, **kwargs)
        check_choice("kind", kind, KINDS)
        self.kind = kind
        self.causal = causal
        self.num_features = _DEFAULT_FEATURES if num_features is None else num_features
        count = self.num_features
        refuse(
            not is_integer(count) or count < 2 or count % 2,
            "num_features must be even, because RoPE turns features in pairs; got "
            f"{num_features!r}",
        )
        self._draw(seed)

    def _draw(self, seed):
        check_integer("seed", seed, minimum=0)
        self.seed = seed
        if self.kind in PERFORMERS:
            self.directions = orthogonal_directions(
                self.num_features, self.key_dim, seed
            )

    def redraw(self, seed: int) -> None:
        """Draws the random features of another seed.

        Functions that are already compiled keep the old features: for a model, call
        `redraw_features` of its backbone.

        Args:
            seed: int, at least 0.
        """
        self._draw(seed)

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
        for name, is_given in (
            ("residual_scores", residual_scores is not None),
            ("return_scores", return_scores),
            ("context", len(context) > 0),
        ):
            refuse(
                is_given,
                f"linear attention has no scores of pairs of tokens, got {name}: "
                "leave it out, or take a RoPEAttention (attention_type='softmax')",
            )
        refuse(
            cache is not None and not self.causal,
            "a cache needs causal=True: where tokens see later ones, sums over the "
            "earlier ones are not enough",
        )
        query, key, value = (
            ops.cast(projection, "float32") for projection in self._heads(x)
        )
        weighting: tuple[TensorLike, TensorLike]
        normalising: tuple[TensorLike, TensorLike]
        weighting, normalising = self._features(query, key, position_ids, cache_index)
        ones = ops.ones_like(value[..., :1])
        if attention_mask is not None:
            visible = _by_key(attention_mask)
            value, ones = value * visible, ones * visible
        if self.causal:
            before = (None, None) if cache is None else cache
            mixed, values_so_far = causal_sums(*weighting, value, before[0])
            normaliser, keys_so_far = causal_sums(*normalising, ones, before[1])
        else:
            mixed = bidirectional_sums(*weighting, value)
            normaliser = bidirectional_sums(*normalising, ones)
        minimum = _MIN_COSINE_SUM if self.kind == "cosine" else _MIN_SUM
        mixed = mixed / ops.maximum(normaliser, minimum)
        output = self._joined(ops.cast(mixed, self.compute_dtype))
        return output if cache is None else (output, (values_so_far, keys_so_far))

    def _features(self, query, key, position_ids, start):
        """Features of query and key, for the weights and for the normaliser."""

        def turned(pair):
            return self._rotated(*pair, position_ids, start)

        if self.kind == "cosine":
            pair = tuple(map(cosine_features, turned((_unit(query), _unit(key)))))
            return pair, pair
        if self.kind == "rotary_performer":
            pair = self._random_features(*turned((query, key)))
            return pair, pair
        if self.kind == "linear":
            pair = (elu_plus_one(query), elu_plus_one(key))
        else:
            pair = self._random_features(query, key)
        return turned(pair), pair

    def _random_features(self, query, key):
        return (
            positive_features(query, self.directions, is_query=True),
            positive_features(key, self.directions, is_query=False),
        )

    def create_cache(self, batch: int | TensorLike) -> tuple:
        """An empty cache; its size does not depend on the number of tokens.

        Args:
            batch: int. Rows.
        """
        features = {
            "linear": self.key_dim,
            "cosine": self.key_dim + 1,
        }.get(self.kind, self.num_features)
        return tuple(
            ops.zeros((batch, self.num_heads, features, dim), "float32")
            for dim in (self.head_dim, 1)
        )


def _unit(x):
    """Scales vectors of the last axis to length 1; zeros stay zeros."""
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, _MIN_SUM))


def _by_key(mask):
    """A mask of keys as factors `(batch or 1, key, heads or 1, 1)`."""
    if len(mask.shape) != 4 or mask.shape[2] != 1:
        raise ConfigurationError(
            "linear attention takes a mask of keys, (batch, 1, 1, key), which is the "
            f"same for all queries, got {tuple(mask.shape)}: set causal=True for a "
            "causal mask"
        )
    return ops.cast(ops.transpose(mask, (0, 3, 1, 2)), "float32")

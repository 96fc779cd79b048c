"""Choosing the next token of each row from logits, whatever computes the arrays.

`choosing.py` does it with NumPy, `compiled_sampling.py` in a compiled program. Both
choose the same tokens, up to rounding.
"""

import abc
import math
from types import ModuleType

import numpy as np

from roformer_keras.base.types import TensorLike


class Sampler(abc.ABC):
    """Draws a token a row, or takes the likeliest.

    Subclasses compute what has a faster algorithm on one runtime than on the other.
    """

    # `numpy` or `keras.ops`.
    xp: ModuleType

    @abc.abstractmethod
    def likeliest(self, logits: TensorLike) -> TensorLike:
        """The lowest id of the largest logit of each row: int32 `(rows,)`."""

    @abc.abstractmethod
    def log_probabilities(self, logits: TensorLike, tokens: TensorLike) -> TensorLike:
        """Log-probability of one token a row among all tokens: float32 `(rows,)`."""

    @abc.abstractmethod
    def cut(
        self, logits: TensorLike, weights: TensorLike, top_k: TensorLike, top_p: float
    ) -> TensorLike:
        """The weights, 0 for tokens that `top_k` and then `top_p` leave out.

        The largest logit of a row is 0. Tokens of equal logits are kept together.
        """

    @abc.abstractmethod
    def choose(
        self,
        logits: TensorLike,
        uniforms: TensorLike,
        temperature: TensorLike,
        top_k: TensorLike,
        top_p: TensorLike,
    ) -> TensorLike:
        """One token a row: int32 `(rows,)`; the likeliest if the temperature is 0."""

    def choose_next(
        self,
        logits: TensorLike,
        allowed: TensorLike,
        uniforms: TensorLike,
        limits: tuple[TensorLike, ...],
        controls: tuple[TensorLike, ...],
    ) -> tuple[TensorLike, TensorLike, tuple[TensorLike, ...]]:
        """A token a row, its log-probability, and the next `RowState.limits`.

        Args:
            logits: float32 `(rows, vocabulary)`.
            allowed: logits to choose from, which may be other ones.
            uniforms: float32 `(rows,)` in [0, 1).
            limits: as `RowState.limits`.
            controls: temperature, `top_k`, `top_p`, stop ids, and ids that are not
                chosen in a row that must have more tokens; None if no row must.
        """
        xp = self.xp
        max_left, min_left, done = limits
        *cuts, stop_ids, suppressed_ids = controls
        if suppressed_ids is not None:
            ids = xp.arange(logits.shape[-1], dtype="int32")
            suppressed = xp.any(xp.equal(ids, suppressed_ids[:, None]), axis=0)
            # With one token left to the minimum, a stop token may be that token.
            barred = xp.logical_and(suppressed, xp.greater(min_left, 1)[:, None])
            allowed = xp.where(barred, np.float32(-1e30), allowed)
        tokens = self.choose(allowed, uniforms, *cuts)
        scores = self.log_probabilities(logits, tokens)
        tokens, scores = (xp.where(done, xp.zeros_like(x), x) for x in (tokens, scores))
        max_left, min_left = (xp.where(done, x, x - 1) for x in (max_left, min_left))
        stops = xp.any(xp.equal(tokens[:, None], stop_ids), axis=1)
        ends = xp.logical_or(
            xp.logical_and(stops, xp.less_equal(min_left, 0)),
            xp.less_equal(max_left, 0),
        )
        return tokens, scores, (max_left, min_left, xp.logical_or(done, ends))

    def draw(
        self,
        logits: TensorLike,
        likeliest: TensorLike,
        uniforms: TensorLike,
        temperature: TensorLike,
        top_k: TensorLike,
        top_p: TensorLike,
    ) -> TensorLike:
        """Draws one token a row.

        The temperature, above 0, comes first, then `top_k`, then `top_p` on the
        probabilities that are left, keeping the token with which their sum crosses it.
        A running sum over the kept weights reaches the drawn token: first the block of
        tokens, then the token in it, so that both running sums are short.

        Source: bert4keras 0.11.5, `AutoRegressiveDecoder.random_sample`, for the order;
        Holtzman et al. 2019, arXiv:1904.09751, for top-p.
        """
        xp = self.xp
        logits = (logits - xp.max(logits, axis=-1, keepdims=True)) / temperature
        weights = self.cut(logits, xp.exp(logits), top_k, top_p)
        rows, vocabulary = xp.shape(weights)
        size = math.isqrt(vocabulary - 1) + 1
        count = -(-vocabulary // size)
        padding = xp.zeros((rows, count * size - vocabulary), "float32")
        blocks = xp.reshape(
            xp.concatenate([weights, padding], axis=1), (rows, count, size)
        )
        sums = xp.cumsum(xp.sum(blocks, axis=-1), axis=-1)
        target = uniforms[:, None] * sums[:, -1:]
        block = self._index_passed(sums, target)
        before = xp.take_along_axis(sums, xp.maximum(block - 1, 0), axis=-1)
        before = xp.where(xp.greater(block, 0), before, xp.zeros_like(before))
        within = xp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
        token = self._index_passed(xp.cumsum(within, axis=-1), target - before)
        drawn = xp.minimum((block * size + token)[:, 0], vocabulary - 1)
        weight = xp.take_along_axis(weights, drawn[:, None], axis=-1)[:, 0]
        # Rounding may lead to a token that was cut.
        return xp.where(xp.greater(weight, 0), drawn, likeliest)

    def _index_passed(self, sums: TensorLike, target: TensorLike) -> TensorLike:
        """Number of sums up to the target, `(rows, 1)`; an index in any case."""
        passed = self.xp.sum(sums <= target, axis=-1, keepdims=True)
        return self.xp.minimum(passed, sums.shape[-1] - 1)

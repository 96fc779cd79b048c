"""Choosing the next token from logits, in a compiled program.

Nothing here sorts: over a vocabulary of 12,000 a sort takes longer than the model does.
The lowest logit that is kept is found by halving an interval, with one count or one sum
over the vocabulary each time.
"""

import math

from keras import ops

# At most. Each gains a bit; float32 has 24, and the interval begins wider than a logit.
_HALVINGS = 32
# Its exponential is 0 in float32.
_FLOOR = -104.0


def choose(logits, uniforms, temperature, top_k, top_p):
    """One token a row.

    The temperature comes first, then `top_k`, then `top_p` on the probabilities that
    are left, keeping the token with which their sum crosses it. Tokens of equal
    probability are kept together.

    Source: bert4keras 0.11.5, `AutoRegressiveDecoder.random_sample`, for the order;
    Holtzman et al. 2019, arXiv:1904.09751, for top-p.
    """
    vocabulary = logits.shape[-1]
    largest = ops.max(logits, axis=-1, keepdims=True)
    # The same as an argmax, which takes ten times as long in XLA on the CPU.
    ids = ops.arange(vocabulary, dtype="int32")
    likeliest = ops.min(ops.where(logits < largest, vocabulary - 1, ids), axis=-1)
    sampling = ops.greater(temperature, 0.0)
    divisor = ops.where(sampling, temperature, ops.ones_like(temperature))
    logits = (logits - largest) / divisor
    weights = ops.exp(logits)

    def count(kept):
        return ops.sum(ops.cast(kept, "float32"), axis=-1, keepdims=True)

    def mass(kept):
        return ops.sum(ops.where(kept, weights, 0.0), axis=-1, keepdims=True)

    # Below the floor a weight is 0, so that a token which is barred by a huge negative
    # logit does not widen the interval that is halved.
    bound = ops.maximum(ops.min(logits, axis=-1, keepdims=True), _FLOOR)
    cuts = ops.logical_and(sampling, ops.less(top_k, vocabulary))
    bound = _raise_bound(bound, logits, count, ops.ones_like, top_k, cuts)
    cuts = ops.logical_and(sampling, ops.less(top_p, 1.0))
    enough = top_p * mass(ops.greater_equal(logits, bound))
    bound = _raise_bound(bound, logits, mass, ops.exp, enough, cuts)
    weights = ops.where(ops.greater_equal(logits, bound), weights, 0.0)
    drawn = _draw(weights, uniforms)
    # Rounding may lead to a token that was cut.
    weight = ops.take_along_axis(weights, drawn[:, None], axis=-1)[:, 0]
    is_kept = ops.logical_and(sampling, ops.greater(weight, 0.0))
    return ops.where(is_kept, drawn, likeliest)


def log_probabilities(logits, tokens):
    """The log-probability of one token a row among all tokens: float32 `(rows,)`."""
    chosen = ops.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen - ops.logsumexp(logits, axis=-1)


def _raise_bound(bound, logits, measure, share, enough, cuts):
    """The highest bound whose tokens, at or above it, still measure enough."""
    enough = ops.cast(enough, "float32")
    # The largest logit is 0. As wide above it as below, whatever the temperature.
    low, high = bound, -bound

    def halve(step, low, high, below, above):
        middle = low + (high - low) * 0.5
        measured = measure(ops.greater_equal(logits, middle))
        suffices = ops.greater_equal(measured, enough)
        return (
            step + 1,
            ops.where(suffices, middle, low),
            ops.where(suffices, high, middle),
            ops.where(suffices, measured, below),
            ops.where(suffices, above, measured),
        )

    def is_open(step, low, high, below, above):
        # With fewer than two tokens between, more halvings would change nothing.
        open_rows = ops.any(ops.greater_equal(below - above, 2 * share(low)))
        return ops.logical_and(step < halvings, open_rows)

    halvings = ops.where(cuts, _HALVINGS, 0)
    below = measure(ops.greater_equal(logits, low))
    start = (ops.zeros((), "int32"), low, high, below, ops.zeros_like(below))
    return ops.while_loop(is_open, halve, start)[1]


def _draw(weights, uniforms):
    """The index at which the running sum of a row passes its share of the total.

    First the block, then the token in it: two short running sums, not a long one.
    """
    rows, vocabulary = ops.shape(weights)
    size = math.isqrt(vocabulary - 1) + 1
    count = -(-vocabulary // size)
    weights = ops.pad(weights, ((0, 0), (0, count * size - vocabulary)))
    blocks = ops.reshape(weights, (rows, count, size))
    sums = ops.cumsum(ops.sum(blocks, axis=-1), axis=-1)
    target = uniforms[:, None] * sums[:, -1:]
    block = _index_passed(sums, target)
    before = ops.where(
        ops.greater(block, 0),
        ops.take_along_axis(sums, ops.maximum(block - 1, 0), axis=-1),
        0.0,
    )
    within = ops.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    token = _index_passed(ops.cumsum(within, axis=-1), target - before)
    return ops.minimum((block * size + token)[:, 0], vocabulary - 1)


def _index_passed(sums, target):
    """Number of sums up to the target, `(rows, 1)`; an index in any case."""
    passed = ops.sum(ops.cast(sums <= target, "int32"), axis=-1, keepdims=True)
    return ops.minimum(passed, sums.shape[-1] - 1)

"""The sampler of compiled programs.

Nothing here sorts: over a vocabulary of 12,000 a sort takes longer than the model does.
The lowest logit that is kept is found by halving an interval, with one count or one sum
over the vocabulary each time.
"""

from keras import ops

from roformer_keras.generation.sampling import Sampler

# At most. Each gains a bit; float32 has 24, and the interval begins wider than a logit.
_HALVINGS = 32
# Its exponential is 0 in float32.
_FLOOR = -104.0


class CompiledSampler(Sampler):
    """Chooses tokens with Keras, all rows together."""

    xp = ops

    def likeliest(self, logits):
        # The same as an argmax, which takes ten times as long in XLA on the CPU.
        vocabulary = logits.shape[-1]
        largest = ops.max(logits, axis=-1, keepdims=True)
        ids = ops.arange(vocabulary, dtype="int32")
        return ops.min(ops.where(logits < largest, vocabulary - 1, ids), axis=-1)

    def log_probabilities(self, logits, tokens):
        chosen = ops.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
        return chosen - ops.logsumexp(logits, axis=-1)

    def choose(self, logits, uniforms, temperature, top_k, top_p):
        likeliest = self.likeliest(logits)
        samples = ops.greater(temperature, 0.0)
        divisor = ops.where(samples, temperature, ops.ones_like(temperature))
        drawn = self.draw(logits, likeliest, uniforms, divisor, top_k, top_p)
        return ops.where(samples, drawn, likeliest)

    def cut(self, logits, weights, top_k, top_p):
        # Below the floor a weight is 0, so that a token which is barred by a huge
        # negative logit does not widen the interval that is halved.
        bound = ops.maximum(ops.min(logits, axis=-1, keepdims=True), _FLOOR)
        is_cut = ops.less(top_k, logits.shape[-1])
        ones = ops.ones_like(weights)
        bound = _raise_bound(bound, logits, ones, ops.ones_like, top_k, is_cut)
        enough = top_p * _measure(weights, logits, bound)
        is_cut = ops.less(top_p, 1.0)
        bound = _raise_bound(bound, logits, weights, ops.exp, enough, is_cut)
        return ops.where(ops.greater_equal(logits, bound), weights, 0.0)


def _measure(values, logits, bound):
    """The sum of the values of logits at or above a bound, `(rows, 1)`."""
    is_above = ops.greater_equal(logits, bound)
    return ops.sum(ops.where(is_above, values, 0.0), axis=-1, keepdims=True)


def _raise_bound(bound, logits, values, share, enough, is_cut):
    """The highest bound whose tokens, at or above it, still measure enough.

    `share` is the value of a token whose logit is the bound.
    """
    enough = ops.cast(enough, "float32")
    # The largest logit is 0. As wide above it as below, whatever the temperature.
    low, high = bound, -bound

    def halve(step, low, high, below, above):
        middle = low + (high - low) * 0.5
        measured = _measure(values, logits, middle)
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

    halvings = ops.where(is_cut, _HALVINGS, 0)
    below = _measure(values, logits, low)
    start = (ops.zeros((), "int32"), low, high, below, ops.zeros_like(below))
    return ops.while_loop(is_open, halve, start)[1]

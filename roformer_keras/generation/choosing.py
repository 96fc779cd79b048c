"""Choosing the next token in NumPy, for engines that Keras does not run.

Equal logits and random numbers give the tokens of `sampling.choose`, up to rounding.
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from roformer_keras.base.errors import CheckpointError, Hint
from roformer_keras.base.processes import available_cores
from roformer_keras.generation.generation_config import GenerationConfig
from roformer_keras.generation.row_state import RowState

# Sums of the same weights in another order differ by less, in float64 and float32.
_ROUNDING, _FLOAT32 = 1e-12, 1e-5
_HALVINGS = 5
# Beyond any logit; differences of two are finite.
_LARGEST = 1e30
# Rows that are computed at once, and of how many such parts threads compute some.
_ROWS, _MIN_PARTS = 8, 3


def check_finite(numbers: np.ndarray) -> None:
    """Raises CheckpointError where weights lead to NaN or infinity."""
    if not np.isfinite(numbers).all():
        raise CheckpointError(
            "the model's logits must be finite numbers, got NaN or infinity: its "
            "weights, or its precision, do not allow to generate",
            hint=Hint("check the file of the weights; or load with {dtype:'float32'}"),
        )


def limit_repetition(
    scores: np.ndarray, history: np.ndarray | None, config: GenerationConfig
) -> np.ndarray:
    """Scores with the penalty of repetition, and -inf where an n-gram would come again.

    Source: Keskar et al. 2019, arXiv:1909.05858, for the penalty; Transformers'
    `RepetitionPenaltyLogitsProcessor` and `NoRepeatNGramLogitsProcessor`.
    """
    if history is None:
        return scores
    scores = scores.copy()
    if config.repetition_penalty != 1:
        smallest = np.finfo(scores.dtype).tiny
        penalty = scores.dtype.type(max(config.repetition_penalty, smallest))
        rows, positions = np.nonzero(history >= 0)
        tokens = history[rows, positions]
        seen = scores[rows, tokens]
        # Those that come again are written again, with the same value.
        with np.errstate(over="ignore"):
            penalized = np.where(seen < 0, seen * penalty, seen / penalty)
        scores[rows, tokens] = np.clip(penalized, -_LARGEST, _LARGEST)
    size, length = config.no_repeat_ngram_size, history.shape[1]
    if 0 < size <= length:
        grams = np.lib.stride_tricks.sliding_window_view(history, size, axis=1)
        last = history[:, None, length - size + 1 :]
        comes_again = (grams[..., :-1] == last).all(axis=-1) & (grams >= 0).all(axis=-1)
        rows, positions = np.nonzero(comes_again)
        scores[rows, grams[rows, positions, -1]] = -np.inf
    return scores


def choose_next(
    logits: np.ndarray, uniforms: np.ndarray, rows: RowState
) -> tuple[np.ndarray, np.ndarray, RowState]:
    """Chooses one token for each row."""
    config = rows.config
    largest = logits.max(axis=1, keepdims=True)
    check_finite(largest)
    allowed = limit_repetition(logits, rows.history, config)
    # With one token left to the minimum, a stop token may be that token.
    barred = rows.min_left > 1
    if config.suppressed_stop_ids and barred.any():
        allowed = allowed.copy()
        suppressed = np.array(config.suppressed_stop_ids)
        allowed[np.flatnonzero(barred)[:, None], suppressed] = -1e30
    temperature = config.temperature if config.method == "sample" else 0.0
    tokens = choose(allowed, uniforms, temperature, config.top_k, config.top_p)
    shifted = logits - largest
    scores = np.take_along_axis(shifted, tokens[:, None], axis=1)[:, 0]
    scores = scores - np.log(np.exp(shifted).sum(axis=1))
    going = ~rows.done
    tokens, scores = tokens * going, scores * going
    max_left, min_left = rows.max_left - going, rows.min_left - going
    stops = np.isin(tokens, config.stop_ids) & (min_left <= 0)
    limits = max_left, min_left, rows.done | stops | (max_left <= 0)
    after = rows.with_limits(limits)
    if rows.history is not None:
        after.history = np.column_stack([rows.history, tokens]).astype("int32")
    return tokens, scores, after


def choose(
    logits: np.ndarray,
    uniforms: np.ndarray,
    temperature: float,
    top_k: int | None,
    top_p: float,
) -> np.ndarray:
    """As `sampling.choose`, a few rows at a time: the caches hold as many.

    Args: as in `choose_next`; `top_k` may be None.
    """
    with np.errstate(over="ignore"):
        # One that is zero in float32 takes the likeliest token, as Keras does.
        divisor = np.float32(temperature)
    if not divisor:
        return logits.argmax(axis=1).astype("int32")
    starts = range(0, len(logits), _ROWS)

    def choose_some(at):
        rows = slice(at, at + _ROWS)
        return _choose(logits[rows], uniforms[rows], divisor, top_k, top_p)

    in_turn = len(starts) < _MIN_PARTS
    return np.concatenate(
        list((map if in_turn else _threads().map)(choose_some, starts))
    )


@functools.cache
def _threads():
    # NumPy releases the lock of the interpreter, so threads run in parallel.
    return ThreadPoolExecutor(available_cores())


def _choose(logits, uniforms, divisor, top_k, top_p):
    vocabulary = logits.shape[1]
    largest = logits.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        logits = (logits - largest) / divisor
    weights = np.exp(logits)
    if top_k is not None and top_k < vocabulary:
        at = vocabulary - top_k
        bound = np.partition(logits, at, axis=1)[:, at : at + 1]
        weights *= logits >= bound
    if top_p < 1:
        weights *= logits >= _lowest_kept(logits, weights, top_p)[:, None]
    return _draw(weights, uniforms)


def _lowest_kept(logits, weights, top_p):
    """The largest logit such that it and larger ones have the share `top_p`.

    A few halvings leave few logits between two bounds, which are sorted: to sort a
    whole vocabulary takes several times as long.
    """
    count, vocabulary = weights.shape
    rows = np.arange(count)
    total = weights.sum(axis=1, dtype="float64")
    enough = top_p * (1 - _ROUNDING) * total
    # All smaller ones together have no more than the share that is cut.
    low = np.log((1 - top_p) * total / vocabulary).astype("float32")
    high = np.ones(count, "float32")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mass = np.einsum("ij,ij->i", weights, logits >= middle[:, None])
        low = np.where(mass > enough * (1 + _FLOAT32), middle, low)
        high = np.where(mass < enough * (1 - _FLOAT32), middle, high)
    is_above = logits >= high[:, None]
    above = np.einsum("ij,ij->i", weights, is_above, dtype="float64")
    tied = np.flatnonzero((logits >= low[:, None]) & ~is_above)
    row = tied // vocabulary
    counts = np.bincount(row, minlength=count)
    column = np.arange(len(tied)) - (np.cumsum(counts) - counts)[row]
    between = np.full((2, count, counts.max()), -np.inf, "float32")
    between[0, row, column] = logits.ravel()[tied]
    order = between[0].argsort(axis=1)[:, ::-1]
    between[1] = 0
    between[1, row, column] = weights.ravel()[tied]
    ordered, ordered_weights = (
        np.take_along_axis(part, order, axis=1) for part in between
    )
    sums = above[:, None] + ordered_weights.cumsum(axis=1, dtype="float64")
    return ordered[rows, (sums >= enough[:, None]).argmax(axis=1)]


def _draw(weights, uniforms):
    """int32 `(rows,)`: where the running sum of a row passes its share of the total.

    First the block, then the token in it, as `sampling.choose` does.
    """
    rows, vocabulary = weights.shape
    size = math.isqrt(vocabulary - 1) + 1
    count = -(-vocabulary // size)
    padded = np.zeros((rows, count * size), "float32")
    padded[:, :vocabulary] = weights
    blocks = padded.reshape(rows, count, size)
    sums = blocks.sum(axis=-1).cumsum(axis=-1)
    target = uniforms[:, None] * sums[:, -1:]
    block = _index_passed(sums, target)
    every = np.arange(rows)
    before = np.where(block > 0, sums[every, block - 1], 0)[:, None]
    within = blocks[every, block].cumsum(axis=-1)
    drawn = block * size + _index_passed(within, target - before)
    drawn = np.minimum(drawn, vocabulary - 1)
    # Rounding may lead to a token that was cut.
    is_kept = weights[every, drawn] > 0
    return np.where(is_kept, drawn, weights.argmax(axis=1)).astype("int32")


def _index_passed(sums, target):
    """Number of sums up to the target; an index in any case."""
    return np.minimum((sums <= target).sum(axis=-1), sums.shape[-1] - 1)

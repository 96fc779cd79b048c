"""Choosing the next token in NumPy, for engines that Keras does not run."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from roformer_keras.base.errors import CheckpointError, Hint
from roformer_keras.base.processes import available_cores
from roformer_keras.generation.buckets import round_up_to_bucket
from roformer_keras.generation.generation_config import GenerationConfig
from roformer_keras.generation.row_state import RowState
from roformer_keras.generation.sampling import Sampler

# Sums of the same weights in another order differ by less, in float64 and float32.
_ROUNDING, _FLOAT32 = 1e-12, 1e-5
_HALVINGS = 5
# Sizes that programs are compiled for.
_STOP_IDS = (8,)
# Larger than any logit; differences of two are finite.
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


class NumPySampler(Sampler):
    """Chooses tokens with NumPy, a few rows at a time: the caches hold as many.

    Partitions and sorts find the lowest logit that is kept; with NumPy they take half
    the time of the halvings of `CompiledSampler`.
    """

    xp = np

    def likeliest(self, logits):
        return logits.argmax(axis=1).astype("int32")

    def log_probabilities(self, logits, tokens):
        shifted = logits - logits.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(shifted, tokens[:, None], axis=1)[:, 0]
        return chosen - np.log(np.exp(shifted).sum(axis=1))

    def choose(self, logits, uniforms, temperature, top_k, top_p):
        likeliest = self.likeliest(logits)
        if not temperature:
            return likeliest
        cuts = temperature, top_k, top_p

        def draw_some(at):
            rows = slice(at, at + _ROWS)
            with np.errstate(over="ignore"):
                return self.draw(logits[rows], likeliest[rows], uniforms[rows], *cuts)

        starts = range(0, len(logits), _ROWS)
        run = map if len(starts) < _MIN_PARTS else _threads().map
        return np.concatenate(list(run(draw_some, starts))).astype("int32")

    def cut(self, logits, weights, top_k, top_p):
        at = logits.shape[1] - top_k
        if at > 0:
            weights *= logits >= np.partition(logits, at, axis=1)[:, at : at + 1]
        if top_p < 1:
            weights *= logits >= _lowest_kept(logits, weights, top_p)[:, None]
        return weights


_SAMPLER = NumPySampler()


def choose_next(
    logits: np.ndarray, uniforms: np.ndarray, rows: RowState
) -> tuple[np.ndarray, np.ndarray, RowState]:
    """Chooses one token for each row."""
    config = rows.config
    check_finite(logits.max(axis=1))
    allowed = limit_repetition(logits, rows.history, config)
    controls = controls_of(config, logits.shape[1])
    if not config.suppressed_stop_ids or (rows.min_left <= 1).all():
        controls = *controls[:-1], None
    tokens, scores, limits = _SAMPLER.choose_next(
        logits, allowed, uniforms, rows.limits, controls
    )
    after = rows.with_limits(limits)
    if rows.history is not None:
        after.history = np.column_stack([rows.history, tokens]).astype("int32")
    return tokens, scores, after


def choose_by_steps(
    read: Callable[[np.ndarray], np.ndarray],
    tokens: np.ndarray,
    uniforms: np.ndarray,
    rows: RowState,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, RowState]:
    """Advances like `Decoder.advance`; `read` returns the logits of the next tokens."""
    steps = []
    for uniform in uniforms.T:
        logits = read(tokens)
        tokens, scores, rows = choose_next(logits, uniform, rows)
        steps.append((tokens, scores))
        if rows.done.all():
            break
    chosen, scores = (np.stack(part, axis=1) for part in zip(*steps, strict=True))
    return chosen, scores, logits, rows


def controls_of(config: GenerationConfig, vocabulary: int) -> tuple:
    """`controls` of `Sampler.choose_next`, with ids padded to a few sizes."""
    draws = config.method == "sample"
    with np.errstate(over="ignore"):
        # One that is zero in float32 takes the likeliest token.
        temperature = np.float32(config.temperature if draws else 0)
    top_k = min(config.top_k or vocabulary, vocabulary) if draws else vocabulary
    ids = _padded_ids(config.stop_ids), _padded_ids(config.suppressed_stop_ids)
    return temperature, np.int32(top_k), config.top_p if draws else 1.0, *ids


def _padded_ids(ids):
    """Ids padded to a bucket with -1, which is the id of no token."""
    padded = np.full(round_up_to_bucket(len(ids), _STOP_IDS), -1, "int32")
    padded[: len(ids)] = ids
    return padded


@functools.cache
def _threads():
    # NumPy releases the lock of the interpreter, so threads run in parallel.
    return ThreadPoolExecutor(available_cores())


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

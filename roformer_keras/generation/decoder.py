"""What decoders share: how tokens are chosen, when rows end, sizes of programs."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.compiled import Compiled
from roformer_keras.errors import CheckpointError
from roformer_keras.generation.options import GenerationConfig, Prompt, RowState
from roformer_keras.generation.sampling import choose, log_probabilities

__all__ = [
    "CHECK_EVERY",
    "LARGE_BATCH",
    "ROWS",
    "Decoder",
    "check_finite",
    "gather",
    "go_on",
    "host",
    "last_logits",
    "padded_origins",
    "padded_prompts",
    "round_up_to_bucket",
    "visible_keys",
]

# Rows that programs are compiled for.
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 100, 128)
# Tokens of a prompt, likewise.
_PREFIXES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# From so many rows on a step takes longer the more there are, and it is looked every so
# many steps whether some have ended.
LARGE_BATCH, CHECK_EVERY = 16, 8
# Stop ids of a program; twice as many for each bucket beyond.
_STOP_IDS = (8,)

_LOGGER = logging.getLogger(__name__)


class Decoder:
    """The part of a decoder that knows nothing of what it keeps of tokens.

    Subclasses have a `_loop`, compiled, whose last arguments are those of `go_on` from
    `steps` to `controls`, and which returns what that does.

    Args:
        vocabulary_size: int.

    Attributes:
        on_compile: called with a line of text before a program is compiled.
    """

    def __init__(self, vocabulary_size: int):
        self.vocabulary_size = vocabulary_size
        self.on_compile: Callable[[str], Any] | None = None
        self._programs: set = set()
        self._first = Compiled(self._first_function, [], any_shape=True)

    def choose(
        self, logits: np.ndarray, uniforms: np.ndarray, choice: RowState
    ) -> tuple[np.ndarray, np.ndarray, RowState]:
        """One token a row, of logits that are there: ids, log-probabilities, choice.

        Args:
            logits: float32 `(rows, vocabulary)`.
            uniforms: float32 `(rows,)` in [0, 1).
            choice: `RowState` of as many rows.
        """
        rows = len(logits)
        padded = round_up_to_bucket(rows, ROWS)
        self._say("first tokens", (padded,), 1)
        tokens, scores, ends = self._first(
            pad_rows(logits, padded),
            pad_rows(uniforms, padded),
            padded_limits(choice, padded),
            shared_controls(choice.config, self.vocabulary_size),
        )
        return host(tokens)[:rows], host(scores)[:rows], after(choice, ends)

    def pays_to_leave(self, state, rows: int, steps: int) -> bool:
        """Whether going on with only so many rows is worth what it takes.

        It goes by sizes alone, and not by what has been compiled before: the last
        digits differ between programs, and a seed must give the same texts again.
        """
        many = state.all_rows >= LARGE_BATCH and steps >= CHECK_EVERY
        return many and 2 * round_up_to_bucket(rows, ROWS) <= state.all_rows

    def _run_loop(self, own, all_rows, most, tokens, uniforms, choice):
        """What the loop carries at its end, and what `advance` returns of it.

        Args:
            own: the first arguments of the loop.
            all_rows: int, those of padding included.
            most: int. Steps that the program has room for.
            tokens, uniforms, choice: as of `advance`.
        """
        rows, steps = uniforms.shape
        padded = np.zeros((all_rows, most), "float32")
        padded[:rows, :steps] = uniforms
        done, carried, ends, results = self._loop(
            *own,
            np.array(steps, "int32"),
            pad_rows(tokens.astype("int32"), all_rows),
            padded,
            padded_limits(choice, all_rows),
            shared_controls(choice.config, self.vocabulary_size),
        )
        done = int(host(done))
        chosen, scores, logits = (host(array)[:rows] for array in results)
        check_finite(scores)
        answer = chosen[:, :done], scores[:, :done], logits, after(choice, ends)
        return carried, answer

    def _first_function(self, logits, uniforms, ends, controls):
        # The size of a vocabulary is known where other sizes are not.
        logits = ops.reshape(logits, (-1, self.vocabulary_size))
        return _choose_next(logits, uniforms, ends, controls)

    def _say(self, what, shape, tokens):
        """Of the first use of a program that it will be compiled."""
        if (what, shape) in self._programs:
            return
        self._programs.add((what, shape))
        backend = keras.backend.backend()
        before = sum(name == what for name, _ in self._programs) - 1
        if backend == "torch" or (
            # Where one graph serves every shape.
            backend == "tensorflow" and what != "steps" and before
        ):
            return
        message = f"compiling {what}, {shape[0]} x {tokens} tokens"
        _LOGGER.info(message)
        if self.on_compile is not None:
            self.on_compile(message)


def check_finite(numbers):
    """Raises CheckpointError where weights lead to NaN or infinity."""
    if not np.isfinite(numbers).all():
        raise CheckpointError(
            "the model's logits must be finite numbers, got NaN or infinity: its "
            "weights, or its precision, do not allow to generate; check the file that "
            "they come from, or load it with dtype='float32'"
        )


def round_up_to_bucket(number, ladder):
    """The lowest rung not below a number; beyond the ladder, the doubled last."""
    for step in ladder:
        if number <= step:
            return step
    last = ladder[-1]
    while last < number:
        last *= 2
    return last


def shared_controls(config: GenerationConfig, vocabulary_size: int) -> tuple:
    """The numbers that every row shares, for a program."""
    samples = config.method == "sample"
    return (
        np.array(config.temperature if samples else 0, "float32"),
        np.array(min(config.top_k or vocabulary_size, vocabulary_size), "int32"),
        np.array(config.top_p, "float32"),
        _padded_ids(config.stop_ids),
        _padded_ids(config.suppressed_stop_ids),
    )


def padded_limits(rows: RowState, all_rows: int) -> tuple:
    """The arrays of a `RowState` for a program; rows of padding have ended."""
    *left, done = (pad_rows(array, all_rows) for array in rows.limits)
    done[len(rows.done) :] = True
    return (*left, done)


def after(rows: RowState, limits) -> RowState:
    """The state that a program has made of `padded_limits`."""
    return rows.with_limits(host(array)[: len(rows.done)] for array in limits)


def _padded_ids(ids):
    """Up to a bucket; no token has the id -1."""
    padded = np.full(round_up_to_bucket(len(ids), _STOP_IDS), -1, "int32")
    padded[: len(ids)] = ids
    return padded


def pad_rows(array, rows, value=0):
    widths = ((0, rows - len(array)), *([(0, 0)] * (array.ndim - 1)))
    return np.pad(array, widths, constant_values=value)


def padded_origins(rows, all_rows=None):
    """Numbers of rows, and of the first again where padding is, up to a rung."""
    origins = np.full(all_rows or round_up_to_bucket(len(rows), ROWS), rows[0])
    origins[: len(rows)] = rows
    return origins


def gather(caches, rows):
    """Rows of all layers, one layer after the other: never two whole caches."""
    for layer, pair in enumerate(caches):
        caches[layer] = tuple(ops.take(array, rows, axis=0) for array in pair)


def host(tensor) -> np.ndarray:
    return ops.convert_to_numpy(tensor)


def padded_prompts(prompts: Sequence[Prompt]) -> tuple:
    """Ids, segments and lengths of prompts, filled up to a shape of the ladders.

    Returns:
        int32 `(all rows, capacity)` twice, and `(all rows,)`; 1 is the length of a row
        of padding.
    """
    count = round_up_to_bucket(len(prompts), ROWS)
    lengths = np.ones(count, "int32")
    lengths[: len(prompts)] = [len(prompt.token_ids) for prompt in prompts]
    capacity = round_up_to_bucket(int(lengths.max()), _PREFIXES)
    token_ids = np.zeros((count, capacity), "int32")
    segment_ids = np.zeros((count, capacity), "int32")
    for at, prompt in enumerate(prompts):
        token_ids[at, : lengths[at]] = prompt.token_ids
        segment_ids[at, : lengths[at]] = prompt.segment_ids
    return token_ids, segment_ids, lengths


# === Within programs ===


def visible_keys(model, token_ids, segment_ids, lengths):
    """Whether later tokens see each of padded prompts, bool `(rows, length)`."""
    position = ops.arange(ops.shape(token_ids)[1])[None]
    visible = ops.logical_or(
        model.visible(token_ids, segment_ids), ops.equal(position, 0)
    )
    return ops.logical_and(visible, ops.less(position, lengths[:, None]))


def last_logits(model, hidden, lengths):
    """Float32 `(rows, vocabulary)` at the last of so many tokens."""
    last = ops.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)
    return ops.cast(model.logits(last)[:, 0], "float32")


def go_on(feed, carried, tokens, steps, uniforms, ends, controls, vocabulary_size):
    """The loop: a token a row goes in, the next is chosen, until all rows have ended.

    Args:
        feed: of the number of the step, tokens `(rows, 1)` and what is carried; returns
            logits `(rows, 1, vocabulary)`, and what is carried on.
        carried: nested tensors.
        tokens: int32 `(rows,)`, the last that were chosen.
        steps: int32 scalar, how many at most.
        uniforms: float32 `(rows, most steps)`.
        ends, controls: as `RowState` gives them.
        vocabulary_size: int.

    Returns:
        How many steps were done, what is carried, `ends`, and the results: tokens and
        log-probabilities `(rows, most steps)`, logits of the last step.
    """
    rows = tokens.shape[0]

    def step(count, tokens, carried, ends, results):
        written, scores, _ = results
        logits, carried = feed(count, tokens[:, None], carried)
        logits = ops.cast(logits[:, 0], "float32")
        uniform = ops.slice(uniforms, (0, count), (rows, 1))[:, 0]
        tokens, score, ends = _choose_next(logits, uniform, ends, controls)
        written = ops.slice_update(written, (0, count), tokens[:, None])
        scores = ops.slice_update(scores, (0, count), score[:, None])
        return count + 1, tokens, carried, ends, (written, scores, logits)

    def is_continuation(count, tokens, carried, ends, results):
        *_, done = ends
        return ops.logical_and(count < steps, ops.logical_not(ops.all(done)))

    results = (
        ops.zeros(uniforms.shape, "int32"),
        ops.zeros(uniforms.shape, "float32"),
        ops.zeros((rows, vocabulary_size), "float32"),
    )
    start = (ops.zeros((), "int32"), tokens, carried, ends, results)
    count, _, carried, ends, results = ops.while_loop(is_continuation, step, start)
    return count, carried, ends, results


def _choose_next(logits, uniforms, ends, controls):
    """A token a row, its log-probability, and what is left to the row."""
    remaining, early, done = ends
    temperature, top_k, top_p, stop_ids, suppressed_stop_ids = controls
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    late = ops.any(ops.equal(vocabulary[:, None], suppressed_stop_ids[None, :]), axis=1)
    # The token that is chosen now is the last of those that come too early.
    barred = ops.logical_and(late[None, :], ops.greater(early, 1)[:, None])
    allowed = ops.where(barred, ops.full_like(logits, -1e30), logits)
    tokens = choose(allowed, uniforms, temperature, top_k, top_p)
    scores = log_probabilities(logits, tokens)
    tokens = ops.where(done, ops.zeros_like(tokens), tokens)
    scores = ops.where(done, ops.zeros_like(scores), scores)
    remaining = ops.where(done, remaining, remaining - 1)
    early = ops.where(done, early, early - 1)
    stops = ops.any(ops.equal(tokens[:, None], stop_ids[None, :]), axis=1)
    ends = ops.logical_or(
        ops.logical_and(stops, ops.less_equal(early, 0)), ops.less_equal(remaining, 0)
    )
    return tokens, scores, (remaining, early, ops.logical_or(done, ends))

"""Decoding with a cache: the prompt once, then one token a step, in a compiled loop.

The keys and values of a layer lie in three places:

    prefix   of a prompt that several samples share. It is never written.
    past     of the prompts that nobody shares, and of the new tokens up to the last
             merge. The loop only reads it.
    recent   of the few new tokens since: the only part that the loop writes.

So no step copies what has been written, and the loop hands back little. When `recent`
is full it is merged into `past`. Shapes are padded to those of a few ladders, and a
program is compiled for each combination that is met.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from roformer_keras.compiled import Compiled
from roformer_keras.errors import CheckpointError
from roformer_keras.generation.options import MOST_STOP_IDS, Decoding, Prompt
from roformer_keras.generation.sampling import choose, log_probabilities

__all__ = ["CachedDecoder", "CachedModel", "Choice", "State"]

_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 100, 128)
_PREFIXES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# New tokens that there is room for, in `past` and `recent` together.
_NEW = (16, 32, 48, 64, 80, 96, 112, 128)
# From so many rows on a step takes longer the more there are, and it is looked every so
# many steps whether some have ended.
_MANY_ROWS, _LOOK = 16, 8
# Keys that `recent` has room for. A step reads all of it, and few rows read it soon.
_RECENT_OF_FEW, _RECENT_OF_MANY = 32, 16

_LOGGER = logging.getLogger(__name__)


class CachedModel(Protocol):
    """What a model must offer to be decoded with a cache.

    Attributes:
        vocabulary_size: int.
        generated_segment: int. The segment of new tokens.
        weights: what it computes with.
    """

    vocabulary_size: int
    generated_segment: int
    weights: list

    def create_caches(self, batch, capacity) -> list:
        """A pair of keys and values `(batch, heads, capacity, dim)` a layer."""

    def call_with_cache(
        self, inputs, attention_mask, caches, cache_index=0, contexts=None
    ) -> tuple:
        """See `RoFormerBackbone.call_with_cache`."""

    def logits(self, hidden):
        """`(batch, length, hidden_dim)` to `(batch, length, vocabulary_size)`."""

    def prompt_mask(self, token_ids, segment_ids):
        """Which token of a prompt sees which, `(batch, 1, 1 or length, length)`."""

    def visible(self, token_ids, segment_ids):
        """Whether later tokens see one that is not the first; bool, same shape."""


@dataclasses.dataclass
class State:
    """Where a batch of rows stands.

    Rows behind the first `rows` are padding. Arrays are of all rows, on the host.

    Attributes:
        rows: int.
        prompt_lengths: int32 `(all rows,)`.
        offset: int. Where in `past` new tokens begin.
        merged: int. New tokens whose keys are in `past`.
        written: int. New tokens whose keys are in `past` or `recent`.
        visible: bool `(all rows, prefix + past)`. Which keys there are.
        recent_visible: bool `(all rows, recent)`.
        prefix, past, recent: a pair of keys and values a layer; the first two may be
            empty.
    """

    rows: int
    prompt_lengths: np.ndarray
    offset: int
    merged: int
    written: int
    visible: np.ndarray
    recent_visible: np.ndarray
    prefix: list
    past: list
    recent: list

    @property
    def all_rows(self) -> int:
        return len(self.prompt_lengths)

    @property
    def recent_capacity(self) -> int:
        return self.recent_visible.shape[1]

    @property
    def shape(self) -> tuple:
        """What a program is compiled for: all rows, and the keys of each place."""
        return (
            self.all_rows,
            *(_capacity(caches) for caches in (self.prefix, self.past, self.recent)),
        )


@dataclasses.dataclass
class Choice:
    """How rows choose their tokens and end; arrays of as many rows as the state.

    Attributes:
        decoding: `Decoding`; with the method "sample" tokens are drawn, otherwise the
            likeliest is taken.
        remaining: int32 `(rows,)`. Tokens that may still be written.
        early: int32 `(rows,)`. Tokens to write before a stop token ends the row.
        done: bool `(rows,)`.
    """

    decoding: Decoding
    remaining: np.ndarray
    early: np.ndarray
    done: np.ndarray

    def select(self, rows) -> "Choice":
        return self._with(array[rows] for array in self._ends())

    def ends(self, all_rows: int) -> tuple:
        """What every row has of its own, for a program; rows of padding have ended."""
        remaining, early, done = self._ends()
        return (
            _pad_rows(remaining, all_rows),
            _pad_rows(early, all_rows),
            _pad_rows(done, all_rows, True),
        )

    def after(self, ends) -> "Choice":
        """With what a program made of `ends`."""
        return self._with(_host(array)[: len(self.done)] for array in ends)

    def _ends(self):
        return self.remaining, self.early, self.done

    def _with(self, ends):
        return Choice(self.decoding, *ends)

    def controls(self, vocabulary: int) -> tuple:
        """The numbers that every row shares, for a program."""
        decoding = self.decoding
        samples = decoding.method == "sample"
        return (
            np.array(decoding.temperature if samples else 0, "float32"),
            np.array(min(decoding.top_k or vocabulary, vocabulary), "int32"),
            np.array(decoding.top_p, "float32"),
            _padded_ids(decoding.stop_ids),
            _padded_ids(decoding.late_ids),
        )


class CachedDecoder:
    """Decodes any `CachedModel`, and compiles what it needs when it is needed.

    Args:
        model: `CachedModel`. Its weights are read at every call.
    """

    def __init__(self, model: CachedModel):
        self.model = model
        self.vocabulary_size = model.vocabulary_size
        self.on_compile: Callable[[str], Any] | None = None
        self._programs: set = set()
        self._prefill = Compiled(self._prefill_function, model.weights, any_shape=True)
        self._first = Compiled(self._first_function, [], any_shape=True)
        self._loop = Compiled(self._loop_function, model.weights, any_shape=False)

    # === What a search calls ===

    def start(
        self, prompts: Sequence[Prompt], copies: int, max_new_tokens: int
    ) -> tuple[np.ndarray, State]:
        """Computes the prompts, and makes room for what follows.

        Args:
            prompts: of any lengths.
            copies: int. Rows for each prompt, which stand side by side.
            max_new_tokens: int. As many as any row will have.

        Returns:
            float32 logits of the next token `(rows, vocabulary)`, and the state.

        Raises:
            CheckpointError: the logits are not finite.
        """
        rows = len(prompts) * copies
        all_rows = _rung(rows, _ROWS)
        # One prompt is shared by its samples; several are laid out row by row.
        shared = len(prompts) == 1 and copies > 1
        count = _rung(len(prompts), _ROWS)
        lengths = np.ones(count, "int32")
        lengths[: len(prompts)] = [len(prompt.token_ids) for prompt in prompts]
        capacity = _rung(int(lengths.max()), _PREFIXES)
        token_ids = np.zeros((count, capacity), "int32")
        segment_ids = np.zeros((count, capacity), "int32")
        for at, prompt in enumerate(prompts):
            token_ids[at, : lengths[at]] = prompt.token_ids
            segment_ids[at, : lengths[at]] = prompt.segment_ids
        self._say("prompts", (count, capacity), capacity)
        logits, visible, prefix = self._prefill(token_ids, segment_ids, lengths)
        logits, visible = _host(logits), _host(visible)
        check_finite(logits[: len(prompts)])

        origins = np.zeros(all_rows, int)
        origins[:rows] = np.repeat(np.arange(len(prompts)), copies)
        # Beyond the ladder it grows when it is needed.
        recent = _RECENT_OF_FEW if all_rows < _MANY_ROWS else _RECENT_OF_MANY
        room = max(0, _rung(min(max_new_tokens, _NEW[-1]), _NEW) - recent)
        # What is merged is never less than all of `recent`.
        room = -(-room // recent) * recent
        if shared:
            past = self.model.create_caches(all_rows, room) if room else []
        else:
            past, prefix = prefix, []
            if not np.array_equal(origins, np.arange(count)):
                _gather(past, origins)
            _widen(past, room)
        state = State(
            rows=rows,
            prompt_lengths=lengths[origins],
            offset=0 if shared else capacity,
            merged=0,
            written=0,
            visible=np.pad(visible[origins], ((0, 0), (0, room))),
            recent_visible=np.zeros((all_rows, recent), bool),
            prefix=prefix,
            past=past,
            recent=self.model.create_caches(all_rows, recent),
        )
        return logits[origins[:rows]], state

    def choose(
        self, logits: np.ndarray, uniforms: np.ndarray, choice: Choice
    ) -> tuple[np.ndarray, np.ndarray, Choice]:
        """One token a row, of logits that are there: ids, log-probabilities, choice.

        Args:
            logits: float32 `(rows, vocabulary)`.
            uniforms: float32 `(rows,)` in [0, 1).
            choice: `Choice` of as many rows.
        """
        rows = len(logits)
        padded = _rung(rows, _ROWS)
        self._say("first tokens", (padded,), 1)
        tokens, scores, ends = self._first(
            _pad_rows(logits, padded),
            _pad_rows(uniforms, padded),
            choice.ends(padded),
            choice.controls(self.vocabulary_size),
        )
        return _host(tokens)[:rows], _host(scores)[:rows], choice.after(ends)

    def room(self, state: State) -> int:
        """How many steps `advance` can do before it merges, or it pays to look."""
        steps = state.recent_capacity
        steps -= (state.written - state.merged) % steps
        if state.all_rows < _MANY_ROWS:
            return steps
        return _LOOK - state.written % _LOOK

    def advance(
        self,
        state: State,
        tokens: np.ndarray,
        uniforms: np.ndarray,
        choice: Choice,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Choice]:
        """Feeds a token a row, chooses the next, and so on.

        Args:
            state: is changed.
            tokens: int32 `(rows,)`, the last that were chosen.
            uniforms: float32 `(rows, steps)`, with at most `room(state)` steps, of
                which fewer are done if every row ends.
            choice: `Choice` of as many rows.

        Returns:
            int32 tokens `(rows, steps done)`, of which those of a row that has ended
            are 0; float32 log-probabilities of the same shape; float32 logits of the
            last step `(rows, vocabulary)`; and the choice that comes next.
        """
        index = self._make_room(state)
        steps = uniforms.shape[1]
        rows, all_rows = state.rows, state.all_rows
        padded = np.zeros((all_rows, state.recent_capacity), "float32")
        padded[:rows, :steps] = uniforms
        self._say("steps", state.shape, sum(state.shape[1:]))
        done, _, recent, ends, results = self._loop(
            (state.prefix, state.past),
            state.visible,
            (state.recent, state.recent_visible),
            state.prompt_lengths + np.int32(state.written),
            np.array(index, "int32"),
            np.array(steps, "int32"),
            _pad_rows(tokens.astype("int32"), all_rows),
            padded,
            choice.ends(all_rows),
            choice.controls(self.vocabulary_size),
        )
        done = int(_host(done))
        state.recent, state.recent_visible = recent[0], _host(recent[1])
        state.written += done
        chosen, scores, logits = (_host(array)[:rows] for array in results)
        check_finite(scores)
        return chosen[:, :done], scores[:, :done], logits, choice.after(ends)

    def select(self, state: State, rows: np.ndarray) -> None:
        """Leaves a state with some of its rows, in any order, repeated or not."""
        if np.array_equal(rows, np.arange(state.rows)):
            return
        origins = np.zeros(_rung(len(rows), _ROWS), int)
        origins[: len(rows)] = rows
        _gather(state.past, origins)
        _gather(state.recent, origins)
        state.rows = len(rows)
        state.prompt_lengths = state.prompt_lengths[origins]
        state.visible = state.visible[origins]
        state.recent_visible = state.recent_visible[origins]

    def pays_to_leave(self, state: State, rows: int, steps: int) -> bool:
        """Whether going on with only so many rows is worth what it takes.

        It goes by sizes alone, and not by what has been compiled before: the last
        digits differ between programs, and a seed must give the same texts again.
        """
        many = state.all_rows >= _MANY_ROWS and steps >= _LOOK
        return many and 2 * _rung(rows, _ROWS) <= state.all_rows

    # === What is compiled ===

    def _prefill_function(self, token_ids, segment_ids, lengths):
        batch, length = ops.shape(token_ids)
        caches = self.model.create_caches(batch, length)
        inputs = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "position_ids": ops.cast(ops.arange(length)[None], "float32"),
        }
        mask = self.model.prompt_mask(token_ids, segment_ids)
        hidden, caches = self.model.call_with_cache(inputs, mask, caches)
        last = ops.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)
        logits = ops.cast(self.model.logits(last)[:, 0], "float32")
        position = ops.arange(length)[None]
        visible = ops.logical_or(
            self.model.visible(token_ids, segment_ids), ops.equal(position, 0)
        )
        visible = ops.logical_and(visible, ops.less(position, lengths[:, None]))
        return logits, visible, caches

    def _first_function(self, logits, uniforms, ends, controls):
        # The size of a vocabulary is known where other sizes are not.
        logits = ops.reshape(logits, (-1, self.vocabulary_size))
        return _choose_next(logits, uniforms, ends, controls)

    def _loop_function(
        self,
        context,
        visible,
        recent,
        positions,
        index,
        steps,
        tokens,
        uniforms,
        ends,
        controls,
    ):
        """How many steps were done, last tokens, `recent`, `ends`, and the results."""
        rows = tokens.shape[0]
        contexts = [list(layer) for layer in zip(*filter(None, context), strict=True)]

        def step(count, tokens, recent, ends, results):
            caches, recent_visible = recent
            written, scores, _ = results
            token_ids = tokens[:, None]
            segment_ids = ops.full_like(token_ids, self.model.generated_segment)
            at = index + count
            recent_visible = ops.slice_update(
                recent_visible, (0, at), self.model.visible(token_ids, segment_ids)
            )
            mask = ops.concatenate([visible, recent_visible], axis=1)
            inputs = {
                "token_ids": token_ids,
                "segment_ids": segment_ids,
                "position_ids": ops.cast(positions + count, "float32")[:, None],
            }
            hidden, caches = self.model.call_with_cache(
                inputs, mask[:, None, None, :], caches, at, contexts
            )
            logits = ops.cast(self.model.logits(hidden)[:, 0], "float32")
            uniform = ops.slice(uniforms, (0, count), (rows, 1))[:, 0]
            tokens, score, ends = _choose_next(logits, uniform, ends, controls)
            written = ops.slice_update(written, (0, count), tokens[:, None])
            scores = ops.slice_update(scores, (0, count), score[:, None])
            results = (written, scores, logits)
            return count + 1, tokens, (caches, recent_visible), ends, results

        def goes_on(count, tokens, recent, ends, results):
            *_, done = ends
            return ops.logical_and(count < steps, ops.logical_not(ops.all(done)))

        results = (
            ops.zeros(uniforms.shape, "int32"),
            ops.zeros(uniforms.shape, "float32"),
            ops.zeros((rows, self.vocabulary_size), "float32"),
        )
        start = (ops.zeros((), "int32"), tokens, recent, ends, results)
        return ops.while_loop(goes_on, step, start)

    # === Helpers ===

    def _make_room(self, state):
        """Merges `recent` where it is full; returns where the next token goes."""
        index, recent = state.written - state.merged, state.recent_capacity
        if index < recent:
            return index
        first = state.offset + state.merged
        capacity = _capacity(state.past)
        if first + recent > capacity:
            new = capacity - state.offset + recent
            more = _rung(new + recent, _NEW) - new
            if capacity:
                _widen(state.past, more)
            else:
                state.past = self.model.create_caches(state.all_rows, more)
            state.visible = np.pad(state.visible, ((0, 0), (0, more)))
        # Layer by layer, so that there are never two whole caches.
        for layer, pair in enumerate(state.recent):
            state.past[layer] = tuple(
                ops.slice_update(old, (0, 0, first, 0), new)
                for old, new in zip(state.past[layer], pair, strict=True)
            )
        first += _capacity(state.prefix)
        state.visible[:, first : first + recent] = state.recent_visible
        state.recent_visible = np.zeros_like(state.recent_visible)
        state.merged += recent
        return 0

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


def _choose_next(logits, uniforms, ends, controls):
    """A token a row, its log-probability, and what is left to the row."""
    remaining, early, done = ends
    temperature, top_k, top_p, stop_ids, late_ids = controls
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    late = ops.any(ops.equal(vocabulary[:, None], late_ids[None, :]), axis=1)
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


def _rung(number, ladder):
    """The lowest rung not below a number; beyond the ladder, the doubled last."""
    for rung in ladder:
        if number <= rung:
            return rung
    last = ladder[-1]
    while last < number:
        last *= 2
    return last


def _padded_ids(ids):
    """No token has the id -1."""
    padded = np.full(MOST_STOP_IDS, -1, "int32")
    padded[: len(ids)] = ids
    return padded


def _pad_rows(array, rows, value=0):
    widths = ((0, rows - len(array)), *([(0, 0)] * (array.ndim - 1)))
    return np.pad(array, widths, constant_values=value)


def _gather(caches, rows):
    """Rows of all layers, one layer after the other: never two whole caches."""
    for layer, pair in enumerate(caches):
        caches[layer] = tuple(ops.take(array, rows, axis=0) for array in pair)


def _widen(caches, more):
    """Room for more keys behind those of every layer, likewise."""
    for layer, pair in enumerate(caches):
        caches[layer] = tuple(
            ops.pad(array, ((0, 0), (0, 0), (0, more), (0, 0))) for array in pair
        )


def _capacity(caches):
    return caches[0][0].shape[2] if caches else 0


def _host(tensor) -> np.ndarray:
    return ops.convert_to_numpy(tensor)

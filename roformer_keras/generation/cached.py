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
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from keras import ops

from roformer_keras.compiled import Compiled
from roformer_keras.generation.decoder import (
    CHECK_EVERY,
    LARGE_BATCH,
    Decoder,
    check_finite,
    gather,
    go_on,
    host,
    last_logits,
    padded_origins,
    padded_prompts,
    round_up_to_bucket,
    visible_keys,
)
from roformer_keras.generation.options import Prompt, RowState

__all__ = ["CachedDecoder", "CachedModel", "State", "rooms", "widen"]

# New tokens that there is room for, in `past` and `recent` together.
_NEW = (16, 32, 48, 64, 80, 96, 112, 128)
# Keys that `recent` has room for. A step reads all of it, and few rows read it soon.
_RECENT_OF_FEW, _RECENT_OF_MANY = 32, 16


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

    def select(self, rows: int, origins: np.ndarray) -> None:
        """Takes its rows in another order; the first so many are no padding."""
        gather(self.past, origins)
        gather(self.recent, origins)
        self.rows = rows
        self.prompt_lengths = self.prompt_lengths[origins]
        self.visible = self.visible[origins]
        self.recent_visible = self.recent_visible[origins]

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


class CachedDecoder(Decoder):
    """Decodes any `CachedModel`, and compiles what it needs when it is needed.

    Args:
        model: `CachedModel`. Its weights are read at every call.
    """

    def __init__(self, model: CachedModel):
        super().__init__(model.vocabulary_size)
        self.model = model
        self._prefill = Compiled(self._prefill_function, model.weights, any_shape=True)
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
        # One prompt is shared by its samples; several are laid out row by row.
        shared = len(prompts) == 1 and copies > 1
        token_ids, segment_ids, lengths = padded_prompts(prompts)
        count, capacity = token_ids.shape
        self._say("prompts", (count, capacity), capacity)
        logits, visible, prefix = self._prefill(token_ids, segment_ids, lengths)
        logits, visible = host(logits), host(visible)
        check_finite(logits[: len(prompts)])

        origins = padded_origins(np.repeat(np.arange(len(prompts)), copies))
        all_rows = len(origins)
        recent, room = rooms(all_rows, max_new_tokens)
        if shared:
            past = self.model.create_caches(all_rows, room) if room else []
        else:
            past, prefix = prefix, []
            if not np.array_equal(origins, np.arange(count)):
                gather(past, origins)
            widen(past, room)
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

    def room(self, state: State) -> int:
        """How many steps `advance` can do before it merges, or it pays to look."""
        steps = state.recent_capacity
        steps -= (state.written - state.merged) % steps
        if state.all_rows < LARGE_BATCH:
            return steps
        return CHECK_EVERY - state.written % CHECK_EVERY

    def advance(
        self,
        state: State,
        tokens: np.ndarray,
        uniforms: np.ndarray,
        choice: RowState,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, RowState]:
        """Feeds a token a row, chooses the next, and so on.

        Args:
            state: is changed.
            tokens: int32 `(rows,)`, the last that were chosen.
            uniforms: float32 `(rows, steps)`, with at most `room(state)` steps, of
                which fewer are done if every row ends.
            choice: `RowState` of as many rows.

        Returns:
            int32 tokens `(rows, steps done)`, of which those of a row that has ended
            are 0; float32 log-probabilities of the same shape; float32 logits of the
            last step `(rows, vocabulary)`; and the choice that comes next.
        """
        index = self._make_room(state)
        self._say("steps", state.shape, sum(state.shape[1:]))
        own = (
            (state.prefix, state.past),
            state.visible,
            (state.recent, state.recent_visible),
            state.prompt_lengths + np.int32(state.written),
            np.array(index, "int32"),
        )
        (state.recent, visible), answer = self._run_loop(
            own, state.all_rows, state.recent_capacity, tokens, uniforms, choice
        )
        state.recent_visible = host(visible)
        state.written += answer[0].shape[1]
        return answer

    def select(self, state: State, rows: np.ndarray) -> None:
        """Leaves a state with some of its rows, in any order, repeated or not."""
        if np.array_equal(rows, np.arange(state.rows)):
            return
        state.select(len(rows), padded_origins(rows))

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
        visible = visible_keys(self.model, token_ids, segment_ids, lengths)
        return last_logits(self.model, hidden, lengths), visible, caches

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
        """How many steps were done, `recent`, `ends`, and the results; see `go_on`."""
        contexts = [list(layer) for layer in zip(*filter(None, context), strict=True)]

        def feed(count, token_ids, recent):
            caches, recent_visible = recent
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
            return self.model.logits(hidden), (caches, recent_visible)

        return go_on(
            feed,
            recent,
            tokens,
            steps,
            uniforms,
            ends,
            controls,
            self.vocabulary_size,
        )

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
            more = round_up_to_bucket(new + recent, _NEW) - new
            if capacity:
                widen(state.past, more)
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


def rooms(all_rows: int, max_new_tokens: int) -> tuple[int, int]:
    """How many new keys `recent` has room for, and `past` at first."""
    # Beyond the ladder it grows when it is needed.
    recent = _RECENT_OF_FEW if all_rows < LARGE_BATCH else _RECENT_OF_MANY
    room = max(0, round_up_to_bucket(min(max_new_tokens, _NEW[-1]), _NEW) - recent)
    # What is merged is never less than all of `recent`.
    return recent, -(-room // recent) * recent


def widen(caches, more):
    """Room for more keys behind those of every layer, likewise."""
    for layer, pair in enumerate(caches):
        caches[layer] = tuple(
            ops.pad(array, ((0, 0), (0, 0), (0, more), (0, 0))) for array in pair
        )


def _capacity(caches):
    return caches[0][0].shape[2] if caches else 0

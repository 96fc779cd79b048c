"""Decoding with a cache of keys and values.

The keys and values of a layer lie in three places:

    prefix   of a prompt that several samples share. It is never written.
    past     of prompts that are not shared, and of the new tokens up to the last merge.
             The loop only reads it.
    recent   of the few new tokens since: the only part that the loop writes.

So no step copies what has been written, and the loop returns little. When `recent` is
full it is merged into `past`.
"""

import dataclasses

import numpy as np
from keras import ops

from roformer_keras.generation.decoder import (
    LARGE_BATCH,
    Decoder,
    State,
    gather,
    host,
    round_up_to_bucket,
)

# New tokens that `past` and `recent` together have room for.
_NEW = (16, 32, 48, 64, 80, 96, 112, 128)
# Keys that `recent` has room for. A step reads all of it, and few rows read it soon.
_RECENT_OF_FEW, _RECENT_OF_MANY = 32, 16


@dataclasses.dataclass(kw_only=True)
class CachedState(State):
    """The state of a `CachedDecoder`; arrays on the host."""

    offset: int
    merged: int = 0
    visible: np.ndarray
    recent_visible: np.ndarray
    prefix: list
    past: list
    recent: list

    @property
    def steps(self) -> int:
        """Steps of a program: the keys that `recent` has room for."""
        return self.recent_visible.shape[1]

    @property
    def program_shape(self) -> tuple:
        """All rows, and the keys of each place."""
        caches = self.prefix, self.past, self.recent
        return (self.all_rows, *map(_capacity, caches))

    def select(self, rows: int, origins: np.ndarray) -> None:
        super().select(rows, origins)
        gather(self.past, origins)
        gather(self.recent, origins)
        self.visible = self.visible[origins]
        self.recent_visible = self.recent_visible[origins]

    def keep(self, carried) -> None:
        """Takes the new value of `recent` from a program."""
        self.recent, visible = carried
        self.recent_visible = host(visible)


class CachedDecoder(Decoder):
    """Decodes a `DecoderModel` with caches of keys and values.

    Args:
        model: `DecoderModel` with causal or UniLM attention. Its weights are read at
            every call.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> decoder = generation.CachedDecoder(model)
        >>> prompt = generation.Prompt((2, 17), (0, 0), max_new_tokens=8)
        >>> logits, state = decoder.start([prompt], copies=3, max_new_tokens=8)
        >>> logits.shape[0], state.rows
        (3, 3)
    """

    def _read_prompts(self, inputs, visible):
        token_ids, segment_ids = inputs["token_ids"], inputs["segment_ids"]
        mask = self.model.prompt_mask(token_ids, segment_ids)
        caches = self.model.create_caches(*ops.shape(token_ids))
        return self.model.call_with_cache(inputs, mask, caches)

    def _new_state(self, rows, origins, lengths, max_new_tokens, visible, caches):
        all_rows, prefix, past = len(origins), [], caches
        recent, room = _rooms(all_rows, max_new_tokens)
        if len(lengths) == 1 < rows:
            # One prompt is shared by its samples; several are laid out row by row.
            prefix, past = caches, []
            if room:
                past = self.model.create_caches(all_rows, room)
        else:
            if not np.array_equal(origins, np.arange(len(lengths))):
                gather(past, origins)
            _widen(past, room)
        return CachedState(
            rows=rows,
            lengths=lengths[origins],
            offset=_capacity(past) - room,
            visible=np.pad(host(visible)[origins], ((0, 0), (0, room))),
            recent_visible=np.zeros((all_rows, recent), bool),
            prefix=prefix,
            past=past,
            recent=self.model.create_caches(all_rows, recent),
        )

    def _prepare(self, state):
        index = self._make_room(state)
        carried = state.recent, state.recent_visible
        context = state.prefix, state.past
        return carried, (context, state.visible, np.array(index, "int32"))

    def _read_tokens(self, inputs, count, carried, constants):
        caches, recent_visible = carried
        context, visible, index = constants
        contexts = [list(layer) for layer in zip(*filter(None, context), strict=True)]
        at = index + count
        now = self.model.visible(inputs["token_ids"], inputs["segment_ids"])
        recent_visible = ops.slice_update(recent_visible, (0, at), now)
        mask = ops.concatenate([visible, recent_visible], axis=1)
        hidden, caches = self.model.call_with_cache(
            inputs, mask[:, None, None, :], caches, at, contexts
        )
        return hidden, (caches, recent_visible)

    def _make_room(self, state):
        """Merges `recent` where it is full; returns where the next token goes."""
        index, recent = state.written - state.merged, state.steps
        if index < recent:
            return index
        first = state.offset + state.merged
        capacity = _capacity(state.past)
        if first + recent > capacity:
            new = capacity - state.offset + recent
            room = round_up_to_bucket(new + recent, _NEW) - new
            if capacity:
                _widen(state.past, room)
            else:
                state.past = self.model.create_caches(state.all_rows, room)
            state.visible = np.pad(state.visible, ((0, 0), (0, room)))
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


def _rooms(all_rows: int, max_new_tokens: int) -> tuple[int, int]:
    """Number of new keys that `recent` has room for, and `past` at first."""
    # A cache longer than the last bucket grows when needed.
    recent = _RECENT_OF_FEW if all_rows < LARGE_BATCH else _RECENT_OF_MANY
    room = max(0, round_up_to_bucket(min(max_new_tokens, _NEW[-1]), _NEW) - recent)
    # All of `recent` is merged at a time.
    return recent, -(-room // recent) * recent


def _widen(caches, more):
    """Makes room for more keys after those of each layer, in place."""
    for layer, pair in enumerate(caches):
        caches[layer] = tuple(
            ops.pad(array, ((0, 0), (0, 0), (0, more), (0, 0))) for array in pair
        )


def _capacity(caches):
    return caches[0][0].shape[2] if caches else 0

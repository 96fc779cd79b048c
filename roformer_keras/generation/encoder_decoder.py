"""Decoding with a cache from a text that an encoder has read.

The text is read once, and each block of the decoder makes its keys and values of it
once. They lie where a `CachedDecoder` has the prompt that samples share, in `prefix`:
one row for all the neighbouring rows that write from the same text. What is written
begins with a start token, whose keys are the first of `past`.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from keras import ops

from roformer_keras.compiled import Compiled
from roformer_keras.generation.cached import (
    CachedDecoder,
    CachedModel,
    State,
    rooms,
    widen,
)
from roformer_keras.generation.decoder import (
    ROWS,
    check_finite,
    gather,
    host,
    padded_origins,
    padded_prompts,
    round_up_to_bucket,
)
from roformer_keras.generation.options import Prompt

__all__ = ["EncoderDecoder", "EncoderDecoderModel"]


class EncoderDecoderModel(CachedModel, Protocol):
    """A `CachedModel` that reads a text first.

    The first of each layer's contexts in `call_with_cache`, and the first columns of
    its mask, are what `encode` gave.
    """

    def encode(self, token_ids) -> tuple:
        """A pair of keys and values `(batch, heads, length, dim)` a layer, and a mask.

        The mask is bool `(batch, 1, 1, length)`: which of the text can be seen.
        """


class EncoderDecoder(CachedDecoder):
    """A `CachedDecoder` whose prompts are read by an encoder.

    Args:
        model: `EncoderDecoderModel`.
        start_id: int. The token that stands before what is written.
    """

    def __init__(self, model: EncoderDecoderModel, start_id: int):
        super().__init__(model)
        self._start_id = start_id
        self._read = Compiled(self._read_function, model.weights, any_shape=True)

    def start(
        self, prompts: Sequence[Prompt], copies: int, max_new_tokens: int
    ) -> tuple[np.ndarray, State]:
        """As of `CachedDecoder`; prompts are what the encoder reads."""
        token_ids, _, _ = padded_prompts(prompts)
        count, capacity = token_ids.shape
        rows, all_rows = len(prompts) * copies, count * copies
        self._say("prompts", token_ids.shape, capacity)
        logits, visible, prefix, past = self._read(token_ids)
        logits, visible = host(logits), host(visible)
        check_finite(logits[: len(prompts)])

        origins = np.repeat(np.arange(count), copies)
        recent, room = rooms(all_rows, max_new_tokens)
        if copies > 1:
            gather(past, origins)
        widen(past, room)
        # Behind what was read stands the start token.
        visible = np.pad(visible, ((0, 0), (0, 1)), constant_values=True)
        state = State(
            rows=rows,
            prompt_lengths=np.ones(all_rows, "int32"),
            offset=1,
            merged=0,
            written=0,
            visible=np.pad(visible[origins], ((0, 0), (0, room))),
            recent_visible=np.zeros((all_rows, recent), bool),
            prefix=prefix,
            past=past,
            recent=self.model.create_caches(all_rows, recent),
        )
        return logits[origins[:rows]], state

    def select(self, state: State, rows: np.ndarray) -> None:
        """As of `CachedDecoder`; what was read is shared as long as rows allow it."""
        if np.array_equal(rows, np.arange(state.rows)):
            return
        before = state.prefix[0][0].shape[0]
        copies = state.all_rows // before
        texts = rows // copies
        first = texts[::copies]
        if np.array_equal(texts, np.repeat(first, copies)):
            texts = first
        else:
            copies = 1
        count = round_up_to_bucket(len(texts), ROWS)
        if count != before or not np.array_equal(texts, np.arange(len(texts))):
            gather(state.prefix, padded_origins(texts, count))
        state.select(len(rows), padded_origins(rows, count * copies))

    def _read_function(self, token_ids):
        """Logits of the first token, what of the texts is visible, and two caches."""
        memories, mask = self.model.encode(token_ids)
        batch = ops.shape(token_ids)[0]
        first = ops.full_like(token_ids[:, :1], self._start_id)
        inputs = {
            "token_ids": first,
            "segment_ids": ops.zeros_like(first),
            "position_ids": ops.zeros((1, 1), "float32"),
        }
        start_mask = ops.ones((batch, 1, 1, 1), "bool")
        hidden, caches = self.model.call_with_cache(
            inputs,
            ops.concatenate([mask, start_mask], axis=-1),
            self.model.create_caches(batch, 1),
            contexts=[[memory] for memory in memories],
        )
        logits = ops.cast(self.model.logits(hidden)[:, 0], "float32")
        return logits, mask[:, 0, 0], memories, caches

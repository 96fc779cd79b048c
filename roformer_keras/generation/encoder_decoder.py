"""Decoding with a cache from a text that an encoder has read.

The text is read once, and each block of the decoder makes its keys and values of it
once. They lie where a `CachedDecoder` has the prompt that samples share, in `prefix`:
one row for all the neighbouring rows that write from the same text. What is written
begins with a start token, whose keys are the first of `past`.
"""

from typing import Protocol

import numpy as np
from keras import ops

from roformer_keras.generation.cached import CachedDecoder
from roformer_keras.generation.decoder import (
    ROWS,
    DecoderModel,
    gather,
    make_inputs,
    padded_origins,
    round_up_to_bucket,
)


class EncoderDecoderModel(DecoderModel, Protocol):
    """A `DecoderModel` that reads a text first.

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
        self.start_id = start_id

    def select(self, state, rows: np.ndarray) -> None:
        # What was read is shared as long as the rows allow it.
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

    def _origins(self, prompts, copies):
        return np.repeat(np.arange(round_up_to_bucket(prompts, ROWS)), copies)

    def _new_state(self, rows, origins, lengths, *computed):
        # What has been written is the start token.
        return super()._new_state(rows, origins, np.ones_like(lengths), *computed)

    def _prefill_function(self, token_ids, segment_ids, lengths):
        """Logits of the first token, which keys are visible, and the caches."""
        memories, mask = self.model.encode(token_ids)
        first = ops.full_like(token_ids[:, :1], self.start_id)
        zeros = ops.zeros_like(first)
        batch = ops.shape(token_ids)[0]
        mask = ops.concatenate([mask, ops.ones((batch, 1, 1, 1), "bool")], axis=-1)
        hidden, caches = self.model.call_with_cache(
            make_inputs(first, zeros, zeros),
            mask,
            self.model.create_caches(batch, 1),
            contexts=[[memory] for memory in memories],
        )
        return self._logits(hidden), mask[:, 0, 0], caches, memories

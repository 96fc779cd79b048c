"""Decoding with a state of constant size: for attention of linear cost.

A layer keeps sums over all tokens so far, and not the keys of each. So a step takes the
same time and memory however long the text is, and one program serves all lengths.
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
    visible_keys,
)
from roformer_keras.generation.options import Prompt, RowState

__all__ = ["RecurrentDecoder", "RecurrentModel", "RecurrentState"]

# Steps of one call of the program.
_STEPS = 32


class RecurrentModel(Protocol):
    """What a model must offer to be decoded with a state of constant size.

    Attributes:
        vocabulary_size: int.
        generated_segment: int. The segment of new tokens.
        weights: what it computes with.
    """

    vocabulary_size: int
    generated_segment: int
    weights: list

    def create_caches(self, batch) -> list:
        """What a layer keeps of no tokens: a pair of tensors `(batch, ...)`."""

    def call_with_cache(self, inputs, attention_mask, caches) -> tuple:
        """See `RoFormerBackbone.call_with_cache`."""

    def logits(self, hidden):
        """`(batch, length, hidden_dim)` to `(batch, length, vocabulary_size)`."""

    def visible(self, token_ids, segment_ids):
        """Whether later tokens see one that is not the first; bool, same shape."""


@dataclasses.dataclass
class RecurrentState:
    """Where a batch of rows stands. Rows behind the first `rows` are padding.

    Attributes:
        rows: int.
        lengths: int32 `(all rows,)`, on the host. Tokens that are in the caches.
        caches: a pair of tensors a layer.
    """

    rows: int
    lengths: np.ndarray
    caches: list

    @property
    def all_rows(self) -> int:
        return len(self.lengths)


class RecurrentDecoder(Decoder):
    """Decodes any `RecurrentModel`; a search calls it as it does a `CachedDecoder`.

    Args:
        model: `RecurrentModel`. Its weights are read at every call.
    """

    def __init__(self, model: RecurrentModel):
        super().__init__(model.vocabulary_size)
        self.model = model
        self._prefill = Compiled(self._prefill_function, model.weights, any_shape=True)
        self._loop = Compiled(self._loop_function, model.weights, any_shape=False)

    # === What a search calls ===

    def start(
        self, prompts: Sequence[Prompt], copies: int, max_new_tokens: int
    ) -> tuple[np.ndarray, RecurrentState]:
        """Computes the prompts, all tokens at a time.

        Args:
            prompts: of any lengths.
            copies: int. Rows for each prompt, which stand side by side.
            max_new_tokens: int. A state has room for any number.

        Returns:
            float32 logits of the next token `(rows, vocabulary)`, and the state.

        Raises:
            CheckpointError: the logits are not finite.
        """
        token_ids, segment_ids, lengths = padded_prompts(prompts)
        self._say("prompts", token_ids.shape, token_ids.shape[1])
        logits, caches = self._prefill(token_ids, segment_ids, lengths)
        logits = host(logits)
        check_finite(logits[: len(prompts)])
        rows = len(prompts) * copies
        origins = padded_origins(np.repeat(np.arange(len(prompts)), copies))
        if not np.array_equal(origins, np.arange(len(lengths))):
            gather(caches, origins)
        return logits[origins[:rows]], RecurrentState(rows, lengths[origins], caches)

    def room(self, state: RecurrentState) -> int:
        """How many steps `advance` can do before it pays to look who has ended."""
        return _STEPS if state.all_rows < LARGE_BATCH else CHECK_EVERY

    def advance(
        self,
        state: RecurrentState,
        tokens: np.ndarray,
        uniforms: np.ndarray,
        choice: RowState,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, RowState]:
        """Feeds a token a row, chooses the next, and so on; as of `CachedDecoder`."""
        self._say("steps", (state.all_rows,), 1)
        own = (state.caches, state.lengths)
        state.caches, answer = self._run_loop(
            own, state.all_rows, _STEPS, tokens, uniforms, choice
        )
        state.lengths = state.lengths + np.int32(answer[0].shape[1])
        return answer

    def select(self, state: RecurrentState, rows: np.ndarray) -> None:
        """Leaves a state with some of its rows, in any order, repeated or not."""
        if np.array_equal(rows, np.arange(state.rows)):
            return
        origins = padded_origins(rows)
        gather(state.caches, origins)
        state.rows, state.lengths = len(rows), state.lengths[origins]

    # === What is compiled ===

    def _prefill_function(self, token_ids, segment_ids, lengths):
        batch, length = ops.shape(token_ids)
        inputs = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "position_ids": ops.cast(ops.arange(length)[None], "float32"),
        }
        # What is behind a prompt must not be in its sums.
        visible = visible_keys(self.model, token_ids, segment_ids, lengths)
        hidden, caches = self.model.call_with_cache(
            inputs, visible[:, None, None, :], self.model.create_caches(batch)
        )
        return last_logits(self.model, hidden, lengths), caches

    def _loop_function(self, caches, lengths, steps, tokens, uniforms, ends, controls):
        """How many steps were done, the caches, `ends`, and the results."""

        def feed(count, token_ids, caches):
            segment_ids = ops.full_like(token_ids, self.model.generated_segment)
            inputs = {
                "token_ids": token_ids,
                "segment_ids": segment_ids,
                "position_ids": ops.cast(lengths + count, "float32")[:, None],
            }
            visible = self.model.visible(token_ids, segment_ids)
            hidden, caches = self.model.call_with_cache(
                inputs, visible[:, None, None, :], caches
            )
            return self.model.logits(hidden), caches

        return go_on(
            feed, caches, tokens, steps, uniforms, ends, controls, self.vocabulary_size
        )

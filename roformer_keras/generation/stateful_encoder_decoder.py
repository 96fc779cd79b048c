"""`StatefulDecoder` of a text that an encoder has read first."""

from collections.abc import Sequence

import numpy as np

from roformer_keras.generation.options import Prompt
from roformer_keras.generation.stateful import (
    Program,
    Reading,
    StatefulDecoder,
    StatefulState,
    hidden,
)


class StatefulEncoderDecoder(StatefulDecoder):
    """Reads a text once, and decodes from what each block of the decoder sees of it.

    Args:
        encoder: `Program` of `network.write_encoder`.
        decoder: `Program` of `network.write_decoder`.
        reading: `Reading` with a `start_id`.
    """

    # Texts that were read have different lengths.
    can_join = False

    def __init__(self, encoder: Program, decoder: Program, reading: Reading):
        super().__init__(decoder, reading)
        self._encoder = encoder

    def start(
        self, prompts: Sequence[Prompt], copies: int, max_new_tokens: int
    ) -> tuple[np.ndarray, StatefulState]:
        assert self._reading.start_id is not None
        start = (self._reading.start_id,)
        first = [Prompt(start, (0,), prompt.max_new_tokens) for prompt in prompts]
        shared = self._read(prompts)
        logits, state = self._start(first, copies, max_new_tokens, shared)
        return logits, state

    def _read(self, prompts):
        """State that all steps share: the memory of each prompt, and its mask."""
        lengths = np.array([len(prompt.token_ids) for prompt in prompts])
        width = lengths.max()
        token_ids = np.zeros((len(prompts), width), "int32")
        for row, prompt in enumerate(prompts):
            token_ids[row, : lengths[row]] = prompt.token_ids
        positions = np.arange(width, dtype="float32")
        mask = hidden((token_ids != 0) | (positions == 0))[:, None, None, :]
        inputs = {
            "token_ids": token_ids,
            "position_ids": np.tile(positions, (len(prompts), 1)),
            "mask": mask,
        }
        memory = self._encoder.run(self._encoder.start(), inputs)
        # The next prompts overwrite what the encoder gave.
        shared = {name: array.copy() for name, array in memory.items()}
        return {**shared, "memory_mask": mask}

    def _prompt_inputs(self, prompts):
        inputs, lengths = super()._prompt_inputs(prompts)
        del inputs["segment_ids"]
        return inputs, lengths

    def _step_inputs(self, state, tokens):
        return {}, tokens != 0

    def _select_shared(self, state, rows):
        # Neighbours share their text as long as the rows allow it.
        before = len(state.shared["memory_mask"])
        copies = len(state.slots) // before
        texts = rows // copies
        first = texts[::copies]
        if np.array_equal(texts, np.repeat(first, copies)):
            texts = first
        if not np.array_equal(texts, np.arange(before)):
            state.shared = {name: array[texts] for name, array in state.shared.items()}

    def _rows_of_step(self, state, going):
        # Rows that share a text stay together.
        return np.arange(len(state.slots)), going

"""Decoding by a runtime other than Keras, which keeps the keys and values itself.

A step of the network is a program, such as `OpenVINOProgram`; what follows it is NumPy.
`search.py` has the searches.

Rows of a batch have the same number of keys: shorter prompts stand at the right, and a
mask hides what is left of them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roformer_keras.base.checks import Settings, choice, integer
from roformer_keras.base.types import TensorLike
from roformer_keras.base.visible_keys import visible_keys
from roformer_keras.engines.programs import Program
from roformer_keras.generation.buckets import ROWS, padded_origins, round_up_to_bucket
from roformer_keras.generation.choosing import (
    check_finite,
    choose_by_steps,
    choose_next,
)
from roformer_keras.generation.generation_config import Prompt
from roformer_keras.generation.row_state import RowState

# Added to the score of a key that is hidden.
_HIDDEN = -1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading(Settings):
    """Inputs and states of a network that a decoder must know."""

    vocabulary_size: int = integer(minimum=1)
    attention: str = choice("causal", choices=("causal", "unilm"))
    pad_segments: bool = False

    @property
    def generated_segment(self) -> int:
        return 1 if self.attention == "unilm" else 0

    def visible(self, token_ids: TensorLike, segment_ids: TensorLike) -> TensorLike:
        """True if later tokens see these, unless they are the first; bool."""
        visible = token_ids != 0
        return visible & (segment_ids != 0) if self.pad_segments else visible


@dataclasses.dataclass(kw_only=True)
class StatefulState:
    """Progress of the rows of a batch."""

    memory: Any
    rows: int
    slots: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    keys: int


class StatefulDecoder:
    """Decodes with a `Program`; it has the methods of `Decoder` that a search calls."""

    on_compile: Callable[[str], Any] | None = None
    # Whether there are `leave` and `join`.
    can_join = True

    def __init__(self, program: Program, reading: Reading):
        self._program, self._reading = program, reading

    def start(
        self, prompts: Sequence[Prompt], copies: int, max_new_tokens: int
    ) -> tuple[np.ndarray, StatefulState]:
        """Implements `Decoder.start`."""
        inputs, lengths = self._prompt_inputs(prompts)
        memory = self._program.start()
        logits = self._program.run(memory, inputs)["logits"]
        check_finite(logits)
        origins = np.repeat(np.arange(len(prompts)), copies)
        width = inputs["token_ids"].shape[1]
        mask = np.zeros((len(origins), width + max_new_tokens), "float32")
        # What the last token of a prompt sees, all others see.
        mask[:, :width] = inputs["mask"][origins, 0, -1]
        state = StatefulState(
            memory=memory,
            rows=len(origins),
            slots=origins,
            positions=lengths[origins],
            mask=mask,
            keys=width,
        )
        return logits[origins], state

    def choose(
        self, logits: np.ndarray, uniforms: np.ndarray, rows: RowState
    ) -> tuple[np.ndarray, np.ndarray, RowState]:
        """Implements `Decoder.choose`."""
        return choose_next(logits, uniforms, rows)

    def advance(
        self,
        state: StatefulState,
        tokens: np.ndarray,
        uniforms: np.ndarray,
        rows: RowState,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, RowState]:
        """Implements `Decoder.advance`."""

        def read(tokens: np.ndarray) -> np.ndarray:
            return self._step(state, tokens)

        return choose_by_steps(read, tokens, uniforms, rows)

    def room(self, state: StatefulState) -> int:
        """As `Decoder.room`: one step, after which a server may do other work."""
        return 1

    def select(self, state: StatefulState, rows: np.ndarray) -> None:
        """Implements `Decoder.select`; the memory changes with the next step."""
        state.slots, state.positions = state.slots[rows], state.positions[rows]
        state.mask = state.mask[rows]

    def pays_to_leave(self, state: StatefulState, rows: int, steps: int) -> bool:
        """Implements `Decoder.pays_to_leave`."""
        return rows < len(state.slots)

    def leave(self, state: StatefulState) -> None:
        """Frees the memory of a state but for its rows; it can only be joined then."""
        arrays = self._program.read(state.memory)
        state.memory = {name: array[state.slots] for name, array in arrays.items()}

    def join(self, states: Sequence[StatefulState]) -> StatefulState:
        """One state of the rows of several that were left."""
        keys = max(state.keys for state in states)

        def joined(parts, axis, **options):
            """The parts, the shorter ones filled up at the left of an axis."""
            filled = []
            for part in parts:
                widths = [(0, 0)] * part.ndim
                widths[axis] = keys - part.shape[axis], 0
                filled.append(np.pad(part, widths, **options))
            return np.concatenate(filled)

        arrays = {
            name: joined((state.memory[name] for state in states), 2)
            for name in states[0].memory
        }
        masks = (state.mask[:, : state.keys] for state in states)
        count = sum(len(state.slots) for state in states)
        return StatefulState(
            memory=self._program.start(arrays),
            rows=count,
            slots=np.arange(count),
            positions=np.concatenate([state.positions for state in states]),
            mask=joined(masks, 1, constant_values=_HIDDEN),
            keys=keys,
        )

    # === Helpers ===

    def _prompt_inputs(self, prompts):
        """The inputs of the prompts, shorter ones at the right; and their lengths."""
        lengths = np.array([len(prompt.token_ids) for prompt in prompts], "int32")
        width = int(lengths.max())
        token_ids = np.zeros((len(prompts), width), "int32")
        segment_ids = np.zeros_like(token_ids)
        for row, prompt in enumerate(prompts):
            token_ids[row, width - lengths[row] :] = prompt.token_ids
            segment_ids[row, width - lengths[row] :] = prompt.segment_ids
        positions = np.arange(width) - (width - lengths[:, None])
        visible = visible_keys(
            np,
            # A model of another pattern writes from left to right as well.
            "unilm" if self._reading.attention == "unilm" else "causal",
            self._reading.pad_segments,
            token_ids,
            segment_ids,
            positions,
        )
        inputs = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "position_ids": np.maximum(positions, 0).astype("float32"),
            "mask": hidden(visible),
            "rows": np.arange(len(prompts), dtype="int32"),
        }
        return inputs, lengths

    def _step(self, state: StatefulState, tokens: np.ndarray) -> np.ndarray:
        """Logits after one more token in each row."""
        if state.keys == state.mask.shape[1]:
            state.mask = np.pad(state.mask, ((0, 0), (0, state.keys)))
        count = len(state.slots)
        rows = np.arange(count)
        if count < state.rows:
            # A runtime prepares for each number of rows: once some have ended, it is
            # one of a few.
            padded = min(round_up_to_bucket(count, ROWS), state.rows)
            rows = padded_origins(rows, padded)
        tokens = tokens[rows, None].astype("int32")
        segments = np.full_like(tokens, self._reading.generated_segment)
        visible = self._reading.visible(tokens, segments)
        state.mask[rows, state.keys] = hidden(visible[:, 0])
        state.keys += 1
        mask = state.mask[rows, : state.keys]
        inputs = {
            "token_ids": tokens,
            "segment_ids": segments,
            "position_ids": state.positions[rows, None].astype("float32"),
            "mask": np.ascontiguousarray(mask)[:, None, None, :],
            "rows": state.slots[rows].astype("int32"),
        }
        logits = self._program.run(state.memory, inputs)["logits"]
        state.slots = np.arange(count)
        state.positions = state.positions + 1
        # The next step of a program may overwrite its outputs.
        return logits[:count].copy()


def hidden(visible: np.ndarray) -> np.ndarray:
    """Addend of scores: 0 where a key is visible, else `_HIDDEN`."""
    return np.where(visible, np.float32(0), np.float32(_HIDDEN))

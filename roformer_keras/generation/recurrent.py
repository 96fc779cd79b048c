"""Decoding with a state of constant size, for attention of linear cost.

A layer keeps sums over all tokens so far, and not the keys of each. So a step takes the
same time and memory however long the text is, and one program serves all lengths.
"""

import dataclasses
from typing import ClassVar

import numpy as np
from keras import ops

from roformer_keras.generation.decoder import Decoder, State, gather


@dataclasses.dataclass(kw_only=True)
class RecurrentState(State):
    """The state of a `RecurrentDecoder`."""

    # Steps of a program.
    steps: ClassVar[int] = 32
    caches: list

    @property
    def program_shape(self) -> tuple:
        return self.all_rows, 1

    def select(self, rows: int, origins: np.ndarray) -> None:
        super().select(rows, origins)
        gather(self.caches, origins)

    def keep(self, carried) -> None:
        """Takes the new caches from a program."""
        self.caches = carried


class RecurrentDecoder(Decoder):
    """Decodes a `DecoderModel` whose caches do not grow.

    Args:
        model: `DecoderModel` with attention of linear cost. Its weights are read at
            every call.

    Example:
        >>> config = roformer_keras.RoFormerConfig(
        ...     vocabulary_size=50,
        ...     num_layers=1,
        ...     num_heads=2,
        ...     hidden_dim=16,
        ...     intermediate_dim=32,
        ...     attention="causal",
        ...     attention_type="linear",
        ... )
        >>> model = roformer_keras.RoFormerCausalLM.from_roformer_config(config)
        >>> prompt = generation.Prompt((2, 17), (0, 0), max_new_tokens=4)
        >>> config = generation.GenerationConfig(method="greedy")
        >>> decoder = generation.RecurrentDecoder(model)
        >>> [[text]] = generation.decode(decoder, [prompt], config)
        >>> len(text.token_ids)
        4
    """

    def _read_prompts(self, inputs, visible):
        # Tokens after the end of a prompt must not be in its sums.
        caches = self.model.create_caches(ops.shape(inputs["token_ids"])[0])
        return self.model.call_with_cache(inputs, visible[:, None, None, :], caches)

    def _new_state(self, rows, origins, lengths, max_new_tokens, visible, caches):
        if not np.array_equal(origins, np.arange(len(lengths))):
            gather(caches, origins)
        return RecurrentState(rows=rows, lengths=lengths[origins], caches=caches)

    def _prepare(self, state):
        return state.caches, ()

    def _read_tokens(self, inputs, count, carried, constants):
        visible = self.model.visible(inputs["token_ids"], inputs["segment_ids"])
        return self.model.call_with_cache(inputs, visible[:, None, None, :], carried)

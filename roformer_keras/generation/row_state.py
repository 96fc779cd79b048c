"""The state of the rows of a batch: what each may still write."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from roformer_keras.generation.generation_config import GenerationConfig, Prompt


@dataclasses.dataclass
class RowState:
    """Options of the rows of a batch, as NumPy arrays `(rows,)`.

    Attributes:
        config: `GenerationConfig`. With `"sample"` tokens are drawn, otherwise the
            likeliest is used.
        max_left: int32. Tokens that may still be written.
        min_left: int32. Tokens to write before a stop token ends the row.
        done: bool.
        history: int32 `(rows, tokens)`, or None if they do not matter: the tokens of
            prompt and text, with -1 before shorter ones.

    Example:
        >>> config = generation.GenerationConfig()
        >>> prompt = generation.Prompt((2, 17), (0, 0), max_new_tokens=8)
        >>> generation.RowState.of_prompts(config, [prompt], copies=2).max_left
        array([8, 8], dtype=int32)
    """

    config: GenerationConfig
    max_left: np.ndarray
    min_left: np.ndarray
    done: np.ndarray
    history: np.ndarray | None = None

    @classmethod
    def of_prompts(cls, config, prompts, copies=1) -> "RowState":
        """The state before the first token, with `copies` rows for each prompt.

        Args:
            config: `GenerationConfig`.
            prompts: sequence of `Prompt`.
            copies: int. Rows for each prompt.
        """

        def rows(numbers):
            return np.repeat(np.array(numbers, "int32"), copies)

        return cls(
            config,
            rows([prompt.max_new_tokens for prompt in prompts]),
            rows([prompt.min_new_tokens for prompt in prompts]),
            np.zeros(len(prompts) * copies, bool),
            history_of(config, prompts, copies),
        )

    @classmethod
    def endless(cls, config, rows: int) -> "RowState":
        """Rows that no stop token and no maximum length ends.

        Args:
            config: `GenerationConfig`.
            rows: int.
        """
        left = np.full(rows, np.iinfo("int32").max, "int32")
        return cls(config, left, left, np.zeros(rows, bool))

    @property
    def limits(self) -> tuple:
        """The arrays: `max_left`, `min_left` and `done`."""
        return self.max_left, self.min_left, self.done

    def with_limits(self, limits) -> "RowState":
        max_left, min_left, done = limits
        return RowState(self.config, max_left, min_left, done, self.history)

    def select(self, rows) -> "RowState":
        selected = self.with_limits(array[rows] for array in self.limits)
        if self.history is not None:
            selected.history = self.history[rows]
        return selected

    def joined(self, others: Sequence["RowState"]) -> "RowState":
        """These rows, and then those of others.

        Args:
            others: sequence of `RowState`.
        """
        parts = zip(self.limits, *(other.limits for other in others), strict=True)
        joined = self.with_limits(np.concatenate(arrays) for arrays in parts)
        if self.history is not None:
            histories = (state.history for state in (self, *others))
            joined.history = right_aligned(
                [row for part in histories if part is not None for row in part]
            )
        return joined


def history_of(
    config: GenerationConfig, prompts: Sequence[Prompt], copies: int = 1
) -> np.ndarray | None:
    """`RowState.history` before the first token; arguments as in `of_prompts`."""
    if not config.limits_repetition:
        return None
    return right_aligned([p.token_ids for p in prompts for _ in range(copies)])


def right_aligned(rows: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """Ids as int32 `(rows, longest)`, with -1 before each shorter row."""
    width = max(map(len, rows))
    aligned = np.full((len(rows), width), -1, "int32")
    for row, ids in zip(aligned, rows, strict=True):
        row[width - len(ids) :] = ids
    return aligned

"""Options and results of a search. Nothing here imports a backend."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from roformer_keras.checks import Settings, choice, integer, number
from roformer_keras.errors import ConfigurationError

METHODS = ("sample", "greedy", "beam")
# Beyond it a text would take days, or more memory than any machine has.
MAX_TOKENS, MAX_TEXTS, MAX_BEAMS = 2**20, 2**20, 2**10


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions(Settings):
    """Options of drawing tokens.

    Args:
        temperature: float. Logits are divided by it before they are cut.
        top_k: int or None. Draws from so many of the likeliest tokens only.
        top_p: float. Draws from the likeliest tokens only, as many as it takes until
            they have so much probability together.

    Example:
        >>> generation.SamplingOptions(top_k=20)
        SamplingOptions(temperature=1.0, top_k=20, top_p=0.95)
    """

    temperature: float = number(1.0, above=0)
    top_k: int | None = integer(None, minimum=1)
    top_p: float = number(0.95, above=0, maximum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(SamplingOptions):
    """Options of the search for texts, and their number.

    Args:
        method: `"sample"` draws, `"greedy"` takes the likeliest token, `"beam"`
            searches for a likely text.
        num_return_sequences: int. Texts for each prompt: at most `num_beams` with
            beams, 1 if greedy.
        temperature, top_k, top_p: as in `SamplingOptions`.
        num_beams: int. Texts that a beam search follows at a time.
        length_penalty: float. The sum of log-probabilities is divided by the number of
            tokens to this power: above 0 it favours long texts.

    Raises:
        ConfigurationError: an argument breaks its rule; names it and the value.

    Example:
        >>> generation.SearchOptions(method="beam", num_beams=3).copies
        3
    """

    method: str = choice("sample", choices=METHODS)
    num_return_sequences: int = integer(1, minimum=1, maximum=MAX_TEXTS)
    num_beams: int = integer(4, minimum=1, maximum=MAX_BEAMS)
    # Lengths to a power beyond 50 overflow.
    length_penalty: float = number(0.0, minimum=0, maximum=50)

    def _check_together(self):
        super()._check_together()
        limits = {
            "greedy": (1, "use method='sample' or method='beam'"),
            "beam": (self.num_beams, "raise num_beams"),
        }
        maximum, hint = limits.get(self.method, (None, None))
        if maximum is not None and self.num_return_sequences > maximum:
            raise ConfigurationError(
                f"method={self.method!r} gives at most {maximum} for each prompt, got "
                f"num_return_sequences={self.num_return_sequences}; {hint}"
            )

    @property
    def copies(self) -> int:
        """Rows that a prompt takes: texts, or beams."""
        return self.num_beams if self.method == "beam" else self.num_return_sequences


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig(SearchOptions):
    """Options of choosing tokens and of ending a text.

    Args:
        method, num_return_sequences: as in `SearchOptions`.
        temperature, top_k, top_p: as in `SamplingOptions`.
        num_beams, length_penalty: as in `SearchOptions`.
        stop_ids: ids that end a text once it is long enough.
        suppressed_stop_ids: ids that are not written before the text is long enough.
        seed: int. The same seed gives the same texts.

    Raises:
        ConfigurationError: an argument breaks its rule; names it and the value.

    Example:
        >>> config = generation.GenerationConfig(top_k=20, seed=1)
        >>> config.method, config.top_p
        ('sample', 0.95)
    """

    stop_ids: tuple[int, ...] = ()
    suppressed_stop_ids: tuple[int, ...] = ()
    seed: int = integer(0, minimum=0, maximum=2**64 - 1)


@dataclasses.dataclass(frozen=True)
class Prompt:
    """The ids that a text continues or answers, and how long it may become.

    Attributes:
        token_ids: ids, at least one.
        segment_ids: as many ids.
        max_new_tokens: int, at least 1.
        min_new_tokens: int. A stop token does not end a shorter text.

    Example:
        >>> prompt = generation.Prompt((2, 17, 29), (0, 0, 0), max_new_tokens=32)
        >>> prompt.min_new_tokens
        0
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    max_new_tokens: int
    min_new_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class GeneratedText:
    """A text that a search has written.

    Attributes:
        token_ids: the new ids, including the stop token.
        score: float. The sum of their log-probabilities; for beams divided by the
            length to the power of the penalty.

    Example:
        >>> generation.GeneratedText(token_ids=[17, 29, 3], score=-2.5)
        GeneratedText(token_ids=[17, 29, 3], score=-2.5)
    """

    token_ids: list[int]
    score: float


@dataclasses.dataclass
class RowState:
    """Options of the rows of a batch, as NumPy arrays `(rows,)`.

    Attributes:
        config: `GenerationConfig`. With `"sample"` tokens are drawn, otherwise the
            likeliest is used.
        max_left: int32. Tokens that may still be written.
        min_left: int32. Tokens to write before a stop token ends the row.
        done: bool.

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
        return RowState(self.config, *limits)

    def select(self, rows) -> "RowState":
        return self.with_limits(array[rows] for array in self.limits)

    def joined(self, others: Sequence["RowState"]) -> "RowState":
        """These rows, and then those of others.

        Args:
            others: sequence of `RowState`.
        """
        parts = zip(self.limits, *(other.limits for other in others), strict=True)
        return self.with_limits(np.concatenate(arrays) for arrays in parts)

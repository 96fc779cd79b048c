"""What a user may ask of a decoder, checked before anything is computed."""

import dataclasses

from roformer_keras.checks import check_choice, check_integer, check_number
from roformer_keras.errors import ConfigurationError

__all__ = ["METHODS", "GeneratedText", "GenerationConfig", "Prompt"]

METHODS = ("sample", "greedy", "beam")
# A program has room for so many ids of each kind.
MOST_STOP_IDS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How tokens are chosen, and when a text ends.

    Args:
        method: `"sample"` draws, `"greedy"` takes the likeliest token, `"beam"`
            searches for a likely text.
        num_return_sequences: int, at least 1. Texts for each prompt; with beams at most
            as many as beams, greedily one.
        temperature: float above 0. Logits are divided by it before they are cut.
        top_k: int, at least 1, or None. Only so many of the likeliest tokens are drawn.
        top_p: float in (0, 1]. Only the likeliest tokens of so much probability
            together are drawn, the one that crosses it included.
        num_beams: int, at least 1.
        length_penalty: float, at least 0. The sum of log-probabilities is divided by
            the number of tokens to this power: above 0 it favours long texts.
        stop_ids: ids, at most 8. A text ends with the first of them, once it is long
            enough.
        suppressed_stop_ids: ids, at most 8. Not written at all before the text is long
        enough.
        seed: int from 0 to 2 ** 64 - 1. The same seed gives the same texts.

    Raises:
        ConfigurationError: an argument breaks its rule; names it and the value.
    """

    method: str = "sample"
    num_return_sequences: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    num_beams: int = 4
    length_penalty: float = 0.0
    stop_ids: tuple[int, ...] = ()
    suppressed_stop_ids: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self):
        check_choice("method", self.method, METHODS)
        check_integer("num_return_sequences", self.num_return_sequences, 1)
        check_integer("num_beams", self.num_beams, 1)
        check_integer("seed", self.seed, 0, 2**64 - 1)
        if self.top_k is not None:
            check_integer("top_k", self.top_k, 1)
        check_number("temperature", self.temperature, above=0)
        check_number("top_p", self.top_p, above=0, maximum=1)
        # Beyond it lengths to this power would not be numbers any more.
        check_number("length_penalty", self.length_penalty, minimum=0, maximum=50)
        for name in ("stop_ids", "suppressed_stop_ids"):
            if len(getattr(self, name)) > MOST_STOP_IDS:
                raise ConfigurationError(
                    f"at most {MOST_STOP_IDS} stop tokens can be given, got "
                    f"{len(getattr(self, name))}"
                )
        most = {"greedy": 1, "beam": self.num_beams}.get(self.method)
        if most is not None and self.num_return_sequences > most:
            raise ConfigurationError(
                f"method={self.method!r} gives at most {most} for each prompt, got "
                f"num_return_sequences={self.num_return_sequences}; "
                + (
                    "raise num_beams"
                    if self.method == "beam"
                    else "use method='sample' or method='beam'"
                )
            )

    @property
    def copies(self) -> int:
        """Rows that a prompt takes: texts, or beams."""
        return self.num_beams if self.method == "beam" else self.num_return_sequences


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What is given to be gone on with.

    Attributes:
        token_ids: ids, at least one.
        segment_ids: as many ids.
        max_new_tokens: int, at least 1.
        min_new_tokens: int. Before so many a stop token does not end the text.
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    max_new_tokens: int
    min_new_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class GeneratedText:
    """What was written for a prompt.

    Attributes:
        token_ids: the new ids, the stop token included.
        score: float. The sum of their log-probabilities; for beams divided by
            length to the power of the penalty.
    """

    token_ids: list[int]
    score: float

"""Options and results of a search. Nothing here imports a backend."""

import dataclasses

from roformer_keras.base.checks import Only, Settings, choice, integer, number
from roformer_keras.base.errors import refuse

METHODS = ("sample", "greedy", "beam")
# A larger number would take days, or more memory than any machine has.
MAX_TOKENS, MAX_TEXTS, MAX_BEAMS = 2**20, 2**20, 2**10
_BEAMS = 4
_DRAWN = Only("method='sample'", lambda method: method == "sample", "method")
_SEARCHED = Only("method='beam'", lambda method: method == "beam", "method")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions(Settings):
    """Options of choosing the next token.

    Args:
        temperature: float. Logits are divided by it before they are cut.
        top_k: int or None. Draws from so many of the likeliest tokens only.
        top_p: float. Draws from the likeliest tokens only, as many as it takes until
            they have so much probability together.
        repetition_penalty: float. Positive logits of tokens that are in the prompt or
            the text are divided by it, negative ones multiplied; 1 for none.
        no_repeat_ngram_size: int. A sequence of so many tokens does not come twice in
            prompt and text; 0 for any.

    Example:
        >>> generation.SamplingOptions(top_k=20).top_p
        0.95
    """

    temperature: float = number(1.0, above=0, only=_DRAWN)
    top_k: int | None = integer(None, minimum=1, only=_DRAWN)
    top_p: float = number(0.95, above=0, maximum=1, only=_DRAWN)
    repetition_penalty: float = number(1.0, above=0, maximum=1000)
    no_repeat_ngram_size: int = integer(0, minimum=0, maximum=MAX_TOKENS)

    @property
    def method(self) -> str | None:
        """The method of a sampler; a subclass has others."""
        return "sample"

    @property
    def limits_repetition(self) -> bool:
        """True if the next token depends on which tokens there are."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(SamplingOptions):
    """Options of the search for texts, and their number.

    Args:
        method: `"sample"` draws, `"greedy"` takes the likeliest token, `"beam"`
            searches for a likely text; `"beam"` by default with more than one beam,
            else `"sample"`. `temperature`, `top_k` and `top_p` are for `"sample"`.
        num_return_sequences: int. Texts for each prompt: at most `num_beams` with
            beams, 1 if greedy.
        temperature, top_k, top_p, repetition_penalty, no_repeat_ngram_size: as in
            `SamplingOptions`.
        num_beams: int. Texts that a beam search follows at a time, by default 4; 1
            without a method is no beam search.
        length_penalty: float. The sum of log-probabilities is divided by the number of
            tokens to this power: above 0 it favours long texts.

    Raises:
        ConfigurationError: an argument breaks its rule; names it and the value.

    Example:
        >>> generation.SearchOptions(num_beams=3).method
        'beam'
    """

    method: str | None = choice(None, choices=(None, *METHODS))
    num_return_sequences: int = integer(1, minimum=1, maximum=MAX_TEXTS)
    num_beams: int | None = integer(None, minimum=1, maximum=MAX_BEAMS, only=_SEARCHED)
    # Lengths to a power beyond 50 overflow.
    length_penalty: float = number(0.0, minimum=0, maximum=50, only=_SEARCHED)

    def _check_together(self) -> None:
        super()._check_together()
        method = self.method or ("beam" if (self.num_beams or 1) > 1 else "sample")
        beams = self.num_beams
        if method == "beam":
            beams = beams or _BEAMS
        elif beams == 1:
            beams = None
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "num_beams", beams)
        limits = {
            "greedy": (1, "use method='sample' or method='beam'"),
            "beam": (beams, "raise num_beams"),
        }
        maximum, hint = limits.get(method, (None, ""))
        refuse(
            maximum is not None and self.num_return_sequences > maximum,
            f"method={self.method!r} gives at most {maximum} for each prompt, got "
            f"num_return_sequences={self.num_return_sequences}; {hint}",
        )

    @property
    def copies(self) -> int:
        """Rows that a prompt takes: texts, or beams."""
        return self.num_beams or self.num_return_sequences


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig(SearchOptions):
    """Options of choosing tokens and of ending a text.

    Args:
        method, num_return_sequences: as in `SearchOptions`.
        temperature, top_k, top_p, repetition_penalty, no_repeat_ngram_size: as in
            `SamplingOptions`.
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

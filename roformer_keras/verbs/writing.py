"""Texts that continue or answer prompts, and sentences like others."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from roformer_keras.base.checks import choice, integer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.generation.generation_config import SamplingOptions, SearchOptions
from roformer_keras.verbs import loading as sources
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.verb import LoadedVerb, Verb, count


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingVerb(Verb):
    """Options of the verbs that write texts.

    With a seed, the texts of a row depend on it and on the number of the row alone.
    Subclasses name a method of models in `method_name`, which takes their options.

    Args:
        seed: the same seed gives the same texts.
        batch_size: texts that are computed, and written, together.
    """

    seed: int | None = integer(None, minimum=0, maximum=2**64 - 1)
    batch_size: int = count(64)

    column = "outputs"
    method_name: ClassVar[str]

    def arguments(self) -> dict[str, Any]:
        """The arguments of the method."""
        return self.options()

    @property
    def texts_of_a_row(self) -> int:
        """Texts that are written together for one row."""
        raise NotImplementedError

    @property
    def window(self) -> int:
        return max(1, self.batch_size // self.texts_of_a_row)

    def prompt(self, model: Any, text: str) -> Any:
        """A text as the model continues or answers it."""
        return text

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        from roformer_keras.generation.prompts import LENGTHS, as_prompt, check_lengths
        from roformer_keras.tasks.labels import rounded

        model, arguments = loaded.model, self.arguments()
        lengths = {name: arguments[name] for name in LENGTHS if name in arguments}
        # These are not the error of a row.
        check_lengths(**lengths)

        def answer(rows, numbers, **more):
            written = getattr(model, self.method_name)(
                [text for (text,) in rows],
                **arguments,
                first_number=list(map(int, numbers)),
                verbose=0,
                **more,
            )
            return {
                "outputs": [
                    [{"text": one.output, "score": rounded(one.score)} for one in texts]
                    for texts in written
                ]
            }

        return LoadedVerb(
            lambda row: as_prompt(model, self.prompt(model, row[0]), **lengths),
            answer,
            self.fields,
            remark=self.remark(loaded),
        )

    def remark(self, loaded: LoadedSource) -> str:
        """A sentence on the class of the model, if it is a guess."""
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(SearchOptions, WritingVerb):
    """Continuations of prompts.

    Args:
        source: checkpoint (default: roformer-gpt-char; with --unilm or --model
            RoFormerSim roformer-sim-char).
        model: class to load, if the source does not say it.
        unilm: the model sees the prompt in both directions, and writes a second text.
        max_length: maximum of tokens of prompt and text together (default: 256).
        max_new_tokens: maximum of tokens of the text (default of RoFormerSim: 64).
        min_length: tokens, counted as those of --max-length, before which a text does
            not end.
        min_new_tokens: tokens of the text, likewise.
        stop_tokens: token that ends a text, such as 。 (default: [SEP]); may be
            repeated.
    """

    source: sources.Path = ""
    model: str | None = choice(None, choices=(None, "RoFormerCausalLM", "RoFormerSim"))
    unilm: bool = False
    max_length: int | None = count(None)
    max_new_tokens: int | None = count(None)
    min_length: int = integer(0)
    min_new_tokens: int = integer(0)
    stop_tokens: tuple[str | int, ...] | None = dataclasses.field(
        default=None, metadata={"flag": "stop", "repeated": True}
    )

    name = method_name = "generate"
    piece_rows = 256
    takes = (sources.GENERATOR, "RoFormerSim", "RoFormerCausalLM")
    otherwise = "RoFormerCausalLM"
    loading: ClassVar[Mapping[str, str]] = {"name": "model", "unilm": "unilm"}

    def _check_together(self):
        super()._check_together()
        if "" in (self.stop_tokens or ()):
            raise ConfigurationError("a stop token must be in the vocabulary, got ''")
        if not self.source:
            is_sim = self.unilm or self.model == "RoFormerSim"
            source = "roformer-sim-char" if is_sim else "roformer-gpt-char"
            object.__setattr__(self, "source", source)

    @property
    def texts_of_a_row(self) -> int:
        return self.copies

    def arguments(self) -> dict[str, Any]:
        return {**self.options(*self.loading.values()), "return_scores": True}

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        def stream(row):
            return loaded.model.stream(row[0], **self.stream_arguments())

        return super().use(loaded)._replace(stream=stream)

    def stream_arguments(self) -> dict[str, Any]:
        """The arguments of the method `stream`."""
        return self.options(*self.loading.values(), "batch_size")

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        return loaded.name in cls.takes and not Paraphrase.is_for(loaded)

    def remark(self, loaded: LoadedSource) -> str:
        if not loaded.is_guess:
            return ""
        return (
            f"{self.source} does not say that it was trained to write; taking it for a "
            "RoFormerCausalLM (change it with --model or --unilm)"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paraphrase(SamplingOptions, WritingVerb):
    """Similar sentences, the nearest first.

    Args:
        n: sentences that are written for each.
        k: maximum of sentences that are kept, the nearest.
        masked_positions: tokens to replace; 1 is the first.
        max_length: maximum of tokens of a sentence and a similar one together.
        max_new_tokens: maximum of tokens of a similar sentence (default: 64).
        seed: the same seed gives the same sentences.
        batch_size: sentences that are computed, and written, together.
    """

    source: sources.Path = "roformer-sim-char"
    n: int = count(100)
    k: int = count(20)
    masked_positions: tuple[int, ...] = ()
    max_length: int | None = count(None)
    max_new_tokens: int | None = count(None)
    batch_size: int = count(128)

    name = method_name = "paraphrase"
    piece_rows = 16
    takes = (sources.GENERATOR,)
    otherwise = "RoFormerSim"

    @property
    def texts_of_a_row(self) -> int:
        return self.n

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        if loaded.name == sources.GENERATOR:
            return loaded.model.has_vectors
        return loaded.name == "RoFormerSim"

    def prompt(self, model: Any, text: str) -> Any:
        from roformer_keras.generation.paraphrase import masked

        return masked(model, text, self.masked_positions)

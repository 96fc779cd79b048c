"""Texts that continue or answer prompts."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar

from roformer_keras.base.checks import choice, integer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.generation.generation_config import SearchOptions
from roformer_keras.verbs.loading import GENERATOR, LoadedSource, Path
from roformer_keras.verbs.options import count
from roformer_keras.verbs.paraphrase import Paraphrase
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Texts
from roformer_keras.verbs.surfaces import Inputs, Route
from roformer_keras.verbs.writing import WritingVerb, written_output


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(SearchOptions, WritingVerb):
    """Write continuations of prompts.

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

    source: Path = ""
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
    inputs = Inputs(
        file="prompts, one a line; - is standard input",
        typed="prompt to take instead of a file; may be repeated",
    )
    output = written_output("prompt, text and score")
    route = Route(
        "/v1/completions",
        "prompt",
        style="completions",
        left_out=(
            "model",
            "unilm",
            "method",
            "num_beams",
            "length_penalty",
            "max_length",
            "min_length",
            "min_new_tokens",
        ),
        renamed={
            "max_new_tokens": "max_tokens",
            "num_return_sequences": "n",
            "stop_tokens": "stop",
        },
        ability="write",
    )
    examples = (
        "generate --text 床前明月光，",
        "generate --text 春风 --num-return-sequences 3 --top-p 0.8 --seed 1",
        "generate --source roformer-sim-char --text 他的军队被打败，逃回了京城。 "
        "--method beam",
    )
    piece_rows = 256
    takes = (GENERATOR, "RoFormerSim", "RoFormerCausalLM")
    otherwise = "RoFormerCausalLM"
    loading: ClassVar[Mapping[str, str]] = {"name": "model", "unilm": "unilm"}
    sample_options: ClassVar[Mapping[str, object]] = {"max_new_tokens": 120}

    def _check_together(self) -> None:
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

    def arguments(self) -> dict[str, object]:
        return {**self.options(*self.loading.values()), "return_scores": True}

    def start(self, loaded: LoadedSource) -> None:
        from roformer_keras.generation.prompts import stop_ids_of

        super().start(loaded)
        stop_ids_of(loaded.model, self.stop_tokens)

    def count_tokens(self, loaded: LoadedSource, row: Texts) -> list[int]:
        from roformer_keras.generation.prompts import as_ids

        return [len(as_ids(loaded.model, str(row[0])))]

    def samples(self, loaded: LoadedSource, text: str) -> list[list[Texts]]:
        return [[(text,)]]

    def stream_arguments(self) -> dict[str, object]:
        """The arguments of the method `stream`."""
        return self.options(*self.loading.values(), "batch_size")

    @property
    def writes_pieces(self) -> bool:
        return self.num_return_sequences == 1 and self.method != "beam"

    def stream(self, loaded: LoadedSource, row: Texts) -> Iterator[str]:
        pieces: Iterator[str] = loaded.model.stream(row[0], **self.stream_arguments())
        return pieces

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

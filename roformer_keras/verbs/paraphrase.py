"""Sentences like others."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from roformer_keras.generation.generation_config import SamplingOptions
from roformer_keras.verbs.loading import GENERATOR, LoadedSource, Path
from roformer_keras.verbs.options import count
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Texts
from roformer_keras.verbs.surfaces import Cost, Inputs, Route
from roformer_keras.verbs.writing import WritingVerb, written_output


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Paraphrase(SamplingOptions, WritingVerb):
    """Find similar sentences.

    Args:
        n: sentences that are written for each.
        k: maximum of sentences that are kept, the nearest.
        masked_positions: tokens to replace; 1 is the first.
        max_length: maximum of tokens of a sentence and a similar one together.
        max_new_tokens: maximum of tokens of a similar sentence (default: 64).
        seed: the same seed gives the same sentences.
        batch_size: sentences that are computed, and written, together.
    """

    source: Path = "roformer-sim-char"
    n: int = count(100)
    k: int = count(20)
    masked_positions: tuple[int, ...] = ()
    max_length: int | None = count(None)
    max_new_tokens: int | None = count(None)
    batch_size: int = count(128)

    name = method_name = "paraphrase"
    inputs = Inputs(
        file="sentences, one a line; - is standard input",
        typed="sentence to take instead of a file; may be repeated",
    )
    output = written_output("sentence, similar sentence and cosine")
    route = Route(
        "/paraphrase",
        answers="paraphrases",
        left_out=("masked_positions", "max_length"),
        renamed={"max_new_tokens": "max_tokens"},
        changes={
            "n": {"default": 20, "le": 1000},
            "k": {"default": 10, "le": 1000},
            "max_new_tokens": {"default": 64},
            "temperature": {"le": 100},
            "seed": {"le": 2**63 - 1},
        },
        shown={"score": "similarity"},
    )
    examples = ("paraphrase --text 学习了又时常温习，不是很愉快吗？ --n 20 --k 5",)
    piece_rows = 16
    takes = (GENERATOR,)
    otherwise = "RoFormerSim"
    sample_options: ClassVar[Mapping[str, object]] = {
        "n": 20,
        "k": 10,
        "max_new_tokens": 64,
    }

    @property
    def texts_of_a_row(self) -> int:
        return self.n

    @property
    def cost(self) -> Cost:
        # A batch of several rows is hardly faster.
        return dataclasses.replace(super().cost, together="row")

    def samples(self, loaded: LoadedSource, text: str) -> list[list[Texts]]:
        return [[(text * 5,)]]

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        if loaded.name == GENERATOR:
            return bool(loaded.model.has_vectors)
        return loaded.name == "RoFormerSim"

    def prompt(self, loaded: LoadedSource, text: str) -> str | list[int]:
        from roformer_keras.generation.paraphrase import masked

        prompt: str | list[int] = masked(loaded.model, text, self.masked_positions)
        return prompt

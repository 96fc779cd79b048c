"""Vectors of texts, and cosines of pairs of them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from roformer_keras.verbs import loading as sources
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.verb import LoadedVerb, ReadingVerb, count, dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorVerb(ReadingVerb):
    """Options of the verbs that compute vectors.

    Args:
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned
            encoder or a RoFormerSim, the one that was saved).
    """

    source: sources.Path = "roformer-sim-char"
    max_length: int | None = count(None)

    takes: ClassVar[tuple[str, ...]] = ("RoFormerSentenceEncoder",)
    loading: ClassVar[Mapping[str, str]] = {"max_length": "max_length"}

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        if loaded.name == sources.GENERATOR:
            return loaded.model.has_vectors
        return loaded.name in (*cls.takes, "RoFormerSim", "RoFormerBackbone")

    def encoder(self, loaded: LoadedSource, **options: Any) -> Callable:
        """A function from a list of texts to their vectors."""
        options |= {"verbose": 0, **self.computing}
        if loaded.name in self.takes:
            options["max_length"] = self.max_length
            return lambda texts: loaded.model.encode(texts, **options)
        length = getattr(loaded.model, "max_length", 512)
        options["max_length"] = self.max_length or length
        if not hasattr(loaded.model, "encode"):
            from roformer_keras.models import embedding

            return lambda texts: embedding.embed(
                loaded.model, loaded.tokenizer, texts, **options
            )
        # Always of length 1.
        options.pop("normalize", None)
        return lambda texts: loaded.model.encode(texts, **options)

    def check_row(self, loaded: LoadedSource, row: Any) -> None:
        """Raises ConfigurationError for texts that a fine-tuned encoder refuses."""
        if loaded.tuned is not None:
            from roformer_keras.tables.texts import as_texts

            as_texts([row], (len(self.fields),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(VectorVerb):
    """Vectors of texts.

    Args:
        normalize: keep the length of the vectors, instead of 1.
        dtype: bfloat16 is faster for many texts where the processor has it, and less
            exact (default: float32).
    """

    normalize: bool = True
    dtype: str | None = dtype()

    name = "embed"
    column = "vector"
    loading: ClassVar[Mapping[str, str]] = {**VectorVerb.loading, "dtype": "dtype"}

    @property
    def window(self) -> int:
        return 4096

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        encode = self.encoder(loaded, normalize=self.normalize)
        return LoadedVerb(
            lambda row: self.check_row(loaded, row),
            lambda rows, numbers: {"vector": encode([text for (text,) in rows])},
            self.fields,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity(VectorVerb):
    """Cosines of pairs of texts."""

    name = "similarity"
    fields = ("first", "second")
    column = "similarity"
    otherwise = "RoFormerSim"

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        from roformer_keras.search.cosines import pair_cosines
        from roformer_keras.tasks.labels import rounded

        encode = self.encoder(loaded)

        def check(row):
            self.check_row(loaded, row)
            if loaded.name == "RoFormerSim":
                for text in row:
                    loaded.model.check_text(text)

        def answer(rows, numbers):
            cosines = pair_cosines(encode, *zip(*rows, strict=True))
            return {"similarity": list(map(rounded, cosines))}

        return LoadedVerb(check, answer, self.fields)

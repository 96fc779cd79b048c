"""The base classes of verbs that read texts or compute vectors."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from roformer_keras.base.checks import integer
from roformer_keras.verbs.loading import GENERATOR, LoadedSource, Path
from roformer_keras.verbs.options import count
from roformer_keras.verbs.verb import Verb


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingVerb(Verb):
    """Options of the verbs that read texts and write none.

    Args:
        batch_tokens: maximum of tokens of a batch, padding included.
    """

    batch_tokens: int | None = integer(None, minimum=1)

    @property
    def computing(self) -> dict[str, Any]:
        """Arguments of the methods of models that say how they compute."""
        if self.batch_tokens is None:
            return {"engine": self.engine}
        return {"engine": self.engine, "batch_tokens": self.batch_tokens}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorVerb(ReadingVerb):
    """Options of the verbs that compute vectors.

    Args:
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned
            encoder or a RoFormerSim, the one that was saved).
    """

    source: Path = "roformer-sim-char"
    max_length: int | None = count(None)

    takes: ClassVar[tuple[str, ...]] = ("RoFormerSentenceEncoder",)
    loading: ClassVar[Mapping[str, str]] = {"max_length": "max_length"}

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        if loaded.name == GENERATOR:
            return bool(loaded.model.has_vectors)
        return loaded.name in (*cls.takes, "RoFormerSim", "RoFormerBackbone")

    def encoder(
        self, loaded: LoadedSource, **options: Any
    ) -> Callable[[Sequence[str]], Any]:
        """A function from a list of texts to their vectors."""
        options |= {"verbose": 0, **self.computing}
        if loaded.name in VectorVerb.takes:
            options["max_length"] = self.max_length
            return lambda texts: loaded.model.encode(texts, **options)
        length = getattr(loaded.model, "max_length", 512)
        options["max_length"] = self.max_length or length
        if not hasattr(loaded.model, "encode"):
            from roformer_keras.models.embedding import embed

            return lambda texts: embed(loaded.model, loaded.tokenizer, texts, **options)
        # Always of length 1.
        options.pop("normalize", None)
        return lambda texts: loaded.model.encode(texts, **options)

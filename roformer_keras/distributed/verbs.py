"""What a worker computes: settings that can be sent to it, and the loaded model.

Nothing here imports a backend before a model is loaded.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from roformer_keras.errors import ConfigurationError

Row = tuple[str, ...]


class LoadedVerb(NamedTuple):
    """A model, and how it answers rows of texts.

    Attributes:
        check: raises ConfigurationError for a row that the model cannot answer.
        answer: function from rows to columns: values by name, one for each row.
    """

    check: Callable[[Row], Any]
    answer: Callable[[list[Row]], Mapping[str, Sequence]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """Settings of a verb; `load` is called once in each worker.

    Args:
        source: of the model, which every worker can read.
        batch_tokens: int or None. Maximum tokens of a batch, padding included.
    """

    source: Any
    batch_tokens: int | None = None

    @property
    def _batches(self) -> dict[str, Any]:
        if self.batch_tokens is None:
            return {}
        return {"batch_tokens": self.batch_tokens}

    def load(self) -> LoadedVerb:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Verb):
    """Vectors, as the command `embed` computes them."""

    max_length: int | None = None
    normalize: bool = True
    dtype: str | None = None

    def load(self) -> LoadedVerb:
        from roformer_keras.models.embedding import embed
        from roformer_keras.tasks import sources

        encoder = sources.load_sentence_encoder(
            self.source, self.max_length, None, None, self.dtype
        )
        if encoder is None:
            tokenizer = sources.load_tokenizer(self.source)
            model = sources.load_encoder(self.source, None, self.dtype)
            length = 512 if self.max_length is None else self.max_length

        def answer(rows):
            texts = [text for (text,) in rows]
            options = {"normalize": self.normalize, "verbose": 0, **self._batches}
            if encoder is not None:
                return {"vector": encoder.encode(texts, **options)}
            return {"vector": embed(model, tokenizer, texts, length, **options)}

        return LoadedVerb(lambda row: None, answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity(Verb):
    """Cosines of pairs, as the command `similarity` computes them."""

    max_length: int | None = None

    def load(self) -> LoadedVerb:
        from roformer_keras.data.vectors import pair_cosines
        from roformer_keras.tasks import sources
        from roformer_keras.tasks.labels import rounded

        model = sources.load_sentence_encoder(self.source, self.max_length, None, None)
        options: dict[str, Any] = {"verbose": 0, **self._batches}

        def check(row):
            return None

        if model is None:
            model = sources.load_sim(self.source)
            options["max_length"] = self.max_length or 512

            def check(row):
                for text in row:
                    model.check_text(text)

        def answer(rows):
            cosines = pair_cosines(
                lambda texts: model.encode(texts, **options), *zip(*rows, strict=True)
            )
            return {"similarity": list(map(rounded, cosines))}

        return LoadedVerb(check, answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(Verb):
    """Answers of a fine-tuned model, as the command `predict` gives them."""

    def load(self) -> LoadedVerb:
        from roformer_keras.training.results import load_finetuned

        tuned = load_finetuned(self.source)
        if tuned.task.has_choices:
            raise ConfigurationError(
                "predict on Ray answers rows of texts, and this task needs rows with "
                "choices: use roformer-keras predict"
            )

        def answer(rows):
            lines = tuned.task.to_json(rows, **self._batches)
            return {name: [line[name] for line in lines] for name in lines[0]}

        return LoadedVerb(lambda row: tuned.check_rows([row]), answer)

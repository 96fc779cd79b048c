"""Verbs of workers: settings that can be sent to them, and the loaded model.

Nothing here imports a backend before a model is loaded.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from roformer_keras.errors import ConfigurationError

Row = tuple[str, ...]


class LoadedVerb(NamedTuple):
    """A model, and how it answers rows of texts.

    Attributes:
        check: raises ConfigurationError for a row that the model cannot answer.
        answer: function from rows, and the number of each in the whole job, to columns:
            values by name, one for each row.
        fields: names of the texts of a row, if the model knows them.
    """

    check: Callable[[Row], Any]
    answer: Callable[[list[Row], Sequence[int]], Mapping[str, Sequence]]
    fields: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """Settings of a verb; `load` is called once in each worker.

    Args:
        source: of the model, which every worker can read.
        config, vocabulary: files that the source lacks, or None.
        batch_tokens: int or None. Maximum tokens of a batch, padding included.

    Attributes:
        fields: names of the texts of a row, unless others are given; empty if only the
            model knows.
        column: name of the answers; empty if only the model knows.
        piece_rows: rows that a worker answers, and writes, together.
    """

    source: Any
    config: str | None = None
    vocabulary: str | None = None
    batch_tokens: int | None = None

    fields: ClassVar[tuple[str, ...]] = ("text",)
    column: ClassVar[str] = ""
    piece_rows: ClassVar[int] = 2048

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

    column = "vector"

    def load(self) -> LoadedVerb:
        from roformer_keras.models.embedding import embed
        from roformer_keras.tasks import sources

        encoder = sources.load_sentence_encoder(
            self.source, self.max_length, self.config, self.vocabulary, self.dtype
        )
        if encoder is None:
            tokenizer = sources.load_tokenizer(self.source, self.vocabulary)
            model = sources.load_encoder(self.source, self.config, self.dtype)
            length = 512 if self.max_length is None else self.max_length

        def answer(rows, numbers):
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

    fields = ("first", "second")
    column = "similarity"

    def load(self) -> LoadedVerb:
        from roformer_keras.data.vectors import pair_cosines
        from roformer_keras.tasks import sources
        from roformer_keras.tasks.labels import rounded

        model = sources.load_sentence_encoder(
            self.source, self.max_length, self.config, self.vocabulary
        )
        options: dict[str, Any] = {"verbose": 0, **self._batches}

        def check(row):
            return None

        if model is None:
            model = sources.load_sim(self.source, self.config, self.vocabulary)
            options["max_length"] = self.max_length or 512

            def check(row):
                for text in row:
                    model.check_text(text)

        def answer(rows, numbers):
            cosines = pair_cosines(
                lambda texts: model.encode(texts, **options), *zip(*rows, strict=True)
            )
            return {"similarity": list(map(rounded, cosines))}

        return LoadedVerb(check, answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(Verb):
    """Answers of a fine-tuned model, as the command `predict` gives them."""

    fields = ()

    def load(self) -> LoadedVerb:
        from roformer_keras.data.files import text_names
        from roformer_keras.training.results import load_finetuned

        tuned = load_finetuned(self.source)
        if tuned.task.has_choices:
            raise ConfigurationError(
                "predict on Ray answers rows of texts, and this task needs rows with "
                "choices: use roformer-keras predict"
            )

        def answer(rows, numbers):
            lines = tuned.task.to_json(rows, **self._batches)
            return {name: [line[name] for line in lines] for name in lines[0]}

        count = tuned.text_count
        fields = tuple(tuned.fields[:count]) or text_names(count)
        return LoadedVerb(lambda row: tuned.check_rows([row]), answer, fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing(Verb):
    """Base of the verbs that write texts.

    Args:
        options: of the method of the model.
        seed: int or None. With one, the texts of a row depend on it and on the number
            of the row, and neither on the worker nor on the batch.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int | None = None

    column = "outputs"

    def _write(self, method, rows, numbers):
        from roformer_keras.tasks.labels import rounded

        written = method(
            [text for (text,) in rows],
            **self.options,
            seed=self.seed,
            first_number=list(map(int, numbers)),
            verbose=0,
        )
        return {
            "outputs": [
                [{"text": one.output, "score": rounded(one.score)} for one in found]
                for found in written
            ]
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Writing):
    """Continuations of prompts, as the command `generate` writes them.

    Args:
        model, unilm: as in `tasks.sources.load_writer`.
        options: of `TextGeneration.generate`, `num_return_sequences` among them.
    """

    model: str | None = None
    unilm: bool = False

    piece_rows = 256

    def load(self) -> LoadedVerb:
        from roformer_keras.tasks import sources

        model = sources.load_writer(
            self.source, self.model, self.unilm, self.config, self.vocabulary
        )
        names = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")
        given = {name: self.options[name] for name in names if name in self.options}
        # These are not the error of a row.
        model.check_lengths(**given)

        def answer(rows, numbers):
            def method(texts, **options):
                return model.generate(texts, return_scores=True, **options)

            return self._write(method, rows, numbers)

        return LoadedVerb(lambda row: model.as_prompt(row[0], **given), answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paraphrase(Writing):
    """Similar sentences, as the command `paraphrase` finds them.

    Args:
        options: of `Paraphrasing.paraphrase`.
    """

    piece_rows = 16

    def load(self) -> LoadedVerb:
        from roformer_keras.tasks import sources

        model = sources.load_paraphraser(self.source, self.config, self.vocabulary)
        names = ("max_length", "max_new_tokens")
        given = {name: self.options[name] for name in names if name in self.options}
        model.check_lengths(**given)
        masked = self.options.get("masked_positions", ())

        def answer(rows, numbers):
            return self._write(model.paraphrase, rows, numbers)

        return LoadedVerb(
            lambda row: model.as_prompt(model.masked(row[0], masked), **given), answer
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMask(Verb):
    """The likeliest tokens for masks, as the command `fill-mask` finds them."""

    top_k: int = 5

    column = "masks"

    def load(self) -> LoadedVerb:
        from roformer_keras.models import RoFormerMaskedLM
        from roformer_keras.models.fill_mask import fill_mask
        from roformer_keras.tasks import sources

        tokenizer = sources.load_tokenizer(self.source, self.vocabulary)
        model = RoFormerMaskedLM.from_preset(
            self.source, config=self.config, output_activation=None
        )

        def check(row):
            if tokenizer.mask_id not in tokenizer.encode(row[0], keep_mask=True)[0]:
                raise ConfigurationError(
                    f"a text to fill must hold [MASK], got {row[0]!r:.60}"
                )

        def answer(rows, numbers):
            texts = [text for (text,) in rows]
            found = fill_mask(model, tokenizer, texts, self.top_k, **self._batches)
            return {
                "masks": [
                    [[vars(candidate) for candidate in mask] for mask in masks]
                    for masks in found
                ]
            }

        return LoadedVerb(check, answer)

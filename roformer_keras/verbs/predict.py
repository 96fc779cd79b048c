"""Answers of a fine-tuned model."""

import dataclasses

from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.verb import LoadedVerb, ReadingVerb


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(ReadingVerb):
    """Answers of a fine-tuned model."""

    # A fine-tuned model has its own.
    config: str | None = dataclasses.field(default=None, init=False)
    vocabulary: str | None = dataclasses.field(default=None, init=False)

    name = "predict"
    fields = ()

    def load_source(self) -> LoadedSource:
        from roformer_keras.tasks import finetuned

        tuned = finetuned.load_finetuned(self.source)
        task = tuned.task
        return LoadedSource(type(task).__name__, task, task.text_tokenizer(), tuned)

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        return loaded.tuned is not None

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        from roformer_keras.tables.files import text_names

        tuned, task = loaded.tuned, loaded.model

        def answer(rows, numbers):
            lines = task.files.to_json(rows, **self.computing)
            return {name: [line[name] for line in lines] for name in lines[0]}

        fields = tuple(tuned.fields[: tuned.text_count]) or text_names(tuned.text_count)
        return LoadedVerb(
            lambda row: tuned.check_rows([row]),
            answer,
            fields,
            has_choices=task.has_choices,
        )

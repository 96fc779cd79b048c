"""Answers of a fine-tuned model."""

import dataclasses
from collections.abc import Mapping

from roformer_keras.verbs.loading import LoadedSource, Path, load_task
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts
from roformer_keras.verbs.surfaces import Inputs, Kind, Output, Route, single_samples
from roformer_keras.verbs.vectors import ReadingVerb


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(ReadingVerb):
    """Answer with a fine-tuned model, a line of JSON for each row.

    Args:
        source: folder of `finetune`, or a preset folder or .keras file of a task, or
            its hf://OWNER/NAME.
    """

    # A fine-tuned model has its own.
    config: Path | None = dataclasses.field(default=None, init=False)
    vocabulary: Path | None = dataclasses.field(default=None, init=False)

    name = "predict"
    inputs = Inputs(
        (),
        file="texts, one a line, with tabs between several of a row; or a file as "
        "finetune --train takes it, whose labels are ignored; - is standard input",
        operands=("source",),
        typed="row to take instead of a file, of as many texts as the task has, with "
        "choices as a JSON list; may be repeated",
        count=0,
        columns="columns or keys of the texts (default: the names of the training; the "
        "first columns of standard input, and of a .txt that lacks those)",
    )
    output = Output({}, ".jsonl, or - for standard output", (".jsonl",))
    route = Route("/predict", "rows")
    examples = (
        "predict reviews --text 今天天气不错",
        "predict reviews texts.txt -o answers.jsonl",
    )

    def load(self) -> LoadedSource:
        return load_task(self.source)

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        return loaded.tuned is not None

    def fields(self, loaded: LoadedSource) -> tuple[str, ...]:
        from roformer_keras.tables.files import text_names

        count = loaded.tuned.text_count
        return tuple(loaded.tuned.fields[:count]) or text_names(count)

    def columns(self, loaded: LoadedSource) -> Mapping[str, Kind]:
        kinds: dict[str, Kind]
        kinds = loaded.model.files.answer_kinds(loaded.tuned.text_count)
        return kinds

    def check(self, loaded: LoadedSource, row: Texts) -> None:
        loaded.tuned.check_rows([row])

    def samples(self, loaded: LoadedSource, text: str) -> list[list[Texts]]:
        return single_samples(text, len(self.fields(loaded)))

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        lines = loaded.model.files.to_json(rows, **self.computing)
        return {name: [line[name] for line in lines] for name in lines[0]}

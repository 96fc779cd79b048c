"""A worker: rows of texts in, answers out, with one model that is loaded once."""

from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import ConfigurationError, Hint
from roformer_keras.base.extras import import_extra
from roformer_keras.verbs.verb import Verb

# The column that says why a row has no answer; null where it has one.
ERROR = "error"
ON_BAD_ROW = ("report", "error")
_SAMPLE = "今天天气不错"


class Answerer:
    """A loaded model that answers rows, and says why it cannot answer one."""

    def __init__(self, verb: Verb, fields: Sequence[str] = ()):
        self._loaded = verb.load()
        if self._loaded.has_choices:
            raise ConfigurationError(
                f"{verb.name} on Ray answers rows of texts, and this task needs rows "
                f"with choices: use roformer-keras {verb.name}"
            )
        self.fields = tuple(fields) or self._loaded.fields
        # The types are also needed where no row has an answer.
        sample: Mapping[str, Sequence] = {verb.column: ()}
        if not verb.column:
            sample = self._loaded.answer([(_SAMPLE,) * len(self.fields)], [0])
        self.types = {name: _arrow_type(name, found) for name, found in sample.items()}

    def check_columns(self, names: Sequence[str]) -> None:
        """Raises ConfigurationError unless there are the texts, and no answers yet."""
        for name in self.fields:
            if name not in names:
                raise ConfigurationError(
                    f"the texts are in the column {name!r}, and the columns are "
                    f"{', '.join(map(repr, names))}",
                    hint=Hint("name others with {fields}"),
                )
        for name in (*self.types, ERROR):
            if name in names:
                raise ConfigurationError(
                    f"the dataset must not have a column {name!r}, which holds the "
                    "answers: rename it"
                )

    def answer(
        self,
        columns: Sequence[Sequence],
        numbers: Sequence[int],
        problems: Mapping[int, str] | None = None,
    ) -> tuple[dict[str, list], list[str | None]]:
        """The answers of rows, None where a row has none, and the reason of that."""
        rows = list(zip(*columns, strict=True))
        known = problems or {}
        reasons = [known.get(at) or self._reason(row) for at, row in enumerate(rows)]
        good = [at for at, reason in enumerate(reasons) if reason is None]
        answers: Mapping[str, Sequence] = {}
        if good:
            answers = self._loaded.answer(
                [rows[at] for at in good], [numbers[at] for at in good]
            )
        found: dict[str, list] = {}
        for name in self.types:
            values = found[name] = [None] * len(rows)
            for at, value in zip(good, answers.get(name, ()), strict=True):
                values[at] = value
        return found, reasons

    def _reason(self, row):
        try:
            for text in row:
                if not isinstance(text, str) or not text.strip():
                    raise ConfigurationError(
                        f"a text must be a str that is not empty, got {text!r:.60}"
                    )
            self._loaded.check(row)
        except ConfigurationError as error:
            return str(error)
        return None


def with_answers(
    table: Any,
    types: Mapping[str, Any],
    answers: Mapping[str, list],
    reasons: Sequence[str | None],
) -> Any:
    """A `pyarrow.Table` with columns of answers and the column `error`."""
    pyarrow = import_extra("pyarrow", "an Arrow table")
    for name, kind in types.items():
        table = table.append_column(name, pyarrow.array(answers[name], kind))
    return table.append_column(ERROR, pyarrow.array(reasons, pyarrow.string()))


class Worker:
    """Answers Arrow tables, for `map_batches` of a dataset."""

    def __init__(
        self,
        verb: Verb,
        fields: Sequence[str],
        on_bad_row: str = "report",
        number_field: str | None = None,
        error_field: str | None = None,
    ):
        check_choice("on_bad_row", on_bad_row, ON_BAD_ROW)
        self._on_bad_row, self._number_field = on_bad_row, number_field
        self._error_field = error_field
        self._answerer = Answerer(verb, fields)

    def __call__(self, table: Any) -> Any:
        """The table with columns of answers and the column `error`."""
        problems: dict[int, str] = {}
        if self._error_field is not None:
            known = enumerate(table.column(self._error_field).to_pylist())
            problems = {at: reason for at, reason in known if reason is not None}
            table = table.drop_columns([self._error_field])
        self._answerer.check_columns(table.column_names)
        numbers: Sequence[int] = range(table.num_rows)
        if self._number_field is not None:
            numbers = self._numbers(table)
        columns = [table.column(name).to_pylist() for name in self._answerer.fields]
        answers, reasons = self._answerer.answer(columns, numbers, problems)
        if self._on_bad_row == "error":
            for number, reason in zip(numbers, reasons, strict=True):
                if reason is not None:
                    where = f"row {number}: " if self._number_field else ""
                    raise ConfigurationError(f"{where}{reason}")
        return with_answers(table, self._answerer.types, answers, reasons)

    def _numbers(self, table):
        name = self._number_field
        if name not in table.column_names:
            raise ConfigurationError(
                f"the numbers of rows are in the column {name!r}, and the columns are "
                f"{', '.join(map(repr, table.column_names))}"
            )
        numbers = table.column(name).to_pylist()
        wrong = [one for one in numbers if not isinstance(one, int) or one < 0]
        if wrong:
            raise ConfigurationError(
                f"the numbers of rows must be integers of at least 0, got {wrong[0]!r} "
                f"in the column {name!r}"
            )
        return numbers


def _arrow_type(name, values):
    """The Arrow type of a column of answers, of which some values are given."""
    pyarrow = import_extra("pyarrow", "an Arrow table")
    number, string, integer = pyarrow.float64(), pyarrow.string(), pyarrow.int64()
    span = [("start", integer), ("end", integer), ("text", string), ("score", number)]
    mask = [("token", string), ("token_id", integer), ("probability", number)]

    def structs(fields):
        return pyarrow.list_(pyarrow.struct(fields))

    known = {
        "similarity": number,
        "score": number,
        "label": string,
        "labels": pyarrow.list_(string),
        "answer": pyarrow.struct(span),
        "spans": structs([("label", string), *span]),
        "relations": structs(
            [
                ("subject", pyarrow.struct(span)),
                ("predicate", string),
                ("object", pyarrow.struct(span)),
                ("score", number),
            ]
        ),
        "outputs": structs([("text", string), ("score", number)]),
        "masks": pyarrow.list_(structs(mask)),
        "results": structs([("text", string), ("score", number), ("row", integer)]),
    }
    if name == "probabilities":
        return pyarrow.struct([(label, number) for label in values[0]])
    if name == "vector":
        # Those of a fine-tuned task are lists of JSON.
        return pyarrow.list_(number if len(values) else pyarrow.float32())
    return known[name]

"""A worker: rows of texts in, answers out, with one model that is loaded once."""

from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import ConfigurationError, Hint
from roformer_keras.base.extras import import_extra
from roformer_keras.verbs.surfaces import Float32, Kind
from roformer_keras.verbs.verb import Verb

# The column that says why a row has no answer; null where it has one.
ERROR = "error"
ON_BAD_ROW = ("report", "error")


class Answerer:
    """A loaded model that answers rows, and says why it cannot answer one."""

    def __init__(self, verb: Verb, fields: Sequence[str] = ()):
        self._verb, self._loaded = verb, verb.load()
        if getattr(self._loaded.model, "has_choices", False):
            raise ConfigurationError(
                f"{verb.name} on Ray answers rows of texts, and this task needs rows "
                f"with choices: use roformer-keras {verb.name}"
            )
        self.fields = tuple(fields) or verb.fields(self._loaded)
        # The types are also needed where no row has an answer.
        kinds = verb.columns(self._loaded)
        self.types = {name: arrow_type(kind) for name, kind in kinds.items()}

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
            answers = self._verb.answer(
                self._loaded, [rows[at] for at in good], [numbers[at] for at in good]
            )
        found: dict[str, list] = {}
        for name in self.types:
            values = found[name] = [None] * len(rows)
            for at, value in zip(good, answers.get(name, ()), strict=True):
                values[at] = value
        return found, reasons

    def _reason(self, row):
        try:
            self._verb.check(self._loaded, row)
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


def arrow_type(kind: Kind) -> Any:
    """The type of Arrow of a type of answers."""
    arrow = import_extra("pyarrow", "an Arrow table")
    if isinstance(kind, list):
        return arrow.list_(arrow_type(kind[0]))
    if isinstance(kind, dict):
        return arrow.struct([(name, arrow_type(of)) for name, of in kind.items()])
    types = {
        str: arrow.string(),
        int: arrow.int64(),
        float: arrow.float64(),
        Float32: arrow.float32(),
    }
    return types[kind]

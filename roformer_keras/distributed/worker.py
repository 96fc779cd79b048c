"""A worker: rows of texts in, answers out, with one model that is loaded once."""

from collections.abc import Sequence
from typing import Any

from roformer_keras.base.checks import check_choice, is_integer
from roformer_keras.base.errors import ConfigurationError, Hint, refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.verbs.rows import Answers
from roformer_keras.verbs.surfaces import Float32, Kind
from roformer_keras.verbs.verb import Verb

# The column that says why a row has no answer; null where it has one.
ERROR = "error"
ON_BAD_ROW = ("report", "error")


class Worker:
    """Answers Arrow tables, for `map_batches`; arguments as in `map_texts`."""

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
        self._error_field, self._verb = error_field, verb
        self._loaded = verb.load()
        refuse(
            getattr(self._loaded.model, "has_choices", False),
            f"{verb.name} on Ray answers rows of texts, and this task needs rows with "
            f"choices: use roformer-keras {verb.name}",
        )
        self._fields = tuple(fields) or verb.fields(self._loaded)
        # The types are also needed where no row has an answer.
        kinds = verb.columns(self._loaded).items()
        self._types = {name: arrow_type(kind) for name, kind in kinds}

    def __call__(self, table: Any) -> Any:
        """The table with columns of answers and the column `error`."""
        arrow = import_extra("pyarrow", "an Arrow table")
        reasons: list[str | None] = [None] * table.num_rows
        if self._error_field is not None:
            reasons = table.column(self._error_field).to_pylist()
            table = table.drop_columns([self._error_field])
        self._check_columns(table.column_names)
        numbers = self._numbers(table)
        columns = [table.column(name).to_pylist() for name in self._fields]
        rows = list(zip(*columns, strict=True))
        reasons = [
            reason or self._reason(row)
            for row, reason in zip(rows, reasons, strict=True)
        ]
        if self._on_bad_row == "error":
            for number, reason in zip(numbers, reasons, strict=True):
                where = f"row {number}: " if self._number_field else ""
                refuse(reason is not None, f"{where}{reason}")
        good = [at for at, reason in enumerate(reasons) if reason is None]
        answers: Answers = {}
        if good:
            answers = self._verb.answer(
                self._loaded, [rows[at] for at in good], [numbers[at] for at in good]
            )
        for name, kind in self._types.items():
            values: list[object] = [None] * len(rows)
            for at, value in zip(good, answers.get(name, ()), strict=True):
                values[at] = value
            table = table.append_column(name, arrow.array(values, kind))
        return table.append_column(ERROR, arrow.array(reasons, arrow.string()))

    def _reason(self, row):
        try:
            self._verb.check(self._loaded, row)
        except ConfigurationError as error:
            return str(error)
        return None

    def _check_columns(self, names):
        for name in filter(None, (*self._fields, self._number_field)):
            if name not in names:
                raise ConfigurationError(
                    f"the dataset must have the column {name!r}, and its columns are "
                    f"{', '.join(map(repr, names))}",
                    hint=Hint("name the columns of the texts with {fields}"),
                )
        for name in (*self._types, ERROR):
            refuse(
                name in names,
                f"the dataset must not have a column {name!r}, which holds the "
                "answers: rename it",
            )

    def _numbers(self, table):
        """The numbers of the rows in the whole job."""
        if self._number_field is None:
            return range(table.num_rows)
        numbers = table.column(self._number_field).to_pylist()
        wrong = [number for number in numbers if not is_integer(number) or number < 0]
        refuse(
            wrong,
            "the numbers of rows must be integers of at least 0, got "
            f"{wrong[:1]} in the column {self._number_field!r}",
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

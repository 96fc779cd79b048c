"""A worker: an Arrow table of texts in, the same table with answers out."""

from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.checks import check_choice
from roformer_keras.distributed.verbs import Verb
from roformer_keras.errors import ConfigurationError
from roformer_keras.extras import import_extra

# The column that says why a row has no answer; null where it has one.
ERROR = "error"
ON_BAD_ROW = ("report", "error")


class Worker:
    """Loads a model once, and answers tables with it.

    Args:
        verb: what is computed.
        fields: names of the columns of the texts.
        on_bad_row: `"report"` keeps a row that cannot be answered, with null answers
            and the reason in the column `error`; `"error"` ends the job.
    """

    def __init__(self, verb: Verb, fields: Sequence[str], on_bad_row: str = "report"):
        check_choice("on_bad_row", on_bad_row, ON_BAD_ROW)
        self._fields, self._on_bad_row = tuple(fields), on_bad_row
        self._loaded = verb.load()
        # Its answer says which columns there are, also where no row has an answer.
        sample = self._loaded.answer([("今天天气不错",) * len(self._fields)])
        self._types = {name: _arrow_type(name, found) for name, found in sample.items()}

    def __call__(self, table: Any) -> Any:
        """The table with columns of answers and the column `error`."""
        pyarrow = import_extra("pyarrow", "an Arrow table")
        names = table.column_names
        for name in self._fields:
            if name not in names:
                raise ConfigurationError(
                    f"the texts are in the column {name!r}, and the columns are "
                    f"{', '.join(map(repr, names))}",
                    hint="name others with fields=",
                )
        for name in (*self._types, ERROR):
            if name in names:
                raise ConfigurationError(
                    f"the dataset must not have a column {name!r}, which is that of "
                    "the answers: rename it"
                )
        columns = [table.column(name).to_pylist() for name in self._fields]
        rows = list(zip(*columns, strict=True))
        reasons = [self._reason(row) for row in rows]
        good = [at for at, reason in enumerate(reasons) if reason is None]
        answers: Mapping[str, Sequence] = {}
        if good:
            answers = self._loaded.answer([rows[at] for at in good])
        for name, kind in self._types.items():
            values: list = [None] * len(rows)
            for at, value in zip(good, answers.get(name, ()), strict=True):
                values[at] = value
            table = table.append_column(name, pyarrow.array(values, kind))
        return table.append_column(ERROR, pyarrow.array(reasons, pyarrow.string()))

    def _reason(self, row):
        try:
            for text in row:
                if not isinstance(text, str) or not text.strip():
                    raise ConfigurationError(
                        f"a text must be a str that is not empty, got {text!r:.60}"
                    )
            self._loaded.check(row)
        except ConfigurationError as error:
            if self._on_bad_row == "error":
                raise
            return str(error)
        return None


def _arrow_type(name, values):
    """The Arrow type of a column of answers, of which some values are given."""
    pyarrow = import_extra("pyarrow", "an Arrow table")
    number, string = pyarrow.float64(), pyarrow.string()
    span = [("start", pyarrow.int64()), ("end", pyarrow.int64()), ("text", string)]
    span.append(("score", number))
    known = {
        "similarity": number,
        "score": number,
        "label": string,
        "labels": pyarrow.list_(string),
        "answer": pyarrow.struct(span),
        "spans": pyarrow.list_(pyarrow.struct([("label", string), *span])),
    }
    if name == "probabilities":
        return pyarrow.struct([(label, number) for label in values[0]])
    if name == "vector":
        is_array = getattr(values, "dtype", None) == "float32"
        return pyarrow.list_(pyarrow.float32() if is_array else number)
    return known[name]

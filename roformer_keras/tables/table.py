"""A table: rows of values, each with its place, from whatever holds them.

The readers of this folder make tables. Rows are read once and as they are needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from roformer_keras.base.errors import SourceError

# What a cell can hold, as JSON has it.
Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
# The number of a line or row, and what stands there: cells, or an object by key.
RawRow = tuple[int, Sequence[Value] | Mapping[str, Value] | SourceError]


class Place(NamedTuple):
    """The position of a row, as errors say it: `line 3 of reviews.csv`.

    Attributes:
        number: int, from 1.
        source: name of the file, or "" for a row that was typed or given in memory.
        unit: `"line"` of a text file, `"row"` of a file that has no lines, or the name
            of the flag or field that gave the row.
    """

    number: int
    source: str = ""
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.unit} {self.number}" + (f" of {self.source}" * bool(self.source))


class Row(NamedTuple):
    """Values of the columns that were asked for, and where they stand.

    A row that breaks a rule has no values, and the error that says so.
    """

    values: tuple[Value, ...]
    place: Place
    error: SourceError | None = None


class Table(NamedTuple):
    """Rows with the same columns.

    Attributes:
        names: of the values of a row, by which errors name them.
        rows: iterator of `Row`, once.
        groups: of each column by which rows are grouped, where its values are in a row.
    """

    names: tuple[str, ...]
    rows: Iterator[Row]
    groups: Sequence[int] = ()

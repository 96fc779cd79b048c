"""A table: rows of values, each with its place, from whatever holds them.

Files, objects in memory and requests are read as a `Table`; the readers of this folder
make one. Rows are read once and as they are needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

# What a cell can hold, as JSON has it.
Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]


class Place(NamedTuple):
    """Where a row stands, as errors say it: `line 3 of reviews.csv`.

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
        name = "standard input" if self.source == "-" else self.source
        return f"{self.unit} {self.number}" + (f" of {name}" if name else "")


class Row(NamedTuple):
    """Values of the columns that were asked for, and where they stand."""

    values: tuple[Value, ...]
    place: Place


class Table(Protocol):
    """Rows with the same columns.

    Attributes:
        names: of the columns; empty if nothing names them.
    """

    names: tuple[str, ...]

    def __iter__(self) -> Iterator[Row]:
        """The rows, once.

        Raises:
            SourceError: a row breaks a rule; its message begins with the place.
        """

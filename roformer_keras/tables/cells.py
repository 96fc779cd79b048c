"""Rows of cells: CSV, TSV, plain text with tabs, and sheets of Excel.

.csv    cells are in quotes where they hold a comma, a quote or a line end. Semicolons
        are between the cells if more rows have equally many cells with them, of the
        first 65,536
.tsv    as CSV with tabs, or as .txt if a quote does not stand as in CSV
.txt    tabs are between the cells; quotes are characters
.xlsx   the only sheet that has rows; numbers and dates are texts, as in CSV
"""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from roformer_keras.base.errors import ConfigurationError, Hint, SourceError, name_list
from roformer_keras.tables import sheets
from roformer_keras.tables.choices import choice_columns, gather_choices
from roformer_keras.tables.lines import UTF_8, Lines, file_name, place_line

KINDS = (".csv", ".tsv", ".txt", ".xlsx")
# Characters of a cell, which may go over lines in quotes: no limit.
_LONGEST_CELL = 2**31 - 1
# Rows that say what is between the cells of a .csv.
_SAMPLE = 2**16

Row = tuple[int, Any]


def read_cells(path: str, kind: str, encoding: str = UTF_8) -> Iterator[Row]:
    """Numbers of lines or rows, and the cells of those that are not empty."""
    if kind == ".xlsx":
        return sheets.read_sheet(path)
    lines = Lines(path, encoding)
    rows = _split_rows(lines, _find_separator(lines, kind))
    return (row for row in rows if any(row[1]))


def _split_rows(lines, separator):
    """The number of the first line of each row, and its cells, also of blank rows."""
    if separator is None:
        for line, text in lines:
            yield line, text.rstrip("\r\n").split("\t")
        return
    texts = (text for _, text in lines)
    reader, line = csv.reader(texts, delimiter=separator, strict=True), 1
    while True:
        # csv has one limit for all readers of a process.
        limit = csv.field_size_limit(_LONGEST_CELL)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            where = place_line(line, lines.path)
            raise SourceError(f"{where} is no CSV: {error}") from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        yield line, cells
        line = reader.line_num + 1


def _find_separator(lines, kind):
    """The separator of CSV: "," ";" or a tab; None where quotes are characters."""
    if kind == ".txt":
        return None
    if kind == ".tsv":
        return "\t" if _count_rows(lines, "\t") else None
    return max(",;", key=lambda separator: _count_rows(lines, separator, _SAMPLE))


def _count_rows(lines, separator, limit=None):
    """Rows with the most frequent number of cells; 0 if it is 1, or it is no CSV."""
    counts: Counter[int] = Counter()
    rows = itertools.islice(_split_rows(lines, separator), limit)
    try:
        counts.update(len(cells) for _, cells in rows if any(cells))
    except SourceError as error:
        if not isinstance(error.__cause__, csv.Error):
            raise
        return 0
    width = max(counts, key=counts.__getitem__, default=1)
    return counts[width] if width > 1 else 0


# === Headers and columns ===


_OTHER_COLUMNS = Hint(
    "name those to read with {fields}, by number if there is no header; train with "
    "{pairs:True} if a row has two texts"
)


class Sheet:
    """A table of cells, of which some columns are read once."""

    def __init__(self, path: str, kind: str, where: Callable[[int], str], encoding):
        self._path, self._kind, self._where = path, kind, where
        rows = read_cells(path, kind, encoding)
        self._line, first = next(rows, (1, []))
        begin: list[Row] = [(self._line, first)] if first else []
        self._rows: Iterator[Row] = itertools.chain(begin, rows)
        self._first = [cell.strip() for cell in first]

    def has_columns(self, fields: Sequence[str]) -> bool:
        """True if the first row has the fields."""
        return has_columns(self._first, fields)

    def select(
        self,
        fields: Sequence[str],
        names: Sequence[str],
        count: int,
        *,
        header: str | None,
        groups: Sequence[str],
        has_choices: bool,
        classes: Collection[str] | None = (),
    ) -> tuple[Iterator[Row], list[int]]:
        """The rows of labelled texts, and where the values of `groups` are in them.

        In place of the values of a row that does not fit, its SourceError.
        """
        chosen = tuple(fields[: len(names)])
        numbered: list[int] = []
        last = (chosen or names)[count - 1]
        if has_choices and header != "none" and not are_numbers([last]):
            numbered = choice_columns(self._first, last)
        head = self._first
        if numbered:
            head = [name for at, name in enumerate(head) if at not in numbered]
            head = [*head, last]
        lower = [name.lower() for name in head]
        # A text that stands alone in a line of a `.txt` is a text.
        has_names = set(names) <= set(lower) and (self._kind != ".txt" or len(head) > 1)
        is_named = has_header(chosen, header, has_names)
        if not is_named:
            numbered = []
        if chosen:
            columns = find_columns(self._where(self._line), head, chosen)
        elif is_named and has_names:
            check_names(lower, self._where(self._line))
            columns = [lower.index(name) for name in names]
        else:
            columns = list(range(len(names)))
        shown = head if is_named else []
        columns, places = self._with_groups(columns, chosen or names, shown, groups)
        if is_named:
            self._rows, width = itertools.islice(self._rows, 1, None), len(self._first)
        else:
            whole = list(self._rows)
            width = most_frequent_width(whole)
            self._rows = iter(whole)
            is_labelled = len(names) > count
            has_label = is_labelled or (not fields and width == count + 1)
            if has_label and header is None and classes is not None:
                label = columns[count] if is_labelled else count
                self._check_first(whole, label, width, is_labelled, classes)
            if not chosen and not groups and count < len(names) < width:
                raise SourceError(
                    f"{file_name(self._path)} must have the columns {name_list(names)} "
                    f"and no others where a header does not name them, got {width}",
                    hint=_OTHER_COLUMNS,
                )
        if not numbered:
            width = max(width, *(column + 1 for column in columns))
        header_cells = self._first if is_named else ()
        expected = header_cells or (names if width == len(names) else ())
        rows = fit_rows(self._where, self._rows, width, header_cells, expected)
        return _select(rows, columns, numbered), places

    def stream(self, fields: Sequence[str], header: str | None) -> Iterator[Row]:
        """Some cells of the rows, which fit the first one.

        In place of the cells of a row that does not fit, its SourceError.
        """
        is_named = has_header(fields, header, False)
        columns = find_columns(self._where(self._line), self._first, fields)
        width = max(len(self._first), *(column + 1 for column in columns))
        rows = itertools.islice(self._rows, int(is_named), None)
        header_cells = self._first if is_named else ()
        return _select(fit_rows(self._where, rows, width, header_cells), columns, [])

    def _check_first(self, rows, column, width, is_labelled, classes):
        """Refuses a first row whose label may be the name of a column."""
        rows = [cells for _, cells in rows if len(cells) == width > column]
        labels = [cells[column].strip() for cells in rows]
        if (
            len(self._first) != width
            or not labels
            or any(_NO_HEADER.search(cell) for cell in self._first)
            or labels[0] in classes
            or not _seems_name(*labels, is_labelled=is_labelled)
        ):
            return
        is_plain = all(re.fullmatch(r"[\w.-]+", name) for name in self._first)
        raise SourceError(
            f"{self._where(self._line)} seems to be a header: its label "
            f"{labels[0]!r} is on no other row",
            hint=Hint(
                f"name {'its columns' if is_labelled else 'the columns of its texts'} "
                "with {fields}; if it is a row, pass {header:'none'}",
                fields=self._first if is_plain and is_labelled else None,
            ),
        )

    def _with_groups(self, columns, names, header, groups):
        """The columns with those of groups, and the places of these among them."""
        columns, places = list(columns), []
        for group in groups:
            if group in header:
                column = header.index(group)
            elif group in names and not are_numbers([group]):
                places.append(list(names).index(group))
                continue
            elif are_numbers([group]) and (not header or int(group) <= len(header)):
                column = int(group) - 1
            else:
                shown = f", got {name_list(header)}" if header else ""
                raise SourceError(
                    f"{file_name(self._path)} must have the column {group!r} of "
                    f"holdout_by{shown}",
                    hint="columns have numbers from 1",
                )
            if column not in columns:
                columns.append(column)
            places.append(columns.index(column))
        return columns, places


def _select(rows, columns, numbered):
    """Some cells of each row, after numbered columns became one; errors unchanged."""
    for line, cells in rows:
        if isinstance(cells, SourceError):
            yield line, cells
            continue
        if numbered:
            cells = gather_choices(cells, numbered)
        yield line, [cells[column] for column in columns]


def has_header(fields: Sequence[str], header: str | None, has_names: bool) -> bool:
    """True if the first row of a table names its columns."""
    has_numbers = are_numbers(fields)
    if header == "none" and not has_numbers:
        raise ConfigurationError(
            "without a header, fields must be numbers of columns, got "
            f"{', '.join(fields)} and header='none'"
        )
    if header is not None:
        return header == "first"
    return has_names if not fields else not has_numbers


def are_numbers(fields: Sequence[str]) -> bool:
    """True for fields that are numbers of columns, from "1"."""
    # int() takes no number of thousands of digits.
    return all(name.isdecimal() and len(name) < 10 and int(name) > 0 for name in fields)


def has_columns(names: Sequence[str], fields: Sequence[str]) -> bool:
    """True if a first row of these names, or of as many cells, has the fields."""
    if are_numbers(fields):
        return all(int(name) <= len(names) for name in fields)
    return set(fields) <= set(names)


def find_columns(place: str, names: Sequence[str], fields: Sequence[str]) -> list[int]:
    """The places of some columns of a header, by number or name."""
    if are_numbers(fields):
        return [int(name) - 1 for name in fields]
    if not has_columns(names, fields):
        numbers = [str(number) for number in range(1, len(fields) + 1)]
        raise SourceError(
            f"{place} must name the columns "
            f"{name_list(fields)}, got {name_list(names)}",
            hint=Hint("{fields} takes columns by number", fields=numbers),
        )
    check_names(names, place)
    return [names.index(name) for name in fields]


def check_names(names: Sequence[str], place: str) -> None:
    """Checks that columns have different names."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise SourceError(
            f"{place} must name each column once, got {twice[0]!r} "
            f"{names.count(twice[0])} times",
            hint="give the columns different names",
        )


def most_frequent_width(rows: Iterable[Row]) -> int:
    """The number of cells that most rows have; the first of equally many."""
    counts = Counter(len(cells) for _, cells in rows).most_common(1)
    return counts[0][0] if counts else 0


def fit_rows(
    where: Callable[[int], str],
    rows: Iterable[Row],
    width: int,
    header: Sequence[str] = (),
    expected: Sequence[str] = (),
) -> Iterator[Row]:
    """The rows, with a SourceError in place of cells that do not fit."""
    for line, cells in rows:
        try:
            check_row(where(line), cells, width, header, expected)
        except SourceError as error:
            yield line, error
        else:
            yield line, cells


def check_row(
    place: str,
    cells: Sequence[str],
    width: int,
    header: Sequence[str] = (),
    expected: Sequence[str] = (),
) -> None:
    """Checks the number of cells of a row."""
    if len(cells) != width:
        hint = None
        if len(cells) > width:
            hint = "a cell that holds the separator must be in quotes"
        elif expected:
            hint = (
                f"its columns are {name_list(expected)}, with commas between in .csv "
                "and tabs in .tsv and .txt"
            )
        raise SourceError(
            f"{place} must have {width} columns, got {len(cells)}", hint=hint
        )
    if header and [cell.strip() for cell in cells] == list(header):
        raise SourceError(f"{place} must be a row, and repeats the header")


def _seems_name(first, *others, is_labelled):
    """True if the first label is on no other row, and may be the name of a column."""
    # A row may be of several classes.
    known = {name.strip() for label in others for name in label.split(",")}
    if first in known or _NO_NAME.fullmatch(first):
        return False
    # Labels are numbers, or those of classes, which come again but for a few rows.
    is_few = is_labelled and 1 < len(others) < _FEW_ROWS
    are_numbers = all(map(_NUMBER.fullmatch, known)) and len(others) > (not is_labelled)
    return are_numbers or is_few or len(known) < len(others)


# Rows whose classes may all differ.
_FEW_ROWS = 20
# A sentence, or a cell of more than 40 characters.
_NO_HEADER = re.compile("[，。！？；…]|.{41}", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_TAGS = r"(O|[BIMESLUW][-_]\S+)"
# Numbers, JSON, several classes and tags are no names of columns.
_NO_NAME = re.compile(
    rf"|{_NUMBER.pattern}|[\[{{].*|.*,.*|{_TAGS}(\s+{_TAGS})*",
    re.IGNORECASE | re.DOTALL,
)

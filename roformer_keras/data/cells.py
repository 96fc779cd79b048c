"""Rows of cells: CSV, TSV, plain text with tabs, and sheets of Excel.

.csv    cells are in quotes where they hold a comma, a quote or a line end. Semicolons
        are between the cells if more rows have equally many cells with them, of the
        first 65,536
.tsv    as CSV with tabs, if every quote of the file stands where a CSV writer puts it;
        else quotes are characters
.txt    tabs are between the cells; quotes are characters
.xlsx   the only sheet that has rows; numbers and dates are texts, as in CSV
"""

import contextlib
import csv
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from roformer_keras.data import sheets
from roformer_keras.data.choices import choice_columns, gather_choices
from roformer_keras.data.lines import UTF_8, Lines, budget_of, file_name, place_line
from roformer_keras.errors import ConfigurationError, Hint, SourceError, name_list
from roformer_keras.io.budget import MAX_ROW, check_blank

_LOGGER = logging.getLogger(__name__)
KINDS = (".csv", ".tsv", ".txt", ".xlsx")
# What is between the cells of a row whose quotes are characters: a tab.
PLAIN = "plain"
# Characters of a cell, which may go over lines in quotes; separators in a line.
_LONGEST_CELL, _MOST_CELLS = MAX_ROW, 2**20
# Rows that say what is between the cells.
_SAMPLE = 2**16
# A row in which each quote opens or closes a cell, or is doubled within one.
_CELL = r'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t\r\n]*+)'
_QUOTED_ROW = re.compile(rf"{_CELL}(?:\t{_CELL})*+")

Row = tuple[int, Any]


def read_cells(path: str, kind: str, encoding: str = UTF_8) -> Iterator[Row]:
    """Numbers of lines or rows, and the cells of those that are not empty.

    Args:
        path: of the file; "-" is standard input.
        kind: str of `KINDS`.
        encoding: as in `read_lines`.

    Raises:
        SourceError: the file is not of its kind. Names file and line.
    """
    budget = budget_of(path)
    if kind == ".xlsx":
        return budget.rows(sheets.read_sheet(path))
    lines = Lines(path, encoding)
    rows = split_rows(lines, find_separator(lines, kind, path), path)
    return budget.rows(_filled(rows, path))


def _filled(rows, path):
    """The rows that are not blank."""
    blank = 0
    for line, cells in rows:
        if any(cells):
            yield line, cells
            continue
        blank += 1
        check_blank(blank, line, file_name(path))


class _OtherSeparator(SourceError):
    """Lines are no CSV of a separator."""


@contextlib.contextmanager
def long_cells():
    """Lets cells be longer than the 131,072 characters that `csv` allows at first."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def split_rows(
    lines: Iterable[tuple[int, str]],
    separator: str,
    path: str,
    first_line: int = 1,
    error_type: type[SourceError] = SourceError,
) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line of each row, and its cells, also of blank rows.

    Args:
        lines: numbers and texts of the lines, with their ends.
        separator: as `find_separator` returns it.
        path: of the file, for errors.
        first_line: number of the first of the lines.
        error_type: of the error.

    Raises:
        SourceError: the lines are no CSV.
    """
    if separator == PLAIN:
        for line, text in lines:
            if len(text) > _MOST_CELLS:
                _check_count(text, "\t", line, path, error_type)
            yield line, text.rstrip("\r\n").split("\t")
        return
    texts = (
        text
        if len(text) <= _MOST_CELLS
        else _check_count(text, separator, line, path, error_type)
        for line, text in lines
    )
    reader = csv.reader(texts, delimiter=separator, strict=True)
    line = first_line
    while True:
        # As in `long_cells`, at less cost for each row.
        limit = csv.field_size_limit(_LONGEST_CELL)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise error_type(f"{place_line(line, path)} is no CSV: {error}") from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        yield line, cells
        line = first_line + reader.line_num


def _check_count(text, separator, line, path, error_type):
    """A line, whose separators a hostile file can have any number of."""
    if (count := text.count(separator)) > _MOST_CELLS:
        raise error_type(
            f"{place_line(line, path)} must have at most {_MOST_CELLS:,} columns, got "
            f"{count:,}"
        )
    return text


def find_separator(lines: Iterable[tuple[int, str]], kind: str, path: str) -> str:
    """Separator of the cells of a text file: "," ";" "\\t", or `PLAIN`.

    Args:
        lines: as in `split_rows`; they are read again by each loop.
        kind: `".csv"`, `".tsv"` or `".txt"`.
        path: of the file, for errors.
    """
    if kind != ".csv":
        return "\t" if kind == ".tsv" and _has_quoted_cells(lines, path) else PLAIN
    # What is no CSV with commas may be it with semicolons.
    with contextlib.suppress(_OtherSeparator):
        rows = _filled(split_rows(lines, ",", path, 1, _OtherSeparator), path)
        if ";" not in "".join(next(rows, (1, []))[1]):
            return ","
    shares = {separator: _share_of_rows(lines, separator, path) for separator in ",;"}
    return max(shares, key=shares.__getitem__)


def _share_of_rows(lines, separator, path):
    """Rows with the most frequent number of cells, of the first; 0 if they have one."""
    counts: Counter[int] = Counter()
    with contextlib.suppress(_OtherSeparator):
        rows = _filled(split_rows(lines, separator, path, 1, _OtherSeparator), path)
        counts.update(len(cells) for _, cells in itertools.islice(rows, _SAMPLE))
    width, rows = max(counts.items(), key=lambda item: item[1], default=(1, 0))
    return rows if width > 1 else 0


def _has_quoted_cells(lines, path):
    """True if a TSV has quotes, and each stands where a CSV writer puts it."""
    record: list[str] = []
    has_quotes, first, quotes, size = False, 0, 0, 0
    for line, text in lines:
        if not record and '"' not in text:
            continue
        first = first if record else line
        record.append(text)
        quotes, size = quotes + text.count('"'), size + len(text)
        if size > _LONGEST_CELL:
            return False
        if quotes % 2:
            continue
        row = "".join(record).rstrip("\r\n")
        if not _QUOTED_ROW.fullmatch(row):
            _LOGGER.info(
                "quotes of %s are characters: one in line %s is not as in CSV",
                *(file_name(path), first),
            )
            return False
        has_quotes, record, quotes, size = True, [], 0, 0
    return has_quotes and not record


# === Headers and columns ===


_OTHER_COLUMNS = Hint(
    "name those to read with {fields}, by number if there is no header; train with "
    "{pairs:True} if a row has two texts"
)


class Sheet:
    """A table of cells, of which some columns are read once.

    Args:
        path, kind, encoding: as in `read_cells`.
        where: from the number of a row to what errors call it.
    """

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

        Args:
            fields: as `read_table` takes them, perhaps with a label that is not read.
            names: that fields have if none are given.
            count: int. Texts of a row.
            header, groups, has_choices, classes: as in `read_table`.
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
            label = self._label_column(fields, columns, count, width)
            own_label = self._first[label : label + 1] if label is not None else []
            is_known = header is not None or classes is None
            if own_label and not (is_known or own_label[0] in (classes or ())):
                self._check_first(whole, label, width, count, len(names) > count)
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

        Args:
            fields: names or numbers of columns.
            header: as in `read_table`.
        """
        is_named = has_header(fields, header, False)
        columns = find_columns(self._where(self._line), self._first, fields)
        width = max(len(self._first), *(column + 1 for column in columns))
        rows = itertools.islice(self._rows, int(is_named), None)
        header_cells = self._first if is_named else ()
        return _select(fit_rows(self._where, rows, width, header_cells), columns, [])

    def _label_column(self, fields, columns, count, width):
        """The place of the labels, also if they are not read; None if unknown."""
        if len(columns) > count:
            return columns[count]
        if not fields:
            return count if width == count + 1 else None
        if len(fields) > count and are_numbers(fields[count:]):
            return int(fields[count]) - 1
        return None

    def _check_first(self, rows, column, width, count, is_labelled):
        """Asks whether a first row that may be a header is one."""
        rows = [cells for _, cells in rows if len(cells) == width > column]
        labels = [cells[column] for cells in rows]
        has_texts = any(
            len(cell) > _LONGEST_NAME or _SENTENCE.search(cell) for cell in self._first
        )
        if (
            has_texts
            or len(self._first) != width
            or not seems_header(labels, is_labelled)
        ):
            return
        is_plain = all(re.fullmatch(r"[\w.-]+", name) for name in self._first)
        named = "its columns with {fields}"
        if not is_labelled:
            # Only the user knows which of them are texts.
            named = f"the column{'s' * (count > 1)} of texts with {{fields}}"
            named += f", {count} of {', '.join(self._first)}" * is_plain
        raise SourceError(
            f"{self._where(self._line)} seems to be a header: its label "
            f"{labels[0].strip()!r} is on no other row",
            hint=Hint(
                f"name {named}; if it is a row, pass {{header:'none'}}",
                fields=self._first if is_plain and is_labelled else None,
            ),
        )

    def _with_groups(self, columns, names, header, groups):
        """The columns with those of groups, and the places of these among them.

        Args:
            columns: places of the fields.
            names: of the fields.
            header: names of all columns, empty if there is no header.
            groups: names or numbers of columns.
        """
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
    """True if the first row of a table names its columns.

    Args:
        fields: names or numbers of columns; empty if the user gave none.
        header: as in `read_table`.
        has_names: bool. The answer where neither fields nor `header` decide.

    Raises:
        ConfigurationError: there is no header, and fields are names.
    """
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
    """The places of some columns of a header, by number or name.

    Args:
        place: what errors call the header.
        names: of all columns.
        fields: names or numbers.

    Raises:
        SourceError: one is missing, or a name of the header comes twice.
    """
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
    """Checks that columns have different names.

    Args:
        names: of all columns; those that are empty do not count.
        place: what errors call the header.

    Raises:
        SourceError: a name comes twice.
    """
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
    """The rows, with a SourceError in place of cells that do not fit.

    Args:
        where: from the number of a row to what errors call it.
        rows: numbers and cells.
        width: cells that a row must have.
        header: cells of the header, which no row repeats.
        expected: names of the columns that a row must have, as far as they are known.
    """
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
    """Checks the number of cells of a row.

    Args:
        place: what errors call the row.
        cells, width, header, expected: as in `fit_rows`.

    Raises:
        SourceError: it is not `width`, or the row is the header again.
    """
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


def seems_header(labels: Sequence[str], is_sure: bool = True) -> bool:
    """True if the first label of a table may be the name of its column.

    It is on no other row, and is neither a number nor JSON, tags or several classes.

    Args:
        labels: of all rows.
        is_sure: bool. Whether the column is known to be that of the labels; else others
            must come again, or be numbers.
    """
    first, *others = [label.strip() for label in labels] or [""]
    if not others or _NO_NAME.fullmatch(first):
        return False
    # A row may be of several classes.
    known = {name.strip() for label in others for name in label.split(",")}
    if first in known:
        return False
    if all(map(_NUMBER.fullmatch, known)):
        return is_sure or len(others) > 1
    # Two rows are too few for a header and classes; many that differ are no classes.
    return len(known) < len(others) or (is_sure and 1 < len(others) < _FEW_ROWS)


# Characters of the name of a column; rows whose classes may all differ.
_LONGEST_NAME, _FEW_ROWS = 40, 20
# What is in sentences, and in no name.
_SENTENCE = re.compile("[，。！？；…]")
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_TAGS = r"(O|[BIMESLUW][-_]\S+)"
_NO_NAME = re.compile(
    rf"|{_NUMBER.pattern}|[\[{{].*|.*,.*|{_TAGS}(\s+{_TAGS})*",
    re.IGNORECASE | re.DOTALL,
)

"""Rows of cells: CSV, TSV and plain text with tabs, and which of their columns count.

.csv    cells are in quotes where they hold a comma, a quote or a line end. Semicolons
        are between the cells if more rows have equally many cells with them, of the
        first 16,384
.tsv    as CSV with tabs, or as .txt if a quote does not stand as in CSV
.txt    tabs are between the cells; quotes are characters
"""

import csv
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from roformer_keras.base.errors import ConfigurationError, Hint, SourceError, name_list
from roformer_keras.tables.choices import choice_columns, gather_choices
from roformer_keras.tables.opening import File, Lines
from roformer_keras.tables.table import Place, Row, Table, Value

# Characters of a cell, which may go over lines in quotes: no limit.
_LONGEST_CELL = 2**31 - 1
# Rows that say what is between the cells, how many there are, and what is a header.
SAMPLE = 2**14

_Cells = tuple[int, Sequence[str]]


def read_csv(file: File, keys: Sequence[str]) -> Iterator[_Cells]:
    """Numbers of lines, and the cells between commas or semicolons."""
    lines = Lines(file)
    separator = max(",;", key=lambda one: _count_rows(lines, one, SAMPLE))
    return _split_rows(lines, separator)


def read_tsv(file: File, keys: Sequence[str]) -> Iterator[_Cells]:
    """Numbers of lines, and the cells between tabs, with quotes if all are of CSV."""
    lines = Lines(file)
    is_csv = _count_rows(lines, "\t")
    return _split_rows(lines, "\t") if is_csv else read_txt(lines, keys)


def read_txt(file: File | Lines, keys: Sequence[str]) -> Iterator[_Cells]:
    """Numbers of lines, and the cells between tabs."""
    for line, text in file.lines() if isinstance(file, File) else file:
        yield line, text.rstrip("\r\n").split("\t")


def _split_rows(lines: Lines, separator: str) -> Iterator[_Cells]:
    """The number of the first line of each row, and its cells, also of blank rows."""
    texts = (text for _, text in lines)
    reader, line = csv.reader(texts, delimiter=separator, strict=True), 1
    while True:
        # csv has one limit for all readers of a process.
        limit = csv.field_size_limit(_LONGEST_CELL)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            where = lines.file.place(line)
            raise SourceError(f"{where} is no CSV: {error}") from error
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        yield line, cells
        line = reader.line_num + 1


def _count_rows(lines: Lines, separator: str, limit: int | None = None) -> int:
    """Rows with the most frequent number of cells; 0 if it is 1, or it is no CSV."""
    rows = itertools.islice(_split_rows(lines, separator), limit)
    try:
        widths = Counter(len(cells) for _, cells in rows if any(cells))
    except SourceError as error:
        if not isinstance(error.__cause__, csv.Error):
            raise
        return 0
    width = _usual(widths)
    return widths[width] if width > 1 else 0


def _usual(widths: Counter[int]) -> int:
    """The most frequent number of cells; the first of equally many."""
    return max(widths, key=widths.__getitem__, default=0)


# === Headers and columns ===


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are asked for.

    Args:
        names: of the texts, and then of the label if it is read, as a header or a key
            has them.
        count: how many of them are texts, choices counted as one.
        fields: as many other names, or numbers of columns, or none.
        or_first: whether plain text that lacks the fields is read as if none were
            given.
        groups: names or numbers of columns by which rows are grouped.
        has_choices: whether the last text is a list of choices.
        header: `"first"` if the first row of cells is a header, `"none"` if it is not.
        classes: labels that are no name of a column; None if any may be.
    """

    names: tuple[str, ...]
    count: int = 1
    fields: tuple[str, ...] = ()
    or_first: bool = False
    groups: tuple[str, ...] = ()
    has_choices: bool = False
    header: str | None = None
    classes: Collection[str] | None = None

    @property
    def is_labelled(self) -> bool:
        """True if a label is read."""
        return len(self.names) > self.count

    @property
    def keys(self) -> tuple[str, ...]:
        """The names or numbers of the columns."""
        return self.fields or self.names

    def names_are_in(self, head: Sequence[str]) -> bool:
        """True if a first row has the names, in any case."""
        return {*self.names} <= {name.lower() for name in head}

    def has_header(self, has_names: bool) -> bool:
        """True if the first row of a table is a header."""
        has_numbers = are_numbers(self.fields)
        if self.header == "none" and not has_numbers:
            raise ConfigurationError(
                "without a header, fields must be numbers of columns, got "
                f"{', '.join(self.fields)} and header='none'"
            )
        if self.header is not None:
            return self.header == "first"
        return not has_numbers if self.fields else has_names


def select_cells(
    file: File, rows: Iterable[_Cells], wanted: Columns, is_plain: bool = False
) -> Table:
    """The columns of rows of cells; blank rows are left out.

    The first row is a header if it has the fields or, without any, the names. All rows
    have as many cells as the header, or else as most. A row of plain text may hold
    nothing but a text.
    """
    rows = (row for row in rows if any(row[1]))
    sample = list(itertools.islice(rows, SAMPLE))
    rows = itertools.chain(sample, rows)
    line, cells = sample[0] if sample else (1, [])
    first, first_place = [cell.strip() for cell in cells], file.place(line)
    if wanted.count == 1 and not wanted.fields and {"first", "second"} <= {*first}:
        raise SourceError(
            f"{file.name} has the columns 'first' and 'second', and one text of each "
            "row is read",
            hint=Hint("name the columns by {fields}"),
        )
    if is_plain and wanted.or_first and not has_columns(first, wanted.fields):
        wanted = dataclasses.replace(wanted, fields=())
    head, numbered = first, _choices_in(first, wanted)
    if numbered:
        head = [name for at, name in enumerate(first) if at not in numbered]
        head.append(wanted.keys[wanted.count - 1])
    # A text that stands alone in a line of plain text is a text.
    has_names = wanted.names_are_in(head) and not (is_plain and len(head) == 1)
    is_named = wanted.has_header(has_names)
    columns = find_columns(first_place, head, wanted, is_named and has_names)
    titles = {name: at for at, name in enumerate(head)} if is_named else {}
    if not wanted.fields:
        titles |= dict(zip(wanted.names, columns, strict=True))
    groups = [_group_column(file, one, titles, is_named) for one in wanted.groups]
    if is_named:
        width, rows = len(first), itertools.islice(rows, 1, None)
    else:
        width, numbered = _usual(Counter(len(row) for _, row in sample)), []
        _check_first(first_place, first, sample, columns, width, wanted)
        if (
            wanted.is_labelled
            and not (wanted.fields or groups)
            and width > len(columns)
        ):
            raise SourceError(
                f"{file.name} must have the columns {name_list(wanted.names)} and no "
                f"others where a header does not name them, got {width}",
                hint=Hint(
                    "name those to read with {fields}, by number if there is no "
                    "header; train with {pairs:True} if a row has two texts"
                ),
            )
    columns = list(dict.fromkeys((*columns, *groups)))
    if not numbered:
        width = max(width, *(column + 1 for column in columns))
    header = first if is_named else []
    names = header or (wanted.names if width == len(wanted.names) else ())

    def select() -> Iterator[Row]:
        for line, row in rows:
            place = file.place(line)
            if error := _row_error(place, row, width, header, names):
                yield Row((), place, error)
                continue
            values: Sequence[Value] = gather_choices(row, numbered) if numbered else row
            yield Row(tuple([values[column] for column in columns]), place)

    return Table(wanted.keys, select(), [columns.index(column) for column in groups])


def _choices_in(first: list[str], wanted: Columns) -> list[int]:
    """The numbered columns of choices in a header."""
    last = wanted.keys[wanted.count - 1]
    if not wanted.has_choices or wanted.header == "none" or are_numbers([last]):
        return []
    return choice_columns(first, last)


def _group_column(
    file: File, group: str, titles: Mapping[str, int], is_named: bool
) -> int:
    """The column of a group by its title, or else its number."""
    column = titles.get(group, int(group) - 1 if are_numbers([group]) else -1)
    if column < 0 or (is_named and column > max(titles.values())):
        shown = f", got {name_list(titles)}" if is_named else ""
        raise SourceError(
            f"{file.name} must have the column {group!r}, by which rows are grouped"
            f"{shown}",
            hint="columns have numbers from 1",
        )
    return column


def _check_first(
    place: Place,
    first: list[str],
    sample: Sequence[_Cells],
    columns: Sequence[int],
    width: int,
    wanted: Columns,
) -> None:
    """Refuses a first row whose label may be the name of a column.

    The label of texts alone is the cell after them.
    """
    column = columns[wanted.count] if wanted.is_labelled else wanted.count
    rows = [cells for _, cells in sample if len(cells) == width > column]
    labels = [cells[column].strip() for cells in rows]
    if (
        wanted.classes is None
        or wanted.header is not None
        or not (wanted.is_labelled or (not wanted.fields and width == wanted.count + 1))
        or len(first) != width
        or not labels
        or any(_NO_HEADER.search(cell) for cell in first)
        or labels[0] in wanted.classes
        or not _seems_name(*labels, is_labelled=wanted.is_labelled)
    ):
        return
    is_plain = all(re.fullmatch(r"[\w.-]+", name) for name in first)
    owner = "its columns" if wanted.is_labelled else "the columns of its texts"
    raise SourceError(
        f"{place} seems to be a header: its label {labels[0]!r} is on no other row",
        hint=Hint(
            f"name {owner} with {{fields}}; if it is a row, pass {{header:'none'}}",
            fields=first if is_plain and wanted.is_labelled else None,
        ),
    )


def are_numbers(fields: Sequence[str]) -> bool:
    """True for fields that are numbers of columns, from "1"."""
    # int() takes no number of thousands of digits.
    return all(name.isdecimal() and len(name) < 10 and int(name) > 0 for name in fields)


def has_columns(names: Sequence[str], fields: Sequence[str]) -> bool:
    """True if a first row of these names, or of as many cells, has the fields."""
    if are_numbers(fields):
        return all(int(name) <= len(names) for name in fields)
    return {*fields} <= {*names}


def find_columns(
    place: Place, names: Sequence[str], wanted: Columns, has_names: bool
) -> list[int]:
    """The columns that are asked for, by number or name, or the first ones."""
    fields = wanted.keys if has_names and not wanted.fields else wanted.fields
    if are_numbers(fields):
        return [int(name) - 1 for name in fields] or [*range(len(wanted.names))]
    if not wanted.fields:
        names = [name.lower() for name in names]
    if not has_columns(names, fields):
        numbers = [str(number) for number in range(1, len(fields) + 1)]
        raise SourceError(
            f"{place} must name the columns {name_list(fields)}, got "
            f"{name_list(names)}",
            hint=Hint("{fields} takes columns by number", fields=numbers),
        )
    check_names(names, place)
    return [names.index(name) for name in fields]


def check_names(names: Sequence[str], place: Place) -> None:
    """Checks that columns have different names."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise SourceError(
            f"{place} must name each column once, got {twice[0]!r} "
            f"{names.count(twice[0])} times",
            hint="give the columns different names",
        )


def _row_error(
    place: Place,
    cells: Sequence[str],
    width: int,
    header: Sequence[str] = (),
    expected: Sequence[str] = (),
) -> SourceError | None:
    """The error of a row with another number of cells, or that repeats the header."""
    hint = None
    if len(cells) > width:
        hint = "a cell that holds the separator must be in quotes"
    elif len(cells) < width and expected:
        hint = (
            f"its columns are {name_list(expected)}, with commas between in .csv and "
            "tabs in .tsv and .txt"
        )
    if len(cells) != width:
        message = f"{place} must have {width} columns, got {len(cells)}"
        return SourceError(message, hint=hint)
    if header and [cell.strip() for cell in cells] == list(header):
        return SourceError(f"{place} must be a row, and repeats the header")
    return None


def _seems_name(first: str, *others: str, is_labelled: bool) -> bool:
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

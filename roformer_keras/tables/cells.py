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
from collections.abc import Collection, Iterable, Iterator, Sequence

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
        fields: other names, or numbers of columns.
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


def select_cells(
    file: File, rows: Iterable[_Cells], wanted: Columns, is_plain: bool = False
) -> Table:
    """The columns of rows of cells; blank rows are left out.

    The first row is a header if it has the fields or, without any, the names. All rows
    have as many cells as the header, or else as most.
    """
    rows = (row for row in rows if any(row[1]))
    sample = list(itertools.islice(rows, SAMPLE))
    rows = itertools.chain(sample, rows)
    line, cells = sample[0] if sample else (1, [])
    first, place = [cell.strip() for cell in cells], file.place(line)
    names, count, fields = (
        wanted.names,
        wanted.count,
        wanted.fields[: len(wanted.names)],
    )
    if count == 1 and not fields and {"first", "second"} <= {*first}:
        raise SourceError(
            f"{file.name} has the columns 'first' and 'second', and one text of each "
            "row is read",
            hint=Hint("name the columns by {fields}"),
        )
    if is_plain and wanted.or_first and not has_columns(first, fields):
        fields, wanted = (), dataclasses.replace(wanted, fields=())
    head, numbered, last = first, [], (fields or names)[count - 1]
    if wanted.has_choices and wanted.header != "none" and not are_numbers([last]):
        numbered = choice_columns(first, last)
    if numbered:
        head = [name for at, name in enumerate(first) if at not in numbered] + [last]
    lower = [name.lower() for name in head]
    # A text that stands alone in a line of plain text is a text.
    has_names = {*names} <= {*lower} and not (is_plain and len(head) == 1)
    is_named = wanted.header == "first"
    if wanted.header == "none" and not are_numbers(fields):
        raise ConfigurationError(
            "without a header, fields must be numbers of columns, got "
            f"{', '.join(fields)} and header='none'"
        )
    if wanted.header is None:
        is_named = not are_numbers(fields) if fields else has_names
    if fields:
        columns = find_columns(place, head, fields)
    elif is_named and has_names:
        check_names(lower, place)
        columns = [lower.index(name) for name in names]
    else:
        columns = list(range(len(names)))
    shown = head if is_named else []
    columns, groups = _with_groups(file, columns, fields or names, shown, wanted.groups)
    if is_named:
        width, rows = len(first), itertools.islice(rows, 1, None)
    else:
        width, numbered = _usual(Counter(len(row) for _, row in sample)), []
        label = columns[count] if wanted.is_labelled else count
        if wanted.header is None and (wanted.is_labelled or width == count + 1):
            _check_first(place, first, sample, label, width, wanted)
        if wanted.is_labelled and not (fields or groups) and width > len(names):
            raise SourceError(
                f"{file.name} must have the columns {name_list(names)} and no others "
                f"where a header does not name them, got {width}",
                hint=Hint(
                    "name those to read with {fields}, by number if there is no "
                    "header; train with {pairs:True} if a row has two texts"
                ),
            )
    if not numbered:
        width = max(width, *(column + 1 for column in columns))
    header = first if is_named else []
    expected = header or (names if width == len(names) else ())

    def select() -> Iterator[Row]:
        for line, row in rows:
            place = file.place(line)
            error = check_row(place, row, width, header, expected)
            if error is not None:
                yield Row((), place, error)
                continue
            values: Sequence[Value] = gather_choices(row, numbered) if numbered else row
            yield Row(tuple([values[column] for column in columns]), place)

    return Table(fields or names, select(), groups)


def _check_first(
    place: Place,
    first: list[str],
    sample: Sequence[_Cells],
    column: int,
    width: int,
    wanted: Columns,
) -> None:
    """Refuses a first row whose label may be the name of a column."""
    rows = [cells for _, cells in sample if len(cells) == width > column]
    labels = [cells[column].strip() for cells in rows]
    if (
        wanted.classes is None
        or (wanted.fields and not wanted.is_labelled)
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


def _with_groups(
    file: File,
    columns: Sequence[int],
    names: Sequence[str],
    header: list[str],
    groups: Sequence[str],
) -> tuple[list[int], list[int]]:
    """The columns with those of groups, and where these are among them."""
    columns, indices = list(columns), []
    for group in groups:
        if group in header:
            column = header.index(group)
        elif group in names and not are_numbers([group]):
            column = columns[list(names).index(group)]
        elif are_numbers([group]) and (not header or int(group) <= len(header)):
            column = int(group) - 1
        else:
            shown = f", got {name_list(header)}" if header else ""
            raise SourceError(
                f"{file.name} must have the column {group!r}, by which rows are "
                f"grouped{shown}",
                hint="columns have numbers from 1",
            )
        if column not in columns:
            columns.append(column)
        indices.append(columns.index(column))
    return columns, indices


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
    place: Place, names: Sequence[str], fields: Sequence[str]
) -> list[int]:
    """The places of some columns of a header, by number or name."""
    if are_numbers(fields):
        return [int(name) - 1 for name in fields]
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


def check_row(
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

"""The one reader of tables in files: for training, answers, corpora and indexes.

The extension, or `format`, says what a file is; `.gz`, `.xz` or `.zst` after it is
unpacked. A path may be a URI that `fsspec` opens, or "-" for standard input. See
`formats` for adding one.

.jsonl          an object a line; fields are its keys
.json           a list of objects
.csv, .tsv, .txt, .xlsx
                a row a row; fields are columns, by number from "1" or by name; see
                `cells`
.bio, .conll    a token and its tag a line, an empty line after each text
.parquet, .arrow, .ipc, .feather, and folders of `datasets.Dataset.save_to_disk`:
                a row a row; fields are columns, as the keys of .jsonl; see `arrow`
format "squad"  a question a row, in one nested JSON object; see `objects`
any other       lines of text, as is .txt where one text of each row is read, without
                fields, header and label

In a table of cells the first row is a header if it has the fields, which are names or
numbers of columns; without fields, if it has `text` and `label` (`first`, `second` and
`label` for pairs; `context`, `question`, `choices` and `label` for rows with choices).
`header` says it instead. Without a header the texts come first. All rows have as many
cells as the header, or else as most; blank rows are left out. No column name, and no
key of an object, comes twice. Columns that nothing names are left out where a header
names the others, and refused in training where there is none.
"""

import os
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import cast

from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import (
    ConfigurationError,
    Hint,
    SourceError,
    name_list,
)
from roformer_keras.base.types import FileEncoding, FileHeader
from roformer_keras.tables.cells import Columns, select_cells
from roformer_keras.tables.choices import parse_choices, wrong_text
from roformer_keras.tables.formats import (
    FORMATS,
    format_of,
    is_archive,
    shown_endings,
)
from roformer_keras.tables.opening import UTF_8, File
from roformer_keras.tables.table import Place, RawRow, Row, Table, Value
from roformer_keras.tables.tagged import join_tokens, token_tags

# What `header` and `encoding` can be.
HEADERS: tuple[str, ...] = typing.get_args(FileHeader)
ENCODINGS: tuple[str, ...] = typing.get_args(FileEncoding)
# The column of the labels, unless fields name another.
LABEL = "label"
_TEXT_HINT = Hint("name the texts with {fields}; leave rows without one out")


def text_names(count: int, has_choices: bool = False) -> tuple[str, ...]:
    """The JSON keys of the texts of a row, unless others are given."""
    if has_choices:
        return ("context", *["question"] * (count > 2), "choices")
    return ("text",) if count == 1 else ("first", "second", "third")[:count]


def row_names(row: Sequence[object]) -> tuple[str, ...]:
    """The names of the texts of a row that was read, as in `text_names`."""
    return text_names(len(row), not isinstance(row[-1], str))


def is_missing(value: object) -> bool:
    """True if a cell holds nothing: None, NaN, or what pandas has for these."""
    if isinstance(value, Real):
        # NaN differs from itself. NumPy's numbers are known without its import.
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


# === Rows of any file ===


def open_table(
    path: str, wanted: Columns, format: str | None = None, encoding: str = UTF_8
) -> Table:
    """Opens a file, and checks what its header says; rows are read as needed."""
    check_choice("encoding", encoding, ENCODINGS)
    if wanted.header is not None:
        check_choice("header", wanted.header, HEADERS)
    form = format_of(path, format)
    if form is None:
        endings = shown_endings()
        raise SourceError(
            f"a table must be {endings}, or text of these with .gz, .xz or .zst after "
            f"it, got {path}",
            hint=Hint(
                f"give {{format}} if it is one of {', '.join(FORMATS)} under another "
                "name"
            ),
        )
    file = File(path, encoding, form.unit)
    if form.rows == "cells":
        rows = cast("Iterator[tuple[int, Sequence[str]]]", form.read(file, ()))
        return select_cells(file, rows, wanted, is_plain=form.name == "txt")
    names, fields = wanted.names, () if form.is_fixed else wanted.fields
    if form.names and not fields:
        if wanted.count != len(form.names) - 1:
            raise SourceError(
                f"{file.name} has the columns {name_list(form.names)}, which are for "
                f"tasks of {len(form.names) - 1} texts a row, not {wanted.count}",
                hint=None if form.is_fixed else Hint("name the columns by {fields}"),
            )
        names = form.names[: len(names)]
    keys = fields or names
    # Numbers of groups index the fields.
    numbers = {str(number): key for number, key in enumerate(keys, start=1)}
    groups = [one if one in keys else numbers.get(one, one) for one in wanted.groups]
    keys = tuple(dict.fromkeys((*keys, *groups)))
    rows_by_key = _rows_of(file, form.read(file, keys), keys)
    return Table(keys, rows_by_key, [keys.index(group) for group in groups])


def _rows_of(
    file: File, rows: Iterator[RawRow], keys: tuple[str, ...]
) -> Iterator[Row]:
    for number, values in rows:
        place = file.place(number)
        if isinstance(values, SourceError):
            yield Row((), place, values)
            continue
        assert isinstance(values, Mapping)
        if values.keys() >= {*keys}:
            yield Row(tuple([values[key] for key in keys]), place)
        else:
            message = f"{place} must have {name_list(keys)}, got {name_list(values)}"
            error = SourceError(message, hint=Hint("name others with {fields}"))
            yield Row((), place, error)


def line_rows(path: str, encoding: str = UTF_8) -> Iterator[Row]:
    """The lines of a file as rows, also blank ones."""
    check_choice("encoding", encoding, ENCODINGS)
    file = File(path, encoding)
    for number, text in file.lines():
        yield Row((text.removesuffix("\n").removesuffix("\r"),), file.place(number))


def is_lines(
    path: str,
    fields: Sequence[str] = (),
    format: str | None = None,
    header: str | None = None,
) -> bool:
    """True if each line of a file is a text: no format has its ending, or it is .txt.

    It is a table if fields or a header are given.
    """
    form = format_of(path, format)
    is_plain = not is_archive(path) if form is None else form.name == "txt"
    return is_plain and not fields and header is None


# === Texts, with or without labels ===


@dataclass(frozen=True)
class TextTable:
    """The rows of a file, as lists of one length.

    Attributes:
        texts: tuples of str, of which the last item may be a tuple of choices.
        labels: as the file has them, or None if none were read.
        places: `Place` of each row.
        groups: for each row, pairs of a column and a value by which rows are grouped,
            or None.
        skipped: pairs of a line, or row, that was left out, and why.
    """

    texts: list[tuple[Value, ...]]
    labels: list[Value] | None
    places: list[Place]
    groups: list[tuple[tuple[int, str], ...]] | None = None
    skipped: list[tuple[int, str]] = field(default_factory=list)

    @property
    def lines(self) -> list[int]:
        """The number of the line, or of the row, of each."""
        return [place.number for place in self.places]


def read_table(
    path: str | os.PathLike[str],
    count: int,
    fields: Sequence[str] = (),
    labelled: bool = True,
    or_first: bool = False,
    format: str | None = None,
    groups: Sequence[str] = (),
    skipped: list[tuple[int, str]] | None = None,
    has_choices: bool = False,
    has_tokens: bool = False,
    header: str | None = None,
    encoding: str = UTF_8,
    classes: Collection[str] | None = (),
    may_be_empty: bool = False,
) -> TextTable:
    """Reads the texts and labels of a file.

    Args:
        path: of the file, or a URI; "-" is standard input, as a `.txt`.
        count: int. Texts of a row, choices counted as one.
        fields: names of `count` texts and of the label, or numbers of columns. A text
            that is a list of texts is joined by "、". Without
            any they are `text` (`first`, `second`, `third` for several) and `label`,
            or the first columns of a table that has no such header.
        labelled: bool. Whether the label is read.
        or_first: bool. Whether a `.txt` that lacks these fields is read as if none
            were given.
        format: name of a format, where the extension does not say it.
        groups: more columns or keys to read, or those of the texts, by name or number.
        skipped: list or None. If given, rows that lack a field or have no text are left
            out, and their lines and reasons are added to it.
        has_choices: bool. Whether the last text of a row is a list of choices: in a
            table a JSON list in its cell, or the numbered columns of
            `choices.choice_columns`.
        has_tokens: bool. True if a text that is a list holds tokens, which
            `tagged.join_tokens` joins; a label of as many tags becomes a `TokenTags`.
        header: `"first"` if the first row of a table names its columns, `"none"` if it
            is a row as the others; if None, it does if it has the fields.
        encoding: of a text file, one of `ENCODINGS`; `"auto"` tries some.
        classes: labels that are known, which are no names of a column; None if any may
            be.
        may_be_empty: bool. Whether one of several texts of a row may be empty.

    Raises:
        ConfigurationError: there are not as many fields as texts and labels, or one
            comes again.
        SourceError: the file does not exist, is not of its kind or has no row, a field
            is missing, a row has another number of cells, a name comes twice, or the
            label of the first row is on no other and may be a name. Names file and
            line.
    """
    path, fields = os.fspath(path), tuple(fields)
    _check_fields(fields, count, labelled)
    names = (*text_names(count, has_choices), LABEL)[: count + labelled]
    wanted = Columns(
        names=names,
        count=count,
        fields=fields[: len(names)],
        or_first=or_first,
        groups=tuple(groups),
        has_choices=has_choices,
        header=header,
        classes=classes,
    )
    options = has_tokens, may_be_empty
    _, rows, places = checked_rows(path, wanted, format, encoding, *options)
    table = TextTable([], [] if labelled else None, [], [] if groups else None)
    for values, place, error in rows:
        if error is not None:
            if skipped is None:
                raise error
            reason = error.message.removeprefix(str(place)).lstrip(": ")
            table.skipped.append((place.number, reason))
            continue
        table.texts.append(values[:count])
        table.places.append(place)
        if table.labels is not None:
            table.labels.append(values[count])
        if table.groups is not None:
            cells_of = ((max(p - count + 1, 0), _group_of(values[p])) for p in places)
            table.groups.append(tuple(cell for cell in cells_of if cell[1]))
    if skipped is not None:
        skipped += table.skipped
    if not table.texts:
        why = ""
        if table.skipped:
            line, reason = table.skipped[0]
            why = f" that can be read; {place.unit} {line}: {reason}"
        raise SourceError(f"{File(path).name} has no row{why}")
    return table


def read_texts(
    path: str,
    count: int,
    fields: Sequence[str] = (),
    format: str | None = None,
    header: str | None = None,
    encoding: str = UTF_8,
) -> Iterator[Row]:
    """The texts of a file without labels; single ones are lines, which may be blank.

    It is a table if there are several texts, by its ending, or by the arguments.
    """
    if count == 1 and is_lines(path, fields, format, header):
        return line_rows(path, encoding)
    _check_fields(fields, count, labelled=False)
    wanted = Columns(
        names=text_names(count),
        count=count,
        fields=tuple(fields)[:count],
        header=header,
        classes=(),
    )
    return checked_rows(path, wanted, format, encoding).rows


def checked_rows(
    path: str,
    wanted: Columns,
    format: str | None = None,
    encoding: str = UTF_8,
    has_tokens: bool = False,
    may_be_empty: bool = False,
) -> Table:
    """The rows of a file, whose texts are checked; others have their error."""
    table = open_table(path, wanted, format, encoding)
    names, count = table.names, wanted.count

    def checked(values: tuple[Value, ...], place: Place) -> Row:
        texts, others = values[: count - wanted.has_choices], values[count:]
        if has_tokens and wanted.is_labelled:
            # A label is `TokenTags` here.
            label = cast("Value", token_tags(texts[-1], others[0]))
            others = (label, *others[1:])
        texts = tuple(_joined(text, has_tokens) for text in texts)
        for name, text in zip(names, texts, strict=False):
            if problem := wrong_text(text, may_be_empty):
                raise ConfigurationError(
                    f"{problem} in {name!r}",
                    hint=Hint(
                        "name the texts with {fields}; leave rows without one out"
                    ),
                )
        if wanted.has_choices:
            texts = (*texts, parse_choices(values[count - 1]))
        return Row((*texts, *others), place)

    def rows() -> Iterator[Row]:
        for values, place, error in table.rows:
            try:
                yield Row((), place, error) if error else checked(values, place)
            except ConfigurationError as wrong:
                message = f"{place}: {wrong.message}"
                yield Row((), place, SourceError(message, hint=wrong.hint))

    return table._replace(rows=rows())


def _check_fields(fields: Sequence[str], count: int, labelled: bool) -> None:
    if fields and len(fields) not in (count + labelled, count + 1):
        raise ConfigurationError(
            f"fields must name {count} {'text' if count == 1 else 'texts'}"
            f"{' and a label' if labelled else ''}, got {name_list(fields)}"
        )
    if not all(map(str.strip, fields)):
        raise ConfigurationError(
            f"fields must be names that are not empty, got {list(fields)!r}"
        )
    if len(set(fields)) < len(fields):
        raise ConfigurationError(
            f"fields must name different columns, got {name_list(fields)}"
        )


def _group_of(value: Value) -> str:
    """The value of a column of `groups`; blank if there is none."""
    return "" if is_missing(value) else str(value).strip()


def _joined(text: Value, has_tokens: bool) -> Value:
    """A list of texts, such as tokens or keywords, as one text."""
    if not isinstance(text, list) or not all(isinstance(part, str) for part in text):
        return text
    return join_tokens(text) if has_tokens else "、".join(text)


# === Records of corpora ===


def read_records(
    path: str,
    fields: Sequence[str] = (),
    group: str | None = None,
    format: str | None = None,
    header: str | None = None,
    encoding: str = UTF_8,
) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """The records of a file of a corpus, and the group of each.

    Lines that are empty, and records whose every field is blank, are skipped. Values
    come without the spaces around them.
    """
    path, groups = os.fspath(path), () if group is None else (group,)
    if is_lines(path, (*fields, *groups), format, header):
        return _records(line_rows(path, encoding), 1, ())
    names = tuple(fields) or ("text",)
    wanted = Columns(
        names=names,
        count=len(names),
        fields=tuple(fields),
        groups=groups,
        header=header,
    )
    _, rows, places = open_table(path, wanted, format, encoding)
    return _records(rows, len(names), places)


def _records(
    rows: Iterator[Row], count: int, groups: Sequence[int]
) -> Iterator[tuple[tuple[str, ...], str | None]]:
    for values, place, error in rows:
        if error is not None:
            raise error
        texts = tuple([_as_text(value, place) for value in values])
        group = texts[groups[0]] if groups else None
        if any(texts[:count]):
            yield texts[:count], group


def _as_text(value: Value, place: Place) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "".join(value).strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise SourceError(
        f"{place}: a field must be a string, a list of strings or a number, got "
        f"{value!r:.60}"
    )

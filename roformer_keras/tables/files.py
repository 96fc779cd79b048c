"""The one reader of texts in files: labelled texts for tasks, records for corpora.

The extension, or `format`, says what a file is; `.gz` or `.xz` after it is unpacked.

.jsonl          an object a line; fields are its keys
.json           a list of objects
.csv, .tsv, .xlsx
                a row a row; fields are columns, by number from "1" or by name; see
                `cells`
.bio, .conll    a token and its tag a line, an empty line after each text
.parquet, .arrow, .ipc, .feather, and folders of `datasets.Dataset.save_to_disk`:
                a row a row; fields are columns, as the keys of .jsonl; see `arrow`
format "squad"  a question a row, in one nested JSON object; see `squad`
any other       a corpus has a text a line; labelled texts are in .txt, with tabs
                between

In a table, if `fields` are names, the first line must be a header that contains them;
if they are numbers of columns, there is no header. Without `fields`, a corpus is in the
first column and has no header, and labelled texts have a header if the first line
contains `text` and `label` (`first`, `second` and `label` for pairs; `context`,
`question`, `choices` and `label` for rows with choices). `header` says it instead.

All rows of a table have as many cells as its header, or else as most rows. No column
name, and no key of an object, comes twice.
"""

import os
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import (
    ConfigurationError,
    Hint,
    SourceError,
    name_list,
    refuse,
)
from roformer_keras.base.types import FileEncoding, FileFormat, FileHeader
from roformer_keras.tables import arrow, cells, choices, squad
from roformer_keras.tables.lines import (
    OPENERS,
    UTF_8,
    file_name,
    place_line,
    read_lines,
)
from roformer_keras.tables.objects import read_objects
from roformer_keras.tables.tagged import join_tokens, read_tagged, token_tags

_TAGGED = (".bio", ".conll")
_OTHER_NAMES = {".ndjson": ".jsonl"}
_OBJECTS = (".jsonl", ".json")
# Files whose fields have names in each row.
_KEYED = (*_OBJECTS, ".parquet", ".arrow", ".squad")
# Files that have rows and no lines.
_ROWS = (".json", ".xlsx", ".parquet", ".arrow", ".squad")
_TEXT_HINT = Hint("name the texts with {fields}; leave rows without one out")
# What `format`, `header` and `encoding` can be.
FORMATS: tuple[str, ...] = typing.get_args(FileFormat)
HEADERS: tuple[str, ...] = typing.get_args(FileHeader)
ENCODINGS: tuple[str, ...] = typing.get_args(FileEncoding)
# Formats that no extension says.
_NAMED = ("squad",)
# Files that have lines, but no texts in them.
_NO_CORPUS = (".zip", ".tar", ".bz2", ".zst", ".gz", ".xz", ".squad")


# === Labelled texts ===


@dataclass(frozen=True)
class Table:
    """The rows of a file."""

    texts: list
    labels: list | None
    lines: list
    groups: list | None = None


def text_names(count: int, has_choices: bool = False) -> tuple[str, ...]:
    """The JSON keys of the texts of a row, unless others are given."""
    if has_choices:
        return ("context", *["question"] * (count > 2), "choices")
    return ("text",) if count == 1 else ("first", "second", "third")[:count]


def row_names(row: Sequence) -> tuple[str, ...]:
    """The names of the texts of a row that was read, as in `text_names`."""
    return text_names(len(row), not isinstance(row[-1], str))


def read_table(
    path: str | os.PathLike,
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
) -> Table:
    """Reads the texts and labels of a file.

    Args:
        path: of the file; "-" is standard input, as a `.txt`.
        count: int. Texts of a row, choices counted as one.
        fields: names of `count` texts and of the label, or numbers of columns. A text
            that is a list of texts is joined by "、". Without
            any they are `text` (`first`, `second`, `third` for several) and `label`,
            or the first columns of a table that has no such header.
        labelled: bool. Whether the label is read.
        or_first: bool. Whether a `.txt` that lacks these fields is read as if none
            were given.
        format: str of `FORMATS`, where the extension does not say it.
        groups: more columns or keys to read, or those of the texts, by name or number.
        skipped: list or None. If given, rows that lack a field or have no text are left
            out, and their lines and reasons are added to it.
        has_choices: bool. Whether the last text of a row is a list of choices: in a
            table a JSON list in its cell, or the numbered columns of
            `choices.choice_columns`.
        has_tokens: bool. Whether a text that is a list is one of tokens, which
            `tagged.join_tokens` joins; a label of as many tags becomes a `TokenTags`.
        header: `"first"` if the first row of a table names its columns, `"none"` if it
            is a row as the others; as above if None.
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
    path, kind = os.fspath(path), _kind(os.fspath(path), format)
    check_choice("encoding", encoding, ENCODINGS)
    if header is not None:
        check_choice("header", header, HEADERS)
    _check_fields(fields, count, labelled)
    _check_kind(path, kind, groups)
    where = name_places(path, format)
    names = (*text_names(count, has_choices), "label")[: count + labelled]
    keys: tuple[str, ...] = ()
    places: list[int] = []
    if kind in _TAGGED:
        rows = read_tagged(path, count, encoding)
    elif kind in _KEYED:
        if kind == ".squad":
            names = _squad_names(path, count)[: count + labelled]
        keys = tuple(fields[: count + labelled]) or names
        keys, places = _with_groups(keys, groups)
        rows = _read_keys(path, kind, keys, encoding)
    else:
        sheet = cells.Sheet(path, kind, where, encoding)
        if count == 1 and not fields and sheet.has_columns(("first", "second")):
            raise SourceError(
                f"{file_name(path)} has the columns 'first' and 'second', and one text "
                "of each row is read",
                hint=Hint("name the columns by {fields}"),
            )
        if kind == ".txt" and or_first and not sheet.has_columns(fields):
            fields = ()
        rows, places = sheet.select(
            fields,
            names,
            count,
            header=header,
            groups=groups,
            has_choices=has_choices,
            classes=classes,
        )
    options = count, has_choices, has_tokens, may_be_empty
    table = Table([], [] if labelled else None, [], [] if groups else None)
    for line, values in rows:
        try:
            if isinstance(values, SourceError):
                raise values
            if has_tokens and labelled:
                text = values[count - has_choices - 1]
                values[count] = token_tags(text, values[count])
            texts = _texts_of(values, *options, keys, where(line))
        except SourceError as error:
            if skipped is None:
                raise
            reason = error.message.removeprefix(where(line)).lstrip(": ")
            skipped.append((line, reason))
            continue
        table.texts.append(texts)
        table.lines.append(line)
        if table.labels is not None:
            table.labels.append(values[count])
        if table.groups is not None:
            cells_of = ((max(p - count + 1, 0), _group_of(values[p])) for p in places)
            table.groups.append(tuple(cell for cell in cells_of if cell[1]))
    if not table.texts:
        raise _no_row(path, format, skipped)
    return table


def _no_row(path, format, skipped):
    why = ""
    if skipped:
        line, reason = skipped[0]
        why = f" that can be read; {row_unit(path, format)} {line}: {reason}"
    return SourceError(f"{file_name(path)} has no row{why}")


def _check_fields(fields, count, labelled):
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


def _check_kind(path, kind, groups):
    if kind in _TAGGED and groups:
        raise SourceError(
            f"{file_name(path)} has tags and no columns {', '.join(groups)}",
            hint="leave holdout_by out",
        )
    if kind not in (*_TAGGED, *_KEYED, *cells.KINDS):
        endings = [f".{name}" for name in FORMATS if name not in _NAMED]
        raise SourceError(
            f"a file of labelled texts must be {', '.join(endings[:-1])} or "
            f"{endings[-1]}, or text of these with .gz or .xz after it, got {path}",
            hint=Hint(
                f"give {{format}} if it is one of {', '.join(FORMATS)} under another "
                "name"
            ),
        )


def _with_groups(keys, groups):
    """The keys with those of groups, and the places of these among them."""
    # Numbers in `groups` index `fields`.
    numbers = {str(number): key for number, key in enumerate(keys, start=1)}
    named = [numbers.get(group, group) for group in groups]
    keys = tuple(dict.fromkeys((*keys, *named)))
    return keys, [keys.index(group) for group in named]


def _texts_of(values, count, has_choices, has_tokens, may_be_empty, keys, where):
    """The texts of a row, of which the last may be a list of choices."""
    texts = tuple(_joined(text, has_tokens) for text in values[: count - has_choices])
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not (may_be_empty or text.strip()):
            column = f" in {keys[number]!r}" if keys else ""
            raise SourceError(
                f"{where}: a text must be a str that is not empty, got "
                f"{text!r:.60}{column}",
                hint=_TEXT_HINT if keys else None,
            )
    if has_choices:
        try:
            texts = (*texts, choices.parse_choices(values[count - 1]))
        except ConfigurationError as problem:
            message = f"{where}: {problem.message}"
            raise SourceError(message, hint=problem.hint) from None
    return texts


def _squad_names(path, count):
    if count != 2:
        raise SourceError(
            f"{file_name(path)} has questions and texts, which are for tasks of two "
            "texts a row"
        )
    return squad.FIELDS


def is_missing(value: Any) -> bool:
    """True if a cell holds nothing: None, NaN, or what pandas has for these."""
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _group_of(value):
    """The value of a column of `groups`; blank if there is none."""
    return "" if is_missing(value) else str(value).strip()


def _joined(text, has_tokens):
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
    kind = _kind(path, format)
    refuse(
        kind in _NO_CORPUS,
        "a corpus must be of .parquet, .arrow, .xlsx, .json, .jsonl, .csv, .tsv or "
        "plain text such as .txt, text with or without .gz or .xz after it, got "
        f"{path}: convert it, or unpack it",
        error=SourceError,
    )
    group_key = () if group is None else (group,)
    if kind in _KEYED:
        names = (*(fields or ("text",)), *group_key)
        rows = _read_keys(path, kind, names, encoding)
    elif kind in cells.KINDS and kind != ".txt":
        names = (*(fields or ("1",)), *group_key)
        sheet = cells.Sheet(path, kind, name_places(path, format), encoding)
        rows = sheet.stream(names, header)
    elif fields or group is not None:
        raise ConfigurationError(
            f"plain text has neither fields nor group, {path} is given "
            f"fields={list(fields)!r}, group={group!r}",
            hint="name it .jsonl, .csv or .tsv if it is that",
        )
    else:
        rows = ((line, [text]) for line, text in read_lines(path, encoding))
    return _clean(rows, group is not None, name_places(path, format))


def _clean(rows, has_group, where):
    for line, values in rows:
        if isinstance(values, SourceError):
            raise values
        values = tuple([_as_text(value, line, where) for value in values])
        group = values[-1] if has_group else None
        values = values[:-1] if has_group else values
        if any(values):
            yield values, group


def _as_text(value, line, where):
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "".join(value).strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise SourceError(
        f"{where(line)}: a field must be a string, a list of strings or a "
        f"number, got {value!r:.60}"
    )


# === Rows and objects ===


def read_texts(
    path: str,
    count: int,
    layout: Mapping[str, Any],
    skipped: list[tuple[int, str]] | None = None,
) -> list[tuple[int, tuple]]:
    """Pairs of a line and its texts, of a file without labels.

    Single texts are lines, which may be blank, unless the file is a table by its name
    or by the layout.
    """
    is_stated = any(layout.get(name) for name in ("fields", "format", "header"))
    if count > 1 or is_stated or is_table(path):
        table = read_table(path, count, labelled=False, skipped=skipped, **layout)
        return list(zip(table.lines, table.texts, strict=True))
    return [
        (line, (text.removesuffix("\n").removesuffix("\r"),))
        for line, text in read_lines(path, layout.get("encoding", UTF_8))
    ]


def name_places(path: str, format: str | None = None) -> Callable[[int], str]:
    """A function from the number of a line or row to where it stands, for errors."""
    if row_unit(path, format) == "row":
        return lambda row: f"row {row} of {file_name(path)}"
    return lambda line: place_line(line, path)


def place(line: int, path: str, format: str | None = None) -> str:
    """Position in a file, as errors say it; arguments as in `name_places`."""
    return name_places(path, format)(line)


def is_table(path: str) -> bool:
    """True for files of rows or objects, by their name; others are lines of text."""
    kind = _kind(path)
    return kind != ".txt" and kind in (*_KEYED, *cells.KINDS)


def row_unit(path: str, format: str | None = None) -> str:
    """`"row"` for files that have rows and no lines, such as Parquet; else `"line"`."""
    return "row" if _kind(path, format) in _ROWS else "line"


def _kind(path, format=None):
    if format is not None:
        check_choice("format", format, FORMATS)
        return f".{format}"
    if arrow.is_saved_dataset(path):
        return ".arrow"
    stem, kind = os.path.splitext("stdin.txt" if path == "-" else path.lower())
    if kind in arrow.KINDS:
        return arrow.KINDS[kind]
    if kind in OPENERS:
        kind = os.path.splitext(stem)[1]
    return _OTHER_NAMES.get(kind, kind)


def _read_keys(path, kind, keys, encoding):
    """Line or row numbers and the values of some keys, or a SourceError."""
    if kind in _OBJECTS:
        return read_objects(path, kind, keys, encoding)
    if kind == ".squad":
        return squad.read_questions(path, keys, encoding)
    return arrow.read_columns(path, kind, keys)

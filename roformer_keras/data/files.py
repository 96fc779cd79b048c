"""The one reader of texts in files: labelled texts for tasks, records for corpora.

The extension, or `format`, says what a file is; `.gz` or `.xz` after it is unpacked.

.jsonl          an object a line; fields are its keys
.csv, .tsv      a row a line; fields are columns, by number from "1" or by name
.bio, .conll    a token and its tag a line, an empty line after each text
.parquet, .arrow, .ipc, .feather, and folders of `datasets.Dataset.save_to_disk`:
                a row a row; fields are columns, as the keys of .jsonl; see `arrow`
format "squad"  a question a row, in one nested JSON object; see `squad`
format "c3", "chid"
                a question with choices a row; see `choices`
any other       a corpus has a text a line; labelled texts are in .txt, as in .tsv

In a table, if `fields` are names, the first line must be a header that contains them;
if they are numbers of columns, there is no header. Without `fields`, a corpus is in the
first column and has no header, and labelled texts have a header if the first line
contains `text` and `label` (`first`, `second` and `label` for pairs; `context`,
`question`, `choices` and `label` for rows with choices).
"""

import contextlib
import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roformer_keras.data import arrow, choices, squad
from roformer_keras.data.lines import (
    OPENERS,
    columns_error,
    file_name,
    place_line,
    read_lines,
)
from roformer_keras.data.tagged import read_tagged
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.io.json_file import check_unicode

_TABLES = (".csv", ".tsv")
_LONGEST_CELL = 2**31 - 1
_TAGGED = (".bio", ".conll")
# Files whose fields have names in each row.
_KEYED = (".jsonl", ".parquet", ".arrow", ".squad", *choices.FIELDS)
_TEXT_HINT = "name the texts with fields=; leave rows without one out"
# What `format` can be.
FORMATS = (
    *("csv", "tsv", "txt", "jsonl", "bio", "conll", "parquet", "arrow", "squad"),
    *("c3", "chid"),
)
# Files that have lines, but no texts in them.
_NO_CORPUS = (
    *(".json", ".zip", ".tar", ".bz2", ".zst", ".gz", ".xz", ".squad"),
    *choices.FIELDS,
)
# What a column of labels is often called, and a label seldom.
_LABEL_NAME = re.compile(
    r"(\w+[_ ])?(label|class|category|tag|target|score|rating|stars?|sentiment|emotion"
    r"|intent|topic|similarity|duplicate)s?|标签|类别|分类|情感|评分|分数|得分|星级|答案",
    re.IGNORECASE,
)


# === Labelled texts ===


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Attributes:
        texts: list of tuples of str, one tuple a row; of rows with choices, these are
            a tuple of str at the end.
        labels: list of what the last field holds, or None if it was not read.
        lines: list of int. The line of the file where each row begins, from 1.
        groups: list of tuples of (column, value), of each row in the columns that
            `groups` names and in which it is not blank. All texts of a row are column
            0, since a text may be the first of one row and the second of another. None
            if no column was named.
    """

    texts: list
    labels: list | None
    lines: list
    groups: list | None = None


def text_names(count: int, has_choices: bool = False) -> tuple[str, ...]:
    """The JSON keys of the texts of a row, unless others are given.

    Args:
        count: int. How many there are, choices counted as one.
        has_choices: bool. Whether the last one is a list of choices.
    """
    if has_choices:
        return choices.FIELDS[".chid" if count == 2 else ".c3"][:-1]
    return ("text",) if count == 1 else ("first", "second", "third")[:count]


def row_names(row: Sequence) -> tuple[str, ...]:
    """The names of the texts of a row that was read, as in `text_names`."""
    return text_names(len(row), not isinstance(row[-1], str))


def data_files(path: str, format: str | None = None) -> list[str]:
    """The files that are read for a path; arguments as in `read_table`."""
    if format == "c3":
        return choices.c3_files(path)
    if format == "chid":
        answers = choices.chid_answers(path)
        return [path, answers] if os.path.exists(answers) else [path]
    return arrow.data_files(path)


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
            `choices.gather_columns`.

    Raises:
        ConfigurationError: there are not as many fields as texts and labels, or one
            comes again.
        SourceError: the file does not exist, is not of its kind or has no row, a field
            is missing, or the first row seems to be a header. Names file and line.
    """
    path, kind = os.fspath(path), _kind(os.fspath(path), format)
    if kind in choices.FIELDS:
        if not has_choices:
            raise SourceError(
                f"{file_name(path)} has questions with choices, which are for the task "
                "multiple-choice"
            )
        count = count if fields else len(choices.FIELDS[kind]) - 1
    wanted = count + labelled
    if fields and len(fields) not in (wanted, count + 1):
        raise ConfigurationError(
            f"fields must name {count} {'text' if count == 1 else 'texts'}"
            f"{' and a label' if labelled else ''}, got {', '.join(fields)}"
        )
    if len(set(fields)) < len(fields):
        raise ConfigurationError(
            f"fields must name different columns, got {', '.join(fields)}"
        )
    fields = tuple(fields[:wanted])
    names = (*text_names(count, has_choices), "label")[:wanted]
    places: list[int] = []
    keys: tuple[str, ...] = ()
    if kind in _TAGGED:
        if groups:
            raise SourceError(
                f"{file_name(path)} has tags and no columns {', '.join(groups)}",
                hint="leave holdout_by out",
            )
        rows = read_tagged(path, count)
    elif kind in _KEYED:
        if kind == ".squad":
            names = _squad_names(path, count)[:wanted]
        keys = fields or names
        # A number is that of a field.
        numbers = {str(number): key for number, key in enumerate(keys, start=1)}
        named = [numbers.get(group, group) for group in groups]
        keys = tuple(dict.fromkeys((*keys, *named)))
        places = [keys.index(group) for group in named]
        rows = _read_keys(path, kind, keys)
    elif kind in _TABLES or kind == ".txt":
        cells = _read_cells(path, kind)
        last = (fields or names)[count - 1]
        if has_choices and not _are_numbers([last]):
            cells = choices.gather_columns(path, cells, last)
        rows, first = _peek(cells)
        first = [cell.strip() for cell in first]
        if kind == ".txt" and or_first and not _has_columns(first, fields):
            fields = ()
        if not fields:
            # A text that stands alone in a line of a `.txt` is a text.
            found = [cell.lower() for cell in first]
            has_names = set(names) <= set(found) and (kind != ".txt" or len(found) > 1)
            columns = map(found.index, names) if has_names else range(wanted)
            fields = [str(column + 1) for column in columns]
            rows = itertools.islice(rows, int(has_names), None)
            header = first if has_names else []
        else:
            header = [] if _are_numbers(fields) else first
        if groups:
            fields, places = _add_columns(path, fields, names, header, groups)
        rows = _take_columns(path, rows, fields)
    else:
        raise SourceError(
            "a file of labelled texts must be .csv, .tsv, .txt, .jsonl, .bio or "
            ".conll, with or without .gz or .xz after it, or .parquet or .arrow, got "
            f"{path}",
            hint="give format= if it is one of these under another name",
        )
    where = name_places(path, format)
    table = Table([], [] if labelled else None, [], [] if groups else None)
    for line, values in rows:
        error = values if isinstance(values, SourceError) else None
        texts = () if error else tuple(map(_joined, values[: count - has_choices]))
        for number, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                column = f" in {keys[number]!r}" if keys else ""
                error = SourceError(
                    f"{where(line)}: a text must be a str that is not empty, "
                    f"got {text!r:.60}{column}",
                    hint=_TEXT_HINT if keys else None,
                )
        if has_choices and not error:
            try:
                texts = (*texts, choices.parse_choices(values[count - 1]))
            except ConfigurationError as problem:
                message = f"{where(line)}: {problem.message}"
                error = SourceError(message, hint=problem.hint)
        if error:
            if skipped is None:
                raise error
            reason = error.message.removeprefix(where(line)).lstrip(": ")
            skipped.append((line, reason))
            continue
        table.texts.append(texts)
        table.lines.append(line)
        if table.labels is not None:
            table.labels.append(values[count])
        if table.groups is not None:
            cells = [(max(p - count + 1, 0), _group_of(values[p])) for p in places]
            table.groups.append(tuple(cell for cell in cells if cell[1]))
    if not table.texts:
        line, reason = skipped[0] if skipped else (0, "")
        unit = row_unit(path, format)
        why = f" that can be read; {unit} {line}: {reason}" if reason else ""
        raise SourceError(f"{file_name(path)} has no row{why}")
    if labelled and kind not in (*_KEYED, *_TAGGED):
        _check_first_label(path, table)
    return table


def _squad_names(path, count):
    if count != 2:
        raise SourceError(
            f"{file_name(path)} has questions and texts, which are for tasks of two "
            "texts a row"
        )
    return squad.FIELDS


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, or what pandas has for these."""
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _group_of(value):
    """The value of a column of `groups`; blank if there is none."""
    return "" if is_missing(value) else str(value).strip()


def _joined(text):
    """A list of texts, such as keywords, as one text."""
    is_list = isinstance(text, list) and all(isinstance(part, str) for part in text)
    return "、".join(text) if is_list else text


def _check_first_label(path, table):
    first = table.labels[0].strip()
    if _LABEL_NAME.fullmatch(first) and table.labels.count(table.labels[0]) == 1:
        raise SourceError(
            f"{place_line(table.lines[0], path)} seems to be a header: its "
            f"label {first!r} is on no other line",
            hint="name the columns of the header with fields=; if it is a row, move it "
            "to another line",
        )


# === Records of corpora ===


def read_records(
    path: str,
    fields: Sequence[str] = (),
    group: str | None = None,
    format: str | None = None,
) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """The records of a file of a corpus, and the group of each.

    Lines that are empty, and records whose every field is blank, are skipped. Values
    come without the spaces around them.

    Args:
        path: of the file.
        fields: keys or columns of a record; `text` or the first column without any.
            The values of JSON are strings, lists of strings, which are joined, or
            numbers. Plain text has no fields: its records are the lines.
        group: the key or column of the group, or None.
        format: str of `FORMATS`, where the extension does not say it.

    Raises:
        ConfigurationError: plain text has neither fields nor groups.
        SourceError: files of this kind are not read line by line; or, while reading,
            the file is damaged or a field is missing. Names file and line.
    """
    kind = _kind(path, format)
    if kind in _NO_CORPUS:
        raise SourceError(
            "a corpus must be of .parquet, .arrow, .jsonl, .csv, .tsv or plain text "
            "such as .txt, the last four with or without .gz or .xz after it, got "
            f"{path}: convert it, or unpack it"
        )
    more = () if group is None else (group,)
    if kind in _KEYED:
        names = (*(fields or ("text",)), *more)
        rows = _read_keys(path, kind, names)
    elif kind in _TABLES:
        names = (*(fields or ("1",)), *more)
        rows = _take_columns(path, _read_cells(path, kind), names)
    elif fields or group is not None:
        raise ConfigurationError(
            f"plain text has neither fields nor group, {path} is given "
            f"fields={list(fields)!r}, group={group!r}",
            hint="name it .jsonl, .csv or .tsv if it is that",
        )
    else:
        rows = ((line, [text]) for line, text in read_lines(path))
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


def name_places(path: str, format: str | None = None) -> Callable[[int], str]:
    """A function from the number of a line or row to where it stands, for errors.

    Args:
        path, format: of the file, as in `read_table`.
    """
    if row_unit(path, format) == "row":
        return lambda row: f"row {row} of {file_name(path)}"
    return lambda line: place_line(line, path)


def place(line: int, path: str, format: str | None = None) -> str:
    """Where something stands, as errors say it; arguments as in `name_places`."""
    return name_places(path, format)(line)


def row_unit(path: str, format: str | None = None) -> str:
    """`"row"` for files that have rows and no lines, such as Parquet; else `"line"`."""
    rows = (".parquet", ".arrow", ".squad", ".c3")
    return "row" if _kind(path, format) in rows else "line"


def _kind(path, format=None):
    if format is not None:
        return f".{format}"
    if arrow.is_saved_dataset(path):
        return ".arrow"
    stem, kind = os.path.splitext("stdin.txt" if path == "-" else path.lower())
    if kind in arrow.KINDS:
        return arrow.KINDS[kind]
    return os.path.splitext(stem)[1] if kind in OPENERS else kind


def _read_cells(path, kind):
    """Line numbers and cells of the rows that are not empty."""
    if kind != ".csv":
        for line, text in read_lines(path):
            cells = text.rstrip("\r\n").split("\t")
            if any(cells):
                yield line, cells
        return
    # A quoted cell may contain line feeds.
    reader = csv.reader((text for _, text in read_lines(path)), strict=True)
    line = 1
    while True:
        try:
            with long_cells():
                cells = next(reader, None)
        except csv.Error as error:
            raise SourceError(f"{place_line(line, path)} is no CSV: {error}") from error
        if cells is None:
            return
        if any(cells):
            yield line, cells
        line = reader.line_num + 1


@contextlib.contextmanager
def long_cells():
    """Lets cells be longer than the 131,072 characters that `csv` allows at first."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _peek(rows):
    """The same rows, and the cells of the first."""
    first = next(rows, None)
    return (rows, []) if first is None else (itertools.chain([first], rows), first[1])


def _take_columns(path, rows, fields):
    """The cells of some columns, by number or by the names of the first row.

    In place of the cells of a row that lacks some, its SourceError.
    """
    if _are_numbers(fields):
        places = [int(name) - 1 for name in fields]
    else:
        line, names = next(rows, (1, []))
        names = [cell.strip() for cell in names]
        if not _has_columns(names, fields):
            numbers = ",".join(str(number + 1) for number in range(len(fields)))
            raise SourceError(
                f"{place_line(line, path)} must name the columns "
                f"{', '.join(map(repr, fields))}, got {', '.join(map(repr, names))}",
                hint=f"fields={numbers} takes columns by number",
            )
        places = [names.index(name) for name in fields]
    for line, cells in rows:
        if isinstance(cells, SourceError):
            yield line, cells
        elif max(places) < len(cells):
            yield line, [cells[place] for place in places]
        else:
            yield line, columns_error(line, path, max(places) + 1, len(cells))


def _add_columns(path, fields, names, header, groups):
    """More columns to read after the fields, and where the values of each group are.

    Args:
        fields: names or numbers of columns.
        names: those that fields have if there is no header.
        header: cells of the header, empty if there is none.
        groups: names or numbers of columns.
    """
    fields, places, are_numbers = list(fields), [], _are_numbers(fields)
    for group in groups:
        if are_numbers and group not in header and group in names:
            places.append(names.index(group))
            continue
        if group in header:
            column = header.index(group)
        elif _are_numbers([group]) and (not header or int(group) <= len(header)):
            column = int(group) - 1
        else:
            shown = f", got {', '.join(map(repr, header))}" if header else ""
            raise SourceError(
                f"{file_name(path)} must have the column {group!r} of "
                f"holdout_by{shown}",
                hint="columns have numbers from 1",
            )
        field = str(column + 1) if are_numbers else header[column]
        if field not in fields:
            fields.append(field)
        places.append(fields.index(field))
    return fields, places


def _has_columns(names, fields):
    if _are_numbers(fields):
        return all(int(name) <= len(names) for name in fields)
    return set(fields) <= set(names)


def _are_numbers(fields):
    # int() takes no number of thousands of digits.
    return all(name.isdecimal() and len(name) < 10 and int(name) > 0 for name in fields)


def _read_keys(path, kind, keys):
    """Line or row numbers and the values of some keys; as in `_take_columns`."""
    if kind == ".jsonl":
        return _read_objects(path, keys)
    own = {
        ".squad": squad.read_questions,
        ".c3": choices.read_c3,
        ".chid": choices.read_chid,
    }
    if kind in own:
        return own[kind](path, keys)
    return arrow.read_columns(path, kind, keys)


def _read_objects(path, keys):
    """Line numbers and the values of some keys; as in `_take_columns`."""
    for line, text in read_lines(path):
        if not text.isspace():
            try:
                yield line, _values_of(text, keys, line, path)
            except SourceError as error:
                yield line, error


def _values_of(text, keys, line, path):
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{place_line(line, path)} must be a JSON object: {error}"
        ) from error
    if not isinstance(found, dict):
        raise SourceError(
            f"{place_line(line, path)} must be a JSON object, got {found!r:.60}"
        )
    if "\\u" in text:
        check_unicode(found, place_line(line, path), SourceError)
    if not found.keys() >= set(keys):
        raise SourceError(
            f"{place_line(line, path)} must have {', '.join(map(repr, keys))}, got "
            f"{', '.join(map(repr, found)) or 'none'}",
            hint="name others with fields=",
        )
    return [found[key] for key in keys]

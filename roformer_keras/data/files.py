"""Labelled texts of files, as lists: what `fit` of a task takes."""

import csv
import gzip
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roformer_keras.data.headers import columns_of_header, is_header
from roformer_keras.errors import ConfigurationError, SourceError

__all__ = ["Table", "read_table", "text_names"]

_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_SEPARATED = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_TAGGED = (".bio", ".conll")
_KINDS = ".csv, .tsv, .jsonl, .bio or .conll, each also with .gz or .xz behind"


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Attributes:
        texts: list of tuples of str, of one row each.
        labels: list of what the last field holds, or None where it was not read.
        lines: list of int. Where each row begins in the file, counted from 1.
    """

    texts: list
    labels: list | None
    lines: list


def read_table(
    path: str | os.PathLike,
    count: int,
    fields: Sequence[str] = (),
    labelled: bool = True,
    or_first: bool = False,
) -> Table:
    """Reads texts and labels of a file, which its extension tells the kind of.

    - `.jsonl`: an object a line. Fields are keys.
    - `.csv`, and `.tsv` or `.txt` with tabs: fields are columns, by number from `"1"`,
      or by the names in the first line. A first line that has the names of JSON, or
      others that are usual for columns, is none of the rows; but a `.txt` of one column
      has no such line. CSV is quoted as RFC 4180 says, tabs are not.
    - `.bio`, `.conll`: a token and its tag a line, with spaces or a tab between, and an
      empty line behind each text. A tag is given to each character of its token.

    Args:
        path: of the file; `.gz` or `.xz` behind the extension are unpacked. "-" is
            standard input, as a `.txt`.
        count: int. Texts of a row.
        fields: names of `count` texts and of the label. If none are given, columns
            from the first on, and of JSON `text` (`first`, `second`, `third` for
            several) and `label`.
        labelled: bool. Whether the label is read.
        or_first: bool. Whether a `.txt` that does not have these fields is read as if
            none were given.

    Raises:
        ConfigurationError: there are not as many fields as texts and labels.
        SourceError: the file does not exist, is not of its kind or has no row; a field
            is missing; or the first line names the columns, and does not tell which
            ones to take. Names file and line.
    """
    path = os.fspath(path)
    wanted = count + labelled
    if fields and len(fields) not in (wanted, count + 1):
        raise ConfigurationError(
            f"fields must name {count} {'text' if count == 1 else 'texts'}"
            f"{' and a label' if labelled else ''}, got {', '.join(fields)}"
        )
    stem, kind = os.path.splitext("stdin.txt" if path == "-" else path.lower())
    if kind in _OPENERS:
        kind = os.path.splitext(stem)[1]
    if kind in _TAGGED:
        rows = _tagged_rows(path, count)
    elif kind == ".jsonl":
        names = fields or _default_names(count, labelled)
        rows = _json_rows(path, names[:wanted])
    elif kind in _SEPARATED:
        rows = _separated_rows(path, kind, fields[:wanted], count, labelled, or_first)
    else:
        raise SourceError(f"a file of labelled texts must be {_KINDS}, got {path}")
    texts, labels, lines = [], [], []
    for line, values in rows:
        row = tuple(values[:count])
        for text in row:
            if not isinstance(text, str) or not text.strip():
                raise SourceError(
                    f"line {line} of {path}: a text must be a str that is not empty, "
                    f"got {text!r:.60}"
                )
        texts.append(row)
        lines.append(line)
        labels.append(values[count] if labelled else None)
    if not texts:
        raise SourceError(f"{path} has no row")
    return Table(texts, labels if labelled else None, lines)


def text_names(count: int) -> tuple[str, ...]:
    """What the texts of a row are called in JSON, if nothing else is said."""
    return ("text",) if count == 1 else ("first", "second", "third")[:count]


def _lines(path) -> Iterator[str]:
    opener = _OPENERS.get(os.path.splitext(path)[1].lower(), open)
    options = {"encoding": "utf-8-sig", "newline": ""}
    try:
        if path == "-":
            yield from io.TextIOWrapper(sys.stdin.buffer, **options)
            return
        with opener(path, "rt", **options) as file:
            yield from file
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} must be UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SourceError(f"cannot read {path}: {reason}") from error


def _json_rows(path, names):
    for line, text in enumerate(_lines(path), start=1):
        if text.isspace():
            continue
        try:
            found = json.loads(text)
        except ValueError as error:
            raise SourceError(
                f"line {line} of {path} must be a JSON object: {error}"
            ) from error
        if not isinstance(found, dict):
            raise SourceError(
                f"line {line} of {path} must be a JSON object, got {found!r:.60}"
            )
        missing = [name for name in names if name not in found]
        if missing:
            raise SourceError(
                f"line {line} of {path} must have {', '.join(map(repr, names))}, got "
                f"{', '.join(map(repr, found)) or 'none'}",
                hint="name others with fields=",
            )
        yield line, [found[name] for name in names]


def _separated_rows(path, kind, fields, count, labelled, or_first):
    if _SEPARATED[kind] == "\t":
        rows = (
            (line, text.rstrip("\r\n").split("\t"))
            for line, text in enumerate(_lines(path), start=1)
        )
    else:
        # A quoted cell may go over several lines.
        rows = _csv_rows(csv.reader(_lines(path), strict=True), path)
    rows = [(line, cells) for line, cells in rows if any(cells)]
    if not rows:
        return
    line, first = rows[0]
    names = [cell.strip() for cell in first]
    if or_first and kind == ".txt" and not _has(fields, names):
        fields = ()
    # What stands alone in a line of plain text is a text.
    has_header = (kind != ".txt" or len(names) > 1) and (
        set(_default_names(count, labelled)) <= set(names)
        or is_header([cells for _, cells in rows])
    )
    if fields and _are_numbers(fields):
        places = [int(name) - 1 for name in fields]
    elif fields:
        if not _has(fields, names):
            numbers = ",".join(str(number + 1) for number in range(len(fields)))
            raise SourceError(
                f"line {line} of {path} must name the columns "
                f"{', '.join(map(repr, fields))}, got {', '.join(map(repr, names))}",
                hint=f"fields={numbers} takes columns by number",
            )
        places, has_header = [names.index(name) for name in fields], True
    elif has_header:
        places = _columns_of(names, count, labelled, f"line {line} of {path}")
    else:
        places = list(range(count + labelled))
    for line, cells in rows[has_header:]:
        if max(places) >= len(cells):
            raise SourceError(
                f"line {line} of {path} must have {max(places) + 1} columns, got "
                f"{len(cells)}"
            )
        yield line, [cells[place] for place in places]


def _has(fields, names):
    """Whether a first line of these cells has the fields, by number or by name."""
    if _are_numbers(fields):
        return all(int(name) <= len(names) for name in fields)
    return set(fields) <= set(names)


def _are_numbers(fields):
    return all(name.isdecimal() and int(name) > 0 for name in fields)


def _columns_of(names, count, labelled, where):
    """Which columns the first line tells to take."""
    lowered = [name.lower() for name in names]
    wanted = _default_names(count, labelled)
    if set(wanted) <= set(lowered):
        return [lowered.index(name) for name in wanted]
    found = columns_of_header(names, count, labelled)
    if found is None:
        raise SourceError(
            f"{where} names the columns {', '.join(map(repr, names))}, and not plainly "
            f"{count} {'text' if count == 1 else 'texts'}"
            f"{' and a label behind' if labelled else ''}",
            hint="give fields= the names of "
            f"{'these' if labelled else 'those to read'}, in this order",
        )
    return found


def _default_names(count, labelled):
    return (*text_names(count), "label")[: count + labelled]


def _csv_rows(reader, path):
    line = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise SourceError(f"line {line} of {path} is no CSV: {error}") from error
        if cells is None:
            return
        yield line, cells
        line = reader.line_num + 1


def _tagged_rows(path, count):
    if count != 1:
        raise SourceError(f"{path} has tags, which are for tasks of one text a row")
    characters, tags, begins = [], [], None
    # An empty line ends the last text too.
    for line, text in enumerate((*_lines(path), "\n"), start=1):
        words = text.split()
        if not words:
            if characters:
                yield begins, ["".join(characters), tags]
            characters, tags, begins = [], [], None
            continue
        if len(words) < 2:
            raise SourceError(
                f"line {line} of {path} must be a token and its tag, got {text!r:.60}"
            )
        token, tag = words[0], words[-1]
        begins = begins or line
        characters.append(token)
        inside = "I" + tag[1:] if tag.startswith("B-") else tag
        tags += [tag, *[inside] * (len(token) - 1)]

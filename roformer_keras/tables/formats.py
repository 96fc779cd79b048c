"""The formats of files of tables, each registered once.

A format is a reader of rows: of cells, or of objects by key.
Every command and function that reads tables reads all formats that are registered;
flags, settings and errors list them.
"""

import dataclasses
import os
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from roformer_keras.base.checks import check_choice
from roformer_keras.tables import arrow, cells, objects, sheets, tagged
from roformer_keras.tables.opening import UNPACKERS, File, is_uri
from roformer_keras.tables.table import RawRow


@dataclasses.dataclass(frozen=True)
class Format:
    """A reader of files, and the names by which it is chosen.

    Args:
        name: value of `format`.
        read: function from a `File` and the keys that are asked for to numbers and
            rows: lists of cells as str, or objects by key, which may leave out other
            keys. In place of a bad object is its SourceError.
        rows: what `read` gives, `"cells"` or `"objects"`.
        endings: of file names, with the dot.
        unit: what the numbers count, `"line"` or `"row"`.
        needs: what needs a library of an extra, as in `base.extras`.
        names: of the texts and the label, unless fields are given; each row has as many
            texts then.
        is_fixed: whether fields give no other names.
    """

    name: str
    read: Callable[[File, Sequence[str]], Iterator[RawRow]]
    rows: Literal["cells", "objects"] = "objects"
    endings: tuple[str, ...] = ()
    unit: Literal["line", "row"] = "line"
    needs: str | None = None
    names: tuple[str, ...] = ()
    is_fixed: bool = False


FORMATS: dict[str, Format] = {}
# Values of `format`, with None where the ending of a file says it.
FORMAT_CHOICES: Mapping[str | None, Format | None] = ChainMap(
    FORMATS,  # type: ignore[arg-type]
    {None: None},
)


def register(format: Format) -> None:
    """Adds a format, or replaces the one of its name."""
    FORMATS[format.name] = format


def format_of(path: str, format: str | None = None) -> Format | None:
    """The format of a file by name or ending, or None for lines of text."""
    if format is not None:
        check_choice("format", format, FORMATS)
        return FORMATS[format]
    ending = ".arrow" if arrow.is_saved_dataset(path) else _ending(path)
    matches = (one for one in FORMATS.values() if ending in one.endings)
    return next(matches, None)


def is_archive(path: str) -> bool:
    """True for a file that holds others, or is packed in a way that is not read."""
    return _ending(path) in (".zip", ".tar", ".bz2", *UNPACKERS)


def _ending(path: str) -> str:
    """The ending of a file without that of its packing."""
    if path == "-":
        return ".txt"
    path = path.lower().partition("?")[0] if is_uri(path) else path.lower()
    stem, ending = os.path.splitext(path)
    return os.path.splitext(stem)[1] if ending in UNPACKERS else ending


def shown_endings() -> str:
    """The endings of all formats, as errors list them."""
    *endings, last = [one.endings[0] for one in FORMATS.values() if one.endings]
    return f"{', '.join(endings)} or {last}"


_NEEDS_ARROW = "a Parquet or Arrow file"
for _format in (
    Format("csv", cells.read_csv, "cells", (".csv",)),
    Format("tsv", cells.read_tsv, "cells", (".tsv",)),
    Format("txt", cells.read_txt, "cells", (".txt",)),
    Format("xlsx", sheets.read_sheet, "cells", (".xlsx",), "row", "an .xlsx file"),
    Format("jsonl", objects.read_lines, endings=(".jsonl", ".ndjson")),
    Format("json", objects.read_list, endings=(".json",), unit="row"),
    *(
        Format(
            name,
            tagged.read_tagged,
            endings=(f".{name}",),
            names=("text", "label"),
            is_fixed=True,
        )
        for name in ("bio", "conll")
    ),
    Format(
        "parquet",
        arrow.read_parquet,
        endings=(".parquet",),
        unit="row",
        needs=_NEEDS_ARROW,
    ),
    Format(
        "arrow",
        arrow.read_arrow,
        endings=(".arrow", ".ipc", ".feather"),
        unit="row",
        needs=_NEEDS_ARROW,
    ),
    Format(
        "squad",
        objects.read_squad,
        unit="row",
        names=("question", "context", "answers"),
    ),
):
    register(_format)

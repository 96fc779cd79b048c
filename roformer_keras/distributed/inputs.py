"""Input files of any file system, indexed into pieces that can be read alone.

A piece is some rows of one file that follow each other. The index says where each one
starts, so that any process can read it, and the number of its first row among the rows
of all files.

.parquet        rows; a piece lies in one row group
.jsonl, .ndjson an object a line; empty lines are no rows
.csv, .tsv      a row a line, the first line names the columns; without a header
                they have numbers; cells are texts, in quotes as `data.cells` says
.txt            a row a line; several texts of a row have tabs between
"""

import csv
import dataclasses
import fnmatch
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from roformer_keras.data.cells import has_quoted_cells, long_cells, separator_of
from roformer_keras.data.objects import parse_object
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.extras import import_extra
from roformer_keras.io.atomic import one_line

_KINDS = {"parquet", "jsonl", "csv", "tsv", "txt"}
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".br", ".zip"}
# Encodings in which no part of a character is a line feed.
_ENCODINGS = ("utf-8", "gbk", "gb18030", "big5")
# A TSV whose quotes are characters.
_PLAIN = "plain"
_KIND_OF = {".ndjson": "jsonl", **{f".{kind}": kind for kind in _KINDS}}
# Bytes that are read at once, and files that are indexed at once.
_BLOCK, _THREADS = 2**24, 16


class Piece(NamedTuple):
    """Some rows of a file.

    Attributes:
        file: index of the file.
        line: where its first row stands, from 1: the line; of Parquet the row.
        rows: how many rows it has; of text files, lines or records.
        first: number of its first row among the rows of all files, from 0.
        start, stop: the bytes; of Parquet the row group, and its first row in it.
    """

    file: int
    line: int
    rows: int
    first: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files of a job, which can be sent to a worker.

    Attributes:
        filesystem: `pyarrow.fs.FileSystem`.
        kind: `"parquet"`, `"jsonl"`, `"csv"`, `"tsv"` or `"txt"`.
        files: lists of path, size in bytes and time of change in ns.
        columns: names of the columns; empty for objects, each of which has its own.
        has_header: bool. Whether the first row of a table names them; else they have
            numbers from "1".
        encoding: of text files.
        separators: what is between the cells of each table, if these may be in quotes;
            else `"plain"`.
    """

    filesystem: Any
    kind: str
    files: list[list]
    columns: tuple[str, ...] = ()
    has_header: bool = True
    encoding: str = "utf-8"
    separators: tuple[str, ...] = ()

    def place(self, file: int, line: int) -> str:
        """Position of a row, as errors say it."""
        unit = "row" if self.kind == "parquet" else "line"
        return f"{unit} {line} of {self.files[file][0]}"


def open_place(place: str | os.PathLike) -> tuple[Any, str]:
    """The file system of a path or URI, and the path in it.

    Raises:
        ConfigurationError: pyarrow does not know the file system.
    """
    fs = import_extra("pyarrow.fs", "--engine ray")
    place = os.fspath(place)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", place):
        return fs.LocalFileSystem(), os.path.abspath(place)
    # Wildcards are no part of a URI, whose options follow a question mark.
    place, mark, options = place.partition("?")
    head = re.split(r"[^/]*[*\[]", place, maxsplit=1)[0]
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{head}{mark}{options}")
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            f"{place} must be a path, or a URI that pyarrow knows such as s3:// or "
            f"gs://: {one_line(error)}"
        ) from error
    return filesystem, f"{path.rstrip('/')}/{place[len(head) :]}".rstrip("/")


def find_inputs(
    place: str | os.PathLike,
    format: str | None = None,
    header: str | None = None,
    encoding: str = "utf-8",
) -> Inputs:
    """The files of a path, a folder with all below it, or a pattern, sorted by path.

    Files and folders whose names begin with `.` or `_` are no inputs.

    Args:
        place: path or URI; of a pattern, `*` also matches `/`.
        format: one of `.parquet`, `.jsonl`, `.csv`, `.tsv` and `.txt` without the dot,
            where extensions do not say it.
        header: `"none"` if the first row of .csv and .tsv is no header.
        encoding: of text files, one whose lines can be read alone.

    Raises:
        ConfigurationError: pieces of files of the encoding cannot be read.
        SourceError: there are none, or they are of several kinds, or of another one.
    """
    fs = import_extra("pyarrow.fs", "--engine ray")
    if encoding not in _ENCODINGS:
        raise ConfigurationError(
            f"pieces of files are read in {', '.join(_ENCODINGS)}, got "
            f"encoding={encoding!r}",
            hint="convert the files to UTF-8, for instance with iconv",
        )
    filesystem, path = open_place(place)
    try:
        found = _list_files(fs, filesystem, path)
    except OSError as error:
        raise SourceError(f"cannot read {place}: {one_line(error)}") from error
    if not found:
        raise SourceError(f"{place} has no file to read")
    kinds = {os.path.splitext(one.path)[1].lower() for one in found}
    known = {_KIND_OF.get(kind, kind) for kind in kinds}
    if format and not kinds & _COMPRESSED:
        known = {format}
    if len(known) > 1 or not known <= _KINDS:
        raise SourceError(
            "the files must all be .parquet, or all .jsonl, .csv, .tsv or .txt, not "
            f"compressed, got {', '.join(sorted(kinds))} in {place}",
            hint="give a pattern such as 'FOLDER/*.jsonl', or format=",
        )
    files = [[one.path, one.size, one.mtime_ns] for one in found]
    has_header = header != "none"
    return Inputs(
        filesystem, known.pop(), files, has_header=has_header, encoding=encoding
    )


def reads_from(place: str | os.PathLike, filesystem: Any, folder: str) -> bool:
    """True if files in a folder would be among those of a place, see `find_inputs`."""
    own, path = open_place(place)
    if own != filesystem:
        return False
    file = f"{folder}/part-00000.jsonl"
    return file.startswith(f"{path}/") or fnmatch.fnmatchcase(file, path)


def _list_files(fs, filesystem, path):
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return [info]
    pattern = None
    if info.type == fs.FileType.NotFound and (wild := re.search(r"[*?\[]", path)):
        pattern, path = path, path[: wild.start()].rpartition("/")[0] or "/"
    selector = fs.FileSelector(path, recursive=True)
    found = [
        one
        for one in filesystem.get_file_info(selector)
        if one.type == fs.FileType.File
        and not re.search(r"/[._]", one.path[len(path) :])
        and (pattern is None or fnmatch.fnmatchcase(one.path, pattern))
    ]
    return sorted(found, key=lambda one: one.path)


# === The index ===


def index_inputs(inputs: Inputs, rows: int) -> tuple[Inputs, list[Piece]]:
    """The inputs with their columns, and their pieces of at most `rows` rows.

    Raises:
        SourceError: a file is damaged, or its columns are not those of the others.
    """

    def index_file(number):
        path = inputs.files[number][0]
        try:
            if inputs.kind == "parquet":
                return _index_parquet(inputs, path, rows)
            if inputs.kind not in ("csv", "tsv"):
                return _index_text(inputs, path, rows, [])
            separator, columns = _layout(inputs, path)
            index = _index_text if separator == _PLAIN else _index_csv
            return *index(inputs, path, rows, columns, separator), separator
        except (SourceError, ConfigurationError):
            raise
        except (OSError, ValueError, csv.Error) as error:
            raise SourceError(f"cannot read {path}: {one_line(error)}") from error

    with long_cells(), ThreadPoolExecutor(_THREADS) as threads:
        indexed = list(threads.map(index_file, range(len(inputs.files))))
    pieces, first = [], 0
    for number, (columns, found, *_) in enumerate(indexed):
        if columns != indexed[0][0]:
            raise SourceError(
                f"all files must have the same columns, got {_shown(columns)} in "
                f"{inputs.files[number][0]} and {_shown(indexed[0][0])} in "
                f"{inputs.files[0][0]}"
            )
        for line, count, start, stop in found:
            pieces.append(Piece(number, line, count, first, start, stop))
            first += count
    if not pieces:
        raise SourceError(f"{inputs.files[0][0]} has no row")
    names = tuple(name for name, _ in indexed[0][0])
    separators = tuple(one[2] for one in indexed if len(one) == 3)
    return dataclasses.replace(inputs, columns=names, separators=separators), pieces


def _shown(columns):
    shown = (f"{name}: {kind}" if kind else name for name, kind in columns)
    return ", ".join(shown) or "none"


def _index_parquet(inputs, path, rows):
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    with parquet.ParquetFile(path, filesystem=inputs.filesystem) as table:
        schema, metadata = table.schema_arrow, table.metadata
        found, line = [], 1
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            for skip in range(0, count, rows):
                size = min(rows, count - skip)
                found.append((line, size, group, skip))
                line += size
    _names(schema.names, path)
    return [(field.name, str(field.type)) for field in schema], found


def _index_text(inputs, path, rows, columns, separator=None):
    """Pieces of lines; line feeds are counted in blocks."""
    import numpy as np

    has_header = bool(columns) and inputs.has_header
    # The line feed of a header is number 0, after which the first piece starts.
    count, at, last = -int(has_header), 0, b"\n"
    starts = [] if has_header else [0]
    with inputs.filesystem.open_input_stream(path, compression=None) as stream:
        while block := stream.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(block, "uint8") == 10)
            starts += (at + 1 + ends[(-count - 1) % rows :: rows]).tolist()
            count, at, last = count + len(ends), at + len(block), block[-1:]
    lines = count + (last != b"\n")
    starts = [start for start in starts if start < at]
    ends = [*starts[1:], at][: len(starts)]
    first = 1 + int(has_header)
    return columns, [
        (first + number * rows, min(rows, lines - number * rows), start, end)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _index_csv(inputs, path, rows, columns, separator):
    """Pieces of records, whose quoted cells may contain line feeds."""
    found: list[tuple] = []
    with _opened(inputs, path) as stream:
        lines = _Lines(_stream_lines(stream), inputs.encoding)
        records = csv.reader(lines, delimiter=separator, strict=True)
        if inputs.has_header:
            next(records, [])
        start, line, count = lines.offset, lines.count + 1, 0
        for _ in records:
            count += 1
            if count == rows:
                found.append((line, count, start, lines.offset))
                start, line, count = lines.offset, lines.count + 1, 0
        if count:
            found.append((line, count, start, lines.offset))
    return columns, found


def _opened(inputs, path):
    return inputs.filesystem.open_input_stream(
        path, compression=None, buffer_size=_BLOCK
    )


class _TableLines:
    """Lines of a table as `data.cells` reads them, again by each loop."""

    def __init__(self, inputs, path):
        self._inputs, self.path = inputs, path

    def __iter__(self):
        with _opened(self._inputs, self.path) as stream:
            lines = _Lines(_stream_lines(stream), self._inputs.encoding)
            yield from enumerate(lines, start=1)


def _layout(inputs, path):
    """The separator of the cells of a table, and its columns."""
    lines = _TableLines(inputs, path)
    if inputs.kind == "csv":
        separator = separator_of(lines)
    else:
        separator = "\t" if has_quoted_cells(lines, path) else _PLAIN
    texts = (text for _, text in lines)
    if separator == _PLAIN:
        cells = next(texts, "").rstrip("\r\n").split("\t")
    else:
        cells = next(csv.reader(texts, delimiter=separator, strict=True), [])
    if not inputs.has_header:
        cells = [str(number) for number in range(1, len(cells) + 1)]
    return separator, _names(cells, path, inputs.encoding)


def _names(cells, path, encoding="utf-8"):
    names = [cell.strip() for cell in cells]
    try:
        ", ".join(names).encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{path} must be {encoding.upper()}: {one_line(error)}",
            hint="give another encoding=",
        ) from error
    if not names or "" in names or len(set(names)) < len(names):
        raise SourceError(
            f"{path} must name its columns, each once, got "
            f"{', '.join(map(repr, names)) or 'none':.200}"
        )
    return [(name, "") for name in names]


def _stream_lines(stream) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


class _Lines:
    """Decoded lines, of which it counts the bytes and the number."""

    def __init__(self, lines, encoding):
        self._lines, self._encoding, self.offset, self.count = lines, encoding, 0, 0

    def __iter__(self):
        return self

    def __next__(self):
        line = next(self._lines)
        self.offset += len(line)
        self.count += 1
        # A row of another encoding is found when it is read.
        text = line.decode(self._encoding, "surrogateescape")
        return text.removeprefix("\ufeff") if self.count == 1 else text


# === Reading a piece ===


@dataclasses.dataclass
class Rows:
    """The rows of a piece.

    Attributes:
        table: `pyarrow.Table` of a Parquet file, or None.
        records: the rows of other files, as dicts by column or key.
        numbers: of each row among the rows of all files.
        lines: where each row stands, see `Inputs.place`.
        problems: why a row cannot be read, by index; its record is empty.
    """

    table: Any = None
    records: list[dict] = dataclasses.field(default_factory=list)
    numbers: list[int] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)
    problems: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(self, number, line, record, problem=None):
        if problem is not None:
            self.problems[len(self.records)] = problem
        self.records.append(record)
        self.numbers.append(number)
        self.lines.append(line)

    def column(self, name: str) -> list | None:
        """The values of a column, None where a row has none; None if no row has it."""
        if self.table is not None:
            if self.table.column_names.count(name) != 1:
                return None
            return self.table.column(name).to_pylist()
        return [record.get(name) for record in self.records]


class Reader:
    """Reads pieces; it keeps the row group of a Parquet file that it read last.

    Args:
        inputs: the files.
        fields: names of the texts of a row, which are the columns of `.txt`.
    """

    def __init__(self, inputs: Inputs, fields: Sequence[str]):
        self._inputs, self._fields = inputs, tuple(fields)
        self._kept: tuple[tuple[int, int], Any] | None = None

    def read(self, piece: Piece) -> Rows:
        """The rows of a piece.

        Raises:
            SourceError: the file cannot be read.
        """
        path = self._inputs.files[piece.file][0]
        try:
            if self._inputs.kind == "parquet":
                return self._read_parquet(piece, path)
            with self._inputs.filesystem.open_input_file(path) as file:
                data = file.read_at(piece.stop - piece.start, piece.start)
        # Errors of Arrow are of many types, and a damaged file can raise any of them.
        except Exception as error:
            raise SourceError(f"cannot read {path}: {one_line(error)}") from error
        rows = Rows()
        read = {"jsonl": _read_object, "txt": self._read_text}
        separator = dict(enumerate(self._inputs.separators)).get(piece.file, _PLAIN)
        if separator != _PLAIN:
            with long_cells():
                self._read_csv(rows, piece, data, separator)
        else:
            parse = read.get(self._inputs.kind, self._read_cells)
            for at, line in enumerate(_split(data)):
                is_first = piece.start == at == 0
                text, problem = _decoded(line, self._inputs.encoding, is_first)
                if text.strip() or problem or self._inputs.kind == "txt":
                    _add(rows, piece.first + at, piece.line + at, text, problem, parse)
        return rows

    def _read_parquet(self, piece, path):
        key = piece.file, piece.start
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            parquet = import_extra("pyarrow.parquet", "a Parquet file")
            with parquet.ParquetFile(
                path, filesystem=self._inputs.filesystem
            ) as opened:
                self._kept = key, opened.read_row_group(piece.start)
        table = self._kept[1].slice(piece.stop, piece.rows)
        numbers = list(range(piece.first, piece.first + piece.rows))
        lines = list(range(piece.line, piece.line + piece.rows))
        return Rows(table, [], numbers, lines)

    def _read_csv(self, rows, piece, data, separator):
        encoding = self._inputs.encoding
        lines = _Lines((line + b"\n" for line in _split(data)), encoding)
        records = csv.reader(lines, delimiter=separator, strict=True)
        for at in range(piece.rows):
            line = piece.line + lines.count
            try:
                cells, problem = next(records), None
                "".join(cells).encode()
            except StopIteration:
                return
            except (csv.Error, UnicodeEncodeError) as error:
                rule = f"it must be CSV in {encoding.upper()}"
                cells, problem = [""], f"{rule}: {one_line(error)}"
            if cells:
                parse = self._match
                _add(rows, piece.first + at, line, cells, problem, parse)

    def _read_cells(self, text):
        return self._match(text.split("\t"))

    def _match(self, cells):
        columns = self._inputs.columns
        if len(cells) != len(columns):
            raise SourceError(
                f"a row must have {len(columns)} columns, got {len(cells)}"
            )
        return dict(zip(columns, cells, strict=True))

    def _read_text(self, text):
        if len(self._fields) == 1:
            return {self._fields[0]: text}
        cells = text.split("\t")
        if len(cells) != len(self._fields):
            raise SourceError(
                f"a line must have {len(self._fields)} texts with tabs between, got "
                f"{len(cells)}"
            )
        return dict(zip(self._fields, cells, strict=True))


def _split(data):
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _decoded(line, encoding, is_first):
    is_marked = is_first and encoding == "utf-8"
    try:
        text = line.decode("utf-8-sig" if is_marked else encoding).removesuffix("\r")
    except UnicodeDecodeError as error:
        return "", f"it must be {encoding.upper()}: {one_line(error)}"
    return text, None


def _add(rows, number, line, content, problem, parse):
    record = {}
    if problem is None:
        try:
            record = parse(content)
        except SourceError as error:
            problem = error.message
    rows.add(number, line, record, problem)


def _read_object(text):
    try:
        record = parse_object(text)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"it must be a JSON object: {one_line(error)}") from error
    except ValueError as error:
        raise SourceError(f"it {one_line(error)}") from error
    return record

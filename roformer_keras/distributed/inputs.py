"""Input files of any file system, indexed into pieces that can be read alone.

A piece is some rows of one file that follow each other. The index says where each one
starts, so that any process can read it, and the number of its first row among the rows
of all files.

.parquet        rows; a piece lies in one row group
.jsonl, .ndjson an object a line; empty lines are no rows
.csv, .tsv      tables as `data.cells` reads them, of which pieces are records;
                without a header the columns have numbers
.txt            a row a line; several texts of a row have tabs between
"""

import dataclasses
import fnmatch
import io
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from roformer_keras.data.arrow import (
    check_encoding,
    count_pages,
    declared_size,
    read_groups,
    rows_at_a_time,
    text_columns,
    unpacked_size,
)
from roformer_keras.data.cells import (
    are_numbers,
    check_row,
    find_separator,
    has_header,
    long_cells,
    split_rows,
)
from roformer_keras.data.lines import decode_line
from roformer_keras.data.objects import parse_object
from roformer_keras.errors import ConfigurationError, Hint, SourceError, name_list
from roformer_keras.extras import import_extra
from roformer_keras.io.atomic import one_line
from roformer_keras.io.budget import Budget

_KINDS = {"parquet", "jsonl", "csv", "tsv", "txt"}
_TABLES = ("csv", "tsv")
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".br", ".zip"}
# Encodings in which no part of a character is a line feed.
_ENCODINGS = ("utf-8", "gbk", "gb18030", "big5")
_KIND_OF = {".ndjson": "jsonl", **{f".{kind}": kind for kind in _KINDS}}
# Bytes that are read at once, and files that are indexed at once.
_BLOCK, _THREADS = 2**24, 16
# Rows that are unpacked at once, if they are short.
_MANY_ROWS = 2**16


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
        separators: what is between the cells of each table, see `cells.find_separator`.
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

    def text_columns(
        self, fields: Sequence[str], names: Sequence[str]
    ) -> tuple[str, ...]:
        """The columns or keys of the texts of a row.

        Args:
            fields: names, or numbers of columns; empty if the user gave none.
            names: those of the verb, which are taken then; of a table without a header
                its first columns.
        """
        if self.kind not in _TABLES:
            return tuple(fields or names)
        known = {str(at): name for at, name in enumerate(self.columns, start=1)}
        if not fields and not self.has_header:
            fields = [str(at) for at in range(1, len(names) + 1)]
        elif not are_numbers(fields):
            return tuple(fields)
        elif not fields:
            known = {name.lower(): name for name in self.columns}
        return tuple(known.get(name, name) for name in fields or names)


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
    fields: Sequence[str] = (),
) -> Inputs:
    """The files of a path, a folder with all below it, or a pattern, sorted by path.

    Files and folders whose names begin with `.` or `_` are no inputs.

    Args:
        place: path or URI; of a pattern, `*` also matches `/`.
        format: one of `.parquet`, `.jsonl`, `.csv`, `.tsv` and `.txt` without the dot,
            where extensions do not say it.
        header: as in `read_table`.
        encoding: of text files, one whose lines can be read alone.
        fields: names or numbers of columns; empty if the user gave none.

    Raises:
        ConfigurationError: pieces of files of the encoding cannot be read, or there is
            no header and fields are names.
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
        files_found = _list_files(fs, filesystem, path)
    except OSError as error:
        raise SourceError(f"cannot read {place}: {one_line(error)}") from error
    if not files_found:
        raise SourceError(f"{place} has no file to read")
    kinds = {os.path.splitext(one.path)[1].lower() for one in files_found}
    known = {_KIND_OF.get(kind, kind) for kind in kinds}
    if format and not kinds & _COMPRESSED:
        known = {format}
    if len(known) > 1 or not known <= _KINDS:
        raise SourceError(
            "the files must all be .parquet, or all .jsonl, .csv, .tsv or .txt, not "
            f"compressed, got {', '.join(sorted(kinds))} in {place}",
            hint=Hint("give a pattern such as 'FOLDER/*.jsonl', or {format}"),
        )
    files = [[one.path, one.size, one.mtime_ns] for one in files_found]
    kind = known.pop()
    # The output keeps all columns, by their names: where nothing says that there are
    # none, a table without the names of the verb is refused.
    is_named = kind not in _TABLES or has_header(fields, header, has_names=True)
    return Inputs(filesystem, kind, files, has_header=is_named, encoding=encoding)


def reads_from(place: str | os.PathLike, filesystem: Any, folder: str) -> bool:
    """True if files in a folder would be among those of a place, see `find_inputs`."""
    place_filesystem, path = open_place(place)
    if place_filesystem != filesystem:
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
    files_found = [
        one
        for one in filesystem.get_file_info(selector)
        if one.type == fs.FileType.File
        and not re.search(r"/[._]", one.path[len(path) :])
        and (pattern is None or fnmatch.fnmatchcase(one.path, pattern))
    ]
    return sorted(files_found, key=lambda one: one.path)


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
            index = _index_table if inputs.kind in _TABLES else _index_text
            return index(inputs, path, rows)
        except (SourceError, ConfigurationError):
            raise
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot read {path}: {one_line(error)}") from error

    # All threads of a process have one limit.
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
        groups = _read_groups(inputs, path, table.schema)
        budget_of(inputs, path).spend(declared_size(groups))
        parts, line = [], 1
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            if any(chunk.values < count for chunk in groups[group]):
                raise ValueError("a column has fewer values than its row group rows")
            for skip in range(0, count, rows):
                size = min(rows, count - skip)
                parts.append((line, size, group, skip))
                line += size
    _name_columns(schema.names, path)
    return [(field.name, str(field.type)) for field in schema], parts


def _read_groups(inputs, path, schema):
    """The columns of each row group, as the end of the file describes them."""
    with inputs.filesystem.open_input_file(path) as file:
        size = file.size()
        length = int.from_bytes(file.read_at(4, size - 8), "little")
        footer = file.read_at(length, size - 8 - length)
    return read_groups(footer, schema)


def budget_of(inputs: Inputs, path: str) -> Budget:
    """The budget of a file."""
    sizes = {name: size for name, size, _ in inputs.files}
    return Budget(path, sizes[path])


def _index_text(inputs, path, rows):
    """Pieces of lines; line feeds are counted in blocks."""
    import numpy as np

    count, at, last = 0, 0, b"\n"
    starts = [0]
    with _opened(inputs, path) as stream:
        while block := stream.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(block, "uint8") == 10)
            starts += (at + 1 + ends[(-count - 1) % rows :: rows]).tolist()
            count, at, last = count + len(ends), at + len(block), block[-1:]
    lines = count + (last != b"\n")
    starts = [start for start in starts if start < at]
    ends = [*starts[1:], at][: len(starts)]
    return [], [
        (1 + number * rows, min(rows, lines - number * rows), start, end)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _index_table(inputs, path, rows):
    """Columns, pieces of records, and what is between the cells."""
    lines = _TableLines(inputs, path)
    separator = find_separator(lines, f".{inputs.kind}", path)
    records = split_rows(lines, separator, path)
    names = next((cells for _, cells in records if any(cells)), [])
    if inputs.has_header:
        _check_encoding("".join(names), f"the header of {path}", inputs.encoding)
    else:
        names = [str(number) for number in range(1, len(names) + 1)]
        records = split_rows(lines, separator, path)
    start, count = lines.size if inputs.has_header else 0, 0
    pieces, line = [], 1
    for first_line, _ in records:
        line = line if count else first_line
        count += 1
        if count == rows:
            pieces.append((line, count, start, lines.size))
            start, count = lines.size, 0
    if count:
        pieces.append((line, count, start, lines.size))
    return _name_columns(names, path), pieces, separator


def _opened(inputs, path):
    return inputs.filesystem.open_input_stream(
        path, compression=None, buffer_size=_BLOCK
    )


class _TableLines:
    """Lines of a table as `data.cells` reads them, again by each loop.

    Attributes:
        size: bytes of the lines that were read.
    """

    def __init__(self, inputs, path):
        self._inputs, self._path, self.size = inputs, path, 0

    def __iter__(self):
        self.size = 0
        with _opened(self._inputs, self._path) as stream:
            lines = self._counted(io.BufferedReader(stream, _BLOCK))
            yield from _decoded(lines, self._inputs.encoding)

    def _counted(self, lines):
        for line in lines:
            self.size += len(line)
            yield line


def _name_columns(cells, path):
    """Names and types of columns; all have a name, by which they are in the output."""
    names = [cell.strip() for cell in cells]
    if not names or "" in names or len(set(names)) < len(names):
        raise SourceError(
            f"{path} must name its columns, each once, got {name_list(names)}"
        )
    return [(name, "") for name in names]


def _decoded(lines, encoding, first_line=1):
    """Numbers and texts of lines; a wrong byte is a problem of the row that has it."""
    for number, line in enumerate(lines, start=first_line):
        yield number, decode_line(line, number, encoding, "surrogateescape")


def _check_encoding(text, place, encoding):
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        raise SourceError(
            f"{place} must be {encoding.upper()}, got the byte 0x{byte:02x}",
            hint=Hint("give another {encoding}"),
        ) from error


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
        parse = {"jsonl": self._parse_object, "txt": self._parse_text}.get(
            self._inputs.kind, self._parse_cells
        )
        lines = _decoded(io.BytesIO(data), self._inputs.encoding, piece.line)
        if self._inputs.separators:
            separator = self._inputs.separators[piece.file]
            lines = split_rows(lines, separator, path, piece.line)
        rows = Rows()
        # Blank lines have numbers too: the index counts lines that it does not read.
        for number, (line, content) in enumerate(lines, start=piece.first):
            record: dict | None = {}
            problem = None
            try:
                text = content if isinstance(content, str) else "".join(content)
                _check_encoding(text, "it", self._inputs.encoding)
                record = parse(content)
            except SourceError as error:
                problem = error.message
            if record is not None:
                rows.add(number, line, record, problem)
        return rows

    def _read_parquet(self, piece, path):
        key = piece.file, piece.start
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            self._kept = key, self._read_group(piece.start, path)
        table = self._kept[1].slice(piece.stop, piece.rows)
        numbers = list(range(piece.first, piece.first + piece.rows))
        lines = list(range(piece.line, piece.line + piece.rows))
        return Rows(table, [], numbers, lines)

    def _read_group(self, group, path):
        """A row group, whose texts are not repeated before their size is known."""
        arrow = import_extra("pyarrow", "a Parquet file")
        parquet = import_extra("pyarrow.parquet", "a Parquet file")
        filesystem = self._inputs.filesystem
        with parquet.ParquetFile(path, filesystem=filesystem) as opened:
            schema, metadata = opened.schema_arrow, opened.metadata
            groups = _read_groups(self._inputs, path, opened.schema)
            texts = text_columns(groups, opened.schema)
            for number in range(len(opened.schema)):
                if (leaf := opened.schema.column(number).path) not in schema.names:
                    check_encoding(path, leaf, groups, number)
        columns = [name for name in texts if name in schema.names]
        with parquet.ParquetFile(
            path, filesystem=filesystem, metadata=metadata, read_dictionary=columns
        ) as opened:
            budget, batches = budget_of(self._inputs, path), []
            pages, longest = Budget.like(budget), 0
            with filesystem.open_input_file(path) as file:
                for chunk in groups[group]:
                    data = file.read_at(chunk.stop - chunk.start, chunk.start)
                    longest += count_pages(data, chunk, pages, chunk.start)
            rows = rows_at_a_time(longest, _MANY_ROWS)
            for batch in opened.iter_batches(rows, row_groups=[group]):
                batch.validate(full=True)
                budget.spend(sum(map(unpacked_size, batch.columns)))
                batches.append(batch)
            table = arrow.Table.from_batches(batches, opened.schema_arrow)
        return table.cast(schema)

    # The record of a row, or None if it is blank.

    def _parse_cells(self, cells):
        if not any(cells):
            return None
        columns = self._inputs.columns
        check_row("a row", cells, len(columns), columns * self._inputs.has_header)
        return dict(zip(columns, cells, strict=True))

    def _parse_object(self, text):
        return parse_object(text, "it") if text.strip() else None

    def _parse_text(self, text):
        text = text.removesuffix("\n").removesuffix("\r")
        cells = [text] if len(self._fields) == 1 else text.split("\t")
        check_row("a line", cells, len(self._fields))
        return dict(zip(self._fields, cells, strict=True))

"""Pieces of the input in, parts of the output out: the work of one process."""

import contextlib
import dataclasses
import functools
import json
import os
import pickle
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.distributed.inputs import Inputs, Piece, Reader, Rows
from roformer_keras.distributed.worker import ERROR, Answerer, with_answers
from roformer_keras.errors import ConfigurationError, Hint, OutputError, RoFormerError
from roformer_keras.extras import import_extra
from roformer_keras.io.atomic import one_line, replacing
from roformer_keras.verbs.verb import Verb

# What is being written; readers of data sets pass such names over.
PARTIAL = ".partial"


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder of any file system, whose files appear whole or not at all.

    Attributes:
        filesystem: `pyarrow.fs.FileSystem`.
        path: str.
    """

    filesystem: Any
    path: str

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file.

        Raises:
            OutputError: it cannot be written.
        """
        fs = import_extra("pyarrow.fs", "--engine ray")
        target = f"{self.path}/{name}"
        if isinstance(self.filesystem, fs.LocalFileSystem):
            with replacing(target, overwrite=True) as path:
                path.write_bytes(data)
            return
        partial = f"{self.path}/{PARTIAL}-{secrets.token_hex(4)}.{name}"
        try:
            with self.filesystem.open_output_stream(partial) as stream:
                stream.write(data)
            self.filesystem.move(partial, target)
        except OSError as error:
            raise OutputError(
                f"could not write {target} ({one_line(error)})"
            ) from error

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it is not there."""
        try:
            with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """The names in the folder, which need not exist, sorted."""
        fs = import_extra("pyarrow.fs", "--engine ray")
        selector = fs.FileSelector(self.path, allow_not_found=True)
        entries = self.filesystem.get_file_info(selector)
        return sorted(os.path.basename(one.path) for one in entries)

    def delete(self, name: str) -> None:
        """Deletes a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(f"{self.path}/{name}")


@dataclasses.dataclass(frozen=True)
class PieceTask:
    """Work of a worker on each piece, which can be sent to it.

    Attributes:
        verb: what is computed.
        fields: names of the texts of a row; empty for those of the verb.
        inputs: the files.
        first_piece: from which the columns of objects are known.
        folder: where parts are written.
        format: `"jsonl"` or `"parquet"`.
        count: how many pieces there are.
        on_bad_row: `"report"` or `"error"`.
    """

    verb: Verb
    fields: tuple[str, ...]
    inputs: Inputs
    first_piece: Piece
    folder: Folder
    format: str
    count: int
    on_bad_row: str = "report"

    def part(self, piece: int) -> str:
        """The name of the part of a piece; names sort by number."""
        return f"part-{self._number(piece)}.{self.format}"

    def bad_rows(self, piece: int) -> str:
        """The name of the file that lists the rows of a piece without an answer."""
        return f"_bad-rows-{self._number(piece)}.jsonl"

    def _number(self, piece):
        return f"{piece:0{max(5, len(str(self.count - 1)))}}"


class PieceWorker:
    """Reads, answers and writes pieces, with one model that it loads at the first.

    A call takes and returns columns of a batch of Ray: of pieces, and of what became of
    them. An error that a user can mend is returned, since Ray would try again.
    """

    def __init__(self, task: PieceTask):
        self._task = task
        self._answerer: Answerer | None = None
        self._schema: Any = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list]:
        results = []
        for number, *fields in zip(*batch.values(), strict=True):
            piece = Piece(*map(int, fields))
            began, cpu = time.time(), time.process_time()
            result: dict[str, Any] = {"error": b"", "bad": 0}
            try:
                result["bad"] = self._write(int(number), piece)
            except RoFormerError as error:
                result["error"] = pickle.dumps(error)
            result |= {"piece": int(number), "rows": piece.rows}
            result |= {"process": os.getpid(), "began": began, "ended": time.time()}
            result["cpu"] = time.process_time() - cpu
            results.append(result)
        return {name: [one[name] for one in results] for name in results[0]}

    def _write(self, number, piece):
        """Writes the part of a piece; returns how many rows have no answer."""
        task = self._task
        if self._answerer is None:
            self._answerer = Answerer(task.verb, task.fields)
            fields = task.inputs.text_columns(task.fields, self._answerer.fields)
            self._answerer.fields = fields
            self._reader = Reader(task.inputs, self._answerer.fields)
        rows = self._reader.read(piece)
        table = self._table(rows) if task.format == "parquet" else None
        answers, reasons = self._answerer.answer(
            self._columns(rows, piece), rows.numbers, rows.problems
        )
        bad = [
            {"row": number, "place": task.inputs.place(piece.file, line), ERROR: reason}
            for number, line, reason in zip(
                rows.numbers, rows.lines, reasons, strict=True
            )
            if reason is not None
        ]
        if bad and task.on_bad_row == "error":
            raise ConfigurationError(
                f"{bad[0]['place']}: {bad[0][ERROR]}",
                hint=Hint("{on_bad_row:'report'} keeps such a row without an answer"),
            )
        if table is None:
            data = _output_lines(rows, answers, reasons)
        else:
            data = _parquet_bytes(
                with_answers(table, self._answerer.types, answers, reasons)
            )
        if bad:
            # Before the part, which says that the piece is done.
            task.folder.write(task.bad_rows(number), _json_lines(bad))
        task.folder.write(task.part(number), data)
        return len(bad)

    def _columns(self, rows, piece):
        """The texts of the rows, by field.

        An object may lack what others have, and is reported then. Only if all of the
        first piece lack a field, its name is taken for wrong.
        """
        assert self._answerer is not None
        fields = self._answerer.fields
        names = list(self._task.inputs.columns)
        if self._task.inputs.kind == "txt":
            names = list(fields)
        elif self._task.inputs.kind == "jsonl":
            columns = sorted({name for record in rows.records for name in record})
            is_first = piece == self._task.first_piece
            names = columns if columns and is_first else [*fields]
        self._answerer.check_columns(names)
        return [rows.column(name) for name in fields]

    # === Parquet of what has no types ===

    def _table(self, rows):
        """The rows as a `pyarrow.Table` of the schema of all parts."""
        if rows.table is not None:
            return rows.table
        pyarrow = import_extra("pyarrow", "Parquet files")
        if self._schema is None:
            self._schema = self._find_schema(pyarrow)
        try:
            known = {*self._schema.names}
            if all(
                record.keys() <= known and _fits(record, self._schema)
                for record in rows.records
            ):
                return pyarrow.Table.from_pylist(rows.records, self._schema)
        except (pyarrow.ArrowException, TypeError, OverflowError):
            pass
        fitted = [self._fit(rows, at, pyarrow) for at in range(len(rows.records))]
        return pyarrow.Table.from_pylist(fitted, self._schema)

    def _find_schema(self, pyarrow):
        """The columns and types of the first piece; of tables all cells are texts."""
        inputs, fields = self._task.inputs, self._answerer.fields
        if inputs.kind != "jsonl":
            names = fields if inputs.kind == "txt" else inputs.columns
            return pyarrow.schema([(name, pyarrow.string()) for name in names])
        records = self._reader.read(self._task.first_piece).records
        names = dict.fromkeys(name for record in records for name in record)
        columns = {name: [one.get(name) for one in records] for name in names or fields}
        kinds = {}
        for name, values in columns.items():
            try:
                kind = pyarrow.array(values).type
            except (pyarrow.ArrowException, OverflowError) as error:
                raise ConfigurationError(
                    f"the values of {name!r} in the first rows must be of one type to "
                    f"be a column of Parquet: {one_line(error)}",
                    hint=Hint("{output_format:'jsonl'} writes any objects"),
                ) from error
            is_null = pyarrow.types.is_null(kind)
            kinds[name] = pyarrow.string() if is_null else kind
        return pyarrow.schema(list(kinds.items()))

    def _fit(self, rows, at, pyarrow):
        """The values of an object that fit the columns; the others are a problem."""
        record, fitted = rows.records[at], {}
        for name, value in record.items():
            try:
                field = self._schema.field(name)
                pyarrow.array([value], field.type)
                if not _fits({name: value}, [field]):
                    raise TypeError(name)
                fitted[name] = value
            except KeyError:
                reason = f"the first rows have no {name!r}, which would be lost"
                rows.problems.setdefault(at, reason)
            except (pyarrow.ArrowException, TypeError, OverflowError):
                reason = f"{name!r} must be {field.type} as in the first rows, got "
                rows.problems.setdefault(at, f"{reason}{value!r:.60}")
        return fitted


def _fits(record, fields):
    """True if all that objects within an object have is in the type of its column."""
    types = import_extra("pyarrow", "Parquet files").types

    def fits(value, kind):
        if isinstance(value, dict) and types.is_struct(kind):
            inner = {field.name: field.type for field in kind}
            return value.keys() <= inner.keys() and all(
                fits(one, inner[name]) for name, one in value.items()
            )
        if isinstance(value, list) and types.is_list(kind):
            return all(fits(one, kind.value_type) for one in value)
        return True

    return all(
        fits(record.get(field.name), field.type)
        for field in fields
        if types.is_nested(field.type)
    )


def _parquet_bytes(table):
    pyarrow = import_extra("pyarrow", "Parquet files")
    stream = pyarrow.BufferOutputStream()
    parquet = import_extra("pyarrow.parquet", "Parquet files")
    parquet.write_table(table, stream)
    return stream.getvalue().to_pybytes()


def _output_lines(rows: Rows, answers: Mapping[str, list], reasons: Sequence) -> bytes:
    """Lines of JSON: a row with its answers, and with `error` where it has none."""
    records = rows.records if rows.table is None else rows.table.to_pylist()
    lines = []
    for at, (record, reason) in enumerate(zip(records, reasons, strict=True)):
        columns = {name: values[at] for name, values in answers.items()}
        lines.append(
            {**record, **columns, **({} if reason is None else {ERROR: reason})}
        )
    return _json_lines(lines)


def _json_lines(lines):
    def plain(value):
        # Arrays of vectors; dates, decimals and bytes of Parquet files.
        return value.tolist() if hasattr(value, "tolist") else str(value)

    dump = functools.partial(json.dumps, ensure_ascii=False, default=plain)
    return "".join(f"{dump(line)}\n" for line in lines).encode()

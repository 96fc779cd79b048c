"""Columns of Parquet and Arrow files, read a batch of rows at a time.

.parquet                  Apache Parquet
.arrow, .ipc, .feather    Arrow IPC, as a file or as a stream
a folder                  what `datasets.Dataset.save_to_disk` writes
"""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from roformer_keras.errors import Hint, RoFormerError, SourceError
from roformer_keras.extras import import_extra

# What the extension says; `format` has the same names without the dot.
KINDS = {
    ".parquet": ".parquet",
    ".arrow": ".arrow",
    ".ipc": ".arrow",
    ".feather": ".arrow",
}
# Rows that become Python objects together.
ROWS_AT_A_TIME = 1024
# Bytes of a batch of these rows, of which a hostile file can claim any number.
_MAX_BATCH_BYTES = 2**30
_STATE = "state.json"


def is_saved_dataset(path: str) -> bool:
    """True if a path is a folder of `datasets.Dataset.save_to_disk`."""
    return os.path.isfile(os.path.join(path, _STATE))


def data_files(path: str) -> list[str]:
    """The files of a path: itself, or those of a saved dataset in their order.

    Raises:
        SourceError: the folder does not say which they are.
    """
    if not is_saved_dataset(path):
        return [path]
    state = os.path.join(path, _STATE)
    try:
        with open(state, encoding="utf-8") as file:
            names = [one["filename"] for one in json.load(file)["_data_files"]]
        if not all(name == os.path.basename(name) != "" for name in names):
            raise ValueError(f"a name of a file is expected, got {names!r:.80}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{state} must be as datasets.Dataset.save_to_disk writes it: {error}"
        ) from error
    return [os.path.join(path, name) for name in names]


def read_columns(
    path: str, kind: str, columns: Sequence[str], tag_names: bool = False
) -> Iterator[tuple[int, list]]:
    """Numbers of the rows, from 1, and the values of some columns.

    Args:
        path: of a file, or of a saved dataset.
        kind: `".parquet"` or `".arrow"`.
        columns: names, or numbers of columns from "1" if no column has such a name.
        tag_names: bool. Whether numbers in lists become the names that `datasets` has
            stored for them.

    Raises:
        SourceError: the file is damaged, a name comes twice, a column is missing or
            holds what is neither text, number nor a list of them.
    """
    numbers = itertools.count(1)
    for file in data_files(path):
        try:
            for batch in _batches(file, kind, columns):
                values = [column.to_pylist() for column in batch.columns]
                if tag_names:
                    values = [
                        with_names(column, stored_names(batch.schema, number))
                        for number, column in enumerate(values)
                    ]
                for row in zip(*values, strict=True):
                    yield next(numbers), list(row)
        except RoFormerError:
            raise
        # Errors of Arrow are of many types, and a damaged file can raise any of them.
        except Exception as error:
            raise _damaged(file, kind, error) from error


def stored_names(schema: Any, column: int) -> list[str]:
    """Names of the numbers in the lists of a column, as `datasets` stores them.

    Args:
        schema: `pyarrow.Schema`, or that of another library, which has none.
        column: int. Its place.
    """
    try:
        stored = json.loads(schema.metadata[b"huggingface"])
        feature = stored["info"]["features"][schema.names[column]]
        # Older versions write a list of one feature.
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (AttributeError, ValueError, LookupError, TypeError, RecursionError):
        return []
    is_list = isinstance(names, list) and all(isinstance(one, str) for one in names)
    return names if is_list else []


def with_names(column: list, names: Sequence[str]) -> list:
    """Lists of numbers as lists of names; other values as they are."""
    numbers = range(len(names))
    return [
        [names[one] for one in value]
        if names and isinstance(value, list) and all(one in numbers for one in value)
        else value
        for value in column
    ]


def _damaged(path, kind, error):
    name = "Parquet" if kind == ".parquet" else "Arrow"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    first = " ".join(reason.split())
    return SourceError(
        f"cannot read {path} as {name}: {first:.200}",
        hint="if it is damaged, write or fetch it again",
    )


def _batches(path, kind, columns):
    """Batches of few rows of some columns, in their order."""
    # The error of a file that is none does not speak of a library.
    with open(path, "rb") as file:
        magic = file.read(6)
    if kind == ".parquet":
        parquet = import_extra("pyarrow.parquet", "a Parquet file")
        with parquet.ParquetFile(path, memory_map=True) as table:
            names = _find_columns(path, table.schema_arrow, columns)
            # A name of a column may have dots, which are paths of nested fields here.
            read = list(dict.fromkeys(names))
            for batch in table.iter_batches(ROWS_AT_A_TIME, columns=read):
                yield _select(path, batch, names)
        return
    arrow = import_extra("pyarrow", "an Arrow file")
    with arrow.memory_map(path) as source:
        if magic == b"ARROW1":
            reader = arrow.ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            reader = batches = arrow.ipc.open_stream(source)
        names = _find_columns(path, reader.schema, columns)
        for batch in batches:
            part = _select(path, batch, names)
            for start in range(0, part.num_rows, ROWS_AT_A_TIME):
                yield part.slice(start, ROWS_AT_A_TIME)


def _select(path, batch, names):
    part = batch.select(names)
    # Offsets that lie would read memory that is not the file's, even to count bytes.
    part.validate(full=True)
    if part.nbytes > _MAX_BATCH_BYTES:
        raise SourceError(
            f"{path} must have batches of at most {_MAX_BATCH_BYTES:,} bytes, got "
            f"{part.nbytes:,}",
            hint="write it with smaller batches or row groups",
        )
    return part


def _find_columns(path, schema, columns):
    """The names of the columns, checked: they exist and hold what a row can have."""
    columns_found = [
        schema.names[int(name) - 1]
        if name not in schema.names
        and name.isdecimal()
        and 0 < int(name[:9]) <= len(schema.names)
        else name
        for name in columns
    ]
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    for name in (*columns_found, *twice):
        if schema.names.count(name) != 1:
            count = "twice" if name in schema.names else "not there"
            raise SourceError(
                f"{path} must have the column {name!r} once, and it is {count}; got "
                f"{', '.join(map(repr, schema.names)) or 'none'}",
                hint=Hint("name others with {fields}"),
            )
        kind = schema.field(name).type
        if not _is_readable(kind):
            raise SourceError(
                f"the column {name!r} of {path} must hold text, numbers or lists of "
                f"them, got the type {kind}",
                hint=Hint("name another with {fields}, or convert it"),
            )
    return columns_found


def _is_readable(kind):
    types = import_extra("pyarrow.types", "an Arrow file")
    checks = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_integer, types.is_floating, types.is_boolean),
    )
    # Other types, such as null, can claim any number of rows without a byte.
    if types.is_dictionary(kind):
        return _is_readable(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_readable(kind.value_type)
    if types.is_struct(kind):
        fields = [kind.field(at).type for at in range(kind.num_fields)]
        return bool(fields) and all(map(_is_readable, fields))
    return any(check(kind) for check in checks)

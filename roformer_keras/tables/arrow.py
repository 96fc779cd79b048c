"""Columns of Parquet and Arrow files, read a batch of rows at a time.

.parquet                  Apache Parquet
.arrow, .ipc, .feather    Arrow IPC, as a file or as a stream
a folder                  what `datasets.Dataset.save_to_disk` writes
"""

import dataclasses
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import is_integer
from roformer_keras.base.errors import (
    Hint,
    RoFormerError,
    SourceError,
    name_list,
    refuse,
)
from roformer_keras.base.extras import import_extra
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import parse_json, read_json
from roformer_keras.tables.opening import File
from roformer_keras.tables.table import Value

# Rows that become Python objects together.
ROWS_AT_A_TIME = 1024
_STATE = "state.json"
# Kind of the features of `datasets` that are class numbers.
_CLASSES = "ClassLabel"
# The first bytes of an Arrow file, and where its stream begins.
_MAGIC, _STREAM_START = b"ARROW1", 8
_Rows = Iterator[tuple[int, Mapping[str, Value] | SourceError]]


def is_saved_dataset(path: str) -> bool:
    """True if a path is a folder of `datasets.Dataset.save_to_disk`."""
    return os.path.isfile(os.path.join(path, _STATE))


def data_files(path: str) -> list[str]:
    """The files of a path: itself, or those of a saved dataset in their order."""
    if not is_saved_dataset(path):
        return [path]
    state = os.path.join(path, _STATE)
    try:
        content = read_json(Blob.of_file(Path(state)))
        names = [one["filename"] for one in content["_data_files"]]
        if not all(name == os.path.basename(name) != "" for name in names):
            raise ValueError(f"a name of a file is expected, got {names!r:.80}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{state} must be as datasets.Dataset.save_to_disk writes it: {error}"
        ) from error
    return [os.path.join(path, name) for name in names]


def read_parquet(file: File, keys: Sequence[str]) -> _Rows:
    """Numbers of the rows, from 1, and their values by key; see `_read`."""
    return _read(file, keys, _parquet_batches, "Parquet")


def read_arrow(file: File, keys: Sequence[str]) -> _Rows:
    """Numbers of the rows, from 1, and their values by key; see `_read`."""
    return _read(file, keys, _arrow_batches, "Arrow")


def _read(file, keys, read_batches, name):
    """Numbers of the rows, from 1, and the values of some columns, as JSON has them.

    NaN is a missing value, and class numbers of `datasets` have their names. In place
    of a row with an infinite number is its SourceError.
    """
    numbers = itertools.count(1)
    for path in data_files(file.path):
        one = dataclasses.replace(file, path=path)
        features: Mapping | None = None
        try:
            for batch in _batches(one, read_batches, keys):
                if features is None:
                    features = stored_features(batch.schema)
                values = [column.to_pylist() for column in batch.columns]
                for at, column in enumerate(batch.schema.names):
                    if column in features:
                        feature = features[column]
                        values[at] = [
                            with_names(value, feature) for value in values[at]
                        ]
                has_floats = any(_has_floats(column.type) for column in batch.columns)
                for cells in zip(*values, strict=True):
                    number = next(numbers)
                    try:
                        row = _as_in_json(list(cells)) if has_floats else cells
                    except ValueError as error:
                        yield number, SourceError(f"{file.place(number)}: {error}")
                    else:
                        yield number, dict(zip(keys, row, strict=True))
        except RoFormerError:
            raise
        # Errors of Arrow are of many types, and a damaged file can raise any of them.
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error)
            reason = " ".join((reason or type(error).__name__).split())
            raise SourceError(
                f"cannot read {one.name} as {name}: {reason:.200}",
                hint="if it is damaged, write or fetch it again",
            ) from error


class ClassName(str):
    """A name that `datasets` stores for a class number."""


def stored_features(schema: Any) -> Mapping:
    """The features of columns with class numbers, as `datasets` stores them."""
    try:
        stored = parse_json(schema.metadata[b"huggingface"], "the schema")
        features = stored["info"]["features"].items()
    except (AttributeError, OSError, ValueError, LookupError, TypeError):
        return {}
    return {name: feature for name, feature in features if _CLASSES in str(feature)}


def with_names(value: Any, feature: Any) -> Any:
    """A value of a column with the names of its class numbers, None for -1."""
    if isinstance(feature, list) and feature:
        # Older versions write a list of one feature.
        feature = {"_type": "List", "feature": feature[0]}
    elif not isinstance(feature, Mapping):
        feature = {**getattr(feature, "__dict__", {}), "_type": type(feature).__name__}
    if isinstance(value, list):
        return [with_names(one, feature.get("feature", feature)) for one in value]
    if isinstance(value, dict):
        # Older versions have one feature for a dict of lists.
        parts = feature.get("feature", {}) if "_type" in feature else feature
        return {name: with_names(one, parts.get(name)) for name, one in value.items()}
    names = feature.get("names")
    if feature.get("_type") != _CLASSES or not is_integer(value) or not names:
        return value
    if names == list(map(str, range(len(names)))):
        return value
    return ClassName(names[value]) if 0 <= value < len(names) else None


def _batches(file, read_batches, keys):
    """Batches of few rows of some columns, in their order."""
    with file.open(seeks=True) as stream:
        for names, batch in read_batches(file, stream, keys):
            columns = batch.select(names)
            # Wrong offsets in a damaged file would read memory outside of it.
            columns.validate(full=True)
            for start in range(0, columns.num_rows, ROWS_AT_A_TIME):
                yield columns.slice(start, ROWS_AT_A_TIME)


def _parquet_batches(file, stream, keys):
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    table = parquet.ParquetFile(stream)
    names = _find_columns(file.name, table.schema_arrow, keys)
    unique_names = list(dict.fromkeys(names))
    for batch in table.iter_batches(ROWS_AT_A_TIME, columns=unique_names):
        yield names, batch


def _arrow_batches(file, stream, keys):
    arrow = import_extra("pyarrow", "an Arrow file")
    if stream.read(len(_MAGIC)) == _MAGIC:
        # An Arrow file is a stream with a header and a footer, which is checked.
        arrow.ipc.open_file(stream)
        stream.seek(_STREAM_START)
    else:
        stream.seek(0)
    reader = arrow.ipc.open_stream(stream)
    names = _find_columns(file.name, reader.schema, keys)
    for batch in reader:
        yield names, batch


def _find_columns(file_name, schema, keys):
    """The names of the columns, checked: they exist and hold what a row can have."""
    columns_found = [
        schema.names[int(name) - 1]
        if name not in schema.names
        and name.isdecimal()
        and 0 < int(name[:9]) <= len(schema.names)
        else name
        for name in keys
    ]
    # As in other tables, columns without a name may be several.
    counts = Counter(name for name in schema.names if name)
    twice = [name for name, count in counts.items() if count > 1]
    for name in (*columns_found, *twice):
        if schema.names.count(name) != 1:
            count = "twice" if name in schema.names else "not there"
            raise SourceError(
                f"{file_name} must have the column {name!r} once, and it is {count}; "
                f"got {name_list(schema.names)}",
                hint=Hint("name others with {fields}"),
            )
        kind = schema.field(name).type
        refuse(
            not _is_readable(kind),
            f"the column {name!r} of {file_name} must hold text, numbers or lists of "
            f"them, got the type {kind}",
            hint=Hint("name another with {fields}, or convert it"),
            error=SourceError,
        )
    return columns_found


def _is_readable(kind):
    types = import_extra("pyarrow.types", "an Arrow file")
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind):
        return _is_readable(kind.value_type)
    if types.is_struct(kind):
        fields = [kind.field(at).type for at in range(kind.num_fields)]
        return all(map(_is_readable, fields))
    checks = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_integer, types.is_floating, types.is_boolean),
    )
    return any(check(kind) for check in checks)


# === Values ===


def _has_floats(kind):
    # Also those in lists and structs.
    return any(name in str(kind) for name in ("float", "double"))


def _as_in_json(value):
    """A value with None for NaN."""
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"a number must be finite, got {value}")
        return None if math.isnan(value) else value
    if isinstance(value, list):
        return list(map(_as_in_json, value))
    if isinstance(value, dict):
        return {name: _as_in_json(part) for name, part in value.items()}
    return value

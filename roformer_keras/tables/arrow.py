"""Columns of Parquet and Arrow files, read a batch of rows at a time.

.parquet                  Apache Parquet
.arrow, .ipc, .feather    Arrow IPC, as a file or as a stream
a folder                  what `datasets.Dataset.save_to_disk` writes
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from roformer_keras.base.checks import is_integer
from roformer_keras.base.errors import Hint, RoFormerError, SourceError, name_list
from roformer_keras.base.extras import import_extra
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import parse_json, read_json
from roformer_keras.tables.opening import File
from roformer_keras.tables.table import Value

if TYPE_CHECKING:
    import pyarrow

# Rows that become Python objects together.
ROWS_AT_A_TIME = 1024
_STATE = "state.json"
# Kind of the features of `datasets` that are class numbers.
_CLASSES = "ClassLabel"
# The first bytes of an Arrow file, and where its stream begins.
_MAGIC, _STREAM_START = b"ARROW1", 8
_Values = Mapping[str, Value] | SourceError
# The names of columns, and a batch that has them.
_Batches = Iterator[tuple[list[str], "pyarrow.RecordBatch"]]
_Feature = Mapping[str, object]


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
        names = [item["filename"] for item in content["_data_files"]]
        if not all(name == os.path.basename(name) != "" for name in names):
            raise ValueError(f"a name of a file is expected, got {names!r:.80}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{state} must be as datasets.Dataset.save_to_disk writes it: {error}"
        ) from error
    return [os.path.join(path, name) for name in names]


def read_parquet(file: File, keys: Sequence[str]) -> Iterator[tuple[int, _Values]]:
    """Numbers of the rows, from 1, and their values by key."""
    return _read(file, keys, _parquet_batches, "Parquet")


def read_arrow(file: File, keys: Sequence[str]) -> Iterator[tuple[int, _Values]]:
    """Numbers of the rows, from 1, and their values by key."""
    return _read(file, keys, _arrow_batches, "Arrow")


def _read(
    file: File,
    keys: Sequence[str],
    read_batches: Callable[[File, IO[bytes], Sequence[str]], _Batches],
    kind: str,
) -> Iterator[tuple[int, _Values]]:
    """Numbers and values of the rows of all files of a path.

    NaN is a missing value, and class numbers of `datasets` have their names.
    """
    numbers = itertools.count(1)
    for path in data_files(file.path):
        part = dataclasses.replace(file, path=path)
        features: Mapping[str, object] | None = None
        try:
            for batch in _small_batches(part, read_batches, keys):
                if features is None:
                    features = stored_features(batch.schema)
                columns = [
                    [with_names(value, features[name]) for value in column.to_pylist()]
                    if name in features
                    else column.to_pylist()
                    for name, column in zip(
                        batch.schema.names, batch.columns, strict=True
                    )
                ]
                has_floats = any(
                    name in f"{batch.schema.types}" for name in ("float", "double")
                )
                for row in zip(*columns, strict=True):
                    number = next(numbers)
                    try:
                        values = map(_as_in_json, row) if has_floats else row
                        result: _Values = dict(zip(keys, values, strict=True))
                    except ValueError as error:
                        result = SourceError(f"{file.place(number)}: {error}")
                    yield number, result
        except RoFormerError:
            raise
        # Errors of Arrow are of many types, and a damaged file can raise any of them.
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error)
            reason = " ".join((reason or type(error).__name__).split())
            raise SourceError(
                f"cannot read {part.name} as {kind}: {reason:.200}",
                hint="if it is damaged, write or fetch it again",
            ) from error


def _as_in_json(value: Value) -> Value:
    """A value with None for NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isinf(value):
            raise ValueError(f"a number must be finite, got {value}")
        return None
    if isinstance(value, list):
        return list(map(_as_in_json, value))
    if isinstance(value, dict):
        return {name: _as_in_json(item) for name, item in value.items()}
    return value


class ClassName(str):
    """A name that `datasets` stores for a class number."""


def stored_features(schema: "pyarrow.Schema") -> Mapping[str, object]:
    """The features of columns with class numbers, as `datasets` stores them."""
    try:
        stored = parse_json(schema.metadata[b"huggingface"], "the schema")
        features = stored["info"]["features"].items()
    except (AttributeError, OSError, ValueError, LookupError, TypeError):
        return {}
    return {name: feature for name, feature in features if _CLASSES in str(feature)}


def with_names(value: Value, feature: object) -> Value:
    """A value of a column with the names of its class numbers, None for -1."""
    if isinstance(feature, list) and feature:
        # Older versions write a list of one feature.
        fields: _Feature = {"_type": "List", "feature": feature[0]}
    elif isinstance(feature, Mapping):
        fields = feature
    else:
        kind = {"_type": type(feature).__name__}
        fields = {**getattr(feature, "__dict__", {}), **kind}
    if isinstance(value, list):
        return [with_names(item, fields.get("feature", fields)) for item in value]
    if isinstance(value, dict):
        # Older versions have one feature for a dict of lists.
        parts = fields.get("feature", {}) if "_type" in fields else fields
        assert isinstance(parts, Mapping)
        return {name: with_names(item, parts.get(name)) for name, item in value.items()}
    names = fields.get("names")
    if fields.get("_type") != _CLASSES or not is_integer(value):
        return value
    if not isinstance(names, list) or names == [*map(str, range(len(names)))]:
        return value
    number = int(value)
    return ClassName(names[number]) if 0 <= number < len(names) else None


def _small_batches(
    file: File,
    read_batches: Callable[[File, IO[bytes], Sequence[str]], _Batches],
    keys: Sequence[str],
) -> Iterator["pyarrow.RecordBatch"]:
    """Batches of few rows of some columns, in their order."""
    with file.open(seeks=True) as stream:
        for names, batch in read_batches(file, stream, keys):
            columns = batch.select(names)
            # Wrong offsets in a damaged file would read memory outside of it.
            columns.validate(full=True)
            for start in range(0, columns.num_rows, ROWS_AT_A_TIME):
                yield columns.slice(start, ROWS_AT_A_TIME)


def _parquet_batches(file: File, stream: IO[bytes], keys: Sequence[str]) -> _Batches:
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    table = parquet.ParquetFile(stream)
    names = _find_columns(file, table.schema_arrow.names, keys)
    unique_names = list(dict.fromkeys(names))
    for batch in table.iter_batches(ROWS_AT_A_TIME, columns=unique_names):
        yield names, batch


def _arrow_batches(file: File, stream: IO[bytes], keys: Sequence[str]) -> _Batches:
    arrow = import_extra("pyarrow", "an Arrow file")
    if stream.read(len(_MAGIC)) == _MAGIC:
        # An Arrow file is a stream with a header and a footer, which is checked.
        arrow.ipc.open_file(stream)
        stream.seek(_STREAM_START)
    else:
        stream.seek(0)
    reader = arrow.ipc.open_stream(stream)
    names = _find_columns(file, reader.schema.names, keys)
    for batch in reader:
        yield names, batch


def _find_columns(file: File, names: list[str], keys: Sequence[str]) -> list[str]:
    """The names of the columns that keys are, by name or number; each is there once."""
    numbers = {str(number): name for number, name in enumerate(names, start=1)}
    columns = [key if key in names else numbers.get(key, key) for key in keys]
    # Several columns may lack a name, as in other tables.
    for name in (*columns, *filter(None, names)):
        if names.count(name) != 1:
            count = "twice" if name in names else "not there"
            raise SourceError(
                f"{file.name} must have the column {name!r} once, and it is {count}; "
                f"got {name_list(names)}",
                hint=Hint("name others with {fields}"),
            )
    return columns

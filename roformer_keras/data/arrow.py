"""Columns of Parquet and Arrow files, read a batch of rows at a time.

.parquet                  Apache Parquet
.arrow, .ipc, .feather    Arrow IPC, as a file or as a stream
a folder                  what `datasets.Dataset.save_to_disk` writes
"""

import itertools
import math
import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.checks import is_integer
from roformer_keras.errors import Hint, RoFormerError, SourceError, name_list
from roformer_keras.extras import import_extra
from roformer_keras.io.blob import Blob
from roformer_keras.io.budget import MAX_ROW, VALUE, Budget
from roformer_keras.io.declared_sizes import (
    Chunk,
    batch_size,
    parquet_groups,
    parquet_pages,
)
from roformer_keras.io.json_file import parse_json, read_json

# What the extension says; `format` has the same names without the dot.
KINDS = {
    ".parquet": ".parquet",
    ".arrow": ".arrow",
    ".ipc": ".arrow",
    ".feather": ".arrow",
}
# Rows that become Python objects together.
ROWS_AT_A_TIME = 1024
_STATE = "state.json"
# Kind of the features of `datasets` that are class numbers.
_CLASSES = "ClassLabel"
# The first bytes of an Arrow file, and where its stream begins.
_MAGIC, _STREAM_START = b"ARROW1", 8


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
        content = read_json(Blob.of_file(Path(state)))
        names = [one["filename"] for one in content["_data_files"]]
        if not all(name == os.path.basename(name) != "" for name in names):
            raise ValueError(f"a name of a file is expected, got {names!r:.80}")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{state} must be as datasets.Dataset.save_to_disk writes it: {error}"
        ) from error
    return [os.path.join(path, name) for name in names]


def read_columns(
    path: str, kind: str, columns: Sequence[str]
) -> Iterator[tuple[int, list | SourceError]]:
    """Numbers of the rows, from 1, and the values of some columns, as JSON has them.

    NaN is a missing value, and class numbers of `datasets` have their names. In place
    of a row with an infinite number is its SourceError.

    Args:
        path: of a file, or of a saved dataset.
        kind: `".parquet"` or `".arrow"`.
        columns: names, or numbers of columns from "1" if no column has such a name.

    Raises:
        SourceError: the file is damaged, a name comes twice, a column is missing or
            holds what is neither text, number nor a list of them, or the file becomes
            more than it may.
    """
    numbers, files = itertools.count(1), data_files(path)
    budget = Budget.of_files(path, files)
    for file in files:
        features: Mapping | None = None
        try:
            for batch in _batches(file, kind, columns, budget):
                if features is None:
                    features = stored_features(batch.schema)
                values = [plain_values(column) for column in batch.columns]
                for at, name in enumerate(batch.schema.names):
                    if name in features:
                        values[at] = [with_names(v, features[name]) for v in values[at]]
                has_floats = any(_has_floats(column.type) for column in batch.columns)
                for row in zip(*values, strict=True):
                    number = next(numbers)
                    try:
                        cells = _as_in_json(list(row)) if has_floats else list(row)
                    except ValueError as error:
                        yield number, SourceError(f"row {number} of {path}: {error}")
                    else:
                        yield number, cells
        except RoFormerError:
            raise
        # Errors of Arrow are of many types, and a damaged file can raise any of them.
        except Exception as error:
            raise _damaged(file, kind, error) from error


class ClassName(str):
    """A name that `datasets` stores for a class number."""


def stored_features(schema: Any) -> Mapping:
    """The features of columns with class numbers, as `datasets` stores them.

    Args:
        schema: `pyarrow.Schema`, or that of another library, which has none.
    """
    try:
        stored = parse_json(schema.metadata[b"huggingface"], "the schema")
        features = stored["info"]["features"].items()
    except (AttributeError, OSError, ValueError, LookupError, TypeError):
        return {}
    return {name: feature for name, feature in features if _CLASSES in str(feature)}


def with_names(value: Any, feature: Any) -> Any:
    """A value of a column with the names of its class numbers, None for -1.

    Args:
        value: as Python has it.
        feature: of the column, as `datasets` has or stores it; None if it has none.
    """
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


def _damaged(path, kind, error):
    name = "Parquet" if kind == ".parquet" else "Arrow"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    first = " ".join(reason.split())
    return SourceError(
        f"cannot read {path} as {name}: {first:.200}",
        hint="if it is damaged, write or fetch it again",
    )


def _batches(path, kind, columns, budget):
    """Batches of few rows of some columns, in their order."""
    read = _parquet_batches if kind == ".parquet" else _arrow_batches
    for names, batch in read(path, columns, budget):
        part = batch.select(names)
        # Offsets that lie would read memory that is not the file's, even to count
        # bytes.
        part.validate(full=True)
        for start in range(0, part.num_rows, ROWS_AT_A_TIME):
            yield from _pieces(part.slice(start, ROWS_AT_A_TIME), budget)


def _pieces(part, budget):
    """A batch in parts of which none takes much memory, unless it is one row."""
    size = sum(map(unpacked_size, part.columns))
    if size <= MAX_ROW:
        yield part
    elif part.num_rows == 1:
        budget.check_row(size)
    else:
        half = part.num_rows // 2
        yield from _pieces(part.slice(0, half), budget)
        yield from _pieces(part.slice(half), budget)


def _parquet_batches(path, columns, budget):
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    with parquet.ParquetFile(path, memory_map=True) as table:
        names = _find_columns(path, table.schema_arrow, columns)
        metadata, schema = table.metadata, table.schema
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        (size,) = struct.unpack_from("<I", data, len(data) - 8)
        groups = read_groups(data[-8 - size : -8], schema)
        # A name of a column may have dots, which are paths of nested fields here.
        leaves = {
            number: leaf
            for number, leaf in enumerate(
                schema.column(n).path for n in range(len(schema))
            )
            if any(leaf == name or leaf.startswith(f"{name}.") for name in names)
        }
        # What the end of the file says is known before any page is read.
        budget.spend(declared_size(groups, leaves))
        # A row of a list may name a text any number of times.
        nested = {number: leaf for number, leaf in leaves.items() if leaf not in names}
        for number, leaf in nested.items():
            check_encoding(path, leaf, groups, number)
        texts = text_columns(groups, schema)
        # The headers of the pages may say something else.
        pages, read = Budget.like(budget), list(dict.fromkeys(names))
        with parquet.ParquetFile(
            path,
            memory_map=True,
            metadata=metadata,
            read_dictionary=[leaf for leaf in nested.values() if leaf in texts],
        ) as table:
            for numbers in _together(groups, leaves):
                longest = max(
                    sum(count_pages(data, groups[at][n], pages) for n in leaves)
                    for at in numbers
                )
                rows = rows_at_a_time(longest, ROWS_AT_A_TIME)
                for batch in table.iter_batches(rows, row_groups=numbers, columns=read):
                    yield names, batch


def _together(groups, leaves):
    """Numbers of row groups to read together: of one row each, each call has a cost."""
    numbers, count = [], 0
    for at, group in enumerate(groups):
        values = max((group[n].values for n in leaves), default=0)
        if numbers and count + values > ROWS_AT_A_TIME:
            yield numbers
            numbers, count = [], 0
        numbers.append(at)
        count += values
    if numbers:
        yield numbers


def read_groups(footer: bytes, schema: Any) -> list[list[Chunk]]:
    """The columns of each row group of a Parquet file.

    Args:
        footer: as of `parquet_groups`.
        schema: `pyarrow.parquet.ParquetSchema`.

    Raises:
        ValueError: a row group has other columns.
    """
    groups = parquet_groups(footer)
    if not all(len(group) == len(schema) for group in groups):
        raise ValueError(f"a row group must have {len(schema)} columns")
    return groups


def declared_size(
    groups: Sequence[Sequence[Chunk]], columns: Iterable[int] | None = None
) -> int:
    """Bytes that columns of a Parquet file become, as its end says.

    Args:
        groups: as `read_groups` returns them.
        columns: numbers; None for all.
    """
    chunks = [
        group[column]
        for group in groups
        for column in (range(len(group)) if columns is None else columns)
    ]
    return sum(chunk.size + VALUE * chunk.values for chunk in chunks)


def text_columns(groups: Sequence[Sequence[Chunk]], schema: Any) -> list[str]:
    """Paths of the columns whose values can be read as a dictionary.

    Args:
        groups, schema: as of `read_groups`.
    """
    return [
        schema.column(number).path
        for number in range(len(schema))
        if schema.column(number).physical_type == "BYTE_ARRAY"
        and not any(group[number].has_prefixes for group in groups)
    ]


def check_encoding(
    path: str, column: str, groups: Sequence[Sequence[Chunk]], number: int
) -> None:
    """Checks a column of lists, whose one row could name a text any number of times.

    Args:
        path: of the Parquet file.
        column: path of the column.
        groups: as `read_groups` returns them.
        number: of the column.

    Raises:
        SourceError: the texts of a page may begin as the one before.
    """
    if any(group[number].has_prefixes for group in groups):
        raise SourceError(
            f"the column {column!r} of {path} must not be of the encoding "
            "DELTA_BYTE_ARRAY",
            hint="write its lists of texts in another one",
        )


def rows_at_a_time(longest: int, most: int) -> int:
    """Rows to unpack at once.

    Args:
        longest: bytes of a row whose texts are stored once for many.
        most: rows if they are short.
    """
    return max(1, min(most, MAX_ROW // max(1, longest)))


def count_pages(data: Any, chunk: Chunk, pages: Budget, offset: int = 0) -> int:
    """Counts the pages of a column of a row group, by their own headers.

    Args:
        data: the bytes of the file, or those from `offset`.
        chunk: the column.
        pages: the budget of all pages.
        offset: of the first byte.

    Returns:
        The bytes that one of its texts may have which is stored once for many rows.

    Raises:
        SourceError: the pages become more than they may.
        ValueError: a header is damaged.
    """
    longest, start = 0, chunk.start - offset
    for page in parquet_pages(data, start, chunk.stop - offset, chunk.values):
        pages.spend(page.size + VALUE * page.values)
        if page.is_shared:
            longest = max(longest, page.size)
    return longest


def _arrow_batches(path, columns, budget):
    arrow = import_extra("pyarrow", "an Arrow file")
    with open(path, "rb") as file:
        is_file = file.read(len(_MAGIC)) == _MAGIC
    with arrow.memory_map(path) as source, arrow.memory_map(path) as sizes:
        if is_file:
            # Its end names the places of its batches, which follow each other as in a
            # stream.
            arrow.ipc.open_file(source)
            for one in (source, sizes):
                one.seek(_STREAM_START)
        reader = arrow.ipc.open_stream(source)
        names = _find_columns(path, reader.schema, columns)
        messages = arrow.ipc.MessageReader.open_stream(sizes)
        for message in messages:
            body = message.body or b""
            budget.spend(batch_size(message.metadata.to_pybytes(), body))
            if message.type == "record batch":
                yield names, reader.read_next_batch()


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
    # As in other tables, columns without a name may be several.
    counts = Counter(name for name in schema.names if name)
    twice = [name for name, count in counts.items() if count > 1]
    for name in (*columns_found, *twice):
        if schema.names.count(name) != 1:
            count = "twice" if name in schema.names else "not there"
            raise SourceError(
                f"{path} must have the column {name!r} once, and it is {count}; got "
                f"{name_list(schema.names)}",
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
    # Other types, such as null, can claim any number of rows without a byte.
    if types.is_dictionary(kind):
        return _is_plain(types, kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_readable(kind.value_type)
    if types.is_struct(kind):
        fields = [kind.field(at).type for at in range(kind.num_fields)]
        return bool(fields) and all(map(_is_readable, fields))
    return _is_plain(types, kind)


def _is_plain(types, kind):
    checks = (
        *(types.is_string, types.is_large_string, types.is_string_view),
        *(types.is_integer, types.is_floating, types.is_boolean),
    )
    return any(check(kind) for check in checks)


# === Values ===


def unpacked_size(column: Any) -> int:
    """Bytes of the values of a column, each time that one is named.

    Args:
        column: `pyarrow.Array` of a type that is read.
    """
    types, kind = import_extra("pyarrow.types", "an Arrow file"), column.type
    size = VALUE * len(column)
    if types.is_dictionary(kind):
        sizes = _text_sizes(types, column.dictionary)
        if sizes is None:
            return size
        numbers = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return size + int(sizes[numbers].sum()) if len(sizes) else size
    if types.is_list(kind) or types.is_large_list(kind):
        return size + unpacked_size(column.flatten())
    if types.is_struct(kind):
        return size + sum(map(unpacked_size, column.flatten()))
    sizes = _text_sizes(types, column)
    return size if sizes is None else size + int(sizes.sum())


def _text_sizes(types, column):
    """Bytes of each text of a column; None of numbers."""
    kind = column.type
    if types.is_string_view(kind):
        # A view is 16 bytes, of which the first four are the length.
        views = np.frombuffer(column.buffers()[1] or b"", "<i4")[::4]
        return views[column.offset : column.offset + len(column)].astype("int64")
    has_sizes = (
        *(types.is_string, types.is_large_string),
        *(types.is_binary, types.is_large_binary),
    )
    if not any(check(kind) for check in has_sizes):
        return None
    compute = import_extra("pyarrow.compute", "an Arrow file")
    return compute.binary_length(column).fill_null(0).to_numpy().astype("int64")


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


def plain_values(column: Any) -> list:
    """The values of a column, those of dictionaries too."""
    kind = _without_dictionaries(column.type)
    if kind != column.type:
        # A cast looks at the whole of the lists of which the column is a part.
        arrow = import_extra("pyarrow", "an Arrow file")
        column = arrow.concat_arrays([column]).cast(kind)
    return column.to_pylist()


def _without_dictionaries(kind):
    arrow = import_extra("pyarrow", "an Arrow file")
    types = arrow.types
    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_list(kind) or types.is_large_list(kind):
        value = kind.value_field
        make = arrow.list_ if types.is_list(kind) else arrow.large_list
        return make(value.with_type(_without_dictionaries(value.type)))
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return arrow.struct(
            [field.with_type(_without_dictionaries(field.type)) for field in fields]
        )
    return kind

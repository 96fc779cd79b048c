"""Sizes that files declare, read before anything is unpacked.

Pages of Parquet have headers in Thrift's compact protocol, messages of Arrow IPC are
flatbuffers. Their libraries make memory of any declared size, so the sizes are read
here first. Files of gzip and xz end with their size, by which most that are too large
are known at once.

https://www.rfc-editor.org/rfc/rfc1952
https://tukaani.org/xz/xz-file-format.txt
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
https://github.com/apache/arrow/blob/main/format/Message.fbs
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_MAX_DEPTH = 12
# Blocks of an xz whose sizes are read.
_MAX_BLOCKS = 2**16
# Values of Thrift's compact protocol, by the number of their type.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 7, 8, 9, 12
_VARINTS = (4, 5, 6)
# In the place of the length of a list, which follows.
_LONG = 15
# Kinds of pages that hold values, and the field with their header.
_VALUE_PAGES, _DICTIONARY = {0: 5, 3: 8}, 2
# The field of that header with the encoding, and the one of prefixes and ends.
_ENCODING_FIELDS, _PREFIXES = {0: 2, 3: 4}, 7
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def packed_size(data: Any, ending: str) -> int:
    """Bytes that a packed file becomes at least, as its end says; 0 if it does not.

    Args:
        data: the bytes of the file, such as a `mmap`.
        ending: `".gz"` or `".xz"`.
    """
    try:
        if ending == ".gz":
            return struct.unpack_from("<I", data, len(data) - 4)[0]
        (blocks,) = struct.unpack_from("<I", data, len(data) - 8)
        start, total = len(data) - 12 - 4 * (blocks + 1), 0
        # The index begins with a zero.
        count, at = _read_varint(data, start + 1)
        for _ in range(min(count, _MAX_BLOCKS)):
            _, at = _read_varint(data, at)
            size, at = _read_varint(data, at)
            total += size
        return total
    except (ValueError, struct.error):
        # It is damaged, as its reader will say, or followed by padding.
        return 0


class Chunk(NamedTuple):
    """A column of one row group of Parquet, as the end of the file describes it.

    Attributes:
        values: that it holds, those that are missing too.
        size: bytes of its pages when they are unpacked.
        start, stop: where its pages are.
        has_prefixes: whether texts of a page may begin as the one before.
    """

    values: int
    size: int
    start: int
    stop: int
    has_prefixes: bool


def parquet_groups(footer: bytes) -> list[list[Chunk]]:
    """The columns of each row group.

    pyarrow gives them too, and ends the process where one of them is damaged.

    Args:
        footer: the bytes before the last eight of a file, which have its length.

    Raises:
        ValueError: they are damaged.
    """
    groups = []
    metadata, _ = _read_struct(footer, 0)
    for group in _list(metadata, 4):
        chunks = []
        for column in _list(group, 1):
            fields = column.get(3) if isinstance(column, dict) else None
            if not isinstance(fields, dict):
                raise ValueError("a column has no metadata")
            values, size, packed, first, dictionary = (
                fields.get(number, 0) for number in (5, 6, 7, 9, 11)
            )
            if min(values, size, packed, first, dictionary) < 0:
                raise ValueError("a column has a size below 0")
            # The dictionary comes first, if there is one.
            start = dictionary if 0 < dictionary < first else first
            has_prefixes = _PREFIXES in _list(fields, 2)
            chunks.append(Chunk(values, size, start, start + packed, has_prefixes))
        groups.append(chunks)
    return groups


def _list(fields, number):
    values = fields.get(number, []) if isinstance(fields, dict) else None
    if not isinstance(values, list):
        raise ValueError(f"the field {number} of the metadata must be a list")
    return values


class Page(NamedTuple):
    """A page of a column of Parquet.

    Attributes:
        size: bytes when it is unpacked.
        values: that it holds, those that are missing too; 0 of a dictionary.
        is_shared: whether a text in it may be of many values: of a dictionary, or of an
            encoding in which texts begin as the one before.
    """

    size: int
    values: int
    is_shared: bool


def parquet_pages(data: Any, start: int, stop: int, count: int) -> Iterator[Page]:
    """The pages of a column of one row group.

    Args:
        data: the bytes of the file, such as a `mmap`.
        start, stop: where the pages are.
        count: of the values of the column, after which no page is read.

    Raises:
        ValueError: a header is damaged.
    """
    at, values = start, 0
    while at < stop and values < count:
        header, at = _read_struct(data, at)
        kind, size, packed = (header.get(field, -1) for field in (1, 2, 3))
        page = header.get(_VALUE_PAGES.get(kind, -1), {})
        page_values = page.get(1, 0) if isinstance(page, dict) else -1
        if min(kind, size, packed, page_values) < 0:
            raise ValueError(f"the header of a page before byte {at:,} is damaged")
        encoding = page.get(_ENCODING_FIELDS.get(kind, -1))
        yield Page(size, page_values, kind == _DICTIONARY or encoding == _PREFIXES)
        values, at = values + page_values, at + packed


def _read_struct(data, at, depth=0):
    """The fields of a struct by number, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        byte, at = _byte(data, at), at + 1
        if byte == 0:
            return fields, at
        kind, step = byte & 15, byte >> 4
        if step:
            number += step
        else:
            number, at = _read_integer(data, at)
        if kind in (_TRUE, _FALSE):
            value: Any = kind == _TRUE
        else:
            value, at = _read_value(data, at, kind, depth)
        fields[number] = value


def _read_value(data, at, kind, depth):
    """A value, and where it ends; None for a text or a float, which nobody needs."""
    if kind in _VARINTS:
        return _read_integer(data, at)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return None, at + size
    if kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):
        return None, at + (8 if kind == _DOUBLE else 1)
    if depth >= _MAX_DEPTH or kind not in (_LIST, _STRUCT):
        raise ValueError(f"it has a value of the type {kind}, {depth} deep")
    if kind == _STRUCT:
        return _read_struct(data, at, depth + 1)
    head, at = _byte(data, at), at + 1
    count = head >> 4
    if count == _LONG:
        count, at = _read_varint(data, at)
    # Each value has a byte at least.
    if count > len(data) - at:
        raise ValueError("it is cut off")
    values = []
    for _ in range(count):
        value, at = _read_value(data, at, head & 15, depth + 1)
        values.append(value)
    return values, at


def _read_integer(data, at):
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(data, at):
    value = 0
    for shift in range(0, 70, 7):
        byte, at = _byte(data, at), at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("it has a number that is too long")


def _byte(data, at):
    if not 0 <= at < len(data):
        raise ValueError("it is cut off")
    return data[at]


def batch_size(metadata: bytes, body: Any) -> int:
    """Bytes of the columns in a message of Arrow IPC when they are unpacked.

    Args:
        metadata: the flatbuffer.
        body: bytes of the buffers.

    Raises:
        ValueError: the message is damaged.
    """
    try:
        message = _Table(metadata, *struct.unpack_from("<I", metadata))
        kind = message.scalar(1, "<B")
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            return 0
        batch = message.table(2)
        if kind == _DICTIONARY_BATCH:
            batch = batch.table(1)
        start, count = batch.vector(2)
        is_packed, total = batch.has(3), 0
        for number in range(count):
            place = start + 16 * number
            offset, size = struct.unpack_from("<qq", metadata, place)
            if size < 0:
                raise ValueError("a message is damaged: a buffer has a size below 0")
            if is_packed and size >= 8 and offset >= 0:
                (unpacked,) = struct.unpack_from("<q", body, offset)
                # Of a buffer that is not packed it is -1.
                size = max(size, unpacked)
            total += size
        return total
    except (struct.error, RecursionError) as error:
        raise ValueError(f"a message is damaged: {error}") from error


class _Table:
    """A table of a flatbuffer at a place."""

    def __init__(self, data, at):
        self._data, self._at = data, at
        (back,) = struct.unpack_from("<i", data, at)
        self._names = at - back
        (self._size,) = struct.unpack_from("<H", data, self._names)

    def _place(self, field):
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._names + entry)
        return self._at + offset if offset else None

    def has(self, field):
        return self._place(field) is not None

    def scalar(self, field, layout):
        place = self._place(field)
        return 0 if place is None else struct.unpack_from(layout, self._data, place)[0]

    def _target(self, field):
        place = self._place(field)
        if place is None:
            raise ValueError("a message is damaged: a field is missing")
        return place + struct.unpack_from("<I", self._data, place)[0]

    def table(self, field):
        return _Table(self._data, self._target(field))

    def vector(self, field):
        """Where the items of a vector are, and how many."""
        target = self._target(field)
        return target + 4, struct.unpack_from("<I", self._data, target)[0]

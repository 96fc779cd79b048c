"""TensorFlow's checkpoint files, read and written without TensorFlow.

A checkpoint is a "tensor bundle": an index, which is a LevelDB table of protobuf
messages sorted by key, and the bytes of the tensors in one file, or shard, or more.

    <prefix>.index                                   <prefix>.data-00000-of-00001
    ┌───────────────────────────────────────────┐    ┌──────────────────────────┐
    │ data block                                │    │ tensor, little-endian    │
    │   ""         -> BundleHeaderProto         │    ├──────────────────────────┤
    │   "bert/..." -> BundleEntryProto ─────────┼───>│ tensor                   │
    │ data block, begun every 256 KiB ...       │    ├──────────────────────────┤
    │ metaindex block, always empty             │    │ ...                      │
    │ index block                               │    └──────────────────────────┘
    │   last key -> where its data block lies   │
    │ footer: where metaindex and index lie,    │
    │   zeros up to 40 bytes, 8 bytes of magic  │
    └───────────────────────────────────────────┘

    block   entry* | restart offset: uint32 * | restart count: uint32
            | compression: uint8 | masked CRC-32C of all before: uint32
    entry   shared, added, length: varint | key[shared:], `added` bytes
                | value, `length` bytes; the entry before shares key[:shared]

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc and
tensorflow/core/protobuf/tensor_bundle.proto; for the table,
tensorflow/tsl/lib/io/{format,block_builder,table_builder}.cc and LevelDB's
doc/table_format.md. The files equal TensorFlow's own byte by byte.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

import google_crc32c
import numpy as np

from roformer_keras.base.errors import CheckpointError, refuse
from roformer_keras.io.object_graph import parse_object_graph
from roformer_keras.io.protobuf import Malformed, read_message, read_varint
from roformer_keras.io.tensor import check_names, numpy_dtype

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5
_BLOCK_SIZE = 262144
_RESTART_INTERVAL = 16
# Prefix compression lets a small index spell out enormous keys. The keys of any
# checkpoint fit in so many bytes.
_MAX_KEY_BYTES = 2**26
_MAX_RANK = 32
# The object graph of a model with its optimizer takes less than a tenth of it.
_MAX_GRAPH = 2**21
# A tensor's shape and offset take less than 500 bytes, and so do its slices'.
_MAX_ENTRY = 2**16

# tensorflow/core/framework/types.proto: every type that is a plain array of numbers.
_DTYPE_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_DTYPE_CODES = {name: code for code, name in _DTYPE_NAMES.items()}


class _Entry(NamedTuple):
    """A BundleEntryProto."""

    dtype: str | None  # None: not numeric
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    num_slices: int


class TensorBundleReader:
    """The numeric tensors of one checkpoint, read one at a time.

    Opening checks the whole index and that every tensor lies inside its shard;
    `read` checks the tensor's bytes. String tensors, such as the object graph that
    `tf.train.Checkpoint` adds, are left out.
    """

    def __init__(self, index: bytes, shards: Sequence, label: str):
        self._label = label
        self._shards = list(shards)
        self._entries = {}
        try:
            table = dict(_ascending(_table_entries(index)))
            check_names(table, label)
            _check_header(table.pop(b"", None), len(shards))
        except Malformed as error:
            raise self._error(f"the index cannot be used: {error}") from None
        for key, value in table.items():
            if key.startswith(b"\0"):  # one slice of a partitioned variable
                continue
            try:
                entry = _read_entry(value)
                if entry.dtype is not None and not entry.num_slices:
                    self._check_extent(entry)
                self._entries[key.decode()] = entry
            except (Malformed, UnicodeDecodeError) as error:
                name = key[:200].decode(errors="backslashreplace")
                raise self._error(f"tensor {name!r}: {error}") from None

    def names(self) -> list[str]:
        """Names of the numeric tensors, sorted."""
        return [name for name in self._entries if name in self]

    def __contains__(self, name: str) -> bool:
        return name in self._entries and self._entries[name].dtype is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; raises as `read` does for other names."""
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """NumPy's name of a tensor's type, or `"bfloat16"`; raises as `shape` does."""
        dtype = self._entry(name).dtype
        assert dtype is not None
        return dtype

    def read(self, name: str) -> np.ndarray:
        """A read-only tensor.

        It is a view of a shard in memory, or a copy if the bytes there are not aligned
        to the item size, which few libraries support.
        """
        entry = self._entry(name)
        if entry.num_slices:
            raise self._error(
                f"tensor {name!r} is a partitioned variable in {entry.num_slices} "
                "slices, which is not supported; save it again without a partitioner"
            )
        data = np.frombuffer(self._bytes(entry), np.uint8)
        if _masked_crc32c(data) != entry.checksum:
            raise self._error(
                f"tensor {name!r} does not match its checksum: the file is damaged; "
                "get it again"
            )
        array = np.ndarray(entry.shape, numpy_dtype(self.dtype(name)), data)
        array = np.require(array, requirements="A")
        array.flags.writeable = False
        return array

    def object_names(self) -> dict[str, tuple[str, str]]:
        """The variable name and the layer's attribute, by key of an object checkpoint.

        `tf.train.Checkpoint`, and `save_weights` of tf.keras, name tensors by the
        attributes that lead to them; a SavedModel names some by a number. The object
        graph in the same file holds the names of the variables, such as
        `"Transformer-0-FeedForward/dense/kernel"`, and the attributes.
        """
        if OBJECT_GRAPH not in self._entries:
            return {}
        try:
            return parse_object_graph(self._read_string(OBJECT_GRAPH))
        except (Malformed, UnicodeDecodeError) as error:
            raise self._error(f"tensor {OBJECT_GRAPH!r}: {error}") from None

    def _read_string(self, name: str) -> bytes:
        """A scalar string: its length, the length's checksum, its bytes."""
        entry = self._entries[name]
        if entry.shard >= len(self._shards):
            raise Malformed("it lies in a data file that is not there")
        if entry.size > _MAX_GRAPH:
            raise Malformed(f"it has more than {_MAX_GRAPH:,} bytes")
        data = bytes(self._bytes(entry))
        length, at = read_varint(data, 0)
        text = data[at + 4 :]
        if len(text) != length:
            raise Malformed(f"it has {len(text)} bytes instead of {length}")
        # The checksum covers the length as a plain integer, not as a varint.
        size = 4 if length < 2**32 else 8
        covered = length.to_bytes(size, "little") + data[at:]
        if _masked_crc32c(covered) != entry.checksum:
            raise Malformed(
                "it does not match its checksum: the file is damaged; get it again"
            )
        return text

    def _bytes(self, entry: _Entry):
        return self._shards[entry.shard][entry.offset : entry.offset + entry.size]

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise self._error(f"there is no tensor {name!r}")
        if name not in self:
            raise self._error(f"{name!r} is not a numeric tensor")
        return self._entries[name]

    def _check_extent(self, entry: _Entry):
        assert entry.dtype is not None
        expected = math.prod(entry.shape) * numpy_dtype(entry.dtype).itemsize
        if entry.size != expected:
            raise Malformed(
                f"{entry.dtype} of shape {entry.shape} takes {expected} bytes, but the "
                f"index says {entry.size}"
            )
        if entry.shard >= len(self._shards):
            raise Malformed(
                f"it lies in data file {entry.shard}, counted from 0, but there are "
                f"{len(self._shards)}"
            )
        end, available = entry.offset + entry.size, len(self._shards[entry.shard])
        if end > available:
            raise Malformed(
                f"it ends at byte {end} of data file {entry.shard}, which has "
                f"{available}: the file is truncated; get it again"
            )

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._label}: {message}")


def write_tensor_bundle(
    prefix: str | os.PathLike, tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes `<prefix>.index` and `<prefix>.data-00000-of-00001`.

    Files of these names are overwritten; after an error, the bytes written so far stay.
    `write_shard` defines `tensors` and the errors.
    """
    prefix = os.fspath(prefix)
    with open(f"{prefix}.data-00000-of-00001", "wb") as shard:
        index = write_shard(shard, tensors)
    with open(f"{prefix}.index", "wb") as file:
        file.write(index)


def write_shard(shard: IO[bytes], tensors: Iterable[tuple[str, np.ndarray]]) -> bytes:
    """Writes the only data file of a bundle, and returns the content of its index.

    Tensors are written one by one, and only one is held at a time.
    """
    table = {b"": _number_field(1, 1) + _bytes_field(3, _number_field(1, 1))}
    offset = 0
    for name, array in tensors:
        key = name.encode()
        refuse(
            not key or key.startswith(b"\0") or key in table,
            "names of tensors must differ, may not be empty and may not begin "
            f"with NUL, got {name!r}",
            error=CheckpointError,
        )
        refuse(
            array.dtype.name not in _DTYPE_CODES,
            f"tensor {name!r} has type {array.dtype}, which a TensorFlow "
            f"checkpoint cannot hold; it can: {', '.join(_DTYPE_CODES)}",
            error=CheckpointError,
        )
        little_endian = np.asarray(array, array.dtype.newbyteorder("<"))
        data = np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8)
        shard.write(data.data)
        dims = (_bytes_field(2, _number_field(1, size)) for size in array.shape)
        table[key] = (
            _number_field(1, _DTYPE_CODES[array.dtype.name])
            + _bytes_field(2, b"".join(dims))
            + _number_field(4, offset)
            + _number_field(5, data.size)
            + _fixed32_field(6, _masked_crc32c(data))
        )
        offset += data.size
    return _encode_table(sorted(table.items()))


def _masked_crc32c(data) -> int:
    """CRC-32C, masked as in LevelDB, because CRCs of data that hold CRCs are weak."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# === Table ===


def _table_entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(index) < _FOOTER_SIZE or index[-8:] != _MAGIC:
        raise Malformed(
            "it does not end in the magic number of TensorFlow's indices: it is "
            "truncated, or something else"
        )
    _, _, at = _read_handle(index, len(index) - _FOOTER_SIZE)  # the metaindex
    offset, size, _ = _read_handle(index, at)
    end_of_last = 0
    for number, (_, handle) in enumerate(
        _ascending(_block_entries(_read_block(index, offset, size, "index block")))
    ):
        offset, size, _ = _read_handle(handle, 0)
        if offset < end_of_last:  # overlapping blocks would make reading quadratic
            raise Malformed("its data blocks overlap")
        end_of_last = offset + size
        yield from _block_entries(
            _read_block(index, offset, size, f"data block {number}")
        )


def _read_handle(data: bytes, at: int) -> tuple[int, int, int]:
    """A BlockHandle's offset and size, and its own end."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return offset, size, at


def _read_block(index: bytes, offset: int, size: int, which: str) -> bytes:
    end = offset + size
    if end + _TRAILER_SIZE > len(index) - _FOOTER_SIZE:
        raise Malformed(f"{which} lies outside the file")
    checksum = int.from_bytes(index[end + 1 : end + _TRAILER_SIZE], "little")
    if _masked_crc32c(index[offset : end + 1]) != checksum:
        raise Malformed(
            f"{which} does not match its checksum: the file is damaged; get it again"
        )
    if index[end] != 0:
        raise Malformed(
            f"{which} is compressed (type {index[end]}; 1 is Snappy), which TensorFlow "
            "can read but does not write; load and save the checkpoint with it"
        )
    return index[offset:end]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise Malformed("a block has no room for its restart offsets")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        added, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key) or added + length > end - at:
            raise Malformed("an entry is longer than its block")
        key = key[:shared] + block[at : at + added]
        at += added + length
        yield key, block[at - length : at]


def _ascending(
    entries: Iterable[tuple[bytes, bytes]],
) -> Iterator[tuple[bytes, bytes]]:
    """Passes entries on while their keys ascend and stay within bounds."""
    previous, total = None, 0
    for key, value in entries:
        total += len(key)
        if total > _MAX_KEY_BYTES:
            raise Malformed(f"its keys take more than {_MAX_KEY_BYTES} bytes")
        if previous is not None and key <= previous:
            raise Malformed(f"key {key[:99]!r} is out of order")
        yield key, value
        previous = key


def _encode_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    table = bytearray()
    block, index_block = _BlockBuilder(_RESTART_INTERVAL), _BlockBuilder(1)
    followers = [key for key, _ in entries[1:]] + [b"\xff"]  # above any UTF-8 text
    for (key, value), following in zip(entries, followers, strict=True):
        block.add(key, value)
        if following == b"\xff" or block.size() >= _BLOCK_SIZE:
            handle = _append_block(table, block.encode())
            index_block.add(_separator(key, following), handle)
            block = _BlockBuilder(_RESTART_INTERVAL)
    metaindex_handle = _append_block(table, _BlockBuilder(1).encode())
    footer = metaindex_handle + _append_block(table, index_block.encode())
    return bytes(table) + footer.ljust(_FOOTER_SIZE - len(_MAGIC), b"\0") + _MAGIC


class _BlockBuilder:
    """Prefix-compresses entries, but writes every `restart_interval`-th key in full."""

    def __init__(self, restart_interval: int):
        self._interval = restart_interval
        self._data = bytearray()
        self._restarts = [0]
        self._num_entries = 0
        self._last_key = b""

    def add(self, key: bytes, value: bytes):
        if self._num_entries and self._num_entries % self._interval == 0:
            self._restarts.append(len(self._data))
            self._last_key = b""
        shared = _shared_length(self._last_key, key)
        for number in (shared, len(key) - shared, len(value)):
            self._data += _varint(number)
        self._data += key[shared:] + value
        self._num_entries += 1
        self._last_key = key

    def size(self) -> int:
        return len(self._data) + 4 * len(self._restarts) + 4

    def encode(self) -> bytes:
        tail = [*self._restarts, len(self._restarts)]
        return bytes(self._data) + np.array(tail, "<u4").tobytes()


def _append_block(table: bytearray, block: bytes) -> bytes:
    """Returns the block's encoded BlockHandle."""
    handle = _varint(len(table)) + _varint(len(block))
    content = block + b"\0"  # not compressed
    table += content + _masked_crc32c(content).to_bytes(4, "little")
    return handle


def _separator(key: bytes, following: bytes) -> bytes:
    """LevelDB's short key that is at least `key` and less than `following`."""
    shared = _shared_length(key, following)
    if shared < len(key) and key[shared] + 1 < following[shared]:
        return key[:shared] + bytes([key[shared] + 1])
    return key


def _shared_length(a: bytes, b: bytes) -> int:
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


# === Protocol buffers ===


def _check_header(value: bytes | None, num_shards: int):
    if value is None:
        raise Malformed("it has no header")
    numbers, parts = read_message(value)
    version, _ = read_message(b"".join(parts[3]))
    if numbers[2] != 0:
        raise Malformed("its tensors are big-endian, which is not supported")
    if version[2] > 1:
        raise Malformed(f"it needs a reader of format {version[2]}, this is of 1")
    if numbers[1] != num_shards:
        raise Malformed(f"it is for {numbers[1]} data file(s), got {num_shards}")


def _read_entry(value: bytes) -> _Entry:
    if len(value) > _MAX_ENTRY:
        raise Malformed(f"its entry has more than {_MAX_ENTRY:,} bytes")
    numbers, parts = read_message(value)
    _, shape_parts = read_message(b"".join(parts[2]))
    shape = tuple(read_message(dim)[0][1] for dim in shape_parts[2])
    # NumPy computes strides for empty arrays too.
    if len(shape) > _MAX_RANK or math.prod(max(1, dim) for dim in shape) >= 2**59:
        raise Malformed(f"no array can have its {len(shape)}-dimensional shape")
    shard, offset, size, checksum = (numbers[field] for field in (3, 4, 5, 6))
    dtype, num_slices = _DTYPE_NAMES.get(numbers[1]), len(parts[7])
    return _Entry(dtype, shape, shard, offset, size, checksum, num_slices)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value) if value else b""  # 0 is the default


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _fixed32_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | 5) + value.to_bytes(4, "little")

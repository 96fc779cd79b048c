"""Reads files of `torch.save` without PyTorch: tensors by name, and nothing else.

Such a file is a pickle, a program that can call any function. Here it can make dicts,
lists, numbers, texts and tensors; everything else that it names is refused before it is
looked up. A few bytes can make a tuple that holds itself twice, thirty times over, and
name a long object a million times: keys are short texts or integers before they are
hashed, messages name types of objects, and each operation takes a few objects. There
are two formats: since PyTorch 1.6 a zip with the pickle and a member for each storage,
before that one run of bytes with pickles and then the storages.
"""

import io
import math
import pickle
import pickletools
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from roformer_keras.errors import CheckpointError
from roformer_keras.io.archive import ZipTree, looks_like_zip
from roformer_keras.io.blob import HEAD_SIZE, MAX_NAME, Blob
from roformer_keras.io.safetensors_file import as_file
from roformer_keras.io.tensor import MAX_TENSORS, Tensor, check_names, numpy_dtype

# The first object of the older format.
_MAGIC = 0x1950A86A20F9469CFC6C
# Of all pickles of a file; those of released models have less than 1 MB.
_MAX_PICKLE = 16 * 2**20
# Of one pickle; a tensor takes about 35.
_MAX_OPERATIONS = 40 * MAX_TENSORS
# Of a call; that of a tensor has seven.
_MAX_ARGUMENTS = 8
# Reading all tensors may read each storage so often: a tensor can be a part of one.
_MAX_READS = 256
# NumPy's limit.
_MAX_AXES = 64
# What `torch.save` of a dict of tensors needs; the other opcodes import and call.
_OPCODES = frozenset(
    name
    for names in (
        "PROTO FRAME STOP MARK POP GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID",
        "GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE NONE NEWTRUE NEWFALSE",
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING",
        "SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES",
        "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS",
        "EMPTY_DICT DICT SETITEM SETITEMS",
    )
    for name in names.split()
)
# Class of a storage -> NumPy's name of its numbers; bfloat16 is one of ml_dtypes.
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_DAMAGE = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError),
    *(LookupError, MemoryError, RecursionError, TypeError, ValueError, struct.error),
)


def open_pytorch(blob: Blob, stack: ExitStack) -> dict[str, Tensor]:
    """The tensors of a file by name, not read yet.

    Args:
        blob: the file, or a member of a zip.
        stack: what closes the file, and deletes what had to be unpacked.

    Raises:
        CheckpointError: the file is damaged, or is no dict of tensors.
        SourceError: its zip is unsafe.
    """
    is_zip = looks_like_zip(blob.read(0, HEAD_SIZE))
    pickled, read = (_open_zip if is_zip else _open_legacy)(blob, stack)
    if not isinstance(pickled, dict) or not all(
        isinstance(name, str) and isinstance(value, _Tensor)
        for name, value in pickled.items()
    ):
        raise CheckpointError(
            f"{blob.label} must hold tensors by name, as model.state_dict() has them, "
            f"got {_describe(pickled)}: save the state_dict alone"
        )
    check_names(pickled, blob.label)
    _check_storages(pickled.values(), blob.label)
    return {
        name: Tensor(
            tensor.shape, tensor.storage.dtype, tensor.reader(blob, name, read)
        )
        for name, tensor in pickled.items()
    }


def _check_storages(tensors, label):
    """Refuses tensors that are small parts of large storages, each of which is read."""
    sizes = {tensor.storage.key: tensor.storage.size for tensor in tensors}
    total = sum(tensor.storage.size for tensor in tensors)
    if total > _MAX_READS * sum(sizes.values()):
        raise CheckpointError(
            f"{label}: its {len(tensors)} tensors share {len(sizes)} storages, and "
            f"reading each takes {total:,} bytes: save clones of them"
        )


def _describe(found):
    if not isinstance(found, dict):
        return type(found).__name__.strip("_")
    for name, value in found.items():
        if not isinstance(name, str):
            return f"a name of the type {type(name).__name__}"
        if not isinstance(value, _Tensor):
            kind = "dict" if isinstance(value, dict) else type(value).__name__
            return f"{kind} under {name[:60]!r}"
    raise AssertionError("all are tensors")


# === The two formats ===


def _open_zip(blob, stack):
    tree = ZipTree(as_file(blob, stack), stack)
    data_files = [name for name in tree.members if name.endswith("/data.pkl")]
    if len(data_files) != 1:
        raise CheckpointError(
            f"{blob.label} must be a zip with one data.pkl, as torch.save writes it, "
            f"got {len(data_files)}: save or download it again"
        )
    data_file = data_files[0]
    folder = data_file.removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if tree.has(order) and b"".join(tree.chunks(order)) != b"little":
        raise CheckpointError(
            f"{blob.label} was saved with its bytes in another order than 'little'"
        )
    if tree.members[data_file].file_size > _MAX_PICKLE:
        raise _too_long(blob)
    content, _ = _unpickled(b"".join(tree.chunks(data_file)), 0, blob.label)

    def read(storage):
        name = f"{folder}data/{storage.key}"
        if not tree.has(name):
            raise CheckpointError(
                f"{blob.label}: its member {name[:80]} is missing; download it again"
            )
        if tree.members[name].file_size != storage.size:
            raise _wrong_size(blob, storage, tree.members[name].file_size)
        return b"".join(tree.chunks(name))

    return content, read


def _open_legacy(blob, stack):
    data = blob.read(0, _MAX_PICKLE)
    is_whole = len(data) == len(blob)
    objects, at = [], 0
    try:
        # Magic number, version, properties of the system, the object, storage keys.
        while len(objects) < 5:
            item, at = _unpickled(data, at, blob.label)
            objects.append(item)
            if objects[0] != _MAGIC:
                break
    except CheckpointError:
        if not objects:
            raise CheckpointError(
                f"{blob.label} is no file of torch.save: it begins with {data[:16]!r}"
            ) from None
        if is_whole or len(objects) < 3:
            raise
        raise _too_long(blob) from None
    if objects[0] != _MAGIC:
        raise CheckpointError(
            f"{blob.label} is a pickle, but not one of torch.save: save the model by "
            "torch.save(model.state_dict(), path)"
        )
    keys = objects[4]
    content = objects[3]
    tensors = content.values() if isinstance(content, dict) else ()
    storages = {t.storage.key: t.storage for t in tensors if isinstance(t, _Tensor)}
    is_list = isinstance(keys, list) and len(keys) == len(storages)
    is_list = is_list and all(isinstance(key, str) for key in keys)
    if not is_list or {*keys} != {*storages}:
        raise CheckpointError(
            f"{blob.label}: its list of storages must name those of the tensors, and "
            "does not; save or download it again"
        )
    locations = {}
    for key in keys:
        storage = storages[key]
        count = blob.read(at, 8)
        if len(count) == 8 and struct.unpack("<q", count)[0] != storage.count:
            raise _wrong_size(blob, storage, None)
        locations[key] = at + 8
        at += 8 + storage.size
        if at > len(blob):
            raise CheckpointError(
                f"{blob.label} ends after {len(blob):,} bytes, within storage "
                f"{str(key)[:40]!r}: it is truncated, download it again"
            )
    return content, lambda storage: blob.read(locations[storage.key], storage.size)


def _too_long(blob):
    return CheckpointError(
        f"{blob.label}: its pickle is longer than the {_MAX_PICKLE:,} bytes that names "
        "and shapes of tensors can need"
    )


def _wrong_size(blob, storage, size):
    has = "another number of them" if size is None else f"{size:,} bytes"
    return CheckpointError(
        f"{blob.label}: storage {storage.key[:40]!r} must have {storage.count:,} "
        f"numbers of {storage.dtype}, got {has}; download it again"
    )


# === The unpickler ===


def _unchangeable(self, state):
    raise ValueError("it changes what it has made")


@dataclass(frozen=True)
class _Storage:
    """Numbers that tensors are views of."""

    key: str
    dtype: str
    count: int

    __setstate__ = _unchangeable

    @property
    def size(self) -> int:
        return self.count * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage; offset and strides in numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    __setstate__ = _unchangeable

    def reader(self, blob: Blob, name: str, read: Callable) -> Callable:
        def value():
            data = read(self.storage)
            if len(data) != self.storage.size:
                raise CheckpointError(
                    f"{blob.label}: {name} is truncated; download it again"
                )
            array = np.frombuffer(data, numpy_dtype(self.storage.dtype))
            steps = [step * array.itemsize for step in self.strides]
            view = np.lib.stride_tricks.as_strided(
                array[self.offset :], self.shape, steps, writeable=False
            )
            return np.ascontiguousarray(view).reshape(self.shape)

        return value


def _unpickled(data: bytes, start: int, label: str) -> tuple[Any, int]:
    """The object of the pickle that begins at `start`, and where that pickle ends."""
    stream = io.BytesIO(data)
    stream.seek(start)
    try:
        _check_opcodes(stream)
        end = stream.tell()
        return _Unpickler(io.BytesIO(data[start:end])).load(), end
    except _Refused as error:
        raise CheckpointError(
            f"{label} {error}, which no file of weights needs: it is not read, get it "
            "from its publisher as safetensors"
        ) from None
    except _DAMAGE as error:
        # The text of others may be that of an object of the file.
        reason = error.args[0] if error.args else ""
        reason = f": {reason[:120]}" if isinstance(reason, str) else ""
        raise CheckpointError(
            f"{label} is a damaged pickle ({type(error).__name__}{reason}): save or "
            "download it again"
        ) from error


class _Refused(Exception):
    """A request of a pickle that is refused."""


def _check_opcodes(stream):
    """Refuses opcodes before any is run, and places in the memo that are none."""
    stored = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number == _MAX_OPERATIONS:
            raise ValueError(f"it has more than {number:,} operations")
        if opcode.name not in _OPCODES:
            raise _Refused(f"asks for the pickle operation {opcode.name}")
        if opcode.name == "MEMOIZE" or opcode.name.endswith("PUT"):
            stored += 1
            # The unpickler makes room for all places before this one.
            if opcode.name != "MEMOIZE" and argument > 2 * stored + 64:
                raise ValueError(f"place {argument} of {stored} in the memo")


class _Unpickler(pickle._Unpickler):
    """Makes tensors of a pickle whose opcodes were checked.

    It is Python's own in Python: that in C hashes keys unseen.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    # Pairs of all calls of OrderedDict: one list can be named by each.
    _pairs = 0

    def load_setitem(self):
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self):
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self):
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_reduce(self):
        # They are copied before the call.
        if type(self.stack[-1]) is not tuple or len(self.stack[-1]) > _MAX_ARGUMENTS:
            raise ValueError(f"a call must have at most {_MAX_ARGUMENTS} arguments")
        super().load_reduce()

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Maker(self._make_dict)
        if module == "torch._utils" and name in _MAKERS:
            return _Maker(_MAKERS[name])
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _Maker(_refuse_call, _STORAGES[name])
        raise _Refused(f"asks for {module[:60]}.{name[:60]}")

    def _make_dict(self, *arguments):
        names = _Names()
        for pairs in arguments:
            if type(pairs) not in (tuple, list):
                raise ValueError("an OrderedDict must be made of a list of pairs")
            self._pairs += len(pairs)
            if self._pairs > _MAX_OPERATIONS:
                raise ValueError(f"its dicts have more than {_MAX_OPERATIONS:,} pairs")
            for pair in pairs:
                if type(pair) not in (tuple, list) or len(pair) != 2:
                    raise ValueError("an OrderedDict must be made of pairs")
                _check_keys(pair[:1])
                names[pair[0]] = pair[1]
        return names

    def persistent_load(self, pid: Any) -> _Storage:
        if type(pid) is not tuple or len(pid) > _MAX_ARGUMENTS:
            raise ValueError("it names data by something else than a short tuple")
        kind, maker, key, _, count, *rest = pid
        if kind != "storage" or not isinstance(maker, _Maker) or any(rest):
            raise ValueError("it names data that is no storage")
        if maker.dtype is None or not isinstance(key, str):
            raise ValueError("it names a storage of no known type")
        _check_keys([key])
        return _Storage(key, maker.dtype, _natural(count))


class _Maker:
    """Stand-in for a name in a pickle: it can be called, and not changed."""

    __slots__ = ("_function", "dtype")

    def __init__(self, function: Callable, dtype: str | None = None):
        self._function, self.dtype = function, dtype

    __setstate__ = _unchangeable

    def __call__(self, *arguments):
        return self._function(*arguments)


class _Names(OrderedDict):
    """A dict by name; PyTorch keeps versions of modules in its attributes."""

    def __setstate__(self, state):
        pass


def _check_keys(keys):
    for key in keys:
        if type(key) not in (str, int):
            raise ValueError(
                f"a key must be a text or an integer, got {type(key).__name__}"
            )
        # Texts are compared, and integers hashed, each time that they are a key.
        if len(key) > MAX_NAME if type(key) is str else key.bit_length() > 64:
            raise ValueError(
                f"a key must have at most {MAX_NAME:,} characters, or 64 bits"
            )


def _refuse_call(*arguments):
    raise ValueError("it calls the class of a storage")


def _tensor(storage, offset, shape, strides, *_):
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor must be a view of a storage")
    for numbers in (shape, strides):
        if not isinstance(numbers, tuple | list) or len(numbers) > _MAX_AXES:
            raise ValueError(f"a tensor must have at most {_MAX_AXES} axes")
    if len(shape) != len(strides):
        raise ValueError(f"a tensor has {len(shape)} axes and {len(strides)} strides")
    shape, strides = (tuple(map(_natural, numbers)) for numbers in (shape, strides))
    offset, size = _natural(offset), math.prod(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    # More numbers than are stored would be one number again and again.
    if size and (last >= storage.count or size > storage.count):
        raise ValueError(
            f"a tensor of shape {shape} reaches beyond its storage of "
            f"{storage.count:,} numbers"
        )
    return _Tensor(storage, offset, shape, strides)


def _parameter(tensor, *_):
    if not isinstance(tensor, _Tensor):
        raise ValueError("a parameter must be a tensor")
    return tensor


_MAKERS: Mapping[str, Callable] = {
    "_rebuild_tensor_v2": _tensor,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
}


def _natural(number) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        value = number if type(number) is int else type(number).__name__
        raise ValueError(f"a size must be an integer of at least 0, got {value!s:.40}")
    return number

"""Reads files of `torch.save` without PyTorch: tensors by name, and nothing else.

Such a file is a pickle, a program that can call any function. This reader can make only
dicts, lists, numbers, texts and tensors, and refuses every other name before looking it
up. There are two formats: since PyTorch 1.6 a zip with the pickle and a member for each
storage, before that one run of bytes with pickles and then the storages.
"""

import io
import math
import pickle
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

import numpy as np

from roformer_keras.base.errors import CheckpointError, refuse
from roformer_keras.io.archive import ZipTree, looks_like_zip
from roformer_keras.io.blob import HEAD_SIZE, MAX_NAME, Blob
from roformer_keras.io.safetensors_file import as_file
from roformer_keras.io.tensor import Tensor, check_names, numpy_dtype

# The first object of the older format.
_MAGIC = 0x1950A86A20F9469CFC6C
# Maximal bytes of all pickles of a file; released models have less than 1 MB.
_MAX_PICKLE = 16 * 2**20
# Maximal number of arguments of a call; a tensor's call has seven.
_MAX_ARGUMENTS = 8
# Tensors may share a storage, which is read again for each tensor.
_MAX_READS = 256
# Class of a storage -> NumPy's name of its dtype; ml_dtypes adds bfloat16.
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
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class _Storage(NamedTuple):
    """A run of numbers that tensors are views of."""

    key: str
    dtype: np.dtype
    numbers: int

    @property
    def size(self) -> int:
        return self.numbers * self.dtype.itemsize


class _View(NamedTuple):
    """A tensor of a file; offset and strides count numbers of its storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, data: bytes) -> np.ndarray:
        """The tensor's value, from all bytes of its storage."""
        array = np.frombuffer(data, self.storage.dtype)
        steps = [step * array.itemsize for step in self.strides]
        view = np.ndarray(
            self.shape, array.dtype, array, self.offset * array.itemsize, steps
        )
        return np.ascontiguousarray(view).reshape(self.shape)


def open_pytorch(blob: Blob, stack: ExitStack) -> dict[str, Tensor]:
    """The unread tensors of a file, by name."""
    is_zip = looks_like_zip(blob.read(0, HEAD_SIZE))
    views, read = (_open_zip if is_zip else _open_legacy)(blob, stack)
    check_names(views, blob.label)
    sizes = {view.storage.key: view.storage.size for view in views.values()}
    total = sum(view.storage.size for view in views.values())
    refuse(
        total > _MAX_READS * sum(sizes.values()),
        f"{blob.label}: its {len(views)} tensors share {len(sizes)} storages, and "
        f"reading each takes {total:,} bytes: save clones of them",
        error=CheckpointError,
    )
    return {
        name: Tensor(
            view.shape,
            view.storage.dtype.name,
            lambda view=view: view.of(read(view.storage)),  # type: ignore[misc]
        )
        for name, view in views.items()
    }


# === The two formats ===


def _open_zip(blob, stack):
    tree = ZipTree(as_file(blob, stack), stack)
    pickles = [name for name in tree.members if name.endswith("/data.pkl")]
    refuse(
        len(pickles) != 1,
        f"{blob.label} must be a zip with one data.pkl, as torch.save writes it, "
        f"got {len(pickles)}: save or download it again",
        error=CheckpointError,
    )
    folder = pickles[0].removesuffix("data.pkl")
    order = f"{folder}byteorder"
    refuse(
        tree.has(order) and b"".join(tree.chunks(order)) != b"little",
        f"{blob.label} was saved with its bytes in another order than 'little'",
        error=CheckpointError,
    )
    if tree.members[pickles[0]].file_size > _MAX_PICKLE:
        raise _too_long(blob)
    content = _unpickled(io.BytesIO(b"".join(tree.chunks(pickles[0]))), blob.label)

    def read(storage):
        name = f"{folder}data/{storage.key}"
        if not tree.has(name):
            raise CheckpointError(
                f"{blob.label}: its member {name[:80]} is missing; download it again"
            )
        if tree.members[name].file_size != storage.size:
            raise _wrong_size(blob, storage, tree.members[name].file_size)
        return b"".join(tree.chunks(name))

    return _views_of(content, blob.label), read


def _open_legacy(blob, stack):
    stream = io.BytesIO(blob.read(0, _MAX_PICKLE))
    try:
        # Magic number, version, properties of the system, the tensors, storage keys.
        objects = [_unpickled(stream, blob.label) for _ in range(5)]
    except CheckpointError:
        if not _begins_as_torch_save(blob):
            raise CheckpointError(
                f"{blob.label} is no file of torch.save: it begins with "
                f"{blob.read(0, 16)!r}"
            ) from None
        if len(blob) > _MAX_PICKLE == stream.tell():
            raise _too_long(blob) from None
        raise
    refuse(
        type(objects[0]) is not int or objects[0] != _MAGIC,
        f"{blob.label} is a pickle, but not one of torch.save: save the model by "
        "torch.save(model.state_dict(), path)",
        error=CheckpointError,
    )
    views, keys = _views_of(objects[3], blob.label), objects[4]
    storages = {view.storage.key: view.storage for view in views.values()}
    is_list = isinstance(keys, list) and all(type(key) is str for key in keys)
    refuse(
        not is_list or sorted(keys) != sorted(storages),
        f"{blob.label}: its list of storages must name the tensors' storages, but "
        "does not; save or download it again",
        error=CheckpointError,
    )
    starts, at = {}, stream.tell()
    for key in keys:
        storage, count = storages[key], blob.read(at, 8)
        if len(count) == 8 and struct.unpack("<q", count)[0] != storage.numbers:
            raise _wrong_size(blob, storage, "another count")
        starts[key] = at + 8
        at += 8 + storage.size
        if at > len(blob):
            raise CheckpointError(
                f"{blob.label} ends after {len(blob):,} bytes, within storage "
                f"{key[:40]!r}: it is truncated, download it again"
            )
    return views, lambda storage: blob.read(starts[storage.key], storage.size)


def _begins_as_torch_save(blob):
    """True if the first pickle is the number that begins the older format."""
    return blob.read(0, 64).find(_MAGIC.to_bytes(10, "little")) > 0


def _views_of(content, label):
    """The content of a file, which must be tensors by name."""
    wrong = None if isinstance(content, dict) else type(content).__name__
    for name, value in content.items() if wrong is None else ():
        if type(name) is not str:
            wrong = f"a name of the type {type(name).__name__}"
        elif not isinstance(value, _View):
            wrong = f"{type(value).__name__} under {name[:60]!r}"
    refuse(
        wrong is not None,
        f"{label} must hold tensors by name, as model.state_dict() has them, got "
        f"{wrong}: save the state_dict alone",
        error=CheckpointError,
    )
    return content


def _too_long(blob):
    return CheckpointError(
        f"{blob.label}: its pickle is longer than the {_MAX_PICKLE:,} bytes that names "
        "and shapes of tensors can need"
    )


def _wrong_size(blob, storage, size):
    return CheckpointError(
        f"{blob.label}: storage {storage.key[:40]!r} must have {storage.numbers:,} "
        f"numbers of {storage.dtype.name}, got "
        f"{size if isinstance(size, str) else f'{size:,} bytes'}; download it again"
    )


# === The unpickler ===


class _Refused(Exception):
    """A refused request of a pickle."""


def _unpickled(stream: io.BytesIO, label: str) -> Any:
    """The object of the pickle that begins at the position of a stream."""
    try:
        return _Unpickler(stream).load()
    except _Refused as error:
        raise CheckpointError(
            f"{label} {error}, which no file of weights needs: it is not read, get it "
            "from its publisher as safetensors"
        ) from None
    except _DAMAGE as error:
        # Other errors may carry the text of an object in the file.
        reason = error.args[0] if error.args else ""
        reason = f": {reason[:120]}" if isinstance(reason, str) else ""
        raise CheckpointError(
            f"{label} is a damaged pickle ({type(error).__name__}{reason}): save or "
            "download it again"
        ) from error


class _Unpickler(pickle._Unpickler):
    """Makes tensors, and calls nothing but the names of `find_class`.

    It derives from Python's unpickler in Python. The one in C hashes keys unseen, and a
    few bytes make a tuple whose hash never ends; it also allocates any size of memo.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    # Sets hash their elements.
    for _opcode in (pickle.ADDITEMS, pickle.EMPTY_SET, pickle.FROZENSET):
        del dispatch[_opcode[0]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _dict_of_pairs
        if module == "torch._utils" and name in _MAKERS:
            return _MAKERS[name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            # A text cannot be called.
            return _STORAGES[name]
        raise _Refused(f"asks for {module[:60]}.{name[:60]}")

    def persistent_load(self, pid: Any) -> _Storage:
        if type(pid) is not tuple or not 5 <= len(pid) <= _MAX_ARGUMENTS:
            raise ValueError("it names data by something else than a short tuple")
        kind, dtype, key, _, count, *others = pid
        is_storage = type(kind) is str and kind == "storage" and type(key) is str
        is_known = type(dtype) is str and dtype in _STORAGES.values()
        if not (is_storage and is_known) or any(other is not None for other in others):
            raise ValueError("it names a storage of no known type")
        return _Storage(_checked_key(key), numpy_dtype(dtype), _natural(count))

    def load_setitem(self):
        _checked_key(self.stack[-2])
        super().load_setitem()

    def load_setitems(self):
        for key in self.stack[::2]:
            _checked_key(key)
        super().load_setitems()

    def load_dict(self):
        for key in self.stack[::2]:
            _checked_key(key)
        super().load_dict()

    def load_reduce(self):
        # Arguments are copied before the call.
        if type(self.stack[-1]) is not tuple or len(self.stack[-1]) > _MAX_ARGUMENTS:
            raise ValueError(f"a call must have at most {_MAX_ARGUMENTS} arguments")
        super().load_reduce()

    def load_build(self):
        # PyTorch keeps versions of modules in attributes of the dict.
        self.stack.pop()
        if type(self.stack[-1]) is not dict:
            raise ValueError("it changes what it has made")

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build


def _checked_key(key):
    """A key of a dict: a text or an integer that is quick to hash and to compare."""
    if type(key) not in (str, int):
        raise ValueError(
            f"a key must be a text or an integer, got {type(key).__name__}"
        )
    if len(key) > MAX_NAME if type(key) is str else key.bit_length() > 64:
        raise ValueError(f"a key must have at most {MAX_NAME:,} characters, or 64 bits")
    return key


def _dict_of_pairs(pairs=()):
    """An `OrderedDict` of older versions."""
    if type(pairs) not in (tuple, list) or len(pairs) > _MAX_PAIRS:
        raise ValueError("an OrderedDict must be made of a list of pairs")
    if any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in pairs):
        raise ValueError("an OrderedDict must be made of pairs")
    return {_checked_key(key): value for key, value in pairs}


# A state_dict is made empty; Python 2's is made of a list of its tensors.
_MAX_PAIRS = 10_000


def _view(storage, offset, shape, strides, *_):
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor must be a view of a storage")
    for numbers in (shape, strides):
        # NumPy supports no more axes.
        if type(numbers) not in (tuple, list) or len(numbers) > 64:
            raise ValueError("a tensor must have at most 64 axes")
    shape, strides = (tuple(map(_natural, numbers)) for numbers in (shape, strides))
    if len(shape) != len(strides):
        raise ValueError(f"a tensor has {len(shape)} axes and {len(strides)} strides")
    last_index = _natural(offset) + sum(
        (size - 1) * step for size, step in zip(shape, strides, strict=True)
    )
    # Strides of 0 could repeat stored numbers without end.
    count = math.prod(shape)
    if count and (last_index >= storage.numbers or count > storage.numbers):
        raise ValueError(
            f"a tensor of shape {shape} reaches beyond its storage of "
            f"{storage.numbers:,} numbers"
        )
    return _View(storage, offset, shape, strides)


def _parameter(view, *_):
    if not isinstance(view, _View):
        raise ValueError("a parameter must be a tensor")
    return view


_MAKERS: dict[str, Callable] = {
    "_rebuild_tensor_v2": _view,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
}


def _natural(number) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        value = number if type(number) is int else type(number).__name__
        raise ValueError(f"a size must be an integer of at least 0, got {value!s:.40}")
    return number

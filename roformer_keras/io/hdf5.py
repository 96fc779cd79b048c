"""HDF5 files of weights: their only opener, and the rules for them.

A file of weights must be self-contained. Its datasets and links could name other files
of the machine, whose bytes would become weights, or a pipe, which never ends. Datasets
can also declare terabytes that are not stored. `open_hdf5` refuses all of that before
anything is read, so nothing else in the package may open HDF5 to read.
"""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from roformer_keras.base.errors import CheckpointError, RoFormerError, refuse
from roformer_keras.io.archive import MAX_RATIO, RATIO_EXEMPT_SIZE
from roformer_keras.io.blob import Blob
from roformer_keras.io.tensor import Tensor, numpy_dtype

_DAMAGE = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)

# Maximal number of names in all groups, each of which takes a tenth of a millisecond
# (the largest released checkpoint has 2,000), and maximal characters of a path.
_MAX_LINKS, _MAX_PATH = 10_000, 4096
# HDF5 looks a group up along its path, so deep groups take quadratic time.
_MAX_DEPTH = 64


class _BlobFile(io.RawIOBase):
    """A file object of a blob, for HDF5 weights inside a `.keras` zip."""

    def __init__(self, blob: Blob):
        self._blob, self._at = blob, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._blob)}
        self._at = start[whence] + offset
        return self._at

    def readinto(self, buffer):
        data = self._blob.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextmanager
def open_hdf5(blob: Blob):
    """Opens a file of weights after checking that it stores all its datasets."""
    import h5py

    source = blob.path if blob.offset == 0 else _BlobFile(blob)
    try:
        file = h5py.File(source, "r")
    except OSError as error:
        raise CheckpointError(
            f"{blob.label} is not a whole HDF5 file: {error}; save or download it again"
        ) from error
    with file:
        with hdf5_errors(blob.label):
            _check_contents(blob, file)
        yield file


def _check_contents(blob, file):
    """Visits every link without following it, then its target."""
    import h5py

    visited, pending, count, longest = {file}, [file], 0, 0
    while pending:
        group = pending.pop()
        count += len(group)
        longest = max(longest, len(group.name))
        refuse(
            group.name.count("/") > _MAX_DEPTH,
            f"{blob.label} must have groups at most {_MAX_DEPTH} deep: it is no "
            "checkpoint of a RoFormer",
            error=CheckpointError,
        )
        refuse(
            count > _MAX_LINKS or longest > _MAX_PATH,
            f"{blob.label} must have at most {_MAX_LINKS:,} groups and tensors, "
            f"with paths of at most {_MAX_PATH:,} characters, got {count:,} and "
            f"{longest:,}: it is no checkpoint of a RoFormer",
            error=CheckpointError,
        )
        for name in group:
            what = f"{blob.label}: tensor {f'{group.name}/{name}'.lstrip('/')!r}"
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise _lies_elsewhere(what)
            if isinstance(link, h5py.SoftLink):
                continue  # The target is in this file, and is checked too.
            node = group[name]
            if isinstance(node, h5py.Dataset):
                _check_storage(what, node)
            elif isinstance(node, h5py.Group) and node not in visited:
                visited.add(node)
                pending.append(node)


def _check_storage(what, dataset):
    if dataset.external or dataset.is_virtual:
        raise _lies_elsewhere(what)
    stored, declared = dataset.id.get_storage_size(), dataset.nbytes
    if dataset.chunks is None:
        is_whole = stored >= declared
    else:
        # HDF5 would fill in missing values.
        sides = zip(dataset.shape, dataset.chunks, strict=True)
        count = math.prod(-(-side // chunk) for side, chunk in sides)
        is_whole = dataset.id.get_num_chunks() >= count
    refuse(
        not is_whole or declared > max(RATIO_EXEMPT_SIZE, MAX_RATIO * stored),
        f"{what} declares {declared:,} bytes, and {stored:,} are stored: the file "
        "is damaged or hostile, save or download it again",
        error=CheckpointError,
    )


def _lies_elsewhere(what):
    return CheckpointError(
        f"{what} lies in another file, which a file of weights must not name"
    )


def hdf5_layers(blob: Blob, root) -> Iterator[tuple[str, Any, list[str]]]:
    """Yields name, group and names of weights of each layer of a Keras 2 model."""
    count = 0
    for layer in map(hdf5_text, root.attrs["layer_names"]):
        group = root[layer]
        weights = list(map(hdf5_text, group.attrs["weight_names"]))
        count += len(weights)
        refuse(
            count > _MAX_LINKS,
            f"{blob.label} must name at most {_MAX_LINKS:,} tensors, got {count:,}",
            error=CheckpointError,
        )
        yield layer, group, weights


def hdf5_datasets(blob: Blob, file) -> list[tuple[str, Tensor]]:
    import h5py

    datasets = []

    def visit(name, node):
        if isinstance(node, h5py.Dataset):
            datasets.append((hdf5_text(name), hdf5_tensor(blob, name, node)))

    with hdf5_errors(blob.label):
        file.visititems(visit)
    return datasets


@contextmanager
def hdf5_errors(what: str):
    """Turns h5py's errors for a damaged file, which may be of any class, into ours."""
    try:
        yield
    except RoFormerError:
        raise
    except MemoryError as error:
        raise CheckpointError(
            f"{what} cannot be read: there is not enough memory for it"
        ) from error
    except _DAMAGE as error:
        message = str(error.args[0])[:200] if error.args else type(error).__name__
        raise CheckpointError(
            f"{what} cannot be read: {message}; the file is damaged, save or download "
            "it again"
        ) from error


def hdf5_tensor(blob: Blob, name: str, dataset) -> Tensor:
    import h5py

    what = f"{blob.label}: tensor {name!r}"
    refuse(
        not isinstance(dataset, h5py.Dataset) or dataset.shape is None,
        f"{what} must be a dataset that has numbers, got a "
        f"{type(dataset).__name__}: save or download the file again",
        error=CheckpointError,
    )

    with hdf5_errors(what):
        # HDF5 lacks this type: Keras writes its bytes and the name of the type.
        is_bfloat16 = (
            dataset.dtype.str == "|V2"
            and "dtype" in dataset.attrs
            and dataset.attrs.get_id("dtype").shape == ()
            and dataset.attrs["dtype"] == "bfloat16"
        )

    def read():
        with hdf5_errors(what):
            value = dataset[()]
            return value.view(numpy_dtype("bfloat16")) if is_bfloat16 else value

    dtype = "bfloat16" if is_bfloat16 else dataset.dtype.name
    return Tensor(tuple(dataset.shape), dtype, read)


def hdf5_text(name) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

"""HDF5 files of weights, wherever they lie; every tensor is read when asked for."""

import io
from contextlib import contextmanager

from roformer_keras.conversion.checkpoint import Tensor
from roformer_keras.conversion.files import Blob
from roformer_keras.errors import CheckpointError, RoFormerError

__all__ = ["hdf5_datasets", "hdf5_errors", "hdf5_tensor", "hdf5_text", "open_hdf5"]


class _BlobFile(io.RawIOBase):
    """A blob as a file of its own: HDF5 weights inside a `.keras` zip."""

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
        part = self._blob.read(self._at, len(buffer))
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


@contextmanager
def open_hdf5(blob: Blob):
    import h5py

    source = blob.path if blob.offset == 0 else _BlobFile(blob)
    try:
        file = h5py.File(source, "r")
    except OSError as error:
        raise CheckpointError(
            f"{blob.label} is not a whole HDF5 file: {error}; save or download it again"
        ) from error
    with file:
        yield file


def hdf5_datasets(blob: Blob, file) -> list[tuple[str, Tensor]]:
    import h5py

    found = []

    def visit(name, node):
        if isinstance(node, h5py.Dataset):
            found.append((hdf5_text(name), hdf5_tensor(blob, name, node, file)))

    with hdf5_errors(blob.label):
        file.visititems(visit)
    return found


@contextmanager
def hdf5_errors(what: str):
    """Of a damaged file, h5py raises whatever the damage comes to."""
    try:
        yield
    except RoFormerError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
        message = str(error.args[0]) if error.args else type(error).__name__
        raise CheckpointError(
            f"{what} cannot be read: {message}; the file is damaged, save or download "
            "it again"
        ) from error


def hdf5_tensor(blob: Blob, name: str, dataset, home) -> Tensor:
    what = f"{blob.label}: tensor {name!r}"
    elsewhere = dataset.file.filename != home.filename
    if elsewhere or dataset.external or dataset.is_virtual:
        raise CheckpointError(
            f"{what} lies in another file, which a file of weights must not name"
        )

    def read():
        with hdf5_errors(what):
            return dataset[()]

    return Tensor(tuple(dataset.shape), dataset.dtype.name, read)


def hdf5_text(name) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

"""Files of the safetensors format."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from roformer_keras.errors import CheckpointError, SourceError
from roformer_keras.io.blob import Blob
from roformer_keras.io.tensor import Tensor

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def open_safetensors(
    blob: Blob, stack: ExitStack
) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """The tensors of a file by name, not read yet, and its metadata.

    Args:
        blob: the file, or a member of a zip, which is unpacked until `stack` closes.
        stack: what deletes that copy.

    Raises:
        CheckpointError: the file is damaged, or its header says what is not so.
    """
    from safetensors import SafetensorError, safe_open

    try:
        path = as_file(blob, stack)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {
                name: _tensor(path, name, file.get_slice(name))
                for name in file.keys()  # noqa: SIM118
            }
    except SafetensorError as error:
        raise CheckpointError(
            f"{blob.label} is damaged: {error}; convert or copy it again"
        ) from error
    return tensors, metadata


def _tensor(path: Path, name: str, piece) -> Tensor:
    from safetensors import safe_open

    def read():
        # Opened anew each time: what was read stays mapped as long as the file is
        # open, and counts as memory of the process.
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    dtype = _DTYPES.get(piece.get_dtype(), piece.get_dtype())
    return Tensor(tuple(piece.get_shape()), dtype, read)


def as_file(blob: Blob, stack: ExitStack) -> Path:
    """A file with these bytes, for libraries that open nothing inside a zip.

    Raises:
        SourceError: there is no space for the copy.
    """
    if blob.offset == 0:
        return blob.path
    try:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder, "weights.safetensors")
        with open(path, "wb") as file:
            file.writelines(blob.chunks())
    except OSError as error:
        raise SourceError(
            f"could not unpack {blob.label} into {tempfile.gettempdir()} "
            f"({error.strerror}): free some space there, or unpack the zip yourself"
        ) from error
    return path

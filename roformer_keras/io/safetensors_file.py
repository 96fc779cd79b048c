"""Files of the safetensors format."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from roformer_keras.base.errors import CheckpointError, SourceError, refuse
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.blob import MAX_SMALL, Blob
from roformer_keras.io.tensor import Tensor, check_names

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
# NumPy lacks 8-bit floats and the newer small types.
_READABLE = (*_DTYPES, "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")


def open_safetensors(
    blob: Blob, stack: ExitStack
) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """The unread tensors of a file by name, and its metadata."""
    from safetensors import SafetensorError, safe_open

    size = int.from_bytes(blob.read(0, 8), "little")
    refuse(
        size > MAX_SMALL,
        f"{blob.label} must have a header of at most {MAX_SMALL:,} bytes, got "
        f"{size:,}: it is no checkpoint of a RoFormer",
        error=CheckpointError,
    )
    try:
        path = as_file(blob, stack)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            check_names(names, blob.label)
            tensors = {
                name: _tensor(path, name, file.get_slice(name), blob.label)
                for name in names
            }
    except SafetensorError as error:
        raise CheckpointError(
            f"{blob.label} is damaged: {error}; convert or copy it again"
        ) from error
    return tensors, metadata


def _tensor(path: Path, name: str, piece, label: str) -> Tensor:
    from safetensors import safe_open

    kind = piece.get_dtype()

    def read():
        if kind not in _READABLE:
            raise CheckpointError(
                f"{label}: the dtype of a tensor must be {', '.join(_READABLE)}, got "
                f"{kind} of {name[:80]}: save it as float32 or bfloat16"
            )
        # Each read opens the file again: an open file keeps its pages mapped, and they
        # count as memory of the process.
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    return Tensor(tuple(piece.get_shape()), _DTYPES.get(kind, kind), read)


def as_file(blob: Blob, stack: ExitStack) -> Path:
    """A file with these bytes, for libraries that open nothing inside a zip."""
    if blob.offset == 0:
        return blob.path
    try:
        path = stack.enter_context(scratch_folder()) / "weights.safetensors"
        with open(path, "wb") as file:
            file.writelines(blob.chunks())
    except OSError as error:
        raise SourceError(
            f"could not unpack {blob.label} into {tempfile.gettempdir()} "
            f"({error.strerror}): free some space there, or unpack the zip yourself"
        ) from error
    return path

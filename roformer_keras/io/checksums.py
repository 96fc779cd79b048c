"""CRC-32C of tensors and files in the formats that this package writes.

A preset keeps them in `metadata.json`, a safetensors file in `__metadata__`; other
readers pass over them. What was written without them is read without them.
"""

from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np

from roformer_keras.errors import CheckpointError
from roformer_keras.io.tensor import Tensor

# The field of the metadata.
FIELD = "crc32c"


def checksum(content: bytes | np.ndarray) -> str:
    """CRC-32C of bytes, or of an array's values in C order, as 8 hexadecimal digits."""
    if isinstance(content, np.ndarray):
        if content.dtype.hasobject:
            # No tensor that this package wrote.
            content = content.astype(str)
        content = np.ascontiguousarray(content).reshape(-1).view("uint8")
    return f"{google_crc32c.value(content):08x}"


def check_sums(sums: Any, label: str) -> Mapping[str, str]:
    """The checksums of a file's metadata, by name; empty if it has none."""
    sums = {} if sums is None else sums
    if not isinstance(sums, dict) or not all(isinstance(v, str) for v in sums.values()):
        raise CheckpointError(
            f"{label}: {FIELD} must be an object of checksums, got {sums!r:.60}: the "
            "file is damaged, convert or copy it again"
        )
    return sums


def check_content(
    content: bytes | np.ndarray, name: str, sums: Mapping[str, str], what: str
) -> None:
    """Raises CheckpointError unless a content has the checksum of its name.

    Without any checksums there is nothing to check.
    """
    if sums and checksum(content) != sums.get(name):
        raise CheckpointError(
            f"{what} is not what was written: its CRC-32C is {checksum(content)}, and "
            f"the metadata says {sums.get(name)}; convert or copy it again. If you "
            f"changed it yourself, remove {FIELD!r} from the metadata"
        )


def checked_tensors(
    tensors: Mapping[str, Tensor], file: str, sums: Mapping[str, str], label: str
) -> dict[str, Tensor]:
    """The tensors of a file, each checked when it is read.

    Args:
        tensors: dict of name to `Tensor`.
        file: str. Comes before the names in `sums`, such as `"model.weights.h5/"`.
        sums: as `check_sums` returns them.
        label: str. What errors call the file.
    """
    if not sums:
        return dict(tensors)
    named = {name for name in sums if name.startswith(file)} if file else set(tensors)
    lost = named ^ {file + name for name in tensors}
    if lost:
        raise CheckpointError(
            f"{label}: tensors and checksums must have the same names, but "
            f"{min(lost)} is on one side only: convert or copy it again"
        )

    def checked(name, tensor):
        def read():
            value = tensor.read()
            check_content(value, file + name, sums, f"{label}: {name}")
            return value

        return Tensor(tensor.shape, tensor.dtype, read)

    return {name: checked(name, tensor) for name, tensor in tensors.items()}

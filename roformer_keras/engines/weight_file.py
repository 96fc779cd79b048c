"""Weights that leave memory once a runtime has arranged them in its own way."""

import contextlib
import mmap
import os
import tempfile
import weakref
from io import FileIO

import numpy as np

# Smaller arrays stay in memory.
_MIN_BYTES = 2**16


class WeightFile:
    """Arrays in a file without a name, which the system reads again when it must.

    OpenVINO keeps the constants of a compiled network next to kernels that it has
    arranged for the processor, and hardly ever reads them again. Without a file they
    are a second copy of all weights in memory.

    It is for one network, and must live as long as that. Where there is no room for a
    file, or no way to release its memory, arrays stay in memory.
    """

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._file = None
        if hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)

    def mapped(self, array: np.ndarray) -> np.ndarray:
        """An equal array in the file; the same one if it stays in memory."""
        if self._file is None or array.nbytes < _MIN_BYTES:
            return array
        try:
            return self._written(self._file, np.ascontiguousarray(array))
        except OSError:
            return array

    def _written(self, file: FileIO, array: np.ndarray) -> np.ndarray:
        start = file.seek(0, os.SEEK_END)
        start = -(-start // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        file.seek(start)
        content = array.data.cast("B")
        while content:
            # One call writes at most about 2 GB.
            content = content[file.write(content) :]
        # A private map writes nothing back.
        mapped = mmap.mmap(
            file.fileno(), array.nbytes, flags=mmap.MAP_PRIVATE, offset=start
        )
        self._maps.append(mapped)
        return np.frombuffer(mapped, array.dtype).reshape(array.shape)

    def release(self) -> None:
        """Gives the memory of what has been read back to the system."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

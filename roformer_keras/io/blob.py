"""Runs of bytes on disk, read piece by piece."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import SourceError, refuse

CHUNK = 2**20
# So many bytes suffice to recognize a format.
HEAD_SIZE = 512
# Maximal bytes of a JSON file, a vocabulary or an index. As objects they can take 30
# times as much; files of released models have less than 5 MB.
MAX_SMALL = 2**23
# Maximal characters of a tensor's name, or of a zip member's path.
MAX_NAME = 1000
# The first bytes of an HDF5 file.
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Blob:
    """A run of bytes on disk: a file, or a stored member inside a zip.

    `len` and slices read it piece by piece.
    """

    path: Path
    offset: int
    size: int
    label: str

    @classmethod
    def of_file(cls, path: Path) -> "Blob":
        """A whole file; raises SourceError as `check_file` does, or OSError."""
        check_file(path)
        return cls(path, 0, path.stat().st_size, str(path))

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """All bytes, or up to `size` bytes from `start` on.

        The file is read and not mapped: mapped pages would count as memory of the
            process,
        and touching them kills it if another process truncates the file.
        """
        size = min(self.size - start, self.size if size is None else size)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset + start)
                data = file.read(max(0, size))
        except OSError as error:
            raise unreadable(self.label, error) from error
        refuse(
            len(data) < size,
            f"{self.label} has become shorter than its {self.size:,} bytes since "
            "it was opened; leave the file alone while it is in use",
            error=SourceError,
        )
        return data

    def read_small(self) -> bytes:
        """All bytes of a small file: settings, a vocabulary or an index."""
        refuse(
            self.size > MAX_SMALL,
            f"{self.label} must have at most {MAX_SMALL:,} bytes, as settings and "
            f"vocabularies have, got {self.size:,}",
            error=SourceError,
        )
        return self.read()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, piece: slice) -> bytes:
        start, stop, _ = piece.indices(self.size)
        return self.read(start, stop - start)

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """Yields all bytes in chunks; raises as `read` does."""
        for start in range(0, self.size, size):
            yield self.read(start, size)


def unreadable(label: str, error: OSError) -> SourceError:
    """The error for a file that cannot be read."""
    if isinstance(error, PermissionError):
        return SourceError(f"no permission to read {error.filename or label}")
    return SourceError(f"cannot read {label}: {error.strerror or error}")

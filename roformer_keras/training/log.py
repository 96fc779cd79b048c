"""The figures of a training, as a table that can be gone on with."""

import csv
import os
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

from roformer_keras.conversion.outputs import is_space_error, one_line
from roformer_keras.errors import OutputError

__all__ = ["LogFile", "read_log"]


class LogFile:
    """A table of figures, a row each time they are taken.

    Args:
        path: of a `.csv` file, which is begun, or gone on with.
        size: int. Bytes of it that count; what was written after them is cut off.

    Raises:
        OutputError: it cannot be written.
    """

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        self._columns = []
        with _errors_of(path):
            if size and path.exists():
                os.truncate(path, size)
                with open(path, encoding="utf-8", newline="") as file:
                    self._columns = next(csv.reader(file))
            else:
                path.write_bytes(b"")

    @property
    def size(self) -> int:
        """Bytes that have been written."""
        return self.path.stat().st_size

    def write(self, figures: Mapping) -> None:
        """Adds a row; the first one names the columns.

        What a column has no figure for stays empty.
        """
        with (
            _errors_of(self.path),
            open(self.path, "a", encoding="utf-8", newline="") as file,
        ):
            table = csv.writer(file)
            if not self._columns:
                self._columns = list(figures)
                table.writerow(self._columns)
            table.writerow([_shown(figures.get(name, "")) for name in self._columns])


def read_log(path: Path) -> list[dict]:
    """The rows of a log: dicts of str."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@contextmanager
def _errors_of(path):
    """Turns what a disk says into this package's error."""
    try:
        yield
    except OSError as error:
        problem = "no space left to write" if is_space_error(error) else "cannot write"
        raise OutputError(
            f"{problem} {path} ({one_line(error)}): the last saved state is whole; "
            "mend it and run the same command again"
        ) from error


def _shown(value):
    return f"{value:.6g}" if isinstance(value, float) else value

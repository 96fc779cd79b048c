"""The figures of a training, as a CSV file that a resumed training continues."""

import csv
import io
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import CheckpointError
from roformer_keras.base.extras import import_extra
from roformer_keras.io.atomic import output_errors
from roformer_keras.io.journal import AppendedFile


class LogFile:
    """A CSV file with one row for each logging of figures."""

    def __init__(self, path: Path, size: int = 0):
        self._path, self._columns = path, []
        with AppendedFile(path, size) as file:
            self.size = file.size
        if self.size:
            with _opened(path) as file:
                self._columns = next(csv.reader(file))

    def write(self, figures: Mapping) -> None:
        """Appends a row of figures by column. The first row determines the columns."""
        text = io.StringIO(newline="")
        table = csv.writer(text)
        if not self._columns:
            self._columns = list(figures)
            table.writerow(self._columns)
        table.writerow([_format(figures.get(name, "")) for name in self._columns])
        with AppendedFile(self._path, self.size) as file:
            file.append(text.getvalue().encode())
            self.size = file.size


class EventLog:
    """Writes the same figures for TensorBoard."""

    def __init__(self, folder: Path, first: int):
        self._folder = folder
        writer = import_extra("tensorboardX", "a training").SummaryWriter
        with self._errors():
            # A row never waits for the writing thread, which dies if the disk is full.
            self._writer = writer(str(folder), purge_step=first, max_queue=1000)

    def write(self, figures: Mapping) -> None:
        """Adds the floats of a row."""
        with self._errors():
            for name, value in figures.items():
                if isinstance(value, float):
                    self._writer.add_scalar(name, value, figures["update"])
            self._writer.flush()

    def close(self) -> None:
        with self._errors():
            self._writer.close()

    def _errors(self):
        return output_errors(
            self._folder, "what was saved before is kept, and the same run resumes it"
        )


def read_log(path: Path) -> list[dict]:
    """The rows of a log, as dicts of strings by column."""
    with _opened(path) as file:
        return list(csv.DictReader(file))


@contextmanager
def _opened(path):
    check_file(path)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            yield file
    except (UnicodeDecodeError, csv.Error) as error:
        raise CheckpointError(
            f"{path} must be the log of a training, and is damaged: {error}; start the "
            "training again in another folder"
        ) from error


def _format(value):
    return f"{value:.6g}" if isinstance(value, float) else value

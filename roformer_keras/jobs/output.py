"""Outputs that are written a piece at a time, and can be resumed.

While OUTPUT is being made, OUTPUT.partial holds the pieces so far, in the order of the
inputs, and OUTPUT.job.json is their record; see `io.journal`. A job that ends early
loses only the piece that was being computed.
"""

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.io.atomic import check_target, replacing
from roformer_keras.io.journal import (
    AppendedFile,
    finish,
    is_new_run,
    locked,
    read_record,
    write_record,
)

# Makes an output of the pieces: paths of both.
Convert = Callable[[Path, Path], None]


@contextmanager
def open_output(
    output: str,
    metadata: Mapping[str, object],
    seed: int | None = None,
    overwrite: bool = False,
    convert: Convert | None = None,
    folder: bool | str = False,
) -> Iterator["ResumableOutput"]:
    """Yields the output that pieces are appended to, and completes it at the end.

    If the block ends by an exception, the pieces so far are kept. Nothing is written or
    replaced before the first piece is.
    """
    if output == "-":
        yield ResumableOutput(None, metadata, seed, overwrite)
        return
    # If it is a symbolic link, it stays one.
    final = Path(os.path.realpath(output))
    check_target(final, overwrite, folder)
    with locked(final):
        # Another process may have completed it before this one got the lock.
        check_target(final, overwrite, folder)
        resumable = ResumableOutput(final, metadata, seed, overwrite)
        try:
            yield resumable
            check_target(final, overwrite, folder)
            resumable.complete(convert, folder)
        finally:
            resumable.close()


class ResumableOutput:
    """Pieces of a file, or of standard output; see `open_output`.

    Attributes:
        done: int. Inputs whose pieces are written.
        seed: int. That of the job which is resumed, or else as given or drawn.
        partial: Path of the pieces; None for standard output.
    """

    def __init__(
        self,
        final: Path | None,
        metadata: Mapping[str, object],
        seed: int | None,
        overwrite: bool,
    ):
        self.done = 0
        self.seed = secrets.randbits(63) if seed is None else seed
        self.partial: Path | None = None
        self._file: AppendedFile | None = None
        if final is None:
            return
        self.partial = partial = final.with_name(f"{final.name}.partial")
        self._final, self._metadata = final, metadata
        self._record = final.with_name(f"{final.name}.job.json")
        record = read_record(self._record, partial, ("done", "seed"))
        has_data = partial.exists() and partial.stat().st_size > 0
        if not is_new_run(
            record, metadata, partial, has_data=has_data, overwrite=overwrite
        ):
            assert record is not None
            self.done, self.seed = record["done"], record["seed"]
            self._file = AppendedFile(partial, record["bytes"])

    def append(self, piece: bytes, inputs: int) -> None:
        """Writes the piece of the next inputs; it is on the disk on return."""
        if self.partial is None:
            sys.stdout.write(piece.decode("utf-8"))
            sys.stdout.flush()
        else:
            if self._file is None:
                # In this order: a piece never counts for another job.
                self._count(0, 0)
                self._file = AppendedFile(self.partial, 0)
            self._file.append(piece)
            self._count(self.done + inputs, self._file.size)
        self.done += inputs

    def complete(
        self, convert: Convert | None = None, folder: bool | str = False
    ) -> None:
        """Gives the output its name, or makes it of the pieces."""
        if self._file is None:
            self.append(b"", 0)
        assert self._file is not None
        assert self.partial is not None
        self._file.close()
        if convert is None:
            finish(self.partial, self._record, self._final)
            return
        with replacing(self._final, overwrite=True, folder=folder) as target:
            convert(self.partial, target)
        self.partial.unlink()
        self._record.unlink()

    def close(self) -> None:
        """Closes the partial, and deletes it if it counts no input."""
        if self._file is not None:
            self._file.close()
            if not self.done and self.partial is not None:
                with suppress(OSError):
                    self.partial.unlink()
                    self._record.unlink()

    def _count(self, done: int, size: int) -> None:
        write_record(
            self._record, self._metadata, done=done, seed=self.seed, bytes=size
        )

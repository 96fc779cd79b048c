"""Long commands that write lines, a window of inputs at a time, and can be resumed.

While OUTPUT is being made, OUTPUT.partial holds the lines so far, in the order of the
inputs, and OUTPUT.job.json is their record; see `io.journal`. A command that ends early
loses only the window that was being computed.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@contextmanager
def open_job(
    output: str,
    metadata: Mapping,
    seed: int | None = None,
    overwrite: bool = False,
    convert: Callable[[Path, Path], None] | None = None,
    folder: bool | str = False,
) -> Iterator["Job"]:
    """Yields the job that lines are written to, and completes the output at the end.

    If the block ends by an exception, the lines so far are kept. Nothing is written or
    replaced before the first lines are.
    """
    if output == "-":
        yield Job(None, metadata, seed, overwrite)
        return
    # If it is a symbolic link, it stays one.
    final = Path(os.path.realpath(output))
    check_target(final, overwrite, folder)
    with locked(final):
        # Another process may have completed it before this one got the lock.
        check_target(final, overwrite, folder)
        job = Job(final, metadata, seed, overwrite)
        try:
            yield job
            check_target(final, overwrite, folder)
            job.complete(convert, folder)
        finally:
            job.close()


class Job:
    """Lines of a command in a file, or on standard output; see `open_job`."""

    def __init__(self, final: Path | None, metadata, seed, overwrite):
        self.done = 0
        self.seed = secrets.randbits(63) if seed is None else seed
        self.partial = self._file = None
        if final is None:
            return
        self.partial = final.with_name(f"{final.name}.partial")
        self._final, self._metadata = final, metadata
        self._record = final.with_name(f"{final.name}.job.json")
        record = read_record(self._record, self.partial, ("done", "seed"))
        has_data = self.partial.exists() and self.partial.stat().st_size > 0
        if not is_new_run(
            *(record, metadata, self.partial), has_data=has_data, overwrite=overwrite
        ):
            assert record is not None
            self.done, self.seed = record["done"], record["seed"]
            self._file = AppendedFile(self.partial, record["bytes"])

    def write(self, lines: Sequence[str] | bytes, inputs: int) -> None:
        """Writes the lines of the next inputs; they are on the disk on return.

        Bytes are written as they are, and only to a file.
        """
        if self.partial is None:
            assert not isinstance(lines, bytes)
            print("".join(f"{line}\n" for line in lines), end="", flush=True)
            self.done += inputs
            return
        if self._file is None:
            # In this order: lines never count for another job.
            self._count(0, 0)
            self._file = AppendedFile(self.partial, 0)
        if not isinstance(lines, bytes):
            text = "".join(f"{line}\n" for line in lines)
            # Arguments of a command line can hold bytes that are not text.
            lines = text.encode("utf-8", "backslashreplace")
        self._file.append(lines)
        self._count(self.done + inputs, self._file.size)
        self.done += inputs

    def complete(
        self,
        convert: Callable[[Path, Path], None] | None = None,
        folder: bool | str = False,
    ) -> None:
        """Gives the output its name, or writes it; see `open_job`."""
        if self._file is None:
            self.write((), 0)
        assert self._file is not None
        assert self.partial is not None
        self._file.close()
        if convert is not None:
            with replacing(self._final, overwrite=True, folder=folder) as target:
                convert(self.partial, target)
            self.partial.unlink()
            self._record.unlink()
            return
        finish(self.partial, self._record, self._final)

    def close(self) -> None:
        """Closes the partial, and deletes it if it counts no input."""
        if self._file is not None:
            self._file.close()
            if not self.done and self.partial is not None:
                with suppress(OSError):
                    self.partial.unlink()
                    self._record.unlink()

    def _count(self, done, size):
        write_record(
            *(self._record, self._metadata), done=done, seed=self.seed, bytes=size
        )

"""Long jobs that keep what they have made, and can be taken up again.

Beside an output that is being made lie two files:

    OUTPUT.partial    the lines so far, in the order of the inputs
    OUTPUT.job.json   what job that is, and how much of the partial is whole

Lines are on the disk before the second file counts them, and what it does not count,
such as a torn line, is cut off when the job is taken up. So a job may end at any
moment, by Ctrl-C, `kill -9` or a full disk, and loses only the batch that was being
computed.
"""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.conversion.outputs import (
    check_target,
    is_space_error,
    lock,
    one_line,
    replacing,
    sync_entry,
)
from roformer_keras.errors import OutputError, RoFormerError

__all__ = ["FileJob", "PrintedJob", "digest", "open_job"]


@contextmanager
def open_job(
    output: str,
    facts: dict,
    count: int,
    seed: int | None = None,
    overwrite: bool = False,
) -> Iterator["PrintedJob | FileJob"]:
    """Yields what to write the lines of a job to; completes the output at the end.

    If the block ends by an exception, what was written is kept. Nothing is written,
    nor replaced, before the first lines are.

    Args:
        output: path, or "-" for standard output.
        facts: what makes this job what it is, as JSON values by name: only a job of
            equal facts is taken up again.
        count: int. Inputs of the job.
        seed: int or None to draw one, which a job keeps when it is taken up.
        overwrite: bool. Whether an existing output is replaced, and another job's
            partial thrown away.

    Raises:
        OutputError: the output exists or cannot be written, or its partial is of
            another job, or in use.
    """
    if seed is None:
        seed = secrets.randbits(63)
    if output == "-":
        yield PrintedJob(seed)
        return
    job = FileJob(output, facts, count, seed, overwrite)
    try:
        yield job
        job.complete()
    finally:
        job.close()


def digest(content) -> str:
    """A hash of JSON values."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class PrintedJob:
    """Lines on standard output, where nothing is taken up.

    Attributes:
        done: int. Inputs whose lines are written.
        seed: int. Of the whole job.
    """

    def __init__(self, seed):
        self.done = 0
        self.seed = seed

    def write(self, lines: Sequence[str], inputs: int) -> None:
        """Writes the lines of the next inputs, at once."""
        for line in lines:
            print(line)
        sys.stdout.flush()
        self.done += inputs


class FileJob:
    """Lines in a file, which a later process may go on with; see `open_job`.

    Attributes:
        done, seed: as of `PrintedJob`; those of the job that is taken up.
        partial: Path of the lines so far.
    """

    def __init__(self, output, facts, count, seed, overwrite):
        self.done = 0
        self.seed = seed
        self._output, self._count, self._overwrite = output, count, overwrite
        # As JSON gives them back.
        self._facts = json.loads(json.dumps(facts))
        # Beside what a link points to, so that the link survives.
        self._final = Path(os.path.realpath(output))
        self.partial = self._final.with_name(f"{self._final.name}.partial")
        self._state = self._final.with_name(f"{self._final.name}.job.json")
        self._bytes = 0
        self._is_begun = False
        check_target(self._final, overwrite, folder=False)
        try:
            self._file = _locked(self.partial)
        except RoFormerError:
            raise
        except OSError as error:
            raise OutputError(
                f"could not write {self.partial} ({one_line(error)})"
            ) from error
        try:
            # Another process may have completed it while this one came to the lock.
            check_target(self._final, overwrite, folder=False)
            self._take_up()
        except BaseException:
            self.close()
            raise

    def write(self, lines: Sequence[str], inputs: int) -> None:
        """Writes the lines of the next inputs; they are on the disk on return.

        Raises:
            OutputError: they are not; what was written before is.
        """
        data = "".join(f"{line}\n" for line in lines)
        # An argument of the command line may hold what is no character.
        data = data.encode("utf-8", "backslashreplace")
        try:
            if not self._is_begun:
                # In this order: lines are never counted for another job.
                self._save_state(0, 0)
                os.ftruncate(self._file, 0)
                self._is_begun = True
            _write_all(self._file, data)
            os.fsync(self._file)
            self._save_state(self.done + inputs, self._bytes + len(data))
        except OSError as error:
            if self._is_begun:
                with suppress(OSError):
                    os.ftruncate(self._file, self._bytes)
            raise OutputError(self._not_written(error)) from error
        self.done += inputs
        self._bytes += len(data)

    def complete(self) -> None:
        """Gives the output its name."""
        check_target(self._final, self._overwrite, folder=False)
        try:
            os.replace(self.partial, self._final)
            with suppress(FileNotFoundError):
                self._state.unlink()
            sync_entry(self._final.parent)
        except OSError as error:
            raise OutputError(
                f"could not write {self._output} ({one_line(error)}): its lines are "
                f"in {self.partial}"
            ) from error

    def close(self) -> None:
        """Lets go of the partial; takes it away if nothing is in it."""
        with suppress(OSError):
            if _is_same(self._file, self.partial) and not os.fstat(self._file).st_size:
                self.partial.unlink()
                self._state.unlink()
        os.close(self._file)

    def _take_up(self):
        size = os.fstat(self._file).st_size
        if size == 0:
            return
        try:
            state = json.loads(self._state.read_bytes())
            facts, done = state["job"], int(state["done"])
            seed, whole = int(state["seed"]), int(state["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            problem = f"{self._state.name}, which says of which job, is missing or bad"
        else:
            problem = _difference(facts, self._facts)
            if not problem and whole > size:
                problem = f"it has {size} bytes of the {whole} that were written"
        if not problem:
            self.done, self.seed, self._bytes = done, seed, whole
            os.ftruncate(self._file, whole)
            self._is_begun = True
        elif not self._overwrite:
            raise OutputError(
                f"{self.partial} cannot be gone on with: {problem}; run the command "
                "that began it, choose another output, or pass --overwrite to throw "
                "it away"
            )

    def _save_state(self, done, size):
        state = {"job": self._facts, "seed": self.seed, "done": done, "bytes": size}
        with replacing(self._state, overwrite=True) as path:
            path.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")

    def _not_written(self, error):
        # What `replacing` raises has its cause behind it.
        cause = error.__cause__ if isinstance(error, OutputError) else error
        reason = one_line(cause or error)
        kept = (
            f"{self.done} of {self._count} are kept in {self.partial}; "
            if self.done
            else "nothing was written; "
        )
        if is_space_error(cause or error):
            return (
                f"no space left to write {self._output} ({reason}): {kept}free some "
                "space and run the same command again"
            )
        return f"could not write {self._output} ({reason}): {kept}".removesuffix("; ")


def _locked(path) -> int:
    """A descriptor of a file that this process alone appends to."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            lock(descriptor, path)
        except OutputError:
            os.close(descriptor)
            raise
        # Meanwhile it may have got its final name.
        if _is_same(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_same(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _write_all(descriptor, data):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _difference(before, now):
    """In words, what distinguishes two jobs; empty if nothing does."""
    if not isinstance(before, dict):
        before = {}
    found = []
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) == now.get(name):
            continue
        values = f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
        # Hashes tell nobody anything.
        found.append(f"{name} differ" if name.endswith(("inputs", "files")) else values)
    return f"it is of another job: {', '.join(found)}" if found else ""

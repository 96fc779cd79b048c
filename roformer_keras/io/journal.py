"""Outputs that a later process can resume: one writer, one run, whole pieces.

A resumable output consists of data and a record, a JSON file that states which run
writes the data and how many of them count:

    output              data                         record
    lines of a command  OUTPUT.partial               OUTPUT.job.json
    folder of a run     state.safetensors, log.csv   settings.json
    download            NAME.zip.partial             NAME.zip.partial.json

Data reach the disk before they are counted. A process may therefore end at any moment,
by Ctrl-C, `kill -9` or a full disk: the next process discards uncounted data and
continues. Meanwhile, a lock keeps a second process away.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.base.checks import check_file, is_integer
from roformer_keras.base.errors import Hint, OutputError, SourceError, refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.io.atomic import one_line, output_errors, replacing, sync_entry

# The holder of a lock may take so many seconds to release it.
_PATIENCE = 0.1


# === One writer ===


@contextmanager
def locked(output: str | os.PathLike) -> Iterator[None]:
    """Keeps other processes from writing an output until the block ends.

    The lock is a hidden file in a folder, or next to a file, which need not exist yet.
    The operating system releases the lock of a process that dies.
    """
    from filelock import FileLock, Timeout

    path = Path(output)
    is_folder = path.is_dir()
    file = path / ".lock" if is_folder else path.with_name(f".{path.name}.lock")
    lock = FileLock(file)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
    except Timeout as error:
        raise OutputError(
            f"{path} is being written by another process: wait for it, or choose "
            "another output"
        ) from error
    except OSError as error:
        # Some network file systems have no locks.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise OutputError(f"could not write {path} ({one_line(error)})") from error
    try:
        yield
    finally:
        # Remove it before the release: a waiting process then opens a new file.
        with suppress(OSError):
            file.unlink()
        lock.release()


# === One run ===


def fingerprints(paths: Iterable[str | os.PathLike]) -> list[list]:
    """Path, size and modification time of each file, sorted by path."""
    stamps = []
    for path in sorted({os.fspath(path) for path in paths}):
        if "://" in path:
            files, name = import_extra("fsspec.core", "a URI").url_to_fs(path)
            stamps.append([path, files.ukey(name), 0])
            continue
        try:
            status = os.stat(path)
        except OSError as error:
            raise SourceError(f"cannot read {path}: {one_line(error)}") from error
        stamps.append([path, status.st_size, status.st_mtime_ns])
    return stamps


def digest(content) -> str:
    """A hash of JSON values: the fingerprint of inputs that are not files."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def run_metadata(settings: Mapping, inputs: Mapping) -> dict:
    """Settings and files that identify a run: JSON values by name.

    The value of an input is its `fingerprints` or its `digest`.
    """
    return json.loads(json.dumps({"settings": settings, "inputs": inputs}))


def is_new_run(
    record: Mapping | None,
    metadata: Mapping,
    output: str | os.PathLike,
    *,
    has_data: bool,
    overwrite: bool = False,
    free: Sequence[str] = (),
) -> bool:
    """True if a run starts from nothing; False if it resumes the recorded run."""
    if record is None:
        problems = ["its record is missing or damaged, or counts more than there is"]
    else:
        problems = _find_differences(record, metadata, free)
    refuse(
        problems and has_data and not overwrite,
        f"{output} holds another run: {', '.join(problems)}",
        hint=Hint(
            "repeat that run, choose another output, or pass {overwrite:True} to "
            "discard it"
        ),
        error=OutputError,
    )
    return bool(problems)


def _find_differences(before, now, free):
    """Describes how two runs differ."""
    changed = []
    for section in ("settings", "inputs"):
        old, new = before[section], now[section]
        for name in sorted(old.keys() | new.keys()):
            was, value = old.get(name), new.get(name)
            if was != value and section == "inputs":
                changed.append(f"input {name!r} has changed")
            elif was != value and name not in free:
                changed.append(f"{name} was {was!r}, now {value!r}")
    return changed


# === The record ===


def read_record(
    path: Path, data: Path | None = None, counts: Sequence[str] = ()
) -> dict | None:
    """The content of a record, or None if it is missing or damaged."""
    if data is not None:
        counts = [*counts, "bytes"]
    try:
        check_file(path)
        record = json.loads(path.read_bytes())
        # Every record has these fields, of the types that its readers expect.
        record["settings"].keys(), record["inputs"].keys()
        is_whole = all(
            is_integer(record[name]) and record[name] >= 0 for name in counts
        )
        if data is not None:
            is_whole = is_whole and record["bytes"] <= data.stat().st_size
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    except RecursionError:  # The brackets are nested too deeply.
        return None
    return record if is_whole else None


def write_record(path: Path, metadata: Mapping, **progress) -> None:
    """Replaces a record in one step, or leaves the old one and raises OutputError."""
    text = json.dumps({**metadata, **progress}, indent=2, ensure_ascii=False)
    with replacing(path, overwrite=True) as partial:
        # Arguments of a command line can hold bytes that are not text.
        partial.write_bytes(f"{text}\n".encode("utf-8", "backslashreplace"))


# === The data ===


class AppendedFile:
    """A file to which data are appended completely or not at all."""

    def __init__(self, path: Path, size: int | None = None):
        self.path = path
        with self._errors():
            check_file(path)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115
            actual_size = os.fstat(self._file.fileno()).st_size
            self.size = actual_size if size is None else min(size, actual_size)
            self._file.truncate(self.size)

    def append(self, data: bytes, sync: bool = True) -> None:
        """Appends data, or leaves the file unchanged and raises OutputError.

        `sync` waits until the data are on the disk.
        """
        remaining = memoryview(data)
        with self._errors():
            try:
                while remaining:
                    remaining = remaining[self._file.write(remaining) :]
                if sync:
                    os.fsync(self._file.fileno())
            except BaseException:
                with suppress(OSError):
                    self._file.truncate(self.size)
                raise
        self.size += len(data)

    def close(self) -> None:
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _errors(self):
        return output_errors(
            self.path, "the lines before it stay, and the same run resumes after them"
        )


def finish(data: Path, record: Path, target: Path) -> None:
    """Gives complete data their final name, and deletes the record."""
    with output_errors(target, f"the result is in {data}"):
        sync_entry(data)
        os.replace(data, target)
        record.unlink(missing_ok=True)
        sync_entry(target.parent)

"""Whole outputs: a result appears under its final name complete, or not at all."""

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.errors import OutputError, RoFormerError

__all__ = [
    "check_target",
    "is_space_error",
    "lock",
    "one_line",
    "replacing",
    "sync_entry",
]


@contextmanager
def replacing(
    target: str | os.PathLike, overwrite: bool = False, *, folder: bool = False
) -> Iterator[Path]:
    """Yields a path beside `target` to write to; renames it into place at the end.

    Until the block has ended without an exception and everything is on the disk,
    nothing appears under the final name, not even when the process is killed. The
    temporary name ends in the target's, because some writers go by the extension.

    Args:
        target: the final file, or folder.
        overwrite: bool. Whether an existing target is replaced. A folder is replaced
            whole: files of the old one do not stay.
        folder: bool. Whether the result is a folder; it exists, empty, when the block
            begins.

    Raises:
        OutputError: the target exists, its folder does not, or writing failed;
            whatever the block wrote is gone then.
    """
    # Beside what a link points to, so that the link survives and renaming is atomic.
    final = Path(os.path.realpath(target))
    with suppress(OSError):
        _clean_up(final)
    check_target(final, overwrite, folder)
    partial = _beside(final, "partial")
    try:
        # A folder that cannot be written to is found now, not after minutes of work.
        partial.mkdir()
        if not folder:
            partial.rmdir()
        yield partial
        _sync(partial)
        check_target(final, overwrite, folder)
        if folder and final.exists():
            _exchange(partial, final)
        else:
            os.replace(partial, final)
        sync_entry(final.parent)
    except BaseException as error:
        _delete(partial)
        if isinstance(error, RoFormerError):
            raise
        if is_space_error(error):
            raise OutputError(
                f"no space left to write {target} ({one_line(error)}): nothing was "
                f"written to {target}; free some space or choose another disk"
            ) from error
        if isinstance(error, OSError):
            raise OutputError(
                f"could not write {target} ({one_line(error)}): nothing was written "
                f"to {target}"
            ) from error
        raise


def is_space_error(error: BaseException) -> bool:
    """Whether an exception says that a disk, a quota or a file size is exhausted.

    HDF5, safetensors and TensorFlow say it in their text only; NumPy says how much of
    an array it could write.
    """
    numbers = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    text = str(error)
    return (
        getattr(error, "errno", None) in numbers
        or any(os.strerror(number) in text for number in numbers)
        or re.fullmatch(r"\d+ requested and \d+ written", text) is not None
    )


def one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return " ".join(error.strerror.split())
    return " ".join(str(error).split())


def lock(descriptor: int, path: str | os.PathLike) -> None:
    """Lets this process alone write to an open file, until it is closed.

    Args:
        descriptor: of the file.
        path: what errors shall name.

    Raises:
        OutputError: another process has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"{path} is being written by another process: wait for it, or choose "
            "another output"
        ) from error
    except OSError:
        pass  # not every file system has locks


def check_target(target: Path, overwrite: bool, folder: bool):
    if not target.parent.is_dir():
        raise OutputError(f"{target.parent} is not a folder: make it first")
    if target.is_dir() and not folder:
        raise OutputError(f"{target} is a folder: give the name of a file")
    if folder and target.exists() and not target.is_dir():
        raise OutputError(f"{target} is a file: give the name of a folder")
    if target.exists() and not overwrite:
        raise OutputError(
            f"{target} exists: choose another name, or pass overwrite=True "
            "(--overwrite on the command line) to replace it"
        )
    # Replacing a folder deletes what is in it: never one that somebody lives in.
    if folder and any(
        Path(os.path.realpath(place)).is_relative_to(target)
        for place in (".", os.path.expanduser("~"))
    ):
        raise OutputError(
            f"{target} holds the working or the home folder, which is never replaced: "
            "give the name of a folder of its own"
        )


def _beside(target: Path, kind: str) -> Path:
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    return target.with_name(f".{kind}-{token}.{target.name}")


def _exchange(partial: Path, target: Path):
    """Puts a folder in another's place; the old one is deleted last."""
    old = _beside(target, "replaced")
    os.rename(target, old)
    try:
        os.rename(partial, target)
    except BaseException:
        os.rename(old, target)
        raise
    # `_clean_up` may bring a `.replaced` back, so it must not be half deleted.
    doomed = _beside(target, "partial")
    os.rename(old, doomed)
    _delete(doomed)


def _clean_up(target: Path):
    """Takes away what dead processes left beside `target`, or takes it back."""
    pattern = re.compile(
        r"\.(partial|replaced)-(\d+)-[0-9a-f]{8}\." + re.escape(target.name)
    )
    for name in os.listdir(target.parent):
        match = pattern.fullmatch(name)
        if match is None or _is_alive(int(match[2])):
            continue
        path = target.with_name(name)
        if match[1] == "replaced" and not os.path.lexists(target):
            # Killed between the two renames of `_exchange`.
            os.rename(path, target)
        else:
            _delete(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _delete(path: Path):
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(path: Path):
    """Waits until a file, or everything in a folder, is on the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            sync_entry(Path(folder, name))
    for folder, _, _ in os.walk(path, topdown=False):
        sync_entry(Path(folder))
    if path.is_file():
        sync_entry(path)


def sync_entry(path: Path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Atomic outputs: a result appears under its final name complete, or not at all."""

import errno
import os
import re
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.base.checks import check_path
from roformer_keras.base.errors import (
    Hint,
    OutputError,
    RoFormerError,
    printable,
    refuse,
)

_IS_WINDOWS = os.name == "nt"
# After so many seconds, another machine's unfinished output counts as abandoned.
_ABANDONED = 24 * 3600
# Prefix of a name while `replacing` writes the file.
PARTIAL_PREFIX = re.compile(r"^\.partial-\d+-[0-9a-f]+\.")


@contextmanager
def replacing(
    target: str | os.PathLike, overwrite: bool = False, *, folder: bool | str = False
) -> Iterator[Path]:
    """Yields a temporary path to write to, and renames it to `target` at the end.

    The target appears, or changes, only after the block has ended without an exception
    and everything is on the disk; even a kill leaves no half-written target. The
    temporary name ends in the target's name, because some writers choose the format by
    the extension.
    """
    check_name(target)
    # A symbolic link stays a link, and renaming within one file system is atomic.
    final = Path(os.path.realpath(target))
    with suppress(OSError):
        _clean_up(final)
    check_target(final, overwrite, folder)
    partial = _hidden_sibling(final, "partial")
    with output_errors(target, f"nothing was written to {target}"):
        try:
            # An unwritable folder fails here, not after minutes of work.
            partial.mkdir()
            mode = partial.stat().st_mode & 0o666
            if not folder:
                partial.rmdir()
            yield partial
            _share(partial, mode)
            _sync(partial)
            check_target(final, overwrite, folder)
            if folder and final.exists():
                _exchange(partial, final)
            else:
                os.replace(partial, final)
            sync_entry(final.parent)
        except BaseException:
            _delete(partial)
            raise


@contextmanager
def output_errors(target: str | os.PathLike, outcome: str) -> Iterator[None]:
    """Turns errors of the operating system and of file formats into `OutputError`.

    `outcome` states what an error leaves, such as `"nothing was written"`.
    """
    try:
        yield
    except RoFormerError:
        raise
    except Exception as error:
        if is_space_error(error):
            raise OutputError(
                f"no space left to write {target} ({one_line(error)}): {outcome}; free "
                "some space or choose another disk"
            ) from error
        if isinstance(error, OSError):
            raise OutputError(
                f"could not write {target} ({one_line(error)}): {outcome}"
            ) from error
        raise


def make_folder(folder: Path) -> None:
    """Makes a missing folder and its missing parents; raises OutputError."""
    check_folder(folder)
    with output_errors(folder, "nothing was written"):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def making_folder(folder: Path) -> Iterator[None]:
    """Makes a missing folder; deletes it if an error comes before its first file."""
    with output_errors(folder, "nothing was written"):
        is_new = not folder.exists()
    make_folder(folder)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_folder(folder: Path) -> None:
    """Raises OutputError if a folder is a file."""
    with output_errors(folder, "nothing was written"):
        refuse(
            folder.exists() and not folder.is_dir(),
            f"{folder} is a file: give the name of a folder",
            error=OutputError,
        )


def is_space_error(error: BaseException) -> bool:
    """True if an exception says that a disk, a quota or a file size is exhausted.

    HDF5, safetensors and TensorFlow say so only in their text. NumPy says how much of
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
    """The text of an exception, without line breaks, numbers and paths."""
    if isinstance(error, OSError) and error.strerror:
        return printable(" ".join(error.strerror.split()))
    return printable(" ".join(str(error).split()))


def check_name(target: str | os.PathLike) -> None:
    """Raises OutputError if no file can have this name; it may be too long."""
    check_path("an output", target)
    if not os.fspath(target):
        # Path("") would be the folder of the process.
        raise OutputError("an output must have a name, got ''")
    try:
        os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise OutputError(
            f"cannot write to {str(target)[:60]!r}: {one_line(error)}"
        ) from error


def check_target(target: Path, overwrite: bool, folder: bool | str) -> None:
    """Raises OutputError if a result cannot be written to `target`."""
    check_name(target)
    refuse(
        not target.parent.is_dir(),
        f"{target.parent} is not a folder: make it first",
        error=OutputError,
    )
    refuse(
        target.is_dir() and not folder,
        f"{target} is a folder: give the name of a file",
        error=OutputError,
    )
    if folder:
        check_folder(target)
    refuse(
        target.exists() and not overwrite,
        f"{target} exists",
        hint=Hint("choose another name, or pass {overwrite:True} to replace it"),
        error=OutputError,
    )
    # Replacing a folder deletes its content.
    is_known = not isinstance(folder, str) or (target / folder).exists()
    refuse(
        not is_known and target.is_dir() and any(target.iterdir()),
        f"{target} holds files and no {folder}, and would be replaced whole: give "
        "another folder",
        error=OutputError,
    )


def _hidden_sibling(target: Path, kind: str) -> Path:
    token = f"{os.getpid()}-{_machine()}{secrets.token_hex(4)}"
    return target.with_name(f".{kind}-{token}.{target.name}")


def _machine() -> str:
    """Identity of a machine or container that writes to a shared folder."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{zlib.crc32(f'{socket.gethostname()} {space}'.encode()):08x}"


def _exchange(partial: Path, target: Path):
    """Replaces a folder by another; deletes the old one last."""
    old = _hidden_sibling(target, "replaced")
    os.rename(target, old)
    try:
        os.rename(partial, target)
    except BaseException:
        os.rename(old, target)
        raise
    # `_clean_up` may restore a `.replaced` folder, so rename it before deleting files.
    doomed = _hidden_sibling(target, "partial")
    os.rename(old, doomed)
    _delete(doomed)


def _clean_up(target: Path):
    """Deletes the remains of killed processes next to `target`, or restores it."""
    pattern = re.compile(
        r"\.(partial|replaced)-(\d+)-([0-9a-f]{8})[0-9a-f]{8}\."
        + re.escape(target.name)
    )
    for name in os.listdir(target.parent):
        match = pattern.fullmatch(name)
        path = target.with_name(name)
        if match is None or _is_in_use(path, int(match[2]), match[3]):
            continue
        if match[1] == "replaced" and not os.path.lexists(target):
            # The process was killed between the two renames of `_exchange`.
            os.rename(path, target)
        else:
            _delete(path)


def _is_in_use(path: Path, pid: int, machine: str) -> bool:
    """True if the process that wrote it may still live."""
    # On Windows `os.kill` would interrupt it.
    if machine != _machine() or _IS_WINDOWS:
        return time.time() - path.lstat().st_mtime < _ABANDONED
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


def _share(path: Path, mode: int):
    """Gives files the folder's mode; safetensors writes private files."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def _sync(path: Path):
    """Waits until a file, or everything in a folder, is on the disk."""
    if path.is_file():
        sync_entry(path)
    for folder, _, names in os.walk(path, topdown=False):
        for name in (*names, ""):
            sync_entry(Path(folder, name))


def sync_entry(path: Path) -> None:
    """Waits until one file, or the list of names in one folder, is on the disk.

    Windows opens no folders, and syncs only files that are open for writing.
    """
    if _IS_WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if _IS_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The steps in which a folder changes on the disk, for tests that end or fail each."""

import builtins
import errno
import io
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from producers import copied

from roformer_keras.io import journal

# Every change of a folder goes through one of these; `shutil` and `pathlib` call them.
CHANGES = ["fsync", "link", "mkdir", "open", "remove", "rename", "replace", "rmdir"]
CHANGES += ["symlink", "truncate", "unlink"]
# Those of which none needs space.
_DELETIONS = ("remove", "rmdir", "unlink", "close")
_TOKEN = re.compile(r"(?<=\.)(partial|replaced)-[^.]+(?=\.)")


@contextmanager
def watching(before):
    """Calls `before(change, path)` before each change of files by this process.

    Files that libraries write in C are first whole, and then half, at such a call.
    """
    import h5py
    import safetensors.numpy

    busy = []

    def call(name, path):
        if not busy:
            busy.append(name)
            try:
                before(name, _path_of(path))
            finally:
                busy.clear()

    def watched(name, change, changes=lambda *arguments: True):
        def changed(*arguments, **options):
            if changes(*arguments, *options.values()):
                call(name, arguments[0] if arguments else "")
            return change(*arguments, **options)

        return changed

    def save(arrays, path, *arguments):
        call("write", path)
        save_file(arrays, path, *arguments)
        content = Path(path).read_bytes()
        os.truncate(path, len(content) // 2)
        call("write", path)
        Path(path).write_bytes(content)

    def append(file, data, *arguments):
        # A test's full disk is met where a real one is.
        with file._errors():
            call("append", file.path)
        return append_data(file, data, *arguments)

    save_file, append_data = safetensors.numpy.save_file, journal.AppendedFile.append
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            is_change = _writes if name == "open" else lambda *arguments: True
            patch.setattr(os, name, watched(name, getattr(os, name), is_change))
        # For `Path.write_bytes` and zips, and for the rest.
        patch.setattr(io, "open", watched("open", io.open, _opens_to_write))
        opened = watched("open", builtins.open, _opens_to_write)
        patch.setattr(builtins, "open", opened)
        patch.setattr(journal.AppendedFile, "append", append)
        patch.setattr(safetensors.numpy, "save_file", save)
        start = h5py.File.__init__

        def open_hdf5(file, path, mode="r", **options):
            if mode != "r":
                call("write", path)
            start(file, path, mode, **options)

        patch.setattr(h5py.File, "__init__", open_hdf5)
        yield


def _writes(path, flags=0, *_):
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _opens_to_write(path, mode="r", *_):
    return not isinstance(path, int) and bool({*"wax+"} & {*str(mode)})


def _path_of(path):
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""


def disk_states(make, folder, copies):
    """Copies of a folder in every state in which a kill could leave it.

    The folder is looked at before each change of its files and at the end.
    """
    seen = []

    def look(*_):
        content = {
            path: path.is_file() and path.read_bytes() for path in folder.rglob("*")
        }
        if content not in seen:
            seen.append(content)
            copied(folder, copies / str(len(seen)))

    with watching(look):
        make()
    look()
    return [copies / str(number + 1) for number in range(len(seen))]


class Disk:
    """A disk that is full from one step in a folder on, if any.

    Attributes:
        steps: pairs of a change that needs space and the name of the file, as they
            came; names of hidden files are without their numbers.
    """

    def __init__(self, folder, full_from=None):
        self._folder, self._full_from = os.fspath(folder), full_from
        self.steps: list = []

    def __call__(self, change, path):
        if not path.startswith(self._folder) or change in _DELETIONS:
            return
        name = _TOKEN.sub(r"\1", path.removeprefix(self._folder).lstrip("/"))
        if name.endswith(".lock"):
            return
        self.steps.append((change, name))
        if self._full_from is not None and len(self.steps) > self._full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

"""The folder of one training: whose it is, and what of it is gone on with.

settings.json       what the training was told, and the files that it reads
state.safetensors   where it stands; see `training.state`
log.csv             a row each time figures are taken; see `training.log`
preset/             the result, at the end
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.conversion.catalog import resolve
from roformer_keras.conversion.outputs import lock, one_line, replacing
from roformer_keras.errors import OutputError

__all__ = [
    "LOG",
    "PRESET",
    "SETTINGS",
    "STATE",
    "begins",
    "facts_of",
    "files_of",
    "locked",
    "take_folder",
]

SETTINGS, STATE, LOG, PRESET = "settings.json", "state.safetensors", "log.csv", "preset"
_LOCK = ".lock"


def facts_of(settings, files: Mapping[str, Iterable]) -> dict:
    """What tells one training from another, as JSON gives it back.

    Args:
        settings: a dataclass with `to_dict`.
        files: paths of what it reads, by what they are to it.
    """
    stamps = {name: _stamps(paths) for name, paths in files.items()}
    return json.loads(json.dumps({"settings": settings.to_dict(), "files": stamps}))


def files_of(source: str | os.PathLike | None) -> list[Path]:
    """The files of a checkpoint: one, those of a folder, or those of a prefix."""
    if source is None:
        return []
    path = resolve(source)
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file()]
    return [path] if path.exists() else list(path.parent.glob(f"{path.name}.*"))


def _stamps(paths):
    """Names, sizes and times of some files."""
    found = [(str(path), os.stat(path)) for path in sorted(set(paths))]
    return [[path, stat.st_size, stat.st_mtime_ns] for path, stat in found]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A folder, made if need be, that this process alone writes to.

    Raises:
        OutputError: it cannot be written to, or another process has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"could not write {folder} ({one_line(error)})") from error
    try:
        lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def begins(
    folder: Path, facts: Mapping, overwrite: bool, free: Sequence[str] = ()
) -> bool:
    """Whether a training begins in a folder; False if it is gone on with there.

    Args:
        folder: of the training.
        facts: as of `facts_of`.
        overwrite: bool. Whether another training there may be thrown away.
        free: settings that may differ.

    Raises:
        OutputError: it holds another training, or other files.
    """
    path = folder / SETTINGS
    if not path.exists():
        if any(entry.name != _LOCK for entry in folder.iterdir()):
            raise OutputError(
                f"{folder} holds no training but other files: choose a folder of its "
                "own"
            )
        return True
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        before = {}
    differing = _differences(before, facts, free)
    # One that has left nothing yet is no loss.
    is_worth = any((folder / name).exists() for name in (STATE, PRESET))
    if differing and is_worth and not overwrite:
        raise OutputError(
            f"{folder} holds another training: {', '.join(differing)}; choose another "
            "folder, or pass overwrite=True (--overwrite on the command line) to throw "
            "it away"
        )
    return bool(differing)


def take_folder(folder: Path, facts: Mapping, leftovers: Sequence[str] = ()) -> None:
    """Throws away what was there, and says what is there now.

    Args:
        folder: of the training.
        facts: as of `facts_of`.
        leftovers: names of what such a training leaves, beside what all do.
    """
    for name in (STATE, LOG, PRESET, *leftovers):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
    with replacing(folder / SETTINGS, overwrite=True) as partial:
        partial.write_text(
            json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def _differences(before, now, free):
    found = []
    old, new = before.get("settings", {}), now["settings"]
    for name in sorted((old.keys() | new.keys()) - set(free)):
        if old.get(name) != new.get(name):
            found.append(f"{name} was {old.get(name)!r}, now {new.get(name)!r}")
    return found + [
        f"files of the {name} differ"
        for name in now["files"]
        if before.get("files", {}).get(name) != now["files"][name]
    ]

"""The folder of one training.

settings.json       its settings and fingerprints of its inputs; see `io.journal`
state.safetensors   its last saved state; see `training.state`
log.csv             its figures; see `training.log`
preset/             the result, at the end
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from roformer_keras.base.errors import OutputError
from roformer_keras.io import journal
from roformer_keras.io.atomic import check_folder, making_folder

SETTINGS, STATE, LOG, PRESET = "settings.json", "state.safetensors", "log.csv", "preset"


def training_folder(folder: str | os.PathLike) -> Path:
    """The folder of a training, from its own path or that of the preset in it."""
    path = Path(os.path.abspath(folder))
    is_preset = path.name == PRESET and (path.parent / SETTINGS).is_file()
    return path.parent if is_preset else Path(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder if need be, and keeps other processes from writing to it."""
    with making_folder(folder), journal.locked(folder):
        yield


def is_new_run(
    folder: Path, metadata: Mapping, overwrite: bool, free: Sequence[str] = ()
) -> bool:
    """True if a training starts in a folder; False if it resumes the one there."""
    check_folder(folder)
    # Hidden files are the lock and the remains of a killed `replacing`.
    names = {path.name for path in folder.glob("[!.]*")}
    if names and SETTINGS not in names:
        raise OutputError(
            f"{folder} holds no training but other files: choose another folder"
        )
    return journal.is_new_run(
        journal.read_record(folder / SETTINGS),
        metadata,
        folder,
        # Replacing a training without a saved state loses nothing.
        has_data=not names.isdisjoint((STATE, PRESET)),
        overwrite=overwrite,
        free=free,
    )


def reset_run(folder: Path, metadata: Mapping, leftovers: Sequence[str] = ()) -> None:
    """Deletes an earlier training, and `leftovers`, and writes the new settings."""
    # Delete the state first: after a kill, no old state may look like a new one.
    for name in (STATE, LOG, PRESET, *leftovers):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                path.unlink()
    journal.write_record(folder / SETTINGS, metadata)

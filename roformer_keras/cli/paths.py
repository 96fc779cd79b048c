"""Sources and files that are missing or wrong, found before a backend is imported."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from roformer_keras.base.errors import SourceError
from roformer_keras.base.task_registry import TASKS
from roformer_keras.cli.libraries import given_texts
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.sources import list_files

_SMALL = 2**22


def check_paths(options: Mapping, files: Iterable[str]) -> None:
    """Looks for the sources and files of a command.

    Importing a backend takes seconds, in which nobody should wait for a typing error.
    What only a Hub, other machines or standard input have is left to the command.
    """
    if options.get("engine") == "ray":
        return
    for source in given_texts(options, ("source", "teacher")):
        path = "." if "://" in source else resolve(source)
        if not os.path.exists(path) and not os.path.exists(f"{path}.index"):
            list_files(path)
    for file in given_texts(options, files):
        if file == "-" or "://" in file or {*"*?["} & {*file}:
            continue
        try:
            os.stat(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SourceError(f"cannot read {file}: {reason}") from error


def is_small(path: str) -> bool:
    """True for a file that is read in less than a second; False for a pipe."""
    return os.path.isfile(path) and os.path.getsize(path) <= _SMALL


def read_for_training(source: str, path: str, **layout: Any) -> list[tuple] | None:
    """The rows of a file to answer, as `FinetunedTask.read_rows` reads them.

    They are read, and refused, before a backend is imported; None if only the model
    tells what a row is.
    """
    from roformer_keras.tasks.finetuning_settings import trained_settings
    from roformer_keras.tasks.labelled_files import read_unlabelled

    trained = trained_settings(source)
    if trained is None:
        return None
    known = TASKS[trained.task], trained.text_count, trained.field_names
    return read_unlabelled(path, *known, **layout)

"""Sources and files that are missing or wrong, found before a backend is imported."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roformer_keras.base.errors import SourceError
from roformer_keras.base.task_registry import TASKS
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.sources import list_files

_SOURCES = ("source", "teacher")
_PATTERN = frozenset("*?[")
_SMALL = 2**22


def check_paths(options: Mapping, files: Iterable[str]) -> None:
    """Looks for the sources and files of a command.

    Importing a backend takes seconds, in which nobody should wait for a typing error.
    What only a Hub, other machines or standard input have is left to the command.
    """
    if options.get("engine") == "ray":
        return
    for source in _given(options, _SOURCES):
        path = resolve(source)
        if not os.path.exists(path) and not os.path.exists(f"{path}.index"):
            list_files(path)
    for file in _given(options, files):
        if file == "-" or _PATTERN & {*file}:
            continue
        try:
            os.stat(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SourceError(f"cannot read {file}: {reason}") from error


def is_small(path: str) -> bool:
    """True for a file that is read in less than a second; False for a pipe."""
    return os.path.isfile(path) and os.path.getsize(path) <= _SMALL


def check_table(
    path: str | None,
    settings: Any,
    fields: Sequence[str] = (),
    labelled: bool = True,
    **options: Any,
) -> None:
    """Reads a small file for a run of `FinetuningSettings`, for its errors alone.

    A large file takes longer than the backend. `read_table` has the same arguments.
    """
    from roformer_keras.tables.files import read_table

    if path is None or settings is None or not is_small(path):
        return
    is_new = fields and fields != settings.fields
    read_table(
        path,
        (len(fields) - labelled if is_new else 0) or settings.text_count,
        fields or settings.field_names,
        labelled=labelled,
        has_choices=TASKS[settings.task].has_choices,
        **options,
    )


def check_texts(path: str, source: str, fields: Sequence[str], **layout: Any) -> None:
    """Reads a small file as `FinetunedTask.read_rows` does, for its errors alone."""
    from roformer_keras.tables.files import LABEL
    from roformer_keras.tasks.finetuning_settings import trained_settings

    trained = trained_settings(source)
    # A `.txt` may lack what the files of the training have.
    if trained is None or (not fields and path.lower().endswith(".txt")):
        return
    if len(fields) > 1 and (fields[-1] == LABEL or fields == trained.field_names):
        fields = fields[:-1]
    check_table(path, trained, fields, labelled=False, **layout)


def _given(options, names):
    for name in names:
        values = options.get(name) or ()
        for value in [values] if isinstance(values, str) else values:
            if "://" not in value:
                yield value

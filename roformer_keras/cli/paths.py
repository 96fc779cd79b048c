"""Sources and files that are not there, found before a backend is imported."""

import os
from collections.abc import Iterable, Mapping

from roformer_keras.errors import SourceError
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.sources import list_files

_SOURCES = ("source", "teacher")
_PATTERN = frozenset("*?[")


def check_paths(options: Mapping, files: Iterable[str]) -> None:
    """Looks for the sources and files of a command.

    Importing a backend takes seconds, in which nobody should wait for a typing error.
    What only a Hub, other machines or standard input have is left to the command.

    Args:
        options: of the command, by their keywords.
        files: keywords of options that are files.

    Raises:
        SourceError: one is not there.
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


def _given(options, names):
    for name in names:
        values = options.get(name) or ()
        for value in [values] if isinstance(values, str) else values:
            if "://" not in value:
                yield value

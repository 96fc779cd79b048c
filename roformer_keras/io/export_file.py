"""Description of an exported model, and errors for the files next to it."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from roformer_keras.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.io.json_file import parse_json
from roformer_keras.io.sources import EXPORT

# Fields that every export has.
_FIELDS = {"model": str, "dim": int, "format": str, "int8": bool}


def has_export(folder: str | os.PathLike) -> bool:
    """True if it is a folder with an `export.json`; False for what is no path."""
    try:
        return (Path(folder) / EXPORT).is_file()
    except OSError:
        # Such as a name that is too long.
        return False


def parse_export(folder: str | os.PathLike) -> dict:
    """The content of `export.json`, whose fields are not checked.

    Raises:
        SourceError: there is none, or it cannot be read.
        ConfigurationError: it does not hold one JSON object.
    """
    path = Path(folder) / EXPORT
    if not has_export(folder):
        raise SourceError(f"an export has an {EXPORT}; there is no {path}")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    return parse_json(text, str(path))


def read_export(folder: str | os.PathLike, formats: Collection[str]) -> dict:
    """The content of `export.json`, whose common fields are checked.

    Args:
        folder: of the export.
        formats: those that the reader knows.

    Raises:
        SourceError: there is none, it cannot be read, or has another format.
        ConfigurationError: it does not hold one JSON object, or a field is missing or
            has another type.
    """
    content = parse_export(folder)
    check_types(content, _FIELDS, Path(folder) / EXPORT)
    if (format := content["format"]) not in formats:
        raise SourceError(
            f"such an export has the format {' or '.join(map(repr, formats))}; that of "
            f"{folder} is {format!r}"
        )
    return content


def check_types(content: dict, fields: Mapping[str, type], label: object) -> None:
    """Raises ConfigurationError unless an object has these fields, of these types."""
    for name, kind in fields.items():
        # True and False are no integers here.
        if type(value := content.get(name)) is not kind:
            raise ConfigurationError(
                f"{label} must have the field {name!r} of type {kind.__name__}, got "
                f"{value!r:.80}: export the model again"
            )


@contextmanager
def readable_network(path: Path) -> Iterator[None]:
    """Errors of a runtime that reads a file or folder of an export: SourceError."""
    if not path.exists():
        raise SourceError(f"the export lacks {path}: export the model again")
    try:
        yield
    except (RoFormerError, MemoryError):
        raise
    # Each runtime has its own classes, some of them without a common base.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SourceError(
            f"cannot load {path}, which is damaged or lacks its weights: export the "
            f"model again ({lines[-1] if lines else type(error).__name__})"
        ) from error

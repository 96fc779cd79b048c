"""Description of an exported model, and errors for the files next to it."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import check_file, check_integer
from roformer_keras.base.errors import (
    ConfigurationError,
    Hint,
    RoFormerError,
    SourceError,
    errors_at,
    printable,
    refuse,
)
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.sources import EXPORT

# Name of the field with the width of a vector.
_MAX_DIM = 2**20
# Formats whose matrix products can be of integers, and the minimal number of texts.
_OF_INTEGERS, _MIN_TEXTS = ("onnx", "openvino"), 20
# The start of an OpenVINO network. OpenVINO recognizes other formats by their content.
_NETWORK = re.compile(rb"(\xef\xbb\xbf)?\s*(<\?xml [^>]*>\s*)?<net\b")
# Fields of every export.
_FIELDS = {"model": str, "dim": int, "format": str, "int8": bool}


def check_options(
    format: str, int8: bool, calibration_texts: Any, generator: bool = False
) -> None:
    """Raises ConfigurationError for options of an export that contradict each other."""
    refuse(
        generator and (not isinstance(format, str) or format != "openvino"),
        f"a model that writes is exported to the format 'openvino', got {format!r}",
    )
    if generator:
        if isinstance(calibration_texts, Sized) and not len(calibration_texts):
            return
        raise ConfigurationError(
            "a model that writes has weights of 8 bits, which need no texts to "
            "calibrate with",
            hint=Hint("leave out {calibration_texts}"),
        )
    if int8 and format not in _OF_INTEGERS:
        raise ConfigurationError(
            f"int8 is for the formats {' and '.join(map(repr, _OF_INTEGERS))}, got "
            f"{format!r}"
        )
    refuse(
        isinstance(calibration_texts, str)
        or not isinstance(calibration_texts, Sequence)
        or not all(isinstance(text, str) for text in calibration_texts),
        f"calibration_texts must be a list of str, got {calibration_texts!r:.80}",
    )
    calibrates = int8 and format == "openvino"
    refuse(
        calibration_texts and not calibrates,
        "texts to calibrate with are for int8 and the format 'openvino' alone, got "
        f"{format!r} {'with' if int8 else 'without'} int8",
        hint=Hint("leave out {calibration_texts}"),
    )
    count = len(set(filter(str.strip, calibration_texts)))
    refuse(
        calibrates and count < _MIN_TEXTS,
        f"int8 in OpenVINO is calibrated with at least {_MIN_TEXTS} different "
        f"texts like those to serve, got {count}",
        hint=Hint("give about 100 with {calibration_texts}"),
    )


def has_export(folder: str | os.PathLike) -> bool:
    """True for a folder with an `export.json`; False for anything that is no path."""
    try:
        return (Path(folder) / EXPORT).is_file()
    except OSError:
        # The name may be too long.
        return False


def parse_export(folder: str | os.PathLike) -> dict:
    """The content of `export.json`, whose fields are not checked."""
    path = Path(folder) / EXPORT
    refuse(
        not has_export(folder),
        f"an export has an {EXPORT}; there is no {path}",
        error=SourceError,
    )
    return read_json(Blob.of_file(path))


def read_export(folder: str | os.PathLike, formats: Collection[str]) -> dict:
    """The content of `export.json`, whose common fields are checked."""
    content = parse_export(folder)
    check_types(content, _FIELDS, Path(folder) / EXPORT)
    if (format := content["format"]) not in formats:
        raise SourceError(
            f"the format of this export must be {' or '.join(map(repr, formats))}; the "
            f"export in {folder} has {format!r:.80}"
        )
    with errors_at(Path(folder) / EXPORT):
        check_integer("dim", content["dim"], 1, _MAX_DIM)
    return content


def check_types(content: dict, fields: Mapping[str, type], label: object) -> None:
    """Raises ConfigurationError unless an object has these fields, of these types."""
    for name, kind in fields.items():
        # True and False do not count as integers.
        refuse(
            type(value := content.get(name)) is not kind,
            f"{label} must have the field {name!r} of type {kind.__name__}, got "
            f"{value!r:.80}: export the model again",
        )


@contextmanager
def readable_network(path: Path) -> Iterator[None]:
    """Turns a runtime's errors in reading a file or folder into SourceError.

    A file for OpenVINO must hold its own kind of network: with another format, OpenVINO
    would read the files that the network names.
    """
    refuse(
        not path.exists(),
        f"the export lacks {path}: export the model again",
        error=SourceError,
    )
    # A SavedModel is a folder.
    if path.suffix in (".onnx", ".xml"):
        check_file(path)
    if path.suffix == ".xml":
        check_file(path.with_suffix(".bin"))
        with open(path, "rb") as stream:
            if not _NETWORK.match(stream.read(2**10)):
                raise _damaged(path, "it holds no network of OpenVINO")
    try:
        yield
    except (RoFormerError, MemoryError):
        raise
    # Runtimes raise their own classes, some without a common base.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        raise _damaged(path, printable(reason)[:300]) from error


def _damaged(path, reason):
    return SourceError(
        f"cannot load {path}, which is damaged or lacks its weights: export the model "
        f"again ({reason})"
    )

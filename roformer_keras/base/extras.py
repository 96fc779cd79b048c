"""Optional libraries, and the extra that installs each."""

import importlib
import importlib.util
import sys
from typing import Any

from roformer_keras.base.errors import ConfigurationError

_EXTRAS = {
    "tensorflow": ("tensorflow",),
    "train": ("matplotlib", "scipy", "sklearn", "tensorboardX"),
    "hub": ("huggingface_hub", "fsspec"),
    "data": ("pyarrow",),
    "excel": ("openpyxl",),
    "ray": ("ray",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "export": ("nncf", "onnx", "onnxruntime"),
    "openvino": ("openvino",),
    "search": ("faiss",),
}
# Feature -> the modules that it needs.
NEEDS = {
    "a training": ("matplotlib", "tensorboardX"),
    "a fine-tuning": ("matplotlib", "scipy", "sklearn"),
    "an evaluation": ("scipy", "sklearn"),
    "drawing": ("matplotlib",),
    "a source at hf://": ("huggingface_hub",),
    "an upload to the Hub": ("huggingface_hub",),
    "a Parquet or Arrow file": ("pyarrow",),
    "an .xlsx file": ("openpyxl",),
    "--engine ray": ("ray", "pyarrow"),
    "the engine 'openvino'": ("openvino",),
    "roformer-keras serve": ("fastapi", "uvicorn", "prometheus_client"),
    "the format 'saved_model'": ("tensorflow",),
    "the format 'onnx'": ("onnx", "onnxruntime"),
    "the format 'openvino'": ("openvino",),
    "int8 in OpenVINO": ("nncf",),
    "exact search": ("faiss",),
}
_EXTRA_OF = {name: extra for extra, names in _EXTRAS.items() for name in names}


def installed_version() -> str:
    """The version of this package, such as `"0.1.0"`; `"0"` if it is not installed."""
    # Its import takes longer than all other imports at the start of a command.
    from importlib import metadata

    try:
        return metadata.version("roformer-keras")
    except metadata.PackageNotFoundError:
        return "0"


def is_installed(name: str) -> bool:
    """True if a module of that name exists, imported or not."""
    if name in sys.modules:
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


def require(purpose: str) -> None:
    """Raises ConfigurationError if a library of `NEEDS` is not installed.

    It imports none of them, which would take seconds.
    """
    for name in NEEDS[purpose]:
        if not is_installed(name):
            import_extra(name, purpose)


def import_extra(name: str, purpose: str) -> Any:
    """A module of an optional library."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing_extra(name, purpose, error) from error


def missing_extra(name: str, purpose: str, error: ImportError) -> ConfigurationError:
    """The error for a library that cannot be imported; it names the extra."""
    library = name.partition(".")[0]
    return ConfigurationError(
        f"{purpose} needs {library}, which cannot be imported ({error}); run: pip "
        f"install 'roformer-keras[{_EXTRA_OF[library]}]'"
    )


def is_optional(name: str | None) -> bool:
    """True if a module belongs to a library that an extra installs."""
    return name is not None and name.partition(".")[0] in _EXTRA_OF

"""Libraries that only some features need, and the extra that installs each."""

import importlib
import importlib.util
from importlib import metadata
from typing import Any

from roformer_keras.errors import ConfigurationError

_EXTRAS = {
    "train": ("matplotlib", "scipy", "sklearn", "tensorboardX"),
    "evaluate": ("sacrebleu",),
    "hub": ("huggingface_hub",),
    "data": ("pyarrow",),
    "excel": ("openpyxl",),
    "ray": ("ray",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "export": ("nncf", "onnx", "onnxruntime"),
    "openvino": ("openvino",),
    "search": ("faiss",),
}
_EXTRA_OF = {name: extra for extra, names in _EXTRAS.items() for name in names}


def installed_version() -> str:
    """The version of this package, such as `"0.1.0"`; `"0"` if it is not installed."""
    try:
        return metadata.version("roformer-keras")
    except metadata.PackageNotFoundError:
        return "0"


def is_installed(name: str) -> bool:
    """True if there is a module of that name, which is not imported yet."""
    return importlib.util.find_spec(name) is not None


def import_extra(name: str, purpose: str) -> Any:
    """A module of an optional library.

    Args:
        name: of the module, such as `"matplotlib.figure"`.
        purpose: what needs it, such as `"BLEU"`.

    Raises:
        ConfigurationError: it cannot be imported; names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise ConfigurationError(
            f"{purpose} needs {library}, which cannot be imported ({error}); run: pip "
            f"install 'roformer-keras[{_EXTRA_OF[library]}]'"
        ) from error

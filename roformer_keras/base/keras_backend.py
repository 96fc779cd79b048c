"""Prepares the import of Keras: finds a backend and silences TensorFlow.

Keras imports its backend, and fails if it is not installed. `import roformer_keras`
sets `KERAS_BACKEND` if Keras would choose a missing one. The command and the names of
this package import Keras in `starting`.
"""

import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lazy_loader

from roformer_keras.base import quirks
from roformer_keras.base.errors import BackendError
from roformer_keras.base.extras import is_installed, is_optional, missing_extra
from roformer_keras.base.other_names import explain_name, explain_withdrawn
from roformer_keras.base.types import Unchecked

# In order of preference, if the user has chosen none.
BACKENDS = ("tensorflow", "jax", "torch")
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# TensorFlow writes these lines about devices before it reads its log level.
_REMARK = re.compile(
    rb"WARNING: All log messages before absl|[IW]\d{4} |To enable the following"
)


# Optional imports of Keras and TensorFlow that no command uses. They would take as long
# as all other imports together.
UNUSED_BY_COMMANDS = ("jax", "matplotlib", "pandas", "sklearn")


class _Finder:
    """A finder of modules that acts at the first import of Keras, and finds nothing."""

    def __init__(self, hidden: Iterable[str]):
        self._hidden = tuple(hidden)

    def find_spec(
        self, name: str, path: Unchecked = None, target: Unchecked = None
    ) -> None:
        if name == "keras":
            sys.meta_path.remove(self)
            try:
                backend = choose_backend()
                with _hidden(other for other in self._hidden if other != backend):
                    if backend == "tensorflow":
                        _import_tensorflow()
                    if self._hidden:
                        importlib.import_module("keras")
            except BackendError:
                # The next import fails with the same message.
                sys.meta_path.insert(0, self)
                raise


@contextlib.contextmanager
def starting(hidden: Iterable[str] = ()) -> Iterator[None]:
    """Silences an import of Keras, and names a missing backend."""
    is_active = any(isinstance(finder, _Finder) for finder in sys.meta_path)
    if "keras" in sys.modules or is_active:
        yield
        return
    finder: Any = _Finder(hidden)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def name_error(module: str, name: str, known: Iterable[str]) -> Exception:
    """The error for a name that a module lacks, in `import` or elsewhere."""
    message = explain_name(module, name, list(known))
    if quirks.is_import_from():
        return ImportError(message, name=module)
    return AttributeError(message, name=name)


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package with a stub.

    Names are imported at first use, see `starting`. A name that needs a missing library
    of an extra raises ConfigurationError.
    """
    load, list_names, names = lazy_loader.attach_stub(package, file)

    def load_name(name: str) -> Any:
        if name not in names:
            message, module = explain_name(package, name, names), f"{package}.{name}"
            # Python looks for modules in the same way, before it imports them.
            is_asked, is_module = quirks.is_import_from(), is_installed(module)
            if is_module and not is_asked:
                with starting():
                    return importlib.import_module(module)
            if is_asked and not is_module:
                raise ImportError(message, name=package)
            # With a name and no object, Python itself suggests no other name.
            raise AttributeError(message, name=name)
        try:
            with starting():
                return load(name)
        except ModuleNotFoundError as error:
            if not is_optional(error.name):
                raise
            purpose = f"{package}.{name}"
            raise missing_extra(str(error.name), purpose, error) from error

    return load_name, list_names, names


def prefer_installed() -> None:
    """Makes Keras take an installed backend, if the user has not chosen one."""
    if "keras" not in sys.modules:
        with contextlib.suppress(BackendError):
            choose_backend()


def choose_backend() -> str:
    """The name of an installed backend, which Keras will take as well.

    `KERAS_BACKEND` is the user's choice. Keras's own file is not, because Keras writes
    it unasked. Without a choice, and if the backend in that file is missing, the first
    installed one of `BACKENDS` is taken.
    """
    chosen = os.environ.get("KERAS_BACKEND")
    name = chosen or _configured()
    if chosen == "openvino":
        raise BackendError(explain_withdrawn("KERAS_BACKEND=openvino"))
    if name in BACKENDS and not is_installed(name):
        others = [other for other in BACKENDS if is_installed(other)]
        if chosen:
            way_out = f"run: pip install 'roformer-keras[{name}]'"
            if others:
                way_out += f", or set KERAS_BACKEND={others[0]}"
            raise BackendError(
                f"KERAS_BACKEND={name}, but {name} is not installed; {way_out}"
            )
        if not others:
            raise BackendError(
                "models need a backend of Keras, and none of "
                f"{', '.join(BACKENDS)} is installed; run: "
                "pip install 'roformer-keras[tensorflow]'"
            )
        name = os.environ["KERAS_BACKEND"] = others[0]
    return name


def _import_tensorflow() -> None:
    """Imports TensorFlow silently, unless the user asks for its log."""
    if os.environ.setdefault(_LOG_LEVEL, "3") != "0":
        with _without_remarks():
            importlib.import_module("tensorflow")


def _configured() -> str:
    """The backend of Keras's configuration file, or Keras's default."""
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        content = json.loads((folder / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "tensorflow"
    backend = content.get("backend") if isinstance(content, dict) else None
    return backend or "tensorflow"


@contextlib.contextmanager
def _hidden(names: Iterable[str]) -> Iterator[None]:
    """Hides packages from imports, except packages that are already imported."""
    names = [name for name in names if name not in sys.modules]
    # Importing a name whose module is None fails.
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            if sys.modules.get(name, names) is None:
                del sys.modules[name]


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Drops C++ remarks from standard error; keeps all other output."""
    try:
        screen = os.dup(2)
    except OSError:
        # Standard error is closed.
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            file.seek(0)
            for line in file:
                if not _REMARK.match(line):
                    os.write(2, line)

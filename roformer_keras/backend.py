"""What happens before Keras is imported: a backend is found, and TensorFlow is quiet.

Keras imports its backend, and fails if it is not installed. `import roformer_keras`
adds a hook that looks at it first, at the first `import keras`.
"""

import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from roformer_keras.errors import BackendError

# In the order of preference, where the user has chosen none.
BACKENDS = ("tensorflow", "jax", "torch")
# It does not train, so it is only taken where the user has chosen it.
_INFERENCE_BACKEND = "openvino"
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# What TensorFlow writes of devices and instruction sets before it reads its log level.
_REMARK = re.compile(
    rb"WARNING: All log messages before absl|[IW]\d{4} |To enable the following"
)


# What Keras and TensorFlow import where it is installed, for parts of theirs that no
# command uses. It takes as long as all the rest.
UNUSED_BY_COMMANDS = ("jax", "matplotlib", "pandas", "sklearn")


class BackendHook:
    """A finder of modules that acts at the first import of Keras, and finds nothing.

    Attributes:
        hidden: names of packages that Keras and its backend do not find meanwhile.
    """

    hidden: tuple[str, ...] = ()

    def find_spec(self, name, path=None, target=None):
        if name == "keras":
            sys.meta_path.remove(self)
            try:
                backend = choose_backend()
                with _hidden(other for other in self.hidden if other != backend):
                    if backend == "tensorflow":
                        _import_tensorflow()
                    if self.hidden:
                        importlib.import_module("keras")
            except BackendError:
                # The next import fails in the same words.
                sys.meta_path.insert(0, self)
                raise


def choose_backend() -> str:
    """The name of an installed backend, which Keras will take as well.

    The user's choice is `KERAS_BACKEND`. Keras's own file is none: Keras writes it
    unasked. Without a choice, and without the backend of that file, it is the first of
    `BACKENDS` that is installed.

    Raises:
        BackendError: the chosen one, or any, is not installed.
    """
    chosen = os.environ.get("KERAS_BACKEND")
    name = chosen or _configured()
    if name in (*BACKENDS, _INFERENCE_BACKEND) and not _is_installed(name):
        others = [other for other in BACKENDS if _is_installed(other)]
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


def _import_tensorflow():
    """Without its remarks, unless the user has asked for them."""
    if os.environ.setdefault(_LOG_LEVEL, "3") != "0":
        with _without_remarks():
            importlib.import_module("tensorflow")


def _configured():
    """The backend of Keras's configuration file, or Keras's default."""
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        content = json.loads((folder / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "tensorflow"
    found = content.get("backend") if isinstance(content, dict) else None
    return found or "tensorflow"


def _is_installed(name):
    return name in sys.modules or importlib.util.find_spec(name) is not None


@contextlib.contextmanager
def _hidden(names) -> Iterator[None]:
    """As if packages were not installed; those that are imported already stay."""
    names = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in names:
            if sys.modules.get(name, names) is None:
                del sys.modules[name]


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Drops remarks that are written to standard error by C++; keeps all else."""
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

"""The backend that is chosen before Keras is imported, and TensorFlow's remarks."""

import importlib
import os
import sys

import pytest

from roformer_keras.base import keras_backend
from roformer_keras.base.errors import BackendError

EVERY = "tensorflow jax torch openvino"
# Installed, KERAS_BACKEND, the backend of Keras's file; and what is chosen.
CHOICES = (
    (EVERY, None, None, "tensorflow"),
    (EVERY, "jax", "torch", "jax"),
    (EVERY, None, "torch", "torch"),
    ("jax torch openvino", None, None, "jax"),
    ("torch", None, "jax", "torch"),
)
REFUSALS = (
    (
        EVERY,
        "openvino",
        "version 0.2 withdrew KERAS_BACKEND=openvino: set KERAS_BACKEND to tensorflow, "
        "jax or torch, and use engine='openvino'",
    ),
    (
        "openvino",
        None,
        "models need a backend of Keras, and none of tensorflow, jax, torch is "
        "installed; run: pip install 'roformer-keras[tensorflow]'",
    ),
    (
        "",
        "jax",
        "KERAS_BACKEND=jax, but jax is not installed; run: pip install "
        "'roformer-keras[jax]'",
    ),
    (
        "tensorflow jax",
        "torch",
        "KERAS_BACKEND=torch, but torch is not installed; run: pip install "
        "'roformer-keras[torch]', or set KERAS_BACKEND=tensorflow",
    ),
)


@pytest.fixture
def choose(tmp_path, monkeypatch):
    def chosen(installed, variable, configured=None):
        """The choice, and the variable after it."""
        environment = {"KERAS_HOME": str(tmp_path)}
        if variable:
            environment["KERAS_BACKEND"] = variable
        (tmp_path / "keras.json").write_text(
            f'{{"backend": "{configured}"}}' if configured else "{"
        )
        monkeypatch.setattr(os, "environ", environment)
        monkeypatch.setattr(
            keras_backend, "is_installed", installed.split().__contains__
        )
        return keras_backend.choose_backend(), environment.get("KERAS_BACKEND")

    return chosen


def test_a_backend_that_is_installed_is_chosen(choose):
    for installed, variable, configured, expected in CHOICES:
        name, variable_after = choose(installed, variable, configured)
        assert name == expected
        # Keras reads its file too, so the variable tells it of another choice.
        assert variable_after in (variable, expected)
        assert variable_after or expected == (configured or "tensorflow")


def test_a_backend_that_is_missing_is_an_error(choose):
    for installed, variable, expected in REFUSALS:
        with pytest.raises(BackendError) as caught:
            choose(installed, variable)
        assert str(caught.value) == expected


def test_remarks_of_tensorflow_are_dropped_unless_they_are_wanted(monkeypatch, capfd):
    def write_both(name):
        os.write(2, b"I0000 00:00:1 cpu_feature_guard.cc\nW: a warning\n")

    monkeypatch.setattr(keras_backend.importlib, "import_module", write_both)
    # At level 0, Keras imports TensorFlow later, with its remarks.
    for level, shown in ((None, "W: a warning\n"), ("1", "W: a warning\n"), ("0", "")):
        environment = {"TF_CPP_MIN_LOG_LEVEL": level} if level else {}
        monkeypatch.setattr(os, "environ", environment)
        keras_backend._import_tensorflow()
        assert environment == {"TF_CPP_MIN_LOG_LEVEL": level or "3"}
        assert capfd.readouterr().err == shown


def test_a_missing_backend_is_named_while_the_package_starts(
    choose, monkeypatch, tmp_path
):
    with pytest.raises(BackendError):
        choose("openvino", None)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    before = [*sys.meta_path]
    with keras_backend.starting(), keras_backend.starting(hidden=("pandas",)):
        assert len(sys.meta_path) == len(before) + 1
        for _ in range(2):
            with pytest.raises(BackendError, match="and none of tensorflow, jax"):
                import keras  # noqa: F401
    assert sys.meta_path == before
    # A name of a package like this one needs a backend, and says so. Here another test
    # may have imported the names.
    lines = "from roformer_keras.base.keras_backend import lazy_names\n"
    lines += "__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)\n"
    files = {"__init__.py": lines, "__init__.pyi": "from .a import b as b\n"}
    (tmp_path / "lazy_package").mkdir()
    for name, content in {**files, "a.py": "import keras\nb = keras\n"}.items():
        (tmp_path / "lazy_package" / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError, match="and none of tensorflow, jax"):
        _ = importlib.import_module("lazy_package").b
    assert sys.meta_path == before


def test_an_installed_backend_is_preferred_before_keras_is_imported(
    choose, monkeypatch
):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    choose("jax torch", "jax")
    del os.environ["KERAS_BACKEND"]
    keras_backend.prefer_installed()
    assert os.environ["KERAS_BACKEND"] == "jax"
    monkeypatch.setattr(keras_backend, "is_installed", lambda name: False)
    # That is an error only where a model is needed.
    keras_backend.prefer_installed()

"""What works without an optional library, on a system without Unix's modules."""

import os
import subprocess
import sys

import pytest
from common import CHARACTER, ROOT, SIM

HIDING = """
import importlib.machinery as machinery, sys
hidden = set(sys.argv[1].split(","))
for finder in (machinery.PathFinder, machinery.BuiltinImporter):
    def find_spec(name, path=None, target=None, find=finder.find_spec):
        return None if name.partition(".")[0] in hidden else find(name, path, target)
    finder.find_spec = staticmethod(find_spec)
for name in hidden:
    sys.modules.pop(name, None)
"""
RUN = "from roformer_keras.cli import main; sys.exit(main({words!r}))"
EVERYTHING = """
import importlib, pkgutil, roformer_keras
for module in pkgutil.walk_packages(roformer_keras.__path__, "roformer_keras."):
    if not module.name.endswith(("__main__", "reference_process", "keras_hub")):
        importlib.import_module(module.name)
"""
BACKENDS = "tensorflow,jax,torch"
UNIX = "fcntl,grp,pwd,resource,termios"
TRAIN = "matplotlib,scipy,sklearn,tensorboardX"


def python(hidden, code, **environment):
    """A process without some modules; `environment` None removes a variable."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", HIDING + code, hidden],
        env={k: v for k, v in variables.items() if v is not None},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def run(hidden, *words, **environment):
    return python(hidden, RUN.format(words=list(map(str, words))), **environment)


@pytest.mark.parametrize("hidden", [BACKENDS, UNIX, f"{BACKENDS},{TRAIN},jieba"])
def test_commands_that_need_no_backend(hidden, tmp_path):
    for words in (
        ("inspect", SIM),
        ("tokenize", "你好", "--source", SIM),
        ("list",),
        ("convert", SIM, tmp_path / "preset"),
        ("convert", tmp_path / "preset", tmp_path / "again.safetensors"),
    ):
        done = run(hidden, *words)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert {path.name for path in tmp_path.iterdir()} == {"preset", "again.safetensors"}


def test_no_backend_is_one_error():
    done = run(BACKENDS, "embed", ROOT / "LICENSE", "--source", SIM, KERAS_BACKEND=None)
    assert done.returncode == 2
    assert done.stderr == (
        "roformer-keras: error: models need a backend of Keras, and none of "
        "tensorflow, jax, torch is installed; run: "
        "pip install 'roformer-keras[tensorflow]'\n"
    )
    code = """
import roformer_keras
for make in (lambda: roformer_keras.load_model, lambda: roformer_keras.layers.RMSNorm):
    try:
        make()
    except ImportError as error:
        print(type(error).__name__)
"""
    assert python(BACKENDS, code).stdout == "BackendError\n" * 2


def test_a_chosen_backend_that_is_missing():
    done = run(
        "torch", "embed", ROOT / "LICENSE", "--source", SIM, KERAS_BACKEND="torch"
    )
    assert done.returncode == 2
    assert "KERAS_BACKEND=torch, but torch is not installed; run: pip" in done.stderr
    assert "'roformer-keras[torch]', or set KERAS_BACKEND=tensorflow" in done.stderr


def test_another_backend_is_used_if_tensorflow_is_missing():
    code = f"""
import roformer_keras
model = roformer_keras.RoFormerSim.from_preset({str(SIM)!r})
import keras
print(keras.backend.backend(), model.encode(["你好"]).shape)
"""
    done = python("tensorflow", code, KERAS_BACKEND=None)
    assert done.stdout == "jax (1, 32)\n", done.stderr


def test_every_module_can_be_imported_without_optional_libraries():
    hidden = f"{UNIX},{TRAIN},jieba,sacrebleu,onnx,onnxruntime,openvino,nncf,tf2onnx"
    done = python(hidden, EVERYTHING)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("library", TRAIN.split(","))
def test_training_names_the_extra_before_it_starts(library, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("好,1\n坏,0\n" * 5, encoding="utf-8")
    words = [
        "finetune",
        "text-classification",
        "--train",
        table,
        "-o",
        tmp_path / "run",
    ]
    if library == "tensorboardX":
        words = ["pretrain", "mlm", table, "-o", tmp_path / "run"]
    done = run(library, *words, "--source", CHARACTER)
    assert done.returncode == 2
    assert f"needs {library}, which cannot be imported" in done.stderr
    assert "pip install 'roformer-keras[train]'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_python_is_quiet():
    code = f"""
import roformer_keras
model = roformer_keras.RoFormerSim.from_preset({str(SIM)!r})
print(model.encode(["你好", "白日"]).shape, model.similarity)
"""
    code = code.replace(", model.similarity", "")
    done = python("none", code, TF_CPP_MIN_LOG_LEVEL=None, KERAS_BACKEND="tensorflow")
    assert (done.stdout, done.stderr) == ("(2, 32)\n", "")


def test_a_choice_of_log_level_is_kept():
    done = python(
        "none",
        "import roformer_keras, keras, os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])",
        TF_CPP_MIN_LOG_LEVEL="0",
        KERAS_BACKEND="tensorflow",
    )
    assert done.stdout == "0\n"
    # What TensorFlow has to say depends on the machine.
    assert "I0000" in done.stderr

"""Imports of the package and of all of its modules leave Keras as it was."""

import pytest
from common import ROOT, output_of

CODE = """
import importlib, sys, types, warnings
from pathlib import Path
import keras

def found():
    #What Keras's modules and classes hold, private ones too, and who imports how.
    seen = {}
    for module in [*sys.modules.values()]:
        name = getattr(module, "__name__", "")
        if name.partition(".")[0] != "keras":
            continue
        # Keras adds modules that are imported later.
        seen[name] = {
            key: value
            for key, value in vars(module).items()
            if not isinstance(value, types.ModuleType)
        }
        for value in [*vars(module).values()]:
            if isinstance(value, type) and value.__module__.startswith("keras"):
                seen[f"{value.__module__}.{value.__qualname__}"] = dict(vars(value))
    return seen, [*warnings.filters], [*sys.meta_path]

def changed(before, after):
    return sorted(
        f"{owner}.{name}"
        for owner in before
        for name in before[owner].keys() | after[owner].keys()
        if not name.startswith("__") and name not in ("_abc_impl", "_auto_config")
        and before[owner].get(name) is not after[owner].get(name)
    )

def compare(before, act):
    act()
    after = found()
    names = changed(before[0], after[0])
    print(names, before[1] == after[1], before[2] == after[2])

# Keras imports these when they are first asked for, and so do other libraries.
keras.layers.Dense(1)(keras.Input((2,)))
import roformer_keras
folder = Path(roformer_keras.__file__).parent
modules = [
    ".".join(file.relative_to(folder.parent).with_suffix("").parts)
    for file in sorted(folder.rglob("*.py"))
    if file.stem not in ("__main__", "reference_process")
]

def import_all():
    for name in modules:
        importlib.import_module(name)

# What other libraries do to filters and finders is theirs.
for name in sys.argv[1].split(","):
    if importlib.util.find_spec(name):
        importlib.import_module(name)
compare(found(), import_all)
"""
OTHERS = (
    *("jieba", "sacrebleu", "scipy", "sklearn", "matplotlib.pyplot", "pandas", "ray"),
    *("fastapi", "uvicorn", "openvino", "onnx", "onnxruntime", "tensorboardX"),
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_imports_leave_keras_as_it_was(backend):
    output = output_of("-c", CODE, ",".join(OTHERS), cwd=ROOT, KERAS_BACKEND=backend)
    assert {*output.splitlines()} == {"[] True True"}, output

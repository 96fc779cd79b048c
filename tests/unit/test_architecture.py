"""Who may import whom, and what `import roformer_keras` brings with it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

import roformer_keras

PACKAGE = ROOT / "roformer_keras"

# Imports go from a higher number to a lower one, or stay inside one unit: a module or
# a folder next to `__init__.py`.
RANKS = {
    "errors": 0,
    "backend": 1,
    "extras": 1,
    "processes": 1,
    "progress": 0,
    "types": 0,
    "checks": 1,
    "config": 2,
    "io": 2,
    "hub": 3,
    "conversion": 4,
    "text": 5,
    "compiled": 5,
    "losses": 5,
    "optimizers": 5,
    "layers": 6,
    "data": 6,
    "metrics": 7,
    "fast_model": 7,
    "generation": 7,
    "objectives": 8,
    "models": 9,
    "tasks": 10,
    "training": 11,
    "verification": 11,
    "serving": 11,
    "callbacks": 12,
    "keras_hub": 12,
    "bert4keras": 11,
    "distributed": 12,
    "server": 13,
    "cli": 14,
    "__main__": 15,
}
ANYWHERE = "__init__"

# Where a library may be named; nowhere else.
ALLOWED = {
    "tensorflow": {
        "bert4keras/batches.py",
        "bert4keras/data_generator.py",
        "bert4keras/keras_functions.py",
        "bert4keras/train_functions.py",
        "compiled.py",
        "data/adapters.py",
        "fast_model.py",
        "keras_hub.py",
        "layers/dropout.py",
        "layers/fused.py",
        "models/initializers.py",
        "serving/runtime.py",
        "tasks/adversarial.py",
        "optimizers.py",
        "verification/reference_process.py",
    },
    "tf_keras": {"verification/reference_process.py"},
    "bert4keras": {"verification/reference_process.py"},
    "jax": {
        "compiled.py",
        "models/distribution.py",
        "tasks/adversarial.py",
        "training/processes.py",
    },
    "torch": {
        "compiled.py",
        "tasks/adversarial.py",
        "verification/reference_process.py",
    },
    "transformers": {"verification/reference_process.py"},
    "onnx": {"serving/export.py", "serving/onnx_graph.py"},
    "onnxruntime": {"serving/export.py"},
    "jieba": set(),
    "sacrebleu": set(),
    "matplotlib": {"training/plots.py", "training/finetuning_plots.py"},
    "scipy": set(),
    "sklearn": set(),
    "tensorboardX": set(),
}

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def unit_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imports_of(module: Path):
    """Full names of what a module imports, at any depth: in functions too."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def test_every_unit_has_a_rank():
    assert {unit_of(module) for module in MODULES} - {ANYWHERE} == set(RANKS)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_down(module):
    unit = unit_of(module)
    for name in imports_of(module):
        package, _, rest = name.partition(".")
        if package != "roformer_keras" or unit == ANYWHERE:
            continue
        target = rest.partition(".")[0]
        if target == unit:
            continue
        assert target in RANKS, (
            f"{module} imports {name}; import from the module that defines it"
        )
        assert RANKS[target] < RANKS[unit], f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_libraries_are_named_in_their_place_only(module):
    for name in imports_of(module):
        library = name.partition(".")[0]
        assert module.as_posix() in ALLOWED.get(library, {module.as_posix()}), (
            f"{module} imports {name}"
        )


def test_the_rules_see_what_they_forbid():
    """The imports that exist are found, those inside of functions too."""
    process = set(imports_of(Path("verification/reference_process.py")))
    assert {"tensorflow", "bert4keras"} <= process
    assert "roformer_keras.cli.main.main" in set(imports_of(Path("cli/__init__.py")))
    assert "roformer_keras.errors.ConfigurationError" in set(
        imports_of(Path("config.py"))
    )


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = roformer_keras.no_such_name


@pytest.mark.parametrize("module", ["roformer_keras", "roformer_keras.cli"])
def test_import_is_light(module):
    heavy = ("h5py", "jax", "jieba", "keras", "numpy", "tensorflow", "torch")
    code = f"import sys, {module}; print(sorted(sys.modules.keys() & set({heavy!r})))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"

"""Allowed imports between modules, and those of `import roformer_keras`."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

import roformer_keras

PACKAGE = ROOT / "roformer_keras"

# Imports go down this list, or stay inside one unit: a module or a folder next to
# `__init__.py`. Units of one line do not import each other.
LAYERS = (
    "__main__",
    "cli",
    "callbacks distributed jobs server",
    "bert4keras export training verbs verification",
    "tasks",
    "models",
    "generation objectives",
    "inference text",
    "conversion data engines metrics search",
    "hub layers tables",
    "errors io losses optimizers",
    "base",
)
RANKS = {
    unit: rank for rank, units in enumerate(LAYERS[::-1]) for unit in units.split()
}
ANYWHERE = "__init__"
MAX_FLOORS, MAX_ROOMS = 12, 32

# Where a library may be named; nowhere else.
ALLOWED = {
    "tensorflow": """
        bert4keras/data_generator bert4keras/keras_functions bert4keras/train_functions
        base/compiled base/quirks data/adapters data/generators export/runtime
        inference/compiled_forward inference/fast_model
        layers/fused layers/long_attention models/initializers optimizers
        tasks/adversarial verification/reference_process
    """,
    "tf_keras": "verification/reference_process",
    "bert4keras": "verification/reference_process",
    "jax": """
        base/compiled base/quirks data/adapters layers/long_attention
        tasks/adversarial distributed/training training/finetune
    """,
    "torch": "base/compiled tasks/adversarial verification/reference_process",
    "transformers": "verification/reference_process",
    "onnxruntime": "export/model",
    "matplotlib": "training/plots training/finetuning_plots",
    **dict.fromkeys(("jieba", "onnx", "scipy", "sklearn"), ""),
    "tensorboardX": "",
}

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def unit_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


@functools.cache
def imports_of(module: Path):
    """Full names of the imports of a module, those in functions too."""
    names = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_unit_has_a_rank():
    assert {unit_of(module) for module in MODULES} - {ANYWHERE} == set(RANKS)


def test_imports_go_down():
    """Each name is imported from the module that defines it, of a lower rank."""
    wrong = []
    for module in MODULES:
        unit = unit_of(module)
        for name in imports_of(module) if unit != ANYWHERE else ():
            package, _, inner = name.partition(".")
            target = inner.partition(".")[0]
            if package != "roformer_keras" or target == unit:
                continue
            if target not in RANKS or RANKS[target] >= RANKS[unit]:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_floors_and_rooms_are_few():
    assert len(LAYERS) <= MAX_FLOORS
    assert len(RANKS) <= MAX_ROOMS


def test_no_circle_of_imports():
    """In functions neither: a late import hides where a name belongs."""
    modules = {
        ".".join(("roformer_keras", *path.with_suffix("").parts)): path
        for path in MODULES
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = {
        path: {
            modules.get(name) or modules.get(name.rpartition(".")[0])
            for name in imports_of(path)
        }
        - {path, None}
        for path in MODULES
    }
    # It raises CycleError, which names the files of a circle.
    graphlib.TopologicalSorter(graph).prepare()


def test_modules_that_are_imported_are_there():
    """In functions too, which nothing may have called for long."""
    missing = []
    for folder in ("roformer_keras", "tests", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = getattr(node, "module", None) or ""
                if name.split(".")[0] not in ("roformer_keras", "tools"):
                    continue
                module = ROOT.joinpath(*name.split("."))
                if not (module.is_dir() or module.with_suffix(".py").is_file()):
                    missing.append(f"{path.relative_to(ROOT)} imports {name}")
    assert missing == []


def test_libraries_are_named_where_they_may_be():
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        for name in imports_of(module)
        if (library := name.partition(".")[0]) in ALLOWED
        and module.with_suffix("").as_posix() not in ALLOWED[library].split()
    ]
    assert wrong == []


# Of the standard library, and of attributes that `setattr` makes.
NOT_PRIVATE = {"_asdict", "_exit", "_getframe", "_replace"} | {
    *("_trans", "_l_trans", "_r_trans", "_token_unk_id"),
}
ASKING = ("getattr", "hasattr", "setattr", "delattr", "object.__setattr__")
PRIVATE_MODULES = ("keras.src", "tensorflow.python", "jax._src", "torch._")


def own_names(tree):
    """Names that a module defines: functions, classes, variables, its attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] * (ast.unparse(node.value) == "self")


def asked_name(node):
    """The name of an attribute that an expression asks for, also by `getattr`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    asks = isinstance(node, ast.Call) and ast.unparse(node.func) in ASKING
    name = node.args[1] if asks and len(node.args) > 1 else None
    return name.value if isinstance(name, ast.Constant) else ""


def test_private_names_of_libraries_are_quirks():
    """Others use what `quirks` says of each: why, and until which version."""
    trees = {
        module: ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
        for module in MODULES
        if module.name != "quirks.py"
    }
    defined = NOT_PRIVATE.union(*map(own_names, trees.values()))
    wrong = [
        f"{module}:{node.lineno}: {name}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if (name := asked_name(node)).startswith("_")
        and not name.startswith("__")
        and name not in defined
    ]
    wrong += [
        f"{module} imports {name}"
        for module in trees
        for name in imports_of(module)
        if name.startswith(PRIVATE_MODULES)
    ]
    assert wrong == []


MAX_LINES_OF_FILE = 600
MAX_LINES_OF_FUNCTION = 80
# It makes the layers of the model one after the other.
LONG_FUNCTIONS = {"models/backbone.py: __init__"}


def line_count(node):
    """Lines of a function without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= node.body[0].end_lineno - node.body[0].lineno + 1
    return lines


def test_files_and_functions_are_short():
    wrong = []
    for module in MODULES:
        text = (PACKAGE / module).read_text(encoding="utf-8")
        count = len(text.splitlines())
        if count > MAX_LINES_OF_FILE:
            wrong.append(f"{module} has {count} lines")
        wrong += [
            f"{name} has {line_count(node)} lines"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (name := f"{module.as_posix()}: {node.name}") not in LONG_FUNCTIONS
            and line_count(node) > MAX_LINES_OF_FUNCTION
        ]
    assert wrong == []


def test_the_rules_see_what_they_forbid():
    """The imports that exist are found, those inside of functions too."""
    process = imports_of(Path("verification/reference_process.py"))
    assert {"tensorflow", "bert4keras"} <= process
    assert "roformer_keras.cli.main.main" in imports_of(Path("cli/__init__.py"))
    assert "roformer_keras.base.errors.ConfigurationError" in imports_of(
        Path("base/config.py")
    )


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = roformer_keras.no_such_name


def test_modules_are_attributes_without_an_import_of_them():
    code = "import roformer_keras as rk; print(rk.server.options.KEY_VARIABLE)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False
    )
    assert done.stdout == b"ROFORMER_KERAS_API_KEY\n", done.stderr


def test_import_is_light():
    heavy = ("h5py", "jax", "jieba", "keras", "numpy", "tensorflow", "torch")
    code = (
        "import sys, warnings\n"
        "before = [*sys.meta_path], [*warnings.filters]\n"
        "import roformer_keras, roformer_keras.cli\n"
        f"print(sorted(sys.modules.keys() & set({heavy!r})))\n"
        "print(before == ([*sys.meta_path], [*warnings.filters]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert (result.stdout.split(), result.stderr) == (["[]", "True"], "")

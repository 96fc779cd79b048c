"""What a script of bert4keras needs to run on `roformer_keras.bert4keras`.

The script is parsed and never run.
"""

import ast
import importlib
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from roformer_keras.errors import ConfigurationError

_PACKAGE = "roformer_keras.bert4keras"
_IMPORT = re.compile(r"^(\s*(?:from|import)\s+)bert4keras\b")

# Attributes that Keras 2 has and Keras 3 has not, and what to use instead.
_GONE = {
    "get_updates": "optimizers of Keras 3 define update_step",
    "inbound_layers": "Keras 3 has parent_nodes, or use backend.search_layer",
}


class Remark(NamedTuple):
    """What a line of a script needs besides its import: the line, from 1, and why."""

    line: int
    message: str


def port_imports(text: str) -> str:
    """The script with the imports of bert4keras changed, and nothing else."""
    lines = text.splitlines(keepends=True)
    return "".join(_IMPORT.sub(rf"\1{_PACKAGE}", line) for line in lines)


def find_remarks(text: str, label: str = "the script") -> list[Remark]:
    """Names in a script that are not covered, by line.

    Raises:
        ConfigurationError: the script is no Python 3.
    """
    try:
        with warnings.catch_warnings():
            # Of the script, such as an escape that Python does not know.
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f" in line {line}" if line else ""
        raise ConfigurationError(
            f"{label} must be a script of Python 3, and it cannot be parsed{place}: "
            f"{getattr(error, 'msg', error)}"
        ) from None
    return sorted(set(_remarks(tree)))


def _remarks(tree) -> Iterator[Remark]:
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "bert4keras"
        ):
            yield from _imported(node, functions)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("bert4keras.") and not alias.asname:
                    yield Remark(
                        node.lineno,
                        f"import {alias.name} binds the name bert4keras: write "
                        f"from {_PACKAGE} import {alias.name.split('.')[1]}",
                    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, functions)
        elif isinstance(node, ast.FunctionDef) and node.name in _GONE:
            # A method that Keras 2 calls, such as that of an optimizer.
            yield Remark(node.lineno, f"{node.name}: {_GONE[node.name]}")
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _imported(node, functions) -> Iterator[Remark]:
    name = f"{_PACKAGE}{node.module.removeprefix('bert4keras')}"
    try:
        module = importlib.import_module(name)
    except ImportError:
        yield Remark(node.lineno, f"there is no module {name}")
        return
    for alias in node.names:
        if alias.name == "K":
            functions.add(alias.asname or "K")
        if alias.name != "*" and (problem := _problem(module, alias.name)):
            yield Remark(node.lineno, problem)


def _problem(module, name) -> str | None:
    try:
        getattr(module, name)
    except (AttributeError, ConfigurationError) as error:
        return str(error)
    return None


def _attribute(node, functions) -> Iterator[Remark]:
    if isinstance(node.value, ast.Name) and node.value.id in functions:
        backend = importlib.import_module(f"{_PACKAGE}.backend")
        if problem := _problem(backend.K, node.attr):
            yield Remark(node.lineno, problem)
    elif node.attr in _GONE:
        yield Remark(node.lineno, f".{node.attr}: {_GONE[node.attr]}")


def _call(node) -> Iterator[Remark]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    called = node.func.id if isinstance(node.func, ast.Name) else called
    if called != "build_transformer_model":
        return
    models = importlib.import_module(f"{_PACKAGE}.models")
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg != "model" or not isinstance(value, ast.Constant):
            continue
        if str(value.value).lower() not in models.MODELS:
            names = ", ".join(models.MODELS)
            yield Remark(
                node.lineno, f"model={value.value!r} is not covered: {names} are"
            )

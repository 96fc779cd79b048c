"""Changes that a script of bert4keras needs to run on `roformer_keras.bert4keras`.

Scripts and the cells of notebooks are parsed and never run.
"""

import ast
import importlib
import io
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

from roformer_keras.base.errors import BackendError, ConfigurationError, refuse
from roformer_keras.io.json_file import parse_json

_ORIGINAL = "bert4keras"
_PACKAGE = f"roformer_keras.{_ORIGINAL}"
# Before the first import of Keras: it gives scripts the names of Keras 2.
_HABITS = f"from {_PACKAGE}.keras2 import keras2_habits; keras2_habits()"
_MODULES = ("backend", "layers", "models", "optimizers", "snippets", "tokenizers")

# What stands between `from` and the name of a module.
_FROM = re.compile(rb"from(?:[ \t\f]|\\\r?\n)+(?=bert4keras\b)")
# Texts that name the package: a module of it, or a line of code.
_NAMED = re.compile(
    rf"bert4keras\.(?:{'|'.join(_MODULES)})(?:\.\w+)*"
    r"|(?s:.*)^\s*(?:from|import)\s+bert4keras\b(?s:.*)",
    re.M,
)
# Attributes that Keras 2 has and Keras 3 has not, and what to use instead.
_GONE = {
    "get_updates": "optimizers of Keras 3 define update_step",
    "inbound_layers": "Keras 3 has parent_nodes, or use backend.search_layer",
}

# What `ast.parse` raises, also of code that is nested too deeply.
_NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
# Lines of a notebook that are no Python: magics, shell commands, and help.
_MAGIC = re.compile(
    r"\s*(?:[\w, ]+=\s*)?(?:%{1,2}[a-zA-Z]|!(?!=))|\s*\?+[\w.]|\s*[\w.]+\?+\s*$"
)
# Magics of a whole cell that run it as Python.
_PYTHON_CELLS = ("capture", "prun", "python", "python3", "time", "timeit")


class Remark(NamedTuple):
    """Advice on a line that was not changed."""

    cell: int
    line: int
    message: str

    @property
    def place(self) -> str:
        """`"3"`, or `"cell 2, line 3"`."""
        return f"cell {self.cell}, line {self.line}" if self.cell else str(self.line)


class Ported(NamedTuple):
    """A script or a notebook with its imports of bert4keras changed."""

    text: str
    sources: list[tuple[str, str]]
    remarks: list[Remark]


def port_script(text: str, label: str = "the script") -> Ported:
    """A script with the imports of bert4keras changed, and nothing else.

    One that imports Keras itself gets a line before that, see `keras2.keras2_habits`.
    """
    try:
        tree = _parsed(text)
    except _NO_PYTHON as error:
        raise ConfigurationError(
            f"{label} must be a script of Python 3, and it cannot be parsed"
            f"{_reason(error)}"
        ) from None
    ported = _with_imports(text, tree)
    return Ported(ported, [(text, ported)], _remarks({0: tree}))


def port_notebook(text: str, label: str = "the notebook") -> Ported:
    """A notebook with the imports of bert4keras changed in its cells of code.

    Lines of magics and shell commands stay; a remark says which name bert4keras.
    """
    # Outputs of cells may be NaN.
    content = parse_json(text, label, strict=False)
    cells = content.get("cells")
    refuse(
        not isinstance(cells, list) or not all(map(_is_cell, cells)),
        f"{label} must be a notebook of version 4, which has a list of cells with "
        "their source",
        hint="open it in Jupyter and save it again",
    )
    trees, remarks, sources = {}, [], []
    for number, cell in enumerate(cells, start=1):
        if cell.get("cell_type") != "code":
            continue
        source = "".join(cell["source"])
        try:
            tree = _parsed(source)
        except _NO_PYTHON:
            python, magics = _without_magics(source)
            remarks += [Remark(number, line, message) for line, message in magics]
            try:
                tree = _parsed(python)
            except _NO_PYTHON as error:
                message = f"the cell stays, since it cannot be parsed{_reason(error)}"
                remarks.append(Remark(number, 1, message))
                continue
        trees[number] = tree
        ported = _with_imports(source, tree)
        sources.append((source, ported))
        is_list = isinstance(cell["source"], list)
        cell["source"] = ported.splitlines(keepends=True) if is_list else ported
    is_changed = any(old != new for old, new in sources)
    shown = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return Ported(
        shown if is_changed else text, sources, sorted(remarks + _remarks(trees))
    )


def _is_cell(cell):
    source = cell.get("source") if isinstance(cell, dict) else None
    is_list = isinstance(source, list) and all(isinstance(x, str) for x in source)
    return is_list or isinstance(source, str)


def _without_magics(source: str) -> tuple[str, list[tuple[int, str]]]:
    """The Python code of a cell, in the same lines; and lines that stay, and why."""
    lines = _lines(source)
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    magic = re.match(r"\s*%%(\w+)", lines[first]) if lines else None
    is_python = magic is None or magic[1] in _PYTHON_CELLS
    remaining, goes_on = [], False
    for number, line in enumerate(lines):
        begins = not goes_on and is_python and _MAGIC.match(line) is not None
        if not (begins or goes_on or not is_python):
            continue
        goes_on = line.rstrip("\r\n").endswith("\\")
        if _ORIGINAL in line.replace(_PACKAGE, ""):
            message = f"the line {line.strip()!r:.60} is no Python and stays"
            remaining.append((number + 1, message))
        indent = line[: len(line) - len(line.lstrip())].rstrip("\r\n")
        lines[number] = f"{indent}pass\n" if begins else "\n"
    return "".join(lines), remaining


def _parsed(text) -> ast.Module:
    with warnings.catch_warnings():
        # A warning of the script, such as an escape that Python does not know.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _reason(error):
    line = getattr(error, "lineno", None)
    where = f" in line {line}" if line else ""
    return f"{where}: {getattr(error, 'msg', error)}"


# === Imports ===


def _lines(text) -> list[str]:
    """Lines as Python counts them, with their ends."""
    return list(io.StringIO(text, newline=""))


def _is_original(name) -> bool:
    return (name or "").split(".")[0] == _ORIGINAL


def _with_imports(text, tree) -> str:
    """The text with other imports, of a tree that has the same lines."""
    lines = [line.encode() for line in _lines(text)]
    starts = [0, *itertools.accumulate(map(len, lines))]
    data = b"".join(lines)
    edits = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        # Columns are bytes.
        begin = starts[node.lineno - 1] + node.col_offset
        if isinstance(node, ast.ImportFrom):
            statement = _FROM.match(data, begin)
            if node.level == 0 and statement:
                module = statement.end()
                edits.append((module, module + len(_ORIGINAL), _PACKAGE))
        elif any(_is_original(alias.name) for alias in node.names):
            end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
            edits.append((begin, end, "; ".join(dict.fromkeys(_imports(node.names)))))
    line = _first_import_of_keras(tree)
    if edits and line is not None:
        begin = starts[line - 1]
        newline = "\r\n" if lines[line - 1].endswith(b"\r\n") else "\n"
        edits.append((begin, begin, _HABITS + newline))
    for begin, end, new in sorted(edits, reverse=True):
        data = data[:begin] + new.encode() + data[end:]
    return data.decode()


def _first_import_of_keras(tree) -> int | None:
    """The line of the first statement that imports Keras itself."""
    uses_tf_keras = any(
        isinstance(node, ast.Attribute) and node.attr == "keras"
        for node in ast.walk(tree)
    )
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                is_keras = f"{name}.".startswith(("keras.", "tensorflow.keras."))
                if is_keras or (name == "tensorflow" and uses_tf_keras):
                    decorators = getattr(statement, "decorator_list", [])
                    return min(one.lineno for one in [statement, *decorators])
    return None


def _imports(names: Sequence[ast.alias]) -> Iterator[str]:
    """Statements that bind the same names as an `import` of all of them."""
    for is_original, group in itertools.groupby(
        names, lambda alias: _is_original(alias.name)
    ):
        if not is_original:
            yield f"import {', '.join(map(ast.unparse, group))}"
            continue
        for alias in group:
            module = alias.name.removeprefix(_ORIGINAL)
            if module:
                bound = f" as {alias.asname}" if alias.asname else ""
                yield f"import {_PACKAGE}{module}{bound}"
            if not module and alias.asname:
                yield f"from roformer_keras import {_ORIGINAL} as {alias.asname}"
            elif not alias.asname:
                # A script goes on to say `bert4keras.models`.
                yield f"from roformer_keras import {_ORIGINAL}"


# === Names that are not covered ===


def _remarks(trees: dict[int, ast.Module]) -> list[Remark]:
    """Remarks on the trees of all cells, which share their names."""
    names: dict[str, object] = {}
    remarks = set()
    for check in (_imported, _used):
        for cell, tree in trees.items():
            prose = {
                node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)
            }
            for node in ast.walk(tree):
                if not isinstance(node, ast.expr | ast.stmt):
                    continue
                if node in prose and isinstance(node, ast.Constant):
                    continue
                for message in check(node, names):
                    remarks.add(Remark(cell, node.lineno, message))
    return sorted(remarks)


def _imported(node, names) -> Iterator[str]:
    """Messages of an import of bert4keras, whose names are bound in `names`."""
    if isinstance(node, ast.Import):
        aliases = [alias for alias in node.names if _is_original(alias.name)]
        texts = [ast.unparse(ast.Import([alias])) for alias in aliases]
    elif isinstance(node, ast.ImportFrom) and _is_original(node.module):
        froms = [ast.ImportFrom(node.module, [x], node.level) for x in node.names]
        texts = [] if node.level else list(map(ast.unparse, froms))
    else:
        return
    for text in texts:
        try:
            # An import of this package alone.
            exec(_with_imports(text, ast.parse(text)), names)
        except BackendError:
            raise
        except (ImportError, ConfigurationError) as error:
            yield str(error)


def _used(node, names) -> Iterator[str]:
    """Messages of any other node."""
    if isinstance(node, ast.Attribute):
        value = _module(node.value, names)
        if value is not None:
            yield from _attribute(value, node.attr)[1:]
        elif node.attr in _GONE:
            yield f".{node.attr}: {_GONE[node.attr]}"
    elif isinstance(node, ast.FunctionDef) and node.name in _GONE:
        # A method that Keras 2 calls, such as that of an optimizer.
        yield f"{node.name}: {_GONE[node.name]}"
    elif isinstance(node, ast.Call):
        yield from _call(node)
    elif isinstance(node, ast.Constant) and _NAMED.fullmatch(str(node.value)):
        yield f"the text {node.value!r:.60} stays: it must name {_PACKAGE}"


def _module(node, names) -> ModuleType | None:
    """The module of this package that an expression names."""
    value = names.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Attribute) and (owner := _module(node.value, names)):
        value = _attribute(owner, node.attr)[0]
    is_ours = isinstance(value, ModuleType) and value.__name__.startswith(_PACKAGE)
    return value if is_ours else None


def _attribute(module, name) -> tuple:
    """An attribute of a module; or None, and why there is none."""
    try:
        return (getattr(module, name),)
    except (AttributeError, ConfigurationError) as error:
        return None, str(error)


def _call(node) -> Iterator[str]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    called = node.func.id if isinstance(node.func, ast.Name) else called
    if called in ("__import__", "import_module") and any(
        getattr(argument, "value", None) == _ORIGINAL for argument in node.args
    ):
        yield f"{called} stays: it must name {_PACKAGE}"
    if called != "build_transformer_model":
        return
    models = importlib.import_module(f"{_PACKAGE}.models")
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg != "model" or not isinstance(value, ast.Constant):
            continue
        if str(value.value).lower() not in models.MODELS:
            names = ", ".join(models.MODELS)
            yield f"model={value.value!r} is not covered: {names} are"

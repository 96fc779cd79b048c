"""Every name that a user reaches says what it takes and what it gives."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "roformer_keras"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def test_public_signatures_are_annotated():
    found = public_functions()
    assert {
        "generation/generate/TextGeneration.generate",
        "layers/masks/causal_mask",
        "models/preset/PresetModel.from_preset",
        "tasks/text_classifier/RoFormerTextClassifier.__init__",
        "text/tokenizer/RoFormerTokenizer.__call__",
        "training/finetune/finetune",
    } <= {name for name, _ in found}
    lines = {line for name, function in found for line in lacking(name, function)}
    assert sorted(lines) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(a: int, *b: int, c: int = 1, **d: int) -> None: ...", []),
        ("def f(a, *b: int, c: int) -> None: ...", ["f: a"]),
        ("def f(a: int, *b, c, **d): ...", ["f: c", "f: b", "f: d", "f: return"]),
    ],
)
def test_lacking(code, expected):
    assert lacking("f", ast.parse(code).body[0]) == expected


def lacking(name, function):
    """The arguments of a function, and its result, that have no annotation."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one]
    is_method = "." in name and not any(
        isinstance(d, ast.Name) and d.id == "staticmethod"
        for d in function.decorator_list
    )
    if is_method:
        every.remove((arguments.posonlyargs + arguments.args)[0])
    found = [argument.arg for argument in every if argument.annotation is None]
    # As in mypy, a constructor with annotated arguments returns None.
    if function.returns is None and not (name.endswith(".__init__") and every):
        found.append("return")
    return [f"{name}: {argument}" for argument in found]


def public_functions():
    """What a user reaches, as pairs of `module/name` or `module/Class.name` and AST."""
    return [pair for name in names(PACKAGE) for pair in visit(PACKAGE, name)]


def visit(module, name):
    home, node = resolve(module, name)
    if isinstance(node, FUNCTIONS):
        yield f"{path_in_package(home)}/{name}", node
    elif isinstance(node, ast.ClassDef):
        yield from visit_class(home, node)
    elif home is not None and node is None:
        # A namespace, such as `layers`.
        for inner in names(home):
            yield from visit(home, inner)


def visit_class(module, node):
    for member in node.body:
        if isinstance(member, FUNCTIONS) and is_public(member.name):
            yield f"{path_in_package(module)}/{node.name}.{member.name}", member
    for base in node.bases:
        if isinstance(base, ast.Name):
            home, parent = resolve(module, base.id)
            if isinstance(parent, ast.ClassDef):
                yield from visit_class(home, parent)


def path_in_package(module):
    return module.removeprefix(f"{PACKAGE}.").replace(".", "/")


def is_public(name):
    return not name.startswith("_") or name in ("__init__", "__call__", "__new__")


def names(module):
    """The names of a stub, or else those of `__all__`."""
    tree = parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return list(imports(module))


def resolve(module, name):
    """The module that defines a name, and its definition; None for a module."""
    for node in parsed(module).body:
        if isinstance(node, FUNCTIONS | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == name:
                return module, node
    if name not in imports(module):
        return None, None
    home, original = imports(module)[name]
    if path_of(f"{home}.{original}"):
        return f"{home}.{original}", None
    return resolve(home, original) if path_of(home) else (None, None)


@functools.cache
def imports(module):
    """Local name to the module and the name that it is imported from."""
    found = {}
    for node in parsed(module).body:
        if isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                home = f"{module}.{home}".rstrip(".")
            found |= {a.asname or a.name: (home, a.name) for a in node.names}
    return found


@functools.cache
def parsed(module):
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def path_of(module):
    base = ROOT.joinpath(*module.split("."))
    places = base / "__init__.pyi", base / "__init__.py", base.with_suffix(".py")
    return next((place for place in places if place.is_file()), None)

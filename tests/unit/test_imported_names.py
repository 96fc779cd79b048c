"""Names that are imported inside functions exist.

Benchmarks and weekly tests run seldom, and a name that has moved would stop them.
"""

import ast
import functools

import pytest
from common import ROOT

PACKAGES = ("roformer_keras", "tools")
# Their names are made while they are imported.
MADE = ("__getattr__", "globals")


@functools.cache
def parsed(module):
    """The tree of a module by its dotted name, or None if there is no such file."""
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


@functools.cache
def names_of(module):
    """The names at the top level of a module, or None if it makes them."""
    names, nodes = set(), [parsed(module)]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
            else:
                if isinstance(node, ast.Name):
                    names.add(node.id)
                nodes.append(node)
    return None if names & {*MADE} else names


def missing_names(tree):
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.partition(".")[0] not in PACKAGES:
            continue
        known = names_of(node.module) if parsed(node.module) else set()
        for name in [alias.name for alias in node.names]:
            is_known = known is None or name in known
            if not is_known and not parsed(f"{node.module}.{name}"):
                yield f"{node.module}.{name}"


@pytest.mark.slow
def test_imported_names_exist():
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in (*PACKAGES, "tests")
        for path in (ROOT / folder).rglob("*.py")
        for name in missing_names(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert missing == set()


def test_a_name_that_has_moved_is_found():
    code = "def f():\n    from tools.commands import command, no_such_name"
    assert [*missing_names(ast.parse(code))] == ["tools.commands.no_such_name"]

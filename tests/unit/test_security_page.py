"""SECURITY.md: each promise names tests that exist, and libraries their bounds."""

import ast
import configparser
import functools
import re

from common import ROOT

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^#+ ", TEXT, flags=re.MULTILINE)
# Rows of all tables, but for their heads.
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|")
    and not line.startswith(("|---", "| promise", "| library", "| input"))
]
PROMISES = [row for row in ROWS if len(row) == 2]
LIBRARIES = [row for row in ROWS if len(row) == 3]
KINDS = ("No code", "No other files", "Bounded memory", "No commands", "No silence")
KINDS += ("No crash", "Whole outputs", "One kind of error", "Servers", "Clients of")


@functools.cache
def names_in(name):
    tree = ast.parse((ROOT / "tests" / name).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def absent(promises):
    """Promises without a test, and tests that do not exist."""
    wrong = []
    for promise, held_by in promises:
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", held_by)
        if not tests or re.sub(r"`[^`]+`|, ", "", held_by):
            wrong.append(f"{promise}: {held_by}")
        wrong += [
            f"{name}::{test}"
            for name, test in tests
            if not (ROOT / "tests" / name).is_file() or test not in names_in(name)
        ]
    return wrong


def test_each_promise_names_tests_that_exist():
    assert absent(PROMISES) == []
    for kind in KINDS:
        (section,) = (text for text in SECTIONS if text.startswith(kind))
        assert "| held by |" in section, kind


def test_what_is_absent_is_found():
    page = "unit/test_security_page.py"
    good = f"`{page}::test_what_is_absent_is_found`"
    rows = [("a", ""), ("b", "a test"), ("c", f"`{page}::test_x`"), ("d", good)]
    wrong = ["a: ", "b: a test", f"{page}::test_x", f"e: {good}, x"]
    assert absent([*rows, ("e", f"{good}, x")]) == wrong


def test_bounds_of_libraries_are_those_of_the_installation():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    values = [parser["options"]["install_requires"]]
    values += parser["options.extras_require"].values()
    required = {line for value in values for line in value.splitlines()}
    named = re.findall(r"`([\w-]+[<>]=?\d[^`]*)`", str(LIBRARIES))
    assert len(named) >= 8 and set(named) <= required
    for library in ("pickle", "pyarrow", "openpyxl", "huggingface_hub", "onnxruntime"):
        assert library in str(LIBRARIES)

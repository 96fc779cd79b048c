"""What can be imported, which here means importing it."""

import importlib
from pathlib import Path

import pytest

import roformer_keras

PACKAGE = Path(roformer_keras.__file__).parent
# Run as processes; nothing is imported from them.
SCRIPTS = {"__main__.py", "verification/reference_process.py"}
MODULES = {p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")} - SCRIPTS


@pytest.mark.parametrize("name", roformer_keras.__all__)
def test_public_names(name):
    assert getattr(roformer_keras, name) is not None
    assert name in dir(roformer_keras)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_all_is_explicit_and_true(module):
    if not (PACKAGE / module).read_text(encoding="utf-8").strip():
        return  # an empty __init__.py
    name = ".".join(("roformer_keras", *Path(module).with_suffix("").parts))
    imported = importlib.import_module(name.removesuffix(".__init__"))
    assert len(set(imported.__all__)) == len(imported.__all__)
    for public in imported.__all__:
        assert getattr(imported, public) is not None

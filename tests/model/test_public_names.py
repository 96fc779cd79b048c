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
def test_every_module_has_the_names_that_it_lists(module):
    name = ".".join(("roformer_keras", *Path(module).with_suffix("").parts))
    imported = importlib.import_module(name.removesuffix(".__init__"))
    listed = getattr(imported, "__all__", [])
    assert len(set(listed)) == len(listed)
    for public in listed:
        assert getattr(imported, public) is not None

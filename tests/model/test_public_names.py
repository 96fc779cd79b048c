"""What can be imported, which here means importing it, and its annotations."""

import importlib
import inspect
from pathlib import Path

import pytest

import roformer_keras

PACKAGE = Path(roformer_keras.__file__).parent
# Run as processes; nothing is imported from them.
SCRIPTS = {"__main__.py", "verification/reference_process.py"}
MODULES = {p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")} - SCRIPTS


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_module_has_the_names_that_it_lists(module):
    name = ".".join(("roformer_keras", *Path(module).with_suffix("").parts))
    imported = importlib.import_module(name.removesuffix(".__init__"))
    listed = getattr(imported, "__all__", [])
    assert len(set(listed)) == len(listed)
    for public in listed:
        assert getattr(imported, public) is not None


def functions(name, value):
    """The functions that a user reaches by a name, with their names."""
    if inspect.ismodule(value):
        for inner in getattr(value, "__all__", ()):
            yield from functions(f"{name}.{inner}", getattr(value, inner))
    elif inspect.isclass(value):
        for base in value.__mro__:
            own = vars(base) if base.__module__.startswith("roformer_keras") else {}
            for member, found in own.items():
                found = getattr(found, "fget", getattr(found, "__func__", found))
                is_public = member in ("__init__", "__call__") or member[0] != "_"
                if is_public and inspect.isfunction(found):
                    yield f"{name}.{member}", found
    elif inspect.isfunction(value):
        yield name, value


@pytest.mark.parametrize("name", roformer_keras.__all__)
def test_public_names_and_their_signatures(name):
    assert name in dir(roformer_keras)
    for path, function in functions(name, getattr(roformer_keras, name)):
        signature = inspect.signature(function)
        arguments = signature.parameters.values()
        arguments = [one for one in arguments if one.name not in ("self", "cls")]
        lacking = [one.name for one in arguments if one.annotation is one.empty]
        # As in mypy, a constructor with annotated arguments returns None.
        is_annotated = signature.return_annotation is not signature.empty
        assert is_annotated or (path.endswith(".__init__") and arguments), path
        assert lacking == [], path


def test_functions_are_found_wherever_they_are():
    names = {path for name in roformer_keras.__all__ for path in found_by(name)}
    assert len(names) > 600
    assert {
        "layers.causal_mask",
        "RoFormerCausalLM.generate",
        "RoFormerSim.from_preset",
        "RoFormerTextClassifier.__init__",
        "RoFormerTokenizer.__call__",
        "finetune",
    } <= names


def found_by(name):
    return [path for path, _ in functions(name, getattr(roformer_keras, name))]

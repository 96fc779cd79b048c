"""What setup.cfg asks for: bounded above, and met by what is installed."""

import configparser
from importlib.metadata import PackageNotFoundError, version

import pytest
from common import ROOT
from packaging.requirements import Requirement

BOUNDS = {"<", "<=", "==", "~="}


def requirements():
    """Every requirement of the package and of its extras, once."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    values = [parser["options"]["install_requires"]]
    values += parser["options.extras_require"].values()
    return sorted({line for value in values for line in value.splitlines() if line})


def is_bounded(requirement):
    return any(one.operator in BOUNDS for one in requirement.specifier)


def test_all_extras_are_seen():
    names = {Requirement(line).name for line in requirements()}
    assert {"keras", "tensorflow", "tf-keras", "onnx", "ruff", "hypothesis"} <= names


@pytest.mark.parametrize("line", requirements())
def test_a_requirement_has_an_upper_bound_that_is_met(line):
    requirement = Requirement(line)
    assert is_bounded(requirement), f"{line} would take a version that may break"
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return  # Of an extra that is not installed here.
    assert requirement.specifier.contains(found, prereleases=True), found


@pytest.mark.parametrize("line", ["onnx", "keras>=3", "numpy!=2"])
def test_a_requirement_without_a_bound_is_seen(line):
    assert not is_bounded(Requirement(line))

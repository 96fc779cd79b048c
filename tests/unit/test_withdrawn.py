"""Names that version 0.2 withdrew: CHANGELOG.md and errors name the way out."""

import re

import pytest
from common import ROOT

import roformer_keras
from roformer_keras.base.checks import check_names
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.other_names import WITHDRAWN

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("### Withdrawn in 0.2\n")[2].partition("\n### ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| withdrawn |")
]
FLAGS = [name for name in WITHDRAWN if name.startswith("--")]
ARGUMENTS = [name for name in WITHDRAWN if name.endswith("=")]
NAMES = sorted(name for name in WITHDRAWN if name.isidentifier())


def test_changelog_has_the_names_and_the_ways_out():
    listed = {
        name: way_out
        for _, names, way_out in ROWS
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert {name: way.replace("`", "") for name, way in listed.items()} == {
        name: way.replace("`", "") for name, way in WITHDRAWN.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_withdrawn_name_is_explained(name):
    message = re.escape(f"version 0.2 withdrew {name}: {WITHDRAWN[name]}")
    with pytest.raises(AttributeError, match=message):
        getattr(roformer_keras, name)
    with pytest.raises(ImportError, match=message):
        exec(f"from roformer_keras import {name}")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_withdrawn_argument_is_explained(name):
    with pytest.raises(ConfigurationError) as caught:
        check_names("from_preset", "argument", [name.removesuffix("=")], ["dropout"])
    assert WITHDRAWN[name] in str(caught.value)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_withdrawn_flag_is_explained(flag, refused):
    assert WITHDRAWN[flag] in refused("index", "x", "-o", "y", flag)

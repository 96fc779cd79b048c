"""Keras-Hub's calls on our presets, in a process; on other backends once a week."""

import os
import sys
from pathlib import Path

import pytest
from common import output_of

weekly = pytest.mark.weekly
SCRIPT = Path(__file__).parents[1] / "keras_hub_checks.py"


@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(name, marks=weekly) for name in ("jax", "torch"))],
)
def test_keras_hub_loads_and_trains_our_presets(backend, tmp_path):
    pytest.importorskip("keras_hub")
    folders = os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])
    output = output_of(SCRIPT, tmp_path, KERAS_BACKEND=backend, PYTHONPATH=folders)
    assert output.splitlines()[-1] == "passed"

"""Keras-Hub's calls on our presets, in a process; on other backends once a week."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

weekly = pytest.mark.weekly
SCRIPT = Path(__file__).parents[1] / "keras_hub_checks.py"


@pytest.mark.parametrize(
    "backend",
    ["tensorflow", *(pytest.param(name, marks=weekly) for name in ("jax", "torch"))],
)
def test_keras_hub_loads_and_trains_our_presets(backend, tmp_path):
    pytest.importorskip("keras_hub")
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "passed"

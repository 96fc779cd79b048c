"""Keras-Hub's calls on our presets, one process for each backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "keras_hub_checks.py"


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
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

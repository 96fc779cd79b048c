"""The package on Keras's other backends, each in a process without TensorFlow."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("backend_checks.py")
NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=NEEDS_TORCH)])
def test_package_works_on(backend):
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(SCRIPT.parents[1]),
        # Compiling takes most of the time, and nothing here runs long.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    result = subprocess.run(
        [sys.executable, SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert result.stdout.splitlines()[-1] == f"passed 10 on {backend}"

"""Training on several devices and on several processes, on JAX."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment():
    return {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        # Compiling takes most of the time, and nothing here runs long.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }


def test_devices_share_the_weights_of_a_wide_model():
    done = subprocess.run(
        [sys.executable, TESTS / "model_parallel.py"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "after" in done.stdout

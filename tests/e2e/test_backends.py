"""The package on Keras's other backends, each in a process without TensorFlow."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "backend_checks.py"
NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


BACKENDS = ["jax", pytest.param("torch", marks=NEEDS_TORCH)]
# Modules whose tests compute with nothing of one backend.
NEUTRAL = ["model/test_crf.py", "model/test_pointer.py"]


def run(backend, *arguments):
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(TESTS.parent),
        # Compiling takes most of the time, and nothing here runs long.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        # In the folder of JAX_COMPILATION_CACHE_DIR, if there is one: everything.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    result = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout.splitlines()[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_package_works_on(backend):
    assert run(backend, SCRIPT) == f"passed 14 on {backend}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_structured_layers_work_on(backend):
    modules = [str(TESTS / name) for name in NEUTRAL]
    options = ["-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # Compiled one by one, all of their tests would take minutes.
    options += ["-k", "equals_bert4keras or equal_bert4keras"]
    assert " passed" in run(backend, "-m", "pytest", *options, *modules)

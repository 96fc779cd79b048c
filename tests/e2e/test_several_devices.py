"""Training on several devices, on JAX; each test is a process."""

import os
import subprocess
import sys
from pathlib import Path

import docs_blocks

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "several-devices.md"


def run(folder, *arguments):
    """What a script prints on four devices, which JAX makes of one CPU."""
    flags = "--xla_backend_optimization_level=0"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        # Compiling takes most of the time, and nothing here runs long.
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_devices_share_the_weights_of_a_wide_model(tmp_path):
    assert "after" in run(tmp_path, TESTS / "model_parallel.py")


def test_the_blocks_of_the_page_run(tmp_path):
    shown = run(tmp_path, docs_blocks.__file__, PAGE)
    count = len(list(docs_blocks.blocks_of(PAGE.read_text(encoding="utf-8"))))
    assert shown.count("=== several-devices.md:") == count
    assert shown.endswith("=== done\n")

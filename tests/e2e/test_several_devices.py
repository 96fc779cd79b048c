"""Training on several devices, on JAX, in one process with four devices."""

import os
from pathlib import Path

import docs_blocks
import pytest
from common import output_of

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "several-devices.md"
CODE = """
import sys
from pathlib import Path
import docs_blocks, uneven_batches
uneven_batches.main()
docs_blocks.run_page(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The output of the scripts and the page on four devices, made by JAX of a CPU."""
    flags = "--xla_backend_optimization_level=0"
    variables = {
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        # Compiling takes most of the time, and nothing here runs long.
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=4",
    }
    return output_of("-c", CODE, PAGE, cwd=tmp_path_factory.mktemp("page"), **variables)


def test_devices_share_an_odd_last_batch(shown):
    assert 'uneven batches: ["accuracy", "answers"' in shown


def test_the_blocks_of_the_page_run(shown):
    count = len(list(docs_blocks.blocks_of(PAGE.read_text(encoding="utf-8"))))
    assert shown.count("=== several-devices.md:") == count
    assert shown.endswith("=== done\n")

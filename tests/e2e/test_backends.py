"""The package on each of Keras's backends, each in its own process.

All other tests run on TensorFlow and hold the same of it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from backend_features import COLUMNS, FEATURES

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "backend_checks.py"
CHECKS = re.findall(r"^def check_(\w+)", SCRIPT.read_text(encoding="utf-8"), re.M)
PAGE = TESTS.parent / "docs" / "features.md"


def run(backend, *arguments):
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(TESTS.parent),
        # Operations are small.
        "TF_NUM_INTRAOP_THREADS": "1",
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


def column_of_page(name):
    """What the table of backends in the docs says of one of them, by feature."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("\n| | TensorFlow | ")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in f"| | TensorFlow | {table}".split("\n\n")[0].splitlines()
    ]
    at = rows[0].index(name)
    return {row[0]: row[at] for row in rows[2:]}


@pytest.mark.parametrize("backend", [name for name in COLUMNS if name != "tensorflow"])
def test_package_does_what_the_docs_say_on(backend):
    found = json.loads(run(backend, SCRIPT))
    assert list(found) == CHECKS
    assert column_of_page(COLUMNS[backend]) == {
        feature: "yes" if found[check] else "no" for check, feature in FEATURES.items()
    }


def test_the_docs_say_that_all_works_on_tensorflow():
    assert column_of_page("TensorFlow") == dict.fromkeys(FEATURES.values(), "yes")

"""What a file may ask for: processor time and memory of every reader are bounded."""

import os

import pytest
from common import ROOT
from work_budgets import ROWS, SECONDS

from tools.workers import Worker

# Their files take seconds to write.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reader():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with Worker("work_budgets:Reader", {}, environment) as worker:
        yield worker


@pytest.mark.parametrize("name", ROWS)
def test_a_file_is_read_or_refused_in_little_time_and_memory(name, reader, tmp_path):
    make, _ = ROWS[name]
    make(tmp_path)
    answer = reader.call("read", name, str(tmp_path))
    assert answer["seconds"] < SECONDS, answer
    assert "MemoryError" not in answer["said"], answer
    assert not answer["said"].startswith(("raw ", "a message of")), answer

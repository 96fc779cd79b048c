"""The measurement of attention by length: what it concludes, and that it runs."""

import json
import subprocess
import sys

import pytest
from common import tool_module

TOOL = "tools.benchmarks.measure_attention"


@pytest.fixture(scope="module")
def tool():
    with tool_module("measure_attention") as module:
        yield module


def rows(*seconds):
    return [None if one is None else {"seconds": one, "mb": 1.0} for one in seconds]


def test_slopes(tool):
    lengths = [512, 1024, 2048, 4096]
    assert tool.slope([3 * x for x in lengths], lengths) == pytest.approx(1)
    assert tool.slope([x**2 for x in lengths], lengths) == pytest.approx(2)
    # A line through all of them, not from end to end.
    assert tool.slope([1, 1, 1, 8], lengths) == pytest.approx(0.9)


def test_the_crossing_is_where_lines_of_logarithms_meet(tool):
    lengths = [256, 1024, 4096]
    softmax = rows(1.0, 16.0, 256.0)
    # Equal at twice the first length, where one has grown fourfold.
    assert tool.crossing(softmax, rows(2.0, 8.0, 32.0), lengths) == 512
    assert tool.crossing(softmax, rows(0.5, 2.0, 8.0), lengths) == 256
    assert tool.crossing(softmax, rows(2.0, 32.0, 512.0), lengths) is None
    # What was too large for softmax attention says nothing.
    assert tool.crossing(rows(1.0, 16.0, None), rows(2.0, 8.0, 32.0), lengths) == 512
    # The last time that it becomes faster counts.
    assert tool.crossing(softmax, rows(0.9, 17.0, 1.0), lengths) > 1024


def test_more_random_features_err_less(tool):
    found = tool.measure_convergence([32, 512], draws=5, length=32, dim=16)
    few = {name: errors[0] for name, errors in found["errors"].items()}
    many = {name: errors[1] for name, errors in found["errors"].items()}
    assert many["deviation 0.25"] < 0.4 * few["deviation 0.25"]
    assert all(many[name] < few[name] for name in few)
    # Long vectors take more of them.
    assert many["deviation 0.25"] < many["deviation 0.5"] < many["deviation 1"]


@pytest.mark.e2e
def test_it_measures_and_draws(tmp_path):
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    command = [
        sys.executable,
        "-m",
        TOOL,
        "--lengths",
        "64",
        "128",
        "--features",
        "4",
        "8",
    ]
    # Softmax attention has room for the first length alone.
    command += ["--repeats", "1", "--memory", "0.001"]
    command += ["--json", figures, "--picture", picture]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(figures.read_text())
    first, second = found["layers"].pop("softmax")
    assert first["seconds"] > 0 and second is None
    for kind, measured in found["layers"].items():
        assert all(row["seconds"] > 0 for row in measured)
        assert f"{kind}: slope {found['slopes'][kind]['seconds']:.2f}" in run.stdout
    assert {row["length"] for row in found["encoders"].values()} == {128}
    assert picture.read_bytes().startswith(b"\x89PNG")

"""The benchmark of generation runs, on a tiny model: slow, as it starts processes."""

import json
import subprocess
import sys

import pytest
from common import reference_folder

pytestmark = pytest.mark.e2e

TOOL = "tools.benchmarks.benchmark_generation"
BOTH = {"roformer_keras", "bert4keras"}


def measured(tmp_path, *arguments):
    """What is printed, and the figures."""
    if reference_folder() is None:
        pytest.skip("bert4keras is not installed")
    target = tmp_path / "figures.json"
    command = [sys.executable, "-m", TOOL, "--quick", *arguments, "--json", target]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads(target.read_text())


def test_both_sides_generate_and_the_limit_is_measured(tmp_path):
    printed, figures = measured(tmp_path, "--parts", "generate")
    one, many, prompts = figures["generate"]
    for row in (one, many):
        assert all(len(row[side]) == 1 for side in BOTH)
        found = row["bert4keras"][0] / row["roformer_keras"][0]
        assert row["ratio"]["median"] == pytest.approx(found)
        assert row["work"] in printed
    assert many["tokens"] == 4 * one["tokens"] == 4 * 20
    assert prompts["bert4keras"] == [] and prompts["ratio"] is None
    for row in (one, many, prompts):
        (limit,) = row["limit"]
        share = min(limit.values()) / row["roformer_keras"][0]
        # Nothing is faster than its own products, and a small model far from it.
        assert row["reached"] == pytest.approx(share) and 0 < share < 1


def test_paraphrases_first_tokens_and_memory_are_measured(tmp_path):
    printed, figures = measured(tmp_path, "--parts", "paraphrase", "first", "memory")
    plain, ending = figures["paraphrase"]
    for row in (plain, ending):
        assert row["tokens_a_text"].keys() == BOTH
        assert row["ratio"]["median"] > 0
    # The bias of [SEP] ends texts on both sides, and nothing else does so often.
    for side in BOTH:
        assert ending["tokens_a_text"][side] < plain["tokens_a_text"][side] <= 24
    first = figures["first"]
    assert 0 < first["first_piece"][0] <= first["second_piece"][0]
    one, many, *sim = figures["memory"]
    # 2 layers, keys and values, 64 wide, float32; the prompt of 16 ids counted once.
    assert one["cache"] == pytest.approx((16 + 20) * 2 * 2 * 64 * 4 / 1e6)
    assert many["cache"] == pytest.approx((16 + 4 * 20) * 2 * 2 * 64 * 4 / 1e6)
    for row in (one, many, *sim):
        # Of a model this small nothing shows above the tiny one but the process.
        assert 0 < row["weights"] < row["process"]
        assert row["generating"] < row["process"]
    assert "with compilation" in printed

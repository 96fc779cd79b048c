"""tools/benchmarks/benchmark_finetuning.py: turns, ratios, bars, and what it
refuses."""

import argparse
import json
import subprocess
import sys

import numpy as np
import pytest
from common import reference_folder, tool_module

TOOL = "tools.benchmarks.benchmark_finetuning"
FLOAT32, BFLOAT16 = "roformer_keras float32", "roformer_keras mixed_bfloat16"
THEIRS, PADDED = "bert4keras float32", "bert4keras float32, all padded"
LIMIT = "matrix products float32"


@pytest.fixture(scope="module")
def tool():
    with tool_module("benchmark_finetuning") as module:
        yield module


@pytest.fixture
def reviews(tmp_path):
    """A file of texts of 2 to 21 characters, which have tokens."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(40):
        count = 2 + number % 20
        text = "".join(chr(0x4E00 + code) for code in random.integers(106, 200, count))
        lines.append(f"{text}\t{('bad', 'good')[number % 2]}\n")
    path = tmp_path / "reviews.tsv"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def asked(tool, tmp_path, monkeypatch):
    """What workers are asked, which do nothing and say how long it took.

    bert4keras gets slower from turn to turn, the others do not; the first runs take
    far longer.
    """
    asked, turns = [], {}
    whole = {"limit": 1.0, "float32": 2.0, "mixed_bfloat16": 1.25}

    class Made:
        def __init__(self, script, side, options):
            self.side = side

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def ask(self, job, what=None):
            if job == "build":
                padded = 30 if self.side == "bert4keras" else 20
                return {"weights": 7, "ids": "0a", "tokens": 10, "padded": padded}
            asked.append((self.side, job, what))
            if what == "first":
                return {"seconds": 1000.0}
            turn = turns[self.side, job] = turns.get((self.side, job), 0) + 1
            # 3, 4, 5 for a step, 5, 6, 7 for reviews.
            of_job = {"step": 2.0, "reviews": 4.0, "padded": 6.0}[job]
            return {"seconds": whole.get(self.side, of_job + turn)}

    (tmp_path / "reference" / "bert4keras").mkdir(parents=True)
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "reference"))
    monkeypatch.setattr(tool, "Worker", Made)
    monkeypatch.setattr(tool, "write_model", lambda options: None)
    return asked


@pytest.mark.e2e
@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
def test_all_sides_train_the_same_model_on_the_same_ids(reviews, tmp_path):
    target = tmp_path / "figures.json"
    sizes = {
        "layers": 1,
        "hidden": 64,
        "heads": 2,
        "vocabulary": 200,
        "batch": 4,
        "length": 12,
        "steps": 1,
        "rows": 24,
        "max-length": 16,
        "rounds": 1,
    }
    command = [sys.executable, "-m", TOOL, "--reviews", reviews, "--json", target]
    for name, size in sizes.items():
        command += [f"--{name}", str(size)]
    run = subprocess.run(command, capture_output=True, text=True)
    # Different weights or ids end it.
    assert run.returncode == 0, run.stderr
    figures = json.loads(target.read_text())
    assert figures["options"] == {k.replace("-", "_"): v for k, v in sizes.items()}
    for part, names in (
        ("step", [LIMIT, FLOAT32, BFLOAT16, THEIRS]),
        ("reviews", [FLOAT32, BFLOAT16, THEIRS, PADDED]),
    ):
        assert list(figures[part]) == names
        theirs = figures[part][THEIRS]["seconds"]
        for name in names:
            found = figures[part][name]
            assert len(found["seconds"]) == 1 and found["seconds"][0] > 0
            assert found["ratios"] == [theirs[0] / found["seconds"][0]]
            assert name in run.stdout
        amount = {"step": 4 * 12, "reviews": 24}[part]
        assert found["rate"] == pytest.approx(amount / found["seconds"][0])
    texts = figures["texts"]
    assert texts["float32"] == texts["mixed_bfloat16"]
    tokens = texts["float32"]["tokens"]
    assert texts["bert4keras"]["tokens"] == tokens
    # Batches by length are padded less than those in random order.
    assert tokens <= texts["float32"]["padded"] < texts["bert4keras"]["padded"] <= 16
    assert run.stdout.count(": met") + run.stdout.count(": missed") == 3


# === Turns, ratios and bars ===


def test_sides_take_turns_and_first_runs_do_not_count(
    tool, reviews, tmp_path, asked, capsys
):
    target = tmp_path / "figures.json"
    arguments = f"--reviews {reviews} --rows 40 --rounds 3 --json {target}".split()
    assert tool.main(arguments) is None
    step = [
        (side, "step") for side in ("limit", "float32", "mixed_bfloat16", "bert4keras")
    ]
    epoch = [
        ("float32", "reviews"),
        ("mixed_bfloat16", "reviews"),
        ("bert4keras", "reviews"),
        ("bert4keras", "padded"),
    ]
    expected = []
    # In one process each, or in a new one each turn.
    for turns, runs in (([True, False, False], step), ([True] * 3, epoch)):
        for is_new in turns:
            for run in runs:
                expected += [(*run, "first")] * is_new + [(*run, "whole")]
    assert asked == expected

    figures = json.loads(target.read_text())
    assert figures["step"][THEIRS]["seconds"] == [3, 4, 5]
    # 4 updates of 16x128 in 4 s.
    assert figures["step"][THEIRS]["rate"] == 4 * 16 * 128 / 4
    assert figures["step"][FLOAT32]["ratios"] == [1.5, 2.0, 2.5]
    assert figures["reviews"][FLOAT32]["ratios"] == [2.5, 3.0, 3.5]
    assert figures["reviews"][FLOAT32]["rate"] == 40 / 2
    assert figures["reviews"][PADDED]["seconds"] == [7, 8, 9]
    printed = capsys.readouterr().out
    assert "2.00x (1.50 to 2.50)" in printed and "reaches 50% of" in printed
    assert "tokens; with padding 20 in our batches, 30 in bert4keras's" in printed
    assert f"reviews, {FLOAT32}: 3.00x, at least 2.5x: met" in printed


def test_a_bar_can_be_missed(tool, capsys):
    figures = {
        "step": {
            FLOAT32: {"ratios": [1.2, 1.29, 9.0]},
            BFLOAT16: {"ratios": [2.0]},
        }
    }
    bars = tool.bars_of(figures)
    assert [(bar["run"], bar["least"], bar["met"]) for bar in bars] == [
        (FLOAT32, 1.3, False),
        (BFLOAT16, 2.0, True),
    ]


def test_one_part_needs_no_reviews(tool, asked, capsys):
    assert (
        tool.main(["--parts", "step", "--reviews", "nowhere", "--rounds", "1"]) is None
    )
    assert {job for _, job, _ in asked} == {"step"}
    printed = capsys.readouterr().out
    assert "examples/s" not in printed and printed.count("at least") == 2


# === What it refuses ===


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--reviews nowhere.tsv", "nowhere.tsv is none: give another by --reviews"),
        ("--rows 41", "at most the texts of .*, 40, got 41"),
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--max-length 0", "--max-length must be at least 1, got 0"),
        ("--hidden 96", "multiple of 64, .* got 96 and 1"),
        ("--hidden 64 --heads 3", "twice --heads, got 64 and 3"),
    ],
)
def test_what_cannot_be_measured(tool, reviews, asked, changes, message):
    arguments = ["--reviews", str(reviews), "--rows", "8", *changes.split()]
    with pytest.raises(SystemExit, match=message):
        tool.main(arguments)
    assert not asked


def test_a_file_of_other_lines_is_refused(tool, reviews, asked):
    reviews.write_text("no label\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="line 1 of"):
        tool.main(["--reviews", str(reviews)])
    assert not asked


def test_without_bert4keras_there_is_nothing_to_measure(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match=r"bert4keras is not in .*nowhere"):
        tool.main(["--parts", "step"])


@pytest.mark.parametrize("what", ["weights", "ids"])
def test_sides_that_differ_are_not_compared(tool, what):
    class Built:
        def __init__(self, side):
            self.side = side

        def ask(self, job):
            figures = {"weights": 7, "ids": "0a", "tokens": 1, "padded": 1}
            return {**figures, **({what: "1b"} if self.side == "bert4keras" else {})}

    workers = {side: Built(side) for side in tool.SIDES}
    with pytest.raises(SystemExit, match=f"must have the same {what}, got .*1b"):
        tool.check_sides(argparse.Namespace(parts=["reviews"]), workers)


# === What all sides read ===


def test_reviews_are_drawn_by_a_seed(tool, reviews, tmp_path):
    options = argparse.Namespace(reviews=reviews, rows=12, folder=tmp_path)
    assert tool.read_reviews(options)[0] == []
    found = []
    for _ in range(2):
        tool.draw_reviews(options)
        found.append(tool.read_reviews(options))
    texts, labels = found[0]
    assert texts == found[1][0] and len(set(texts)) == 12
    lines = reviews.read_text(encoding="utf-8").split("\n")
    for text, label in zip(texts, labels, strict=True):
        assert f"{text}\t{('bad', 'good')[label]}" in lines
    assert texts != [line.split("\t")[0] for line in lines[:12]]
    assert tool.classes_of(labels) == tool.classes_of(np.array([])) == 2

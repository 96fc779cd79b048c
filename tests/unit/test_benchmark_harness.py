"""tools/benchmarks without its runs: help, turns, ratios and texts."""

import importlib

import pytest
from benchmark_files import LocalWorker, write_texts
from common import read_json

from tools import ROOT
from tools.benchmarks import encode, harness, texts
from tools.workers import Worker, WorkerFailed

NOT_COMMANDS = {"chinese", "fair", "figure_tables", "harness", "sides", "texts"}


def test_help(capsys):
    missing = []
    for path in sorted((ROOT / "tools" / "benchmarks").glob("*.py")):
        if path.stem in NOT_COMMANDS:
            continue
        name = f"tools.benchmarks.{path.stem}"
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(name).main(["--help"])
        if ended.value.code or f"python -m {name}" not in capsys.readouterr().out:
            missing.append(name)
    assert not missing


class Slower(harness.Side):
    """A side whose turns take 1, 2, 3, ... seconds, times a factor."""

    def turn(self, factor):
        self.count = getattr(self, "count", 0) + 1
        return {"seconds": float(self.count * factor)}


@pytest.fixture
def benchmark(tmp_path):
    options = harness.make_parser("", {"rounds": (9, 3, "")}).parse_args(["--quick"])
    options.json = tmp_path / "figures.json"
    sides = {"a": Slower, "b": Slower}
    with harness.Benchmark(options, Slower.__module__, sides) as benchmark:
        benchmark.start = lambda name: LocalWorker(Slower(folder=benchmark.folder))
        yield benchmark


def test_sides_take_turns_and_first_calls_do_not_count(benchmark, capsys):
    runs = {
        f"{harness.LIMIT} float32": harness.Run("b", "turn", (1,), ("turn", 0), 1),
        "ours float32": harness.Run("a", "turn", (1,)),
        "theirs": harness.Run("c", "turn", rounds=0),
    }
    turns = harness.take_turns(benchmark, runs, "turns")
    figures = harness.medians(turns, amount=30)
    limit, ours = figures.values()
    assert ours["seconds"] == [2, 3, 4] and ours["rate"] == 10
    assert limit["seconds"] == [2]
    # Turns of different numbers are all compared.
    assert harness.shares_of_limit(figures, "ours float32") == [2 / 2, 2 / 3, 2 / 4]
    assert harness.ratios(figures, "ours float32", "theirs") == []
    assert harness.ratios({"a": ours, "b": ours}, "a", "b") == [1, 1, 1]
    assert harness.show_ratios([1.0, 3.0, 1.5]) == "1.50x (1.00 to 3.00)"
    benchmark.save("part", figures)
    written = read_json(benchmark.options.json)
    assert written == {"options": {"rounds": 3, "quick": True}, "part": figures}
    harness.print_runs("title", "s", figures, "theirs")
    assert "| ours float32 | 0.1 | 67% |  | 1 |" in capsys.readouterr().out


def test_fresh_turns_have_new_processes(benchmark):
    runs = {
        "ours": harness.Run("a", "turn", (1,), warm_up=("turn", 5)),
        "theirs": harness.Run("b", "turn", (1,)),
    }
    turns = harness.take_turns(benchmark, runs, "turns", fresh=True)
    assert [turn["seconds"] for turn in turns["ours"]] == [2, 2, 2]
    assert [turn["seconds"] for turn in turns["theirs"]] == [1, 1, 1]


def test_a_failed_worker_shows_its_error():
    with (
        Worker("json:JSONDecoder", {"unknown": 1}) as worker,
        pytest.raises(WorkerFailed, match="unexpected keyword argument 'unknown'"),
    ):
        worker.call("decode", "{}")


def test_texts_are_drawn_in_equal_shares_by_a_seed(tmp_path):
    files = write_texts(tmp_path)
    drawn = texts.draw_texts(files, 9)
    assert drawn == texts.draw_texts(files, 9) and len(set(drawn)) == 9
    reviews, poems = (set(texts.read_texts(path)) for path in files)
    assert len(reviews & set(drawn)) == 4 and len(poems & set(drawn)) == 5
    kinds = [text in poems for text in drawn]
    assert kinds != sorted(kinds)
    assert len(set(texts.read_lines(files[1]))) == 21


def test_without_bert4keras_there_is_nothing_to_measure(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "nowhere"))
    assert encode.main(["--parts", "encode"]) == 6
    assert "bert4keras is not in" in capsys.readouterr().err


def test_sides_that_differ_are_not_compared():
    def turns(theirs):
        samples = {encode.FLOAT32: 0.5, encode.BFLOAT16: 0.7, harness.THEIRS: theirs}
        return {name: [{"sample": [2.0, value]}] for name, value in samples.items()}

    harness.check_samples(turns(0.519))
    for wrong in (0.521, float("nan")):
        with pytest.raises(SystemExit, match=f"{harness.THEIRS} must compute the same"):
            harness.check_samples(turns(wrong))

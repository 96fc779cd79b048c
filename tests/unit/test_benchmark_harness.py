"""tools/benchmarks without its runs: help, turns, ratios, refusals and texts."""

import importlib
import json
import re

import pytest
from benchmark_files import write_texts

from roformer_keras.errors import ReferenceUnavailable
from tools import ROOT
from tools.benchmarks import attention, encode, finetune, harness, texts, tokenization
from tools.workers import Worker, WorkerFailed

NOT_COMMANDS = {"harness", "sides", "texts"}
MODULES = [
    f"tools.benchmarks.{path.stem}"
    for path in sorted((ROOT / "tools" / "benchmarks").glob("*.py"))
    if path.stem not in NOT_COMMANDS
]


@pytest.fixture
def files(tmp_path):
    return write_texts(tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_help(name, capsys):
    module = importlib.import_module(name)
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    assert f"python -m {name}" in capsys.readouterr().out


# === The harness ===


class Slower(harness.Side):
    """A side whose turns take 1, 2, 3, ... seconds, times a factor."""

    def turn(self, factor):
        self.count = getattr(self, "count", 0) + 1
        return {"seconds": float(self.count * factor), "pid_is_new": self.count == 1}


@pytest.fixture
def benchmark(tmp_path):
    options = harness.make_parser("", {"rounds": (3, "")}).parse_args([])
    options.json = tmp_path / "figures.json"
    side = f"{Slower.__module__}:Slower"
    with harness.Benchmark(options, {"a": side, "b": side}) as benchmark:
        benchmark.start = lambda name: FakeWorker(Slower(folder=benchmark.folder))
        yield benchmark


class FakeWorker:
    def __init__(self, side):
        self.side = side

    def measure(self, method, *arguments):
        return getattr(self.side, method)(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


def test_sides_take_turns_and_first_calls_do_not_count(benchmark, capsys):
    runs = {
        "ours": harness.Run("a", "turn", (1,)),
        "theirs": harness.Run("b", "turn", (2,)),
    }
    turns = harness.take_turns(benchmark, runs, 3, "turns")
    figures = harness.medians(turns, amount=30)
    assert figures["ours"]["seconds"] == [2, 3, 4]
    assert figures["theirs"]["seconds"] == [4, 6, 8]
    assert figures["ours"]["rate"] == 10
    assert harness.ratios(figures, "ours", "theirs") == [2, 2, 2]
    assert harness.ratios(figures, "ours", "nobody") == []
    assert harness.show_ratios([1.0, 3.0, 1.5]) == "1.50x (1.00 to 3.00)"
    benchmark.save("part", figures)
    written = json.loads(benchmark.options.json.read_text())
    assert written == {"options": {"rounds": 3}, "part": figures}
    harness.print_table("title", ("one", "two"), [("row", "1", "22222")])
    assert capsys.readouterr().out == "\ntitle  one    two\nrow      1  22222\n"


def test_fresh_turns_have_new_processes(benchmark):
    runs = {"ours": harness.Run("a", "turn", (1,), warm_up=("turn", 5))}
    runs["theirs"] = harness.Run("b", "turn", (1,))
    turns = harness.take_turns(benchmark, runs, 2, "turns", fresh=True)
    assert [turn["seconds"] for turn in turns["ours"]] == [2, 2]
    assert [turn["seconds"] for turn in turns["theirs"]] == [1, 1]


def test_a_failed_worker_shows_its_error():
    with (
        Worker("json:JSONDecoder", {"unknown": 1}) as worker,
        pytest.raises(WorkerFailed, match="unexpected keyword argument 'unknown'"),
    ):
        worker.call("decode", "{}")


def test_texts_are_drawn_in_equal_shares_by_a_seed(files):
    drawn = texts.draw_texts(files, 9)
    assert drawn == texts.draw_texts(files, 9) and len(set(drawn)) == 9
    reviews, poems = (set(texts.read_texts(path)) for path in files)
    assert len(reviews & set(drawn)) == 4 and len(poems & set(drawn)) == 5
    kinds = [text in poems for text in drawn]
    assert kinds != sorted(kinds)
    assert len(set(texts.read_lines(files[1]))) == 21
    with pytest.raises(SystemExit, match=r"21 different texts .* which has 20"):
        texts.draw_texts(files, 41)


# === What is refused ===


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (encode, "--rounds 0", "must be at least 1, got 0"),
        (encode, "--texts nowhere.tsv", "--texts must be files, .*nowhere.tsv"),
        (encode, "--growth-tokens 63", "--growth-tokens must be at least 64"),
        (encode, "--hidden 96", "multiple of 64, got 96"),
        (encode, "--vocabulary 199", "at least 200, got 199"),
        (encode, "--shapes 4x8 32", "such as 32x128, .* got 32"),
        (encode, "--shapes 1x4097", "at most 4096 tokens, got 1x4097"),
        (encode, "--parts load --picture a.png", "add one to --parts"),
        (finetune, "--hidden 64 --heads 3", "--hidden must be a multiple"),
        (tokenization, "nowhere.txt", "no nowhere.txt"),
    ],
)
def test_wrong_options(module, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        module.main(arguments.split())
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_without_bert4keras_there_is_nothing_to_measure(tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "nowhere"))
    with pytest.raises(ReferenceUnavailable, match=r"bert4keras is not in .*nowhere"):
        encode.main(["--parts", "encode"])


def test_sides_that_differ_are_not_compared():
    def turns(theirs):
        samples = {encode.FLOAT32: 0.5, encode.BFLOAT16: 0.7, encode.THEIRS: theirs}
        return {name: [{"sample": [2.0, value]}] for name, value in samples.items()}

    encode.check_samples(turns(0.519))
    for wrong in (0.521, float("nan")):
        with pytest.raises(SystemExit, match=f"{encode.THEIRS} must compute the same"):
            encode.check_samples(turns(wrong))


def test_slopes():
    lengths = [512, 1024, 2048, 4096]
    assert attention.slope([3 * x for x in lengths], lengths) == pytest.approx(1)
    assert attention.slope([x**2 for x in lengths], lengths) == pytest.approx(2)
    # A line through all of them, not from end to end.
    assert attention.slope([1, 1, 1, 8], lengths) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("softmax", "linear", "expected"),
    [
        # Equal at twice the first length, where one has grown fourfold.
        ((1.0, 16.0, 256.0), (2.0, 8.0, 32.0), 512),
        ((1.0, 16.0, 256.0), (0.5, 2.0, 8.0), 256),
        ((1.0, 16.0, 256.0), (2.0, 32.0, 512.0), None),
        # What was too large for softmax attention says nothing.
        ((1.0, 16.0, None), (2.0, 8.0, 32.0), 512),
    ],
)
def test_the_crossing_is_where_lines_of_logarithms_meet(softmax, linear, expected):
    rows = [
        [None if one is None else {"seconds": one} for one in seconds]
        for seconds in (softmax, linear)
    ]
    assert attention.crossing(*rows, [256, 1024, 4096]) == expected

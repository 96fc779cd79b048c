"""tools/benchmarks: turns, ratios, refusals, and a tiny run of each."""

import importlib
import json
import re

import numpy as np
import pytest
from common import reference_folder

from roformer_keras.errors import ReferenceUnavailable
from tools import ROOT
from tools.benchmarks import (
    attention,
    checkpointing,
    encode,
    finetune,
    generate,
    harness,
    pretrain,
    texts,
    tokenization,
)
from tools.workers import Worker, WorkerFailed

NOT_COMMANDS = {"harness", "sides", "texts"}
MODULES = [
    f"tools.benchmarks.{path.stem}"
    for path in sorted((ROOT / "tools" / "benchmarks").glob("*.py"))
    if path.stem not in NOT_COMMANDS
]
needs_bert4keras = pytest.mark.skipif(
    reference_folder() is None, reason="needs bert4keras"
)
TINY = "--layers 1 --hidden 64 --vocabulary 200"


def random_text(random, count):
    return "".join(chr(0x4E00 + code) for code in random.integers(106, 200, count))


@pytest.fixture
def files(tmp_path):
    """Twenty reviews of 5 to 24 characters, and twenty poems of 10."""
    random = np.random.default_rng(0)
    reviews, poems = tmp_path / "reviews.tsv", tmp_path / "poems.jsonl"
    lines = [f"{random_text(random, 5 + i)}\t{'ab'[i % 2]}\n" for i in range(20)]
    reviews.write_text("".join(lines), encoding="utf-8")
    rows = [{"title": "天地", "lines": [random_text(random, 5)] * 2} for _ in range(20)]
    poems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [reviews, poems]


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


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_have_the_type_and_keep_their_size(dtype):
    found = harness.matrix_products(layers=3, hidden=64, tokens=50, dtype=dtype)()
    assert found.shape == (50, 64) and found.dtype.name == dtype
    assert 0.3 < found.astype("float32").std() < 3


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


# === Tiny runs ===


def measure(module, tmp_path, arguments):
    target = tmp_path / "figures.json"
    assert not module.main([*arguments.split(), "--json", str(target)])
    return json.loads(target.read_text())


def keep_runs(monkeypatch, module, part, *names):
    runs = {name: module.RUNS[part][name] for name in names}
    monkeypatch.setitem(module.RUNS, part, runs)


@needs_bert4keras
def test_encode(files, tmp_path, monkeypatch, capsys):
    keep_runs(monkeypatch, encode, "load", encode.IMPORTED, encode.ZIP)
    encoders = (encode.LIMIT, encode.FLOAT32, encode.THEIRS)
    keep_runs(monkeypatch, encode, "encode", *encoders)
    keep_runs(monkeypatch, encode, "mix", *encoders[1:])
    picture = tmp_path / "picture.png"
    figures = measure(
        encode,
        tmp_path,
        f"{TINY} --count 9 --calls 2 --rounds 1 --shapes 2x8 --parts load encode mix "
        f"--texts {files[0]} {files[1]} --picture {picture}",
    )
    assert figures["load"][encode.ZIP]["weights_mb"] > 0
    runs = figures["encode"]["2x8"]
    assert list(runs) == list(encoders)
    assert runs[encode.FLOAT32]["rate"] == 16 / runs[encode.FLOAT32]["seconds"][0]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "times bert4keras" in capsys.readouterr().out


@needs_bert4keras
def test_finetune(files, tmp_path, monkeypatch, capsys):
    name = "roformer_keras float32"
    keep_runs(monkeypatch, finetune, "reviews", name, finetune.THEIRS)
    figures = measure(
        finetune,
        tmp_path,
        f"{TINY} --heads 2 --batch 4 --length 12 --steps 1 --rows 12 --max-length 16 "
        f"--rounds 1 --reviews {files[0]}",
    )
    assert list(figures["step"]) == list(finetune.RUNS["step"])
    ours, theirs = figures["texts"]["float32"], figures["texts"]["bert4keras"]
    # Batches of similar length have less padding.
    assert ours["tokens"] == theirs["tokens"] <= ours["padded"] <= theirs["padded"]
    assert figures["reviews"][name]["rate"] > 0
    assert "of its matrix products" in capsys.readouterr().out


@needs_bert4keras
def test_generate(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "MEMORY_RUNS", generate.MEMORY_RUNS[1:2])
    arguments = "--quick --layers 1 --new 8 --samples 2"
    parts = "--parts generate paraphrase memory"
    figures = measure(generate, tmp_path, f"{arguments} {parts}")
    one, many, prompts = figures["generate"]
    assert many["tokens"] == 2 * one["tokens"] == 2 * 8
    assert prompts["ratio"] is None
    # Nothing is faster than its own products, and a small model is far from it.
    assert all(0 < run["reached"] < 1 for run in figures["generate"])
    plain, ending = (run["tokens_a_text"] for run in figures["paraphrase"])
    for side in ("roformer_keras", "bert4keras"):
        assert ending[side] < plain[side] <= 24
    # 1 layer, keys and values, 64 wide, float32; the prompt of 16 ids counted once.
    (row,) = figures["memory"]
    assert row["cache"] == (16 + 2 * 8) * 2 * 64 * 4 / 1e6
    assert "with_compilation" in capsys.readouterr().out


def test_pretrain(tmp_path, capsys):
    arguments = "--quick --dtypes float32 --rounds 1 --updates 2 --length 16"
    figures = measure(pretrain, tmp_path, arguments)
    assert 0 <= figures["float32"]["files"]["waiting"] < 1
    assert "from files" in capsys.readouterr().out


@needs_bert4keras
def test_tokenization(tmp_path, capsys):
    folder = ROOT / "tests" / "data" / "tokenizer"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"第{n}天天气不错" for n in range(30)), encoding="utf-8")
    vocabularies = [
        f"--{level} {folder / level}_vocab.txt" for level in ("character", "word")
    ]
    arguments = f"{lines} --lines 20 --rounds 1 {' '.join(vocabularies)}"
    tokenization.main(arguments.split())
    assert "20 lines of" in capsys.readouterr().out


def test_checkpointing(tmp_path, capsys):
    arguments = "--layers 1 --hidden 64 --length 16"
    assert list(measure(checkpointing, tmp_path, arguments)) == ["off", "on"]
    assert "of the peak" in capsys.readouterr().out


# === Attention ===


def test_attention(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "picture.png"
    kinds = ("softmax", "linear")
    monkeypatch.setattr(attention, "KINDS", {k: attention.KINDS[k] for k in kinds})
    monkeypatch.setattr(attention, "ENCODERS", ("linear",))
    # Softmax attention has room for the first length alone.
    figures = measure(
        attention,
        tmp_path,
        "--lengths 512 2048 --features 4 8 --repeats 1 --memory 0.1 "
        f"--picture {picture}",
    )
    first, second = figures["layers"]["softmax"]
    assert first["seconds"] > 0 and second is None
    assert figures["encoders"]["linear"]["length"] == 2048
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "of memory" in capsys.readouterr().out


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


def test_more_random_features_err_less():
    found = attention.measure_convergence([32, 512], draws=5, length=32, dim=16)
    few, many = (
        {name: errors[at] for name, errors in found["errors"].items()} for at in (0, 1)
    )
    assert many["deviation 0.25"] < 0.4 * few["deviation 0.25"]
    assert all(many[name] < few[name] for name in few)
    # Long vectors need more of them.
    assert many["deviation 0.25"] < many["deviation 0.5"] < many["deviation 1"]

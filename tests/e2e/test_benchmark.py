"""tools/benchmarks/benchmark.py: turns, ratios, bars, what it draws, and what it
refuses."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from common import reference_folder, tool_module

TOOL = "tools.benchmarks.benchmark"
FLOAT32, BFLOAT16 = "roformer_keras float32", "roformer_keras bfloat16"
THEIRS = "bert4keras float32"
LIMIT, HALF_LIMIT = "matrix products float32", "matrix products bfloat16"
HUGGING_FACE = "transformers BERT bfloat16"
TINY = {
    "layers": 1,
    "hidden": 128,
    "vocabulary": 200,
    "count": 9,
    "calls": 3,
    "growth-tokens": 128,
    "growth-rows": 2,
    "rounds": 1,
}


@pytest.fixture(scope="module")
def tool():
    with tool_module("benchmark") as module:
        yield module


@pytest.fixture
def texts(tmp_path):
    """Two files of 20 texts each, reviews of 5 to 24 characters and poems of 10."""
    random = np.random.default_rng(0)

    def text(count):
        return "".join(chr(0x4E00 + c) for c in random.integers(106, 200, count))

    reviews, poems = tmp_path / "reviews.tsv.gz", tmp_path / "poems.jsonl"
    with gzip.open(reviews, "wt", encoding="utf-8") as file:
        file.writelines(f"{text(5 + number)}\t1\n" for number in range(20))
        # One twice, one too short, one too long.
        file.write(f"一二三四五六\t0\n一二三四五六\t1\n一\t1\n{'一' * 501}\t1\n")
    rows = [{"title": text(4), "lines": [text(5), text(5)]} for _ in range(20)]
    poems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [reviews, poems]


@pytest.fixture
def asked(tool, tmp_path, monkeypatch):
    """What workers are asked, which do nothing and say how long it took.

    bert4keras gets slower from turn to turn, the others do not.
    """
    asked, turns = [], {}
    whole = {"limit": 1.0, "float32": 2.0, "bfloat16": 1.25, "transformers": 1.5}

    class Made:
        def __init__(self, script, side, options):
            self.side = side
            asked.append((side, "start"))

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def ask(self, job, *words):
            asked.append((self.side, job, *words))
            if job == "count":
                padded = 30 if self.side == "bert4keras" else 20
                return {"seconds": 1, "ids": "0a", "tokens": 10, "padded": padded}
            turn = turns[self.side, job, words] = turns.get((self.side, job, words), 0)
            turns[self.side, job, words] = turn + 1
            figures = {
                "seconds": whole.get(self.side, 3.0 + turn),
                "peak_mb": {"tensorflow": 500, "float32": 960}.get(self.side, 1500),
            }
            if job == "load":
                figures["weights_mb"] = 400
            if job == "latency":
                figures["p95"] = 9.0
            if job in ("encode", "predict", "mix", "latency"):
                figures["sample"] = [1.0, -2.0]
            return figures

    (tmp_path / "reference" / "bert4keras").mkdir(parents=True)
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "reference"))
    monkeypatch.setattr(tool, "Worker", Made)
    monkeypatch.setattr(tool, "write_sources", lambda options: None)
    monkeypatch.setattr(
        tool, "missing", lambda side: ["keras_hub"] if side == "keras_hub" else []
    )
    return asked


@pytest.mark.e2e
@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
def test_all_parts_are_measured(texts, tmp_path):
    target, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    command = [sys.executable, "-m", TOOL, "--json", target, "--picture", picture]
    for name, size in TINY.items():
        command += [f"--{name}", str(size)]
    command += ["--shapes", "2x8", "1x12", "--texts", *texts]
    run = subprocess.run(command, capture_output=True, text=True)
    # Sides that compute something else, or get other ids, end it.
    assert run.returncode == 0, run.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(target.read_text())
    sizes = {name.replace("-", "_"): size for name, size in TINY.items()}
    assert figures["options"] == {**sizes, "shapes": ["2x8", "1x12"]}

    load = figures["load"]
    imported = load["TensorFlow imported, no more"]["peak_mb"]
    for name in ("roformer_keras, zip", "roformer_keras, preset"):
        assert load[name]["peak_mb"] > imported > 10
        # 200 tokens and 2 segments, 1 layer, 3 norms, and 9 times the width as biases.
        parameters = 128 * (202 + 12 * 128 + 3 * 2 + 9)
        assert load[name]["weights_mb"] == parameters * 4 / 2**20
    assert figures["convert"]["roformer-keras convert"]["peak_mb"] > 10

    for shape, tokens in (("2x8", 16), ("1x12", 12)):
        runs = figures["encode"][shape]
        (theirs,) = runs[THEIRS]["seconds"]
        for name in (LIMIT, HALF_LIMIT, FLOAT32, BFLOAT16):
            (seconds,) = runs[name]["seconds"]
            assert seconds > 0 and runs[name]["rate"] == tokens / seconds
            assert runs[name]["ratios"][THEIRS] == [theirs / seconds]
            assert name in run.stdout
        (limit,) = runs[HALF_LIMIT]["seconds"]
        ratios = runs[BFLOAT16]["ratios"]
        assert ratios[HALF_LIMIT] == [limit / runs[BFLOAT16]["seconds"][0]]

    mix = figures["mix"]
    assert mix[FLOAT32]["tokens"] == mix[THEIRS]["tokens"] <= mix[THEIRS]["padded"]
    assert mix[FLOAT32]["rate"] == 9 / mix[FLOAT32]["seconds"][0]
    for name in (FLOAT32, BFLOAT16, THEIRS):
        latency = figures["latency"][name]
        assert latency["p95"] >= latency["seconds"][0] > 0
    assert list(figures["growth"]) == ["2x64", "1x128", "2x128"]
    assert run.stdout.count(": met") + run.stdout.count(": missed") >= 9


# === Turns, ratios and bars ===


def test_sides_take_turns_and_first_runs_do_not_count(
    tool, texts, tmp_path, asked, capsys
):
    target = tmp_path / "figures.json"
    arguments = ["--rounds", "3", "--json", str(target), "--count", "20"]
    arguments += ["--texts", *map(str, texts), "--shapes", "2x8"]
    assert tool.main([*arguments, "--parts", "mix", "encode"]) is None
    sides = [run.side for run in tool.RUNS["encode"].values()]
    encode = [
        (run.side, run.job, "2x8", *run.words)
        for run in tool.RUNS["encode"].values()
        if run.side != "keras_hub"
    ]
    mix = [(side, "mix") for side in ("float32", "bfloat16", "bert4keras")]
    counts = [(side, "count") for side, _ in mix]
    expected = []
    for of_part, after in ((encode, []), (mix, counts)):
        started = set()
        for number in range(3):
            for words in of_part:
                # In one process each, which does it once for nothing.
                if words[0] not in started:
                    expected.append((words[0], "start"))
                    started.add(words[0])
                expected += [words] * (1 + (number == 0))
        expected += after
    assert "keras_hub" in sides and asked == expected

    figures = json.loads(target.read_text())
    encode = figures["encode"]["2x8"]
    assert encode[THEIRS]["seconds"] == [4, 5, 6]
    assert encode[THEIRS]["rate"] == 2 * 8 / 5
    assert encode[FLOAT32]["ratios"] == {THEIRS: [2.0, 2.5, 3.0], LIMIT: [0.5] * 3}
    assert encode[BFLOAT16]["ratios"][HALF_LIMIT] == [0.8] * 3
    assert figures["mix"][FLOAT32]["rate"] == 20 / 2
    assert figures["mix"][THEIRS]["padded"] == 30
    assert figures["left_out"] == {
        "keras_hub BERT bfloat16": ["keras_hub"],
        "keras_hub BERT float32": ["keras_hub"],
    }
    printed = capsys.readouterr().out
    assert "without keras_hub BERT float32: keras_hub not installed" in printed
    assert "2.50x (2.00 to 3.00)" in printed and " 50% " in printed
    assert f"mix, {FLOAT32}: 2.50 of the speed of {THEIRS}, at least 3.0: missed" in (
        printed
    )


def test_every_load_and_conversion_has_a_process_of_its_own(
    tool, tmp_path, asked, capsys
):
    target = tmp_path / "figures.json"
    arguments = ["--rounds", "2", "--json", str(target)]
    assert tool.main([*arguments, "--parts", "load", "convert"]) is None
    runs = [run for part in ("load", "convert") for run in tool.RUNS[part].values()]
    load, convert = runs[:-1], runs[-1:]
    expected = []
    for run in load * 2 + convert * 2:
        expected += [(run.side, "start"), (run.side, run.job, *run.words)]
    assert asked == expected
    bars = json.loads(target.read_text())["bars"]
    # 2 s against 3 and 4; 460 MB above TensorFlow for 400 MB of weights.
    assert [bar["found"] for bar in bars] == [
        pytest.approx((2 / 3 + 2 / 4) / 2),
        pytest.approx(1.15),
    ]
    assert [bar["most"] for bar in bars] == [0.6, 1.2]
    assert all(bar["met"] for bar in bars)
    assert "the weights have 400 MB" in capsys.readouterr().out


def test_bars_are_of_what_was_measured(tool):
    def runs():
        return {
            name: {"seconds": [value]}
            for name, value in zip(
                (LIMIT, HALF_LIMIT, FLOAT32, BFLOAT16, THEIRS),
                (0.92, 0.78, 1.0, 1.0, 1.9),
                strict=True,
            )
        }

    options = type("Options", (), {"shapes": ["32x128", "4x512"]})
    figures = {"encode": {"32x128": runs(), "4x512": None}}
    bars = tool.bars_of(options, figures)
    assert [(bar["run"], bar["least"], bar["met"]) for bar in bars] == [
        (FLOAT32, 0.92, True),
        (FLOAT32, 1.25, True),
        (BFLOAT16, 0.78, True),
        (BFLOAT16, 2.0, False),
    ]
    figures["encode"]["32x128"][HUGGING_FACE] = {"seconds": [1.2]}
    assert tool.bars_of(options, figures)[-1]["met"]
    figures = {"latency": {FLOAT32: {"seconds": [0.021, 0.019, 0.0201]}}}
    (bar,) = tool.bars_of(options, figures)
    assert (bar["found"], bar["most"], bar["met"]) == (pytest.approx(20.1), 20, False)


@pytest.mark.parametrize("parts", [["encode"], ["growth"], ["encode", "growth"]])
def test_the_picture_shows_what_was_measured(tool, tmp_path, asked, capsys, parts):
    picture = tmp_path / "picture.png"
    assert tool.main(
        ["--rounds", "1", "--picture", str(picture), "--parts", *parts]
    ) is (None)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_growth_is_by_length_and_by_rows(tool):
    options = type("Options", (), {"growth_tokens": 4096, "growth_rows": 128})
    by_length, by_rows = tool.growth_shapes(options)
    assert by_length == [
        "64x64",
        "32x128",
        "16x256",
        "8x512",
        "4x1024",
        "2x2048",
        "1x4096",
    ]
    assert by_rows == [f"{rows}x128" for rows in (1, 2, 4, 8, 16, 32, 64, 128)]
    shapes = tool.shapes_of(options, "growth")
    assert len(shapes) == len(set(shapes)) == 14


# === What it refuses ===


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--texts nowhere.tsv", "nowhere.tsv is none: give others by --texts"),
        ("--count 41", "21 different texts .* are needed of .*poems.*, which has 20"),
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--growth-rows 0", "--growth-rows must be at least 1, got 0"),
        ("--growth-tokens 63", "at least 64, the shortest rows, got 63"),
        ("--hidden 96", "multiple of 64, got 96"),
        ("--vocabulary 199", "at least 200, .* got 199"),
        ("--shapes 4x8 32", "rows and tokens as 32x128, .* got 32"),
        ("--shapes 0x8", "got 0x8"),
        ("--shapes 1x4097", "at most 4096 tokens, got 1x4097"),
        ("--parts mix --picture a.png", "add one of them to --parts"),
    ],
)
def test_what_cannot_be_measured(tool, texts, asked, changes, message):
    arguments = ["--texts", *map(str, texts), "--count", "8", *changes.split()]
    with pytest.raises(SystemExit, match=message):
        tool.main(arguments)
    assert not asked


def test_other_parts_need_no_texts(tool, asked, capsys):
    arguments = ["--parts", "latency", "--rounds", "1", "--texts", "nowhere"]
    assert tool.main(arguments) is None
    printed = capsys.readouterr().out
    assert (
        "2000.0" in printed and "9000.0" in printed and "at most 20: missed" in printed
    )


def test_without_bert4keras_there_is_nothing_to_measure(tool, tmp_path, monkeypatch):
    monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match=r"bert4keras is not in .*nowhere"):
        tool.main(["--parts", "encode"])


def test_sides_that_differ_are_not_compared(tool):
    runs = tool.RUNS["latency"]

    def turns(ours, theirs):
        return {
            FLOAT32: [{"sample": [2.0, ours]}],
            BFLOAT16: [{"sample": [2.0, 0.7]}],
            THEIRS: [{"sample": [2.0, theirs]}],
        }

    tool.check_samples(turns(0.5, 0.519), runs)
    for wrong in (0.521, float("nan")):
        with pytest.raises(SystemExit, match=f"{FLOAT32} and {THEIRS} must compute"):
            tool.check_samples(turns(0.5, wrong), runs)

    class Counted:
        def __init__(self, ids):
            self.ids = ids

        def ask(self, job):
            return {"ids": self.ids, "tokens": 1, "padded": 1}

    workers = {FLOAT32: Counted("0a"), THEIRS: Counted("1b")}
    with pytest.raises(SystemExit, match=r"must have the same ids, got .*1b"):
        tool.add_counts({FLOAT32: {}, THEIRS: {}}, workers)


# === What all sides read ===


def test_texts_are_drawn_in_equal_shares_by_a_seed(tool, texts, tmp_path):
    options = type("Options", (), {"texts": texts, "count": 9, "folder": tmp_path})
    found = []
    for _ in range(2):
        tool.draw_texts(options)
        found.append(json.loads((tmp_path / "texts.json").read_text(encoding="utf-8")))
    assert found[0] == found[1] and len(set(found[0])) == 9
    reviews, poems = (set(tool.file_texts(path)) for path in texts)
    assert len(reviews.intersection(found[0])) == 4
    assert len(poems.intersection(found[0])) == 5
    assert {len(poem) for poem in poems} == {10}
    # Neither in the files' order nor one file behind the other.
    assert found[0] != sorted(found[0])
    kinds = [text in poems for text in found[0]]
    assert kinds != sorted(kinds)
    options.count, options.texts = 21, texts[:1]
    tool.draw_texts(options)
    drawn = json.loads((tmp_path / "texts.json").read_text(encoding="utf-8"))
    assert drawn.count("一二三四五六") == 1 and max(map(len, drawn)) == 24


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_are_of_the_type_and_keep_their_size(dtype):
    with tool_module("benchmark_sides") as sides:
        found = sides.matrix_products(layers=3, hidden=64, tokens=50, dtype=dtype)()
    assert found.shape == (50, 64) and found.dtype.name == dtype
    assert 0.3 < found.astype("float32").std() < 3


def test_a_worker_that_ends_shows_what_it_said(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text("import sys; sys.exit('no such model')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        tool_module("workers") as workers,
        workers.Worker("failing", "float32", {}) as worker,
        pytest.raises(SystemExit, match=r"ended at \('load',\)(?s:.*)no such model"),
    ):
        worker.ask("load")

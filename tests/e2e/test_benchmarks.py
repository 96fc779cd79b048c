"""tools/benchmarks: a tiny run of each, with the real bert4keras.

CI runs one comparison, which has every part of the harness; the weekly job runs all.
"""

import pytest
from benchmark_files import use_local_sides, write_texts
from common import read_json, reference_folder

from roformer_keras.generation.engines import ENGINES
from tools import ROOT
from tools.benchmarks import (
    encode,
    finetune,
    generate,
    harness,
    scripts,
    search,
    serve,
    texts,
    tokenization,
)

needs_texts = pytest.mark.skipif(
    not texts.POEMS.exists(), reason="needs the texts that benchmarks read"
)
needs_bert4keras = pytest.mark.skipif(
    reference_folder() is None, reason="needs bert4keras"
)


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """A function that runs a benchmark with `--quick` and returns its figures."""

    def measure(module, *arguments):
        # Both sides of the scripts import a module of the name `bert4keras`.
        if module is not scripts:
            use_local_sides(monkeypatch)
        target = tmp_path / "figures.json"
        arguments = ["--quick", *map(str, arguments), "--json", str(target)]
        assert module.main(arguments) == 0
        return read_json(target)

    return measure


def keep_runs(monkeypatch, module, part, *names):
    runs = {name: module.RUNS[part][name] for name in names}
    monkeypatch.setitem(module.RUNS, part, runs)


@needs_bert4keras
def test_a_comparison(measure, monkeypatch, capsys):
    names = (f"{harness.LIMIT} float32", encode.FLOAT32, harness.THEIRS)
    keep_runs(monkeypatch, encode, "encode", *names)
    figures = measure(encode, "--parts", "encode", "--shapes", "2x8")
    runs = figures["encode"]["2x8"]
    assert list(runs) == list(names)
    assert runs[encode.FLOAT32]["rate"] == 16 / runs[encode.FLOAT32]["seconds"][0]
    assert "times bert4keras" in capsys.readouterr().out


@pytest.mark.weekly
@needs_bert4keras
def test_other_parts_of_encoding(measure, tmp_path, monkeypatch):
    keep_runs(monkeypatch, encode, "load", encode.IMPORTED, encode.ZIP)
    keep_runs(monkeypatch, encode, "mix", encode.FLOAT32, harness.THEIRS)
    ways = ("predict float32", "predict_on_batch float32", harness.THEIRS)
    keep_runs(monkeypatch, encode, "predict", *ways)
    keep_runs(monkeypatch, encode, "calls", "call float32", *ways)
    parts = ("load", "mix", "predict", "calls")
    arguments = ["--shapes", "2x8", "--texts", *write_texts(tmp_path)]
    figures = measure(encode, "--parts", *parts, *arguments)
    assert figures["load"][encode.ZIP]["weights_mb"] > 0
    assert set(figures["predict"]["2x8"]) == set(ways)
    assert set(figures["calls"]["1x16"]) == {"call float32", *ways}


@pytest.mark.weekly
@needs_bert4keras
def test_finetune(measure):
    figures = measure(finetune)["step"]
    assert figures.keys() == finetune.RUNS.keys()
    assert 0 < harness.shares_of_limit(figures, next(iter(finetune.OURS)))[0] < 1


@pytest.mark.weekly
@needs_bert4keras
def test_generate(measure, monkeypatch):
    # "auto" chooses one of the other engines.
    assert {engine for _, engine in generate.ENGINE_RUNS} == {*ENGINES} - {"auto"}
    # Each type, and each kind of engine.
    engines = [("float32", "keras"), ("float32", "openvino")]
    engines += [("bfloat16", "openvino-int8")]
    monkeypatch.setattr(generate, "ENGINE_RUNS", engines)
    figures = measure(generate)
    names = {f"{engine} {dtype}" for dtype, engine in engines}
    limits = {f"{harness.LIMIT} {dtype}, OpenVINO" for dtype in generate.TYPES}
    peers = {harness.THEIRS, *(f"transformers {dtype}" for dtype in generate.TYPES)}
    for title, runs in figures["engines"].items():
        assert runs.keys() == names | limits | (peers if "GPT" in title else set())
        # Nothing is faster than its products, and a small model is far from it.
        assert 0 < harness.shares_of_limit(runs, "openvino float32")[0] < 1
    runs = figures["engines"]["GPT, 2 samples"][generate.KERAS]
    assert runs["rate"] * runs["seconds"][0] == pytest.approx(2 * 8)
    assert figures["mix"].keys() == names
    whole, ending = figures["paraphrase"].values()
    for side in (generate.KERAS, harness.THEIRS):
        assert ending[side]["tokens a text"] < whole[side]["tokens a text"] <= 24
    assert figures["first"]["second piece of a stream"]["first piece"] > 0


@pytest.mark.weekly
@needs_bert4keras
def test_scripts(measure, tmp_path):
    figures = measure(scripts, "--reviews", write_texts(tmp_path)[0])
    for part in scripts.SCRIPTS:
        for run in scripts.RUNS:
            assert 0 < figures[part][run]["again"] < figures[part][run]["seconds"][0]


@pytest.mark.weekly
@needs_bert4keras
def test_tokenization(measure, tmp_path):
    folder = ROOT / "tests" / "data" / "tokenizer"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"第{n}天天气不错" for n in range(30)), encoding="utf-8")
    vocabularies = [
        f"--{level}={folder / level}_vocab.txt" for level in ("character", "word")
    ]
    figures = measure(tokenization, lines, *vocabularies)
    assert list(figures["word"]) == ["roformer_keras", "bert4keras"]


@pytest.mark.weekly
@needs_texts
def test_serve(measure):
    figures = measure(serve, "--parts", "lines", "fair", "--clients", "2")
    (case,) = figures["lines"].values()
    assert case["turns"].keys() == {"encode", "serve"}
    for turns in figures["fair"].values():
        assert turns.keys() == {"alone", "next to it"}
        assert all(turn["count"] > 0 for turn in turns["next to it"])


@pytest.mark.weekly
@needs_texts
def test_search(measure):
    runs = measure(search)["search"]
    assert runs.keys() == {*search.SIDES, "roformer_keras, one by one"}
    assert all(run["recall"] > 0.99 for run in runs.values())

"""tools/benchmarks: a tiny run of each, with the real bert4keras."""

import json

import pytest
from benchmark_files import write_texts
from common import reference_folder

from tools import ROOT
from tools.benchmarks import (
    attention,
    checkpointing,
    encode,
    finetune,
    generate,
    harness,
    pretrain,
    tokenization,
)

needs_bert4keras = pytest.mark.skipif(
    reference_folder() is None, reason="needs bert4keras"
)
TINY = "--layers 1 --hidden 64 --vocabulary 200"


@pytest.fixture
def files(tmp_path):
    return write_texts(tmp_path)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_have_the_type_and_keep_their_size(dtype):
    found = harness.matrix_products(layers=3, hidden=64, tokens=50, dtype=dtype)()
    assert found.shape == (50, 64) and found.dtype.name == dtype
    assert 0.3 < found.astype("float32").std() < 3


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


def test_more_random_features_err_less():
    found = attention.measure_convergence([32, 512], draws=5, length=32, dim=16)
    few, many = (
        {name: errors[at] for name, errors in found["errors"].items()} for at in (0, 1)
    )
    assert many["deviation 0.25"] < 0.4 * few["deviation 0.25"]
    assert all(many[name] < few[name] for name in few)
    # Long vectors need more of them.
    assert many["deviation 0.25"] < many["deviation 0.5"] < many["deviation 1"]

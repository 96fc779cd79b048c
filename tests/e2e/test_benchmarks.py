"""tools/benchmarks: a tiny run of each, with the real bert4keras."""

import contextlib
import json

import pytest
from benchmark_files import LocalWorker, Processes, make_side, write_texts
from common import reference_folder

from roformer_keras.generation.engines import ENGINES
from tools import ROOT, predict_wait
from tools.benchmarks import (
    attention,
    checkpointing,
    encode,
    finetune,
    generate,
    gpu,
    harness,
    keras_paths,
    pretrain,
    scripts,
    step_profile,
    tokenization,
)

needs_bert4keras = pytest.mark.skipif(
    reference_folder() is None, reason="needs bert4keras"
)


@pytest.fixture(scope="module")
def processes():
    with contextlib.closing(Processes()) as processes:
        yield processes


@pytest.fixture
def local_sides(processes, monkeypatch):
    """Runs all sides but bert4keras here: processes take seconds to start."""
    processes.install(monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_have_the_type_and_keep_their_size(dtype):
    found = harness.matrix_products(layers=3, hidden=64, tokens=50, dtype=dtype)()
    assert found.shape == (50, 64) and found.dtype.name == dtype
    assert 0.3 < found.astype("float32").std() < 3


def measure(module, tmp_path, *arguments):
    target = tmp_path / "figures.json"
    arguments = ["--quick", *map(str, arguments), "--json", str(target)]
    assert module.main(arguments) == 0
    return json.loads(target.read_text())


def keep_runs(monkeypatch, module, part, *names):
    runs = {name: module.RUNS[part][name] for name in names}
    monkeypatch.setitem(module.RUNS, part, runs)


@needs_bert4keras
def test_encode(local_sides, tmp_path, monkeypatch, capsys):
    files = write_texts(tmp_path)
    keep_runs(monkeypatch, encode, "load", encode.IMPORTED, encode.ZIP)
    encoders = (f"{harness.LIMIT} float32", encode.FLOAT32, harness.THEIRS)
    keep_runs(monkeypatch, encode, "encode", *encoders)
    keep_runs(monkeypatch, encode, "mix", *encoders[1:])
    arguments = ["--shapes", "2x8", "--texts", *files]
    keep_runs(monkeypatch, encode, "growth", encode.FLOAT32)
    monkeypatch.setattr(encode, "OURS", encode.RUNS["growth"])
    parts = ("load", "encode", "mix", "growth")
    figures = measure(encode, tmp_path, "--parts", *parts, *arguments)
    assert figures["load"][encode.ZIP]["weights_mb"] > 0
    runs = figures["encode"]["2x8"]
    assert list(runs) == list(encoders)
    assert runs[encode.FLOAT32]["rate"] == 16 / runs[encode.FLOAT32]["seconds"][0]
    assert "times bert4keras" in capsys.readouterr().out


@needs_bert4keras
def test_keras_paths(local_sides, tmp_path, monkeypatch, capsys):
    ours = f"{keras_paths.PREDICT} float32", f"{keras_paths.ON_BATCH} float32"
    keep_runs(monkeypatch, keras_paths, "predict", *ours, harness.THEIRS)
    calls = f"{keras_paths.CALL} float32", f"{keras_paths.EAGER} float32"
    keep_runs(monkeypatch, keras_paths, "latency", *ours, *calls)
    figures = measure(keras_paths, tmp_path, "--shapes", "2x8")
    assert set(figures["predict"]["2x8"]) == {*ours, harness.THEIRS}
    assert set(figures["latency"][keras_paths.SHORT]) == {*ours, *calls}
    out = capsys.readouterr().out
    assert out.count("the rate of") == 4


def test_the_wait_in_plain_keras(monkeypatch, capsys):
    monkeypatch.setattr(predict_wait, "PRODUCTS", (1,))
    assert predict_wait.main() == 0
    *_, titles, numbers = capsys.readouterr().out.splitlines()
    assert titles.startswith("products  predict  predict of an untuned dataset")
    assert len(numbers.split()) == 4


@needs_bert4keras
def test_finetune(local_sides, tmp_path, monkeypatch, capsys):
    ours, *_ = finetune.OURS
    for part in finetune.RUNS:
        keep_runs(monkeypatch, finetune, part, ours, harness.THEIRS)
    monkeypatch.setattr(finetune, "COMPARED", ["float32", "bert4keras"])
    figures = measure(finetune, tmp_path, "--reviews", write_texts(tmp_path)[0])
    own, theirs = figures["texts"]["float32"], figures["texts"]["bert4keras"]
    # Batches of similar length have less padding.
    assert own["tokens"] == theirs["tokens"] <= own["padded"] <= theirs["padded"]
    assert figures["step"][ours]["rate"] > 0 and figures["reviews"][ours]["rate"] > 0
    assert "a review has" in capsys.readouterr().out


def test_step_profile(tmp_path):
    for shares in measure(step_profile, tmp_path).values():
        assert sum(shares.values()) == pytest.approx(1)
        assert shares[step_profile.PRODUCTS] > 0.01 and "ResourceApplyAdam" in shares


@needs_bert4keras
def test_generate(local_sides, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "MEMORY_RUNS", generate.MEMORY_RUNS[1:2])
    parts = ("generate", "paraphrase", "memory")
    figures = measure(generate, tmp_path, "--parts", *parts)
    one, many, prompts = figures["generate"].values()
    tokens = [
        run[generate.OURS]["rate"] * run[generate.OURS]["seconds"][0]
        for run in (one, many)
    ]
    assert tokens == pytest.approx([8, 2 * 8])
    assert harness.THEIRS in many and harness.THEIRS not in prompts
    # Nothing is faster than its own products, and a small model is far from it.
    assert 0 < harness.shares_of_limit(many, generate.OURS)[0] < 1
    plain, ending = figures["paraphrase"].values()
    for side in (generate.OURS, harness.THEIRS):
        assert ending[side]["tokens a text"] < plain[side]["tokens a text"] <= 24
    # 1 layer, keys and values, 64 wide, float32; the prompt of 16 ids counted once.
    (row,) = figures["memory"].values()
    assert row["cache"] == (16 + 2 * 8) * 2 * 64 * 4 / 1e6
    assert "with_compilation" in capsys.readouterr().out


@needs_bert4keras
def test_engines_of_generation(local_sides, tmp_path, monkeypatch):
    assert {engine for _, engine in generate.ENGINE_RUNS} == set(ENGINES)
    # Each type, and each kind of engine.
    runs = [
        *(("float32", "keras"), ("float32", "openvino")),
        *(("bfloat16", "openvino-int8"), ("float32", "onnx-int8")),
    ]
    monkeypatch.setattr(generate, "ENGINE_RUNS", runs)
    # test_gpu runs transformers.
    monkeypatch.setattr(generate, "is_installed", lambda side: False)
    figures = measure(generate, tmp_path, "--parts", "engines", "mix")
    one, many, paraphrases = figures["engines"].values()
    names = {f"{engine} {dtype}" for dtype, engine in generate.ENGINE_RUNS}
    limits = [f"{harness.LIMIT} {dtype}, OpenVINO" for dtype in ("float32", "bfloat16")]
    for runs in (one, many, paraphrases):
        theirs = set() if runs is paraphrases else {harness.THEIRS}
        assert runs.keys() == {*names, *limits, *theirs}
        shares = harness.shares_of_limit(runs, "openvino float32")
        assert 0 < shares[0] < 1
    assert figures["mix"].keys() == {
        f"{engine} {dtype}" for dtype, engine in generate.ENGINE_RUNS[:4]
    }


def test_pretrain(tmp_path, capsys):
    figures = measure(pretrain, tmp_path)
    assert 0 <= figures["float32"]["from files"]["waiting"] < 1
    assert "saving a state" in capsys.readouterr().out


@needs_bert4keras
def test_tokenization(local_sides, tmp_path):
    folder = ROOT / "tests" / "data" / "tokenizer"
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"第{n}天天气不错" for n in range(30)), encoding="utf-8")
    vocabularies = [
        f"--{level}={folder / level}_vocab.txt" for level in ("character", "word")
    ]
    figures = measure(tokenization, tmp_path, lines, *vocabularies)
    assert list(figures["word"]) == ["roformer_keras", "bert4keras"]


def test_checkpointing(tmp_path, monkeypatch, capsys):
    def local(target, options):
        return LocalWorker(make_side(target, options))

    monkeypatch.setattr(checkpointing, "Worker", local)
    assert list(measure(checkpointing, tmp_path)) == ["off", "on"]
    assert "of the peak" in capsys.readouterr().out


@needs_bert4keras
def test_scripts(processes, tmp_path, monkeypatch):
    processes.install(monkeypatch, are_local=False)
    reviews, _ = write_texts(tmp_path)
    arguments = ("--parts", "write", "classify", "--reviews", reviews)
    figures = measure(scripts, tmp_path, *arguments)
    for part in ("write", "classify"):
        for run in scripts.RUNS:
            assert 0 < figures[part][run]["again"] < figures[part][run]["seconds"][0]


def test_attention(tmp_path, monkeypatch, capsys):
    kinds = ("softmax", "linear")
    monkeypatch.setattr(attention, "KINDS", {k: attention.KINDS[k] for k in kinds})
    monkeypatch.setattr(attention, "ENCODERS", ("linear",))
    monkeypatch.setattr(attention, "FEATURES", [4, 8])
    # Softmax attention has room for the first length alone.
    monkeypatch.setattr(attention, "MEMORY", 0.1)
    monkeypatch.setattr(
        attention,
        "in_process",
        lambda job, *arguments: attention.Job(job).run(*arguments),
    )
    figures = measure(attention, tmp_path, "--lengths", 512, 2048)
    first, second = figures["layers"]["softmax"]
    assert first["seconds"] > 0 and second is None
    assert figures["encoders"]["linear"]["length"] == 2048
    assert "of memory" in capsys.readouterr().out


def test_gpu(processes, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    processes.install(monkeypatch, are_local=False)
    figures = measure(gpu, tmp_path, "--parts", "encode", "step")
    for part in ("encode", "step"):
        (runs,) = figures[part].values()
        assert runs[gpu.OURS]["rate"] > 0
        assert 0 < harness.shares_of_limit(runs, gpu.OURS)[0] < 1
    if figures["device"]["platform"] != "gpu":
        assert gpu.main(["--parts", "latency"]) == 2
        assert "JAX finds only" in capsys.readouterr().err

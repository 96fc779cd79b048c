"""The command line: what it prints where, and with which exit code."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from common import (
    CHARACTER,
    ROOT,
    SAVED,
    SIM,
    SMALL,
    WORD,
    interruptible,
    json_lines,
    write_lines,
)
from common import give_stdin as stdin
from common import run as start_python
from common import run_main as run
from sources import listing, unpacked

from roformer_keras import RoFormerBackbone, RoFormerMaskedLM, RoFormerTokenizer
from roformer_keras.cli import main
from roformer_keras.models import embedding
from roformer_keras.models.embedding import embed
from roformer_keras.models.fill_mask import fill_mask
from roformer_keras.verbs.embed import Embed

pytestmark = pytest.mark.usefixtures("eagerly")


def command(*arguments):
    return [sys.executable, "-m", "roformer_keras", *map(str, arguments)]


def process(*arguments, **options):
    """A run in another process, with bytes in and out."""
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=120,
        **options,
    )


# === Imports ===


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = """
        import sys
        from roformer_keras.cli import main

        heavy = ("keras", "tensorflow", "jax", "torch", "h5py", "safetensors", "jieba")
        small, word = sys.argv[1:]
        for line in (
            "--help",
            "convert --help",
            "list",
            f"inspect {small}",
            f"tokenize --source {word} 今天天气不错",
        ):
            try:
                assert main(line.split()) == 0
            except SystemExit as end:
                assert end.code == 0
            loaded = [name for name in heavy if name in sys.modules]
            assert not loaded, (line, loaded)
    """
    finished = start_python(code, SMALL, WORD)
    _, err = finished.communicate()
    assert (finished.returncode, err) == (0, "")


def test_the_whole_way_in_a_process_of_its_own(tmp_path):
    """Standard error stays empty, whatever the backend would like to say."""
    code = """
        import sys
        from roformer_keras.cli import main

        source, folder = sys.argv[1:]
        assert main(["convert", source, folder, "--quiet"]) == 0
        sys.argv[1:] = ["embed", "--source", folder, "-", "--quiet"]
        assert main() == 0
        unused = [n for n in ("jax", "matplotlib", "pandas") if n in sys.modules]
        assert not unused, unused
        # Afterwards it can be imported, for reports and tables.
        import matplotlib.pyplot, pandas
    """
    finished = start_python(code, SIM, tmp_path / "sim", stdin=subprocess.PIPE)
    out, err = finished.communicate("今天\n北京\n")
    assert (finished.returncode, err) == (0, "")
    folder, *lines = out.splitlines()
    assert folder == str(tmp_path / "sim")
    assert [json.loads(line)["text"] for line in lines] == ["今天", "北京"]


# === Errors ===


def test_no_traceback_and_no_noise_in_a_process_of_its_own(tmp_path):
    for arguments, code in (
        (["convert", SIM, tmp_path / "no" / "x.keras"], 4),
        (["embed", "--source", SIM, "-", "-o", tmp_path / "x.csv"], 2),
    ):
        finished = process(*arguments)
        assert finished.returncode == code
        assert finished.stdout == b""
        lines = finished.stderr.decode().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("roformer-keras: error: ")


# === Progress ===


def test_progress_is_shown_on_a_terminal(
    tmp_path, texts, monkeypatch, capsys, cli, eagerly
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for words, shown in (
        (("convert", SIM, tmp_path / "x.keras"), "43/43"),
        ((*EMBED, texts, "-o", tmp_path / "x.npy"), "6/6"),
    ):
        code, out, err = run(*words, capsys=capsys)
        assert (code, out) == (0, f"{words[-1]}\n")
        assert shown in err
        cli(*words, "--quiet", "--overwrite")


# === fill-mask ===


def test_fill_mask_prints_what_the_function_returns(cli):
    texts = ["今[MASK]天气[MASK]错", "[MASK]"]
    command = ("fill-mask", "--source", WORD)
    answers = json_lines(cli(*command, *texts, "--top-k", "3", "--json"))
    model = RoFormerMaskedLM.from_preset(WORD)
    expected = fill_mask(model, model.tokenizer, texts, 3)
    assert answers == [
        {"text": text, "masks": [[vars(token) for token in mask] for mask in masks]}
        for text, masks in zip(texts, expected, strict=True)
    ]
    lines = cli(*command, texts[0], "--top-k", "2").splitlines()
    assert lines[0] == texts[0]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2"]
    first = answers[0]["masks"][0][0]
    assert f"{first['token']} {first['probability']:.4f}" in lines[1]


def test_fill_mask_gives_probabilities_whatever_the_model_was_saved_with(
    tmp_path, cli, eagerly
):
    model = RoFormerMaskedLM.from_preset(CHARACTER, output_activation="softmax")
    model.save_to_preset(tmp_path / "x", RoFormerTokenizer.from_preset(CHARACTER))
    expected = cli("fill-mask", "--source", CHARACTER, "今[MASK]")
    assert cli("fill-mask", "--source", tmp_path / "x", "今[MASK]") == expected


# === embed ===

TEXTS = ["今天天气不错", "", "我爱北京天安门" * 20, "北京", "今天天气不错", " a "]
EMBED = ("embed", "--source", SIM)


@pytest.fixture(scope="module")
def vectors():
    model = RoFormerBackbone.from_preset(SIM, pooler_activation="linear")
    tokenizer = RoFormerTokenizer.from_preset(SIM)
    return embed(model, tokenizer, TEXTS)


@pytest.fixture
def texts(tmp_path):
    return write_lines(tmp_path / "texts.txt", TEXTS)


def check_lines(content, vectors):
    lines = json_lines(content)
    assert [line["text"] for line in lines] == TEXTS
    np.testing.assert_allclose([line["vector"] for line in lines], vectors, atol=1e-6)


def test_embed_writes_a_row_a_line_in_order(texts, vectors, cli):
    npy, jsonl = texts.with_name("x.npy"), texts.with_name("x.jsonl")
    assert cli(*EMBED, texts, "-o", npy) == f"{npy}\n"
    rows = np.load(npy)
    assert rows.dtype == "float32"
    np.testing.assert_allclose(rows, vectors, atol=1e-6)
    assert cli(*EMBED, texts, "--output", jsonl, "--quiet") == f"{jsonl}\n"
    content = jsonl.read_text(encoding="utf-8")
    assert "今天天气不错" in content
    check_lines(content, vectors)


@pytest.mark.parametrize("name", ["x.npy", "x.jsonl", "x.parquet"])
def test_embed_resumes_after_a_kill(name, tmp_path, monkeypatch, capsys):
    path = write_lines(tmp_path / "texts.txt", [f"春天来了{n}" for n in range(10)])
    monkeypatch.setattr(Embed, "window", 3)
    words = (*EMBED, path, "--quiet", "-o")
    assert run(*words, tmp_path / f"whole-{name}", capsys=capsys)[0] == 0
    seen, compute = [], embedding.embed

    class Killed(BaseException):
        pass

    def counted(model, tokenizer, texts, *arguments, **options):
        seen.append(len(texts))
        if len(seen) == 3:
            raise Killed
        return compute(model, tokenizer, texts, *arguments, **options)

    monkeypatch.setattr(embedding, "embed", counted)
    with pytest.raises(Killed):
        run(*words, tmp_path / name, capsys=capsys)
    assert not (tmp_path / name).exists()
    assert run(*words, tmp_path / name, capsys=capsys)[0] == 0
    assert seen == [3, 3, 3, 3, 1]
    whole = (tmp_path / f"whole-{name}").read_bytes()
    assert (tmp_path / name).read_bytes() == whole


def test_embed_reads_and_writes_standard_streams(vectors, monkeypatch, cli):
    # A byte order mark, line ends of Windows, and none at the end.
    stdin(monkeypatch, b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode())
    check_lines(cli(*EMBED, "-", "--quiet"), vectors)


def test_embed_has_the_options_of_the_function(texts, vectors, cli):
    out = texts.with_name("x.npy")

    def embedded(*flags):
        cli(*EMBED, texts, "-o", out, "--quiet", "--overwrite", *flags)
        return np.load(out)

    raw = embedded("--no-normalize")
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).max() > 0.1
    np.testing.assert_allclose(raw / lengths, vectors, atol=1e-6)
    assert 1e-5 < np.abs(embedded("--dtype", "bfloat16") - vectors).max() < 0.02
    short = embedded("--max-length", "5")
    assert np.abs(short[2] - vectors[2]).max() > 1e-3
    np.testing.assert_allclose(short[3], vectors[3], atol=1e-6)


def test_embed_keeps_a_pooler_as_it_was_saved(texts, tmp_path, vectors, cli):
    out = tmp_path / "x.npy"
    tanh = RoFormerBackbone.from_preset(SIM, pooler_activation="tanh")
    tokenizer = RoFormerTokenizer.from_preset(SIM)
    tanh.save_to_preset(tmp_path / "tanh", tokenizer)
    with_tanh = embed(tanh, tokenizer, TEXTS)
    assert np.abs(with_tanh - vectors).max() > 1e-3
    bare = RoFormerBackbone.from_preset(CHARACTER)
    cli("convert", SIM, tmp_path / "x.safetensors")
    for source, expected in (
        (tmp_path / "x.safetensors", vectors),
        (tmp_path / "tanh", with_tanh),
        # Without a pooler it is the first position.
        (CHARACTER, embed(bare, tokenizer, TEXTS)),
    ):
        cli("embed", "--source", source, texts, "-o", out, "--overwrite")
        np.testing.assert_allclose(np.load(out), expected, atol=1e-6)


def test_embed_refuses_a_model_that_wants_more_than_texts(texts, tmp_path, refused):
    folder = unpacked(SMALL, tmp_path)
    err = refused(
        *("embed", "--source", SAVED / "condition.h5", texts),
        *("--config", folder / "bert_config.json"),
        *("--vocabulary", folder / "vocab.txt"),
    )
    assert "texts give no layer_norm_cond, which this model takes" in err


# === Processes, pipes, locales ===


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "gbk"},
    ],
    ids=lambda environment: "-".join(environment.values()),
)
def test_output_is_utf8_in_every_locale(environment):
    words = ("tokenize", "--source", SIM)
    # With PYTHONUTF8=0 Python decodes arguments as ASCII.
    way, options = (["今天"], {})
    if "PYTHONUTF8" in environment:
        way, options = (["-"], {"input": "今天".encode()})
    finished = process(*words, *way, "--json", env=environment, **options)
    assert finished.returncode == 0
    assert json.loads(finished.stdout.decode("utf-8"))["text"] == "今天"
    options = {"input": "今天".encode()}
    finished = process(*words, "-", "--decode", env=environment, **options)
    assert finished.returncode == 2
    assert "got '今天'" in finished.stderr.decode("utf-8")


def test_a_reader_that_has_had_enough_is_no_error():
    for arguments in (
        ["list", "--json"],
        ["tokenize", "--source", SIM, *["今天天气不错" * 50] * 200],
    ):
        writer = subprocess.Popen(
            command(*arguments),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        writer.stdout.read(1)
        writer.stdout.close()
        assert writer.stderr.read() == b""
        writer.stderr.close()
        assert writer.wait() in (0, 141)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_standard_output_on_a_full_disk_is_exit_code_four(monkeypatch, capsys):
    message = (
        "roformer-keras: error: no space left to write the output (No space left on "
        "device)\n"
    )
    for arguments in (["list"], ["tokenize", "--source", SIM, *["今天" * 150] * 200]):
        with open("/dev/full", "w") as full:
            finished = subprocess.run(
                command(*arguments), cwd=ROOT, stdout=full, stderr=subprocess.PIPE
            )
        assert (finished.returncode, finished.stderr.decode()) == (4, message)
    # Lines of a job.
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        words = ["similarity", "--source", SIM, "--pair", "今天", "天气"]
        assert main(list(map(str, words))) == 4
        with contextlib.suppress(OSError):
            full.close()
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_says_so_and_leaves_nothing(number, tmp_path):
    # It waits for standard input.
    waiting = subprocess.Popen(
        command("embed", "--source", SIM, "-", "--output", tmp_path / "x.npy"),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    )
    wait_until_it_reads(waiting)
    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 128 + number
    assert (out, err) == (b"", b"roformer-keras: interrupted\n")
    assert listing(tmp_path) == []


@pytest.mark.parametrize("environment", [{}, {"PYTHONUTF8": "0", "LC_ALL": "C"}])
def test_arguments_that_are_no_text_are_refused(environment):
    text = b"\xe4\xbd\xa0\xff" if not environment else "你好".encode()
    done = subprocess.run(
        [*command("tokenize", "--source", SIM), text],
        cwd=ROOT,
        env={**os.environ, "PYTHONCOERCECLOCALE": "0", **environment},
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"arguments must be UTF-8, got b'" in done.stderr


def wait_until_it_reads(process):
    """Until a process sleeps in a read of its standard input, where that shows."""
    deadline = time.monotonic() + 60
    path = f"/proc/{process.pid}/syscall"
    if not os.path.exists(path):
        pytest.skip("needs /proc")
    while time.monotonic() < deadline:
        assert process.poll() is None
        with open(path) as file:
            call = file.read().split()
        if call[:2] == ["0", "0x0"]:
            return
        time.sleep(0.05)
    raise AssertionError("it does not read")

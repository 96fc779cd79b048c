"""generate, paraphrase and similarity: results, interruptions, and bad input."""

import contextlib
import itertools
import json
import os
import signal
import sys
from _thread import interrupt_main
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from common import (
    CHARACTER,
    GPT,
    SIM,
    json_lines,
    read_json,
    to_json_lines,
    write_file,
    write_lines,
    zipped,
)
from common import give_stdin as stdin
from common import run_main as run
from sources import listing, unpacked

from roformer_keras import RoFormerCausalLM, RoFormerSim
from roformer_keras.cli import main
from roformer_keras.generation import paraphrase
from roformer_keras.jobs.output import ResumableOutput
from roformer_keras.verbs import loading as sources
from roformer_keras.verbs.generate import Generate
from roformer_keras.verbs.similarity import Similarity

PROMPTS = ["今天天气不错", "北京", "我爱北京天安门", "你好", "天气", "我", "今天", "门"]
TEXTS = ["今天天气不错", "我爱北京", "你好"]
PAIRS = [("今天", "天气"), ("北京", "北京"), ("我爱北京", "你好")]
# Few shapes, so that little is compiled.
SHORT = ("--max-length", "16", "--batch-size", "4")
# Rows that end together stay in one batch, and so have the same last digits.
EVEN = (*SHORT, "--min-length", "16")
FEW = ("--max-new-tokens", "16", "--batch-size", "4", "--n", "4", "--k", "2")
GENERATE = ("generate", "--source", GPT)
PARAPHRASE = ("paraphrase", "--source", SIM)
SIMILARITY = ("similarity", "--source", SIM)
pytestmark = pytest.mark.usefixtures("load_once", "eagerly")


@pytest.fixture
def prompts(tmp_path):
    return write_lines(tmp_path / "prompts.txt", PROMPTS)


@pytest.fixture
def texts(tmp_path):
    return write_lines(tmp_path / "texts.txt", TEXTS)


@pytest.fixture
def pairs(tmp_path):
    return write_lines(tmp_path / "pairs.tsv", map("\t".join, PAIRS))


# === Results ===


def test_generate_writes_what_the_method_returns(prompts, tmp_path, capsys, cli):
    arguments = (*GENERATE, prompts, *EVEN, "--num-return-sequences", "2")
    out = tmp_path / "out.jsonl"
    code, shown, err = run(*arguments, "--seed", "3", "-o", out, capsys=capsys)
    assert (code, shown) == (0, f"{out}\n")
    assert "roformer-keras: compiling for the engine 'openvino'\n" in err
    assert listing(tmp_path) == ["out.jsonl", "prompts.txt"]
    lines = json_lines(out.read_text(encoding="utf-8"))
    model = Generate(source=str(GPT)).load().model
    # All at once, in other batches.
    expected = model.generate(
        PROMPTS,
        max_length=16,
        min_length=16,
        num_return_sequences=2,
        batch_size=4,
        seed=3,
        return_scores=True,
    )
    assert [line["text"] for line in lines] == PROMPTS
    for line, outputs in zip(lines, expected, strict=True):
        assert [one["text"] for one in line["outputs"]] == [o.output for o in outputs]
        np.testing.assert_allclose(
            [one["score"] for one in line["outputs"]],
            [one.score for one in outputs],
            atol=1e-4,
        )
    # Standard output has the same lines, and a table the same rows.
    code, shown, _ = run(*arguments, "--seed", "3", "--quiet", capsys=capsys)
    assert (code, shown) == (0, out.read_text(encoding="utf-8"))
    table = tmp_path / "out.tsv"
    cli(*arguments, "--seed", "3", "-o", table, "--quiet")
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    assert rows == [
        [line["text"], one["text"], str(one["score"])]
        for line in lines
        for one in line["outputs"]
    ]


def test_generate_has_the_options_of_the_method(tmp_path, cli):
    path = write_lines(tmp_path / "x", PROMPTS[:4])
    model = Generate(source=str(GPT)).load().model
    arguments = (*GENERATE, path, *SHORT, "--quiet")
    cuts = {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "seed": 1}
    ends = {"stop_tokens": ["天", "日"], "min_length": 12, "seed": 2}
    beams = {"method": "beam", "num_beams": 2, "length_penalty": 1.5}
    for line, options in (
        ("--method greedy", {"method": "greedy"}),
        ("--temperature 0.5 --top-k 7 --top-p 0.8 --seed 1", cuts),
        ("--stop 天 --stop 日 --min-length 12 --seed 2", ends),
        ("--method beam --num-beams 2 --length-penalty 1.5", beams),
    ):
        out = cli(*arguments, *line.split())
        expected = model.generate(PROMPTS[:4], max_length=16, batch_size=4, **options)
        generated = [one["text"] for line in json_lines(out) for one in line["outputs"]]
        assert generated == expected


def test_the_source_tells_the_class():
    for source, flags, model, attention, remark in (
        (GPT, {}, "RoFormerCausalLM", "causal", False),
        (SIM, {}, "RoFormerSim", "unilm", False),
        (SIM, {"unilm": True}, "RoFormerSim", "unilm", False),
        (SIM, {"model": "RoFormerCausalLM"}, "RoFormerCausalLM", "causal", False),
        (GPT, {"unilm": True}, "RoFormerCausalLM", "unilm", False),
        (CHARACTER, {}, "RoFormerCausalLM", "causal", True),
        (CHARACTER, {"unilm": True}, "RoFormerCausalLM", "unilm", False),
    ):
        verb = Generate(source=str(source), **flags)
        loaded = verb.load()
        class_and_attention = type(loaded.model).__name__, loaded.model.config.attention
        assert (loaded.name, *class_and_attention) == (model, model, attention)
        assert ("does not say that it was" in verb.remark(loaded)) == remark


def test_another_vocabulary_is_taken(tmp_path, monkeypatch, capsys):
    vocabulary = tmp_path / "vocab.txt"
    lines = zipped(SIM, "vocab.txt").decode().splitlines()
    at, other = lines.index("今"), lines.index("北")
    lines[at], lines[other] = lines[other], lines[at]
    write_lines(vocabulary, lines)
    stdin(monkeypatch, "今\t北\n")
    code, out, _ = run(*SIMILARITY, "-", "--vocabulary", vocabulary, capsys=capsys)
    assert code == 0
    expected = RoFormerSim.from_preset(SIM).similarity("北", "今")
    assert json.loads(out)["similarity"] == pytest.approx(expected, abs=1e-5)


def test_a_text_on_the_command_line_is_streamed_to_a_terminal(monkeypatch, capsys):
    arguments = (*GENERATE, "--text", "今天天气", *SHORT, "--seed", "5")
    code, out, _ = run(*arguments, capsys=capsys)
    expected = json.loads(out)["outputs"][0]["text"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = run(*arguments, capsys=capsys)
    assert (code, out) == (0, f"{expected}\n")
    # Lines of JSON are for programs, a table is for who looks at it.
    code, out, _ = run(*PARAPHRASE, "--text", "你好", *FEW, capsys=capsys)
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "你好")
    assert 1 <= len(lines) - 1 <= 2
    float(lines[1].split()[0])


def test_what_is_compiled_for_a_stream_is_said_before_its_line(monkeypatch, capsys):
    model = RoFormerCausalLM.from_preset(GPT)
    loaded = sources.LoadedSource("RoFormerCausalLM", model, model.tokenizer)
    monkeypatch.setattr(sources, "load_source", lambda *given, **options: loaded)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    # As on a screen.
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    # With this seed the first token is a piece already, before steps are compiled.
    arguments = (*GENERATE, "--text", "今天天气", *SHORT, "--seed", "2")
    code, out, _ = run(*arguments, "--engine", "keras", capsys=capsys)
    text = model.generate("今天天气", max_length=16, seed=2)
    assert (code, out) == (
        0,
        "roformer-keras: compiling prompts, 1 x 16 tokens\n"
        "roformer-keras: compiling first tokens, 1 x 1 tokens\n"
        f"roformer-keras: compiling steps, 1 x 48 tokens\n{text}\n",
    )


def test_a_short_job_shows_no_bar_whatever_it_compiles(monkeypatch, capsys):
    model = RoFormerCausalLM.from_preset(GPT)
    monkeypatch.setattr("roformer_keras.base.progress._DELAY", 1000)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    model.generate("今天天气", max_length=16, engine="openvino")
    assert capsys.readouterr() == ("", "")


def test_a_bar_that_was_shown_is_ended(monkeypatch, capsys):
    model = RoFormerCausalLM.from_preset(GPT)
    decoder = model._decoder("keras")
    start = decoder.start

    def late(*arguments):
        start(*arguments)
        # Before a text is finished.
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder, "start", late)
    with pytest.raises(KeyboardInterrupt):
        model.generate("今天天气", max_length=16, verbose=1, engine="keras")
    shown = capsys.readouterr().err
    assert "compiling prompts, 1 x 16 tokens" in shown
    assert shown.endswith("\n")


def test_paraphrase_writes_what_the_method_returns(texts, cli):
    model = Similarity(source=str(SIM)).load().model
    for flags, options in (
        ((), {}),
        (
            ("--masked-positions", "1,2", "--top-p", "0.5", "--top-k", "9"),
            {"masked_positions": (1, 2), "top_p": 0.5, "top_k": 9},
        ),
    ):
        arguments = (*PARAPHRASE, texts, *FEW, "--seed", "4", *flags)
        lines = json_lines(cli(*arguments, "--quiet"))
        assert [line["text"] for line in lines] == TEXTS
        expected = model.paraphrase(
            TEXTS, 4, 2, max_new_tokens=16, seed=4, batch_size=4, **options
        )
        for line, outputs in zip(lines, expected, strict=True):
            assert [o["text"] for o in line["outputs"]] == [o.output for o in outputs]
            np.testing.assert_allclose(
                [one["score"] for one in line["outputs"]],
                [one.score for one in outputs],
                atol=1e-5,
            )


def test_similarity_takes_pairs_from_anywhere(pairs, tmp_path, monkeypatch, cli):
    expected = (
        Similarity(source=str(SIM)).load().model.similarity(*zip(*PAIRS, strict=True))
    )
    objects = to_json_lines({"second": b, "label": 1, "first": a} for a, b in PAIRS)
    objects = write_file(tmp_path / "y.jsonl", objects)
    renamed = to_json_lines({"a": a, "b": b} for a, b in PAIRS)
    renamed = write_file(tmp_path / "z.jsonl", renamed)
    typed = [part for pair in PAIRS for part in ("--pair", *pair)]
    stdin(monkeypatch, pairs.read_text(encoding="utf-8"))
    ways = ([pairs], [objects], [renamed, "--fields", "a,b"], typed, ["-"])
    (output,) = {cli(*SIMILARITY, *way, "--quiet") for way in ways}
    lines = json_lines(output)
    assert [(line["first"], line["second"]) for line in lines] == PAIRS
    np.testing.assert_allclose(
        [line["similarity"] for line in lines], expected, atol=1e-5
    )


def test_a_table_has_three_columns_whatever_is_in_the_texts(tmp_path, capsys):
    pairs = [
        {"first": "今\t天\\n", "second": "北\n京\r"},
        {"first": "我", "second": "\\"},
    ]
    source = write_file(tmp_path / "x.jsonl", to_json_lines(pairs))
    out = tmp_path / "out.tsv"
    assert run(*SIMILARITY, source, "-o", out, capsys=capsys)[0] == 0
    data = out.read_bytes().decode()
    rows = [line.split("\t") for line in data.removesuffix("\n").split("\n")]
    assert [len(row) for row in rows] == [3, 3]
    assert rows[0][:2] == ["今\\t天\\\\n", "北\\n京\\r"]
    assert rows[1][:2] == ["我", "\\\\"]


def test_a_text_without_outputs_has_a_row(monkeypatch, texts, tmp_path, capsys):
    monkeypatch.setattr(paraphrase, "_candidates", lambda model, text, written: [])
    out = tmp_path / "out.tsv"
    code, _, _ = run(*PARAPHRASE, texts, *FEW, "-o", out, capsys=capsys)
    assert code == 0
    assert out.read_text() == "".join(f"{text}\t\t\n" for text in TEXTS)


# === Interrupted and resumed ===


def interrupted_after(windows, monkeypatch, error=KeyboardInterrupt):
    """Lets so many windows be written, then comes Ctrl-C."""
    write, calls = ResumableOutput.append, itertools.count()

    def counted(self, lines, inputs):
        if next(calls) == windows:
            raise error
        write(self, lines, inputs)

    monkeypatch.setattr(ResumableOutput, "append", counted)


@pytest.mark.parametrize(
    ("verb", "suffix"),
    [
        ((*GENERATE, "prompts.txt", *EVEN, "--num-return-sequences", "2"), "tsv"),
        ((*SIMILARITY, "pairs.tsv"), "jsonl"),
    ],
    ids=["generate", "similarity"],
)
def test_a_resumed_job_ends_as_if_it_had_not_been_interrupted(
    verb, suffix, prompts, pairs, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Similarity, "window", 1)
    whole, out, partial = f"whole.{suffix}", f"out.{suffix}", f"out.{suffix}.partial"
    state = f"{out}.job.json"
    seeded = verb[0] != "similarity"
    inputs = listing(tmp_path)
    with monkeypatch.context() as patch:
        interrupted_after(1, patch)
        code, shown, err = run(*verb, "-o", out, capsys=capsys)
    assert (code, shown) == (130, "")
    count = len((tmp_path / verb[3]).read_text().splitlines())
    done = read_json(tmp_path / state)["done"]
    assert 0 < done < count
    assert err.splitlines()[-2:] == [
        f"roformer-keras: {done} of {count} are kept in {tmp_path / partial}; run the "
        "same command again to resume",
        "roformer-keras: interrupted",
    ]
    assert listing(tmp_path) == sorted([*inputs, partial, state])
    # What comes after the counted bytes is discarded: a torn line, or a whole one.
    written = (tmp_path / partial).read_bytes()
    (tmp_path / partial).write_bytes(written + written + '{"text": "今'.encode()[:-1])
    seed = read_json(tmp_path / state)["seed"]
    code, shown, err = run(*verb, "-o", out, capsys=capsys)
    assert (code, shown) == (0, f"{out}\n")
    assert f"roformer-keras: resuming after {done} of {count}\n" in err
    assert listing(tmp_path) == sorted([*inputs, out])
    flags = ["--seed", seed] if seeded else []
    assert run(*verb, "-o", whole, *flags, capsys=capsys)[0] == 0
    assert (tmp_path / out).read_bytes() == (tmp_path / whole).read_bytes()
    assert (tmp_path / out).read_bytes().startswith(written)


@pytest.fixture
def handler():
    """Python's own for Ctrl-C, also where a shell had the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


# `interrupt_main` does what Ctrl-C does, without the kernel. After all benchmarks have
# run in one process (TensorFlow, JAX, PyTorch, OpenVINO), the kernel cannot hand any
# signal to it and ends it instead. `test_cli.py` sends real signals to new processes.
def swallow():
    with contextlib.suppress(BaseException):
        interrupt_main()


def ignore():
    class Owner:
        def __del__(self):
            interrupt_main()

    Owner()


def turn():
    try:
        interrupt_main()
    except KeyboardInterrupt:
        raise TypeError("a shape must be known") from None


def before_each_window(act, patch):
    """Has similarity compute a pair at a time, and act with its number before it."""
    patch.setattr(Similarity, "window", 1)
    model = Similarity(source=str(SIM)).load().model
    calls, encode = itertools.count(), model.encode

    def acting(*arguments, **options):
        act(next(calls))
        return encode(*arguments, **options)

    patch.setattr(model, "encode", acting)


@pytest.mark.parametrize(
    ("lose", "at", "kept"),
    [(swallow, 0, 1), (swallow, 2, 3), (ignore, 1, 2), (turn, 1, 1)],
)
def test_an_interruption_that_a_library_loses_ends_the_job(
    lose, at, kept, handler, pairs, tmp_path, monkeypatch, capsys
):
    arguments = (*SIMILARITY, pairs, "-o", tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        before_each_window(lambda number: lose() if number == at else None, patch)
        code, out, err = run(*arguments, capsys=capsys)
    partial = tmp_path / "out.jsonl.partial"
    assert (code, out, err) == (
        130,
        "",
        f"roformer-keras: {kept} of 3 are kept in {partial}; run the same command "
        "again to resume\nroformer-keras: interrupted\n",
    )
    assert len(json_lines(partial.read_text(encoding="utf-8"))) == kept
    # The next command knows nothing of it.
    assert run(*arguments, capsys=capsys)[0] == 0


def test_a_handler_of_interruptions_stays(handler, pairs, monkeypatch, capsys):
    seen = []
    before_each_window(lambda number: interrupt_main(), monkeypatch)
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    code, _, err = run(*SIMILARITY, pairs, capsys=capsys)
    signal.signal(signal.SIGINT, handler)
    assert (code, err, seen) == (0, "", [signal.SIGINT] * 3)


def test_a_command_runs_in_any_thread(pairs, capsys):
    with ThreadPoolExecutor() as pool:
        code = pool.submit(main, [*map(str, SIMILARITY), str(pairs)]).result()
    assert (code, len(json_lines(capsys.readouterr().out))) == (0, 3)


@pytest.fixture
def interrupted(prompts, tmp_path, monkeypatch, capsys):
    """The command of a job of which four of eight prompts are done."""
    command = (*GENERATE, prompts, *SHORT, "-o", tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        interrupted_after(1, patch)
        assert run(*command, "--seed", "1", capsys=capsys)[0] == 130
    return command


def test_the_partial_of_another_job_is_not_touched(
    interrupted, prompts, tmp_path, capsys, refused
):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    copy = tmp_path / GPT.name
    copy.write_bytes(GPT.read_bytes())
    seeded = (*interrupted, "--seed", "1")
    for command, message in (
        ((*seeded, "--temperature", "0.5"), "temperature was 1.0, now 0.5:"),
        ((*interrupted, "--seed", "2"), "seed was 1, now 2:"),
        (interrupted, "seed was 1, now None:"),
        ((*seeded, "--stop", "。"), "stop_tokens was None, now ['。']:"),
        ([copy if part == GPT else part for part in seeded], "source was"),
    ):
        err = refused(*command, code=4)
        assert f"out.jsonl.partial holds another run: {message}" in err
        assert "or pass --overwrite to discard it" in err
        assert {path: path.read_bytes() for path in before} == before
    write_lines(prompts, [*PROMPTS[:-1], "今"])
    err = refused(*seeded, code=4)
    assert "another run: input 'texts' has changed:" in err
    write_lines(prompts, PROMPTS)
    # Nor is it discarded for a job that ends before it writes.
    assert run(*seeded, "--overwrite", "--stop", "今天", capsys=capsys)[0] == 2
    assert {path: path.read_bytes() for path in before} == before
    # Lines of another size of batch are of the same job.
    assert run(*seeded, "--batch-size", "1", capsys=capsys)[0] == 0
    lines = json_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert [line["text"] for line in lines] == PROMPTS


def test_an_output_may_lie_in_a_folder_of_the_model(
    pairs, tmp_path, monkeypatch, capsys, refused
):
    monkeypatch.setattr(Similarity, "window", 1)
    folder = unpacked(SIM, tmp_path)
    (folder / "results").mkdir()
    for source, place in ((folder, folder), (tmp_path, tmp_path / folder.name)):
        arguments = (
            *("similarity", "--source", source, pairs),
            *("-o", place / "results" / f"{source.name}.jsonl"),
        )
        with monkeypatch.context() as patch:
            interrupted_after(1, patch)
            assert run(*arguments, capsys=capsys)[0] == 130
        code, _, err = run(*arguments, capsys=capsys)
        assert (code, err) == (0, "roformer-keras: resuming after 1 of 3\n")
    # Weights that lie one folder deeper are known by their times too.
    arguments = ("similarity", "--source", tmp_path, pairs)
    arguments += ("-o", tmp_path / "out.jsonl")
    with monkeypatch.context() as patch:
        interrupted_after(1, patch)
        assert run(*arguments, capsys=capsys)[0] == 130
    os.utime(folder / "vocab.txt", ns=(0, 0))
    err = refused(*arguments, code=4)
    assert "another run: input 'source' has changed:" in err


def test_a_bar_starts_where_the_job_is_resumed(interrupted, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = run(*interrupted, "--seed", "1", capsys=capsys)
    assert code == 0
    bar = err.split("resuming after 4 of 8\n")[1]
    assert "| 4/8 [" in bar
    assert "| 8/8 [" in bar
    assert " 0/8" not in bar

"""Which word of a command line is which, and the checkpoints that need no name."""

import argparse
import gzip
import json
import re
import shlex

import pytest
from common import reference_folder
from common import run_main as run

from roformer_keras import RoFormerSim, RoFormerTokenizer
from roformer_keras.cli import operands
from roformer_keras.errors import SourceError
from roformer_keras.hub.catalog import SHIPPED, find, resolve

# Keras's own saving, under NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

DEFAULT, OTHER = "roformer-char", "roformer-gpt-char"


def split(how, line, capsys, **options):
    """What a line of operands and an option `--text` become; or the code and error."""
    parser = argparse.ArgumentParser(prog="all")
    verb = parser.add_subparsers().add_parser("verb")
    operands.add(verb, how, "[SOURCE] ...", DEFAULT)
    verb.add_argument("--texts", action="append")
    try:
        found, rest = parser.parse_known_args(["verb", *line.split()])
        found = vars(found) | options
        operands.resolve(parser, found, rest)
    except SystemExit as end:
        return end.code, capsys.readouterr().err.splitlines()[-1]
    remark = capsys.readouterr().err
    assert (DEFAULT in remark) == (found["source"] == DEFAULT and "quiet" not in found)
    return found


@pytest.mark.parametrize(
    ("how", "line", "expected"),
    [
        (operands.source, "", {"source": DEFAULT}),
        (operands.source, "a", {"source": "a"}),
        (operands.source_and_target, "t", {"source": DEFAULT, "target": "t"}),
        (operands.source_and_target, "a t", {"source": "a", "target": "t"}),
        (operands.source_and_input, "i", {"source": DEFAULT, "input": "i"}),
        (operands.source_and_input, "a -", {"source": "a", "input": "-"}),
        (operands.source_or_input, "", {"source": DEFAULT, "input": None}),
        (operands.source_or_input, "i", {"source": DEFAULT, "input": "i"}),
        (operands.source_or_input, OTHER, {"source": OTHER, "input": None}),
        (operands.source_or_input, "a i", {"source": "a", "input": "i"}),
        (operands.source_or_input, "a.zip", {"source": "a.zip", "input": None}),
        (operands.source_or_input, "/", {"source": "/", "input": None}),
        (operands.source_or_input, "--texts x", {"source": DEFAULT, "input": None}),
        (operands.source_or_input, "a --texts x", {"source": "a", "input": None}),
        (operands.source_or_input, "--texts x a", {"source": "a", "input": None}),
        # The command says that it is too much.
        (operands.source_or_input, "a i --texts x", {"source": "a", "input": "i"}),
    ],
)
def test_operands(how, line, expected, capsys):
    found = split(how, line, capsys)
    assert {name: found[name] for name in expected} == expected
    assert not {"operands", "split", "verb", "default_of"} & found.keys()


@pytest.mark.parametrize(
    ("line", "source", "texts"),
    [
        ("t", DEFAULT, ["t"]),
        ("a t", "a", ["t"]),
        ("a t u", "a", ["t", "u"]),
        ("- t", DEFAULT, ["-", "t"]),
        ("明[MASK] t[MASK]", DEFAULT, ["明[MASK]", "t[MASK]"]),
        ("a t[MASK]", "a", ["t[MASK]"]),
    ],
)
def test_operands_that_are_texts(line, source, texts, capsys):
    for words in (line, f"--texts x {line}", line.replace(" ", " --texts x ", 1)):
        found = split(operands.source_and_texts, words, capsys)
        # The option of this test is of the same name as the operand.
        assert (found["source"], found["texts"]) == (source, texts)


@pytest.mark.parametrize(
    ("how", "line", "message"),
    [
        (operands.source, "a b", "verb: error: unrecognized arguments: b"),
        (
            operands.source_and_target,
            "",
            "the following arguments are required: TARGET",
        ),
        (operands.source_and_target, "a b c", "unrecognized arguments: c"),
        (operands.source_and_input, "", "the following arguments are required: INPUT"),
        (operands.source_or_input, "a b c", "unrecognized arguments: c"),
        (operands.source_and_texts, "", "the following arguments are required: TEXT"),
        (operands.source_and_texts, DEFAULT, "arguments are required: TEXT"),
        (operands.source, "a --colour red", "unrecognized arguments: --colour red"),
        (operands.source, "-x", "all: error: unrecognized arguments: -x"),
    ],
)
def test_wrong_numbers_of_operands(how, line, message, capsys):
    code, last = split(how, line, capsys)
    assert code == 2
    assert last.endswith(message)


def test_a_single_target_that_exists_is_not_replaced(tmp_path, capsys):
    (tmp_path / "mine.zip").write_bytes(b"")
    code, last = split(operands.source_and_target, f"{tmp_path}/mine.zip", capsys)
    assert code == 2
    assert last.endswith(
        "mine.zip exists: name a target behind it, or a source before it"
    )


def test_quiet_leaves_out_which_checkpoint_is_taken(capsys):
    assert split(operands.source, "", capsys, quiet=True)["source"] == DEFAULT


# === The checkpoints of this package ===


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.alias)
def test_shipped_checkpoints_go_by_two_names(entry, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in (entry.alias, entry.name, f"{entry.name}.zip"):
        assert resolve(name) == entry.path
        with pytest.raises(SourceError, match="comes with this package"):
            find(name)
    code, out, err = run("inspect", entry.alias, "--json", capsys=capsys)
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["model"] == entry.model_class
    layers, hidden, heads = (
        int(part.split("-")[1]) for part in entry.name.split("_")[-3:]
    )
    config = facts["config"]
    assert (config["num_layers"], config["hidden_dim"], config["num_heads"]) == (
        layers,
        hidden,
        heads,
    )


def test_a_file_of_such_a_name_goes_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT).mkdir()
    assert str(resolve(DEFAULT)) == DEFAULT


def test_all_of_them_are_small():
    assert sum(entry.path.stat().st_size for entry in SHIPPED) <= 20e6


def test_they_share_a_vocabulary():
    vocabularies = {
        tuple(RoFormerTokenizer.from_preset(entry.alias).vocabulary)
        for entry in SHIPPED
    }
    assert len(vocabularies) == 1


def test_they_know_what_they_were_trained_for(capsys):
    code, out, _ = run("fill-mask", "太祖[MASK]位，大赦天下。", "--json", capsys=capsys)
    candidates = json.loads(out)["masks"][0]
    assert code == 0
    assert candidates[0]["token"] == "即"
    # A line of five characters is gone on with in lines of five.
    code, out, _ = run(
        "generate", "--text", "床前明月光，", "--seed", "1", capsys=capsys
    )
    (poem,) = (found["text"] for found in json.loads(out)["outputs"])
    assert re.match("[一-龥]{5}。([一-龥]{5}[，。？])+", poem), poem
    sim = RoFormerSim.from_preset("roformer-sim-char")
    classical = ["学而时习之，不亦说乎？", "有朋自远方来，不亦乐乎？", "吾日三省吾身。"]
    modern = [
        "学习了又时常温习，不是很愉快吗？",
        "有志同道合的人从远方来，不是很令人高兴吗？",
        "我每天多次反省自己。",
    ]
    cosines = sim.encode(classical) @ sim.encode(modern).T
    assert list(cosines.argmax(axis=1)) == list(cosines.argmax(axis=0)) == [0, 1, 2]


# === The examples of the help ===

VERBS = ("inspect", "convert", "verify", "fill-mask", "embed", "generate", "paraphrase")
VERBS = (*VERBS, "similarity", "tokenize", "pretrain")


def examples_of(verb, capsys):
    _, out, _ = run(verb, "--help", capsys=capsys)
    _, _, lines = out.partition("\nexamples:\n")
    return [shlex.split(line)[1:] for line in lines.splitlines()]


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_of_the_help_run(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    poem = ["床前明月光，疑是地上霜。", "举头望明月，低头思故乡。"]
    for name in ("corpus.txt", "sentences.txt"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in poem * 20))
    with gzip.open(tmp_path / "poems.jsonl.gz", "wt") as file:
        file.write((json.dumps({"lines": poem}) + "\n") * 40)
    (tmp_path / "pairs.tsv").write_text("a dog runs\tein Hund rennt\n" * 40)
    if verb == "verify":
        folder = reference_folder()
        if folder is None:
            pytest.skip("needs bert4keras")
        monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(folder.resolve()))
    found = examples_of(verb, capsys)
    assert found
    for arguments in found:
        assert arguments[0] == verb
        if verb == "pretrain":
            # As it is shown, but shorter, and in a folder of its own.
            arguments += ["--steps", "2", "--batch-size", "2", "--length", "16"]
            arguments += ["--overwrite"]
        code, out, err = run(*arguments, capsys=capsys)
        assert code == 0, err
        assert out

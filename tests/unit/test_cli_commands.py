"""list, inspect, convert and tokenize: the commands that need no backend."""

import json
import re
import sys

import pytest
from common import (
    CHARACTER,
    GPT,
    NSP,
    ROOT,
    SAVED,
    SIM,
    SMALL,
    V2,
    WORD,
    json_lines,
    zipped_json,
)
from common import give_stdin as stdin
from sources import assert_same, tensors_of, unpacked

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.cli.main import find_commands
from roformer_keras.conversion.push import push_to_hub
from roformer_keras.hub.catalog import CATALOG, SHIPPED, find, resolve


def test_list_names_the_twelve_and_which_are_here(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("ROFORMER_KERAS_CHECKPOINTS", str(tmp_path))
    name = "chinese_roformer-v2-char_L-6_H-384_A-6"
    (tmp_path / f"{name}.zip").write_bytes(V2.read_bytes())
    rows = [line.split() for line in cli("list").splitlines()]
    assert [row[0] for row in rows[1:13]] == [entry.name for entry in CATALOG]
    assert [row[0] for row in rows if row and row[-1] == "yes"] == [name]
    shipped = [[entry.name, entry.model_class, entry.alias] for entry in SHIPPED]
    assert [row for row in rows[13:] if row and row[0].startswith("chin")] == shipped
    content = json.loads(cli("list", "--json"))
    names = [entry.name for entry in CATALOG + SHIPPED]
    assert [entry["name"] for entry in content] == names
    here = {name, *(entry.name for entry in SHIPPED)}
    assert {entry["name"] for entry in content if entry["downloaded"]} == here
    # The name is as good as the path.
    assert json.loads(cli("inspect", name, "--json"))["model"] == "RoFormerMaskedLM"


@pytest.mark.parametrize(
    ("source", "model", "heads", "level"),
    [
        (SIM, "RoFormerSim", ["pooler", "mlm"], "character"),
        (GPT, "RoFormerCausalLM", ["mlm"], "character"),
        (WORD, "RoFormerMaskedLM", ["mlm"], "word"),
        (V2, "RoFormerMaskedLM", [], "character"),
        (NSP, "RoFormerMaskedLM", ["pooler", "nsp", "mlm"], "character"),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_inspect_says_what_a_source_holds(source, model, heads, level, cli):
    facts = json.loads(cli("inspect", source, "--json"))
    assert facts["model"] == model
    assert facts["heads"] == heads
    assert facts["level"] == level
    assert facts["vocabulary_size"] == zipped_json(source)["vocab_size"]
    assert facts["config"]["num_layers"] == 2
    assert facts["unexpected"] == facts["training_state"] == []
    truth = tensors_of(source)
    assert facts["tensors"] == {
        name: {"shape": list(value.shape), "dtype": "float32"}
        for name, value in truth.items()
    }
    short = cli("inspect", source)
    assert len(short.splitlines()) <= 12
    out = cli("inspect", source, "--tensors")
    assert out.startswith(short)
    count = sum(value.size for value in truth.values())
    assert f"tensors      {len(truth)}, {count:,} numbers" in out
    assert f"model        {model}" in out
    for name in truth:
        assert re.search(rf"^  {re.escape(name)} +float32 ", out, re.MULTILINE)


def test_inspect_marks_what_does_not_belong(tmp_path, cli):
    config = unpacked(SMALL, tmp_path) / "bert_config.json"
    out = cli("inspect", SAVED / "encoder-dense", "--config", config)
    assert len(re.findall(r"unexpected$", out, re.MULTILINE)) == 2
    assert "vocabulary   none" in out


def test_convert_prints_the_target(tmp_path, cli, refused):
    target = tmp_path / "x.keras"
    assert cli("convert", SIM, target) == f"{target}\n"
    assert_same(tensors_of(target), tensors_of(SIM))
    refused("convert", SIM, target, "--quiet", code=4)
    cli("convert", SMALL, target, "--quiet", "--overwrite")
    assert_same(tensors_of(target), tensors_of(SMALL))


@pytest.mark.parametrize(
    ("target", "flag", "message"),
    [
        ("hf://owner/name", "--overwrite", "gets a new commit: leave it out"),
        ("preset", "--private", "is for a repository at hf://OWNER/NAME, got preset"),
    ],
)
def test_convert_refuses_flags_of_the_other_target(target, flag, message, refused):
    assert message in refused("convert", SMALL, target, flag)


@pytest.mark.parametrize("source", [None, 3, b"x"])
def test_only_a_model_or_a_path_is_uploaded(source):
    with pytest.raises(ConfigurationError, match="a source must be a model of this"):
        push_to_hub(source, "owner/name")


def test_an_upload_needs_its_library_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigurationError, match="an upload to the Hub needs hugging"):
        push_to_hub("no such file", "owner/name")


def test_convert_takes_what_a_source_lacks(tmp_path, cli):
    folder = unpacked(SMALL, tmp_path)
    target, half = tmp_path / "x.zip", tmp_path / "half"
    cli(
        *("convert", SAVED / "encoder-dense.h5", target, "--quiet"),
        *("--config", folder / "bert_config.json"),
        *("--vocabulary", folder / "vocab.txt"),
        *("--ignore", "dense/dense/k*", "--ignore", "dense/dense/b*"),
    )
    truth = tensors_of(SMALL)
    expected = {name: truth[name] for name in truth if name.startswith("bert/e")}
    assert_same(tensors_of(target), expected)
    cli(
        *("convert", target, half, "--dtype", "float16", "--quiet"),
        *("--format", "safetensors", "--model", "RoFormerBackbone"),
    )
    assert_same(tensors_of(half), {n: v.astype("float16") for n, v in expected.items()})


@pytest.mark.parametrize("source", [CHARACTER, WORD], ids=lambda p: p.stem)
def test_tokenize_there_and_back(source, cli):
    texts = ["今天天气不错", "北京"]
    tokenizer = RoFormerTokenizer.from_preset(source)
    command = ("tokenize", "--source", source)
    lines = cli(*command, *texts).splitlines()
    ids = [list(map(int, line.split())) for line in lines]
    assert ids == [tokenizer.encode(text)[0] for text in texts]
    assert cli(*command, "--decode", *lines).splitlines() == texts
    (found,) = json_lines(cli(*command, texts[0], "--json"))
    assert found["token_ids"] == ids[0]
    assert found["tokens"] == tokenizer.tokenize(texts[0])
    for token, (start, end) in zip(found["tokens"], found["offsets"], strict=True):
        assert token in ("[CLS]", "[SEP]") or texts[0][start:end] == token
    assert len(cli(*command, texts[0], "--max-length", "4").split()) == 4


def test_tokenize_reads_lines_and_another_vocabulary(tmp_path, monkeypatch, cli):
    vocabulary = unpacked(WORD, tmp_path) / "vocab.txt"
    stdin(monkeypatch, "今天\n天气\n")
    out = cli("tokenize", "--source", SAVED / "lm", "-", "--vocabulary", vocabulary)
    tokenizer = RoFormerTokenizer.from_preset(WORD)
    assert [list(map(int, line.split())) for line in out.splitlines()] == [
        tokenizer.encode(text)[0] for text in ("今天", "天气")
    ]


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.alias)
def test_shipped_checkpoints_go_by_two_names(entry, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    for name in (entry.alias, entry.name, f"{entry.name}.zip"):
        assert resolve(name) == entry.path
        with pytest.raises(SourceError, match="comes with this package"):
            find(name)
    facts = json.loads(cli("inspect", entry.alias, "--json"))
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
    (tmp_path / "roformer-char").mkdir()
    assert str(resolve("roformer-char")) == "roformer-char"


def test_all_of_them_are_small():
    assert sum(entry.path.stat().st_size for entry in SHIPPED) <= 20e6


def test_they_share_a_vocabulary():
    vocabularies = {
        tuple(RoFormerTokenizer.from_preset(entry.alias).vocabulary)
        for entry in SHIPPED
    }
    assert len(vocabularies) == 1


def test_pages_list_every_command():
    names = list(find_commands())
    for language in ("", ".zh"):
        page = (ROOT / "docs" / f"command-line{language}.md").read_text("utf-8")
        assert re.findall(r"^\| `([a-z-]+)` \|", page, re.M) == names
        page = (ROOT / "docs" / f"features{language}.md").read_text("utf-8")
        row = re.search(r"^\| (?:Commands|命令) \|.*$", page, re.M)
        assert sorted(re.findall(r"`([a-z][a-z-]*)`", row[0])) == names
    assert len(names) > 20

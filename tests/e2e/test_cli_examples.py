"""The checkpoints of this package, and the examples of every command's help."""

import gzip
import json
import re
import shlex

import pytest
from common import reference_folder, written_tiny_seq2seq
from common import run_main as run
from finetuning_cases import NER, PAIRS, REVIEWS, train_eagerly, written
from one_layer import read_shipped_from

from roformer_keras import RoFormerSim


def test_they_know_what_they_were_trained_for(capsys):
    code, out, _ = run("fill-mask", "太祖[MASK]位，大赦天下。", "--json", capsys=capsys)
    candidates = json.loads(out)["masks"][0]
    assert code == 0
    assert candidates[0]["token"] == "即"
    # A line of five characters is continued in lines of five.
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


# What is added to an example so that it is short.
SHORT = {
    "pretrain": "--steps 2 --batch-size 2 --length 16 --overwrite",
    "finetune": "--epochs 1",
    "verify": "--lengths 1,9",
}
# `finetune` makes what the three after it use.
COMMANDS = ("inspect", "convert", "verify", "fill-mask", "embed", "generate")
COMMANDS = (*COMMANDS, "paraphrase", "similarity", "tokenize", "pretrain")
COMMANDS = (*COMMANDS, "finetune predict evaluate")


@pytest.mark.parametrize("verbs", COMMANDS)
def test_the_examples_of_the_help_run(verbs, one_layer, tmp_path, monkeypatch, capsys):
    read_shipped_from(one_layer, monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    train_eagerly(monkeypatch)
    poem = ["床前明月光，疑是地上霜。", "举头望明月，低头思故乡。"]
    for name, content in (
        ("corpus.txt", "".join(f"{line}\n" for line in poem * 20)),
        ("sentences.txt", "".join(f"{line}\n" for line in poem)),
        ("texts.txt", "今天天气不错\n不是我们\n"),
        ("reviews.tsv", REVIEWS),
        ("held-out.tsv", REVIEWS),
        ("pairs.tsv", "a dog runs\tein Hund rennt\n" * 40),
        ("ner.bio", NER),
        ("test.tsv", "天地\t地天\n日月\t月日\n"),
    ):
        written(tmp_path, name, content)
    with gzip.open(tmp_path / "poems.jsonl.gz", "wt") as file:
        file.write((json.dumps({"lines": poem}) + "\n") * 40)
    if verbs.startswith("finetune"):
        written(tmp_path, "pairs.tsv", PAIRS)
        (tmp_path / "run").mkdir()
        written_tiny_seq2seq(tmp_path / "run" / "preset")
    if verbs == "verify":
        folder = reference_folder()
        if folder is None:
            pytest.skip("needs bert4keras")
        monkeypatch.setenv("ROFORMER_KERAS_REFERENCE", str(folder.resolve()))
    for verb in verbs.split():
        _, shown, _ = run(verb, "--help", capsys=capsys)
        examples = shown.partition("\nexamples:\n")[2].splitlines()
        assert examples
        for example in examples:
            line = [*shlex.split(example)[1:], *SHORT.get(verb, "").split()]
            if "--holdout" in line:
                line += ["--holdout", "0.4"]
            code, out, err = run(*line, capsys=capsys)
            assert code == 0, err
            assert out

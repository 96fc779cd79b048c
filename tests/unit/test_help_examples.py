"""The examples of every command's help run, up to where they need a backend."""

import gzip
import json
import shlex
import sys

from common import run_main, write_lines
from one_layer import write_one_layer

from roformer_keras.cli.main import find_commands
from roformer_keras.hub import catalog

# Where a command ends that needs a library.
ENDS = ("import of keras halted", "import of ray halted")
POEM = ["床前明月光，疑是地上霜。", "举头望明月，低头思故乡。"]
REVIEWS = ["好极了\t1", "太差了\t0"] * 8
# Files that the examples name.
FILES = {
    "corpus.txt": POEM * 20,
    "sentences.txt": POEM,
    "texts.txt": ["今天天气不错", "不是我们"],
    "reviews.tsv": REVIEWS,
    "held-out.tsv": REVIEWS,
    "pairs.tsv": ["天地\t地天", "日月\t月日"] * 8,
    "test.tsv": ["天地\t地天", "日月\t月日"],
    "finetune_scm.py": ["from bert4keras.backend import keras", "print(keras)"],
    "ner.bio": ["他 O", "在 O", "北 B-地", "京 I-地", ""] * 8,
}


def test_the_examples_of_the_help_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "shipped").mkdir()
    write_one_layer(tmp_path / "shipped")
    monkeypatch.setattr(catalog, "_SHIPPED_FOLDER", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    for library in ("keras", "ray"):
        monkeypatch.setitem(sys.modules, library, None)
    for name, lines in FILES.items():
        write_lines(tmp_path / name, lines)
    with gzip.open("poems.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write((json.dumps({"lines": POEM}) + "\n") * 8)
    completed, wrong, count = set(), [], 0
    for command in find_commands():
        _, shown, _ = run_main(command, "--help", capsys=capsys)
        for example in shown.partition("\nexamples:\n")[2].splitlines():
            count += 1
            try:
                code, out, err = run_main(*shlex.split(example)[1:], capsys=capsys)
            except ImportError as error:
                code, out, err = None, "", str(error)
            if code == 0 and out:
                completed.add(command)
            elif not any(end in err for end in ENDS):
                wrong.append((example, code, out, err))
    assert wrong == []
    assert completed == {"convert", "inspect", "tokenize"}
    assert count > 35

"""The examples of every command's help run, up to where they need a backend.

And commands and flags that messages and pages name are there.
"""

import ast
import functools
import gzip
import json
import re
import shlex
import sys
import types

import pytest
from common import ROOT, parser_of, run_main, write_file, write_lines
from one_layer import write_one_layer

from roformer_keras.cli.main import find_commands
from roformer_keras.hub import catalog
from roformer_keras.tasks import TASKS

# Where a command ends that needs a library, or a preset that is not there.
ENDS = (
    "import of keras halted",
    "needs ray, which cannot be imported (import of ray halted",
    "bert4keras is not installed",
)
POEM = ["床前明月光，疑是地上霜。", "举头望明月，低头思故乡。"]
REVIEWS = ["好极了\t1", "太差了\t0"] * 8
# Files that the examples name.
FILES = {
    "corpus.txt": POEM * 20,
    "sentences.txt": POEM,
    "answers.txt": POEM,
    "queries.txt": POEM,
    "texts.txt": ["今天天气不错", "不是我们"],
    "reviews.tsv": REVIEWS,
    "held-out.tsv": REVIEWS,
    "pairs.tsv": ["天地\t地天", "日月\t月日"] * 8,
    "test.tsv": ["天地\t地天", "日月\t月日"],
    "finetune_scm.py": ["import bert4keras"],
    "training.ipynb": ['{"cells": []}'],
    "ner.bio": ["他 O", "在 O", "北 B-地", "京 I-地", ""] * 8,
}

# Of trainings, which are empty here.
FOLDERS = ("reviews", "run/preset", "sentences.index")


def test_the_examples_of_the_help_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "shipped").mkdir()
    write_one_layer(tmp_path / "shipped")
    monkeypatch.setattr(catalog, "_SHIPPED_FOLDER", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    # The backend of the default format of an export, which is not imported.
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    for library in ("keras", "ray"):
        monkeypatch.setitem(sys.modules, library, None)
    for module in [name for name in sys.modules if ".bert4keras" in name]:
        # Imported by a test of another tier, with Keras.
        monkeypatch.delitem(sys.modules, module)
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    for name, lines in FILES.items():
        write_lines(tmp_path / name, lines)
    record = {"source": "roformer-sim-char", "count": 1, "probes": []}
    write_file(tmp_path / "sentences.index" / "index.json", record)
    with gzip.open("poems.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write((json.dumps({"lines": POEM}) + "\n") * 8)
    completed, wrong, count = set(), [], 0
    for command in find_commands():
        _, shown, _ = run_main(command, "--help", capsys=capsys)
        for example in shown.partition("\nexamples:\n")[2].splitlines():
            count += 1
            # The preset of another example is in `run`; labelled pairs have scores.
            example = re.sub("-o (run|sentences.index)", "-o new", example)
            score = "\t0.5" if "--pairs" in example else ""
            write_lines(
                tmp_path / "pairs.tsv", [row + score for row in FILES["pairs.tsv"]]
            )
            try:
                code, out, err = run_main(*shlex.split(example)[1:], capsys=capsys)
            except ImportError as error:
                code, out, err = None, "", str(error)
            if code == 0 and out:
                completed.add(command)
            elif not any(end in err + out for end in ENDS):
                wrong.append((example, code, out, err))
    assert wrong == []
    assert completed == {"completion", "convert", "inspect", "port", "tokenize"}
    assert count > 35


# === What messages and pages name ===

PACKAGE = ROOT / "roformer_keras"
# Files of one command whose messages name flags without it.
OWNERS = {
    "server": "serve",
    "training/results.py": "finetune",
    # As all commands that run on Ray.
    "distributed": "embed",
    "base/extras.py": "embed",
}
# Commands of other programs, which have their own flags.
OTHERS = re.compile(r"\b(?:pip|ray|python3?|docker|curl) (?!serve)[^`\n]*")


@functools.cache
def flags_of(verb):
    return set(parser_of(verb)._option_string_actions)


def texts_of(path):
    """The strings of a module, with {} in place of the values that are put in."""
    inner = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inner |= set(node.values)
            parts = [getattr(part, "value", None) for part in node.values]
            yield "".join(part if isinstance(part, str) else "{}" for part in parts)
        elif isinstance(node, ast.Constant) and node not in inner:
            yield str(node.value)


def wrong_names(text, owners=()):
    """Commands, tasks and flags in a text that do not exist.

    A flag must be one of a command that is named before it, or of an owner.
    """
    verbs, text = find_commands(), OTHERS.sub("", text)
    for name in re.findall(r"`roformer-keras ([a-z][a-z-]*)", text):
        if name not in verbs:
            yield name
    for name in re.findall(r"\bfinetune ([a-z]+-[a-z-]+)", text):
        if name not in TASKS:
            yield name
    for match in re.finditer(r"(?<![\w-])--[a-z][\w-]*(?![\w{-])", text):
        if match[0] in ("--help", "--version"):
            continue
        named = set(re.findall(r"[a-z-]+", text[: match.start()])) & set(verbs)
        if not any(match[0] in flags_of(verb) for verb in named | set(owners)):
            yield match[0]


def owners_of(path):
    name = path.relative_to(PACKAGE).as_posix()
    if name.startswith(("cli/", "verbs/")):
        verb = path.stem.replace("_", "-")
        return [verb] if verb in find_commands() else find_commands()
    return [verb for start, verb in OWNERS.items() if name.startswith(start)]


def test_commands_and_flags_that_messages_name_exist():
    assert [*wrong_names("`roformer-keras finetune --task sentence-embedding`")]
    assert [*wrong_names("leave --unilm out")] and not [*wrong_names("pip x --target")]
    wrong = [
        (path.name, name, text)
        for path in PACKAGE.rglob("*.py")
        # It names flags that are withdrawn.
        if path.name != "other_names.py"
        for text in texts_of(path)
        if "--" in text or "roformer-keras" in text or "finetune" in text
        for name in wrong_names(text, owners_of(path))
    ]
    assert wrong == []


def test_commands_and_flags_that_pages_name_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    wrong = [
        (page.name, name, line)
        for page in pages
        for line in re.findall(
            r"roformer-keras (?:[^`\\\n]|\\\n)+", page.read_text(encoding="utf-8")
        )
        for name in wrong_names(f"`{line}")
    ]
    assert wrong == []


# Words of Python, and names that are no flags, files or values of a flag.
PYTHON = re.compile(
    r"\bNone\b|\bTrue\b|\bFalse\b|\bsee \w+_|\"|`|\bstr\b|\bfloat\b|\bint\b"
    r"|\b[a-z0-9]+_[a-z0-9_]+\b(?![./])"
)


@pytest.mark.parametrize("name", find_commands())
def test_the_help_has_the_words_of_a_command_line(name):
    parser = parser_of(name)
    titles = [group.title for group in parser._action_groups]
    assert len(set(titles)) == len(titles)
    values = {
        str(value) for action in parser._actions for value in action.choices or ()
    }
    for action in parser._actions:
        text = re.sub("datasets.Dataset.save_to_disk|bert/.*position_", "", action.help)
        wrong = set(PYTHON.findall(text)) - values
        assert not wrong, f"{action.dest}: {wrong} in {text}"

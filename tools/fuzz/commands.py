"""Targets that run command lines of random flags and values."""

import argparse
import contextlib
import functools
import importlib
import io
import json
import random
import sys
from pathlib import Path

from tools.fuzz import seeds
from tools.fuzz.formats import Files
from tools.fuzz.mutate import LARGE_INTEGERS, random_text
from tools.fuzz.target import Target, expect

# What a command line may end with; 1 is a difference that `verify` found.
_CODES = (0, 2, 3, 4, 5, 6)
# Those that need no model.
_LIGHT = ("inspect", "tokenize", "convert", "list", "download")
# `finetune` and `pretrain` get no data: what a training does with settings that are
# right takes long. `verify` starts bert4keras.
_OTHERS = ("embed", "similarity", "fill-mask", "generate", "paraphrase", "predict")
_OTHERS += ("evaluate", "export", "finetune", "pretrain")
_PATHS = ("x.zip", "gpt.zip", "sim.zip", "lines.txt", "pairs.tsv", "x.toml", "absent")
_PATHS += (
    "vocab.txt",
    "bert_config.json",
    ".",
    "..",
    "",
    "out",
    "out.jsonl",
    "a/b",
    "-",
)
# No integer with which a right command would run for hours.
_NUMBERS = ("0", "1", "2", "3", "-1", "1.5", "-0.0", "nan", "inf", "1e400", "1e-400")
_NUMBERS += ("٣", "1_0", "0x1", " 1", "", *map(str, LARGE_INTEGERS))
# Flags of which large values are right, but mean a long run.
_COUNTS = ("--n", "--k", "--num-return-sequences", "--epochs", "--batch-size")


@functools.cache
def _parsers():
    """The parsers of all commands, by name."""
    module = importlib.import_module("roformer_keras.cli.main")
    verbs = argparse.ArgumentParser().add_subparsers()
    parsers = {}
    for name, command in module.find_commands().items():
        parsers[name] = module._add_command(verbs, name, command)
        module.add_flags(parsers[name], command)
    return parsers


def _mutate_line(names):
    def mutate(draw: random.Random, files: Files) -> Files:
        words = _random_line(draw, draw.choice(names))
        text = random_text(draw, surrogates=False)
        lines = json.dumps(words).encode()
        return {**files, "arguments.json": lines, "stdin": text.encode()}

    return mutate


def _random_line(draw, name):
    """A command with its operands, mostly as they should be, and a few flags."""
    words = [name]
    actions = _parsers()[name]._actions[1:]
    operands = [action for action in actions if not action.option_strings]
    flags = [action for action in actions if action.option_strings]
    required = [action for action in flags if action.required]
    for action in operands:
        if draw.random() < 0.95:
            words.append(_operand(draw, name, action))
    chosen = required + draw.sample(flags, min(len(flags), draw.choice((0, 1, 2, 3))))
    for action in chosen:
        words.append(draw.choice(action.option_strings))
        # Most flags take a value; the others then see an argument too many.
        if action.nargs != 0 or draw.random() < 0.05:
            words.append(_value(draw, action))
    if draw.random() < 0.05:
        words.insert(draw.randrange(len(words)), random_text(draw, 5, surrogates=False))
    return [word.replace("\0", "x") for word in words]


_SOURCES = {"similarity": ("sim.zip",), "generate": ("gpt.zip",)}
_OUTPUTS = ("out", "out.zip", "out.keras", "out.safetensors", "out.weights.h5")


def _operand(draw, name, action):
    if draw.random() < 0.15:
        return _value(draw, action)
    if name in ("finetune", "pretrain"):
        known = action.choices or ("absent",)
    elif action.dest == "source" or name == "inspect":
        known = _SOURCES.get(name, ("x.zip", "gpt.zip", "sim.zip"))
    elif name == "convert":
        known = _OUTPUTS
    else:
        known = ("lines.txt", "pairs.tsv", "今天[MASK]气", "-")
    return draw.choice(list(known))


def _value(draw, action):
    if action.choices and draw.random() < 0.7:
        return str(draw.choice(list(action.choices)))
    how = draw.random()
    if how < 0.4:
        numbers = _NUMBERS
        if draw.choice(action.option_strings or [""]) in _COUNTS:
            numbers = [n for n in numbers if len(n) < 4]
        return draw.choice(numbers)
    if how < 0.9:
        return draw.choice(_PATHS)
    return random_text(draw, 20, surrogates=False)


def _run_line(folder: Path):
    from roformer_keras.cli import main

    words = json.loads((folder / "arguments.json").read_bytes())
    out, err = io.StringIO(), io.StringIO()
    with (
        open(folder / "stdin", encoding="utf-8") as stdin,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        before, sys.stdin = sys.stdin, stdin
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.stdin = before
    said = err.getvalue()
    expect(code in _CODES, "an exit code that is documented", words, code)
    expect("Traceback" not in said, "no traceback", words, said)
    expect(code == 0 or said.strip(), "an error is said", words)


def _folders(_):
    return [
        {
            **seeds.bundle(),
            "x.zip": seeds.SMALL.read_bytes(),
            "gpt.zip": seeds.GPT.read_bytes(),
            "sim.zip": seeds.SIM.read_bytes(),
            "lines.txt": "今天\n天气不错\n".encode(),
            "pairs.tsv": "今天\t天气\n".encode(),
            "x.toml": b"seed = 3\n",
            "arguments.json": b'["list"]',
            "stdin": b"",
        }
    ]


TARGETS = {
    "commands-light": Target(_folders, _run_line, _mutate_line(_LIGHT)),
    "commands": Target(
        _folders, _run_line, _mutate_line(_OTHERS), seconds=120, needs_keras=True
    ),
}

"""Which word of a command line is which, where the source may be left out.

argparse counts an operand that may be left out as left out as soon as an option stands
before it, and takes none behind an option that stands between. So all of them are
gathered in one list, and told apart here.
"""

import argparse
import os
import sys
from collections.abc import Callable

from roformer_keras.hub.catalog import is_shipped

__all__ = ["add", "resolve", "say_taken"]

_SOURCE = (
    "SOURCE: a zip, folder, checkpoint prefix, .h5, .keras or .safetensors file, "
    "preset folder, or the name of a downloaded checkpoint"
)
_DEFAULT = " (default: {}, a small one that comes with this package)"

# Of `pretrain`.
_TASKS = ("mlm", "lm", "sim", "seq2seq")

# What is a checkpoint by its name, as far as a mistyped line is concerned.
_CHECKPOINTS = (".zip", ".ckpt", ".h5", ".keras", ".safetensors")


def add(
    verb: argparse.ArgumentParser,
    split: Callable,
    shape: str,
    default: str | None,
    help: str = "",
    default_of: Callable | None = None,
) -> None:
    """Gives a verb its operands.

    Args:
        verb: its parser.
        split: one of the functions below; from words and options to names.
        shape: str. The operands in the line of usage.
        default: str. The checkpoint that is meant where none is named; None if one
            must be, or there is none among the operands.
        help: str. What is said of the operands beside the source.
        default_of: of the options; where they tell the checkpoint that is meant.
    """
    verb.usage = f"{verb.prog} {shape} [OPTION ...]"
    parts = [_SOURCE + _DEFAULT.format(default) if default else "", help]
    verb.add_argument(
        "operands",
        nargs="*",
        metavar=shape,
        help=". ".join(filter(None, parts)),
    )
    verb.set_defaults(
        verb=verb,
        split=split,
        shape=shape,
        default_of=default_of or (lambda options: default),
    )


def resolve(parser: argparse.ArgumentParser, options: dict, rest: list[str]) -> None:
    """Puts named operands into the place of the list, in place.

    Says on standard error which checkpoint is taken where none was named.

    Args:
        parser: of the whole command.
        options: as they were parsed.
        rest: words that the parser could place nowhere.
    """
    split = options.pop("split", None)
    if any(len(word) > 1 and word.startswith("-") for word in rest) or (
        rest and split is None
    ):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if split is None:
        return
    verb, shape = options.pop("verb"), options.pop("shape")
    default_of = options.pop("default_of")
    try:
        found = split([*options.pop("operands"), *rest], options)
    except _WrongOperands as error:
        verb.error(str(error))
    if "source" in found and found["source"] is None:
        found["source"] = default_of(options)
        if found["source"] is None:
            verb.error(f"the following arguments are required: {shape.split()[0]}")
        if not options.get("quiet"):
            say_taken(found["source"])
    options.update(found)


def say_taken(checkpoint: str) -> None:
    """Says on standard error which checkpoint is taken where none was named."""
    print(
        f"roformer-keras: taking {checkpoint}, a small checkpoint that comes with this "
        "package",
        file=sys.stderr,
    )


class _WrongOperands(Exception):
    """Operands that are too few, too many, or not what they must be."""


def source(words, options):
    """`[SOURCE]`"""
    _check_most(words, 1)
    return {"source": words[0] if words else None}


def source_and_target(words, options):
    """`[SOURCE] TARGET`: a single one that exists was more likely meant as a source."""
    found = _source_and("target", words)
    if found["source"] is None and os.path.exists(found["target"]):
        raise _WrongOperands(
            f"{found['target']} exists: name a target behind it, or a source before it"
        )
    return found


def source_and_input(words, options):
    """`[SOURCE] INPUT`"""
    return _source_and("input", words)


def source_or_input(words, options):
    """`[SOURCE] [INPUT]`

    A single one is the source if texts are given by options, or if it looks like one:
    what is missing then is the input.
    """
    _check_most(words, 2)
    first, second = [*words, None, None][:2]
    has_texts = any(options.get(name) is not None for name in ("texts", "pairs"))
    if second is None and first is not None and not has_texts:
        is_source = os.path.isdir(first) or first.endswith(_CHECKPOINTS)
        is_source |= is_shipped(first)
        first, second = (first, None) if is_source else (None, first)
    return {"source": first, "input": second}


def source_and_texts(words, options):
    """`[SOURCE] TEXT ...`: the first of several is the source, unless it is a text."""
    if not words or (len(words) == 1 and is_shipped(words[0])):
        raise _WrongOperands("the following arguments are required: TEXT")
    if len(words) == 1 or words[0] == "-" or "[MASK]" in words[0]:
        return {"source": None, "texts": words}
    return {"source": words[0], "texts": words[1:]}


def task_and_files(words, options):
    """`TASK [FILE ...]`"""
    task = words[0] if words else None
    if task not in _TASKS:
        raise _WrongOperands(f"TASK must be one of {', '.join(_TASKS)}, got {task}")
    return {"task": task, "files": words[1:]}


def _source_and(name, words):
    _check_most(words, 2)
    if not words:
        raise _WrongOperands(f"the following arguments are required: {name.upper()}")
    return {"source": words[0] if len(words) == 2 else None, name: words[-1]}


def _check_most(words, count):
    if len(words) > count:
        raise _WrongOperands(f"unrecognized arguments: {' '.join(words[count:])}")

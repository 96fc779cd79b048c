"""Flags of a command, made from its signature and docstring, and from settings.

Positional arguments of a command's function become operands, keywords become flags, and
so do the fields of a dataclass: `ema` of its table `optimizer` is the flag `--ema`,
which arrives as the keyword `optimizer.ema`. Types, choices, bounds and defaults are
those of the signature; the help is the section Args of the docstring.
"""

import argparse
import dataclasses
import functools
import importlib
import inspect
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from roformer_keras.base.checks import check_integer, check_number
from roformer_keras.base.errors import ConfigurationError, Hint
from roformer_keras.cli.completion import (
    complete_released,
    complete_source,
)

# An integer of at least 1, with which arrays can be made.
Count = typing.Annotated[
    int, functools.partial(check_integer, minimum=1, maximum=2**31 - 1)
]
# What several commands mean by a name that their docstrings do not explain.
_HELP = {
    "source": "checkpoint: a zip, folder, checkpoint prefix, .h5, .keras or "
    ".safetensors file, preset folder, folder of Hugging Face, hf://owner/name, or the "
    "name of a downloaded checkpoint",
    "config": "bert_config.json, if the source has none",
    "vocabulary": "vocab.txt, if the source has none",
    "as_json": "print JSON, for programs",
    "overwrite": "replace the output",
    "quiet": "show no progress and no remarks",
}
# Titles of the tables of flags, where the name of one does not say it.
_TITLES = {
    "data": "texts of the corpus",
    "stages": "updates",
    "options": "of one task",
    "ray": "with --engine ray",
}
_FLAGS = {"as_json": ["--json"], "output": ["-o", "--output"]}
# The type of an argument in a docstring, and bounds in Python and in words.
_TYPE = r"^(int|float|str|bool|path)( or None| of \w+| from [^.]*)?(\. |$)"
_BOUNDS = {
    "float in [0, 1)": "from 0 to less than 1",
    "float in (0, 1]": "above 0, at most 1",
    "float, 0 for none": "0 for none",
    "int, 0 for none": "0 for none",
    "int in [0, num_processes)": "from 0",
}
_CHECKS = {int: check_integer, float: check_number, str: lambda name, value: None}
_METAVARS = {int: "N", float: "X", str: "NAME"}
_REQUIRED = inspect.Parameter.empty
# Arguments whose values are names that a shell can complete.
_COMPLETERS = {
    "source": complete_source,
    "teacher": complete_source,
    "names": complete_released,
}


@dataclasses.dataclass(frozen=True)
class _Argument:
    """An argument of a function, or a field of settings."""

    name: str
    kind: object
    default: object
    help: str
    rule: Mapping
    is_operand: bool = False
    is_setting: bool = False

    @property
    def field(self) -> str:
        """The name without the table."""
        return self.name.rpartition(".")[2]


def add_flags(
    parser: argparse.ArgumentParser,
    function: Callable,
    settings: type | None = None,
    tables: Mapping[str, type] | None = None,
    options: Iterable[type] = (),
) -> None:
    """Adds the operands and flags of a command to its parser."""
    fields = [] if settings is None else list(_fields(settings))
    shared: dict[str, _Argument] = {}
    for kind in options:
        shared |= {one.name: one for one in _fields(kind)}
    fields += [dataclasses.replace(one, is_setting=False) for one in shared.values()]
    parameters = list(_parameters(function))
    # A parameter of a field's name has its rule, and its help unless it has its own.
    known = {one.field: one for one in fields}
    for one in parameters:
        field = known.get(one.name, one)
        help = one.help or field.help
        _add(parser, dataclasses.replace(one, help=help, rule=one.rule or field.rule))
    taken = {one.name for one in parameters}
    fields = [one for one in fields if one.field not in taken]
    taken |= {one.name for one in fields}
    for table, kind in (tables or {}).items():
        fields += [one for one in _fields(kind, f"{table}.") if one.field not in taken]
    groups: dict[str, Any] = {"": parser}
    for one in fields:
        table = one.name.rpartition(".")[0]
        if table not in groups:
            groups[table] = parser.add_argument_group(_TITLES.get(table, table))
        _add(groups[table], one)


def find_class(full_name: str) -> type:
    """The class of a full name, imported now."""
    module_name, _, name = full_name.rpartition(".")
    return getattr(importlib.import_module(module_name), name)


def merge_flags(content: Mapping, flags: Mapping) -> dict:
    """Settings of a file with those of flags in their place."""
    merged = dict(content)
    for keyword, value in flags.items():
        table, _, name = keyword.rpartition(".")
        if not table:
            merged[name] = value
        elif isinstance(merged.get(table), list | tuple):
            merged[table] = [{**entry, name: value} for entry in merged[table]]
        else:
            merged[table] = {**merged.get(table, {}), name: value}
    return merged


def show_hint(hint: str, parser: argparse.ArgumentParser) -> str | None:
    """A hint whose arguments are the flags of a parser; None if nothing is left."""
    known = set(re.findall(r"--[\w-]+", parser.format_help()))

    def show(name, value):
        flag = f"--{name.replace('_', '-')}"
        if flag not in known:
            return None
        if value is None or value is True:
            return flag
        text = ",".join(value) if isinstance(value, list) else str(value)
        return f"{flag} {shlex.quote(text)}"

    return hint.shown(show) if isinstance(hint, Hint) else hint


def _parameters(function) -> Iterator[_Argument]:
    helps = read_docstring(function)
    for one in inspect.signature(function).parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            kind, rule = _unwrap(one.annotation)
            is_operand, help = one.kind is not one.KEYWORD_ONLY, helps.get(one.name, "")
            yield _Argument(one.name, kind, one.default, help, rule, is_operand)


def _fields(settings, table: str = "") -> Iterator[_Argument]:
    helps: dict[str, str] = {}
    for kind in reversed(settings.__mro__):
        # A class says again what an option of its base means only where that differs.
        texts = read_docstring(kind) if kind.__doc__ else {}
        helps |= {
            name: help for name, help in texts.items() if not help.startswith("as in ")
        }
    for field in dataclasses.fields(settings):
        # A table of any options can name those of them that are flags.
        known = field.metadata.get("flags")
        nested = [known, field.type, *typing.get_args(field.type)]
        nested = list(filter(dataclasses.is_dataclass, nested))
        if nested:
            yield from _fields(nested[0], f"{field.name}.")
            continue
        if not field.init:
            continue
        kind, help = _unwrap(field.type)[0], helps.get(field.name, "")
        rule, name = field.metadata, f"{table}{field.name}"
        yield _Argument(name, kind, field.default, help, rule, is_setting=True)


def _unwrap(kind) -> tuple:
    """A type without None and without its check; and a rule with that check."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Annotated:
        kind, check = typing.get_args(kind)
        return kind, {"check": check}
    return kind, {}


def read_docstring(target) -> dict[str, str]:
    """Text of each name in the section Args of a docstring, as a flag has it.

    The type is left out, and where else to read; other arguments are their flags.
    """
    found: dict[str, str] = {}
    _, _, section = (inspect.getdoc(target) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    for entry in re.split(r"\n(?= {4}\S)", section):
        names, _, text = entry.strip().partition(": ")
        text = re.sub(r" See `\w+`\.$", "", re.sub(r"\s+", " ", text))
        found |= dict.fromkeys(names.split(", "), text)
    return {name: _as_help(text, found) for name, text in found.items()}


def _as_help(text, names):
    """The text of an argument as the help of a flag."""

    def shown(name):
        return f"--{name[1].replace('_', '-')}" if name[1] in names else name[1]

    text = re.sub(r"`(\w+)`", shown, text).replace("`", "").replace('"', "")
    text = re.sub(_TYPE, "", text.removesuffix("."))
    # What a type says besides stands at the end.
    text = re.sub(r"^(\w+ in [^.]*|[^.]*0 for none)\. (.*)$", _with_bounds, text)
    return re.sub(r"^[A-Z](?=[a-z])", lambda first: first[0].lower(), text)


def _with_bounds(match):
    """A text after its bounds, which a reader of the help wants last."""
    bounds, text = match.groups()
    for old, new in _BOUNDS.items():
        bounds = bounds.replace(old, new)
    return f"{text}; {bounds}"


def _add(parser, argument: _Argument) -> None:
    options = _options_of(argument)
    if options is None:
        return
    default, choices = argument.default, options.get("choices", ())
    help = argument.help or _HELP.get(argument.name, "")
    help = (help or f"one of {', '.join(choices)}").replace("%", "%%")
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    is_shown = isinstance(default, int | float | str) and not isinstance(default, bool)
    if is_shown and default != "" and "default" not in help:
        shown = f"{default:g}" if isinstance(default, float) else default
        help += f" (default: {shown})"
    options = {"help": help, "default": argparse.SUPPRESS, **options}
    name = argument.name.replace("_", "-")
    if argument.is_operand:
        if options.get("nargs") == "?":
            # argparse takes SUPPRESS for one of the choices.
            options["default"] = argument.default
        action = parser.add_argument(
            argument.name, **{"metavar": name.upper(), **options}
        )
        action.completer = _COMPLETERS.get(argument.name)
        return
    table, _, field_name = name.rpartition(".")
    # The name of an optimizer is the flag --optimizer.
    field_name = argument.rule.get(
        "flag", table if table and field_name == "name" else field_name
    )
    flags = _FLAGS.get(argument.name, [f"--{field_name}"])
    if options.get("action") == "store_false":
        flags = [f"--no-{field_name}"]
    if not options.keys() & {"action", "choices", "metavar"}:
        options["metavar"] = field_name.upper()
    is_required = not argument.is_setting and default is _REQUIRED
    options |= {"dest": argument.name, "required": is_required}
    action = parser.add_argument(*flags, **options)
    action.completer = _COMPLETERS.get(argument.name)


def _options_of(argument: _Argument) -> dict | None:
    """Keywords of `add_argument` for a type; None if it cannot be a flag."""
    kind, rule = argument.kind, argument.rule
    origin, kinds = typing.get_origin(kind) or kind, typing.get_args(kind)
    is_optional = argument.is_operand and argument.default is not _REQUIRED
    count: dict[str, Any] = {"nargs": "?"} if is_optional else {}
    if kind is bool:
        if argument.is_setting:
            # A file can have said the opposite.
            return {"action": argparse.BooleanOptionalAction}
        return {"action": "store_false" if argument.default else "store_true"}
    if origin is typing.Literal or "choices" in rule:
        choices = kinds or rule["choices"]
        return {"choices": tuple(one for one in choices if one is not None), **count}
    if rule.get("repeated"):
        return {"action": "append", "metavar": "TEXT"}
    if origin is list:
        if argument.is_operand:
            return {"nargs": "*" if is_optional else "+"}
        counts: dict[Any, dict] = {
            tuple[str, str]: {"nargs": 2},
            list[str]: {"nargs": "+"},
        }
        return {"action": "append", "metavar": "TEXT", **counts.get(kinds[0], {})}
    if kind is str:
        return count
    kind = kinds[0] if origin is tuple else kind
    if kind not in _CHECKS:
        return None
    metavar, check = _METAVARS[kind], _CHECKS[kind]
    if origin is tuple:
        parse = functools.partial(_parse_list, kind, check)
        return {"type": parse, "metavar": f"{metavar},..."}
    parse = functools.partial(_parse, kind, rule.get("check", check))
    return {"type": parse, "metavar": metavar, **count}


def _parse(kind, check, text):
    try:
        value = kind(text)
    except ValueError:
        value = text
    try:
        check("the value", value)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return value


def _parse_list(kind, check, text):
    parts = text.split(",")
    if "" in parts:
        raise argparse.ArgumentTypeError(
            f"the value must be a list with commas between, got {text!r}"
        )
    return tuple(_parse(kind, check, part) for part in parts)

"""Flags of a command, made from its signature and docstring, and from settings.

Positional arguments of a command's function become operands, keywords become flags, and
so do the fields of a dataclass: `ema` of its table `optimizer` is the flag `--ema`,
which arrives as the keyword `optimizer.ema`. Types, choices, bounds and defaults are
those of the signature; the help is the section Args of the docstring.
"""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import pkgutil
import re
import shlex
import types
import typing
from collections.abc import Mapping
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
# The type of an argument in a docstring.
_TYPE = r"^(int|float|str|bool|path)( or None| of \w+| from [^.]*)?(\. |$)"
_CHECKS = {int: check_integer, float: check_number, str: lambda name, value: None}
_METAVARS = {int: "N", float: "X", str: "NAME"}
_REQUIRED = inspect.Parameter.empty
# Arguments whose values are names that a shell can complete.
_COMPLETERS = {
    "source": complete_source,
    "teacher": complete_source,
    "names": complete_released,
}


class _Argument(typing.NamedTuple):
    """An argument of a function, or a field of settings."""

    name: str
    kind: Any
    default: object
    help: str
    rule: Mapping
    is_operand: bool
    is_setting: bool


def add_flags(parser: argparse.ArgumentParser, command: Any) -> None:
    """Adds the operands and flags of a command, see `cli.main`, to its parser."""
    options: dict[str, _Argument] = {}
    settings: dict[str, _Argument] = {}
    for kind in getattr(command, "OPTIONS", ()):
        options |= _arguments(kind)
    for table, kind in getattr(command, "SETTINGS", {}).items():
        settings |= _arguments(kind, table, is_setting=True)
    # A command may explain the options of its classes in other words.
    helps = read_docstring(command.run)
    for name, one in options.items():
        options[name] = one._replace(help=helps.get(name, one.help))
    arguments, known = {}, {**settings, **options}
    for name, one in _arguments(command.run).items():
        # It has the rule of a field of its name, and the help unless it has its own.
        field = known.get(name, one)
        help, rule = one.help or field.help, one.rule or field.rule
        arguments[name] = one._replace(help=help, rule=rule)
    for fields in (options, settings):
        taken = {*arguments}
        for name, one in fields.items():
            if name.rpartition(".")[2] not in taken:
                arguments[name] = one
    groups: dict[str, Any] = {"": parser}
    for one in arguments.values():
        table = one.name.rpartition(".")[0]
        if table not in groups:
            groups[table] = parser.add_argument_group(_TITLES.get(table, table))
        _add(groups[table], one)


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


def _arguments(target, table="", is_setting=False) -> dict[str, _Argument]:
    """The arguments of a function, or the fields of a dataclass, by their keyword."""
    target = pkgutil.resolve_name(target) if isinstance(target, str) else target
    helps: dict[str, str] = {}
    for base in reversed(getattr(target, "__mro__", [target])):
        # A class says again what an option of its base means only where that differs.
        for name, text in read_docstring(base).items():
            helps[name] = helps.get(name, text) if text[:6] == "as in " else text
    fields = getattr(target, "__dataclass_fields__", {})
    arguments: dict[str, _Argument] = {}
    for name, one in inspect.signature(target).parameters.items():
        kind, rule = one.annotation, fields[name].metadata if fields else {}
        # A table of any options can name those of them that are flags.
        for inner in (rule.get("flags"), kind, *typing.get_args(kind)):
            if dataclasses.is_dataclass(inner):
                arguments |= _arguments(inner, name, is_setting)
                break
        else:
            if typing.get_origin(kind) in (types.UnionType, typing.Union):
                kind = typing.get_args(kind)[0]
            if typing.get_origin(kind) is typing.Annotated:
                kind, rule = kind.__origin__, {"check": kind.__metadata__[0]}
            keyword = f"{table}.{name}" if table else name
            is_operand = one.kind is one.POSITIONAL_OR_KEYWORD
            default = None if is_setting and one.default is one.empty else one.default
            about = (default, helps.get(name, ""), rule, is_operand, is_setting)
            if one.kind is not one.VAR_KEYWORD:
                arguments[keyword] = _Argument(keyword, kind, *about)
    return arguments


def read_docstring(target) -> dict[str, str]:
    """Text of each name in the section Args of a docstring, as a flag has it.

    The type is left out, and where else to read; other arguments are their flags.
    """
    texts: dict[str, str] = {}
    _, _, section = (inspect.getdoc(target) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    for entry in re.split(r"\n(?= {4}\S)", section):
        names, _, text = entry.strip().partition(": ")
        text = re.sub(r" See `\w+`\.$", "", re.sub(r"\s+", " ", text))
        texts |= dict.fromkeys(names.split(", "), text)

    def shown(match):
        name = match[1]
        return f"--{name.replace('_', '-')}" if name in texts else name

    for name, text in texts.items():
        text = re.sub(r"`(\w+)`", shown, text).replace("`", "").replace('"', "")
        text = re.sub(_TYPE, "", text.removesuffix("."))
        texts[name] = re.sub(r"^[A-Z](?=[a-z])", lambda one: one[0].lower(), text)
    return texts


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
    is_list = origin is tuple
    kind = kinds[0] if is_list else kind
    if kind not in _CHECKS:
        return None
    check, metavar = rule.get("check", _CHECKS[kind]), _METAVARS[kind]
    if is_list:
        # The rule of a field is for all its values.
        check, metavar = _CHECKS[kind], f"{metavar},..."
    parse = functools.partial(_parse, kind, check, is_list)
    return {"type": parse, "metavar": metavar, **count}


def _parse(kind, check, is_list, text):
    """The value of a flag, or its values with commas between."""
    parts, values = text.split(",") if is_list else [text], []
    try:
        if is_list and "" in parts:
            raise ConfigurationError(
                f"the value must be a list with commas between, got {text!r}"
            )
        for part in parts:
            with contextlib.suppress(ValueError):
                part = kind(part)
            check("the value", part)
            values.append(part)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return tuple(values) if is_list else values[0]

"""Flags of a command, made from signatures and their docstrings.

Positional arguments of a command's function become operands, keywords become flags.
Further flags come from another function, or from the fields of a dataclass of settings:
the field `ema` of its table `optimizer` is the flag `--ema`, which arrives as the
keyword `optimizer.ema`. Types, choices, bounds and defaults are those of the signature;
the help is the section Args of the docstring.
"""

import argparse
import collections.abc
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping

from roformer_keras.checks import check_integer, check_number
from roformer_keras.errors import ConfigurationError

__all__ = ["Count", "add_flags", "merge_flags", "show_flags"]

# An integer of at least 1.
Count = typing.Annotated[int, functools.partial(check_integer, minimum=1)]

# What several commands mean by a name that their docstrings do not explain.
_HELP = {
    "source": "checkpoint: a zip, folder, checkpoint prefix, .h5, .keras or "
    ".safetensors file, preset folder, or the name of a downloaded checkpoint",
    "config": "bert_config.json, if the source has none",
    "vocabulary": "vocab.txt, if the source has none",
    "as_json": "print JSON, for programs",
    "overwrite": "replace the output",
    "quiet": "show no progress and no remarks",
}
_FLAGS = {"as_json": ["--json"], "output": ["-o", "--output"]}
_PARSERS = {int: (check_integer, "N"), float: (check_number, "X"), str: (None, "NAME")}
_REQUIRED = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class _Argument:
    """An argument of a function, or a field of a dataclass.

    Attributes:
        name: str. The keyword, after its table: `optimizer.ema`.
        kind: type.
        default: the default, or `_REQUIRED`.
        help: str.
        rule: metadata of a field, see `checks`.
        is_operand: bool. Whether it is given by position.
        is_setting: bool. Whether a file of settings can hold it too.
    """

    name: str
    kind: object
    default: object
    help: str
    rule: Mapping = dataclasses.field(default_factory=dict)
    is_operand: bool = False
    is_setting: bool = False

    @property
    def field(self) -> str:
        """The name without the table."""
        return self.name.rpartition(".")[2]


def add_flags(
    parser: argparse.ArgumentParser,
    function: Callable,
    others=None,
    names: Collection[str] | None = None,
) -> None:
    """Adds the operands and flags of a command to its parser.

    Args:
        parser: of the command.
        function: the command.
        others: function or dataclass whose arguments are flags too, or None.
        names: those of `others` that are; None for all.
    """
    further = [] if others is None else list(_arguments(others))
    own = {one.name: one for one in _arguments(function)}
    described = {one.field: one for one in further if one.field in own}
    for name, one in own.items():
        known = described.get(name, one)
        help = one.help or known.help or _HELP.get(name, "")
        _add(parser, dataclasses.replace(one, help=help, rule=one.rule or known.rule))
    groups = {"": parser}
    for one in further:
        table = one.name.rpartition(".")[0]
        if one.field in own:
            continue
        if not one.is_operand and (names is None or one.name in names):
            if table not in groups:
                groups[table] = parser.add_argument_group(table)
            help = one.help if one.is_setting else _HELP.get(one.name, one.help)
            _add(groups[table], dataclasses.replace(one, help=help))


def merge_flags(content: Mapping, flags: Mapping) -> dict:
    """Settings of a file with those of flags in their place.

    Args:
        content: tables of settings; a list of tables gets a flag in each of them.
        flags: values by the keywords of `add_flags`.
    """
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


def show_flags(hint: str, parser: argparse.ArgumentParser) -> str:
    """A hint for Python users in terms of the command line.

    `name=True`, `name=` and `name=value` become `--name` and `--name value`, where
    the parser has such a flag.
    """
    known = set(re.findall(r"--[\w-]+", parser.format_help()))

    def replace(match):
        flag, value = f"--{match[1].replace('_', '-')}", match[2]
        if flag not in known:
            return match[0]
        return flag if value in (None, "True") else f"{flag} {value}"

    return re.sub(r"\b(\w+)=([\w.-]+(?:,[\w.-]+)*)?", replace, hint)


def _arguments(target, table: str = "") -> Iterator[_Argument]:
    helps = _read_docstring(target)
    if not dataclasses.is_dataclass(target):
        for one in inspect.signature(target, eval_str=True).parameters.values():
            if one.kind is one.VAR_KEYWORD or one.name == "verbose":
                continue
            kind, rule = _unwrap(str if one.annotation is _REQUIRED else one.annotation)
            is_operand = one.kind is one.POSITIONAL_OR_KEYWORD
            help = helps.get(one.name, "")
            yield _Argument(one.name, kind, one.default, help, rule, is_operand)
        return
    for field in dataclasses.fields(target):
        kinds = (field.type, *typing.get_args(field.type))
        nested = next(filter(dataclasses.is_dataclass, kinds), None)
        if nested is not None:
            yield from _arguments(nested, f"{field.name}.")
            continue
        yield _Argument(
            *(f"{table}{field.name}", _unwrap(field.type)[0], field.default),
            *(helps.get(field.name, ""), field.metadata),
            is_setting=True,
        )


def _unwrap(kind) -> tuple:
    """A type without None and without its check; and a rule with that check."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Annotated:
        kind, check = typing.get_args(kind)
        return kind, {"check": check}
    return kind, {}


def _read_docstring(target) -> dict[str, str]:
    """What the section Args of a docstring says of each name, without its type."""
    found = {}
    _, _, section = (inspect.getdoc(target) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    for entry in re.split(r"\n(?= {4}\S)", section):
        names, _, text = entry.strip().partition(": ")
        text = re.sub(r"\s+", " ", text).replace("`", "").removesuffix(".")
        text = re.sub(r"^(int|float|str|bool|path)( or None| of \w+)?(\. |$)", "", text)
        text = re.sub(r"^[A-Z](?=[a-z])", lambda first: first[0].lower(), text)
        found |= dict.fromkeys(names.split(", "), text)
    return found


def _add(parser, argument: _Argument) -> None:
    options = _options_of(argument)
    if options is None:
        return
    help = argument.help or f"one of {', '.join(options.get('choices', ()))}"
    help, default = help.replace("%", "%%"), argument.default
    if isinstance(default, int | float | str | tuple) and "default" not in help:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        if not isinstance(default, bool) and shown != "":
            help += f" (default: {shown})"
    options = {"help": help, "default": argparse.SUPPRESS, **options}
    name = argument.name.replace("_", "-")
    if argument.is_operand:
        parser.add_argument(argument.name, **{"metavar": name.upper(), **options})
        return
    table, _, own = name.rpartition(".")
    own = table if table and own == "name" else own
    flags = _FLAGS.get(argument.name, [f"--{own}"])
    if "action" not in options and "choices" not in options:
        options.setdefault("metavar", own.upper())
    if options.get("action") == "store_false":
        flags = [f"--no-{own}"]
    is_required = not argument.is_setting and default is _REQUIRED
    parser.add_argument(*flags, dest=argument.name, required=is_required, **options)


def _options_of(argument) -> dict | None:
    """Keywords of `add_argument` for a type; None if it cannot be a flag."""
    kind, rule = argument.kind, argument.rule
    origin, kinds = typing.get_origin(kind) or kind, typing.get_args(kind)
    is_optional = argument.is_operand and argument.default is not _REQUIRED
    count = {"nargs": "?"} if is_optional else {}
    if kind is bool:
        if argument.is_setting:
            # A file can have said the opposite.
            return {"action": argparse.BooleanOptionalAction}
        return {"action": "store_false" if argument.default else "store_true"}
    if origin is typing.Literal or "choices" in rule:
        return {"choices": kinds or tuple(rule["choices"]), **count}
    if origin in (list, collections.abc.Iterable):
        if not argument.is_operand:
            counts = {tuple[str, str]: {"nargs": 2}, list[str]: {"nargs": "+"}}
            return {"action": "append", "metavar": "TEXT", **counts.get(kinds[0], {})}
        return {"nargs": "*" if is_optional else "+"}
    is_list = origin in (tuple, collections.abc.Sequence)
    kind = kinds[0] if is_list else kind
    if kind not in _PARSERS:
        return None
    check, metavar = _PARSERS[kind]
    check = check if is_list else rule.get("check", check)
    parse = functools.partial(_parse, kind, check)
    if is_list:
        parse = functools.partial(_parse_list, parse)
        return {"type": parse, "metavar": f"{metavar},..."}
    return {**count, **({} if kind is str else {"type": parse, "metavar": metavar})}


def _parse(kind, check, text):
    try:
        value = kind(text)
    except ValueError:
        value = text
    try:
        if check is not None:
            check("the value", value)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return value


def _parse_list(parse, text):
    parts = text.split(",")
    if "" in parts:
        raise argparse.ArgumentTypeError(
            f"the value must be a list with commas between, got {text!r}"
        )
    return tuple(map(parse, parts))

"""Flags that several verbs have, and the types of their values."""

import argparse
import re

__all__ = [
    "add_json",
    "add_overwrite",
    "add_overwrite_training",
    "add_quiet",
    "add_verb",
    "names",
    "positive",
    "with_flags",
]


def add_verb(verbs, name, command, summary, *examples):
    """Adds the parser of a verb, with examples behind its help."""
    lines = ("examples:", *(f"  roformer-keras {example}" for example in examples))
    verb = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="\n".join(lines) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(command=command, parser=verb)
    return verb


def with_flags(hint: str, parser: argparse.ArgumentParser) -> str:
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


def add_json(verb):
    verb.add_argument(
        "--json", dest="as_json", action="store_true", help="for programs"
    )


def add_quiet(verb):
    verb.add_argument(
        "--quiet", action="store_true", help="no progress bar, on a terminal either"
    )


def add_overwrite(verb):
    verb.add_argument("--overwrite", action="store_true", help="replace the output")


def add_overwrite_training(verb):
    verb.add_argument(
        "--overwrite",
        action="store_true",
        help="throw a training of other settings in that folder away, once the new one "
        "is found to be possible",
    )


def positive(text: str) -> int:
    """An integer above 0."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer above 0, got {text!r}")
    return number


def names(text: str) -> tuple[str, ...]:
    """Names with commas between."""
    found = tuple(text.split(","))
    if "" in found:
        raise argparse.ArgumentTypeError(
            f"must be names with a comma between, got {text!r}"
        )
    return found

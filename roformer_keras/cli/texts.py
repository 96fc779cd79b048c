"""Texts in and lines out: what the commands about texts share."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables import files
from roformer_keras.tables.opening import File


def read_lines(path: str, encoding: str = "utf-8") -> list[str]:
    """The texts of a file, which may be blank; arguments as in `read_table`."""
    rows = read_rows(path, 1, {"encoding": encoding}, keeps_blank=True)
    return [text for _, (text,) in rows]


def read_texts(texts: Iterable[str], encoding: str = "utf-8") -> list[str]:
    """Texts of the command line, where "-" is the lines of standard input."""
    lines = []
    for text in texts:
        lines += read_lines("-", encoding=encoding) if text == "-" else [text]
    return lines


def read_rows(
    path: str, count: int, layout: Mapping[str, Any], keeps_blank: bool = False
) -> list[tuple]:
    """Pairs of where a row stands in a file without labels, and its texts.

    Single texts are lines, unless the file is a table by its name or by the layout.
    """
    from roformer_keras.verbs.rows import check_texts

    fields = layout.get("fields", ())
    if len(fields) > count:
        raise ConfigurationError(
            f"--fields must name {count} column{'s' * (count > 1)}, got "
            f"{', '.join(fields)}"
        )
    inputs: list[tuple] = []
    for texts, place, error in files.read_texts(path, count, **layout):
        if error is not None:
            raise error
        inputs.append((str(place), texts))
    if not inputs:
        raise SourceError(f"{File(path).name} has no row")
    if count == 1 and not keeps_blank:
        check_inputs(inputs, lambda row: check_texts(row, 1))
    return inputs


def check_inputs(inputs: Iterable[tuple], check: Callable) -> None:
    """Checks all inputs before the long work; errors begin with the input's place."""
    for place, content in inputs:
        try:
            check(content)
        except ConfigurationError as error:
            # The place says which row it is.
            raise type(error)(f"{place}: {error.message}", hint=error.hint) from error


def check_ending(output: str, *endings: str) -> None:
    """Raises ConfigurationError unless an output is "-" or has one of the endings."""
    if output != "-" and not output.endswith(endings):
        raise ConfigurationError(
            f"the output must end in {' or '.join(endings)}, or be - for lines of "
            f"JSON, got {output!r}"
        )


def print_json(content) -> None:
    print(json.dumps(content, ensure_ascii=False, indent=2))

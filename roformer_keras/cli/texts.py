"""Texts in and lines out: what the commands about texts share."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from roformer_keras.base.errors import ConfigurationError, SourceError, refuse
from roformer_keras.tables import files

_TSV_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


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


def typed_rows(texts: Iterable[str]) -> list[tuple]:
    """Pairs of which `--text` a text is, and the row of it."""
    return [(f"text {at}", (text,)) for at, text in enumerate(texts, start=1)]


def read_rows(
    path: str, count: int, layout: Mapping[str, Any], keeps_blank: bool = False
) -> list[tuple]:
    """Pairs of where a row stands in a file without labels, and its texts.

    Single texts are lines, unless the file is a table by its name or by the layout.
    """
    from roformer_keras.tables.texts import as_texts

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
        raise SourceError(f"{files.File(path).name} has no row")
    if count == 1 and not keeps_blank:
        check_inputs(inputs, lambda row: as_texts([row], (1,)))
    return inputs


def read_inputs(
    file: str | None, texts: Sequence[str] | None, encoding: str = "utf-8"
) -> list:
    """Pairs of a place and a row of one text, from a file or from `--text`."""
    from roformer_keras.tables.texts import as_texts

    check_one_input(file, texts, "a text file", "--text TEXT")
    if texts is None:
        assert file is not None
        try:
            return read_rows(file, 1, {"encoding": encoding})
        except SourceError as error:
            if file == "-" or os.path.exists(file):
                raise
            raise SourceError(f"{error}; to give a text itself, use --text") from error
    inputs = typed_rows(texts)
    check_inputs(inputs, lambda row: as_texts([row], (1,)))
    return inputs


def check_one_input(file, given, what: str, flag: str) -> None:
    """Raises ConfigurationError unless there is a file, or else what a flag gives."""
    refuse(
        (file is None) == (given is None),
        f"give {what}, or - for standard input, or {flag}",
    )


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


def output_style(output: str, texts: Sequence[str] | None = None) -> str:
    """Style of lines: `json` or `tsv`, or `plain` for a text typed on a terminal."""
    if output == "-":
        return "plain" if texts is not None and sys.stdout.isatty() else "json"
    return "tsv" if output.endswith(".tsv") else "json"


def answer_lines(
    rows: Sequence[tuple],
    answers: Mapping[str, Sequence],
    style: str = "json",
    names: Sequence[str] = (),
) -> list[str]:
    """Lines that show rows of texts with their answers."""
    lines = []
    for at, row in enumerate(rows):
        values = {name: column[at] for name, column in answers.items()}
        if style == "json":
            texts = dict(zip(names or files.row_names(row), row, strict=True))
            lines.append(json_line({**texts, **values}))
            continue
        (value,) = values.values()
        if style == "plain":
            lines += [*row, *(f"{one['score']:>9.4f}  {one['text']}" for one in value)]
        elif isinstance(value, list):
            # A text without outputs has a line too.
            outputs = value or [{"text": "", "score": ""}]
            lines += [tsv_line(*row, *one.values()) for one in outputs]
        else:
            lines.append(tsv_line(*row, value))
    return lines


def json_line(content) -> str:
    # Vectors are arrays.
    return json.dumps(content, ensure_ascii=False, default=lambda value: value.tolist())


def print_json(content) -> None:
    print(json.dumps(content, ensure_ascii=False, indent=2))


def tsv_line(*values) -> str:
    return "\t".join(str(value).translate(_TSV_ESCAPES) for value in values)

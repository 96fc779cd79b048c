"""Tables as CSV and Markdown, and JSON: what scripts write of their figures."""

import contextlib
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.io.atomic import replacing


def markdown(columns: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def between(text: str, begin: str, end: str, table: str, label: object) -> str:
    """A text with a table between two of its lines.

    Raises:
        ConfigurationError: it lacks one of them.
    """
    before, begin_found, after_begin = text.partition(begin)
    _, end_found, after = after_begin.partition(end)
    if not (begin_found and end_found):
        raise ConfigurationError(f"{label} must have the lines {begin} and {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence]):
    print(f"\n{markdown([title, *columns], rows)}", flush=True)


def read_rows(path: Path) -> list[dict]:
    """The rows of a CSV file, numbers as numbers; none if there is no file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {name: _parse(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def _parse(text):
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def write_rows(path: Path, rows: Sequence[Mapping]):
    """Writes rows with the same columns as CSV; complete or not at all."""
    with (
        replacing(path, overwrite=True) as partial,
        open(partial, "w", encoding="utf-8", newline="") as file,
    ):
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def write_json(path: Path, content):
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str):
    with replacing(path, overwrite=True) as partial:
        partial.write_text(text, encoding="utf-8")

"""What comparisons share that are made of many runs, and can be interrupted."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from roformer_keras.errors import OutputError
from roformer_keras.io.atomic import replacing

__all__ = ["read_rows", "reset_run", "write_json", "write_rows"]


def reset_run(folder: Path, settings: Mapping):
    """Begins a comparison, or makes sure that the folder holds this one."""
    path = folder / "settings.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists() and not any(folder.iterdir()):
        write_json(path, settings)
    elif not path.exists() or path.read_text(encoding="utf-8") != _json(settings):
        raise OutputError(
            f"{folder} must be new or hold a comparison of equal settings, and "
            "settings.json is missing there, or differs: choose another folder, or "
            "remove this one"
        )


def write_json(path: Path, content):
    with replacing(path, overwrite=True) as partial:
        partial.write_text(_json(content), encoding="utf-8")


def _json(content):
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_rows(path: Path, columns: Mapping[str, Callable]) -> list[dict]:
    """The rows of a table, none if there is no file; `columns` says what values are."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {name: kind(row[name]) for name, kind in columns.items()}
            for row in csv.DictReader(file)
        ]


def write_rows(path: Path, columns: Mapping[str, Callable], rows: Sequence[Mapping]):
    """Writes all rows of a table, whole or not at all."""
    with (
        replacing(path, overwrite=True) as partial,
        open(partial, "w", encoding="utf-8", newline="") as file,
    ):
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)

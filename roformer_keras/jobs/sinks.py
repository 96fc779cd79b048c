"""Formats of outputs: lines of JSON, TSV and text, vectors, and Parquet."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from roformer_keras.io.vector_files import arrow_bytes, npy_bytes, write_parquet
from roformer_keras.jobs.job import Sink
from roformer_keras.jobs.output import Convert
from roformer_keras.tables.files import row_names
from roformer_keras.verbs.rows import Answers, Texts, only_texts
from roformer_keras.verbs.verb import Verb

_TSV_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
# Lines of a row: its texts and answers.
Show = Callable[[Texts, Mapping[str, object]], list[str]]


def sink_of(style: str, verb: Verb, names: Sequence[str], count: int) -> Sink:
    """The sink of a file's ending, or `"terminal"`.

    Args:
        names: of the texts of a row; empty for `row_names`.
        count: rows of the whole job.
    """
    shows: dict[str, Show] = {
        ".tsv": _tsv_lines,
        "terminal": verb.show,
    }
    if style == ".npy":
        return Vectors(count)
    if style == ".parquet":
        return ParquetVectors()
    return Lines(
        shows.get(style, lambda row, answers: [json_line(row, answers, names)])
    )


class Lines:
    """Lines of text."""

    convert: Convert | None = None

    def __init__(self, show: Show):
        self._show = show

    def write(self, rows: Sequence[Texts], answers: Answers, is_first: bool) -> bytes:
        lines = []
        for at, row in enumerate(rows):
            lines += self._show(row, {name: of[at] for name, of in answers.items()})
        text = "".join(f"{line}\n" for line in lines)
        # Arguments of a command line can hold bytes that are not text.
        return text.encode("utf-8", "backslashreplace")


class Vectors:
    """An `.npy` file of vectors; `convert` makes another output of it."""

    def __init__(self, count: int, convert: Convert | None = None):
        self._count, self.convert = count, convert

    def write(self, rows: Sequence[Texts], answers: Answers, is_first: bool) -> bytes:
        (vectors,) = answers.values()
        return npy_bytes(np.asarray(vectors), self._count, is_first)


class ParquetVectors:
    """Texts and their vectors in Parquet."""

    def write(self, rows: Sequence[Texts], answers: Answers, is_first: bool) -> bytes:
        (vectors,) = answers.values()
        return arrow_bytes(only_texts(rows), np.asarray(vectors), is_first)

    def convert(self, partial: Path, target: Path) -> None:
        write_parquet(partial, target)


def json_text(content: object) -> str:
    """A line of JSON; vectors are arrays."""
    return json.dumps(content, ensure_ascii=False, default=lambda value: value.tolist())


def json_line(row: Texts, answers: Mapping[str, object], names: Sequence[str]) -> str:
    """Texts by their names, and answers."""
    texts = dict(zip(names or row_names(row), row, strict=True))
    return json_text({**texts, **answers})


def _tsv_lines(row: Texts, answers: Mapping[str, object]) -> list[str]:
    (answer,) = answers.values()
    if not isinstance(answer, list):
        return [tsv_line(*row, answer)]
    # A text without outputs has a line too.
    outputs = answer or [{"text": "", "score": ""}]
    return [tsv_line(*row, *one.values()) for one in outputs]


def tsv_line(*values: object) -> str:
    """Cells with tabs between, which are escaped in them."""
    return "\t".join(str(value).translate(_TSV_ESCAPES) for value in values)

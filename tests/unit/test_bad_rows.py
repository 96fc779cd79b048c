"""A bad row is refused with the same words and its place in every file, by every way.

Rows in memory are in tests/model/test_tables.py.
"""

import gzip

import pytest
from common import wrong_cells
from table_files import CELLS, KEYED, write_rows

from roformer_keras import FinetuningSettings
from roformer_keras.base.errors import SourceError
from roformer_keras.base.task_registry import TASKS
from roformer_keras.cli.texts import read_rows
from roformer_keras.distributed.files import _rows_of
from roformer_keras.tables.corpus import CorpusSource, read_corpus
from roformer_keras.tasks.labelled_files import (
    read_files,
    read_labelled,
    read_unlabelled,
)

TASK = TASKS["text-classification"]
CONTAINERS = (*CELLS, *KEYED, "saved", "csv.gz", "jsonl.gz")
TEXT_CELLS = tuple(kind for kind in CELLS if kind != "xlsx")
COLUMNAR = ("parquet", "arrow", "saved")
NAMES, GOOD, LAST = ["text", "label"], ["好", "a"], ["好好", "a"]


def settings_of(path, **layout):
    return FinetuningSettings(task="text-classification", train=path, **layout)


def skipped_rows(path, fields=()):
    table = read_files(settings_of(path, fields=fields, on_bad_row="skip"))["train"]
    assert len(table.texts) == len(table.lines)
    return [
        f"{table.places[0].unit} {line} of {path} {why}" for line, why in table.skipped
    ]


def reported_rows(path, fields=()):
    layout = {"fields": fields[:1]} if fields else {}
    rows = list(_rows_of({"file": path, "at": 0}, ("text",), layout, "report"))
    assert all((row["text"] is None) is (row["error"] is not None) for row in rows)
    return [row["error"] for row in rows if row["error"]]


# Ways of reading a file; those that go on at a bad row return the errors.
WAYS = {
    "finetune": lambda path, fields=(): read_files(settings_of(path, fields=fields)),
    "evaluate": lambda path, fields=(): read_labelled(path, TASK, 1, fields),
    "skip": skipped_rows,
    "predict": lambda path, fields=(): read_unlabelled(path, TASK, 1, fields),
    "pretrain": lambda path, fields=(): list(
        read_corpus(CorpusSource(files=(path,), fields=fields[:1]))
    ),
    "embed": lambda path, fields=(): read_rows(path, 1, {"fields": fields[:1]}),
    "ray": reported_rows,
}
MAY_BE_BLANK = ("predict", "pretrain")
TEXT = "a text must be a str that is not empty, got "
CORPUS = "a field must be a string, a list of strings or a number, got "
# What is wrong: the second row, what the error says, the containers, and the ways that
# take the row.
FAULTS = {
    "blank": ([" ", "b"], f"{TEXT}' ' in 'text'", CONTAINERS, MAY_BE_BLANK),
    "empty": (["", "b"], f"{TEXT}'' in 'text'", CONTAINERS, MAY_BE_BLANK),
    "wide blank": (["\u3000\u2003", "b"], TEXT, CONTAINERS, MAY_BE_BLANK),
    "number": ([7, "b"], f"{TEXT}7 in 'text'", ("jsonl", "json"), ("pretrain",)),
    "truth": ([True, "b"], f"{TEXT}True in 'text'", ("jsonl", "json"), ()),
    "object": ([{"a": 1}, "b"], f"{TEXT}{{'a': 1}} in 'text'", ("jsonl", "json"), ()),
    "none": ([None, "b"], f"{TEXT}None in 'text'", KEYED, ()),
    "list": ([["a", 1], "b"], f"{TEXT}['a', 1] in 'text'", ("jsonl", "json"), ()),
    "wide": (["坏", "b", "c"], "must have 2 columns, got 3", CELLS, ()),
    "narrow": (["坏"], "must have 2 columns, got 1", TEXT_CELLS, ()),
    "header": (NAMES, "must be a row, and repeats the header", CELLS, ()),
}
# What is wrong with a whole file: its names, the fields that are asked for, and what
# the error says by container.
FILES = {
    "no such column": (
        ["text", "label"],
        ("words", "label"),
        {
            "cells": "must name the columns 'words'",
            "objects": "must have 'words'",
            "columnar": "must have the column 'words' once, and it is not there",
        },
    ),
    "another column twice": (
        ["text", "label", "x", "x"],
        (),
        {
            "cells": "must name each column once, got 'x' 2 times",
            "objects": "'x' is there twice",
            "columnar": "must have the column 'x' once, and it is twice",
        },
    ),
    "a column twice": (
        ["text", "label", "text"],
        (),
        {
            "cells": "must name each column once, got 'text' 2 times",
            "objects": "'text' is there twice",
            "columnar": "must have the column 'text' once, and it is twice",
        },
    ),
}


def write(folder, kind, rows):
    """The path of a file; `.gz` packs it."""
    if not kind.endswith(".gz"):
        return str(write_rows(folder, kind, rows))
    path = write_rows(folder, kind.removesuffix(".gz"), rows)
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return str(packed)


def place_of(kind, row):
    """The place of the row after the names; the names are the row 0."""
    if kind in ("json", *COLUMNAR):
        return f"row {row}"
    unit = "row" if kind == "xlsx" else "line"
    return f"{unit} {row if 'jsonl' in kind else row + 1}"


def error_of(way, path, fields=()):
    """The error of a way of reading, or None."""
    try:
        errors = WAYS[way](path, fields)
    except SourceError as error:
        return error.message
    return "; ".join(errors) if way in ("skip", "ray") and errors else None


def reads_lines(kind, way):
    """True if each line of a `.txt` is a text, which nothing can be wrong with."""
    return kind == "txt" and way in ("pretrain", "embed", "ray")


@pytest.fixture
def check_all(tmp_path):
    """A function that checks the errors of all containers and ways.

    It takes the rows, the fields, and a function from a cell to what its error has, or
    None of a cell that is read.
    """

    def check(rows, fields, expect):
        def check_cell(kind, way):
            folder = tmp_path / f"{kind}-{way}"
            folder.mkdir()
            path = write(folder, kind, rows)
            error, words = error_of(way, path, fields), expect(kind, way)
            if words is None:
                return error
            is_told = error and path in error and all(one in error for one in words)
            return None if is_told else f"{error}"

        cells = [
            (kind, way)
            for kind in CONTAINERS
            for way in WAYS
            if not reads_lines(kind, way) and expect(kind, way) != ()
        ]
        return wrong_cells(check_cell, cells)

    return check


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_row_is_told_with_its_place(fault, check_all):
    row, words, kinds, takers = FAULTS[fault]

    def expect(kind, way):
        if kind not in kinds:
            return ()
        if way in takers:
            return None
        told = words
        if words.startswith(TEXT):
            # An empty text has an answer, and a corpus has numbers and lists.
            told = {
                "pretrain": CORPUS,
                "predict": words.replace(" that is not empty", ""),
            }.get(way, words)
        return f"{place_of(kind, 2)} of ", told

    assert check_all([NAMES, GOOD, row, LAST], (), expect) == []


@pytest.mark.parametrize("fault", ["wide", "narrow"])
def test_rows_without_a_header_have_as_many_cells_as_most(fault, check_all):
    row, words, kinds, _ = FAULTS[fault]

    def expect(kind, way):
        return (words, f"{place_of(kind, 1)} of ") if kind in kinds else ()

    assert check_all([GOOD, row, LAST, GOOD, ["太坏", "b"]], (), expect) == []


@pytest.mark.parametrize("fault", FILES)
def test_columns_that_are_missing_or_come_twice(fault, check_all):
    names, fields, words = FILES[fault]

    def expect(kind, way):
        if fields and (kind, way) == ("txt", "predict"):
            return None
        columnar = "columnar" if kind in COLUMNAR else "objects"
        return (words[columnar if kind not in (*CELLS, "csv.gz") else "cells"],)

    rows = [[f"{name}{n}" for name in names] for n in range(3)]
    assert check_all([names, *rows], fields, expect) == []

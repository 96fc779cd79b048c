"""Files of the same rows in every container."""

import csv
import io
import json

import openpyxl
import pyarrow
from common import write_file
from pyarrow import parquet

from roformer_keras.tasks.labelled_files import parse_examples, read_labelled

CELLS = ("csv", "semicolons.csv", "tsv", "quoted.tsv", "txt", "xlsx")
KEYED = ("jsonl", "json", "parquet", "arrow")
TEXT = ("csv", "semicolons.csv", "tsv", "txt", "jsonl", "json")


def write_rows(folder, kind, rows, encoding="utf-8"):
    """A file of this container; the first row names the columns of objects."""
    path = folder / f"x.{kind}"
    names, *values = rows
    if kind == "xlsx":
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
        return path
    if kind in ("parquet", "arrow", "saved"):
        columns = [pyarrow.array(column) for column in zip(*values, strict=True)]
        return write_columns(folder, kind, pyarrow.table(columns, names=names))
    if kind in ("jsonl", "json"):
        pairs = [zip(names, map(dumped, row), strict=True) for row in values]
        lines = ["{" + ", ".join(f'"{k}": {v}' for k, v in one) + "}" for one in pairs]
        text = "\n".join(lines) if kind == "jsonl" else f"[{','.join(lines)}]"
    else:
        separator = {"csv": ",", "semicolons.csv": ";"}.get(kind, "\t")
        quoting = csv.QUOTE_ALL if kind == "quoted.tsv" else csv.QUOTE_MINIMAL
        stream = io.StringIO()
        csv.writer(stream, delimiter=separator, quoting=quoting).writerows(rows)
        text = stream.getvalue()
    path.write_bytes(text.encode(encoding))
    return path


def write_columns(folder, kind, table):
    """The path of a table as Parquet, as Arrow, or as `datasets` saves it."""
    if kind == "saved":
        return write_saved_dataset(folder, table)
    return write_table(folder / f"x.{kind}", table)


def write_table(path, table, stream=False, **options):
    """Writes Parquet or Arrow, as the name says; returns the path."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, **options)
        return path
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(str(path), table.schema, **options) as writer:
        writer.write_table(table)
    return path


def write_saved_dataset(folder, *tables):
    """The layout of `datasets.Dataset.save_to_disk`; returns the folder."""
    names = [f"data-{at:05}-of-{len(tables):05}.arrow" for at in range(len(tables))]
    state = {"_data_files": [{"filename": name} for name in names]}
    write_file(folder / "state.json", state)
    for name, table in zip(names, tables, strict=True):
        write_table(folder / name, table, stream=True)
    return folder


def read_examples(path, task_class, options, count, fields=(), skips=False, **layout):
    """The examples of a file for a task with these options."""
    table = read_labelled(path, task_class, count, (), fields, skips=skips, **layout)
    column = fields[-1] if fields else "label"
    return parse_examples(path, table, task_class, options, column, skips)


def dumped(value):
    return json.dumps(value, ensure_ascii=False)

"""Files of the same rows in every container."""

import csv
import io
import json

import openpyxl
import pyarrow
from pyarrow import parquet

CELLS = ("csv", "semicolons.csv", "tsv", "quoted.tsv", "txt", "xlsx")
KEYED = ("jsonl", "json", "parquet", "arrow")
TEXT = ("csv", "semicolons.csv", "tsv", "txt", "jsonl", "json")


def write(folder, kind, rows, encoding="utf-8"):
    """A file of this container; the first row names the columns of objects."""
    path = folder / f"x.{kind}"
    names, *values = rows
    if kind == "xlsx":
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
        return path
    if kind in ("parquet", "arrow"):
        columns = [pyarrow.array(column) for column in zip(*values, strict=True)]
        return write_table(folder, kind, pyarrow.table(columns, names=names))
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


def write_table(folder, kind, table):
    path = folder / f"x.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def dumped(value):
    return json.dumps(value, ensure_ascii=False)

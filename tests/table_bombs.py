"""Small files of rows that become large: a writer for each way in which they do.

A writer makes a file of a name, of which a reader that counts nothing would make about
`size` bytes.
"""

import gzip
import json
import lzma
import struct
import zipfile

import numpy as np
import openpyxl
import pyarrow as pa
from pyarrow import ipc, parquet

TEXT = "这家店的味道很好，下次再来。"


def _dictionary(text, rows):
    """A column in which every row names one text."""
    numbers = pa.array(np.zeros(rows, "int8"))
    return pa.table({"text": pa.DictionaryArray.from_arrays(numbers, [text])})


def _parquet(make, **options):
    def write(path, size):
        parquet.write_table(make(size), path, **options)

    return write


def _arrow(make, stream=False, compression=None):
    def write(path, size):
        table, options = make(size), ipc.IpcWriteOptions(compression=compression)
        new = ipc.new_stream if stream else ipc.new_file
        with new(str(path), table.schema, options=options) as writer:
            writer.write_table(table)

    return write


def _short(size):
    return _dictionary(TEXT, size // 100)


def _long(size):
    return _dictionary("长" * 2**10, size // (3 * 2**10))


def _plain(size):
    return pa.table({"text": ["长" * 2**12] * (size // (3 * 2**12))})


def _views(size):
    """Views are 16 bytes each, and may name one text."""
    text = b"x" * 2**13
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    count = size // len(text)
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(text)]
    column = pa.Array.from_buffers(pa.string_view(), count, buffers)
    return pa.table({"text": column})


def _lists(size):
    """One row with a list that names one text."""
    column = _long(size)["text"].combine_chunks()
    ends = pa.array([0, len(column)], pa.int32())
    return pa.table({"text": pa.ListArray.from_arrays(ends, column)})


def _packed(compress, line, end=b"", is_true=False):
    """A packed file; an empty part at its end hides the size of the others."""

    def write(path, size):
        content = compress(line * (size // len(line)) + end)
        path.write_bytes(content if is_true else content + compress(b""))

    return write


_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"

_STRINGS = (
    '<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.'
    'openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/>'
)


def _workbook(rows, strings=()):
    """A workbook with the XML of its rows, in place of those that openpyxl wrote."""

    def write(path, size):
        book = openpyxl.Workbook()
        book.active.append(["text"])
        book.save(path)
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        content = rows(size).encode()
        parts["xl/worksheets/sheet1.xml"] = (
            f'<worksheet xmlns="{_NAMESPACE}"><sheetData>'.encode()
            + b'<row r="1"><c r="A1" t="str"><v>text</v></c></row>'
            + content
            + b"</sheetData></worksheet>"
        )
        items = "".join(f"<si><t>{text}</t></si>" for text in ("text", *strings))
        parts["xl/sharedStrings.xml"] = (
            f'<sst xmlns="{_NAMESPACE}">{items}</sst>'.encode()
        )
        types = parts["[Content_Types].xml"].decode()
        if "sharedStrings" not in types:
            types = types.replace("</Types>", f"{_STRINGS}</Types>")
        parts["[Content_Types].xml"] = types.encode()
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, part in parts.items():
                archive.writestr(name, part)

    return write


def _shared(size):
    return '<row><c t="s"><v>1</v></c></row>' * (size // 2**15)


def _last_row(size):
    return f'<row r="{size}"><c><v>1</v></c></row>'


def _last_cells(size):
    return '<row><c r="ZZZ1"><v>1</v></c></row>' * (size // 2**17)


_BLANK = "#idiom000001#"


def _blanks(path, size):
    """A passage is repeated for each of its blanks."""
    count = int((size / 2 / len(_BLANK)) ** 0.5)
    line = {"content": [_BLANK * count], "candidates": ["好好学习", "天天向上"]}
    path.write_text(json.dumps(line, ensure_ascii=False), encoding="utf-8")


_KEYED, _CELLS, _LINES = {"fields": ["text"]}, {"header": "none"}, {}
_SQUAD = {"format": "squad", "count": 2, "fields": ["question", "context"]}
_CHID = {
    "format": "chid",
    "count": 2,
    "fields": ["context", "choices"],
    "has_choices": True,
}
_ZSTD = {"use_dictionary": False, "compression": "zstd"}
_ENDS = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}


def _gzip(line, end=b""):
    return _packed(gzip.compress, line, end)


def _xz(line):
    return _packed(lambda data: lzma.compress(data, preset=0), line)


# === Files of which each byte takes much time ===


def _repeated(part, head=b"", end=b""):
    def write(path, size):
        path.write_bytes(head + part * (size // len(part)) + end)

    return write


_ROWS = b"text,label\nx,y\n"
_PACKED = {".gz": gzip.compress(_ROWS), ".xz": lzma.compress(_ROWS)}
# A gzip that begins with the name of a file.
_NAMED = b"\x1f\x8b\x08\x08" + bytes(6)


def _styles(path, size):
    _workbook(lambda _: "")(path, size)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        styles = "<styles>" + "<xf/>" * (size // 80) + "</styles>"
        archive.writestr("xl/more.xml", styles)


# By what takes the time: as `BOMBS`.
WORK = {
    "blank lines": ("a.csv", _CELLS, _repeated(b"\n")),
    "blank lines with spaces": ("a.jsonl", _KEYED, _repeated(b" \r\n")),
    "blank lines of tags": ("a.bio", _LINES, _repeated(b"\n")),
    "blank rows": ("a.csv", _CELLS, _repeated(b",\n")),
    "blank rows of semicolons": ("a.csv", _CELLS, _repeated(b";\n", b"a;b\n")),
    "one text of tags": ("a.bio", _LINES, _repeated(b"a B-X\n")),
    "a line of lists": ("a.jsonl", _KEYED, _repeated(b"[],", b"[", b"[]]")),
    "a list of lists": ("a.json", _KEYED, _repeated(b"[],", b"[", b"[]]")),
    "questions of lists": ("a.json", _SQUAD, _repeated(b"[],", b'{"data":[', b"[]]}")),
    "empty parts of gzip": ("a.csv.gz", _CELLS, _repeated(gzip.compress(b""))),
    "zeros after gzip": ("a.csv.gz", _CELLS, _repeated(b"\0", _PACKED[".gz"])),
    "a name in gzip": ("a.csv.gz", _CELLS, _repeated(b"x", _NAMED)),
    "empty parts of xz": ("a.csv.xz", _CELLS, _repeated(lzma.compress(b""))),
    "styles": ("a.xlsx", _CELLS, _styles),
}

# By what makes them large: the name of the file, arguments of `read_table`, the writer.
BOMBS = {
    "rows of one text": ("a.parquet", _KEYED, _parquet(_short)),
    "long texts of a dictionary": ("a.parquet", _KEYED, _parquet(_long)),
    "pages": ("a.parquet", _KEYED, _parquet(_plain, **_ZSTD)),
    "prefixes": ("a.parquet", _KEYED, _parquet(_plain, **_ENDS)),
    "a list": ("a.parquet", _KEYED, _parquet(_lists)),
    "buffers": ("a.arrow", _KEYED, _arrow(_plain, compression="zstd")),
    "buffers of a stream": ("a.arrow", _KEYED, _arrow(_plain, True, "zstd")),
    "rows of a dictionary": ("a.arrow", _KEYED, _arrow(_long)),
    "views": ("a.arrow", _KEYED, _arrow(_views)),
    "a list of a dictionary": ("a.arrow", _KEYED, _arrow(_lists)),
    "shared strings": ("a.xlsx", _CELLS, _workbook(_shared, ["长" * 2**14])),
    "a part": ("a.xlsx", _CELLS, _workbook(lambda size: " " * size)),
    "elements": ("a.xlsx", _CELLS, _workbook(lambda size: "<row/>" * (size // 100))),
    "rows left out": ("a.xlsx", _CELLS, _workbook(_last_row)),
    "cells left out": ("a.xlsx", _CELLS, _workbook(_last_cells)),
    "rows of CSV": ("a.csv.gz", _CELLS, _gzip(b"x,y\n")),
    "a gzip that says its size": (
        "a.csv.gz",
        _CELLS,
        _packed(gzip.compress, b"x,y\n", is_true=True),
    ),
    "an xz that says its size": (
        "a.jsonl.xz",
        _KEYED,
        _packed(lzma.compress, b"{}\n", is_true=True),
    ),
    "cells of CSV": ("a.csv.gz", _CELLS, _gzip(b",", b"x\n")),
    "a cell of CSV": ("a.csv.gz", _CELLS, _gzip(b"x\n", b'"')),
    "cells of TSV": ("a.tsv.gz", _CELLS, _gzip(b"\t", b"x\n")),
    "short lines": ("a.txt.gz", _LINES, _gzip(b"x\n")),
    "lines of JSON": ("a.jsonl.xz", _KEYED, _xz(b'{"text": "x"}\n')),
    "a line of JSON": ("a.jsonl.xz", _KEYED, _xz(b"[],")),
    "a list of JSON": ("a.json.gz", _KEYED, _gzip(b"[],")),
    "questions": ("a.json.gz", _SQUAD, _gzip(b"{},")),
    "tags": ("a.bio.gz", _LINES, _gzip(b"x O\n")),
    "blanks": ("a.json", _CHID, _blanks),
}

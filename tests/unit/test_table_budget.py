"""What small files of rows may become, in every container."""

import gzip
import json
import lzma
import random

import openpyxl
import pyarrow as pa
import pytest
from common import ROOT, output_of
from pyarrow import ipc, parquet
from table_bombs import BOMBS, WORK

from roformer_keras.data import arrow, lines
from roformer_keras.data.files import read_records, read_table
from roformer_keras.errors import SourceError
from roformer_keras.io import budget

REFUSED = "must take at most|must have at most|must be of at most"


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_becomes_no_large_one(name, tmp_path, monkeypatch):
    file, options, write = BOMBS[name]
    monkeypatch.setattr(budget, "EXEMPT", 2**16)
    write(tmp_path / file, 2**22)
    assert 200 * (tmp_path / file).stat().st_size < 2**22
    options = {"count": 1, "labelled": False, **options}
    with pytest.raises(SourceError, match=REFUSED) as error:
        read_table(tmp_path / file, **options)
    assert file in str(error.value)


@pytest.mark.parametrize("name", WORK)
def test_a_file_takes_little_time_for_its_size(name, tmp_path, monkeypatch):
    file, options, write = WORK[name]
    monkeypatch.setattr(budget, "EXEMPT", 2**16)
    monkeypatch.setattr(budget, "MAX_ROW", 2**16)
    monkeypatch.setattr(budget, "MAX_BLANK", 2**10)
    monkeypatch.setattr(lines, "_MAX_IDLE", 2**16)
    write(tmp_path / file, 2**18)
    options = {"count": 1, "labelled": False, **options}
    with pytest.raises(SourceError, match=f"{REFUSED}|must hold packed text") as error:
        read_table(tmp_path / file, **options)
    assert file in str(error.value)


def test_zeros_may_follow_an_xz(tmp_path):
    """As the `xz` command allows it; lzma takes them for empty files of .lzma."""
    content = lzma.compress(b"text,label\nx,y\n") + bytes(2**20)
    (tmp_path / "a.csv.xz").write_bytes(content)
    assert read_table(tmp_path / "a.csv.xz", 1).texts == [("x",)]


@pytest.mark.parametrize("name", ["rows of one text", "pages", "a list"])
def test_the_end_of_a_parquet_file_may_lie(name, tmp_path, monkeypatch):
    """It says that the columns are of few bytes."""
    file, options, write = BOMBS[name]
    monkeypatch.setattr(budget, "EXEMPT", 2**16)
    monkeypatch.setattr(arrow, "declared_size", lambda *_: 0)
    write(tmp_path / file, 2**22)
    with pytest.raises(SourceError, match=REFUSED):
        read_table(tmp_path / file, 1, labelled=False, **options)


PROGRAM = r"""
import json, re, sys, time
from roformer_keras.data.files import read_table
from roformer_keras.errors import SourceError
start = time.process_time()
try:
    read_table(**json.loads(sys.argv[1]))
except SourceError as error:
    # That of getrusage may be the peak of the process that started this one.
    peak = re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())
    print(json.dumps([str(error), time.process_time() - start, int(peak[1]) / 1024]))
"""


@pytest.mark.weekly
@pytest.mark.parametrize("name", [*BOMBS, *WORK])
def test_a_file_is_refused_within_its_bounds(name, tmp_path):
    """Of 256 MB in memory, or 32 MB: the processor's time is 2 s, the memory 500 MB."""
    file, options, write = (BOMBS | WORK)[name]
    write(tmp_path / file, 2**28 if name in BOMBS else 2**25)
    options = {"count": 1, "labelled": False, **options, "path": str(tmp_path / file)}
    output = output_of("-c", PROGRAM, json.dumps(options), cwd=ROOT)
    message, seconds, peak = json.loads(output)
    size = (tmp_path / file).stat().st_size
    print(f"{name}: {size / 1e3:.0f} kB, {seconds:.2f} s, {peak:.0f} MiB, {message}")
    assert any(words in message for words in [*REFUSED.split("|"), "packed text"])
    assert seconds < 2 and peak < 500


# === Honest files ===

CHARACTERS = (
    "的一是不了在有人我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着"
)


def texts(count, distinct, length):
    draw = random.Random(0)
    some = ["".join(draw.choices(CHARACTERS, k=length)) for _ in range(distinct)]
    return [draw.choice(some) for _ in range(count)]


def write_honest(path, rows):
    """A file of rows that repeat, as small as its container makes it."""
    kind = path.suffix
    if kind in (".parquet", ".arrow"):
        table = pa.table({"text": rows, "label": ["好"] * len(rows)})
        if kind == ".parquet":
            parquet.write_table(table, path, compression="zstd")
            return
        options = ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_file(str(path), table.schema, options=options) as writer:
            writer.write_table(table)
    elif kind == ".xlsx":
        book = openpyxl.Workbook(write_only=True)
        sheet = book.create_sheet()
        for row in [("text", "label"), *((row, "好") for row in rows)]:
            sheet.append(row)
        book.save(path)
    else:
        lines = "text,label\n" + "".join(f"{row},好\n" for row in rows)
        if ".jsonl" in path.name:
            lines = "".join(f'{{"text": "{row}", "label": "好"}}\n' for row in rows)
        pack = gzip.compress if kind == ".gz" else lzma.compress
        path.write_bytes(pack(lines.encode()))


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.arrow", "a.xlsx", "a.csv.gz", "a.jsonl.xz"]
)
@pytest.mark.parametrize("length", [10, 100])
def test_honest_files_become_as_much_as_they_may(name, length, tmp_path, monkeypatch):
    """Each text is there ten times."""
    monkeypatch.setattr(budget, "EXEMPT", 0)
    rows = texts(500, 50, length)
    write_honest(tmp_path / name, rows)
    table = read_table(tmp_path / name, 1)
    assert table.texts == [(row,) for row in rows]
    records = read_records(str(tmp_path / name), ("text",))
    assert [text for (text,), _ in records] == rows


def test_a_stream_has_no_limit(tmp_path, monkeypatch):
    assert budget.Budget.of_files("-", ["-"]).limit == float("inf")
    assert budget.Budget("a", 2**30).limit == 200 * 2**30
    monkeypatch.setattr(budget, "EXEMPT", 0)
    assert budget.Budget.of_files("a", [str(tmp_path / "none")]).limit == float("inf")

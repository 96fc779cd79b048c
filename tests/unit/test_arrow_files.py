"""Parquet and Arrow files, read as other files of labelled texts are."""

import contextlib
import random

import pyarrow as pa
import pytest
from table_files import write_saved_dataset, write_table

from roformer_keras.base.errors import SourceError
from roformer_keras.cli.texts import read_lines
from roformer_keras.tables import arrow
from roformer_keras.tables.corpus import CorpusSource, read_corpus
from roformer_keras.tables.files import read_records, read_table
from roformer_keras.tables.opening import File

ROWS = {"id": [7, 8, 9], "text": ["甲，乙", "丙 丁", "戊"], "label": ["好", "坏", "好"]}
TEXTS, LABELS = [("甲，乙",), ("丙 丁",), ("戊",)], ["好", "坏", "好"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.ipc", "a.feather"])
@pytest.mark.parametrize("stream", [False, True])
def test_columns_by_name_and_by_number(name, stream, tmp_path):
    path = write_table(tmp_path / name, pa.table(ROWS), stream)
    for fields in ((), ("text", "label"), ("2", "3")):
        table = read_table(path, 1, fields)
        assert (table.texts, table.labels, table.lines) == (TEXTS, LABELS, [1, 2, 3])
    table = read_table(path, 1, groups=["id"])
    assert table.groups == [((2, "7"),), ((2, "8"),), ((2, "9"),)]
    assert read_lines(str(path)) == [text for (text,) in TEXTS]
    records = list(read_records(str(path), ("text",), "id"))
    assert records == [
        ((text,), str(n)) for (text,), n in zip(TEXTS, "789", strict=True)
    ]


def test_a_saved_dataset(tmp_path):
    whole = pa.table(ROWS)
    folder = write_saved_dataset(tmp_path / "saved", whole.slice(0, 2), whole.slice(2))
    assert read_table(folder, 1).texts == TEXTS
    assert str(read_table(folder, 1).places[2]) == f"row 3 of {folder}"
    for name in (folder, tmp_path / "s*"):
        source = CorpusSource(files=(str(name),), fields=("label", "text"))
        records = list(read_corpus(source))
        assert records == [(b, *a) for a, b in zip(TEXTS, ROWS["label"], strict=True)]
    for content in ('{"_data_files": [{"filename": "../x"}]}', "{}", "[" * 10**5):
        (folder / "state.json").write_text(content)
        with pytest.raises(SourceError, match=r"state\.json must be as datasets"):
            read_table(folder, 1)


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.dictionary(pa.int8(), pa.utf8())]
)
def test_types_of_text(kind, tmp_path):
    column = pa.array(ROWS["text"]).cast(kind)
    table = pa.table({"text": column, "label": [["O"], [], None]})
    read = read_table(write_table(tmp_path / "a.parquet", table), 1, labelled=False)
    assert read.texts == TEXTS


@pytest.mark.parametrize("offsets", [(0, 10**9), (2**30, 2**30 + 5), (2**32 - 9, 150)])
def test_offsets_that_lie(offsets, tmp_path):
    path = write_table(tmp_path / "a.arrow", pa.table({"text": ["甲" * 50]}))
    good = (150).to_bytes(4, "little")
    lie = b"".join(n.to_bytes(4, "little") for n in offsets)
    content = path.read_bytes()
    # The last such bytes are the offsets; before them stands the length of a buffer.
    first, _, after = content.rpartition(bytes(4) + good)
    path.write_bytes(first + lie + after)
    with pytest.raises(SourceError, match=r"cannot read .*a\.arrow as Arrow"):
        read_table(path, 1, (), False)


def test_a_number_of_rows_that_lies(tmp_path):
    table = pa.table({"text": ["甲"] * 77})
    path = write_table(tmp_path / "a.arrow", table, stream=True)
    content, count = path.read_bytes(), (77).to_bytes(8, "little")
    assert content.count(count) == 2
    path.write_bytes(content.replace(count, (2**40).to_bytes(8, "little")))
    with pytest.raises(SourceError, match=r"cannot read .*a\.arrow as Arrow"):
        read_table(path, 1, (), False)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_damaged_files(name, tmp_path):
    """A damaged file gives rows or our error, and nothing else."""
    path = write_table(tmp_path / name, pa.table(ROWS))
    good, draw, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(draw.choice((1, 4))):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        cut = draw.choice((len(bad), draw.randrange(len(bad))))
        path.write_bytes(bad[:cut])
        try:
            read_table(path, 1)
        except SourceError:
            refused += 1
    assert refused > 100
    for content in (b"", b"PAR1", b"ARROW1", b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=f"cannot read .*{name} as"):
            read_table(path, 1)


def test_a_type_that_does_not_fit_its_statistics(tmp_path):
    """pyarrow ends the process where it is asked for such a column's metadata."""
    path = write_table(tmp_path / "a.parquet", pa.table(ROWS))
    good, text, count = path.read_bytes(), b"\x15\x0c", 0
    for at in range(len(good)):
        if good.startswith(text, at):
            path.write_bytes(good[:at] + b"\x15\0" + good[at + 2 :])
            count += 1
            with contextlib.suppress(SourceError):
                read_table(path, 1)
    assert count > 3


def test_few_rows_are_in_memory_at_a_time(tmp_path):
    count = 3 * arrow.ROWS_AT_A_TIME
    table = pa.table({"text": ["甲"] * count})
    for name in ("a.parquet", "a.arrow"):
        path = write_table(tmp_path / name, table)
        read = getattr(arrow, f"_{path.suffix[1:]}_batches")
        batches = list(arrow._small_batches(File(str(path)), read, ["text"]))
        assert [batch.num_rows for batch in batches] == [arrow.ROWS_AT_A_TIME] * 3


def test_the_extra_is_named(tmp_path, monkeypatch):
    path = write_table(tmp_path / "a.parquet", pa.table(ROWS))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"pip install 'roformer-keras\[data\]'"):
        read_table(path, 1)


def test_many_small_groups_of_rows_are_read_together(tmp_path):
    texts = [f"第{number}行" for number in range(3000)]
    table = pa.table({"text": texts})
    path = write_table(tmp_path / "a.parquet", table, row_group_size=1)
    read = arrow.read_parquet(File(str(path)), ["text"])
    assert [values["text"] for _, values in read] == texts

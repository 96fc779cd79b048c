"""Labelled texts of files, and what may be wrong with them."""

import codecs
import csv
import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest
from common import to_json_lines, write_file, write_files
from hostile.run import unrefused

from roformer_keras.base.errors import ConfigurationError, SourceError, name_list
from roformer_keras.cli.texts import read_lines
from roformer_keras.tables.files import read_table

TWO, LABELS = [("甲，乙",), ("丙 丁",)], ["好", "坏"]
OBJECTS_OF_TWO = [
    {"t": text, "l": label} for (text,), label in zip(TWO, LABELS, strict=True)
]
SWAPPED = "label\ttext\n好\t甲，乙\n坏\t丙 丁\n"
PAIR, TRIPLE = "甲\t乙\t0.5\n丙\t丁\t3\n", "甲\t乙\t丙\tB\n"
TEXT_ONLY = {"labelled": False}
OR_FIRST = {"labelled": False, "or_first": True}
AB = [("甲",), ("乙",)]
TAGS = ["B-LOC", *["I-LOC"] * 7]
# Name, content, arguments, and the texts, labels and lines that are read.
READ = [
    ("a.tsv", "甲，乙\t好\n丙 丁\t坏\n", {}, TWO, LABELS, [1, 2]),
    ("a.txt", "甲，乙\t好\r\n\r\n丙 丁\t坏", {}, TWO, LABELS, [1, 3]),
    ("a.tsv", SWAPPED, {"fields": ("text", "label")}, TWO, LABELS, [2, 3]),
    ("a.tsv", SWAPPED, {}, TWO, LABELS, [2, 3]),
    ("a.txt", SWAPPED.title(), {}, TWO, LABELS, [2, 3]),
    (
        *("a.tsv", "好\tx\t甲，乙\n坏\ty\t丙 丁\n", {"fields": ("3", "1")}),
        *(TWO, LABELS, [1, 2]),
    ),
    ("a.csv", '"甲，乙",好\n丙 丁,坏\n', {}, TWO, LABELS, [1, 2]),
    ("a.csv", "\ufefftext,label\n甲，乙,好\n丙 丁,坏\n", {}, TWO, LABELS, [2, 3]),
    ("a.JSONL", OBJECTS_OF_TWO, {"fields": ("t", "l")}, TWO, LABELS, [1, 2]),
    # Several texts.
    ("a.tsv", PAIR, {"count": 2}, [("甲", "乙"), ("丙", "丁")], ["0.5", "3"], [1, 2]),
    ("b.tsv", TRIPLE, {"count": 3}, [("甲", "乙", "丙")], ["B"], [1]),
    (
        *("a.csv", "second,label,first\n乙,1,甲\n", {"count": 2}),
        *([("甲", "乙")], ["1"], [2]),
    ),
    (
        *("a.csv", "a,b,c,d\n甲,乙,丙,丁\n", {"count": 3, "fields": (*"dba", "c")}),
        *([("丁", "乙", "甲")], ["丙"], [2]),
    ),
    # Quoted cells may go over lines.
    (
        *("a.csv", 'text,label\n"甲\n""乙""",好\n丙,坏\n', {}),
        *([('甲\n"乙"',), ("丙",)], LABELS, [2, 4]),
    ),
    # Plain text of one column has no names, and may lack the fields of a training.
    ("a.txt", "text\n乙\n", TEXT_ONLY, [("text",), ("乙",)], None, [1, 2]),
    ("a.tsv", "text\n乙\n", TEXT_ONLY, [("乙",)], None, [2]),
    ("a.txt", "甲\n乙\n", {"fields": ("x", "label"), **OR_FIRST}, AB, None, [1, 2]),
    ("a.txt", "甲\n乙\n", {"fields": ("2", "1"), **OR_FIRST}, AB, None, [1, 2]),
    (
        *("a.txt", "label\tx\n好\t甲\n坏\t乙\n", {"fields": ("x",), **OR_FIRST}),
        *(AB, None, [2, 3]),
    ),
    # Tags of tokens are given to characters; tabs are between columns; lines between
    # documents are no texts.
    (
        *("a.bio", "她 O\n在\tO\n北京 B-LOC\n大学 I-LOC\n\n\n好 O\n", {}),
        [("她在北京大学",), ("好",)],
        *([["O", "O", "B-LOC", *["I-LOC"] * 3], ["O"]], [1, 7]),
    ),
    (
        "a.conll",
        "-DOCSTART- -X- O O\n\nNew York\tB-LOC\n\u3000\tO\n好\tO\t\n",
        *({}, [("New York\u3000好",)], [[*TAGS, "O", "O"]], [3]),
    ),
    (
        *("a.bio", "北京 S-LOC\n大 B-ORG\n学生会 E-ORG\n好 O\n", {}),
        [("北京大学生会好",)],
        *([["B-LOC", "E-LOC", "B-ORG", "I-ORG", "I-ORG", "E-ORG", "O"]], [1]),
    ),
    # Places in words are left out; two of these are none.
    ("a.conll", "科0\tO\n技1\tO\n全0\tO\n", {}, [("科技全",)], [["O"] * 3], [1]),
    ("a.conll", "科0\tO\n技2\tO\n", {}, [("科0技2",)], [["O"] * 4], [1]),
    ("a.conll", "A4\tO\n纸\tO\n", {}, [("A4纸",)], [["O"] * 3], [1]),
]


@pytest.mark.parametrize(
    ("name", "content", "arguments", "texts", "labels", "lines"),
    READ,
)
def test_what_is_read(name, content, arguments, texts, labels, lines, tmp_path):
    content = to_json_lines(content) if isinstance(content, list) else content
    path, arguments = write_file(tmp_path / name, content), {"count": 1, **arguments}
    table = read_table(path, **arguments)
    assert (table.texts, table.labels, table.lines) == (texts, labels, lines)
    # Windows writes these line ends.
    data = b"\r\n".join(path.read_bytes().splitlines())
    data = codecs.BOM_UTF8 + data.removeprefix(codecs.BOM_UTF8)
    other = write_file(tmp_path / f"windows.{name}", data)
    windows = read_table(other, **arguments)
    if '"甲\n' not in content:
        assert (windows.texts, windows.labels) == (texts, labels)
    unlabelled = read_table(path, **{**arguments, "labelled": False})
    assert (unlabelled.texts, unlabelled.labels) == (texts, None)


GOOD = "甲\t好\n乙\t坏\n"
GZ, XZ = gzip.compress(GOOD.encode()), lzma.compress(GOOD.encode())
TAR = io.BytesIO()
with tarfile.open(fileobj=TAR, mode="w:gz") as archive:
    archive.addfile(tarfile.TarInfo("x.tsv"), io.BytesIO())


def link(target):
    return lambda path: path.symlink_to(target)


def keyed(text):
    return f'{{"text": {text}, "label": 1}}\n'


NO_TEXT, NO_OBJECT = "line 1 of .*a text must be a str", "must be a JSON object"
KINDS = ".csv, .tsv, .txt, .xlsx, .jsonl, .json, .bio, .conll, .parquet or .arrow"
TWO = "must have 2 columns, got 1"
# Name, contents, message.
BAD = [
    # What is no file, or none of these.
    ("x.tsv", [os.mkfifo], "x.tsv must be a file, and is a pipe: read it from"),
    ("x.tsv", [os.mkdir], "x.tsv must be a file, and is a folder"),
    ("x.tsv", [link("x.tsv")], "Too many levels of symbolic links"),
    ("x.tsv", [link("nowhere")], "x.tsv: No such file"),
    *((name, [GOOD], KINDS) for name in ("x", "x.ods", "x.tsv.gz.gz")),
    ("x.xlsx", [GOOD, b"PK"], "x.xlsx as Excel: File is not a zip file"),
    ("x.parquet", [b"PAR1"], "x.parquet as Parquet: "),
    ("x.arrow", [b"ARROW1"], "x.arrow as Arrow: "),
    # Nothing in it.
    ("x.tsv", ["", "\n\n\n", b"\xef\xbb\xbf"], "x.tsv has no row"),
    ("x.csv", ["", "text,label\n", ",\n,\n"], "x.csv has no row"),
    ("x.bio", ["", "\n \n"], "x.bio has no row"),
    ("x.tsv.gz", [b""], "x.tsv.gz has no row"),
    # Bytes.
    (
        "x.tsv",
        [GOOD.encode(name) for name in ("utf-16", "utf-32", "gb18030", "big5")],
        "line 1 of .*x.tsv must be UTF-8",
    ),
    ("x.bio", [b"\x80 O\n"], "line 1 of .*x.bio must be UTF-8"),
    ("x.tsv", [GOOD.encode() + b"\xc0\x80\t1\n"], "line 3 of .*x.tsv must be UTF-8"),
    ("x.tsv.gz", [GZ[:-9], GZ[:11]], "x.tsv.gz.*: Compressed file ended before the"),
    (
        "x.tsv.gz",
        [GZ[:-8] + bytes(8)],
        "x.tsv.gz.*: CRC check failed 0x0 != 0xc9a9a713",
    ),
    ("x.tsv.gz", [GZ[:12] + b"\xff" + GZ[13:]], "line 1 of .*x.tsv.gz must be UTF-8"),
    ("x.tsv.gz", [GOOD.encode()], "x.tsv.gz: Not a gzipped file (b'\\xe7\\x94')"),
    ("x.tsv.gz", [GZ + b"rubbish"], "x.tsv.gz.*: Not a gzipped file (b'ru')"),
    ("x.tsv.gz", [TAR.getvalue()], f"line 1 of .*x.tsv.gz {TWO}"),
    ("x.tsv.xz", [XZ[:-9], XZ[:30]], "x.tsv.xz.*: Compressed file ended before the"),
    ("x.tsv.xz", [GZ], "x.tsv.xz: Input format not supported by"),
    # Tables.
    ("x.tsv", ["甲\n", bytes(1000)], f"line 1 of .*x.tsv {TWO}"),
    ("x.csv", ['"甲,好\n'], "line 1 of .*x.csv is no CSV: unexpected end of data"),
    ("x.csv", ['"甲"x,好\n'], "line 1 of .*x.csv is no CSV: ',' expected after"),
    ("x.csv", ["甲\r乙,好\r"], "is no CSV: new-line character seen in"),
    ("x.csv", ["甲;好\n乙，\n丙，\n"], f"line 1 of .*x.csv {TWO}"),
    ("x.csv", ['"甲\n\n乙",好\n丙\n'], f"line 4 of .*x.csv {TWO}"),
    ("x.bio", ["甲\n"], "line 1 of .*x.bio must be a token and its tag, got '甲"),
    # JSON.
    ("x.jsonl", ["[" * 10**5, '{"a":' * 10**5, "{"], f"line 1 of .*{NO_OBJECT}"),
    ("x.jsonl", ['{"text": "甲",\n"label": 1}\n'], f"line 1 of .*{NO_OBJECT}"),
    ("x.jsonl", [keyed("9" * 5000)], "Exceeds the limit"),
    ("x.jsonl", ["[1]\n"], f"{NO_OBJECT}, got [1]"),
    ("x.jsonl", ["null\n"], f"{NO_OBJECT}, got None"),
    ("x.jsonl", ["{}\n"], "must have 'text', 'label', got none"),
    ("x.json", ["{", "[[", '{"text": "甲"}'], "x.json .*format='jsonl' reads"),
    ("x.json", ["", "[]"], "x.json has no row"),
    ("x.json", ["[1]"], "row 1 of .*x.json must be an object, got 1"),
]


def test_files_that_are_refused_by_name_and_line(tmp_path):
    cases = []
    for number, (name, contents, message) in enumerate(BAD):
        for place, content in enumerate(contents):
            folder = tmp_path / f"{number}-{place}"
            write_files(folder, {name: content})
            cases.append(((folder / name, 1), message))
    assert unrefused(cases, read_table, SourceError) == []


def test_rows_that_lack_columns_of_their_task(tmp_path):
    """Of tasks of several texts, and where fields are named."""
    files = {"x.tsv": "甲\t乙\n", "y.tsv": "甲\t\t1\n", "x.jsonl": keyed('"甲"')}
    files["empty.tsv"] = "text\tlabel\n"
    write_files(tmp_path, files)
    cases = [
        ("x.tsv", 2, (), "line 1 of .*x.tsv must have 3 columns, got 2"),
        ("x.tsv", 3, (), "line 1 of .*x.tsv must have 4 columns, got 2"),
        ("y.tsv", 2, (), NO_TEXT),
        ("x.jsonl", 3, (), "must have 'first', 'second', 'third', 'label', got 'text'"),
        ("x.tsv", 1, ("text", "label"), "must name the columns 'text', 'label'"),
        ("x.tsv", 1, ("1", "0"), "must name the columns '1', '0'"),
        ("x.tsv", 1, ("-1", "2"), "must name the columns '-1', '2', got '甲',"),
        ("x.tsv", 1, ("1", "9" * 5000), "line 1 of .*must name the columns '1',"),
        ("x.tsv", 1, ("1", "99"), "line 1 of .*x.tsv must have 99 columns, got 2"),
        ("empty.tsv", 1, ("text", "label"), "has no row"),
    ]
    calls = [((tmp_path / n, count, f), message) for n, count, f, message in cases]
    assert unrefused(calls, read_table, SourceError) == []


def test_files_and_fields_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read .*: No such file"):
        read_table(tmp_path / "none.tsv", 1)
    for fields in (("a", "b"), ("1", "1", "1", "1")):
        message = f"name 2 texts and a label, got {name_list(fields)}"
        with pytest.raises(ConfigurationError, match=message):
            read_table(tmp_path / "none.tsv", 2, fields)
    with pytest.raises(ConfigurationError, match="columns, got 'text', 'text'"):
        read_table(tmp_path / "none.jsonl", 1, ("text", "text"))


def test_a_cell_of_csv_may_be_long(tmp_path):
    text = "好" * 140_000
    (tmp_path / "a.csv").write_text(f'"{text}",1\n', encoding="utf-8")
    limit = csv.field_size_limit()
    assert read_table(tmp_path / "a.csv", 1).texts == [(text,)]
    assert csv.field_size_limit() == limit


def test_texts_of_tags_with_bad_lines_can_be_left_out(tmp_path):
    content = "好 O\n\n甲 O\n坏\n丙\n\n乙 O\n"
    path, skipped = write_file(tmp_path / "a.bio", content), []
    table = read_table(path, 1, skipped=skipped)
    assert (table.texts, table.lines) == ([("好",), ("乙",)], [1, 7])
    ((line, reason),) = skipped
    assert line == 3
    assert reason.startswith("line 4 of") and "must be a token and its tag" in reason


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.txt"])
def test_a_column_that_nothing_names_is_refused(name, count, tmp_path):
    texts = ["同一句", "同一句", "另一句", "另一句"][: 4 if count == 1 else 2]
    rows = [[f"第{n}句", *[text] * count, n % 2] for n, text in enumerate(texts)]
    content = "\n".join("\t".join(map(str, row)) for row in rows) + "\n"
    path = write_file(
        tmp_path / name, content.replace("\t", "," if "csv" in name else "\t")
    )
    width = count + 2
    with pytest.raises(SourceError, match=f"no others .*, got {width}: .*fields="):
        read_table(path, count)
    # Texts alone are the first columns, also where labels follow.
    assert len(read_table(path, count, labelled=False).texts) == len(texts)
    numbers = tuple(str(number + 1) for number in range(width) if number != 1)
    table = read_table(path, count, numbers)
    assert table.labels == ["0", "1", "0", "1"][: len(texts)]
    named = "\t".join([f"列{n}" for n in range(width - 1)] + ["类"]) + "\n"
    path = write_file(tmp_path / "b.tsv", named + content)
    fields = [name for n, name in enumerate(named.split()) if n != 1]
    assert read_table(path, count, fields).labels == table.labels


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "text,label\n甲,好\n乙,坏\n", ["甲", "乙"]),
        ("a.csv", "text\n甲\n乙\n", ["甲", "乙"]),
        ("a.tsv", "甲\t好\n乙\t坏\n", ["甲", "乙"]),
        ("a.jsonl", '{"text": "甲"}\n{"text": "乙"}\n', ["甲", "乙"]),
        # What has no name of a table is lines, whole.
        ("a.txt", "甲\t好\n乙,坏\n", ["甲\t好", "乙,坏"]),
        ("a.md", "text\n甲\n", ["text", "甲"]),
    ],
)
def test_a_table_is_known_by_its_name(name, content, expected, tmp_path):
    assert read_lines(str(write_file(tmp_path / name, content))) == expected


PAIRS = "甲\t乙\t同\t一\n丙\t甲\t异\t\n"
NAMED = "first\tsecond\tlabel\tsource\n" + PAIRS
OBJECTS = to_json_lines(
    dict(zip(("first", "second", "label", "source"), row, strict=True))
    for row in (("甲", "乙", "同", "一"), ("丙", "甲", "异", ""))
)
TEXTS_OF_PAIRS = [((0, "甲"), (0, "乙")), ((0, "丙"), (0, "甲"))]
SOURCES = [((2, "一"),), ()]


@pytest.mark.parametrize(
    ("name", "content", "fields", "groups", "expected"),
    [
        ("a.tsv", PAIRS, (), ("1", "2"), TEXTS_OF_PAIRS),
        # Without a header, texts have the names that a header would have.
        ("a.tsv", PAIRS, (), ("first", "second"), TEXTS_OF_PAIRS),
        ("a.tsv", PAIRS, (), ("4",), SOURCES),
        ("a.tsv", PAIRS, ("2", "1", "3"), ("1",), [((0, "甲"),), ((0, "丙"),)]),
        ("a.tsv", NAMED, (), ("first", "second"), TEXTS_OF_PAIRS),
        ("a.tsv", NAMED, (), ("source",), SOURCES),
        ("a.tsv", NAMED, (), ("4",), SOURCES),
        ("a.tsv", NAMED, ("second", "first", "label"), ("source",), SOURCES),
        ("a.csv", NAMED.replace("\t", ","), (), ("2",), [((0, "乙"),), ((0, "甲"),)]),
        ("a.jsonl", OBJECTS, (), ("1", "second"), TEXTS_OF_PAIRS),
        ("a.jsonl", OBJECTS, (), ("source",), SOURCES),
        ("a.jsonl", OBJECTS.replace('""', "null"), (), ("source",), SOURCES),
    ],
)
def test_columns_by_which_rows_are_grouped(
    name, content, fields, groups, expected, tmp_path
):
    path = write_file(tmp_path / name, content)
    table = read_table(path, 2, fields, groups=groups)
    assert table.groups == expected
    # Without a header, columns that nothing names are refused.
    numbers = ("1", "2", "3") if content == PAIRS else ()
    plain = read_table(path, 2, fields or numbers)
    assert plain.groups is None
    assert (table.texts, table.labels) == (plain.texts, plain.labels)


def test_columns_that_are_not_there(tmp_path):
    files = {"a.tsv": PAIRS, "named.tsv": NAMED, "a.jsonl": OBJECTS, "a.bio": "她 O\n"}
    write_files(tmp_path, files)
    cases = [
        (
            "a.tsv",
            "source",
            "the column 'source', by which rows are grouped: columns",
        ),
        ("named.tsv", "author", "'author', by which .*, got 'first', 'second',"),
        ("named.tsv", "5", "have the column '5', .*, got 'first'"),
        ("a.tsv", "5", "line 1 of .* must have 5 columns, got 4"),
        ("a.jsonl", "author", "must have .*'author', got 'first'"),
        ("a.bio", "1", "for tasks of 1 texts a row, not 2"),
    ]
    wrong = unrefused(
        [((tmp_path / name, group), message) for name, group, message in cases],
        lambda path, group: read_table(path, 2, groups=(group,)),
        SourceError,
    )
    assert wrong == []


def test_reviews_that_are_in_two_files():
    """The figures that notebooks/data/README.md has."""
    data = Path(__file__).parents[2] / "notebooks" / "data"
    train, valid, test = (
        [
            text.strip()
            for (text,) in read_table(data / f"reviews.{name}.tsv.gz", 1).texts
        ]
        for name in ("train", "valid", "test")
    )
    known = set(train)
    shared = [sum(text in known for text in part) for part in (valid, test)]
    assert (len(valid), len(test), shared) == (500, 1000, [45, 111])

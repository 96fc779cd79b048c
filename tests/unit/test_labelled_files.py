"""Labelled texts of files, and what may be wrong with them."""

import csv
import gzip
import io
import json
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

TEXTS = [("甲，乙",), ("丙 丁",)]


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.tsv", "甲，乙\t好\n丙 丁\t坏\n", ()),
        ("a.txt", "甲，乙\t好\r\n\r\n丙 丁\t坏", ()),
        ("a.tsv", "label\ttext\n好\t甲，乙\n坏\t丙 丁\n", ("text", "label")),
        ("a.tsv", "label\ttext\n好\t甲，乙\n坏\t丙 丁\n", ()),
        ("a.tsv", "好\tx\t甲，乙\n坏\ty\t丙 丁\n", ("3", "1")),
        ("a.csv", '"甲，乙",好\n丙 丁,坏\n', ()),
        ("a.csv", "\ufefftext,label\n甲，乙,好\n丙 丁,坏\n", ("text", "label")),
        (
            "a.jsonl",
            '{"text": "甲，乙", "label": "好"}\n\n{"text": "丙 丁", "label": "坏"}',
            (),
        ),
        (
            "a.JSONL",
            '{"t": "甲，乙", "l": "好"}\n{"t": "丙 丁", "l": "坏"}',
            ("t", "l"),
        ),
    ],
)
def test_every_kind_of_file(tmp_path, name, content, fields):
    table = read_table(write_file(tmp_path / name, content), 1, fields)
    assert table.texts == TEXTS
    assert table.labels == ["好", "坏"]
    unlabelled = read_table(tmp_path / name, 1, fields, labelled=False)
    assert (unlabelled.texts, unlabelled.labels) == (TEXTS, None)


def test_several_texts_and_other_labels(tmp_path):
    pairs = [["甲", "乙", 0.5], ["丙", "丁", 3]]
    lines = [dict(zip(("first", "second", "label"), row, strict=True)) for row in pairs]
    content = "\n".join(map(json.dumps, lines))
    table = read_table(write_file(tmp_path / "a.jsonl", content), 2)
    assert table.texts == [("甲", "乙"), ("丙", "丁")]
    assert table.labels == [0.5, 3]
    triplets = read_table(write_file(tmp_path / "b.tsv", "甲\t乙\t丙\tB\n"), 3)
    assert (triplets.texts, triplets.labels) == ([("甲", "乙", "丙")], ["B"])


def test_quoted_cells_may_go_over_lines(tmp_path):
    content = 'text,label\n"甲\n""乙""",好\n丙,坏\n'
    table = read_table(write_file(tmp_path / "a.csv", content), 1, ("text", "label"))
    assert table.texts == [('甲\n"乙"',), ("丙",)]
    assert table.lines == [2, 4]


def test_tags_of_tokens_are_given_to_characters(tmp_path):
    content = "她 O\n在\tO\n北京 B-LOC\n大学 I-LOC\n\n\n好 O\n"
    for name in ("a.bio", "a.conll"):
        table = read_table(write_file(tmp_path / name, content), 1)
        assert table.texts == [("她在北京大学",), ("好",)]
        expected = ["O", "O", "B-LOC", "I-LOC", "I-LOC", "I-LOC"]
        assert table.labels == [expected, ["O"]]
        assert table.lines == [1, 7]
        with pytest.raises(SourceError, match="for tasks of 1 texts a row, not 2"):
            read_table(tmp_path / name, 2)


@pytest.mark.parametrize(
    ("name", "header", "count", "fields"),
    [
        ("a.tsv", "label\ttext", 1, ()),
        ("a.txt", "Text\tLabel", 1, ()),
        ("a.csv", "second,label,first", 2, ()),
        ("a.csv", "a,b,c,anchor,positive,negative", 3, ("anchor", "b", "c", "a")),
        ("a.tsv", "review\tstars", 1, ("review", "stars")),
    ],
)
def test_a_header_is_a_line_with_the_names_of_the_fields(
    tmp_path, name, header, count, fields
):
    separator = "," if name.endswith("csv") else "\t"
    columns = header.lower().split(separator)
    rows = [[f"{column}{n}" for column in columns] for n in range(3)]
    content = "\n".join([header, *map(separator.join, rows)])
    names = fields or (*("text", "first", "second")[count > 1 :][:count], "label")
    table = read_table(write_file(tmp_path / name, content), count, fields)
    assert table.texts == [tuple(f"{x}{n}" for x in names[:-1]) for n in range(3)]
    assert table.labels == [f"{names[-1]}{n}" for n in range(3)]
    assert table.lines == [2, 3, 4]


def test_plain_text_of_one_column_has_no_names(tmp_path):
    path = write_file(tmp_path / "a.txt", "text\nreview\n")
    assert read_table(path, 1, labelled=False).texts == [("text",), ("review",)]
    path = write_file(tmp_path / "a.tsv", "text\n好\n")
    assert read_table(path, 1, labelled=False).texts == [("好",)]


def test_plain_text_may_lack_the_fields_of_a_training(tmp_path):
    texts = write_file(tmp_path / "a.txt", "甲\n乙\n")
    table = write_file(tmp_path / "b.txt", "label\treview\n好\t甲\n坏\t乙\n")
    for fields in (("review", "label"), ("2", "1")):
        examples = read_table(texts, 1, fields, labelled=False, or_first=True)
        assert examples.texts == [("甲",), ("乙",)]
        examples = read_table(table, 1, fields, labelled=False, or_first=True)
        assert examples.texts[-2:] == [("甲",), ("乙",)]
        with pytest.raises(SourceError):
            read_table(texts, 1, fields, labelled=False)


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


def test_tabs_are_between_columns_and_documents_are_no_texts(tmp_path):
    content = "-DOCSTART- -X- O O\n\nNew York\tB-LOC\n\u3000\tO\n好\tO\t\n"
    table = read_table(write_file(tmp_path / "a.conll", content), 1)
    assert table.texts == [("New York\u3000好",)]
    assert table.labels == [["B-LOC", *["I-LOC"] * 7, "O", "O"]]


def test_tags_of_whole_words(tmp_path):
    content = "北京 S-LOC\n大 B-ORG\n学生会 E-ORG\n好 O\n"
    table = read_table(write_file(tmp_path / "a.bio", content), 1)
    assert table.texts == [("北京大学生会好",)]
    assert table.labels == [["B-LOC", "E-LOC", "B-ORG", "I-ORG", "I-ORG", "E-ORG", "O"]]


@pytest.mark.parametrize(
    "content, text",
    [
        ("科0\tO\n技1\tB-ORG\n全0\tO\n\n方0\tO\n", "科技全"),
        # Two of these are no places in words: all is kept.
        ("科0\tO\n技2\tO\n", "科0技2"),
        ("A4\tO\n纸\tO\n", "A4纸"),
    ],
)
def test_places_in_words_are_left_out(tmp_path, content, text):
    table = read_table(write_file(tmp_path / "a.conll", content), 1)
    assert table.texts[0] == (text,)
    assert len(table.labels[0]) == len(text)


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

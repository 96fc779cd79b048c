"""Labelled texts of files, and what may be wrong with them."""

import gzip
import json
import lzma

import pytest

from roformer_keras.data.files import read_table
from roformer_keras.errors import ConfigurationError, SourceError

TEXTS = [("甲，乙",), ("丙\t丁".replace("\t", " "),)]


def written(tmp_path, name, content):
    path = tmp_path / name
    if not isinstance(content, bytes):
        content = content.encode()
    path.write_bytes(content)
    return path


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
    table = read_table(written(tmp_path, name, content), 1, fields)
    assert table.texts == TEXTS
    assert table.labels == ["好", "坏"]
    unlabelled = read_table(tmp_path / name, 1, fields, labelled=False)
    assert (unlabelled.texts, unlabelled.labels) == (TEXTS, None)


def test_packed_files(tmp_path):
    content = "甲，乙\t好\n丙 丁\t坏\n".encode()
    for name, pack in (("a.tsv.gz", gzip.compress), ("a.tsv.xz", lzma.compress)):
        assert read_table(written(tmp_path, name, pack(content)), 1).texts == TEXTS
        broken = written(tmp_path, f"b{name}", pack(content)[:-9])
        with pytest.raises(SourceError, match=f"cannot read .*b{name}"):
            read_table(broken, 1)


def test_several_texts_and_other_labels(tmp_path):
    pairs = [["甲", "乙", 0.5], ["丙", "丁", 3]]
    lines = [dict(zip(("first", "second", "label"), row, strict=True)) for row in pairs]
    content = "\n".join(map(json.dumps, lines))
    table = read_table(written(tmp_path, "a.jsonl", content), 2)
    assert table.texts == [("甲", "乙"), ("丙", "丁")]
    assert table.labels == [0.5, 3]
    triplets = read_table(written(tmp_path, "b.tsv", "甲\t乙\t丙\tB\n"), 3)
    assert (triplets.texts, triplets.labels) == ([("甲", "乙", "丙")], ["B"])


def test_quoted_cells_may_go_over_lines(tmp_path):
    content = 'text,label\n"甲\n""乙""",好\n丙,坏\n'
    table = read_table(written(tmp_path, "a.csv", content), 1, ("text", "label"))
    assert table.texts == [('甲\n"乙"',), ("丙",)]
    assert table.lines == [2, 4]


def test_tags_of_tokens_are_given_to_characters(tmp_path):
    content = "她 O\n在\tO\n北京 B-LOC\n大学 I-LOC\n\n\n好 x y O\n"
    for name in ("a.bio", "a.conll"):
        table = read_table(written(tmp_path, name, content), 1)
        assert table.texts == [("她在北京大学",), ("好",)]
        expected = ["O", "O", "B-LOC", "I-LOC", "I-LOC", "I-LOC"]
        assert table.labels == [expected, ["O"]]
        assert table.lines == [1, 7]
        with pytest.raises(SourceError, match="for tasks of one text"):
            read_table(tmp_path / name, 2)


@pytest.mark.parametrize(
    ("name", "header", "count"),
    [
        ("a.tsv", "sentence\tlabel", 1),
        ("a.txt", "sentence\tlabel", 1),
        ("a.tsv", "Text\tLabel", 1),
        ("a.csv", '"comment_text", class', 1),
        ("a.csv", ",reviewBody,star_rating", 1),
        ("a.tsv", "text_id\ttext_a\tlabel", 1),
        ("a.tsv", "评论内容\t标签", 1),
        ("a.csv", "sentence1,sentence2,score", 2),
        ("a.tsv", "id\tquestion1\tquestion2\tis_duplicate", 2),
        ("a.tsv", "question\tcontext\tanswer", 2),
        ("a.tsv", "anchor\tpositive\tnegative\tlabel", 3),
    ],
)
def test_a_first_line_of_usual_names_is_no_row(tmp_path, name, header, count):
    separator = "," if name.endswith("csv") else "\t"
    before = len(header.split(separator)) - count - 1
    rows = [["x"] * before + [f"甲{n}乙丙"[: n + 1]] * count for n in (1, 2, 3)]
    for labels in ("好坏好", "好中坏"):
        content = [header] + [
            separator.join([*row, label])
            for row, label in zip(rows, labels, strict=True)
        ]
        path = written(tmp_path, name, "\n".join(content))
        table = read_table(path, count)
        assert table.texts == [tuple(row[before:]) for row in rows]
        assert table.labels == list(labels)
        assert table.lines == [2, 3, 4]
        assert read_table(path, count, labelled=False).texts == table.texts
        # Nor where columns are told by number.
        numbers = [str(before + n + 1) for n in range(count + 1)]
        assert read_table(path, count, numbers) == table


@pytest.mark.parametrize(
    ("header", "count"),
    [
        ("label\treview", 1),
        ("cat\tlabel\treview", 1),
        ("title\tcontent\tlabel", 1),
        ("text\tlabel_a\tlabel_b", 1),
        ("sentence1\tsentence2\tlabel", 1),
        ("sentence\tlabel\tx", 2),
        ("context\tquestion\tanswer", 2),
        ("sentence2\tsentence1\tlabel", 2),
        ("stars\tcomment\tuser", 1),
    ],
)
def test_names_that_leave_doubt_are_refused(tmp_path, header, count):
    path = written(tmp_path, "a.tsv", f"{header}\n甲\t乙\t丙\n丁\t戊\t己\n")
    names = ", ".join(map(repr, header.split("\t")))
    with pytest.raises(
        SourceError, match=f"line 1 .* names the columns {names}.*fields="
    ):
        read_table(path, count)
    fields = header.split("\t")[::-1][: count + 1]
    assert read_table(path, count, fields).lines == [2, 3]
    assert read_table(path, count, ("2", "1", "3")[: count + 1]).lines == [2, 3]


@pytest.mark.parametrize(
    "content",
    [
        # A class that comes again is no name of a column.
        "Why\tquestion\nText\tanswer\nWho\tquestion\n",
        # As is what looks like none.
        "label\t1\nreview\t0\n",
        "a label\ttitle\nb\tbody\n",
        "问题很大\t标签\n没有\t标\n",
        "Great\tpositif\nBad\tnegatif\n",
    ],
)
def test_other_first_lines_are_rows(tmp_path, content):
    table = read_table(written(tmp_path, "a.tsv", content), 1)
    assert len(table.texts) == len(content.splitlines())


def test_plain_text_of_one_column_has_no_names(tmp_path):
    path = written(tmp_path, "a.txt", "text\nreview\n")
    assert read_table(path, 1, labelled=False).texts == [("text",), ("review",)]
    path = written(tmp_path, "a.tsv", "review\n好\n")
    assert read_table(path, 1, labelled=False).texts == [("好",)]


def test_plain_text_may_lack_the_fields_of_a_training(tmp_path):
    texts = written(tmp_path, "a.txt", "甲\n乙\n")
    table = written(tmp_path, "b.txt", "label\treview\n好\t甲\n坏\t乙\n")
    for fields in (("review", "label"), ("2", "1")):
        for path in (texts, table):
            found = read_table(path, 1, fields, labelled=False, or_first=True)
            assert found.texts == [("甲",), ("乙",)]
        with pytest.raises(SourceError):
            read_table(texts, 1, fields, labelled=False)


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.tsv", "甲\t好\n乙\n", (), "line 2 of .*a.tsv must have 2 columns, got 1"),
        ("a.tsv", "甲\t好\n\t坏\n", (), r"line 2 of .*must be a str .* got ''"),
        (
            "a.tsv",
            "甲\t好\n",
            ("text", "label"),
            "must name the columns 'text', 'label', got '甲', '好': fields=1,2 takes",
        ),
        ("a.tsv", "甲\t好\n", ("1", "0"), "must name the columns '1', '0'"),
        ("a.tsv", "", (), "a.tsv has no row"),
        ("a.tsv", "text\tlabel\n", ("text", "label"), "has no row"),
        ("a.csv", '"甲,好\n', (), "line 1 of .* is no CSV"),
        ("a.jsonl", "{", (), "line 1 of .* must be a JSON object"),
        ("a.jsonl", "[1]", (), r"got \[1\]"),
        (
            "a.jsonl",
            '{"text": "甲"}',
            (),
            "must have 'text', 'label', got 'text': name others with fields=",
        ),
        ("a.jsonl", '{"text": 3, "label": 0}', (), "must be a str .* got 3"),
        ("a.bio", "她\n", (), "line 1 of .* must be a token and its tag"),
        (
            "a.json",
            "{}",
            (),
            r"must be .csv, .tsv, .jsonl, .bio or .conll, .* got .*a.js",
        ),
        ("a.tsv", b"\xff\xfe", (), "must be UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, content, fields, message):
    with pytest.raises(SourceError, match=message):
        read_table(written(tmp_path, name, content), 1, fields)


def test_files_and_fields_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read .*: No such file"):
        read_table(tmp_path / "none.tsv", 1)
    with pytest.raises(ConfigurationError, match="name 2 texts and a label, got a, b"):
        read_table(tmp_path / "none.tsv", 2, ("a", "b"))

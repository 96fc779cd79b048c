"""The same rules for tables of every container: headers, cells, names, encodings."""

import json

import openpyxl
import pandas
import pyarrow
import pytest
from table_files import CELLS, KEYED, TEXT, write_columns, write_rows

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.files import read_records, read_table
from roformer_keras.tasks.labels import label_kind, parse_name, typed_names
from roformer_keras.tasks.span_labels import as_spans

ROWS = [["好", "1"], ["坏", "0"], ["好好", "1"], ["坏坏", "0"]]
TEXTS = [(text,) for text, _ in ROWS]
HEADERS = (
    *("review mood", "评论 心情", "comment polarity", "content senti_label", "x y"),
    *("text mood", "sentence label", "Review Text,Gold Label", "q a", "内容 打分"),
)


@pytest.mark.parametrize("kind", CELLS)
def test_a_header_of_own_names_is_asked_about(kind, tmp_path):
    for line in HEADERS:
        names = line.split("," if "," in line else " ")
        for classes in ("10", "好坏"):
            labels = [classes[0] if label == "1" else classes[1] for _, label in ROWS]
            rows = [[text, y] for (text, _), y in zip(ROWS, labels, strict=True)]
            path = write_rows(tmp_path, kind, [names, *rows])
            unit = "row" if kind == "xlsx" else "line"
            with pytest.raises(SourceError, match=f"{unit} 1 of .* a header") as error:
                read_table(path, 1)
            assert "fields=" in error.value.hint and "header='none'" in error.value.hint
            with pytest.raises(SourceError, match="seems to be a header"):
                read_table(path, 1, ("1", "2"), skipped=[])
            # Texts alone are asked about where the labels are next to them.
            if "text" not in names:
                with pytest.raises(SourceError, match="seems to be a header"):
                    read_table(path, 1, labelled=False)
            assert read_table(path, 1, header="none").labels == [names[1], *labels]
            for fields in ((), names, ("1", "2")):
                table = read_table(path, 1, fields, header="first")
                assert (table.texts, table.labels) == (TEXTS, labels)
    with pytest.raises(ConfigurationError, match="without a header, fields must be"):
        read_table(path, 1, names, header="none")


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(
    "labels",
    [
        *("1010", ["0.5", "1e-3", "-2", "3"], "好坏好好"),
        # Of several classes, of tags, of spans, of long answers.
        *(["a,b", "b", "a,c", "c"], ["B-x O", "O O", "O O", "O O"]),
        *([["a" * 50, "b", "b", "b"], ["[]", "x", "x", "x"]]),
    ],
)
def test_first_rows_that_are_no_header(kind, labels, tmp_path):
    rows = [[text, label] for (text,), label in zip(TEXTS, labels, strict=True)]
    assert read_table(write_rows(tmp_path, kind, rows), 1).labels == list(labels)
    # What is a sentence, or long, is no name of a column.
    for text in ("很好。", "好" * 41):
        path = write_rows(tmp_path, kind, [[text, "中"], *ROWS])
        assert read_table(path, 1).labels == ["中", *"1010"]


def test_a_label_that_is_known_is_no_header(tmp_path):
    path = write_rows(tmp_path, "csv", [["好", "正"], ["坏", "负"], ["一般", "中"]])
    with pytest.raises(SourceError, match="seems to be a header"):
        read_table(path, 1, classes=["负", "中"])
    assert len(read_table(path, 1, classes=["正"]).texts) == 3


def test_quotes_of_tsv(tmp_path):
    texts = ['他说"好"', "制\t表", "两\n行", '"开', "好", '"全"', "两\n制\t表"]
    frame = pandas.DataFrame({"text": texts, "label": list("aabbaba")})
    path = tmp_path / "x.tsv"
    frame.to_csv(path, sep="\t", index=False)
    assert read_table(path, 1).texts == [(text,) for text in texts]
    assert [text for (text,), _ in read_records(str(path), ("text",))] == texts
    # One quote that no CSV writer leaves: all are characters.
    raw = ['他说"好"', '"开', '"好"', '不"', '""']
    path.write_text("".join(f"{text}\ta\n" for text in raw), encoding="utf-8")
    for format in (None, "txt"):
        assert read_table(path, 1, format=format).texts == [(text,) for text in raw]
    path.write_text('"好"\ta\n"不"\ta\n', encoding="utf-8")
    assert read_table(path, 1).texts == [("好",), ("不",)]
    assert read_table(path, 1, format="txt").texts == [('"好"',), ('"不"',)]


@pytest.mark.parametrize("kind", [*TEXT, "bio"])
def test_encodings(kind, tmp_path):
    rows = [["text", "label"], ["繁體，好", "好"], ["壞", "壞"], ["𠀀", "好"]]
    for encoding, others in (
        ("gb18030", ["auto"]),
        ("utf-16", ["auto"]),
        ("utf-16-le", ["utf-16", "auto"]),
        ("utf-16-be", ["utf-16", "auto"]),
        ("utf-8-sig", ["utf-8", "auto"]),
        ("gbk", ["gb18030", "auto"]),
        ("big5", []),
    ):
        known = [row for row in rows if "𠀀" not in row or encoding[0] in "u"]
        known = rows if encoding == "gb18030" else known
        if kind == "bio":
            path, text = tmp_path / "x.bio", "".join(f"{c} O\n" for c in "繁體，好")
            path.write_bytes(text.encode(encoding))
            expected = [("繁體，好",)]
        else:
            path = write_rows(tmp_path, kind, known, encoding)
            expected = [(text,) for text, _ in known[1:]]
        names = ["gbk", "gb18030", "big5", "utf-16"]
        for name in [encoding] * (encoding in names) + others:
            assert read_table(path, 1, encoding=name).texts == expected
        if encoding != "utf-8-sig":
            with pytest.raises(SourceError, match=r"UTF-8.*encoding='auto'|is no CSV"):
                read_table(path, 1)
    (tmp_path / "x.tsv").write_bytes(b"\xff\xff\t1\n")
    with pytest.raises(SourceError, match="must be UTF-8, UTF-16 or GB18030"):
        read_table(tmp_path / "x.tsv", 1, encoding="auto")


@pytest.mark.parametrize(
    ("values", "names", "kind"),
    [
        ([1, 0, 1], ["1", "0", "1"], int),
        ([1.0, 0.0, 1.0], ["1", "0", "1"], int),
        ([True, False, True], ["true", "false", "true"], bool),
        (["1", "0", "1"], ["1", "0", "1"], str),
    ],
)
def test_a_label_is_the_same_class_in_every_container(values, names, kind, tmp_path):
    rows = [["text", "label"], *map(list, zip("甲乙丙", values, strict=True))]
    for container in (*CELLS, *KEYED):
        labels = read_table(write_rows(tmp_path, container, rows), 1).labels
        assert [parse_name(label) for label in labels] == names, container
        expected_kind = kind if container in KEYED else str
        assert label_kind(labels) is expected_kind
        expected = values if expected_kind is not str else names
        assert typed_names(map(parse_name, labels), expected_kind) == expected


def test_rows_of_excel(tmp_path):
    book = openpyxl.Workbook()
    for row in ([], ["text", None, "label"], ["好", 2.5, True], [7, None, 0], []):
        book.active.append(row)
    book.create_sheet("empty")
    book.save(tmp_path / "x.xlsx")
    table = read_table(tmp_path / "x.xlsx", 1)
    assert (table.texts, table.labels) == ([("好",), ("7",)], ["true", "0"])
    assert table.lines == [3, 4]
    book["empty"].append(["x"])
    book.save(tmp_path / "x.xlsx")
    with pytest.raises(SourceError, match="one sheet with rows, got 'Sheet', 'empty'"):
        read_table(tmp_path / "x.xlsx", 1)


def test_semicolons_are_between_cells_where_no_comma_is(tmp_path):
    path = tmp_path / "x.csv"
    for content, texts in (
        ("好,极了;1\n不;0\n好;1\n", ["好,极了", "不", "好"]),
        ("好,极了;1\n", ["好"]),
        ("a;好,1\nb;不,0\n不,0\n", ["a;好", "b;不", "不"]),
        ("好;1\n不,是;0\n好;1\n", ["好", "不,是", "好"]),
        ("text;label\n不;0\n好;1\n一;格;1\n", ["不", "好"]),
        ('"好;极了",1\n不,0\n', ["好;极了", "不"]),
        ('"好";"1"\n"不";"0"\n', ["好", "不"]),
    ):
        path.write_text(content, encoding="utf-8")
        rows = read_table(path, 1, skipped=[]).texts
        assert rows == [(text,) for text in texts]


TOKENS, TAGS = ["她", "在", "New", "北京"], ["O", "O", "O", "S-LOC"]
NAMES = ["O", "B-LOC", "I-LOC"]
SPANS = [(5, 7, "LOC")]


@pytest.mark.parametrize("kind", KEYED)
@pytest.mark.parametrize(
    ("text", "label"),
    [
        (TOKENS, TAGS),
        (TOKENS, ["o", "O", "O", "b_LOC"]),
        (TOKENS, [0, 0, 0, 1]),
        ("她在New北京", [{"start_offset": 5, "end_offset": 7, "label": "LOC"}]),
        (
            "她在New北京",
            [{"start_idx": 5, "end_idx": 6, "type": "LOC", "entity": "北京"}],
        ),
        ("她在New北京", {"LOC": {"北京": [[5, 6]]}}),
        ("她在New北京", ["O"] * 5 + ["B-LOC", "I-LOC"]),
    ],
)
def test_tags_and_spans_of_every_container(kind, text, label, tmp_path):
    path = write_rows(tmp_path, kind, [["tokens", "entities"], [text, label]])
    table = read_table(path, 1, ("tokens", "entities"), has_tokens=True)
    assert table.texts == [("她在New北京",)]
    assert as_spans(table.labels[0], table.texts[0][0], None, NAMES) == SPANS
    unlabelled = read_table(path, 1, ("tokens",), labelled=False, has_tokens=True)
    assert unlabelled.texts == table.texts


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_numbers_of_tags_have_the_names_that_datasets_stores(kind, tmp_path):
    class_label = {"names": ["O", "B-PER", "B-LOC"], "_type": "ClassLabel"}
    for feature in ({"feature": class_label, "_type": "List"}, [class_label]):
        stored = {"info": {"features": {"x": {}, "tags": feature}}}
        columns = {"x": [TOKENS], "tags": [[0, 0, 0, 2]]}
        table = pyarrow.table(columns).replace_schema_metadata(
            {"huggingface": json.dumps(stored)}
        )
        path = write_columns(tmp_path, kind, table)
        for names in ((), NAMES):
            examples = read_table(path, 1, ("x", "tags"), has_tokens=True)
            assert as_spans(examples.labels[0], "她在New北京", None, names) == SPANS

"""Files of jobs on Ray: which there are, where pieces start, and what is in them."""

import pyarrow
import pyarrow.parquet as parquet
import pytest
from hostile.run import unrefused

from roformer_keras.data.files import read_table
from roformer_keras.distributed.inputs import Reader, find_inputs, index_inputs
from roformer_keras.distributed.options import RayOptions
from roformer_keras.errors import ConfigurationError, SourceError

FILES = {
    "a.txt": "床前\n\n明月\r\n光",
    "b.txt": "\ufeff床前\n\n明月\n光\n",
    "a.jsonl": '{"t": "a", "x": 1}\n\n{"t": null}\n[1]\n{"t": "b"}\n',
    "a.csv": 't,n\r\n"床\n""前",1\n\nb,2\nc,3,4\n"d",5',
    "a.tsv": "t\tn\nb\t2\nc\t3\t4\nd\t5\n",
}
# Texts with the number of the row and the line; None where it cannot be read.
ROWS = {
    "a.txt": [("床前", 0, 1), ("", 1, 2), ("明月", 2, 3), ("光", 3, 4)],
    "b.txt": [("床前", 0, 1), ("", 1, 2), ("明月", 2, 3), ("光", 3, 4)],
    "a.jsonl": [("a", 0, 1), (None, 2, 3), (None, 3, 4), ("b", 4, 5)],
    "a.csv": [('床\n"前', 0, 2), ("b", 2, 5), (None, 3, 6), ("d", 4, 7)],
    "a.tsv": [("b", 0, 2), (None, 1, 3), ("d", 2, 4)],
}


def read_all(place, rows):
    inputs, pieces = index_inputs(find_inputs(place), rows)
    reader, rows_read = Reader(inputs, ["t"]), []
    for piece in pieces:
        read = reader.read(piece)
        rows_read += zip(read.column("t"), read.numbers, read.lines, strict=True)
    return rows_read


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize("name", FILES)
def test_pieces_of_any_size_are_the_file(name, rows, tmp_path):
    (tmp_path / name).write_bytes(FILES[name].encode())
    assert read_all(tmp_path / name, rows) == ROWS[name]


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_files_follow_each_other(rows, tmp_path):
    for number, name in enumerate(["b/x", "a/y", "a/_z", ".c/v"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        table = pyarrow.table({"t": [f"{number}{row}" for row in range(5)]})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
    texts = [f"1{row}" for row in range(5)] + [f"0{row}" for row in range(5)]
    for place in (tmp_path, f"{tmp_path}/*/*.parquet", f"file://{tmp_path}/[ab]/*"):
        rows_read = read_all(place, rows)
        assert [text for text, _, _ in rows_read] == texts
        assert [number for _, number, _ in rows_read] == list(range(10))
        assert [line for _, _, line in rows_read] == [1, 2, 3, 4, 5] * 2


def test_a_block_may_end_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr("roformer_keras.distributed.inputs._BLOCK", 3)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content.encode())
        assert read_all(tmp_path / name, 2) == ROWS[name]


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(SourceError, match=r"cannot read .*a\.parquet"):
        read_all(tmp_path, 2)


def test_lines_that_are_not_utf_8_are_problems_of_their_rows(tmp_path):
    for name, content in {"a.jsonl": b'{"t": "\xff"}', "b.csv": b"t\n\xff\nx"}.items():
        (tmp_path / name).write_bytes(content)
        inputs, (piece,) = index_inputs(find_inputs(tmp_path / name), 9)
        read = Reader(inputs, ["t"]).read(piece)
        assert list(read.problems) == [0] and "UTF-8" in read.problems[0]


@pytest.mark.parametrize(
    ("name", "content", "format", "message"),
    [
        ("a.txt.gz", b"\x1f\x8b", "txt", "not compressed, got .gz"),
        ("a.csv", 't,n\n"床,1\n前,2\n'.encode(), None, "line 2 of .*unexpected end"),
        ("a.csv", "题,n\n前,2\n".encode("gbk"), None, "must be UTF-8"),
    ],
)
def test_files_that_would_lose_rows_are_refused(
    name, content, format, message, tmp_path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        index_inputs(find_inputs(tmp_path / name, format), 10)


def test_columns_of_parquet_have_different_names(tmp_path):
    table = pyarrow.table([["a"], ["b"]], names=["t", "t"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="must name its columns, each once"):
        index_inputs(find_inputs(tmp_path), 10)


def test_cells_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text(f"t,n\n{'床' * 200_000},1\n", encoding="utf-8")
    ((text, *_),) = read_all(tmp_path / "a.csv", 10)
    assert len(text) == 200_000


def test_options_that_break_a_rule():
    counts = ("num_workers", "cpus_per_worker", "piece_rows")
    cases = [
        *(
            (name, value, "an integer of at least 1")
            for name in counts
            for value in (0, 1.5)
        ),
        *(("gpus_per_worker", x, "a finite number of") for x in (-1, float("nan"))),
        ("gpus_per_worker", 1.5, "a whole number, or a part of one GPU"),
    ]
    wrong = unrefused(
        [((name, x), f"{name} must be {rule}.*, got {x}") for name, x, rule in cases],
        lambda name, value: RayOptions(**{name: value}),
        ConfigurationError,
    )
    assert wrong == []


# Files, how they are read, and the texts with their lines.
TABLES = [
    ("a.tsv", 't\tn\n"两\n行"\t1\n"""引"""\t"1"\n', {}, {2: "两\n行", 4: '"引"'}),
    ("a.tsv", 't\tn\n"两\t1\n行"x\t1\n', {}, {2: '"两', 3: '行"x'}),
    ("a.tsv", "\n\nt\tn\n\t\n好\t1\n\n不\t\n", {}, {5: "好", 7: "不"}),
    ("a.tsv", "t\tn\n好\t1\t2\n不\nt\tn\n一\t0\n", {}, {5: "一"}),
    ("a.csv", "t;n\n好,了;1\n不;0\n", {}, {2: "好,了", 3: "不"}),
    ("a.csv", '\n,,\n"t",n,"m\nm"\r\n,,\r\n好,1,"\r\n"\r\n', {}, {6: "好"}),
    ("a.csv", "\ufefft,n\n好,1\nt,n\n不,0,1\n一,1", {}, {2: "好", 5: "一"}),
    ("a.csv", "\ufeff好,1\n不,0\n", {"fields": ["1"]}, {1: "好", 2: "不"}),
    (
        "a.csv",
        "n,t\n1,好\n0,不\n",
        {"fields": ["2"], "header": "first"},
        {2: "好", 3: "不"},
    ),
    ("a.tsv", "好\t1\n不\t0\n", {"header": "none", "fields": []}, {1: "好", 2: "不"}),
    ("a.csv", '"好,了",1\n不,0\n', {"fields": ["1"]}, {1: "好,了", 2: "不"}),
    (
        "a.csv",
        "好,了;1\n不;0\n一;0\n",
        {"fields": ["1"]},
        {1: "好,了", 2: "不", 3: "一"},
    ),
    ("a.csv", "n,Text\n1,好\n", {"fields": []}, {2: "好"}),
    ("a.csv", "t\n好\n", {"encoding": "gbk"}, {2: "好"}),
    ("a.tsv", "t\n好\n", {"encoding": "gb18030"}, {2: "好"}),
    ("a.jsonl", '{"t": "好", "t": "不"}\n \n{"t": NaN}\n{"t": "一"}', {}, {4: "一"}),
]


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_jobs_read_tables_as_commands_do(rows, tmp_path):
    for name, content, options, texts in TABLES:
        path, options = tmp_path / name, {"fields": ["t"], **options}
        path.write_bytes(content.encode(options.get("encoding", "utf-8")))
        inputs, pieces = index_inputs(find_inputs(path, **options), rows)
        (field,) = inputs.text_columns(options["fields"], ["text"])
        reader, read = Reader(inputs, [field]), {}
        for part in map(reader.read, pieces):
            numbered_texts = zip(part.lines, part.column(field), strict=True)
            read |= {
                line: text
                for number, (line, text) in enumerate(numbered_texts)
                if number not in part.problems
            }
        assert read == texts, content
        table = read_table(path, 1, labelled=False, skipped=[], **options)
        assert dict(zip(table.lines, table.texts, strict=True)) == {
            line: (text,) for line, text in texts.items()
        }, content


def test_what_pieces_cannot_be_read_of_is_refused(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"t\n")
    with pytest.raises(ConfigurationError, match="got encoding='utf-16'"):
        find_inputs(path, encoding="utf-16")
    with pytest.raises(ConfigurationError, match="fields must be numbers of columns"):
        find_inputs(path, header="none", fields=["t"])

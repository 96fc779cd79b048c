"""Files of questions: with choices (tables, JSON lines, CLUE's), and SQuAD's."""

import json

import pytest
from common import to_json_lines, write_file
from hostile.run import unrefused
from table_files import KEYED, write_rows

from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.choices import MAX_CHOICES, check_choices
from roformer_keras.tables.files import read_records, read_table
from roformer_keras.tables.texts import as_texts
from roformer_keras.tasks.labels import parse_answers
from tools import clue_choices

DIALOGUE = [
    ["女：你在哪里？", "男：我在北京。"],
    [
        {"question": "男的在哪里？", "choice": ["北京", "上海"], "answer": "北京"},
        {"question": "谁在问？", "choice": ["男的", "女的", "都不"], "answer": "女的"},
    ],
    "1-2",
]
STORY = [
    ["今天天气不错。"],
    [{"question": "天气？", "choice": ["不好", "不错"], "answer": "不错"}],
    "m-3",
]
QUESTIONS = [
    ("女：你在哪里？\n男：我在北京。", "男的在哪里？", ("北京", "上海")),
    ("女：你在哪里？\n男：我在北京。", "谁在问？", ("男的", "女的", "都不")),
    ("今天天气不错。", "天气？", ("不好", "不错")),
]
IDIOMS = ["一心一意", "三心二意", "人山人海"]
CLOZE = {
    "content": [
        "他#idiom000001#地学习，不#idiom000002#。",
        "没有。",
        "#idiom000003#！",
    ],
    "candidates": IDIOMS,
}
MASKS = "[MASK][MASK][MASK][MASK]"


def read(path, count=3, fields=(), **options):
    return read_table(path, count, fields, has_choices=True, **options)


# === CLUE's files as JSON lines ===


def test_files_of_clue_become_json_lines(tmp_path, monkeypatch, capsys):
    dialogues = {"d.json": [DIALOGUE], "m.json": [STORY]}
    c3 = [str(write_file(tmp_path / name, one)) for name, one in dialogues.items()]
    lines = to_json_lines([CLOZE, CLOZE])
    chid = [str(write_file(tmp_path / "dev.json", f"{lines}\n"))]
    answers = {"#idiom000001#": 0, "#idiom000003#": 2}
    write_file(tmp_path / "dev_answer.json", answers)
    contexts = [
        f"他{MASKS}地学习，不____。",
        f"他____地学习，不{MASKS}。",
        f"{MASKS}！",
    ]
    idioms = [(context, tuple(IDIOMS)) for context in contexts]
    for files, count, texts in ((c3, 3, QUESTIONS), (chid, 2, idioms * 2)):
        monkeypatch.setattr("sys.argv", ["clue_choices", *files])
        clue_choices.main()
        path = write_file(tmp_path / "x.jsonl", capsys.readouterr().out)
        assert read(path, count, labelled=False).texts == texts
        skipped = []
        labels = read(path, count, skipped=skipped).labels
        if files is c3:
            assert labels == ["北京", "女的", "不错"]
        else:
            assert labels == [0, 2] * 2 and [line for line, _ in skipped] == [2, 5]


@pytest.mark.parametrize("format", ["c3", "chid"])
def test_formats_of_clue_are_withdrawn(format, tmp_path):
    path = write_file(tmp_path / "x.json", [DIALOGUE])
    with pytest.raises(ConfigurationError, match=r"format must .* tools\.clue_choices"):
        read(path, format=format)
    with pytest.raises(ConfigurationError, match=r"format must .* tools\.clue_choices"):
        list(read_records(path, format=format))


# === Questions of SQuAD ===

CONTEXT = "她在北京，他在上海。"


def question(text, *answers, **more):
    spans = [
        {"text": answer, "answer_start": CONTEXT.find(answer)} for answer in answers
    ]
    return {"question": text, "id": f"Q{text}", "answers": spans, **more}


def document(*questions, context=CONTEXT):
    paragraph = {"id": "P", "context": context, "qas": list(questions)}
    return {"data": [{"id": "A", "title": "城市", "paragraphs": [paragraph]}]}


def test_questions_are_rows(tmp_path):
    first, second = question("她在哪", "北京"), question("你在哪", is_impossible=True)
    content = document(first, second)
    content["data"] += document(question("他在哪", "上海"))["data"]
    for name in ("dev.json", "dev.json.gz"):
        path = write_file(tmp_path / name, content)
        table = read_table(path, 2, format="squad", groups=["context", "id"])
        questions = ("她在哪", "你在哪", "他在哪")
        assert table.texts == [(one, CONTEXT) for one in questions]
        assert table.labels[1:] == [[], [{"text": "上海", "answer_start": 7}]]
        assert table.lines == [1, 2, 3]
        assert table.groups[0] == ((0, CONTEXT), (2, "Q她在哪"))
    unlabelled = read_table(path, 2, labelled=False, format="squad")
    assert (unlabelled.texts, unlabelled.labels) == (table.texts, None)


WHERE = question("她在哪", "北京")
BAD_SQUAD = [
    ("", "dev.json is not valid JSON: .*has data, a list of articles"),
    ("[" * 10**5, "dev.json is not valid JSON"),
    ("[]", "dev.json must hold one JSON object, got list: a file of questions"),
    ("{}", "dev.json must have 'data', a list, got None: a file of questions"),
    ({"data": {}}, "must have 'data', a list, got {}"),
    ({"data": []}, "dev.json has no row"),
    ({"data": [1]}, "data[0] of .*dev.json must be an object, got 1"),
    ({"data": [{}]}, "data[0] of .*dev.json must have 'paragraphs', a list"),
    (
        {"data": [{"paragraphs": [{"context": "x"}]}]},
        "paragraphs[0] of data[0] of .* must have 'qas', a list, got None",
    ),
    (document(WHERE, "x"), "qas[1] of paragraphs[0] of .* an object, got 'x'"),
    (document({"id": 1, "question": "x"}), "row 1 of .*dev.json must have .*'answers'"),
    (
        document(WHERE, question(" ")),
        "row 2 of .*a str .* got ' ' in 'question'",
    ),
    (
        document(WHERE, context=None),
        "row 1 of .*a str .* got None in 'context'",
    ),
    (json.dumps(document(question("\ud800"))), "half of a surrogate pai"),
    ('{"text": "x"}\n{"text": "y"}\n', "not valid JSON: .* is of the format jsonl"),
]


def test_questions_that_lack_something_can_be_left_out(tmp_path):
    content = document({"question": "x"}, WHERE, question(""))
    path = write_file(tmp_path / "dev.json", content)
    skipped = []
    table = read_table(path, 2, format="squad", skipped=skipped)
    assert table.lines == [2]
    assert skipped[0][0] == 1 and "'answers', got 'id'" in skipped[0][1]
    assert skipped[1][0] == 3
    path, skipped = write_file(tmp_path / "dev.json", document({"question": "x"})), []
    with pytest.raises(SourceError, match=r"can be read; row 1: must have .*'answers'"):
        read_table(path, 2, format="squad", skipped=skipped)


def test_what_questions_are_not_for(tmp_path):
    path = write_file(tmp_path / "dev.json", document(WHERE))
    with pytest.raises(SourceError, match="for tasks of 2 texts a row"):
        read_table(path, 1, format="squad")
    with pytest.raises(SourceError, match="for tasks of 2 texts a row"):
        list(read_records(path, format="squad"))
    assert list(read_records(path, ("context",), format="squad")) == [
        ((CONTEXT,), None)
    ]
    with pytest.raises(SourceError, match="and 'squad' SQuAD's files"):
        read_table(path, 2)


def answers(*pairs):
    return [{"text": text, "answer_start": start} for text, start in pairs]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [None]),
        ("北京", ["北京"]),
        ([2, 4], [[2, 4]]),
        ([], []),
        (answers(("北京", 2), ("北京", 2), ("上海", 7)), [(2, 4), (7, 9)]),
        # Starts that are not those of the text, as some of CMRC are not.
        (answers(("北京", 1), ("上海", -1), ("北京", 10**30)), ["北京", "上海"]),
        # As `datasets` has them.
        ({"text": ["在", "在"], "answer_start": [1, 6]}, [(1, 2), (6, 7)]),
        ({"text": [], "answer_start": []}, []),
    ],
)
def test_answers_to_a_question(value, expected):
    assert parse_answers(value, CONTEXT) == expected


# === What is wrong with nested objects ===


def read_squad(path):
    return read_table(path, 2, format="squad")


@pytest.mark.parametrize(
    ("name", "bad", "call"),
    [
        ("dev.json", BAD_SQUAD, read_squad),
    ],
)
def test_what_is_wrong_is_named_with_its_place(name, bad, call, tmp_path):
    cases = []
    for number, (content, message) in enumerate(bad):
        path = write_file(tmp_path / str(number) / name, content)
        cases.append(((path,), message))
    assert unrefused(cases, call, SourceError) == []


# === Tables and JSON lines ===

ROWS = [("甲乙", "丙？", ("丁", "戊")), ("己", "庚？", ("辛", "壬", "癸"))]


NAMES = ["context", "question", "choices", "label"]
CELLS = [["甲乙", "丙？", ["丁", "戊"], 1], ["己", "庚？", ["辛", "壬", "癸"], "癸"]]
DUMPED = [[*cells[:2], json.dumps(cells[2]), cells[3]] for cells in CELLS]
APART = "甲乙,丙？,丁,戊,,1\n己,庚？,辛,壬,癸,癸\n"


@pytest.mark.parametrize("kind", ["csv", "tsv", "xlsx", "jsonl", "json"])
def test_choices_of_tables(kind, tmp_path):
    rows = CELLS if kind in KEYED else DUMPED
    for names in [NAMES], []:
        if names or kind not in KEYED:
            table = read(write_rows(tmp_path, kind, [*names, *rows]))
            assert table.texts == ROWS
            assert [*map(str, table.labels)] == ["1", "癸"]


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        # A column for each choice, of which a row may have fewer; in any order.
        (
            "label,choice2,choice1,choice3,context,question\n"
            "1,戊,丁,,甲乙,丙？\n癸,壬,辛,癸,己,庚？\n",
            (),
        ),
        # The case of names does not matter.
        (f"Context,Question,Choice1,CHOICE2,choice3,Label\n{APART}", ()),
        # As in SWAG.
        (
            f"sent1,sent2,ending0,ending1,ending2,gold\n{APART}",
            ("sent1", "sent2", "ending", "gold"),
        ),
    ],
)
def test_columns_of_choices(content, fields, tmp_path):
    table = read(write_file(tmp_path / "a.csv", content), fields=fields)
    assert (table.texts, table.labels) == (ROWS, ["1", "癸"])


def test_rows_without_a_question(tmp_path):
    path = write_file(tmp_path / "a.csv", "passage,option_1,option_2\n甲,乙,丙\n")
    fields = ("passage", "options")
    table = read(path, 2, fields, labelled=False)
    assert (table.texts, table.labels) == ([("甲", ("乙", "丙"))], None)


def test_numbers_of_columns_are_no_names_of_choices(tmp_path):
    content = '31\t甲\t["丙", "丁"]\t32\n33\t乙\t["戊", "己"]\t己\n'
    table = read(write_file(tmp_path / "a.tsv", content), fields=("1", "2", "3", "4"))
    assert table.texts == [("31", "甲", ("丙", "丁")), ("33", "乙", ("戊", "己"))]


HEADER = "context,question,choice1,choice2,label\n"
NO_LIST, HALF = "choices in one cell must be a JSON list", "got half of a surrogate"


def row(choices):
    """A line of JSON with these choices."""
    content = {"context": "甲", "question": "乙", "choices": choices, "label": 0}
    return json.dumps(content)


BAD_TABLES = [
    (
        "x.csv",
        "context,question,choices,label\n甲,乙,丙,0\n",
        f"line 2 of .*x.csv: {NO_LIST}, got '丙'",
    ),
    ("x.csv", "甲,乙,丙\n", "line 1 of .*x.csv must have 4 columns, got 3"),
    ("x.csv", f"{HEADER}甲,乙,丙,,0\n", "line 2 of .* from 2 to 256 choices, got 1"),
    (
        "x.csv",
        f"{HEADER}甲,乙,,丙,0\n",
        "line 2 of .* a choice must be a str that is not",
    ),
    ("x.csv", f"{HEADER}甲,乙,丙\n", "line 2 of .*x.csv must have 5 columns, got 3"),
    ("x.csv", '甲,乙,"[""\\ud800"", ""b""]",0\n', f"line 1 of .*x.csv: .*{HALF}"),
    ("x.tsv", '甲\t乙\t["\\ud800", "b"]\t0\n', f"line 1 of .*x.tsv: .*{HALF}"),
    ("x.tsv", "甲\t乙\t[\t0\n", NO_LIST),
    ("x.tsv", f"甲\t乙\t{'[' * 10**5}\t0\n", f"{NO_LIST}, got '[["),
    ("x.tsv", "甲\t乙\t丙\n", "line 1 of .*x.tsv must have 4 columns, got 3"),
    ("x.jsonl", '{"context": "甲", "choices": ["a", "b"]}', "must have .*'question'"),
    ("x.jsonl", row(["a"]), "line 1 of .*a row must have from 2 to 256 choices, got 1"),
    ("x.jsonl", row([]), "256 choices, got 0"),
    ("x.jsonl", row(["a"] * 10**5), "256 choices, got 100000"),
    ("x.jsonl", row({"a": 1}), "must be a list of texts, got {'a': 1}"),
    ("x.jsonl", row([["a"], "b"]), "a choice must be a str that is not .*got ['a']"),
    ("x.jsonl", row(["a", 1]), "a choice must be a str that is not empty, got 1"),
    ("x.tsv", "甲\tchoice1\tchoice2\n乙\t丙\n", "must have 4 columns, got 3"),
    ("x.json", "[]", "x.json has no row"),
    ("x.bio", "甲 O\n", "x.bio has the columns .* which are for"),
]


def test_what_is_wrong_with_choices_of_tables(tmp_path):
    cases = []
    for number, (name, content, message) in enumerate(BAD_TABLES):
        path = write_file(tmp_path / str(number) / name, content)
        cases.append(((path,), message))
    assert unrefused(cases, read, SourceError) == []


# === Texts of Python ===


def test_choices_in_python():
    expected = [("甲", "乙", ("丙", "丁"))]
    for given in (
        [("甲", "乙", ["丙", "丁"])],
        [["甲", "乙", ("丙", "丁")]],
        (["甲"], ["乙"], [["丙", "丁"]]),
    ):
        assert as_texts(given, (2, 3), True) == expected
    assert as_texts([("甲", ["丙", "丁"])], (2, 3), True) == [("甲", ("丙", "丁"))]
    assert len(check_choices(["甲"] * MAX_CHOICES)) == MAX_CHOICES


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("甲",)], "must have 2 or 3 texts, choices counted as one, got 1"),
        ([("甲", "乙")], "choices must be a list of texts, got '乙' in row 0"),
        ([("甲", ["乙", "丙"]), ("甲", ["乙"])], "choices, got 1 in row 1"),
        ([("甲", [])], "choices, got 0 in row 0"),
        ([("甲", ["乙", ""])], "a choice must be a str .* in row 0"),
        (
            [(" ", ["乙", "丙"])],
            "a text must be a str that is not empty, got ' ' in row 0",
        ),
        (
            [(["乙", "丙"], ["乙", "丙"])],
            "a text must be a str that is not empty, got .* in row 0",
        ),
    ],
)
def test_choices_in_python_that_are_none(given, message):
    with pytest.raises(ConfigurationError, match=message):
        as_texts(given, (2, 3), True)

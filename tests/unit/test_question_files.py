"""Files of questions: with choices (tables, JSON lines, C3, CHID), and SQuAD's."""

import gzip
import json

import pytest
from hostile.run import make, unrefused

from roformer_keras.data.choices import MAX_CHOICES, check_choices
from roformer_keras.data.files import data_files, place, read_records, read_table
from roformer_keras.data.texts import as_texts
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.tasks.labels import parse_answers

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


def written(folder, name, content):
    path = folder / name
    if not isinstance(content, str | bytes):
        content = json.dumps(content, ensure_ascii=False)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


def read(path, count=3, fields=(), **options):
    return read_table(path, count, fields, has_choices=True, **options)


# === C3 ===


def test_both_parts_of_c3(tmp_path):
    written(tmp_path, "d-train.json", [DIALOGUE])
    path = written(tmp_path, "m-train.json", [STORY])
    both = str(tmp_path / "?-train.json")
    table = read(both, format="c3", groups=["context"])
    assert table.texts == QUESTIONS
    assert table.labels == [0, 1, 1]
    assert table.lines == [1, 2, 3]
    assert table.groups[0] == table.groups[1] == ((0, QUESTIONS[0][0]),)
    assert read(path, format="c3").texts == QUESTIONS[2:]
    assert data_files(both, "c3") == [str(tmp_path / "d-train.json"), path]
    assert place(3, both, "c3") == f"row 3 of {both}"
    # The answers of a test set are not published.
    del STORY_WITHOUT["answer"]
    path = written(tmp_path, "test.json", [[STORY[0], [STORY_WITHOUT], "x"]])
    assert read(path, format="c3", labelled=False).texts == QUESTIONS[2:]
    with pytest.raises(SourceError, match=r"questions\[0\] of \[0\] of .* 'answer'"):
        read(path, format="c3")


STORY_WITHOUT = dict(STORY[1][0])


def c3(*questions, sentences=("甲",)):
    return [[list(sentences), list(questions), "id"]]


GOOD = {"question": "乙", "choice": ["丙", "丁"], "answer": "丁"}
BAD_C3 = [
    ("", "x.json is not valid JSON: .*a file of C3 is a list of"),
    ("[" * 10**5, "x.json is not valid JSON"),
    ("{}", "x.json must hold one JSON list, got dict: a file of C3"),
    ("[]", "x.json has no row"),
    ([1], "[0] of .*x.json must be [sentences, questions, id], got 1"),
    ([[[]]], "must be [sentences, questions, id], got [[]]"),
    ([[["甲", 1], [GOOD], "id"]], "must be [sentences, questions, id]"),
    ([["甲", [GOOD], "id"]], "must be [sentences, questions, id]"),
    ([[["甲"], GOOD, "id"]], "questions of [0] of .* must be a list"),
    (c3(1), "questions[0] of [0] of .* must be an object, got 1"),
    (c3({"question": "乙"}), "must have 'choice', 'answer', got 'question'"),
    (c3({**GOOD, "choice": "丙丁"}), "row 1 of .*: choices in one cell must be"),
    (c3({**GOOD, "choice": []}), "row 1 of .* from 2 to 256 choices, got 0"),
    (c3({**GOOD, "choice": ["丙"]}), "row 1 of .* from 2 to 256 choices, got 1"),
    (c3({**GOOD, "choice": ["丙"] * 257}), "from 2 to 256 choices, got 257"),
    (c3({**GOOD, "choice": ["丙", " "]}), "a choice must be a str .* got ' '"),
    (c3({**GOOD, "choice": ["丙", 2]}), "a choice must be a str .* got 2"),
    (c3({**GOOD, "choice": {"丙": 1}}), "choices must be a list of texts, got {"),
    (c3(GOOD, {**GOOD, "question": " "}), "row 2 of .* got ' ' in 'question'"),
    (c3(GOOD, sentences=()), "row 1 of .* got '' in 'context'"),
    (json.dumps(c3({**GOOD, "question": "\ud800"})), "half of a surrogate pair"),
]


def test_a_folder_of_c3_may_have_brackets_in_its_name(tmp_path):
    folder = tmp_path / "c3[1]"
    folder.mkdir()
    for part in "dm":
        written(folder, f"{part}-train.json", [STORY])
    table = read(str(folder / "?-train.json"), format="c3")
    assert table.texts == QUESTIONS[2:] * 2


def test_a_missing_part_of_c3(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read .*\?-dev.json: No such file"):
        read(str(tmp_path / "?-dev.json"), format="c3")


# === CHID ===


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_blanks_of_chid(ending, tmp_path):
    lines = "\n".join(json.dumps(one) for one in (CLOZE, CLOZE))
    path = written(tmp_path, f"dev.json{ending}", f"{lines}\n\n")
    answers = {"#idiom000001#": 0, "#idiom000002#": 1, "#idiom000003#": 2}
    other = written(tmp_path, f"dev_answer.json{ending}", answers)
    table = read(path, format="chid", groups=["blank", "passage"])
    contexts = [
        f"他{MASKS}地学习，不____。",
        f"他____地学习，不{MASKS}。",
        f"{MASKS}！",
    ]
    assert table.texts == [(context, tuple(IDIOMS)) for context in contexts] * 2
    assert table.labels == [0, 1, 2] * 2
    assert table.lines == [1, 1, 1, 2, 2, 2]
    assert table.groups[1] == ((2, "#idiom000002#"), (3, CLOZE["content"][0]))
    assert data_files(path, "chid") == [path, other]
    assert place(2, path, "chid") == f"line 2 of {path}"


def test_a_mask_in_a_passage_of_chid_is_no_blank(tmp_path):
    line = {**CLOZE, "content": ["甲[MASK]乙#idiom000001#丙[MASK]"]}
    table = read(written(tmp_path, "x.json", line), format="chid", labelled=False)
    assert table.texts == [(f"甲____乙{MASKS}丙____", tuple(IDIOMS))]


def test_chid_without_answers(tmp_path):
    path = written(tmp_path, "test.json", CLOZE)
    assert len(read(path, format="chid", labelled=False).texts) == 3
    assert data_files(path, "chid") == [path]
    with pytest.raises(SourceError, match=r"cannot read .*test_answer\.json: No such"):
        read(path, format="chid")
    with pytest.raises(SourceError, match="CHID on standard input has no answers"):
        read("-", format="chid")


def test_a_blank_without_an_answer_can_be_left_out(tmp_path):
    path = written(tmp_path, "x.json", CLOZE)
    written(tmp_path, "x_answer.json", {"#idiom000003#": 2})
    skipped = []
    table = read(path, format="chid", skipped=skipped)
    assert table.labels == [2]
    assert [line for line, _ in skipped] == [1, 1]
    assert skipped[1][1].startswith("the blank #idiom000002# must have an answer in")


ANSWERS = {"#idiom000001#": 0, "#idiom000002#": 1, "#idiom000003#": 2}
BAD_CHID = [
    ("", ANSWERS, "x.json has no row"),
    ("x", ANSWERS, "line 1 of .*x.json is not valid JSON"),
    ("[]", ANSWERS, "line 1 of .* must hold one JSON object, got list"),
    ({}, ANSWERS, "line 1 of .* must have 'content', a list of texts, got None"),
    ({**CLOZE, "content": "x"}, ANSWERS, "must have 'content', a list of texts"),
    ({**CLOZE, "candidates": [1, 2]}, ANSWERS, "must have 'candidates', a list of"),
    ({**CLOZE, "candidates": ["甲"]}, ANSWERS, "line 1 .* 256 choices, got 1"),
    ({**CLOZE, "candidates": []}, ANSWERS, "line 1 .* 256 choices, got 0"),
    ({**CLOZE, "content": ["甲"]}, ANSWERS, "x.json has no row"),
    (CLOZE, {}, "line 1 .*: the blank #idiom000001# must have an answer in .*x_answer"),
    (CLOZE, {"#idiom000001#": "0"}, "x_answer.json: the answer of #idiom000001# must"),
    (CLOZE, {"#idiom000001#": True}, "must be the number of a choice, got True"),
    (CLOZE, "[0]", "x_answer.json must hold one JSON object, got list"),
    (CLOZE, {"#idiom000001#": None}, "must be the number of a choice, got None"),
    (CLOZE, "", "x_answer.json is not valid JSON"),
    (CLOZE, "[" * 10**5, "x_answer.json is not valid JSON"),
    (CLOZE, b"\xff", "line 1 of .*x_answer.json must be UTF-8"),
    (
        CLOZE,
        lambda path: path.symlink_to("/dev/zero"),
        "must be a file, and is a device",
    ),
    (json.dumps({**CLOZE, "candidates": ["\ud800", "甲"]}), ANSWERS, "half of a surr"),
]


def test_what_is_wrong_with_chid(tmp_path):
    cases = []
    for number, (content, answers, message) in enumerate(BAD_CHID):
        folder = tmp_path / str(number)
        folder.mkdir()
        if callable(answers):
            answers(folder / "x_answer.json")
        else:
            written(folder, "x_answer.json", answers)
        cases.append(((written(folder, "x.json", content),), message))
    wrong = unrefused(cases, lambda path: read(path, format="chid"), SourceError)
    assert wrong == []


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
        path = written(tmp_path, name, content)
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
    (document({"id": 1, "question": "x"}), "row 1 of .*dev.json must have 'answers'"),
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
    path = written(
        tmp_path, "dev.json", document({"question": "x"}, WHERE, question(""))
    )
    skipped = []
    table = read_table(path, 2, format="squad", skipped=skipped)
    assert table.lines == [2]
    assert skipped[0] == (1, "must have 'answers', got 'question'")
    assert skipped[1][0] == 3
    path, skipped = written(tmp_path, "dev.json", document({"question": "x"})), []
    with pytest.raises(SourceError, match="can be read; row 1: must have 'answers'"):
        read_table(path, 2, format="squad", skipped=skipped)


def test_what_questions_are_not_for(tmp_path):
    path = written(tmp_path, "dev.json", document(WHERE))
    with pytest.raises(SourceError, match="for tasks of two texts a row"):
        read_table(path, 1, format="squad")
    with pytest.raises(SourceError, match="a corpus must be of"):
        list(read_records(path, format="squad"))
    with pytest.raises(SourceError, match="and 'squad', 'c3' and 'chid' these"):
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
        ("x.json", BAD_C3, lambda path: read(path, format="c3")),
        ("dev.json", BAD_SQUAD, read_squad),
    ],
)
def test_what_is_wrong_is_named_with_its_place(name, bad, call, tmp_path):
    cases = []
    for number, (content, message) in enumerate(bad):
        folder = tmp_path / str(number)
        folder.mkdir()
        cases.append(((written(folder, name, content),), message))
    assert unrefused(cases, call, SourceError) == []


# === Tables and JSON lines ===

ROWS = [("甲乙", "丙？", ("丁", "戊")), ("己", "庚？", ("辛", "壬", "癸"))]


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        (
            "a.jsonl",
            '{"context": "甲乙", "question": "丙？", "choices": ["丁", "戊"], '
            '"label": 1}\n'
            '{"context": "己", "question": "庚？", "choices": ["辛", "壬", "癸"], '
            '"label": "癸"}\n',
            (),
        ),
        (
            "a.csv",
            "context,question,choices,label\n"
            '甲乙,丙？,"[""丁"", ""戊""]",1\n己,庚？,"[""辛"", ""壬"", ""癸""]",癸\n',
            (),
        ),
        # Without a header.
        (
            "a.tsv",
            '甲乙\t丙？\t["丁", "戊"]\t1\n己\t庚？\t["辛", "壬", "癸"]\t癸\n',
            (),
        ),
        # A column for each choice, of which a row may have fewer.
        (
            "a.csv",
            "label,choice2,choice1,choice3,context,question\n"
            "1,戊,丁,,甲乙,丙？\n癸,壬,辛,癸,己,庚？\n",
            (),
        ),
        # The case of names does not matter.
        (
            "a.csv",
            "Context,Question,Choice1,CHOICE2,choice3,Label\n"
            "甲乙,丙？,丁,戊,,1\n己,庚？,辛,壬,癸,癸\n",
            (),
        ),
        # As in SWAG.
        (
            "a.csv",
            "sent1,sent2,ending0,ending1,ending2,gold\n"
            "甲乙,丙？,丁,戊,,1\n己,庚？,辛,壬,癸,癸\n",
            ("sent1", "sent2", "ending", "gold"),
        ),
    ],
)
def test_choices_of_tables(name, content, fields, tmp_path):
    table = read(written(tmp_path, name, content), fields=fields)
    assert table.texts == ROWS
    assert table.labels in ([1, "癸"], ["1", "癸"])


def test_rows_without_a_question(tmp_path):
    path = written(tmp_path, "a.csv", "passage,option_1,option_2\n甲,乙,丙\n")
    fields = ("passage", "options")
    table = read(path, 2, fields, labelled=False)
    assert (table.texts, table.labels) == ([("甲", ("乙", "丙"))], None)


def test_numbers_of_columns_are_no_names_of_choices(tmp_path):
    content = '31\t甲\t["丙", "丁"]\t32\n33\t乙\t["戊", "己"]\t己\n'
    table = read(written(tmp_path, "a.tsv", content), fields=("1", "2", "3", "4"))
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
    ("x.bio", "甲 O\n", "x.bio has tags, which are for"),
]


def test_what_is_wrong_with_choices_of_tables(tmp_path):
    cases = []
    for number, (name, content, message) in enumerate(BAD_TABLES):
        make({name: content}, tmp_path / str(number))
        cases.append(((tmp_path / str(number) / name,), message))
    assert unrefused(cases, read, SourceError) == []


def test_what_choices_are_not_for(tmp_path):
    path = written(tmp_path, "x.json", [DIALOGUE])
    for name in ("c3", "chid"):
        with pytest.raises(SourceError, match="are for the task multiple-choice"):
            read_table(path, 2, format=name)
        with pytest.raises(SourceError, match="a corpus must be of"):
            list(read_records(path, format=name))


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
        ([(" ", ["乙", "丙"])], "a text must not be empty, got ' ' in row 0"),
        ([(["乙", "丙"], ["乙", "丙"])], "a text must be a str, got .* in row 0"),
    ],
)
def test_choices_in_python_that_are_none(given, message):
    with pytest.raises(ConfigurationError, match=message):
        as_texts(given, (2, 3), True)

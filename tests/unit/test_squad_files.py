"""Files of questions in one nested object, and what may be wrong with them."""

import gzip
import json

import pytest
from hostile.run import unrefused

from roformer_keras.data.files import read_records, read_table
from roformer_keras.errors import SourceError
from roformer_keras.tasks.labels import parse_answers

CONTEXT = "她在北京，他在上海。"


def question(text, *answers, **more):
    spans = [
        {"text": answer, "answer_start": CONTEXT.find(answer)} for answer in answers
    ]
    return {"question": text, "id": f"Q{text}", "answers": spans, **more}


def document(*questions, context=CONTEXT):
    paragraph = {"id": "P", "context": context, "qas": list(questions)}
    return {"data": [{"id": "A", "title": "城市", "paragraphs": [paragraph]}]}


def written(tmp_path, content, name="dev.json"):
    path = tmp_path / name
    if not isinstance(content, str):
        content = json.dumps(content)
    packs = name.endswith(".gz")
    path.write_bytes(gzip.compress(content.encode()) if packs else content.encode())
    return str(path)


def test_questions_are_rows(tmp_path):
    first, second = question("她在哪", "北京"), question("你在哪", is_impossible=True)
    content = document(first, second)
    content["data"] += document(question("他在哪", "上海"))["data"]
    for name in ("dev.json", "dev.json.gz"):
        path = written(tmp_path, content, name)
        table = read_table(path, 2, format="squad", groups=["context", "id"])
        questions = ("她在哪", "你在哪", "他在哪")
        assert table.texts == [(one, CONTEXT) for one in questions]
        assert table.labels[1:] == [[], [{"text": "上海", "answer_start": 7}]]
        assert table.lines == [1, 2, 3]
        assert table.groups[0] == ((0, CONTEXT), (2, "Q她在哪"))
    unlabelled = read_table(path, 2, labelled=False, format="squad")
    assert (unlabelled.texts, unlabelled.labels) == (table.texts, None)


GOOD = question("她在哪", "北京")
BAD = [
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
    (document(GOOD, "x"), "qas[1] of paragraphs[0] of .* an object, got 'x'"),
    (document({"id": 1, "question": "x"}), "row 1 of .*dev.json must have 'answers'"),
    (document(GOOD, question(" ")), "row 2 of .*a str .* got ' ' in 'question'"),
    (document(GOOD, context=None), "row 1 of .*a str .* got None in 'context'"),
    (json.dumps(document(question("\ud800"))), "half of a surrogate pai"),
    ('{"text": "x"}\n{"text": "y"}\n', "not valid JSON: .* is of the format jsonl"),
]


def test_what_is_wrong_is_named_with_its_place(tmp_path):
    cases = []
    for number, (content, message) in enumerate(BAD):
        folder = tmp_path / str(number)
        folder.mkdir()
        cases.append(((written(folder, content),), message))
    wrong = unrefused(
        cases, lambda path: read_table(path, 2, format="squad"), SourceError
    )
    assert wrong == []


def test_questions_that_lack_something_can_be_left_out(tmp_path):
    path = written(tmp_path, document({"question": "x"}, GOOD, question("")))
    skipped = []
    table = read_table(path, 2, format="squad", skipped=skipped)
    assert table.lines == [2]
    assert skipped[0] == (1, "must have 'answers', got 'question'")
    assert skipped[1][0] == 3
    path, skipped = written(tmp_path, document({"question": "x"})), []
    with pytest.raises(SourceError, match="can be read; row 1: must have 'answers'"):
        read_table(path, 2, format="squad", skipped=skipped)


def test_what_questions_are_not_for(tmp_path):
    path = written(tmp_path, document(GOOD))
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

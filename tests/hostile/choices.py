"""Rows with choices for `finetune`: tables, JSON lines, and CLUE's C3 and CHID."""

import json

from hostile.tables import CLASS, jsonl, link

CHOICE = "multiple-choice"
HALF = "choices must hold whole characters, got half of a surrogate pair"
C3, CHID = f"{CHOICE} --format c3", f"{CHOICE} --format chid"


def row(choices, label):
    """A `.jsonl` of one row."""
    content = {"context": "甲", "question": "乙", "choices": choices, "label": label}
    return jsonl(content)


def c3(choices, answer):
    """A file of C3 with one question."""
    question = {"question": "乙", "choice": choices, "answer": answer}
    return json.dumps([[["甲"], [question], "1"]])


# Task and flags, name of the file, content, message.
_TRAIN = [
    (CHOICE, "x.json", "[]", "a file of labelled texts must be .csv, .tsv"),
    (C3, "x.json", "[" * 10**5, "x.json is not valid JSON"),
    (C3, "x.json", "{}", "must hold one JSON list, got dict"),
    (C3, "x.json", "[[[1], [], 1]]", "[0] of x.json must be"),
    (C3, "x.json", '[[["a"], [1]]]', "questions[0] of [0] of"),
    (
        C3,
        "x.json",
        c3(["a", "b"], "c"),
        "row 1 of x.json: a label must be the number of a choice, from 0 to 1, or its",
    ),
    (C3, "x.json", c3([], "c"), "from 2 to 256 choices, got 0"),
    (C3, "x.json", c3(["c"], "c"), "256 choices, got 1"),
    (C3, "x.json", c3("ab", "b"), "in one cell must be a JSON"),
    (C3, "x.json", c3(["a"] * 10**5, "a"), "256 choices, got 100000"),
    (C3, "x.json", c3([["a"], "b"], "b"), "got ['a']"),
    (C3, "x.json", c3(["a", "b"], ["a"]), "its text, got ['a']"),
    (C3, "?", link("/dev/zero"), "line 1 of ? must be of at most 67,108,864 bytes"),
    (CHID, "x.json", "{}", "cannot read x_answer.json: No such"),
    (f"{CLASS} --format c3", "x.json", "[]", "are for the task multiple-choice"),
    (f"{CLASS} --format chid", "x.json", "{}", "are for the task multiple-choice"),
    (CHOICE, "x.jsonl", row(["a"], 0), "line 1 of x.jsonl: a row must have from 2"),
    (CHOICE, "x.jsonl", row([], 0), "256 choices, got 0"),
    (CHOICE, "x.jsonl", row({"a": 1}, 0), "must be a list of texts, got {'a': 1}"),
    (CHOICE, "x.jsonl", row(["a", 1], 0), "a choice must be a str that is not"),
    (CHOICE, "x.jsonl", row(["a", "b"], 2), "from 0 to 1, or its text, got 2"),
    (CHOICE, "x.jsonl", row(["a", "b"], -1), "from 0 to 1, or its text, got -1"),
    (CHOICE, "x.jsonl", row(["a", "b"], True), "or its text, got True"),
    (CHOICE, "x.jsonl", row(["a", "b"], 10**400), "or its text, got 1000"),
    (CHOICE, "x.jsonl", row(["a", "b"], "9" * 5000), "or its text, got '999"),
    (CHOICE, "x.jsonl", row(["1", "0"], "1"), "the number of another one of"),
    (CHOICE, "x.tsv", "甲\t乙\t[\t0\n", "choices in one cell must be a JSON list"),
    (CHOICE, "x.tsv", f"甲\t乙\t{'[' * 10**5}\t0\n", "must be a JSON list, got '[["),
    (CHOICE, "x.tsv", '甲\t乙\t["\\ud800", "b"]\t0\n', f"line 1 of x.tsv: {HALF}"),
    (CHOICE, "x.csv", '甲,乙,"[""\\ud800"", ""b""]",0\n', f"line 1 of x.csv: {HALF}"),
    (CHOICE, "x.tsv", "甲\t乙\t丙\n", "line 1 of x.tsv must have 4 columns, got 3"),
    (
        CHOICE,
        "x.csv",
        "context,question,choice1,choice2,label\n甲,乙,丙,,0\n",
        "line 2 of x.csv: a row must have from 2 to 256 choices, got 1",
    ),
]
# The answers to the blank of a line of CHID.
_CLOZE = '{"content": ["甲#idiom000001#乙"], "candidates": ["丙", "丁"]}\n'
_ANSWERS = [
    ("{}", "the blank #idiom000001# must have an answer in x_answer.json"),
    ('{"#idiom000001#": 2}', "line 1 of x.json: a label must be the number of a"),
    ('{"#idiom000001#": -1}', "from 0 to 1, or its text, got -1"),
    ('{"#idiom000001#": "丙"}', "the answer of #idiom000001# must be the number of a"),
    ('{"#idiom000001#": null}', "must be the number of a choice, got None"),
    ("[0]", "x_answer.json must hold one JSON object, got list"),
    ("[" * 10**5, "x_answer.json is not valid JSON"),
    (b"\xff", "line 1 of x_answer.json must be UTF-8"),
    (link("/dev/zero"), "line 1 of x_answer.json must be of at most 67,108,864 bytes"),
]
CASES = [
    *(
        (
            f"finetune {task} --train {name} -o run --source SMALL",
            {name: data},
            2,
            message,
        )
        for task, name, data, message in _TRAIN
    ),
    *(
        (
            f"finetune {CHID} --train x.json -o run --source SMALL",
            {"x.json": _CLOZE, "x_answer.json": answers},
            2,
            message,
        )
        for answers, message in _ANSWERS
    ),
]

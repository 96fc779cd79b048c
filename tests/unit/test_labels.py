"""Labels of files that are none: each value with each parser."""

import numpy as np
import pandas
from hostile.run import unrefused

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.tagged import TokenTags, join_tokens, token_tags
from roformer_keras.tables.texts import as_texts
from roformer_keras.tasks.labels import (
    choice_number,
    class_names,
    class_number,
    parse_answers,
    parse_name,
    parse_number,
    parse_spans,
    single_labels,
)
from roformer_keras.tasks.span_labels import as_spans

NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400
NO_NAMES = [None, NAN, [], [1], {}, "", " "]
NO_VALUES = [*NO_NAMES, True]


def unparsed(parse, *groups):
    """The values that a parser of labels takes: groups are values and a message."""
    cases = [((value,), text) for values, text in groups for value in values]
    return unrefused(cases, parse, ConfigurationError)


def test_names():
    message = "a label must be a name, an integer or a truth value, got "
    values = [*NO_NAMES, 1.5, INFINITY, ["好"]]
    groups = [([value], f"{message}{value!r}") for value in values]
    assert unparsed(parse_name, *groups) == []


def test_numbers():
    message = "a label must be a finite number, got "
    values = [*NO_VALUES, INFINITY, HUGE, 1e300, "x", "nan", "inf", "1e400", "1,5"]
    groups = [([value], f"{message}{value!r}") for value in values]
    assert unparsed(parse_number, *groups) == []


def test_spans():
    groups = [
        ([None, 3, True, 0.5], "a label must be a list of spans, got "),
        (
            [{"甲": 1}, {"甲": {"乙": [1]}}, {"甲": {"乙": 1}}],
            "spans in an object must be",
        ),
        (["[[0, 1, 'a']]", "[" * 10**5], "spans in a cell must be a JSON list"),
    ]
    assert unparsed(parse_spans, *groups) == []


def test_answers():
    groups = [
        (
            [{}, {"text": "x"}, {"text": ["x"], "answer_start": []}],
            "answers in objects",
        ),
        ([[{"text": "x"}], {"text": None, "answer_start": None}], "answers in objects"),
        (
            [[{"text": None, "answer_start": 0}]],
            "an answer must have a str as its text",
        ),
        ([[{"text": ["x"], "answer_start": 2}]], "an answer must have a str as its"),
        ([[{"text": "x", "answer_start": "2"}]], "an integer as its answer_start"),
        ([[{"text": "x", "answer_start": True}]], "an integer as its answer_start"),
    ]
    assert unparsed(lambda value: parse_answers(value, "xyz"), *groups) == []


def test_choices():
    message = "must be the number of a choice, from 0 to 1, or its text, got "
    values = [*NO_VALUES, 2, -1, HUGE, "丙", "2", "9" * 5000]
    groups = [([value], f"{message}{value!r}") for value in values]
    choices = ["甲", "乙"]
    assert unparsed(lambda value: choice_number(value, choices), *groups) == []
    groups = [(["1"], "'1' is the text of the choice 0, and the number of another one")]
    assert unparsed(lambda value: choice_number(value, ["1", "0"]), *groups) == []


def test_numbers_and_names_of_classes():
    message = "a label must be an integer from 0 to 1, or a name of ['a', 'b'], got "
    values = [*NO_VALUES, 2, -1, HUGE, "丙"]
    groups = [([value], f"{message}{value!r}") for value in values]
    classes = ["a", "b"]
    assert unparsed(lambda value: class_number(value, 2, classes), *groups) == []


def test_classes_of_a_model():
    number, names = "num_classes must be an integer of at least 2, got ", "2 different"
    cases = [
        *(((value, None, 2), f"{number}{value!r}") for value in (1, 0, -1, "2", 2.0)),
        ((True, None, 2), f"{number}True"),
        ((None, None, 2), "pass 2 or more names"),
        ((3, ["坏", "好"], 2), "classes must be 3 different names, got ['坏', '好']"),
        *(
            ((2, value, 2), "classes must be a list of names, got ")
            for value in (3, "好", [None, "好"], [["好"], "坏"], {"a": 1, "b": 2})
        ),
        *(
            ((2, value, 2), f"classes must be {names} names, got ")
            for value in ([], ["好"], ["好"] * 2, [1, "1"], ["a"] * 10**5)
        ),
    ]
    assert unrefused(cases, class_names, ConfigurationError) == []


def test_numbers_of_classes_in_every_type():
    cases = [
        # Without names: numbers, numbers as text, and truth values of two classes.
        (None, 2, [(0, 0), ("1", 1), (1.0, 1), (np.int8(1), 1), (True, 1), ("1.0", 1)]),
        (["差", "好"], 2, [(1, 1), ("好", 1), (" 差 ", 0)]),
        ([1, 0], 2, [(1, 0), (0, 1), ("1", 0), (0.0, 1), (True, 0), (np.bool_(0), 1)]),
        ([5, 7], 2, [(7, 1), ("5", 0), (np.int64(5), 0)]),
        ([False, True], 2, [(True, 1), ("TRUE", 1), ("false", 0), (1, 1)]),
        (["1", "0"], 2, [("1", 0), ("0", 1)]),
        (["yes", "true"], 2, [(True, 1), ("True", 1)]),
    ]
    for classes, count, labels in cases:
        count, names = class_names(count, classes, 2)
        assert classes is None or list(map(type, names)) == list(map(type, classes))
        for label, number in labels:
            assert class_number(label, count, names) == number, (classes, label)
    refused = [
        ((1, 2, ["1", "0"]), "is also the name of another one"),
        ((True, 3, None), "got True"),
        ((0, 2, [5, 7]), "got 0"),
        ((True, 2, ["差", "好"]), "got True"),
    ]
    assert unrefused(refused, class_number, ConfigurationError) == []


def test_rows_of_one_hot_and_of_one_label():
    expected = [1, 0, 1]
    for y in (
        [[0, 1], [1, 0], [0, 1]],
        np.eye(2)[expected],
        np.eye(2, dtype=bool)[expected],
        [(0.0, 1.0), np.array([1, 0]), [False, True]],
        [[1], [0], [1]],
        np.array(expected)[:, None],
        expected,
        pandas.DataFrame({"a": [0, 1, 0], "b": [1, 0, 1]}),
    ):
        assert [class_number(one, 2, None) for one in single_labels(y, 2)] == expected
    message = "must have one 1, for its class, and 0 for the others"
    groups = [([[[0, 0]], [[1, 1]], [[0.5, 0.5]], [["a", 1]], [[2, 0]]], message)]
    assert unparsed(lambda value: single_labels(value, 2), *groups) == []


TEXT, SPANS = "她在北京", [(2, 4, "LOC")]


def test_spans_in_every_form():
    tags = ["O", "B-LOC", "I-LOC"]
    labels = [
        [[2, 4, "LOC"]],
        [{"start": 2, "end": 4, "label": "LOC"}],
        [{"id": 1, "start_offset": 2, "end_offset": 4, "label": "LOC"}],
        [{"start_idx": 2, "end_idx": 3, "type": "LOC", "entity": "北京"}],
        [{"start_idx": 2, "end_idx": 4, "type": "LOC", "entity": "北京"}],
        {"LOC": {"北京": [[2, 3]]}},
        ["O", "O", "B-LOC", "I-LOC"],
        ["o", "O", "b-LOC", "e_LOC"],
        ["O", "O", "B_LOC", "m-LOC"],
        [0, 0, np.int64(1), 2],
        TokenTags(("她", "在", "北京"), ("O", "O", "B-LOC")),
        TokenTags(("她在", "北京"), ("O", "S_LOC")),
        TokenTags(("她", "在", "北京"), (0, 0, 1)),
    ]
    for label in labels:
        assert as_spans(label, TEXT, None, tags) == SPANS, label
    # The label of a tag stays as it is.
    assert as_spans(["o", "o", "b-loc", "i-loc"], TEXT, None) == [(2, 4, "loc")]
    cmeee = {"start_idx": 2, "end_idx": 3, "type": "LOC"}
    groups = [
        ([[{**cmeee, "entity": "她在"}]], "must be its piece of the text"),
        ([[cmeee]], "a span must be (start, end"),
        ([{"LOC": [[2, 3]]}], "spans in an object must be"),
        ([[0, 0, 1, 2]], "a tag that is a number must be one with a name, got 0"),
        ([["O", "O", "BLOC", "O"]], "a tag must be O, or a letter of BIO"),
    ]
    assert unparsed(lambda value: as_spans(value, TEXT, None), *groups) == []


def test_tokens_of_a_text():
    for tokens, tags, text, spans in (
        (["New", "York", "is", "big"], "B-L I-L O O", "New York is big", [(0, 8, "L")]),
        (
            ["in", "New", "York"],
            "O S-L S-L",
            "in New York",
            [(3, 6, "L"), (7, 11, "L")],
        ),
        (["我", "爱", "New", "York"], "O O B-L E-L", "我爱New York", [(2, 10, "L")]),
        (["A", "B", "1"], "B-L I-L O", "AB1", [(0, 2, "L")]),
        (["I", "love", "New", "York", "😀"], "O O B-L L-L O", None, [(7, 15, "L")]),
        (["a", "ﬁne", "New", "\ufffd"], "O O U-L O", None, [(6, 9, "L")]),
        (
            ["나는", "뉴욕", "，", "Seoul"],
            "O W-L O O",
            "나는 뉴욕，Seoul",
            [(3, 5, "L")],
        ),
        (
            ["我", "在", "K", "T", "V", "❤️"],
            "O O B-L M-L E-L O",
            "我在KTV❤️",
            [(2, 5, "L")],
        ),
        (
            ["他", "说", "“", "Hi", "”", "。"],
            "O O O S-L O O",
            "他说“ Hi ”。",
            [(4, 6, "L")],
        ),
    ):
        text = text or " ".join(tokens)
        assert join_tokens(tokens) == text
        label = token_tags(tokens, tags.split())
        assert as_spans(label, text, None) == spans
        assert as_texts([tokens], (1,), has_tokens=True) == [(text,)]
    assert as_texts([("好",), "好", ["好"]], (1,), has_tokens=True) == [("好",)] * 3

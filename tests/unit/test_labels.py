"""Labels of files that are none: each value with each parser."""

from hostile.run import unrefused

from roformer_keras.errors import ConfigurationError
from roformer_keras.tasks.labels import (
    choice_number,
    class_names,
    class_number,
    parse_answers,
    parse_name,
    parse_number,
    parse_spans,
)

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

"""Answers to questions, in texts that may be longer than a row."""

import keras
import numpy as np
import pytest
from common import CHARACTER
from finetuning_cases import load_small

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tasks.evaluation import evaluate_task
from roformer_keras.tasks.question_answerer import (
    AnswerCrossentropy,
    RoFormerQuestionAnswerer,
    Windows,
)
from roformer_keras.tasks.reports import format_report
from roformer_keras.tasks.span_labels import Span

ROWS = [
    ("她在", "她在北京工作，我在上海"),
    ("我在", "她在北京工作，我在上海"),
    ("他在", "她在北京工作，我在上海"),
    ("天气", "今天天气不错"),
]
ANSWERS = ["北京", (9, 11), None, "不错"]
LONG = "你说的是这个人" * 6 + "她在北京" + "我们学习语言" * 5


@pytest.fixture(scope="module")
def answerer():
    keras.utils.set_random_seed(0)
    model = load_small(RoFormerQuestionAnswerer)
    model.compile(keras.optimizers.Adam(1e-2))
    model.fit(ROWS, ANSWERS, epochs=40, verbose=0)
    return model


def test_a_short_text_is_one_row(tokenizer):
    rows = Windows(tokenizer, ROWS, 64, 16)
    assert list(rows.owners) == [0, 1, 2, 3]
    batch = rows.batch(np.arange(4))
    expected = tokenizer(*zip(*ROWS, strict=True))
    for name in ("token_ids", "segment_ids"):
        np.testing.assert_array_equal(batch[name], expected[name])


@pytest.mark.parametrize("stride", [1, 7, 100])
def test_windows_hold_all_of_a_long_text(tokenizer, stride):
    rows = Windows(tokenizer, [ROWS[0], ("她在", LONG)], 24, stride)
    windows = np.flatnonzero(rows.owners == 1)
    assert (rows.lengths <= 24).all()
    covered = set()
    for row in windows:
        ids = rows.ids(row)
        assert list(ids[:4]) == tokenizer.encode("她在")[0]
        assert ids[-1] == tokenizer.sep_id
        last = rows.lengths[row] - 2
        span = rows.span(row, 4, last, "answer", 0.0)
        assert tokenizer.encode(span.text)[0][1:-1] == list(ids[4:-1])
        covered |= set(range(span.start, span.end))
    assert covered == set(range(len(LONG)))
    # The answer is whole in a window, and where it is, it is that.
    start = LONG.index("北京")
    tokens_in = {row: rows.tokens_of(row, start, start + 2) for row in windows}
    answers = [
        rows.span(row, *place, "answer", 0).text
        for row, place in tokens_in.items()
        if place
    ]
    assert answers and set(answers) == {"北京"}
    # No window lies in another.
    last = rows.lengths - 2
    ends = [rows.span(row, 4, last[row], "answer", 0).end for row in windows]
    assert ends == sorted(set(ends))


def best_score(scores):
    """The score of the best span of a window less that of no answer."""
    starts, ends = scores.T
    spans = np.triu(starts[1:, None] + ends[None, 1:])
    return spans[np.triu_indices(len(spans))].max() - starts[0] - ends[0]


@pytest.mark.slow
def test_answers_are_found(answerer):
    spans = answerer.answer(ROWS, verbose=0)
    assert [span and (span.start, span.end, span.text) for span in spans] == [
        (2, 4, "北京"),
        (9, 11, "上海"),
        None,
        (4, 6, "不错"),
    ]
    assert all(span.score > 0 for span in spans if span)
    loss, accuracy = answerer.evaluate(ROWS, ANSWERS, verbose=0)
    assert accuracy == 1 and loss < 0.3


@pytest.mark.slow
def test_the_best_window_answers(answerer, tmp_path):
    answerer.save_to_preset(tmp_path / "preset")
    short = RoFormerQuestionAnswerer.from_preset(
        tmp_path / "preset", max_length=24, stride=8
    )
    rows = short.make_rows([("她在", LONG), ROWS[0]])
    assert list(rows.owners).count(0) > 3
    spans = short.answer([("她在", LONG), ROWS[0]], verbose=0)
    assert spans[1].text == "北京"
    windows = short.predict([("她在", LONG)], verbose=0)[0]
    assert len(windows) == list(rows.owners).count(0)
    best = max(best_score(scores) for scores in windows)
    assert spans[0] is None if best <= 0 else spans[0].score == pytest.approx(best)


def test_an_answer_is_no_longer_than_asked_for(answerer):
    answerer.max_answer_length = 1
    try:
        spans = answerer.answer(ROWS, verbose=0)
        assert all(len(span.text) == 1 for span in spans if span)
    finally:
        answerer.max_answer_length = 64


def test_the_loss_is_the_mean_of_both_ends():
    random = np.random.default_rng(0)
    scores = random.normal(size=(3, 5, 2)).astype("float32")
    targets = np.array([[0, 0], [1, 4], [2, 2]])
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    expected = -np.mean(
        [[logs[r, t[e], e] for e in (0, 1)] for r, t in enumerate(targets)]
    )
    loss = float(AnswerCrossentropy()(targets, scores))
    assert loss == pytest.approx(expected, rel=1e-5)


def test_answers_that_are_none(answerer):
    rows = answerer.make_rows(ROWS[:1])
    for answer, message in (
        ("东京", "must stand in its text, got '东京' in row 0"),
        ("", "must stand in its text"),
        ((3, 99), "got 3 to 99 in row 0"),
        ((3,), r"must be \(start, end\), a str or None, got \(3,\) in row 0"),
        (4, "got 4 in row 0"),
        (["北京", "东京"], "'东京' in row 0"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            answerer.make_targets([answer], rows)


def test_blanks_at_its_edges_are_none_of_an_answer(answerer):
    text = "她在 北京 工作，我们学习语言"
    windows = Windows(answerer.tokenizer, [("她在", text)], 9, 1)
    # In a window the blank may be where it ends.
    assert windows.offsets(0)[-2, 1] == 5
    for rows in (answerer.make_rows([("她在", text)]), windows):
        expected = answerer.make_targets([(3, 5)], rows)
        assert (expected[0] > 0).all()
        for answer in ((2, 5), (3, 6), " 北京 "):
            targets = answerer.make_targets([answer], rows)
            np.testing.assert_array_equal(targets, expected)
    with pytest.raises(ConfigurationError, match="must hold more than blanks"):
        answerer.make_targets([" "], rows)


def test_options_that_break_a_rule():
    for name in ("stride", "max_answer_length"):
        with pytest.raises(ConfigurationError, match=f"{name} must be an integer from"):
            RoFormerQuestionAnswerer.from_preset(CHARACTER, **{name: 0})


def test_any_of_several_answers_is_right(answerer):
    rows = answerer.make_rows(ROWS[:1])
    expected = answerer.make_targets(["北京"], rows)
    several = ["北京", (1, 4), (2, 6)]
    for label in (several, Span(2, 4, "answer", "北京", 1.0)):
        np.testing.assert_array_equal(answerer.make_targets([label], rows), expected)
    assert answerer.files.expected_answers(ROWS[:2], [several, None]) == [
        ("北京", "在北京", "北京工作"),
        None,
    ]
    (text,) = [span.text for span in answerer.answer(ROWS[:1], verbose=0)]
    right = [[text, "上海"], ["上海", text]]
    for label in right:
        report = answerer.files.report(ROWS[:1], [label])
        assert (report["f1"], report["exact_match"]) == (1, 1)
    report = evaluate_task(answerer, ROWS[:1], [["上海", "我在上海"]], lines=[7])
    assert report["exact_match"] == 0
    assert report["intervals"]["exact_match"][0] == 0
    assert report["errors"][0]["expected"] == ["上海", "我在上海"]
    assert "line 7: 上海, 我在上海 -> " in format_report(report)


def test_answers_of_files(answerer):
    def parse(value):
        return answerer.files.parse_label(value, ROWS[0], {})

    answer = {"text": "北京", "answer_start": 2}
    assert parse([answer, answer]) == parse("北京") == parse([2, 4]) == (2, 4)
    other = {"text": "上海", "answer_start": 9}
    assert parse([answer, other]) == [(2, 4), (9, 11)]
    assert parse([]) is parse(" ") is parse(None) is None
    fake = {"text": "FAKE_ANSWER_1", "answer_start": -1}
    with pytest.raises(ConfigurationError, match="must stand in its text, got 'FAKE"):
        parse([fake])

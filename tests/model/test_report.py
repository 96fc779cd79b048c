"""Figures of answers, against plain counting and seqeval."""

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from roformer_keras.tasks import measures
from roformer_keras.tasks.measures import (
    AnswerMeasure,
    ClassMeasure,
    LabelSetMeasure,
    NeighbourMeasure,
    NumberMeasure,
    SpanMeasure,
    class_figure,
    nearest_rows,
)
from roformer_keras.tasks.reports import format_report
from roformer_keras.tasks.span_labels import Span, spans_of_tags


def test_classes():
    report = ClassMeasure(["坏", "中", "好"]).report(
        [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0]
    )
    assert report["rows"] == 6
    assert report["accuracy"] == pytest.approx(4 / 6)
    assert report["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    good = {"precision": 1.0, "recall": 2 / 3, "f1": 0.8, "count": 3}
    assert report["classes"]["好"] == pytest.approx(good)
    f1 = [own["f1"] for own in report["classes"].values()]
    assert report["macro_f1"] == pytest.approx(np.mean(f1))
    page = format_report(report)
    assert "accuracy               0.6667" in page
    assert "好        1.0000  0.6667  0.8000        3" in page


def test_a_class_that_never_comes_is_no_error():
    report = ClassMeasure("ab").report([0, 0], [0, 0])
    assert report["classes"]["b"]["f1"] == 0


def test_several_classes_a_row():
    expected = np.array([[1, 0], [1, 1], [0, 0]], bool)
    predicted = np.array([[1, 0], [1, 0], [0, 0]], bool)
    report = LabelSetMeasure("ab").report(expected, predicted)
    assert report["accuracy"] == pytest.approx(2 / 3)
    assert report["classes"]["a"]["f1"] == 1
    assert report["classes"]["b"]["recall"] == 0
    assert "confusion" not in report


def test_one_class_that_a_row_may_have():
    expected = np.array([[1], [0], [0], [0]], bool)
    predicted = np.array([[1], [0], [0], [1]], bool)
    report = LabelSetMeasure("a").report(expected, predicted)
    figures = {"precision": 0.5, "recall": 1.0, "f1": 2 / 3, "count": 1}
    assert report["classes"]["a"] == pytest.approx(figures)


def test_numbers():
    report = NumberMeasure().report([1, 2, 3, 4], [10, 20, 40, 30])
    assert report["spearman"] == pytest.approx(0.8)
    assert report["mean_absolute_error"] == pytest.approx(22.5)
    assert NumberMeasure().report([1, 1], [1, 2])["spearman"] is None
    assert "spearman               undefined (all values are" in format_report(
        NumberMeasure().report([1], [2])
    )


def test_correlations_are_those_of_scipy():
    random = np.random.default_rng(0)
    # With ties.
    expected, predicted = random.integers(0, 5, 60), random.integers(0, 9, 60) / 2
    report = NumberMeasure().report(expected, predicted)
    for name, function in (
        ("spearman", scipy.stats.spearmanr),
        ("pearson", scipy.stats.pearsonr),
    ):
        statistic = function(expected, predicted).statistic
        assert report[name] == pytest.approx(statistic, rel=1e-12)


def spans_of(tags):
    return [Span(*span, "", 1.0) for span in spans_of_tags(tags)]


def test_spans_are_counted_as_seqeval_counts_them():
    random = np.random.default_rng(0)
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]
    expected, predicted = (
        [[tags[n] for n in random.integers(0, 5, 12)] for _ in range(40)]
        for _ in range(2)
    )
    # Some are predicted right.
    both = zip(expected, predicted, strict=True)
    predicted = [e if n % 3 == 0 else f for n, (e, f) in enumerate(both)]
    report = SpanMeasure().report(
        [spans_of_tags(row) for row in expected], [spans_of(row) for row in predicted]
    )
    assert 0.2 < report["f1"] < 0.8
    for name in ("precision", "recall", "f1"):
        score = getattr(seqeval.metrics, f"{name}_score")
        assert report[name] == pytest.approx(score(expected, predicted))
    macro = seqeval.metrics.f1_score(expected, predicted, average="macro")
    assert report["macro_f1"] == pytest.approx(macro)


@pytest.mark.parametrize("classes", [2, 3])
def test_figures_of_classes(classes):
    random = np.random.default_rng(classes)
    expected, predicted = random.integers(0, classes, size=(2, 50))
    predicted[:30] = expected[:30]
    report = ClassMeasure("abc"[:classes]).report(expected, predicted)
    matthews = sklearn.metrics.matthews_corrcoef(expected, predicted)
    assert class_figure(report, "matthews") == pytest.approx(matthews)
    if classes == 2:
        f1 = sklearn.metrics.f1_score(expected, predicted)
        assert class_figure(report, "f1") == pytest.approx(f1)
    # All of one class: undefined, and no better than chance.
    report = ClassMeasure("ab").report([0, 1, 1], [1, 1, 1])
    assert class_figure(report, "matthews") == 0


def test_spans_without_any():
    report = SpanMeasure().report([[], []], [[], []])
    assert (report["f1"], report["macro_f1"], report["classes"]) == (0, 0, {})
    assert "f1                     0.0000" in format_report(report)


def test_answers():
    expected = ["北京大学", "上海", None, None, "北京"]
    predicted = ["北京", "上海", None, "上海", None]
    report = AnswerMeasure().report(expected, predicted)
    assert report == {
        "rows": 5,
        "exact_match": pytest.approx(2 / 5),
        # Two of four characters found, and none that is wrong: 2/3.
        "f1": pytest.approx((2 / 3 + 1 + 1) / 5),
    }
    # A character that comes twice counts twice.
    assert AnswerMeasure().report(["上上"], ["上"])["f1"] == pytest.approx(2 / 3)


def neighbours(labels, vectors):
    return NeighbourMeasure().report(labels, nearest_rows(vectors))


def test_neighbours(monkeypatch):
    monkeypatch.setattr(measures, "_ROWS_AT_A_TIME", 2)
    angles = np.array([0.0, 0.1, 1.0, 1.15, 1.3, 3.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")
    # The last one is alone with its class.
    report = neighbours(["a", "a", "b", "a", "b", "c"], vectors)
    assert report == {"rows": 6, "accuracy": pytest.approx(2 / 5)}
    assert neighbours(["a", "b"], vectors[:2])["accuracy"] == 0

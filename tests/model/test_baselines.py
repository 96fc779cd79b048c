"""Baselines without a model, and their comparison with a model in reports."""

import json

import numpy as np
import pytest
import scipy.stats
from common import CHARACTER
from sklearn.feature_extraction.text import TfidfVectorizer

from roformer_keras import RoFormerTextClassifier
from roformer_keras.tasks import baselines, measures
from roformer_keras.tasks.baselines import (
    SIMILARITIES,
    BestSentence,
    CharacterTags,
    Mean,
    MostFrequent,
    NearerText,
    NearestTexts,
    NoAnswer,
    PairThreshold,
    best_threshold,
)
from roformer_keras.tasks.evaluation import evaluate_task, fit_baselines
from roformer_keras.tasks.intervals import bootstrap_intervals, wilson_interval
from roformer_keras.tasks.measures import (
    AnswerMeasure,
    ClassMeasure,
    LabelSetMeasure,
    NeighbourMeasure,
    NumberMeasure,
    SpanMeasure,
    nearest_rows,
)
from roformer_keras.tasks.reports import format_report
from roformer_keras.tasks.span_labels import Span

JACCARD, TF_IDF = SIMILARITIES


def answered(baseline, texts, expected, others=None):
    """Answers of a baseline that learned from rows and went through JSON."""
    learned = json.loads(json.dumps(baseline.fit(texts, expected)))
    assert baseline.is_valid(learned)
    return baseline.answer(learned, others or texts)


# === Baselines ===


def test_constants():
    texts = [("一",)] * 3
    most = MostFrequent("most frequent class", 3)
    assert answered(most, texts, np.array([2, 0, 2]), [("二",)] * 2).tolist() == [2, 2]
    sets = np.array([[1, 0], [1, 1], [1, 1]], "float32")
    most = MostFrequent("most frequent set of classes", 2, multi_label=True)
    assert answered(most, texts, sets).tolist() == [[1, 1]] * 3
    assert answered(Mean(), texts, [1.0, 2.0, 6.0]).tolist() == [3, 3, 3]


def test_what_no_baseline_has_learned_is_refused():
    most, sets = MostFrequent("class", 3), MostFrequent("set", 2, True)
    pair, other = PairThreshold(JACCARD, "ab"), PairThreshold(TF_IDF, "ab")
    for baseline, learned in (
        (most, {}),
        (most, 3),
        (most, {"most_frequent": 3}),
        (most, {"most_frequent": -1}),
        (most, {"most_frequent": [1, 2]}),
        (most, {"most_frequent": "x"}),
        (sets, {"most_frequent": [1]}),
        (sets, {"most_frequent": [0, 2]}),
        (Mean(), {"mean": "1"}),
        (Mean(), {"mean": float("inf")}),
        (Mean(), []),
        (NearestTexts(), {"texts": 1, "characters": {"天": 2}}),
        (NearestTexts(), {"texts": 1, "characters": ["天"]}),
        (NearestTexts(), {"texts": "1", "characters": {}}),
        (JACCARD, {"texts": 1}),
        (NearerText(TF_IDF), {}),
        (pair, {"threshold": 0.5, "below": 0, "above": 2}),
        (pair, {"threshold": "x", "below": 0, "above": 1}),
        (other, {"threshold": 0.5, "below": 0, "above": 1}),
        (CharacterTags(False), {"tags": []}),
        (CharacterTags(False), {"tags": {"": {"天": 3}}}),
        (CharacterTags(False), {"tags": {"": {"天": "X-地"}}}),
        (NoAnswer(), {"x": 1}),
    ):
        assert not baseline.is_valid(learned), (baseline, learned)


def test_jaccard():
    similarities = JACCARD.cosines({}, ["春眠不觉", "春春", "天"], ["春天", "春", "地"])
    np.testing.assert_allclose(similarities, [1 / 5, 1, 0])


def test_tf_idf_is_that_of_scikit_learn():
    train = ["春天来了", "天地", "春眠不觉晓", "AB天"]
    texts = ["春天天天", "天地春", "晓来a"]
    expected = TfidfVectorizer(analyzer="char", sublinear_tf=True).fit(train)
    learned = TF_IDF.fit([(text,) for text in train])
    weights = TF_IDF.vectors(learned, texts)
    products = (weights @ weights.T).toarray()
    vectors = expected.transform(texts)
    np.testing.assert_allclose(products, (vectors @ vectors.T).toarray())
    # A character that the training data lack is not left out.
    strange = TF_IDF.vectors(learned, ["天空", "天海", "天空"])
    products = (strange @ strange.T).toarray()
    assert products[0, 1] < products[0, 2] == pytest.approx(1)


def test_no_text_can_be_read_from_what_a_preset_keeps():
    learned = TF_IDF.fit([("春天", "天地"), ("天", "天")])
    assert learned == {"texts": 4, "characters": {"地": 1, "天": 4, "春": 1}}


def test_thresholds():
    for similarities, expected, answer in (
        # Similar pairs are of class 1, or of class 0.
        ([0.1, 0.2, 0.6, 0.9], [0, 0, 1, 1], (0.4, 0, 1)),
        ([0.1, 0.2, 0.6, 0.9], [1, 1, 0, 0], (0.4, 1, 0)),
        # 5 of 6, and not all: equal values are on one side.
        ([0.2, 0.2, 0.4, 0.4, 0.4, 0.8], [0, 0, 0, 1, 1, 1], (0.3, 0, 1)),
        # No threshold is better than the class of most.
        ([0.1, 0.2, 0.3], [1, 1, 1], (0.1, 1, 1)),
        ([0.5, 0.5, 0.5], [0, 1, 0], (0.5, 0, 0)),
        # Two of three classes.
        ([0.1, 0.2, 0.6, 0.9, 0.95], [2, 2, 0, 1, 1], (0.4, 2, 1)),
    ):
        learned = best_threshold(np.array(similarities), expected, 3)
        assert learned["threshold"] == pytest.approx(answer[0])
        assert (learned["below"], learned["above"]) == answer[1:]


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=lambda own: own.name)
def test_pairs(similarity):
    alike, other = ("春天来了", "春天到了"), ("春天来了", "我不想去")
    rows = [alike, other, ("今天下雨", "今天有雨"), ("今天下雨", "他在家里")]
    threshold = PairThreshold(similarity, ["同", "异"])
    assert answered(threshold, rows, [0, 1, 0, 1]).tolist() == [0, 1, 0, 1]
    predicted = answered(threshold, rows, [0, 1, 0, 1], [other, alike])
    assert predicted.tolist() == [1, 0]
    shown = threshold.describe(threshold.fit(rows, [0, 1, 0, 1]))
    assert (shown["below"], shown["above"]) == ("异", "同")
    predicted = answered(similarity, rows, [5, 1, 5, 1])
    assert predicted[0] > predicted[1] and predicted[2] > predicted[3]
    triplets = [(*alike, other[1]), (alike[0], other[1], alike[1])]
    assert answered(NearerText(similarity), triplets, [0, 1]).tolist() == [0, 1]
    # If both are as near, it is the first.
    assert answered(NearerText(similarity), [("天", "天", "天")], [1]).tolist() == [0]


def test_nearest_texts(monkeypatch):
    texts = [(text,) for text in ("春天来了", "春天到了", "他在家里", "她在家中")]
    nearest, cosines = answered(NearestTexts(), texts, [0, 0, 1, 1])
    assert nearest.tolist() == [1, 0, 3, 2]
    assert (cosines > 0.2).all()
    monkeypatch.setattr(baselines, "_MAX_QUERIES", 2)
    nearest, _ = answered(NearestTexts(), texts, [0, 0, 1, 1])
    assert nearest.tolist() == [1, -1, 3, -1]
    report = NeighbourMeasure().report(["a", "a", "b", "a"], (nearest, cosines))
    # Of those that were searched, the first alone is not the only one of its class.
    assert report == {"rows": 2, "accuracy": 1.0}


def test_tags_of_characters():
    texts = [("她在北京",), ("北方在京城",), ("北京",)]
    spans = [[(2, 4, "地")], [], [(0, 2, "地")]]
    # 北 begins a place twice in three, 京 is inside of one twice in three.
    tagged = answered(CharacterTags(False), texts, spans, [("去北京在北",)])
    assert [[(s.start, s.end, s.label, s.text) for s in row] for row in tagged] == [
        [(1, 3, "地", "北京"), (4, 5, "地", "北")]
    ]
    nested = [("北京大学",)] * 2
    spans = [[(0, 2, "地"), (0, 4, "校")]] * 2
    (tagged, _) = answered(CharacterTags(True), nested, spans)
    assert {(s.start, s.end, s.label) for s in tagged} == {
        (0, 2, "地"),
        (0, 4, "校"),
    }
    assert answered(CharacterTags(True), [("春天",)], [[]]) == [[]]


def test_answers():
    text = "今天下雨。她在北京大学！他走了"
    rows = [("她在哪里？", text), ("天气？", text), ("谁？", "。")]
    expected = ["她在北京大学！", "今天下雨。", "。"]
    assert answered(BestSentence(), rows, expected) == expected
    assert answered(NoAnswer(), rows, expected) == [None] * 3


# === Intervals ===


def test_wilson():
    # (p + z^2 / 2n ± z sqrt(p(1-p)/n + z^2 / 4n^2)) / (1 + z^2 / n), z = 1.96.
    low, high = wilson_interval(np.array([True] * 8 + [False] * 2))
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(np.zeros(0, bool)) is None


def figures_of(measure, expected, found):
    """The figures of a measure if each row is once in a sample."""
    weighted = measure.weighted(expected, found)(np.ones((1, len(expected))))
    return {name: value for name, (value,) in weighted.items()}


RANDOM = np.random.default_rng(0)
SPANS = [[(0, 2, "A")], [(1, 2, "B"), (3, 5, "A")], [], [(0, 1, "A")]]
FOUND = [[(0, 2, "A")], [(1, 2, "A"), (3, 5, "A")], [(2, 3, "C")], []]
MEASURED = {
    "classes": (
        ClassMeasure("abc"),
        RANDOM.integers(0, 3, 40),
        RANDOM.random((40, 3)),
    ),
    "sets": (
        LabelSetMeasure("abc"),
        RANDOM.integers(0, 2, (40, 3)),
        RANDOM.random((40, 3)),
    ),
    # With ties.
    "numbers": (
        NumberMeasure(),
        RANDOM.integers(0, 5, 40),
        RANDOM.integers(0, 9, 40) / 2,
    ),
    "spans": (
        SpanMeasure(),
        SPANS,
        [[Span(*span, "", 1.0) for span in row] for row in FOUND],
    ),
    "answers": (AnswerMeasure(), ["北京", "上海", None], ["北", None, None]),
}


@pytest.mark.parametrize("case", MEASURED)
def test_a_sample_has_the_figures_of_its_rows(case):
    measure, expected, predicted = MEASURED[case]
    report = measure.report(expected, predicted)
    whole = figures_of(measure, expected, predicted)
    assert whole and whole == pytest.approx({name: report[name] for name in whole})
    # Rows may be in a sample several times, or not at all.
    weights = np.array([[2.0, 0, 3, *[1] * (len(expected) - 3)]])
    rows = np.repeat(np.arange(len(expected)), weights[0].astype(int))
    some = [[side[row] for row in rows] for side in (expected, predicted)]
    if isinstance(predicted, np.ndarray):
        some = list(map(np.array, some))
    report = measure.report(*some)
    sample = measure.weighted(expected, predicted)(weights)
    for name, (value,) in sample.items():
        assert value == pytest.approx(report[name]), name


def test_bootstrap_is_that_of_scipy():
    values = np.random.default_rng(1).exponential(size=200)
    (found,) = bootstrap_intervals(
        200, [lambda weights: {"mean": weights @ values / weights.sum(axis=1)}]
    )
    expected = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=4000, rng=0
    ).confidence_interval
    assert found["mean"] == pytest.approx(list(expected), abs=0.02)


def test_the_same_interval_in_each_call_and_none_of_what_is_undefined():
    measure, expected, predicted = MEASURED["numbers"]
    weighted = measure.weighted(expected, predicted)
    assert bootstrap_intervals(40, [weighted]) == bootstrap_intervals(40, [weighted])
    constant = measure.weighted(expected, np.full(40, 2.0))
    (own,) = bootstrap_intervals(40, [constant])
    assert own["spearman"] is own["pearson"] is None
    assert own["mean_absolute_error"][0] > 0
    (own,) = bootstrap_intervals(1, [NumberMeasure().weighted([1.0], [2.0])])
    assert set(own.values()) == {None}


# === The worst errors ===


def test_errors_of_which_the_model_was_most_sure():
    predicted = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.1, 0.9]])
    assert ClassMeasure(["坏", "好"]).errors([1, 0, 0, 1], predicted) == [
        (0, {"expected": "好", "predicted": "坏", "confidence": 0.9}),
        (2, {"expected": "坏", "predicted": "好", "confidence": 0.8}),
        (1, {"expected": "坏", "predicted": "好", "confidence": 0.6}),
    ]
    sets = np.array([[1, 0], [0, 0], [1, 1]])
    predicted = np.array([[0.9, 0.7], [0.1, 0.2], [0.05, 0.9]])
    assert LabelSetMeasure("ab").errors(sets, predicted) == [
        (2, {"expected": ["a", "b"], "predicted": ["b"], "confidence": 0.95}),
        (0, {"expected": ["a"], "predicted": ["a", "b"], "confidence": 0.7}),
    ]
    assert NumberMeasure().errors([1.0, 2.0, 3.0], np.array([1.0, 2.5, 1.0])) == [
        (2, {"expected": 3.0, "predicted": 1.0, "difference": 2.0}),
        (1, {"expected": 2.0, "predicted": 2.5, "difference": 0.5}),
    ]
    ranked = NumberMeasure(is_scaled=False).errors([1, 2, 3, 4], [0.1, 0.9, 0.3, 0.4])
    assert [(row, own["rank_difference"]) for row, own in ranked] == [
        (1, 0.5),
        (2, 0.25),
        (3, 0.25),
    ]
    measure, expected, predicted = MEASURED["spans"]
    assert [
        (row, own["wrong_spans"]) for row, own in measure.errors(expected, predicted)
    ]
    assert measure.errors(expected, predicted)[0] == (
        1,
        {
            "expected": [[1, 2, "B"], [3, 5, "A"]],
            "predicted": [[1, 2, "A"], [3, 5, "A"]],
            "wrong_spans": 2,
        },
    )
    measure, expected, predicted = MEASURED["answers"]
    assert measure.errors(expected, predicted) == [
        (1, {"expected": "上海", "predicted": None, "f1": 0.0}),
        (0, {"expected": "北京", "predicted": "北", "f1": 0.666667}),
    ]
    vectors = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]])
    predicted = nearest_rows(vectors)
    (first, _) = NeighbourMeasure().errors(["a", "b", "a", "b"], predicted)[:2]
    assert first == (
        1,
        {"expected": "b", "predicted": "a", "nearest": 2, "confidence": 0.96},
    )


def test_at_most_so_many_errors(monkeypatch):
    monkeypatch.setattr(measures, "MAX_ERRORS", 2)
    probabilities = np.tile([0.1, 0.9], (5, 1))
    assert len(ClassMeasure("ab").errors([0] * 5, probabilities)) == 2


# === Reports ===


@pytest.fixture(scope="module")
def classifier():
    return RoFormerTextClassifier.from_preset(
        CHARACTER, classes=["异", "同"], max_length=16
    )


def report_of(classifier, monkeypatch, probabilities, labels, learned=None):
    texts = [("今天下雨", "今天下雨" if name == "同" else "他在北") for name in labels]
    predicted = np.array([[1 - p, p] for p in probabilities])
    monkeypatch.setattr(classifier.files_class, "found_answers", lambda *_: predicted)
    lines = range(10, 10 + len(texts))
    return evaluate_task(classifier, texts, labels, lines=lines, learned=learned)


def test_a_report_says_that_a_baseline_is_better(classifier, monkeypatch):
    labels = ["同", "异"] * 10
    report = report_of(classifier, monkeypatch, [0.9, 0.7] * 10, labels)
    assert report["accuracy"] == 0.5
    assert report["intervals"]["accuracy"] == pytest.approx([0.2993, 0.7007], abs=1e-4)
    assert report["baselines"]["most frequent class"]["accuracy"] == 0.5
    jaccard_figures = report["baselines"]["Jaccard of characters"]
    assert (jaccard_figures["accuracy"], jaccard_figures["macro_f1"]) == (1, 1)
    assert (jaccard_figures["below"], jaccard_figures["above"]) == ("异", "同")
    assert report["baselines_from"] == "this file"
    assert [remark.split(":")[0] for remark in report["remarks"]] == [
        f"the model is not better than {name!r}" for name in report["baselines"]
    ]
    assert report["errors"][0] == {
        "line": 11,
        "first": "今天下雨",
        "second": "他在北",
        "expected": "异",
        "predicted": "同",
        "confidence": 0.7,
    }
    page = format_report(report)
    assert "! the model is not better than 'Jaccard of characters': its acc" in page
    assert "model                  0.5000  0.2993-0.7007" in page
    assert "  line 11: 异 -> 同, confidence 0.7000: 今天下雨 | 他在北\n" in page
    assert "异                0 (0.0%)  10 (100.0%)\n" in page
    json.dumps(report)


def test_a_report_says_what_is_within_the_interval(classifier, monkeypatch):
    labels = ["同"] * 12 + ["异"] * 8
    good = [0.9] * 10 + [0.1] * 2 + [0.1] * 4 + [0.9] * 4
    report = report_of(classifier, monkeypatch, good, labels)
    assert report["accuracy"] == 0.7
    (first, *_) = report["remarks"]
    assert first.startswith(
        "the model is not clearly better than 'most frequent class': the accuracy of "
        "the baseline, 0.6000, is within the 95 % interval of the model, 0.4810 to"
    )


def test_baselines_are_of_the_training_data(classifier, monkeypatch):
    texts = [("今天下雨", "他在北")] * 3 + [("今天下雨", "今天下雨")]
    learned = fit_baselines(classifier, texts, ["异"] * 3 + ["同"])
    labels = ["同"] * 3 + ["异"]
    report = report_of(classifier, monkeypatch, [0.9] * 3 + [0.1], labels, learned)
    assert report["baselines_from"] == "the training data"
    # Of these rows most are of another class.
    assert report["baselines"]["most frequent class"]["accuracy"] == 0.25
    assert report["baselines"]["Jaccard of characters"]["accuracy"] == 1
    assert not any("most frequent" in remark for remark in report["remarks"])


def test_baselines_that_learned_of_other_rows_learn_anew(classifier, monkeypatch):
    learned = fit_baselines(classifier, [("今天",), ("他在北",)], ["同", "异"])
    assert list(learned) == ["most frequent class"]
    report = report_of(classifier, monkeypatch, [0.9, 0.1], ["同", "异"], learned)
    assert report["baselines_from"] == "this file"
    assert report["baselines"]["TF-IDF of characters"]["accuracy"] == 1


def test_spans_on_a_page():
    measure, expected, predicted = MEASURED["spans"]
    report = measure.report(expected, predicted)
    shown = [
        {"line": row + 1, "text": "今天\n下雨" * 20, **error}
        for row, error in measure.errors(expected, predicted)
    ]
    page = format_report({**report, "errors": shown})
    line = "  line 2: B 1-2, A 3-5 -> A 1-2, A 3-5, wrong spans 2: 今天 下雨今"
    assert line in page
    assert "  line 3: none -> C 2-3, wrong spans 1: " in page
    # Long texts are cut, and the lines of a text are one.
    assert max(map(len, page.splitlines())) < 100


def test_many_classes_are_shown_by_their_confusions():
    names = [f"第{number}类" for number in range(12)]
    expected = [number for number in range(12) for _ in range(4)]
    probabilities = np.eye(12)[expected]
    probabilities[:3] = np.eye(12)[5]
    page = format_report(ClassMeasure(names).report(np.array(expected), probabilities))
    assert "  第0类 -> 第5类: 3 (75.0%)\n" in page
    assert "true \\ predicted" not in page

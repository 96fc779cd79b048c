"""Comparison of answers with labels: figures, intervals and errors.

`found` is what `TaskFiles.found_answers` returns, or a baseline in its place. Reports
are dicts of plain JSON types; `tasks.reports` shows them as pages.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from roformer_keras.base.extras import import_extra
from roformer_keras.tables.choices import MAX_CHOICES
from roformer_keras.tasks.labels import rounded

# Rows that a report lists.
MAX_ERRORS = 20
# Rows of the matrix of cosines that are computed at a time.
_ROWS_AT_A_TIME = 512
# What `class_figure` computes.
CLASS_FIGURES = ("matthews", "f1")


class Measure:
    """One kind of answers; subclasses define `rights` or `weighted`, and `errors`."""

    def rights(self, expected: Any, found: Any) -> dict[str, np.ndarray]:
        """Figures that are the share of right rows: bool `(counted rows,)` of each."""
        return {}

    def weighted(self, expected: Any, found: Any) -> Callable:
        """Other figures, as a function of weights.

        Returns:
            A function of float `(samples, rows)`, how often each row is in a sample. It
            returns a dict of the figures of each sample, `(samples,)`; nan where one is
            undefined.
        """
        return lambda weights: {}

    def details(self, expected: Any, found: Any) -> dict:
        """Further entries of a report."""
        return {}

    def report(self, expected: Any, found: Any) -> dict:
        """`rows`, the figures of a sample that has each row once, and the details."""
        rights = self.rights(expected, found).items()
        figures = self.weighted(expected, found)(np.ones((1, len(expected)))).items()
        return {
            "rows": len(expected),
            **{name: float(np.mean(right)) for name, right in rights},
            **{n: None if np.isnan(own) else float(own) for n, (own,) in figures},
            **self.details(expected, found),
        }

    def errors(self, expected: Any, found: Any) -> list[tuple[int, dict]]:
        """The worst rows, and what is wrong with them as plain JSON types."""
        return []


class ChoiceMeasure(Measure):
    """The number of a choice for each row.

    `expected` is int `(rows,)`; `found` likewise, or a list of the probabilities of the
    choices of each row. The report has `accuracy`.
    """

    names: Sequence = range(MAX_CHOICES)

    def rights(self, expected, found):
        return {"accuracy": np.asarray(expected) == _numbers(found)}

    def errors(self, expected, found):
        expected, numbers = np.asarray(expected), _numbers(found)
        sure = np.array([row.max() for row in found])
        return _worst(
            np.where(numbers == expected, -np.inf, sure),
            lambda row: {
                "expected": self.names[expected[row]],
                "predicted": self.names[numbers[row]],
                "confidence": rounded(sure[row]),
            },
        )


class LabelMeasure(Measure):
    """Labels of rows, by how often each is right, predicted and expected.

    Subclasses define `counts`: the labels, and these three numbers as sparse matrices
    `(labels, rows)`. The report has `macro_f1`, and `classes`: dict of a label to
    `precision`, `recall`, `f1`, `count`.
    """

    def counts(self, expected: Any, found: Any) -> tuple[Sequence, list]:
        raise NotImplementedError

    def averages(self, right, predicted, there) -> dict:
        """Figures of all labels together, from counts `(labels, samples)`."""
        return {"macro_f1": _f1(right, predicted, there).mean(axis=0)}

    def weighted(self, expected, found):
        _, counts = self.counts(expected, found)
        return lambda weights: self.averages(*(one @ weights.T for one in counts))

    def details(self, expected, found):
        labels, counts = self.counts(expected, found)
        right, predicted, there = (one.sum(axis=1) for one in counts)
        return {
            "classes": {
                str(label): {
                    "precision": float(right[number] / max(predicted[number], 1)),
                    "recall": float(right[number] / max(there[number], 1)),
                    "f1": float(_f1(right[number], predicted[number], there[number])),
                    "count": int(there[number]),
                }
                for number, label in enumerate(labels)
            }
        }


class ClassMeasure(LabelMeasure, ChoiceMeasure):
    """A class for each row."""

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def counts(self, expected, found):
        there, predicted = (
            _counts(numbers, range(len(numbers)), len(self.names), len(numbers))
            for numbers in (expected, _numbers(found))
        )
        return self.names, [there.multiply(predicted).tocsr(), predicted, there]

    def details(self, expected, found):
        count = len(self.names)
        cells = np.asarray(expected) * count + _numbers(found)
        confusion = np.bincount(cells, minlength=count**2).reshape(count, count)
        return {**super().details(expected, found), "confusion": confusion.tolist()}


class LabelSetMeasure(LabelMeasure):
    """Any number of classes for each row: 0 or 1, or probabilities, of each class.

    `accuracy` is the share of rows of which all classes are right.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def rights(self, expected, found):
        return {"accuracy": ((expected > 0) == (found >= 0.5)).all(axis=1)}

    def counts(self, expected, found):
        sparse = import_extra("scipy.sparse", "a confidence interval")
        there, predicted = (
            sparse.csr_array(side.T, dtype="float64")
            for side in (expected > 0, found >= 0.5)
        )
        return self.names, [there.multiply(predicted).tocsr(), predicted, there]

    def errors(self, expected, found):
        is_wrong = (expected > 0) != (found >= 0.5)
        # How sure the model is of the class that it is most wrong about.
        sure = np.where(is_wrong, np.maximum(found, 1 - found), -np.inf).max(axis=1)
        return _worst(
            sure,
            lambda row: {
                "expected": self._set(expected[row] > 0),
                "predicted": self._set(found[row] >= 0.5),
                "confidence": rounded(sure[row]),
            },
        )

    def _set(self, mask):
        return [self.names[number] for number in np.flatnonzero(mask)]


class NumberMeasure(Measure):
    """A number for each row.

    The report has `spearman` and `pearson`, None if all numbers of a side are equal,
    and `mean_absolute_error` of numbers that are scaled.
    """

    def __init__(self, is_scaled: bool = True):
        self.is_scaled = is_scaled

    def weighted(self, expected, found):
        sides = [np.asarray(side, "float64") for side in (expected, found)]
        ranks = [_ranks(side) for side in sides]
        error = np.abs(sides[0] - sides[1])

        def figures(weights):
            values = {
                "spearman": _correlation(*(rank(weights) for rank in ranks), weights),
                "pearson": _correlation(*sides, weights),
            }
            if self.is_scaled:
                values["mean_absolute_error"] = weights @ error / weights.sum(axis=1)
            return values

        return figures

    def errors(self, expected, found):
        sides = [np.asarray(side, "float64") for side in (expected, found)]
        name = "difference"
        compared = sides
        if not self.is_scaled:
            # Shares of the rows that are below, from 0 to 1.
            name, unit_weights = "rank_difference", np.ones((1, len(found)))
            compared = [_ranks(side)(unit_weights)[0] / len(found) for side in sides]
        sizes = np.abs(compared[0] - compared[1])
        return _worst(
            np.where(sizes > 0, sizes, -np.inf),
            lambda row: {
                "expected": rounded(sides[0][row]),
                "predicted": rounded(sides[1][row]),
                name: rounded(sizes[row]),
            },
        )


class SpanMeasure(LabelMeasure):
    """Spans of each text: `(start, end, label)` are expected, `Span`s or these found.

    A right span has both ends and the label. The report has `precision`, `recall` and
    `f1` over all spans, equal to `seqeval` on the tags of spans that do not overlap.
    """

    def __init__(self, wrong: str = "wrong_spans"):
        self.wrong = wrong

    def counts(self, expected, found):
        sides = _span_sets(expected, found)
        labels = sorted({label for side in sides for row in side for *_, label in row})
        numbers = {label: number for number, label in enumerate(labels)}
        cells = (
            [(numbers[label], row) for row, own in enumerate(side) for *_, label in own]
            for side in sides
        )
        there, predicted, right = (
            _counts(*np.array(own, "int64").reshape(-1, 2).T, len(labels), len(found))
            for own in cells
        )
        return labels, [right, predicted, there]

    def averages(self, right, predicted, there):
        totals = [count.sum(axis=0) for count in (right, predicted, there)]
        f1, are_there = _f1(right, predicted, there), predicted + there > 0
        return {
            "precision": totals[0] / np.maximum(totals[1], 1),
            "recall": totals[0] / np.maximum(totals[2], 1),
            "f1": _f1(*totals),
            "macro_f1": f1.sum(axis=0) / np.maximum(are_there.sum(axis=0), 1),
        }

    def errors(self, expected, found):
        there, predicted, _ = _span_sets(expected, found)
        pairs = zip(there, predicted, strict=True)
        wrong = np.array([len(a ^ b) for a, b in pairs], "float64")
        return _worst(
            np.where(wrong > 0, wrong, -np.inf),
            lambda row: {
                "expected": [list(span) for span in sorted(there[row])],
                "predicted": [list(span) for span in sorted(predicted[row])],
                self.wrong: int(wrong[row]),
            },
        )


class AnswerMeasure(Measure):
    """The answer to each question: str, or None if there is none.

    `expected` may have a tuple of several right ones, of which the one counts that was
    most nearly found. The report has `exact_match`, and `f1`: the mean over rows of the
    F1 of the characters of both answers, 1 if both are None.
    """

    def rights(self, expected, found):
        pairs = zip(map(_right_answers, expected), found, strict=True)
        return {"exact_match": np.array([answer in right for right, answer in pairs])}

    def weighted(self, expected, found):
        f1 = self._f1(expected, found)
        return lambda weights: {"f1": weights @ f1 / weights.sum(axis=1)}

    def errors(self, expected, found):
        f1 = self._f1(expected, found)
        return _worst(
            np.where(f1 < 1, -f1, -np.inf),
            lambda row: {
                "expected": list(expected[row])
                if isinstance(expected[row], tuple)
                else expected[row],
                "predicted": found[row],
                "f1": rounded(f1[row]),
            },
        )

    def _f1(self, expected, found):
        pairs = zip(map(_right_answers, expected), found, strict=True)
        return np.array([_character_f1(*pair) for pair in pairs])


class NeighbourMeasure(Measure):
    """The nearest other row of each row, as `nearest_rows` finds it.

    The report has `accuracy`, the share of rows whose nearest row has the same class;
    of those that are not alone in their class.
    """

    def report(self, expected, found):
        right = self.rights(expected, found)["accuracy"]
        accuracy = float(right.mean()) if len(right) else 0.0
        return {"rows": int((found[0] >= 0).sum()), "accuracy": accuracy}

    def rights(self, expected, found):
        is_counted, is_right = self._compare(expected, found[0])
        return {"accuracy": is_right[is_counted]}

    def errors(self, expected, found):
        nearest, cosines = found
        is_counted, is_right = self._compare(expected, nearest)
        return _worst(
            np.where(is_counted & ~is_right, cosines, -np.inf),
            lambda row: {
                "expected": str(expected[row]),
                "predicted": str(expected[nearest[row]]),
                "nearest": int(nearest[row]),
                "confidence": rounded(cosines[row]),
            },
        )

    def _compare(self, labels, nearest):
        """bool `(rows,)`: those that are counted, and those that are right."""
        _, numbers, counts = np.unique(
            np.asarray(labels), return_inverse=True, return_counts=True
        )
        is_counted = (nearest >= 0) & (counts[numbers] > 1)
        return is_counted, numbers[nearest] == numbers


def nearest_rows(
    vectors, rows: Sequence[int] | np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The row whose vector is nearest to that of each row, other than itself."""
    count = vectors.shape[0]
    rows = np.arange(count) if rows is None else np.asarray(rows)
    nearest, best = np.full(count, -1, "int64"), np.full(count, -np.inf)
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
        part = rows[start : start + _ROWS_AT_A_TIME]
        cosines = vectors[part] @ vectors.T
        if not isinstance(cosines, np.ndarray):
            cosines = cosines.toarray()
        cosines[np.arange(len(part)), part] = -np.inf
        nearest[part] = cosines.argmax(axis=1)
        best[part] = cosines.max(axis=1)
    return nearest, best


def class_figure(report: Mapping, name: str) -> float:
    """A figure of classes that a report has no line for."""
    if name == "f1":
        _, second = report["classes"].values()
        return second["f1"]
    metrics = import_extra("sklearn.metrics", "Matthews's correlation")
    counts = np.array(report["confusion"])
    expected, predicted = np.indices(counts.shape)
    weights = counts.ravel()
    return float(
        metrics.matthews_corrcoef(
            expected.ravel(), predicted.ravel(), sample_weight=weights
        )
    )


def _numbers(found):
    """The number of the answer of each row, which may be one of probabilities."""
    if isinstance(found, np.ndarray) and found.ndim == 2:
        return found.argmax(axis=1)
    return np.array([np.argmax(row) if np.ndim(row) else row for row in found])


def _counts(places, rows, count, row_count):
    """A sparse matrix `(count, rows)`: how often each row has each place."""
    sparse = import_extra("scipy.sparse", "a confidence interval")
    ones = np.ones(len(rows))
    return sparse.coo_array((ones, (places, rows)), shape=(count, row_count)).tocsr()


def _f1(right, predicted, there):
    return 2 * right / np.maximum(predicted + there, 1)


def _ranks(values):
    """A function of weights `(samples, rows)`: the ranks of the rows in each sample.

    Equal values have the mean of their ranks, as in `scipy.stats.rankdata`; here
    nothing is sorted again for each sample.
    """
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    order, starts = np.argsort(groups, kind="stable"), np.cumsum(counts) - counts

    def ranks(weights):
        sizes = np.add.reduceat(weights[:, order], starts, axis=1)
        below = np.cumsum(sizes, axis=1) - sizes
        return (below + (sizes + 1) / 2)[:, groups]

    return ranks


def _correlation(one, other, weights):
    """Pearson's correlation in each sample; nan if a side does not vary."""
    total = weights.sum(axis=1, keepdims=True)
    sides = []
    for side in (one, other):
        # Scaled, so that what is left of a constant is seen as such.
        spread = max(float(np.ptp(side)), 1e-300)
        side = np.broadcast_to((side - np.min(side)) / spread, weights.shape)
        sides.append(side - (weights * side).sum(axis=1, keepdims=True) / total)
    (a, b) = sides
    squares = (weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1)
    varies = squares > 1e-20
    correlation = (weights * a * b).sum(axis=1) / np.sqrt(np.where(varies, squares, 1))
    return np.where(varies, correlation, np.nan)


def _span_sets(expected: Iterable, found: Iterable) -> list[list[set]]:
    """The spans of each text that are expected, found, and both."""
    there = [{tuple(span) for span in row} for row in expected]
    predicted = [
        {
            span if isinstance(span, tuple) else (span.start, span.end, span.label)
            for span in row
        }
        for row in found
    ]
    right = [one & other for one, other in zip(there, predicted, strict=True)]
    return [there, predicted, right]


def _right_answers(expected):
    return expected if isinstance(expected, tuple) else (expected,)


def _character_f1(right, answer):
    """The F1 of the characters of an answer and the nearest of the right ones."""

    def f1(one):
        if one is None or answer is None:
            return float(one is answer)
        shared = (Counter(one) & Counter(answer)).total()
        return 2 * shared / (len(one) + len(answer))

    return max(map(f1, right))


def _worst(sizes, describe):
    """The rows of the largest sizes above -inf, the largest first, described."""
    order = np.argsort(-np.asarray(sizes), kind="stable")[:MAX_ERRORS]
    return [(int(row), describe(row)) for row in order if np.isfinite(sizes[row])]

"""Comparison of answers with labels: figures, intervals and errors.

`found` is what `TextTask.found_answers` returns, or a baseline in its place.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from roformer_keras.extras import import_extra
from roformer_keras.tasks.labels import rounded
from roformer_keras.tasks.reports import (
    answer_report,
    character_f1,
    classification_report,
    correlation_report,
    is_exact,
    nearest_report,
    span_report,
)

# Rows that a report lists.
MAX_ERRORS = 20


class Measure:
    """One kind of answers; subclasses define `report` and what applies of the rest."""

    def report(self, expected: Any, found: Any) -> dict:
        """The figures, as a task reports them."""
        raise NotImplementedError

    def rights(self, expected: Any, found: Any) -> dict[str, np.ndarray]:
        """Figures that are the share of right rows: bool `(counted rows,)` of each."""
        return {}

    def weighted(self, expected: Any, found: Any) -> Callable | None:
        """Other figures, as a function of weights.

        Returns:
            A function of float `(samples, rows)`, how often each row is in a sample. It
            returns a dict of the figures of each sample, `(samples,)`; nan where one is
            undefined.
        """
        return None

    def errors(self, expected: Any, found: Any) -> list[tuple[int, dict]]:
        """The worst rows, and what is wrong with them as plain JSON types."""
        return []


class ClassMeasure(Measure):
    """A class for each row.

    Args:
        names: of the classes.

    `expected` is int `(rows,)`; `found` likewise, or probabilities `(rows, classes)`.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def report(self, expected, found):
        return classification_report(expected, _classes(found), self.names)

    def rights(self, expected, found):
        return {"accuracy": np.asarray(expected) == _classes(found)}

    def weighted(self, expected, found):
        rows = np.arange(len(expected))
        members = [
            _counts(numbers, rows, len(self.names), len(rows))
            for numbers in (expected, _classes(found))
        ]
        return _macro_f1(*members)

    def errors(self, expected, found):
        expected, numbers = np.asarray(expected), _classes(found)
        sure = found[np.arange(len(found)), numbers]
        return [
            (
                row,
                {
                    "expected": self.names[expected[row]],
                    "predicted": self.names[numbers[row]],
                    "confidence": rounded(sure[row]),
                },
            )
            for row in _worst(np.where(numbers == expected, -np.inf, sure))
        ]


class LabelSetMeasure(Measure):
    """Any number of classes for each row: 0 or 1, or probabilities, of each class.

    Args:
        names: of the classes.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def report(self, expected, found):
        return classification_report(expected > 0, found >= 0.5, self.names)

    def rights(self, expected, found):
        return {"accuracy": ((expected > 0) == (found >= 0.5)).all(axis=1)}

    def weighted(self, expected, found):
        sparse = import_extra("scipy.sparse", "a confidence interval")
        members = [
            sparse.csr_array(side.T, dtype="float64")
            for side in (expected > 0, found >= 0.5)
        ]
        return _macro_f1(*members)

    def errors(self, expected, found):
        is_wrong = (expected > 0) != (found >= 0.5)
        # How sure the model is of the class that it is most wrong about.
        sure = np.where(is_wrong, np.maximum(found, 1 - found), -np.inf).max(axis=1)
        return [
            (
                row,
                {
                    "expected": self._set(expected[row] > 0),
                    "predicted": self._set(found[row] >= 0.5),
                    "confidence": rounded(sure[row]),
                },
            )
            for row in _worst(sure)
        ]

    def _set(self, mask):
        return [self.names[number] for number in np.flatnonzero(mask)]


class NumberMeasure(Measure):
    """A number for each row.

    Args:
        is_scaled: bool. Whether numbers are of the range of the labels, so that their
            differences are errors. If not, only their order and proportions count.
    """

    def __init__(self, is_scaled: bool = True):
        self.is_scaled = is_scaled

    def report(self, expected, found):
        report = correlation_report(expected, found)
        if not self.is_scaled:
            del report["mean_absolute_error"]
        return report

    def weighted(self, expected, found):
        sides = [np.asarray(side, "float64") for side in (expected, found)]
        ranks = [_ranks(side) for side in sides]
        error = np.abs(sides[0] - sides[1])

        def figures(weights):
            found = {
                "spearman": _correlation(*(rank(weights) for rank in ranks), weights),
                "pearson": _correlation(*sides, weights),
            }
            if self.is_scaled:
                found["mean_absolute_error"] = weights @ error / weights.sum(axis=1)
            return found

        return figures

    def errors(self, expected, found):
        sides = [np.asarray(side, "float64") for side in (expected, found)]
        name = "difference"
        compared = sides
        if not self.is_scaled:
            # Shares of the rows that are below, from 0 to 1.
            name, one = "rank_difference", np.ones((1, len(found)))
            compared = [_ranks(side)(one)[0] / len(found) for side in sides]
        sizes = np.abs(compared[0] - compared[1])
        return [
            (
                row,
                {
                    "expected": rounded(sides[0][row]),
                    "predicted": rounded(sides[1][row]),
                    name: rounded(sizes[row]),
                },
            )
            for row in _worst(np.where(sizes > 0, sizes, -np.inf))
        ]


class SpanMeasure(Measure):
    """Spans of each text: `(start, end, label)` are expected, `Span`s found."""

    def report(self, expected, found):
        return span_report(expected, found)

    def weighted(self, expected, found):
        sides = [_sets(expected), _sets(_triples(row) for row in found)]
        labels = sorted({label for side in sides for own in side for *_, label in own})
        numbers = {label: number for number, label in enumerate(labels)}
        both = [one & other for one, other in zip(*sides, strict=True)]

        def members(side):
            places = [
                (numbers[label], row)
                for row, own in enumerate(side)
                for *_, label in own
            ]
            places = np.array(places, "int64").reshape(-1, 2)
            return _counts(*places.T, max(1, len(labels)), len(expected))

        there, predicted, right = (members(side) for side in (*sides, both))

        def figures(weights):
            counts = [one @ weights.T for one in (right, predicted, there)]
            totals = [count.sum(axis=0) for count in counts]
            f1, are_there = _f1(*counts), counts[1] + counts[2] > 0
            return {
                "f1": _f1(*totals),
                "precision": totals[0] / np.maximum(totals[1], 1),
                "recall": totals[0] / np.maximum(totals[2], 1),
                "macro_f1": f1.sum(axis=0) / np.maximum(are_there.sum(axis=0), 1),
            }

        return figures

    def errors(self, expected, found):
        sides = [_sets(expected), _sets(_triples(row) for row in found)]
        wrong = np.array([len(a ^ b) for a, b in zip(*sides, strict=True)], "float64")
        return [
            (
                row,
                {
                    "expected": [list(span) for span in sorted(sides[0][row])],
                    "predicted": [list(span) for span in sorted(sides[1][row])],
                    "wrong_spans": int(wrong[row]),
                },
            )
            for row in _worst(np.where(wrong > 0, wrong, -np.inf))
        ]


class AnswerMeasure(Measure):
    """The answer to each question: str, or None if there is none.

    `expected` may have a tuple of several right ones.
    """

    def report(self, expected, found):
        return answer_report(expected, found)

    def rights(self, expected, found):
        pairs = zip(expected, found, strict=True)
        return {"exact_match": np.array([is_exact(*pair) for pair in pairs])}

    def weighted(self, expected, found):
        f1 = self._f1(expected, found)
        return lambda weights: {"f1": weights @ f1 / weights.sum(axis=1)}

    def errors(self, expected, found):
        f1 = self._f1(expected, found)
        return [
            (
                row,
                {
                    "expected": list(own) if isinstance(own, tuple) else own,
                    "predicted": found[row],
                    "f1": rounded(f1[row]),
                },
            )
            for row in _worst(np.where(f1 < 1, -f1, -np.inf))
            for own in (expected[row],)
        ]

    def _f1(self, expected, found):
        pairs = zip(expected, found, strict=True)
        return np.array([character_f1(one, other) for one, other in pairs])


class ChoiceMeasure(Measure):
    """The number of a choice for each row.

    `expected` is int `(rows,)`; `found` likewise, or a list of the probabilities of the
    choices of each row.
    """

    def report(self, expected, found):
        return {
            "rows": len(expected),
            "accuracy": float(np.mean(self.rights(expected, found)["accuracy"])),
        }

    def rights(self, expected, found):
        return {"accuracy": np.asarray(expected) == _numbers(found)}

    def errors(self, expected, found):
        numbers = _numbers(found)
        sure = np.array([row.max() for row in found])
        is_right = numbers == np.asarray(expected)
        return [
            (
                row,
                {
                    "expected": int(expected[row]),
                    "predicted": int(numbers[row]),
                    "confidence": rounded(sure[row]),
                },
            )
            for row in _worst(np.where(is_right, -np.inf, sure))
        ]


class NeighbourMeasure(Measure):
    """The nearest other row of each row, as `nearest_rows` finds it."""

    def report(self, expected, found):
        return nearest_report(expected, found[0])[0]

    def rights(self, expected, found):
        return {"accuracy": nearest_report(expected, found[0])[1]}

    def errors(self, expected, found):
        nearest, cosines = found
        labels = np.asarray(expected)
        is_counted = np.isin(labels, _repeated(labels)) & (nearest >= 0)
        is_wrong = is_counted & (labels[nearest] != labels)
        return [
            (
                row,
                {
                    "expected": str(labels[row]),
                    "predicted": str(labels[nearest[row]]),
                    "nearest": int(nearest[row]),
                    "confidence": rounded(cosines[row]),
                },
            )
            for row in _worst(np.where(is_wrong, cosines, -np.inf))
        ]


def _classes(found):
    found = np.asarray(found)
    return found if found.ndim == 1 else found.argmax(axis=1)


def _numbers(found):
    return np.array([np.argmax(row) if np.ndim(row) else row for row in found])


def _counts(places, rows, count, row_count):
    """A sparse matrix `(count, rows)`, 1 at each place of each row."""
    sparse = import_extra("scipy.sparse", "a confidence interval")
    ones = np.ones(len(rows))
    return sparse.coo_array((ones, (places, rows)), shape=(count, row_count)).tocsr()


def _macro_f1(there, predicted):
    right = there.multiply(predicted).tocsr()

    def figures(weights):
        counts = (one @ weights.T for one in (right, predicted, there))
        return {"macro_f1": _f1(*counts).mean(axis=0)}

    return figures


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
    found = (weights * a * b).sum(axis=1) / np.sqrt(np.where(varies, squares, 1))
    return np.where(varies, found, np.nan)


def _sets(rows: Iterable) -> list[set]:
    return [{tuple(span) for span in row} for row in rows]


def _triples(spans):
    return [(span.start, span.end, span.label) for span in spans]


def _repeated(labels):
    names, counts = np.unique(labels, return_counts=True)
    return names[counts > 1]


def _worst(sizes):
    """Rows of the largest sizes above -inf, the largest first."""
    order = np.argsort(-np.asarray(sizes), kind="stable")[:MAX_ERRORS]
    return [int(row) for row in order if np.isfinite(sizes[row])]

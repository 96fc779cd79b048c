"""Figures of the answers of a task, as dicts of plain JSON types."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from roformer_keras.extras import import_extra
from roformer_keras.tasks.span_labels import Span

# Rows of the matrix of cosines that are computed at a time.
_ROWS_AT_A_TIME = 512
# Rows that were left out, of which a page shows so many.
_MAX_SKIPPED = 5
# Columns of a confusion matrix on a page, and confusions where there are more.
_MAX_COLUMNS, _MAX_CONFUSIONS = 8, 20
# Characters of a text on a page.
_MAX_TEXT = 40
_TEXTS = ("text", "first", "second", "third", "context", "question", "choices")
# What `class_figure` computes.
CLASS_FIGURES = ("matthews", "f1")


def classification_report(expected, found, names: Sequence[str]) -> dict:
    """Accuracy, and precision, recall and F1 of each class.

    Args:
        expected: int `(rows,)`, numbers of classes; or bool `(rows, classes)` where a
            row may be of several.
        found: likewise.
        names: of the classes.

    Returns:
        dict of `rows`, `accuracy` (of rows that are right altogether), `macro_f1`, and
        `classes`: dict of name to `precision`, `recall`, `f1`, `count`. With one class
        a row also `confusion`: how often a row of each class (outer list) was predicted
        to be of each (inner).
    """
    metrics = import_extra("sklearn.metrics", "a report of a classifier")
    expected, found = np.asarray(expected), np.asarray(found)
    numbers = list(range(len(names)))
    of_classes: tuple = (expected, found)
    if expected.ndim == 2:
        # scikit-learn takes one column for two classes, False and True.
        of_classes = tuple(np.pad(side, ((0, 0), (0, 1))) for side in of_classes)
    figures = metrics.precision_recall_fscore_support(
        *of_classes, labels=numbers, zero_division=0
    )
    is_right = expected == found
    report = {
        "rows": len(expected),
        "accuracy": float(np.mean(is_right if expected.ndim == 1 else is_right.all(1))),
        "macro_f1": float(np.mean(figures[2])),
        "classes": {
            str(name): {
                "precision": float(precision),
                "recall": float(recall),
                "f1": float(f1),
                "count": int(count),
            }
            for name, precision, recall, f1, count in zip(names, *figures, strict=True)
        },
    }
    if expected.ndim == 1:
        matrix = metrics.confusion_matrix(expected, found, labels=numbers)
        report["confusion"] = matrix.tolist()
    return report


def class_figure(report: Mapping, name: str) -> float:
    """A figure of classes that a report has no line for.

    Args:
        report: as `classification_report` returns it, of one class a row.
        name: of `CLASS_FIGURES`: `"matthews"`, Matthews's correlation, 0 if all rows of
            a side are of one class; `"f1"`, the F1 of the second of two classes.
    """
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


def correlation_report(expected, found) -> dict:
    """Correlations and error: `rows`, `spearman`, `pearson`, `mean_absolute_error`.

    A correlation is None if all numbers of a side are equal.
    """
    stats = import_extra("scipy.stats", "a correlation")
    rank, linear = stats.spearmanr, stats.pearsonr
    expected, found = (np.asarray(side, "float64") for side in (expected, found))
    varies = len(expected) > 1 and np.ptp(expected) > 0 and np.ptp(found) > 0
    return {
        "rows": len(expected),
        "spearman": float(rank(expected, found).statistic) if varies else None,
        "pearson": float(linear(expected, found).statistic) if varies else None,
        "mean_absolute_error": float(np.mean(np.abs(expected - found))),
    }


def span_report(
    expected: Sequence[Sequence[tuple]], found: Sequence[Sequence[Span]]
) -> dict:
    """Precision, recall and F1 of spans; a right one has both ends and the label.

    Spans that do not overlap have the figures that `seqeval` gives for their tags.

    Args:
        expected: (start, end, label) of each text.
        found: `Span`s of each text.

    Returns:
        dict of `rows`, `precision`, `recall`, `f1` over all spans, `macro_f1`, and
        `classes` as in `classification_report`.
    """
    right: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for spans, answered in zip(expected, found, strict=True):
        own = {tuple(span) for span in spans}
        answers = {(span.start, span.end, span.label) for span in answered}
        there.update(label for _, _, label in own)
        predicted.update(label for _, _, label in answers)
        right.update(label for _, _, label in own & answers)
    classes = {
        label: _figures(right[label], predicted[label], there[label])
        for label in sorted(there | predicted)
    }
    total = _figures(right.total(), predicted.total(), there.total())
    return {
        "rows": len(expected),
        "precision": total["precision"],
        "recall": total["recall"],
        "f1": total["f1"],
        "macro_f1": float(np.mean([own["f1"] for own in classes.values()] or [0.0])),
        "classes": classes,
    }


# The right answer to a question, or several; None if there is none.
Expected = str | tuple[str, ...] | None


def answer_report(expected: Sequence[Expected], found: Sequence[str | None]) -> dict:
    """Exact matches, and F1 as SQuAD counts it, but by character.

    Args:
        expected: the right answers; of several the one that was most nearly found
            counts.
        found: the answers, None if there is none.

    Returns:
        dict of `rows`, `exact_match`, and `f1`: the mean over rows of the F1 of the
        characters of both answers, 1 if both are None.
    """
    pairs = list(zip(expected, found, strict=True))
    return {
        "rows": len(pairs),
        "exact_match": float(np.mean([is_exact(one, other) for one, other in pairs])),
        "f1": float(np.mean([character_f1(one, other) for one, other in pairs])),
    }


def is_exact(expected: Expected, found: str | None) -> bool:
    """True if an answer is the right one, or one of several."""
    return found in expected if isinstance(expected, tuple) else found == expected


def character_f1(one: Expected, other: str | None) -> float:
    """The F1 of the characters of two answers, 1 if both are None."""
    if isinstance(one, tuple):
        return max(character_f1(each, other) for each in one)
    if one is None or other is None:
        return float(one is other)
    shared = (Counter(one) & Counter(other)).total()
    return 2 * shared / (len(one) + len(other))


def neighbour_report(labels: Sequence, vectors: np.ndarray) -> dict:
    """Share of rows whose nearest vector has the same class.

    Args:
        labels: of the rows.
        vectors: float32 `(rows, dim)`, of length 1.

    Returns:
        dict of `rows` and `accuracy`; of rows that are not alone in their class.
    """
    return nearest_report(labels, nearest_rows(vectors)[0])[0]


def nearest_rows(
    vectors, rows: Sequence[int] | np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The row whose vector is nearest to that of each row, other than itself.

    Args:
        vectors: float `(rows, dim)`, of length 1; an array, or a sparse one of SciPy.
        rows: whose nearest ones are searched; all if not given.

    Returns:
        int64 `(rows,)`, the nearest row, -1 where it was not searched; and float
        `(rows,)`, its cosine.
    """
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


def nearest_report(labels: Sequence, nearest: np.ndarray) -> tuple[dict, np.ndarray]:
    """Share of rows whose nearest row has the same class; see `nearest_rows`.

    Returns:
        dict as in `neighbour_report`; and bool `(counted rows,)`, which are right.
    """
    _, numbers, counts = np.unique(
        np.asarray(labels), return_inverse=True, return_counts=True
    )
    is_searched = nearest >= 0
    is_counted = is_searched & (counts[numbers] > 1)
    is_right = (numbers[nearest] == numbers)[is_counted]
    accuracy = float(is_right.mean()) if len(is_right) else 0.0
    return {"rows": int(is_searched.sum()), "accuracy": accuracy}, is_right


def _figures(right, predicted, there):
    precision, recall = right / max(predicted, 1), right / max(there, 1)
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * right / max(predicted + there, 1),
        "count": there,
    }


def format_report(report: dict) -> str:
    """The figures of a report, as a page."""
    lines = []
    for name, value in report.items():
        name = name.replace("_", " ")
        if isinstance(value, int):
            lines.append(f"{name:<22} {value:,}")
        elif isinstance(value, str):
            lines.append(f"{name:<22} {value}")
        elif not isinstance(value, dict | list):
            shown = (
                "undefined (all values are equal)" if value is None else f"{value:.4f}"
            )
            lines.append(f"{name:<22} {shown}")
    skipped = report.get("skipped", [])
    if skipped:
        lines.append(f"{'skipped':<22} {len(skipped):,}")
    lines += [
        f"  {_take_place(own)}: {own['reason']}"
        for own in map(dict, skipped[:_MAX_SKIPPED])
    ]
    if len(skipped) > _MAX_SKIPPED:
        lines.append(f"  and {len(skipped) - _MAX_SKIPPED} more, see report.json")
    for part in (
        _comparison(report),
        [f"! {remark}" for remark in report.get("remarks", [])],
        _class_table(report),
        _confusion(report),
        _worst_rows(report),
    ):
        lines += ["", *part] if part else []
    return "\n".join(lines) + "\n"


def _class_table(report):
    classes = report.get("classes")
    if not classes:
        return []
    width = max(5, *map(width_of, classes))
    lines = [_padded("class", width) + "  precision  recall      f1    count"]
    for name, own in classes.items():
        lines.append(
            f"{_padded(name, width)}  {own['precision']:>9.4f}  "
            f"{own['recall']:>6.4f}  {own['f1']:>6.4f}  {own['count']:>7,}"
        )
    return lines


def compared(report: Mapping) -> tuple[dict[str, Mapping], list[str]]:
    """The model and its baselines by name, and the figures that have intervals."""
    rows = {"model": report, **report.get("baselines", {})}
    names = (name for own in rows.values() for name in own.get("intervals", {}))
    return rows, list(dict.fromkeys(names))


def _comparison(report):
    """The figures of the model and its baselines side by side, with intervals."""
    if "baselines" not in report:
        return []
    rows, figures = compared(report)
    width = max(map(width_of, rows))
    lines = [
        _padded("with 95 % intervals", width)
        + "".join(f"  {name.replace('_', ' '):<22}" for name in figures)
    ]
    for name, own in rows.items():
        cells = [_cell(own.get(f), own.get("intervals", {}).get(f)) for f in figures]
        lines.append(_padded(name, width) + "".join(f"  {cell:<22}" for cell in cells))
    for name, own in report["baselines"].items():
        if "threshold" in own:
            lines.append(
                f"  {name}: {own['above']} from {own['threshold']:.4f}, "
                f"{own['below']} below"
            )
        if "rows" in own:
            lines.append(f"  {name}: of {own['rows']:,} rows")
    return [line.rstrip() for line in lines]


def _cell(value, ends):
    if value is None:
        return "-"
    shown = "" if ends is None else f"  {ends[0]:.4f}-{ends[1]:.4f}"
    return f"{value:.4f}{shown}"


def _confusion(report):
    """Counts, and which share of a true class they are."""
    counts = report.get("confusion")
    if not counts:
        return []
    names, totals = list(report["classes"]), [max(1, sum(row)) for row in counts]
    if len(names) > _MAX_COLUMNS:
        wrong = sorted(
            (-count, row, column)
            for row, own in enumerate(counts)
            for column, count in enumerate(own)
            if count and row != column
        )
        lines = ["most frequent confusions (true, predicted, count, share of the true)"]
        return lines + [
            f"  {names[row]} -> {names[column]}: {-count:,} "
            f"({-count / totals[row]:.1%})"
            for count, row, column in wrong[:_MAX_CONFUSIONS]
        ]
    cells = [
        [f"{count:,} ({count / total:.1%})" for count in row]
        for row, total in zip(counts, totals, strict=True)
    ]
    title = "true \\ predicted"
    first = max(map(width_of, (title, *names)))
    widths = [max(map(width_of, own)) for own in zip(names, *cells, strict=True)]
    lines = []
    for name, row in ((title, names), *zip(names, cells, strict=True)):
        padded = (
            " " * (width - width_of(cell)) + cell
            for cell, width in zip(row, widths, strict=True)
        )
        lines.append("  ".join([_padded(name, first), *padded]))
    return lines


def _worst_rows(report):
    errors = report.get("errors")
    if not errors:
        return []
    lines = [f"worst errors ({len(errors)}; report.json has the whole texts)"]
    for row in errors:
        rest = dict(row)
        texts = [rest.pop(name) for name in _TEXTS if name in rest]
        place = _take_place(rest)
        expected, predicted = map(rest.pop, ("expected", "predicted"))
        more = "".join(
            f", {name.replace('_', ' ')} {_cut(n)}" for name, n in rest.items()
        )
        shown = " | ".join(_cut(text) for text in texts)
        found = f"{_cut(expected)} -> {_cut(predicted)}"
        lines.append(f"  {place}: {found}{more}: {shown}")
    return lines


def _take_place(row):
    """Removes the line or the row of a file from what is said of it, and names it."""
    unit = "row" if "row" in row else "line"
    return f"{unit} {row.pop(unit)}"


def _cut(value):
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        # Names, or spans.
        parts = ["{2} {0}-{1}".format(*p) if isinstance(p, list) else p for p in value]
        value = ", ".join(parts) or "none"
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def width_of(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(2 if ord(character) > 0x2E7F else 1 for character in text)


def _padded(text, width):
    return text + " " * (width - width_of(text))

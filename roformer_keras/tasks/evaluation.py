"""Evaluation of a task, next to baselines without a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.files import row_names
from roformer_keras.tasks.baselines import Baseline
from roformer_keras.tasks.intervals import bootstrap_intervals, wilson_interval
from roformer_keras.tasks.measures import Measure
from roformer_keras.tasks.task import TextTask

# Figures that are better if they are lower.
LOWER_IS_BETTER = ("loss", "mean_absolute_error")


def fit_baselines(task: TextTask, texts: list, labels: list) -> dict[str, dict]:
    """State that a task's baselines learn of training data, in plain JSON types."""
    expected = task.files.expected_answers(texts, labels)
    return {one.name: one.fit(texts, expected) for one in _baselines(task, texts)}


def evaluate_task(
    task: TextTask,
    texts: list,
    labels: list,
    *,
    lines: Sequence[int],
    unit: str = "line",
    learned: Mapping[str, dict] | None = None,
    verbose: int = 0,
) -> dict:
    """The figures of a task, with intervals, baselines and the worst errors."""
    measure, expected = task.files.measure, task.files.expected_answers(texts, labels)
    figures = task.files.metric_names(task.preset_options())
    source = "the training data"
    own_baselines = _baselines(task, texts)
    # A task that was trained on texts may be measured on pairs.
    if learned is None or not {one.name for one in own_baselines} <= learned.keys():
        learned, source = fit_baselines(task, texts, labels), "this file"
    for one in own_baselines:
        if not one.is_valid(learned[one.name]):
            raise ConfigurationError(
                f"what the baseline {one.name!r} has learned must be as finetune wrote "
                f"it, got {str(learned[one.name])[:80]}"
            )
    baselines = [(one, learned[one.name]) for one in own_baselines]
    model = task.files.found_answers(texts, verbose)
    rows = [(model, figures)]
    for one, own in baselines:
        rows.append((one.answer(own, texts), one.figures or figures))
    measured, *others = _measure(measure, expected, rows)
    shown = {
        one.name: {**other, **one.describe(own)}
        for (one, own), other in zip(baselines, others, strict=True)
    }
    return {
        **measure.report(expected, model),
        "intervals": measured["intervals"],
        "baselines": shown,
        "baselines_from": source,
        "remarks": [
            remark
            for name, other in shown.items()
            if (remark := _remark(name, measured, other, figures))
        ],
        "errors": [
            {unit: lines[row], **_error(row, error, texts)}
            for row, error in measure.errors(expected, model)
        ],
    }


def _baselines(task: TextTask, texts: list) -> list[Baseline]:
    return task.files.baselines(len(texts[0]))


def _measure(
    measure: Measure, expected: Any, found: list[tuple[Any, tuple[str, ...]]]
) -> list[dict]:
    """Some figures of answers, and their intervals."""
    reports, weighted = [], []
    for answers, names in found:
        report = measure.report(expected, answers)
        # With classes that never come, or equal numbers, a figure may be undefined.
        figures = {name: report[name] for name in names if report[name] is not None}
        if report["rows"] != len(expected):
            figures = {"rows": report["rows"], **figures}
        intervals = {
            name: wilson_interval(is_right)
            for name, is_right in measure.rights(expected, answers).items()
        }
        reports.append({**figures, "intervals": intervals})
        weighted.append(measure.weighted(expected, answers))
    drawn = bootstrap_intervals(len(expected), weighted)
    for (_, names), report, figures in zip(found, reports, drawn, strict=True):
        figures = {**report["intervals"], **figures}
        report["intervals"] = {
            name: figures[name] for name in names if name in report and name in figures
        }
    return reports


def _remark(name, model, baseline, figures):
    """Sentence about a baseline that the model does not clearly beat, or None."""
    figure = next((shared for shared in figures if shared in baseline), None)
    if figure is None:
        return None
    value, shown = baseline[figure], figure.replace("_", " ")
    if model.get(figure) is None:
        return (
            f"the model is not better than {name!r}: its {shown} is undefined, that of "
            f"the baseline {value:.4f}"
        )
    sign = -1 if figure in LOWER_IS_BETTER else 1
    if sign * value >= sign * model[figure]:
        return (
            f"the model is not better than {name!r}: its {shown} is "
            f"{model[figure]:.4f}, that of the baseline {value:.4f}"
        )
    ends = model["intervals"].get(figure)
    if ends is None or ends[0] <= value <= ends[1]:
        within = "" if ends is None else f", {ends[0]:.4f} to {ends[1]:.4f}"
        return (
            f"the model is not clearly better than {name!r}: the {shown} of the "
            f"baseline, {value:.4f}, is within the 95 % interval of the model{within}"
        )
    return None


def _error(row, error, texts):
    parts = (part if isinstance(part, str) else list(part) for part in texts[row])
    shown = dict(zip(row_names(texts[row]), parts, strict=True))
    if "nearest" in error:
        # The other text, by which a row was taken for another class.
        (error["nearest"],) = texts[error["nearest"]]
    return {**shown, **error}

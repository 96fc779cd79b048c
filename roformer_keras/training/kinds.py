"""What the tasks of the command line are: labels of files in, figures and lines out.

A kind stands between a file and a `TextTask`: it turns a label as a file has it into
one that the task takes, tells from the labels how many classes there are, and says how
good answers are and how they are written.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from roformer_keras import tasks
from roformer_keras.errors import ConfigurationError
from roformer_keras.tasks.spans import as_spans
from roformer_keras.tasks.task import TextTask
from roformer_keras.training.report import (
    report_of_answers,
    report_of_classes,
    report_of_neighbours,
    report_of_numbers,
    report_of_spans,
)

__all__ = ["Kind", "kind_of", "kind_of_task"]


# Figures of how numbers go together.
_CORRELATIONS = ("spearman", "pearson")


class Kind:
    """One task with its options.

    Args:
        options: of the class of the task.
        labels: names that were found in the data trained on, if such are known.

    Attributes:
        task_class: subclass of `TextTask`.
        monitor: str. The figure of a report that says how good a model is.
        figures: names of all figures of a report.
        least_labels: int. How many names must be found.
    """

    task_class: type[TextTask]
    monitor = "accuracy"
    figures = ("accuracy", "macro_f1")
    least_labels = 2

    def __init__(self, options: Mapping, labels: Sequence[str] | None = None):
        self.options, self.labels = dict(options), labels

    def label(self, value, texts: tuple[str, ...]):
        """A label as a file has it, as the task takes it.

        Raises:
            ConfigurationError: it cannot be one.
        """
        return value

    def names(self, labels: list) -> list[str] | None:
        """Names that the labels of a file have, or None where labels are no names."""
        return None

    def task_options(self) -> dict:
        """Arguments of the class that follow from `labels`."""
        return {}

    def for_task(self, labels: list) -> list:
        """Labels as `fit` takes them, from those of `label`."""
        return labels

    def text_counts(self, task: TextTask) -> tuple[int, ...]:
        """How many texts a row may have to which there is an answer."""
        return task.text_counts

    def report(
        self, task: TextTask, texts: list, labels: list, verbose: int = 0
    ) -> dict:
        """How good the answers of a task are; with a progress bar unless 0."""
        raise NotImplementedError

    def lines(self, task: TextTask, texts: list) -> list[dict]:
        """The answers of a task, as plain JSON types."""
        raise NotImplementedError


class TextClassification(Kind):
    task_class = tasks.RoFormerTextClassifier

    def __init__(self, options, labels=None):
        super().__init__(options, labels)
        self.is_multi = bool(options.get("multi_label"))
        if self.is_multi:
            self.monitor = "macro_f1"

    def label(self, value, texts):
        if not self.is_multi:
            return _name(value)
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",") if name.strip()]
        if not isinstance(value, list):
            raise ConfigurationError(
                "a label of multi_label must be a list of classes, or these with "
                f"commas between, got {value!r}"
            )
        return [_name(name) for name in value]

    def names(self, labels):
        if self.is_multi:
            labels = [name for own in labels for name in own]
        return _sorted_names(labels)

    def task_options(self):
        return {"classes": self.labels}

    def for_task(self, labels):
        if self.labels is not None or self.options.get("classes") is not None:
            return labels
        # Of a task whose classes have no names.
        if self.is_multi:
            return [list(map(_class_number, own)) for own in labels]
        return list(map(_class_number, labels))

    def report(self, task, texts, labels, verbose=0):
        found = task.classify(texts, probabilities=True, verbose=verbose)
        names = _names_of(task)
        if not self.is_multi:
            expected = [names.index(label) for label in labels]
            return report_of_classes(expected, found.argmax(axis=1), names)
        expected = np.zeros((len(labels), len(names)), bool)
        for row, own in enumerate(labels):
            expected[row, [names.index(label) for label in own]] = True
        return report_of_classes(expected, found >= 0.5, names)

    def lines(self, task, texts):
        names = _names_of(task)
        found = task.classify(texts, probabilities=True, verbose=0)
        lines = []
        for row in found:
            if self.is_multi:
                line = {"labels": [names[n] for n in np.flatnonzero(row >= 0.5)]}
            else:
                line = {"label": names[row.argmax()]}
            numbers = map(_rounded, row)
            line["probabilities"] = dict(zip(names, numbers, strict=True))
            lines.append(line)
        return lines


class TextRegression(Kind):
    task_class = tasks.RoFormerTextRegressor
    monitor = "spearman"
    figures = (*_CORRELATIONS, "mean_absolute_error")

    def label(self, value, texts):
        return _number(value)

    def report(self, task, texts, labels, verbose=0):
        return report_of_numbers(labels, task.regress(texts, verbose=verbose))

    def lines(self, task, texts):
        return [{"score": _rounded(n)} for n in task.regress(texts, verbose=0)]


class SentenceEmbedding(Kind):
    task_class = tasks.RoFormerSentenceEncoder

    def __init__(self, options, labels=None):
        if labels is None:
            labels = options.get("classes")
        if labels is None and options.get("num_classes"):
            labels = list(map(str, range(options["num_classes"])))
        super().__init__(options, labels)
        self.objective = options.get("objective", "cosent")
        if self.objective == "cosent":
            self.monitor, self.figures = "spearman", _CORRELATIONS
        elif self.objective == "contrastive":
            self.figures = ("accuracy",)

    def label(self, value, texts):
        return _number(value) if self.objective == "cosent" else _name(value)

    def names(self, labels):
        return None if self.objective == "cosent" else _sorted_names(labels)

    def text_counts(self, task):
        return (1, 2)

    def task_options(self):
        is_classified = self.objective == "classification"
        return {"classes": self.labels} if is_classified else {}

    def for_task(self, labels):
        if self.objective == "cosent":
            return labels
        numbers = {name: number for number, name in enumerate(self.labels or ())}
        # A class that was not trained on is one of its own for the contrast.
        if self.objective == "contrastive":
            for label in labels:
                numbers.setdefault(label, len(numbers))
            return [numbers[label] for label in labels]
        for row, label in enumerate(labels):
            if label not in numbers:
                raise ConfigurationError(
                    f"a label must be one of {self.labels}, got {label!r}", row=row
                )
        return [numbers[label] for label in labels]

    def report(self, task, texts, labels, verbose=0):
        if self.objective == "cosent":
            cosines = task.similarity(*zip(*texts, strict=True), verbose=verbose)
            report = report_of_numbers(labels, cosines)
            # Degrees of any range are no cosines.
            del report["mean_absolute_error"]
            return report
        if self.objective == "contrastive":
            vectors = task.encode([text for (text,) in texts], verbose=verbose)
            return report_of_neighbours(labels, vectors)
        found = task.predict(texts, verbose=verbose).argmax(axis=1)
        return report_of_classes(self.for_task(labels), found, self.labels)

    def lines(self, task, texts):
        if len(texts[0]) == 1:
            vectors = task.encode([text for (text,) in texts], verbose=0)
            return [{"vector": list(map(_rounded, vector))} for vector in vectors]
        cosines = task.similarity(*zip(*texts, strict=True), verbose=0)
        return [{"similarity": _rounded(cosine)} for cosine in cosines]


class TripletRanking(Kind):
    task_class = tasks.RoFormerTripletRanker

    def label(self, value, texts):
        letters = {"0": "B", "1": "C", "B": "B", "C": "C"}
        if isinstance(value, bool) or str(value) not in letters:
            raise ConfigurationError(
                "a label must be 0 or B if the first text is nearer to the second, 1 "
                f"or C if to the third, got {value!r}"
            )
        return letters[str(value)]

    def report(self, task, texts, labels, verbose=0):
        found = ["BC".index(letter) for letter in task.rank(texts, verbose=verbose)]
        return report_of_classes(["BC".index(label) for label in labels], found, "BC")

    def lines(self, task, texts):
        return [
            {
                "label": "BC"[row.argmax()],
                "probabilities": {"B": _rounded(row[0]), "C": _rounded(row[1])},
            }
            for row in task.rank(texts, probabilities=True, verbose=0)
        ]


class _Spans(Kind):
    monitor = "f1"
    figures = ("precision", "recall", "f1", "macro_f1")
    least_labels = 1

    def label(self, value, texts):
        if isinstance(value, str):
            value = _spans_of_cell(value)
        if not isinstance(value, list):
            raise ConfigurationError(f"a label must be a list of spans, got {value!r}")
        return as_spans(value, texts[0], 0)

    def names(self, labels):
        return _sorted_names([name for own in labels for _, _, name in own])

    def task_options(self):
        return {"labels": self.labels}

    def report(self, task, texts, labels, verbose=0):
        return report_of_spans(labels, task.extract(texts, verbose=verbose))

    def lines(self, task, texts):
        return [
            {"spans": [_span(span) for span in spans]}
            for spans in task.extract(texts, verbose=0)
        ]


class TokenClassification(_Spans):
    task_class = tasks.RoFormerTokenClassifier


class SpanExtraction(_Spans):
    task_class = tasks.RoFormerSpanExtractor


class QuestionAnswering(Kind):
    task_class = tasks.RoFormerQuestionAnswerer
    monitor = "f1"
    figures = ("exact_match", "f1")

    def label(self, value, texts):
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if isinstance(value, str):
            start = texts[1].find(value)
            if start < 0:
                raise ConfigurationError(
                    f"an answer must stand in its text, got {value!r}: an empty one "
                    "says that there is none"
                )
            value = [start, start + len(value)]
        if not isinstance(value, list) or len(value) != 2:
            raise ConfigurationError(
                f"an answer must be [start, end], a str or null, got {value!r}"
            )
        ((start, end, _),) = as_spans([(*value, "answer")], texts[1], 0)
        return start, end

    def report(self, task, texts, labels, verbose=0):
        expected = [
            None if label is None else text[slice(*label)]
            for (_, text), label in zip(texts, labels, strict=True)
        ]
        found = task.answer(texts, verbose=verbose)
        return report_of_answers(expected, [span and span.text for span in found])

    def lines(self, task, texts):
        lines = []
        for span in task.answer(texts, verbose=0):
            answer = span and _span(span)
            if answer:
                del answer["label"]
            lines.append({"answer": answer})
        return lines


_KINDS = {
    "text-classification": TextClassification,
    "text-regression": TextRegression,
    "sentence-embedding": SentenceEmbedding,
    "triplet-ranking": TripletRanking,
    "token-classification": TokenClassification,
    "span-extraction": SpanExtraction,
    "question-answering": QuestionAnswering,
}


def kind_of(task: str, options: Mapping) -> Kind:
    """The kind of a name of the command line."""
    return _KINDS[task](options)


def kind_of_task(task: TextTask, labels: Sequence[str] | None = None) -> Kind:
    """The kind of a model.

    Args:
        task: the model.
        labels: names of the classes that it was trained on, if it does not know them.
    """
    (kind,) = (kind for kind in _KINDS.values() if kind.task_class is type(task))
    return kind(task.preset_options(), labels)


# === Labels and answers ===


def _name(value):
    """Classes are names; a JSON file may have numbers."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ConfigurationError(f"a label must be a name, or an integer, got {value!r}")


def _names_of(task):
    """Names of the classes of a classifier, which are their numbers if it has none."""
    return task.classes or list(map(str, range(task.num_classes)))


def _class_number(name):
    return int(name) if name.isdecimal() else name


def _sorted_names(labels):
    """Each name once; numbers in their order."""
    names = set(labels)
    if all(name.isdecimal() for name in names):
        return sorted(names, key=int)
    return sorted(names)


def _number(value):
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number) or isinstance(value, bool):
        raise ConfigurationError(f"a label must be a finite number, got {value!r}")
    return number


def _spans_of_cell(text):
    """Of a cell of a table: a JSON list of spans, or tags with spaces between."""
    if not text.lstrip().startswith("["):
        return text.split()
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"spans in a cell must be a JSON list: {error}"
        ) from error


def _span(span):
    return {
        "start": span.start,
        "end": span.end,
        "label": span.label,
        "text": span.text,
        "score": _rounded(span.score),
    }


def _rounded(number):
    """As many digits as float32 is good for."""
    return round(float(number), 6)

"""Classes of texts, and of pairs of texts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_flag, check_number
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import TensorLike, Texts
from roformer_keras.models import RoFormerBackbone
from roformer_keras.search.rerank import rerank
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import (
    SIMILARITIES,
    Baseline,
    MostFrequent,
    PairThreshold,
)
from roformer_keras.tasks.labels import (
    as_name,
    class_names,
    class_number,
    parse_name,
    rounded,
    single_labels,
    sorted_names,
    weights_by_number,
)
from roformer_keras.tasks.measures import ClassMeasure, LabelSetMeasure, Measure
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.tasks.vector import VectorTask
from roformer_keras.text.rows import Rows
from roformer_keras.text.tokenizer import RoFormerTokenizer


class TextClassifierFiles(TaskFiles):
    """Classes in files, and the figures of classes."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        if not options.get("multi_label"):
            return parse_name(value)
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",") if name.strip()]
        if not isinstance(value, list):
            raise ConfigurationError(
                "a label of multi_label must be a list of classes, or these with "
                f"commas between, got {value!r}"
            )
        return [parse_name(name) for name in value]

    @classmethod
    def find_names(cls, labels: list, options: Mapping) -> list[str]:
        if not options.get("multi_label"):
            return sorted_names(labels)
        refuse(
            {tuple(row) for row in labels} == {("0", "1"), ("1", "0")},
            "each label is 0,1 or 1,0: the names of two classes, which every text "
            "then has, or 0 and 1 for each class; write the names of its classes "
            "in each row",
        )
        return sorted_names(name for row in labels for name in row)

    @classmethod
    def name_options(cls, names: Sequence[str], options: Mapping) -> dict[str, Any]:
        return {"classes": names}

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        names = ("accuracy", "macro_f1")
        return names[::-1] if options.get("multi_label") else names

    @property
    def measure(self) -> Measure:
        return (LabelSetMeasure if self.model.multi_label else ClassMeasure)(
            self.model._names
        )

    def expected_answers(self, texts: list[tuple[str, ...]], labels: list) -> Any:
        return self.model.make_targets(labels)

    def answers(self, texts: list[tuple[str, ...]], **options: Any) -> Any:
        return self.model.classify(texts, probabilities=True, **options)

    def baselines(self, text_count: int) -> list[Baseline]:
        count = len(self.model._names)
        if self.model.multi_label:
            return [MostFrequent("most frequent set of classes", count, True)]
        found: list[Baseline] = [MostFrequent("most frequent class", count)]
        if text_count == 2:
            found += [PairThreshold(one, self.model._names) for one in SIMILARITIES]
        return found

    def answer_kinds(self, count: int) -> dict:
        probabilities = dict.fromkeys(map(str, self.model._names), float)
        if self.model.multi_label:
            return {"labels": [str], "probabilities": probabilities}
        return {"label": str, "probabilities": probabilities}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        names = self.model._names
        probabilities = dict(zip(names, map(rounded, answer), strict=True))
        classes = self.model.classes or names
        if self.model.multi_label:
            labels = [classes[number] for number in np.flatnonzero(answer >= 0.5)]
            return {"labels": labels, "probabilities": probabilities}
        return {"label": classes[answer.argmax()], "probabilities": probabilities}


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerTextClassifier(VectorTask):
    """Classifies a text, or a pair of texts.

    Args:
        backbone, tokenizer, pooling, head_dropout, max_length, head_activation: as in
            `VectorTask`.
        num_classes: int, at least 1 with `multi_label`, else at least 2. If not given,
            that of `classes`.
        classes: their names, by which labels may be given: sequence of str, or of
            integers or truth values, of which `classify` then answers.
        multi_label: bool. Whether a text may be of several classes, or of none; a label
            is then a list of classes, or an array with 0 or 1 for each class.
        kwargs: as in `keras.Model`, such as `name`.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, num_classes)`: logits. `classify` gives classes and
        probabilities.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerTextClassifier.from_preset(
        ...     "roformer-char", classes=["差", "好"]
        ... )
        >>> history = model.fit(["好极了", "太差了"], ["好", "差"], verbose=0)
        >>> model.classify(["不错"], probabilities=True).shape
        (1, 2)

    Source: Devlin et al. 2019, arXiv:1810.04805, section 4.1.
    """

    files_class = TextClassifierFiles
    rerank = rerank

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        num_classes: int | None = None,
        classes: Sequence[str] | None = None,
        multi_label: bool = False,
        pooling: str = "first",
        head_dropout: float = 0.0,
        max_length: int = 512,
        head_activation: str | None = None,
        **kwargs: Any,
    ):
        check_flag("multi_label", multi_label)
        num_classes, classes = class_names(
            num_classes, classes, minimum=1 if multi_label else 2
        )
        super().__init__(
            backbone,
            tokenizer,
            num_classes,
            "classes",
            pooling,
            head_dropout,
            max_length,
            head_activation,
            **kwargs,
        )
        self.num_classes, self.classes = num_classes, classes
        self.multi_label = multi_label

    @property
    def probabilities(self) -> Callable:
        return ops.sigmoid if self.multi_label else ops.softmax

    # === Training ===

    def default_loss(self) -> keras.losses.Loss:
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return super().default_loss()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        if self.multi_label:
            return [keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")]
        return super().default_metrics()

    def divergence(self, first: TensorLike, second: TensorLike) -> TensorLike:
        if self.multi_label:
            probabilities = [ops.sigmoid(one) for one in (first, second)]
            return ops.sum(
                (probabilities[0] - probabilities[1]) * (first - second), axis=-1
            )
        logs = [ops.log_softmax(one) for one in (first, second)]
        return ops.sum(
            (ops.exp(logs[0]) - ops.exp(logs[1])) * (logs[0] - logs[1]), axis=-1
        )

    def make_targets(self, y: Texts, rows: Rows | None = None) -> Any:
        if not self.multi_label:
            y = single_labels(y, self.num_classes)
            return np.array([self._class(label, row) for row, label in enumerate(y)])
        if hasattr(y, "to_numpy"):
            y = y.to_numpy()
        targets = np.zeros((len(y), self.num_classes), "float32")
        # Lists of classes in a column of pandas are arrays too.
        are_flags = all(map(self._may_be_flags, y))
        for row, labels in enumerate(y):
            if are_flags:
                if not np.isin(labels, (0, 1)).all():
                    raise ConfigurationError(
                        "an array of as many numbers as there are classes must be of 0 "
                        f"and 1, got {labels!r}",
                        row=row,
                        hint="give classes as a list",
                    )
                targets[row] = labels
                continue
            if not isinstance(labels, list | tuple | set | frozenset | np.ndarray):
                raise ConfigurationError(
                    f"a label of multi_label must be a list of classes, got {labels!r}",
                    row=row,
                )
            numbers = [self._class(label, row) for label in labels]
            if len(set(numbers)) != len(numbers):
                raise ConfigurationError(
                    f"a list of classes must name each once, got {labels!r}",
                    row=row,
                    hint="give 0 and 1 for each class as an array",
                )
            if not any(isinstance(label, str) for label in labels) and (
                self.num_classes <= 2 and len(numbers) == self.num_classes
            ):
                names = [self._names[number] for number in numbers]
                raise ConfigurationError(
                    f"{list(labels)} for {self.num_classes} classes may be their "
                    "numbers, or 0 and 1 for each class",
                    row=row,
                    hint=f"write np.array({list(labels)}) for 0 and 1, in each row, or "
                    f"{names} for the classes",
                )
            targets[row, numbers] = 1
        return targets

    def _may_be_flags(self, labels):
        """True for an array of numbers, one for each class."""
        return (
            isinstance(labels, np.ndarray)
            and labels.shape == (self.num_classes,)
            and not any(isinstance(name, str) for name in labels)
        )

    def class_weights(self, class_weight: Mapping) -> np.ndarray:
        if self.multi_label:
            return super().class_weights(class_weight)
        return weights_by_number(class_weight, self.num_classes, self.classes)

    def _class(self, label, row=None, what="a label"):
        return class_number(label, self.num_classes, self.classes, row, what)

    @property
    def _names(self):
        """Names of the classes, which are their numbers if they have none."""
        return list(map(as_name, self.classes or range(self.num_classes)))

    # === Answering ===

    @Answers[Any, list[Any], np.ndarray]
    def classify(
        self,
        x: Texts,
        *,
        threshold: float = 0.5,
        probabilities: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The classes of texts, by name, or by number if they have no names.

        Args:
            x, kwargs: as in `predict`.
            threshold: float. With `multi_label`, a text has the classes of at least
                this probability.
            probabilities: bool. Whether to return the probabilities of all classes.

        Returns:
            A class for each text; with `multi_label` a list of classes. Or the
            probabilities: float32 `(texts, num_classes)`.
        """
        names: list[Any] = self.classes or list(range(self.num_classes))

        def label(row):
            if self.multi_label:
                return [n for n, p in zip(names, row, strict=True) if p >= threshold]
            return names[row.argmax()]

        check_number("threshold", threshold)
        return self._labels(x, self.probabilities, label, probabilities, **kwargs)

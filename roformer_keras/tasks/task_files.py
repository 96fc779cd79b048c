"""Files and reports of a task: labels in, figures and JSON out."""

from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.base.types import Verbose
from roformer_keras.tasks.baselines import Baseline
from roformer_keras.tasks.measures import Measure


class TaskFiles:
    """Labels, answers and figures of a task, for `finetune`, `evaluate` and `predict`.

    Methods of the class read labels before there is a model; the others need `model`.
    Each task has its own subclass, as `files_class`, and `task.files` is one of it.
    """

    # How many names labels must have.
    min_names = 2

    def __init__(self, model: Any):
        self.model = model

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        """A label of a file, as `fit` takes it.

        Args:
            value: as the file has it: str, or any JSON type.
            texts: of its row.
            options: arguments of the class.

        Raises:
            ConfigurationError: it is no label.
        """
        return value

    @classmethod
    def find_names(cls, labels: list, options: Mapping) -> list[str] | None:
        """The names in parsed labels; None if labels are no names."""
        return None

    @classmethod
    def name_options(cls, names: Sequence[str], options: Mapping) -> dict:
        """Arguments of the class for the names that were found."""
        return {}

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        """Names of the metrics of `report`, the one to monitor first."""
        raise NotImplementedError

    @property
    def answer_counts(self) -> tuple[int, ...]:
        """Numbers of texts that a row to answer may have."""
        return self.model.text_counts

    @property
    def measure(self) -> Measure:
        """Measure that compares answers with labels."""
        raise NotImplementedError

    def expected_answers(self, texts: list, labels: list) -> Any:
        """Parsed labels, as the measure of the task takes them."""
        return labels

    def answers(self, texts: list, **options: Any) -> Any:
        """The answers of the model to texts; options as in `predict`."""
        raise NotImplementedError

    def found_answers(self, texts: list, verbose: Verbose = 0) -> Any:
        """The answers to texts, as the measure of the task takes them."""
        return self.answers(texts, verbose=verbose)

    def baselines(self, text_count: int) -> list[Baseline]:
        """Answers without a model to rows of so many texts."""
        raise NotImplementedError

    def report(self, texts: list, labels: list, verbose: Verbose = 0) -> dict:
        """Figures of the answers to texts, compared with parsed labels."""
        expected = self.expected_answers(texts, labels)
        return self.measure.report(expected, self.found_answers(texts, verbose))

    def answer_kinds(self, count: int) -> dict:
        """Names and types of what `answer_to_json` gives for rows of `count` texts."""
        raise NotImplementedError

    def answer_to_json(self, answer: Any, texts: tuple) -> dict:
        """One of the answers as plain JSON types."""
        raise NotImplementedError

    def to_json(self, texts: list, **options: Any) -> list[dict]:
        """The answers to texts, as plain JSON types; options as in `predict`."""
        answers = self.answers(texts, verbose=0, **options)
        return list(map(self.answer_to_json, answers, texts))

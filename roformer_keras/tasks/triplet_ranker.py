"""Ranking: which of two texts is nearer to a third."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Texts
from roformer_keras.models import RoFormerBackbone
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import (
    SIMILARITIES,
    Baseline,
    MostFrequent,
    NearerText,
)
from roformer_keras.tasks.labels import rounded
from roformer_keras.tasks.measures import ClassMeasure, Measure
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.tasks.vector import VectorTask
from roformer_keras.text.rows import GroupRows, Rows
from roformer_keras.text.tokenizer import RoFormerTokenizer


class TripletRankerFiles(TaskFiles):
    """Letters of the nearer text in files, and their figures."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        return "BC"[_number(value)]

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        return ("accuracy", "macro_f1")

    @property
    def measure(self) -> Measure:
        return ClassMeasure("BC")

    def expected_answers(self, texts: list[tuple[str, ...]], labels: list) -> Any:
        return self.model.make_targets(labels)

    def answers(self, texts: list[tuple[str, ...]], **options: Any) -> Any:
        return self.model.rank(texts, probabilities=True, **options)

    def baselines(self, text_count: int) -> list[Baseline]:
        similar = [NearerText(one) for one in SIMILARITIES]
        return [MostFrequent("most frequent letter", 2), *similar]

    def answer_kinds(self, count: int) -> dict:
        return {"label": str, "probabilities": {"B": float, "C": float}}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        probabilities = dict(zip("BC", map(rounded, answer), strict=True))
        return {"label": "BC"[answer.argmax()], "probabilities": probabilities}


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerTripletRanker(VectorTask):
    """Predicts for texts (A, B, C) whether A is nearer to B or to C.

    The pairs (A, B) and (A, C) are two rows, which get a score each.

    Args:
        backbone, tokenizer, pooling, head_dropout, max_length: as in `VectorTask`.
        kwargs: as in `keras.Model`, such as `name`.

    A label is 0, or `"B"`, if A is nearer to B, and 1, or `"C"`, if to C.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them: rows of (A, B) and (A, C) in turn.

    Returns:
        float32 `(triplets, 2)`: logits. `rank` gives letters and probabilities.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerTripletRanker.from_preset("roformer-char")
        >>> cases = [("甲向乙借款", "丙向丁借款", "甲诉乙离婚")]
        >>> history = model.fit(cases, ["B"], verbose=0)
        >>> model.rank(cases, probabilities=True).shape
        (1, 2)

    Source: Su et al. 2021, arXiv:2104.09864, section 4.5 (CAIL2019-SCM).
    """

    files_class = TripletRankerFiles

    text_counts = (3,)

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        pooling: str = "first",
        head_dropout: float = 0.0,
        max_length: int = 1024,
        **kwargs: Any,
    ):
        super().__init__(
            backbone,
            tokenizer,
            1,
            "score",
            pooling,
            head_dropout,
            max_length,
            combine=PairsOfScores(dtype="float32", name="scores"),
            **kwargs,
        )

    @property
    def probabilities(self) -> Callable:
        return ops.softmax

    def make_rows(self, texts: list[tuple[str, ...]]) -> GroupRows:
        groups = [[(a, b), (a, c)] for a, b, c in texts]
        return GroupRows(self.text_tokenizer(), groups, self.max_length)

    def make_targets(self, y: Texts, rows: Rows | None = None) -> Any:
        return np.array([_number(label, row) for row, label in enumerate(y)], "int32")

    @Answers[Any, list[str], np.ndarray]
    def rank(self, x: Texts, *, probabilities: bool = False, **kwargs: Any) -> Any:
        """`"B"` or `"C"` for each triplet, whichever A is nearer to.

        Args:
            x, kwargs: as in `predict`.
            probabilities: bool. Whether to return the probabilities of B and C.

        Returns:
            A letter for each triplet, or float32 `(triplets, 2)`.
        """

        def letter(row):
            return "BC"[row.argmax()]

        return self._labels(x, ops.softmax, letter, probabilities, **kwargs)


@keras.saving.register_keras_serializable("roformer_keras")
class PairsOfScores(keras.layers.Layer):
    """The scores of each two neighbouring rows, side by side.

    Call arguments:
        scores: float `(2 * pairs, 1)`.
    """

    def call(self, scores):
        return ops.reshape(scores, (-1, 2))

    def write_network(self, writer, scores):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        return writer.graph.reshaped(scores, -1, 2)

    def compute_output_shape(self, scores_shape):
        return (None, 2)


def _number(label, row=None):
    """0 for `"B"`, 1 for `"C"`."""
    number = {"B": 0, "C": 1, "0": 0, "1": 1}.get(str(label))
    refuse(
        number is None,
        "a label must be 0 or B if the first text is nearer to the second, 1 or C "
        f"if to the third, got {label!r}",
        row=row,
    )
    return number

"""A number for a text, or for a pair of texts, such as how much alike they are."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.types import TensorLike, Texts
from roformer_keras.models import RoFormerBackbone
from roformer_keras.search.rerank import rerank
from roformer_keras.tables.texts import as_numbers
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import SIMILARITIES, Baseline, Mean
from roformer_keras.tasks.labels import parse_number, rounded
from roformer_keras.tasks.measures import Measure, NumberMeasure
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.tasks.vector import VectorTask
from roformer_keras.text.rows import Rows
from roformer_keras.text.tokenizer import RoFormerTokenizer


class TextRegressorFiles(TaskFiles):
    """Numbers in files, and their figures."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        return parse_number(value)

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        return ("spearman", "pearson", "mean_absolute_error")

    @property
    def measure(self) -> Measure:
        return NumberMeasure()

    def answers(self, texts: list[tuple[str, ...]], **options: Any) -> Any:
        return self.model.regress(texts, **options)

    def baselines(self, text_count: int) -> list[Baseline]:
        found: list[Baseline] = [Mean()]
        if text_count == 2:
            found += SIMILARITIES
        return found

    def answer_kinds(self, count: int) -> dict:
        return {"score": float}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        return {"score": rounded(answer)}


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerTextRegressor(VectorTask):
    """A number for a text, or for a pair of texts.

    Args:
        backbone, tokenizer, pooling, head_dropout, max_length, head_activation: as in
            `VectorTask`.
        kwargs: as in `keras.Model`, such as `name`.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, 1)`. `regress` gives `(texts,)`.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerTextRegressor.from_preset("roformer-char")
        >>> pairs = [("今天天气不错", "天气真好"), ("你好", "再见")]
        >>> history = model.fit(pairs, [4.5, 1.0], verbose=0)
        >>> model.regress([("他来了", "他到了")]).shape
        (1,)

    Source: Devlin et al. 2019, arXiv:1810.04805, section 4.1 (STS-B in GLUE).
    """

    files_class = TextRegressorFiles
    rerank = rerank

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        pooling: str = "first",
        head_dropout: float = 0.0,
        max_length: int = 512,
        head_activation: str | None = None,
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
            head_activation,
            **kwargs,
        )

    def default_loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="error")]

    def divergence(self, first: TensorLike, second: TensorLike) -> TensorLike:
        return ops.sum(ops.square(first - second), axis=-1)

    def make_targets(self, y: Texts, rows: Rows) -> Any:
        return as_numbers(y)[:, None]

    @Answers[np.floating, np.ndarray, np.ndarray]
    def regress(self, x: Texts, **kwargs: Any) -> Any:
        """A number for each text: float32 `(texts,)`.

        Args:
            x, kwargs: as in `predict`.

        Returns:
            float32 `(texts,)`; for an iterator an iterator of floats.
        """
        return self._convert(lambda scores: scores[:, 0], self.predict(x, **kwargs))

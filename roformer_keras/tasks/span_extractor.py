"""Spans that may nest and overlap, by a score for each start and end."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_flag, check_number
from roformer_keras.base.types import Texts
from roformer_keras.layers import EfficientGlobalPointer, GlobalPointer
from roformer_keras.layers.pointer import SpanCrossentropy, SpanF1, find_spans
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.initializers import initializer
from roformer_keras.tasks.head_parts import sequence_of
from roformer_keras.tasks.span_tasks import SpanTask, checked_labels, text_tokens
from roformer_keras.tasks.spans import SpanRows, padded_spans
from roformer_keras.text.tokenizer import RoFormerTokenizer


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerSpanExtractor(SpanTask):
    """Finds spans, nested and overlapping ones too, by a score for each start and end.

    Args:
        backbone, tokenizer, max_length: as in `TextTask`.
        labels: sequence of str. Names of spans, as `["LOC", "PER"]`.
        head_dim: int, even. Features of a start, and of an end.
        efficient: bool. Whether all labels share one product (EfficientGlobalPointer)
            or have their own (GlobalPointer).
        threshold: float. What the score of a span must exceed; 0 is trained for.
        kwargs: as in `keras.Model`, such as `name`.

    Labels of a text are spans `(start, end, label)` in characters, dicts of these, or a
    BIO tag for each of its characters. Blanks at the edges of a span are ignored, and a
    span that was cut off is left out.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, labels, length, length)`: a score for each start and end.
        `extract` gives a list of `Span` a text, by start.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerSpanExtractor.from_preset(
        ...     "roformer-char", labels=["LOC", "ORG"]
        ... )
        >>> labels = [[(2, 4, "LOC"), (2, 6, "ORG")]]
        >>> history = model.fit(["她在北京大学"], labels, verbose=0)
        >>> [spans] = model.extract(["我在上海工作"])  # a list of Span

    Source: Su et al. 2022, arXiv:2208.03054.
    """

    may_nest = True

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        labels: Sequence[str] | None = None,
        head_dim: int = 64,
        efficient: bool = True,
        threshold: float = 0.0,
        max_length: int = 512,
        **kwargs: Any,
    ):
        labels = checked_labels(labels)
        check_flag("efficient", efficient)
        check_number("threshold", threshold)
        pointer = EfficientGlobalPointer if efficient else GlobalPointer
        scores = pointer(
            len(labels),
            head_dim,
            kernel_initializer=initializer(backbone.config),
            dtype=keras.DTypePolicy("float32"),
            name="pointer",
        )(sequence_of(backbone), mask=text_tokens(backbone, tokenizer))
        super().__init__(backbone, tokenizer, labels, scores, max_length, **kwargs)
        self.head_dim, self.efficient = head_dim, efficient
        self.threshold = threshold

    def default_loss(self) -> keras.losses.Loss:
        return SpanCrossentropy()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        return [SpanF1(self.threshold, name="f1")]

    def make_targets(self, y: Texts, rows: SpanRows) -> Any:
        targets = []
        for row, spans in enumerate(self.spans_of(y, rows)):
            spans_found = set()
            for start, end, label in spans:
                tokens = rows.tokens_of(row, start, end)
                if tokens is not None:
                    spans_found.add((self.labels.index(label), *tokens))
            targets.append(np.array(sorted(spans_found), "int32").reshape(-1, 3))
        return targets

    def batch_targets(
        self, targets: Any, numbers: Sequence[int] | np.ndarray, inputs: dict[str, Any]
    ) -> np.ndarray:
        return padded_spans(targets, numbers)

    def _find_spans(self, outputs, rows, numbers):
        outputs = ops.convert_to_numpy(outputs)
        for place, number, found in zip(
            range(len(numbers)),
            numbers,
            find_spans(outputs, self.threshold),
            strict=True,
        ):
            yield sorted(
                (
                    rows.span(
                        number,
                        first,
                        last,
                        self.labels[label],
                        outputs[place, label, first, last],
                    )
                    for label, first, last in found
                ),
                key=lambda span: (span.start, -span.end, span.label),
            )

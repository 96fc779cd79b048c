"""Spans that do not overlap, by a tag for each token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.checks import check_flag, check_number
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.types import TensorLike, Texts
from roformer_keras.layers import ConditionalRandomField, TagAccuracy
from roformer_keras.models import RoFormerBackbone
from roformer_keras.tasks.head_parts import dense_head, sequence_of
from roformer_keras.tasks.labels import plain_names
from roformer_keras.tasks.span_labels import spans_of_tags
from roformer_keras.tasks.span_tasks import (
    SpanTask,
    checked_labels,
    labels_of,
    tags_of,
    text_tokens,
)
from roformer_keras.tasks.spans import SpanRows, tags_of_spans
from roformer_keras.text.tokenizer import RoFormerTokenizer


class TokenMean(keras.metrics.Mean):
    """The mean of losses of batches, weighted by `tokens`, how many a batch has."""

    tokens: Any = None

    def update_state(self, values: TensorLike, sample_weight: TensorLike = None) -> Any:
        tokens, self.tokens = self.tokens, None
        weight = sample_weight if tokens is None else tokens
        return super().update_state(values, weight)


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerTokenClassifier(SpanTask):
    """Finds spans that do not overlap, by a tag for each token.

    Args:
        backbone, tokenizer, max_length: as in `TextTask`.
        labels: sequence of str. Names of spans, as `["LOC", "PER"]`, each with two
            tags of BIO. Not needed with `tags`.
        crf: bool. Whether tags are predicted together, by a conditional random field.
        crf_rate: float above 0. Learning rate of the field's transitions, relative to
            other weights; see `ConditionalRandomField`.
        tags: sequence of str. All tags by number, where they are not those of BIO in
            the order of `labels`: `O` and a letter with a label, as in BIOES, BMES and
            BILOU; or plain labels, such as parts of speech, where neighbouring tokens
            with one tag are one span.
        kwargs: as in `keras.Model`, such as `name`.

    Labels of a text are spans `(start, end, label)` in characters, dicts of these, or a
    tag for each of its characters. Blanks at the edges of a span are ignored, and a
    span that was cut off is left out.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, length, tags)`: scores of the tags; with a field -inf outside
        the text. `extract` gives a list of `Span` a text; the score of a span
        is the mean probability of its tags, without transitions.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerTokenClassifier.from_preset(
        ...     "roformer-char", labels=["LOC"]
        ... )
        >>> history = model.fit(["她在北京大学"], [[(2, 4, "LOC")]], verbose=0)
        >>> [spans] = model.extract(["我在上海工作"])  # a list of Span

    Source: Devlin et al. 2019, arXiv:1810.04805, section 5.3; the field: Lafferty et
    al. 2001, "Conditional Random Fields".
    """

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        labels: Sequence[str] | None = None,
        crf: bool = False,
        crf_rate: float = 100.0,
        max_length: int = 512,
        tags: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        names = None if tags is None else checked_labels(tags, "tags")
        if names is None or labels is not None:
            labels = checked_labels(labels)
        if names is not None and not set(labels or ()) <= {*labels_of(names)}:
            raise ConfigurationError(
                f"labels must be those of tags, {labels_of(names)}, got {labels!r}"
            )
        labels = labels_of(names) if names else labels or []
        check_flag("crf", crf)
        check_number("crf_rate", crf_rate, above=0)
        names = names or tags_of(labels)
        scores = dense_head(backbone, len(names), "tags")(sequence_of(backbone))
        field = None
        if crf:
            field = ConditionalRandomField(crf_rate, dtype="float32", name="crf")
            scores = field(scores, text_tokens(backbone, tokenizer))
        super().__init__(backbone, tokenizer, labels, scores, max_length, **kwargs)
        self.tags, self.crf, self.crf_rate = names, field, crf_rate

    @classmethod
    def output_names(cls, options: Mapping) -> Any:
        tags, labels = options.get("tags"), plain_names(options.get("labels"))
        return tags_of(labels) if tags is None and labels else tags

    def preset_options(self) -> dict[str, Any]:
        tags = None if self.tags == tags_of(self.labels) else self.tags
        return {**super().preset_options(), "crf": self.crf is not None, "tags": tags}

    def default_loss(self) -> keras.losses.Loss | Callable:
        if self.crf is not None:
            return self.crf.loss
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=-1
        )

    def default_metrics(self) -> list[keras.metrics.Metric]:
        return [TagAccuracy(name="accuracy")]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles as `TextTask` does; the loss is the mean over all tokens."""
        super().compile(*args, **kwargs)
        # A mean over tokens, as that of the task is.
        if getattr(self.loss, "ignore_class", None) is not None:
            quirks.set_loss_tracker(self, TokenMean(name="loss"))

    def compute_loss(
        self,
        x: TensorLike = None,
        y: TensorLike = None,
        y_pred: TensorLike = None,
        sample_weight: TensorLike = None,
        training: bool = True,
    ) -> TensorLike:
        tracker = self.metrics[0]
        if isinstance(tracker, TokenMean) and not training:
            tracker.tokens = ops.sum(ops.cast(ops.not_equal(y, -1), "float32"))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def make_targets(self, y: Texts, rows: SpanRows) -> Any:
        return [
            tags_of_spans(spans, rows, row, self.tags)
            for row, spans in enumerate(self.spans_of(y, rows))
        ]

    def batch_targets(
        self, targets: Any, numbers: Sequence[int] | np.ndarray, inputs: dict[str, Any]
    ) -> np.ndarray:
        tags = np.full(inputs["token_ids"].shape, -1, "int32")
        for place, number in enumerate(numbers):
            tags[place, : len(targets[number])] = targets[number]
        return tags

    def batch_weights(self, weights: np.ndarray, targets: Any) -> np.ndarray:
        # The field's loss is one of rows, the other one of tokens.
        if self.crf is not None:
            return weights
        return np.repeat(weights[:, None], targets.shape[1], axis=1)

    def _find_spans(self, outputs, rows, numbers):
        visible = rows.visible(numbers, outputs.shape[1])
        scores = np.where(visible[..., None], outputs, 0.0)
        if self.crf is not None:
            tags = self.crf.decode(np.asarray(outputs), visible)
        else:
            tags = scores.argmax(axis=-1)
        best = ops.convert_to_numpy(ops.softmax(ops.convert_to_tensor(scores)))
        best = np.take_along_axis(best, np.maximum(tags, 0)[..., None], -1)[..., 0]
        for place, number in enumerate(numbers):
            names = [
                self.tags[tag] if seen else "O"
                for tag, seen in zip(tags[place], visible[place], strict=True)
            ]
            yield [
                rows.span(number, first, end - 1, label, best[place, first:end].mean())
                for first, end, label in spans_of_tags(names, None, self.tags)
            ]

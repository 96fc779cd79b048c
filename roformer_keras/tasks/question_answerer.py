"""Answers to questions, as spans of a text."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_integer, is_integer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.types import Texts, Verbose
from roformer_keras.layers.masks import is_token
from roformer_keras.models import RoFormerBackbone
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import Baseline, BestSentence, NoAnswer
from roformer_keras.tasks.head_parts import EXCLUDED, dense_head, sequence_of
from roformer_keras.tasks.labels import parse_answers
from roformer_keras.tasks.measures import AnswerMeasure, Measure
from roformer_keras.tasks.span_labels import SPAN_KIND, Span, as_spans
from roformer_keras.tasks.spans import SpanRows, offsets_of
from roformer_keras.tasks.task import MAX_LENGTH, TextTask
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.text.tokenizer import RoFormerTokenizer


class QuestionAnswererFiles(TaskFiles):
    """Answers in files, and their figures."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        if isinstance(value, str) and not value.strip():
            return None
        answers = []
        for answer in parse_answers(value, texts[1]):
            answers += _places(answer, texts[1])
        answers = list(dict.fromkeys(answers))
        return answers if len(answers) > 1 else next(iter(answers), None)

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        return ("f1", "exact_match")

    @property
    def measure(self) -> Measure:
        return AnswerMeasure()

    def expected_answers(self, texts: list[tuple[str, ...]], labels: list) -> Any:
        expected = []
        for (_, text), label in zip(texts, labels, strict=True):
            answers = tuple(text[slice(*place)] for place in _places(label, text))
            expected.append(answers if len(answers) > 1 else next(iter(answers), None))
        return expected

    def answers(self, texts: list[tuple[str, ...]], **options: Any) -> Any:
        return self.model.answer(texts, **options)

    def found_answers(self, texts: list[tuple[str, ...]], verbose: Verbose = 0) -> Any:
        spans = self.answers(texts, verbose=verbose)
        return [None if span is None else span.text for span in spans]

    def baselines(self, text_count: int) -> list[Baseline]:
        return [NoAnswer(), BestSentence()]

    def answer_kinds(self, count: int) -> dict:
        return {"answer": SPAN_KIND}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        fields = answer and answer.to_json().items()
        return {"answer": fields and {n: own for n, own in fields if n != "label"}}


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerQuestionAnswerer(TextTask):
    """Finds the answer to a question in a text, or that there is none.

    A long text is read in overlapping windows. In a window without the answer, `[CLS]`
    is the answer.

    Args:
        backbone, tokenizer: as in `TextTask`.
        stride: int, at least 1. Tokens from one window to the next.
        max_answer_length: int, at least 1. Maximum tokens of an answer.
        max_length: int, at least 4. Tokens of question and window together.
        text_segment: 1, or 0 for a model that was trained without segments: the segment
            of the text, next to 0 of the question.
        kwargs: as in `keras.Model`, such as `name`.

    A row is `(question, text)`, a label the answer as `(start, end)` in characters of
    the text, or as a str (its first occurrence); or None if there is no answer. A list
    of several is learned by its first, and measured by the one that an answer is most
    like. Files may also have the answers of SQuAD.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, length, 2)`: scores of starts and of ends; for texts `predict`
        gives a list of them a text, one a window. `answer` gives a `Span` a text, with
        the label `"answer"`, or None. Its score is how much more it scores than no
        answer.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerQuestionAnswerer.from_preset("roformer-char")
        >>> history = model.fit([("她在哪里？", "她在北京。")], ["北京"], verbose=0)
        >>> [answer] = model.answer([("他在哪里？", "他在上海。")])  # a Span, or None

    Source: Devlin et al. 2019, arXiv:1810.04805, sections 4.2 and 4.3.
    """

    files_class = QuestionAnswererFiles

    text_counts = (2,)
    or_none = True

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        stride: int = 128,
        max_answer_length: int = 64,
        max_length: int = 512,
        text_segment: int = 1,
        **kwargs: Any,
    ):
        segments = backbone.config.num_segments
        check_integer("text_segment", text_segment, 0, min(1, segments - 1))
        for name, value in (
            ("stride", stride),
            ("max_answer_length", max_answer_length),
        ):
            check_integer(name, value, minimum=1, maximum=MAX_LENGTH)
        scores = dense_head(backbone, 2, "ends")(sequence_of(backbone))
        scores = PlacesOfAnswer(dtype="float32", name="places")(
            scores, backbone.input["token_ids"], backbone.input["segment_ids"]
        )
        super().__init__(backbone, tokenizer, scores, max_length, **kwargs)
        self.stride, self.max_answer_length = int(stride), int(max_answer_length)
        self.text_segment = int(text_segment)

    # === Training ===

    def default_loss(self) -> keras.losses.Loss:
        return AnswerCrossentropy()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanMetricWrapper(_is_right, name="accuracy")]

    def make_rows(self, texts: list[tuple[str, ...]]) -> "Windows":
        options = self.max_length, self.stride, self.text_segment
        return Windows(self.text_tokenizer(), texts, *options)

    def make_targets(self, y: Texts, rows: "Windows") -> Any:
        answers = [
            _places(label, rows.texts[number][1], number)
            for number, label in enumerate(y)
        ]
        targets = np.zeros((len(rows), 2), "int32")
        for row, owner in enumerate(rows.owners):
            if answers[owner]:
                targets[row] = rows.tokens_of(row, *answers[owner][0]) or (0, 0)
        return targets

    # === Answering ===

    @Answers[Span | None, list[Span | None], Any]
    def answer(self, x: Texts, **kwargs: Any) -> Any:
        """The answer to each question, or None.

        Args:
            x, kwargs: as in `predict`.

        Returns:
            A `Span` or None for each row; for an iterator an iterator of them.
        """
        return self.map_outputs(x, self._best_spans, self._best_windows, **kwargs)

    def _collect_outputs(self, found, rows):
        """A list of arrays for each text, one of each window."""
        texts = [[] for _ in rows.texts]
        for owner, scores in zip(rows.owners, found, strict=True):
            texts[owner].append(scores)
        return texts

    def _best_spans(self, outputs, rows, numbers):
        """(score, first, last) of the best span of each window."""
        outputs = ops.convert_to_numpy(outputs)
        for place, number in enumerate(numbers):
            length = rows.lengths[number]
            starts, ends = outputs[place, :length].T
            scores = starts[:, None] + ends[None, :]
            positions = np.arange(length)
            size = positions[None, :] - positions[:, None] + 1
            fits = (size >= 1) & (size <= self.max_answer_length)
            # [CLS] is no span: spans are compared with it.
            is_text = rows.offsets(number)[:, 0] >= 0
            fits &= is_text[:, None] & is_text[None, :]
            first, last = np.unravel_index(
                np.where(fits, scores, 2 * EXCLUDED).argmax(), scores.shape
            )
            yield float(scores[first, last] - scores[0, 0]), int(first), int(last)

    def _best_windows(self, answers, rows):
        best_by_row = [None] * len(rows.texts)
        for row, owner in enumerate(rows.owners):
            score, first, last = answers[row]
            best = best_by_row[owner]
            if score > 0 and (best is None or score > best.score):
                best_by_row[owner] = rows.span(row, first, last, "answer", score)
        return best_by_row


class Windows(SpanRows):
    """A question with each window of a text, as rows of ids."""

    def __init__(self, tokenizer, texts, max_length, stride, text_segment=1):
        self.texts, self._segment = list(texts), text_segment
        rows, firsts, owners = [], [], []
        self._offsets, self._uncut = [], []
        for owner, (question, text) in enumerate(self.texts):
            question = tokenizer.encode(question, max_length=max_length // 2)[0]
            ids = tokenizer.encode(text)[0][1:-1]
            offsets = offsets_of(tokenizer, text)
            self._uncut.append(offsets)
            room = max_length - len(question) - 1
            step = min(stride, room)
            for start in range(0, max(len(ids) - room, 0) + step, step):
                window = ids[start : start + room]
                rows.append(np.array([*question, *window, tokenizer.sep_id], "int32"))
                firsts.append(len(question))
                owners.append(owner)
                token_places = np.full((len(rows[-1]), 2), -1, "int32")
                if window:
                    token_places[len(question) : -1] = offsets[start : start + room]
                self._offsets.append(token_places)
        self._keep(rows, firsts)
        self.owners = np.array(owners, "int64")

    def batch(self, numbers):
        """A batch like `Rows.batch`, with the segment of the texts."""
        inputs = super().batch(numbers)
        return {**inputs, "segment_ids": inputs["segment_ids"] * self._segment}


@keras.saving.register_keras_serializable("roformer_keras")
class PlacesOfAnswer(keras.layers.Layer):
    """Excludes all scores but those at `[CLS]` and in the second text.

    In a row without segments, all tokens but the last may be of the text.

    Call arguments:
        scores: float `(batch, length, 2)`.
        token_ids: int `(batch, length)`.
        segment_ids: int `(batch, length)`.
    """

    def call(self, scores, token_ids, segment_ids):
        is_text = ops.equal(segment_ids, 1)
        has_segments = ops.any(is_text, axis=1, keepdims=True)
        is_text = ops.where(has_segments, is_text, is_token(token_ids))
        # The last token of the second text is [SEP].
        is_before_text = ops.concatenate(
            [is_text[:, 1:], ops.zeros_like(is_text[:, :1])], axis=1
        )
        is_first = ops.equal(ops.cumsum(ops.ones_like(token_ids), axis=1), 1)
        may_answer = ops.logical_or(ops.logical_and(is_text, is_before_text), is_first)
        return ops.where(may_answer[..., None], scores, EXCLUDED)

    def write_network(self, writer, scores, token_ids, segment_ids):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        graph = writer.graph
        is_text = graph.equal(segment_ids, np.int32(1))
        count = graph.total(graph.as_float(is_text), 1)
        is_other = graph.logical_and(
            graph.equal(count, np.float32(0)), writer.is_token(token_ids)
        )
        is_text = graph.logical_or(is_text, is_other)
        is_before_text = graph.equal(
            graph.shifted(graph.as_float(is_text)), np.float32(1)
        )
        is_first = graph.equal(writer.positions(token_ids), np.float32(0))
        may_answer = graph.logical_or(
            graph.logical_and(is_text, is_before_text), is_first
        )
        return graph.where(
            graph.expand_dims(may_answer, 2), scores, np.float32(EXCLUDED)
        )

    def compute_mask(self, inputs, previous_mask=None):
        return None


@keras.saving.register_keras_serializable("roformer_keras")
class AnswerCrossentropy(keras.losses.Loss):
    """The mean cross-entropy of the start and the end of an answer.

    Targets are int `(batch, 2)`, outputs scores `(batch, length, 2)`.
    """

    def __init__(self, name="answer_crossentropy", reduction="sum_over_batch_size"):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def call(self, y_true, y_pred):
        scores = ops.transpose(y_pred, (0, 2, 1))
        each = keras.losses.sparse_categorical_crossentropy(
            ops.cast(y_true, "int32"), scores, from_logits=True
        )
        return ops.mean(each, axis=-1)


@keras.saving.register_keras_serializable("roformer_keras")
def _is_right(y_true, y_pred):
    """1 where both ends are the best, else 0: `(batch,)`."""
    best = ops.cast(ops.argmax(y_pred, axis=1), "int32")
    is_right = ops.equal(best, ops.cast(y_true, "int32"))
    return ops.cast(ops.all(is_right, axis=-1), "float32")


def _places(label, text, row=None):
    """(start, end) of each answer in its text."""
    if label is None:
        return []
    if isinstance(label, list) and label and not any(map(is_integer, label)):
        return [_place(one, text, row) for one in label]
    return [_place(label, text, row)]


def _place(label, text, row):
    """(start, end) of an answer in its text."""
    if isinstance(label, str):
        start = text.find(label) if label else -1
        if start < 0:
            raise ConfigurationError(
                f"an answer must stand in its text, got {label!r}",
                row=row,
                hint="None, in a file an empty cell, says that there is none",
            )
        label = (start, start + len(label))
    elif isinstance(label, Span):
        label = (label.start, label.end)
    if not isinstance(label, list | tuple) or len(label) != 2:
        raise ConfigurationError(
            f"an answer must be (start, end), a str or None, got {label!r}", row=row
        )
    ((start, end, _),) = as_spans([(*label, "answer")], text, row)
    return start, end

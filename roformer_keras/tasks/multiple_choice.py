"""Multiple choice: which of several texts answers a question, or fills a blank."""

import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.types import Texts
from roformer_keras.io.vocabulary import MASK
from roformer_keras.models import RoFormerBackbone
from roformer_keras.tables.choices import MAX_CHOICES
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import (
    SIMILARITIES,
    Baseline,
    MostFrequent,
    MostSimilarChoice,
)
from roformer_keras.tasks.head_parts import EXCLUDED, sequence_of
from roformer_keras.tasks.labels import choice_number, rounded
from roformer_keras.tasks.measures import ChoiceMeasure, Measure
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.tasks.vector import VectorTask
from roformer_keras.text.rows import GroupRows, padded_count, padded_width
from roformer_keras.text.tokenizer import RoFormerTokenizer


class MultipleChoiceFiles(TaskFiles):
    """Numbers of choices in files, and their figures."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[Any, ...], options: Mapping) -> Any:
        return choice_number(value, texts[-1])

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        return ("accuracy",)

    @property
    def measure(self) -> Measure:
        return ChoiceMeasure()

    def answers(self, texts: list[tuple[Any, ...]], **options: Any) -> Any:
        return self.model.choose(texts, probabilities=True, **options)

    def baselines(self, text_count: int) -> list[Baseline]:
        similar = [MostSimilarChoice(one) for one in SIMILARITIES]
        return [MostFrequent("most frequent place", MAX_CHOICES), *similar]

    def answer_kinds(self, count: int) -> dict:
        return {"label": int, "choice": str, "probabilities": [float]}

    def answer_to_json(self, answer: Any, texts: tuple[Any, ...]) -> dict:
        return {
            "label": int(answer.argmax()),
            "choice": texts[-1][answer.argmax()],
            "probabilities": list(map(rounded, answer)),
        }


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerMultipleChoice(VectorTask):
    """Chooses one of several texts, as the answer to a question about a context.

    Each choice has its row, `[CLS] context [SEP] question [SEP] choice [SEP]`
    with segment 1 from the question on, and gets a score; the softmax is over the
    choices of a question.

    Args:
        backbone, tokenizer, pooling, head_dropout, max_length, head_activation: as in
            `VectorTask`.
        kwargs: as in `keras.Model`, such as `name`.

    Rows of texts are all `(context, choices)` or all `(context, question, choices)`,
    with 2 to 256 choices in a list; rows may have different numbers of them. A label is
    the number of the right choice, from 0, or its text. Contexts are cut first,
    questions next; `[MASK]` in a context is the mask token, around which the context is
    cut, so that it can be the blank of a cloze.

    Call arguments:
        inputs: dict of what `RoFormerBackbone` takes, with an axis for the choices:
            int `(batch, choices, length)`. Choices of id 0 only are padding.

    Returns:
        float32 `(batch, choices)`: logits, -1e9 at padding; for texts `predict` gives
        a list of the logits of each row. `choose` gives numbers or probabilities.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerMultipleChoice.from_preset("roformer-char")
        >>> row = ("她在北京工作。", "她在哪里？", ["北京", "上海"])
        >>> history = model.fit([row], ["北京"], verbose=0)
        >>> model.choose([row], probabilities=True)[0].shape
        (2,)

    Source: Xu et al. 2020, arXiv:2004.05986 (C3 and CHID in CLUE); the scores are those
    of Hugging Face's `RoFormerForMultipleChoice`, by default with
    `summary_type="first"`.
    """

    files_class = MultipleChoiceFiles

    activated_names = ("summary", "choice")
    text_counts = (3, 2)
    has_choices = True

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
        inputs = {
            name: keras.Input((None, *tensor.shape[1:]), dtype=tensor.dtype, name=name)
            for name, tensor in backbone.input.items()
        }
        rows = {
            name: RowsOfChoices(name=f"{name}_of_rows")(tensor)
            for name, tensor in inputs.items()
        }
        scores = ScoresOfChoices(dtype="float32", name="scores")
        super().__init__(
            backbone,
            tokenizer,
            1,
            "choice",
            pooling,
            head_dropout,
            max_length,
            head_activation,
            combine=lambda found: scores(found, inputs["token_ids"]),
            inputs=inputs,
            rows=rows,
            **kwargs,
        )

    def scores_of_rows(self) -> tuple[dict, Any]:
        """Inputs of the backbone, and the score of each row: both symbolic.

        For programs that group the choices themselves.
        """
        inputs = self.backbone.input
        hidden = sequence_of(self.backbone)
        vector = self.get_layer("vector")(hidden, inputs["token_ids"])
        names = self.activated_names if self.head_activation else ("choice",)
        for name in names:
            vector = self.get_layer(name)(vector)
        return inputs, vector

    # === Training ===

    @property
    def probabilities(self) -> Callable:
        return ops.softmax

    def make_rows(self, texts: list[tuple[Any, ...]]) -> "ChoiceRows":
        return ChoiceRows(self.text_tokenizer(), texts, self.max_length)

    def make_targets(self, y: Texts, rows: "ChoiceRows") -> Any:
        return np.array(
            [
                choice_number(label, rows.texts[row][-1], row)
                for row, label in enumerate(y)
            ],
            "int32",
        )

    # === Answering ===

    @Answers[Any, list[int], list[np.ndarray]]
    def choose(self, x: Texts, *, probabilities: bool = False, **kwargs: Any) -> Any:
        """The number of the best choice of each row, from 0.

        Args:
            x, kwargs: as in `predict`.
            probabilities: bool. Whether to return the probabilities of all choices.

        Returns:
            An int for each row, or float32 `(choices,)`; for an iterator an iterator
            of them.
        """
        function = _softmax if probabilities else _best
        answers = map(function, self.predict(x, **kwargs))
        return answers if isinstance(x, Iterator) else list(answers)

    def _split_outputs(self, outputs, rows, numbers):
        """The scores of each row, without padding."""
        for scores, count in zip(outputs, rows.counts[numbers], strict=True):
            yield scores[:count]

    def _collect_outputs(self, found, rows):
        return found


def _softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _best(scores):
    return int(scores.argmax())


class ChoiceRows(GroupRows):
    """Questions with choices, whose rows of ids are next to each other in a batch.

    What all choices of a question have before them is kept once.
    """

    def __init__(self, tokenizer, texts: Sequence[tuple[Any, ...]], max_length: int):
        self.texts = list(texts)
        self._beginnings, self._choices = _Pieces(), _Pieces()
        firsts: list[int] = []
        for row in self.texts:
            first, question, choices = _encode(tokenizer, row, max_length)
            firsts.append(len(first))
            self._beginnings.append([*first, *question])
            for choice in choices:
                self._choices.append(choice)
        self._firsts = np.array(firsts, "int64")
        self.counts = np.array([len(row[-1]) for row in self.texts], "int64")
        self.group_size = np.array(list(map(padded_count, self.counts)), "int64")
        self._starts = np.cumsum(self.counts) - self.counts
        longest = np.maximum.reduceat(self._choices.lengths, self._starts)
        self.lengths = self._beginnings.lengths + longest
        self.owners = np.arange(len(self.texts))

    def batch(self, numbers: Sequence[int] | np.ndarray) -> dict:
        """Some questions, int32 `(questions, choices, length)`."""
        width = padded_width(int(self.lengths[numbers].max()))
        size = padded_count(int(self.counts[numbers].max()))
        token_ids = np.zeros((len(numbers), size, width), "int32")
        segment_ids = np.zeros_like(token_ids)
        for place, number in enumerate(numbers):
            beginning, first = self._beginnings[number], self._firsts[number]
            start = len(beginning)
            token_ids[place, : self.counts[number], :start] = beginning
            for choice in range(self.counts[number]):
                ids = self._choices[self._starts[number] + choice]
                end = start + len(ids)
                token_ids[place, choice, start:end] = ids
                segment_ids[place, choice, first:end] = 1
        return {"token_ids": token_ids, "segment_ids": segment_ids}


class _Pieces:
    """Lists of ids in one piece of memory, since there may be millions of them."""

    def __init__(self):
        self._ids, self._ends = array.array("i"), array.array("q", [0])

    def append(self, ids):
        self._ids.extend(ids)
        self._ends.append(len(self._ids))

    def __getitem__(self, number):
        return self._ids[self._ends[number] : self._ends[number + 1]]

    @property
    def lengths(self):
        return np.diff(np.array(self._ends, "int64"))


def _encode(tokenizer, row, max_length):
    """The ids of the context, of the question if there is one, and of each choice."""
    context, *question = row[:-1]
    choices = [tokenizer.encode(choice)[0][1:] for choice in row[-1]]
    half = max_length // 2
    choices = [_cut(ids, half) for ids in choices]
    longest = max(map(len, choices))
    if question:
        question_ids = tokenizer.encode(question[0])[0][1:]
        # A lone [SEP] would be no question.
        question = _cut(question_ids, half - longest) if half - longest > 1 else []
    keeps_mask = MASK in context
    first = tokenizer.encode(context, keep_mask=keeps_mask)[0]
    room, start = max_length - longest - len(question), 1
    if keeps_mask and len(first) > room:
        # [CLS] and [SEP] have their places in any case.
        last = len(first) - room + 1
        start = min(max(1, first.index(tokenizer.mask_id) - (room - 2) // 2), last)
    return _cut([first[0], *first[start:]], room), question, choices


def _cut(ids, size):
    """At most so many ids, with the last one at the end."""
    return ids if len(ids) <= size else [*ids[: size - 1], ids[-1]]


@keras.saving.register_keras_serializable("roformer_keras")
class RowsOfChoices(keras.layers.Layer):
    """The choices of all questions as the rows of one batch.

    Call arguments:
        inputs: `(questions, choices, ...)`.
    """

    def call(self, inputs):
        return ops.reshape(inputs, (-1, *ops.shape(inputs)[2:]))

    def write_network(self, writer, inputs):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        return writer.graph.joined_axes(inputs)


@keras.saving.register_keras_serializable("roformer_keras")
class ScoresOfChoices(keras.layers.Layer):
    """The scores of rows by question, with padding excluded.

    Call arguments:
        scores: float `(questions * choices, 1)`.
        token_ids: int `(questions, choices, length)`; a choice of id 0 only is padding.
    """

    def call(self, scores, token_ids):
        scores = ops.reshape(scores, ops.shape(token_ids)[:2])
        return ops.where(
            ops.any(ops.not_equal(token_ids, 0), axis=-1), scores, EXCLUDED
        )

    def write_network(self, writer, scores, token_ids):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        graph = writer.graph
        scores = graph.split_axis(scores, token_ids)
        is_token = graph.logical_not(graph.equal(token_ids, np.int32(0)))
        tokens = graph.item(graph.total(graph.as_float(is_token), 2), 0, 2)
        is_padding = graph.equal(tokens, np.float32(0))
        return graph.where(is_padding, np.float32(EXCLUDED), scores)

    def compute_output_shape(self, scores_shape, token_ids_shape):
        return tuple(token_ids_shape[:2])

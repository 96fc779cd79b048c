"""The base of tasks that find spans in a text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_instance, is_integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import TensorLike, Texts
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.models import RoFormerBackbone
from roformer_keras.tables.tagged import TokenTags, are_plain, name_tags
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import Baseline, CharacterTags
from roformer_keras.tasks.labels import parse_spans, sorted_names
from roformer_keras.tasks.measures import Measure, SpanMeasure
from roformer_keras.tasks.span_labels import SPAN_KIND, Span, as_spans
from roformer_keras.tasks.spans import SpanRows
from roformer_keras.tasks.task import TextTask
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.text.tokenizer import RoFormerTokenizer


class SpanFiles(TaskFiles):
    """Spans in files, and their figures."""

    min_names = 1

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        if not isinstance(value, TokenTags):
            value = parse_spans(value)
        tags = options.get("tags") or tags_of(options.get("labels", ()))
        return as_spans(value, texts[0], None, tags)

    @classmethod
    def find_names(cls, labels: list, options: Mapping) -> list[str]:
        return sorted_names(name for row in labels for _, _, name in row)

    @classmethod
    def name_options(cls, names: Sequence[str], options: Mapping) -> dict[str, Any]:
        return {"labels": names}

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "macro_f1")

    @property
    def measure(self) -> Measure:
        return SpanMeasure()

    def answers(self, texts: list[tuple[str, ...]], **options: Any) -> Any:
        return self.model.extract(texts, **options)

    def baselines(self, text_count: int) -> list[Baseline]:
        return [CharacterTags(self.model.may_nest)]

    def answer_kinds(self, count: int) -> dict:
        return {"spans": [{"label": str, **SPAN_KIND}]}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        return {"spans": [span.to_json() for span in answer]}


class SpanTask(TextTask):
    """A task whose labels are spans with names.

    Subclasses define `_find_spans(outputs, rows, numbers)`: the spans of each row.
    """

    files_class = SpanFiles

    text_counts = (1,)
    has_tokens = True
    # Whether spans may overlap.
    may_nest = False

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        labels: Sequence[str],
        outputs: TensorLike,
        max_length: int,
        **kwargs: Any,
    ):
        super().__init__(backbone, tokenizer, outputs, max_length, **kwargs)
        self.labels, self.tags = labels, tags_of(labels)

    def make_rows(self, texts: list[tuple[str, ...]]) -> SpanRows:
        return SpanRows(self.text_tokenizer(), texts, self.max_length)

    def spans_of(self, y: Texts, rows: SpanRows) -> list[list[tuple[int, int, str]]]:
        """Checked labels of all rows: lists of (start, end, label)."""
        spans = []
        for row, labels in enumerate(y):
            text = rows.texts[row][-1]
            spans.append(as_spans(labels, text, row, self.tags))
            for _, _, label in spans[-1]:
                if label not in self.labels:
                    raise ConfigurationError(
                        f"a label must be one of {self.labels}, got {label!r}", row=row
                    )
        return spans

    @Answers[list[Span], list[list[Span]], Any]
    def extract(self, x: Texts, **kwargs: Any) -> Any:
        """The spans in each text, by start.

        Args:
            x, kwargs: as in `predict`.

        Returns:
            A list of `Span` for each text; for an iterator an iterator of lists.
        """
        return self.map_outputs(x, self._find_spans, lambda found, _: found, **kwargs)


def tags_of(labels: Sequence[str]) -> list[str]:
    """The tags of labels of spans, in the order of their numbers."""
    return ["O", *(f"{kind}-{label}" for label in labels for kind in "BI")] * bool(
        labels
    )


def labels_of(tags: Iterable[str]) -> list[str]:
    """The labels of the spans that tags make, which are tags or follow a letter."""
    names = [tag for tag in name_tags(tags) if tag != "O"]
    is_plain = are_plain(tags)
    return list(dict.fromkeys(tag if is_plain else tag[2:] for tag in names))


def checked_labels(labels: Sequence[str] | None, name: str = "labels") -> list[str]:
    """Names of spans, each once and without the prefix of a tag; or of tags."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ConfigurationError(f"{name} must be a list of names, got {labels!r}")
    labels = list(labels)
    for label in labels:
        if not is_integer(label):
            check_instance(f"each of {name}", label, str)
    labels = [str(label) for label in labels]
    refuse(
        not labels or len(set(labels)) != len(labels),
        f"{name} must be different names, got {labels!r}",
    )
    return labels


@keras.saving.register_keras_serializable("roformer_keras")
class TextTokens(ConfiguredLayer):
    """Mask of the tokens of a text: neither padding nor `[CLS]` nor `[SEP]`."""

    def __init__(self, special_ids, **kwargs):
        super().__init__(**kwargs)
        self.special_ids = list(special_ids)

    def call(self, token_ids):
        is_token = ops.not_equal(token_ids, 0)
        for special in self.special_ids:
            is_token = ops.logical_and(is_token, ops.not_equal(token_ids, special))
        return is_token

    def write_network(self, writer, token_ids):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        graph = writer.graph
        excluded = graph.equal(token_ids, np.int32(0))
        for special in self.special_ids:
            is_special = graph.equal(token_ids, np.int32(special))
            excluded = graph.logical_or(excluded, is_special)
        return graph.logical_not(excluded)


def text_tokens(backbone, tokenizer):
    """`TextTokens` of a backbone's own input."""
    special = (tokenizer.cls_id, tokenizer.sep_id)
    layer = TextTokens(special, dtype="bool", name="text_tokens")
    return layer(backbone.input["token_ids"])

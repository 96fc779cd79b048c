"""Relations: pairs of spans and a name, by three pointers (GPLinker)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_number
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.types import TensorLike, Texts, Verbose
from roformer_keras.layers import EfficientGlobalPointer
from roformer_keras.layers.pointer import SpanCrossentropy, SpanF1
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.initializers import initializer
from roformer_keras.tasks.answering import Answers
from roformer_keras.tasks.baselines import Baseline, CharacterTriples
from roformer_keras.tasks.head_parts import sequence_of
from roformer_keras.tasks.labels import parse_spans, rounded, sorted_names
from roformer_keras.tasks.measures import Measure, SpanMeasure
from roformer_keras.tasks.span_labels import SPAN_KIND, Span
from roformer_keras.tasks.span_tasks import SpanFiles, TextTokens, checked_labels
from roformer_keras.tasks.spans import SpanRows, padded_spans
from roformer_keras.tasks.task import TextTask
from roformer_keras.text.characters import lower_in_place
from roformer_keras.text.tokenizer import RoFormerTokenizer

# Subjects of a text that are combined with its objects, and as many of these.
MAX_ENTITIES = 100


@dataclass(frozen=True)
class Relation:
    """A subject and an object in a text, and what the first is to the second.

    Attributes:
        subject, object: `Span`s with the labels `"subject"` and `"object"`.
        predicate: str. Name of the relation.
        score: float. The lowest of its four scores: of both spans, and of the pairs of
            their first and their last tokens.

    Example:
        >>> subject = tasks.Span(0, 2, "subject", "史记", 2.5)
        >>> author = tasks.Span(3, 6, "object", "司马迁", 1.5)
        >>> relation = tasks.Relation(subject, "作者", author, 1.5)
        >>> relation.to_json()["object"]
        {'start': 3, 'end': 6, 'text': '司马迁', 'score': 1.5}

    Source: https://kexue.fm/archives/8888
    """

    subject: Span
    predicate: str
    object: Span
    score: float

    def to_json(self) -> dict:
        """The attributes as plain JSON types."""
        subject, entity = self.subject.to_json(), self.object.to_json()
        del subject["label"], entity["label"]
        return {
            "subject": subject,
            "predicate": self.predicate,
            "object": entity,
            "score": rounded(self.score),
        }


class RelationFiles(SpanFiles):
    """Relations in files, and their figures: a right one has all three texts."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        # In a cell of a table a JSON list.
        value = parse_spans(value) if isinstance(value, str) else value
        return as_triples(value, texts[0])

    @classmethod
    def find_names(cls, labels: list, options: Mapping) -> list[str]:
        return sorted_names(predicate for row in labels for _, predicate, _ in row)

    @property
    def measure(self) -> Measure:
        return SpanMeasure("wrong_relations")

    def expected_answers(self, texts: list[tuple[str, ...]], labels: list) -> Any:
        return [[_compared(*triple) for triple in row] for row in labels]

    def found_answers(self, texts: list[tuple[str, ...]], verbose: Verbose = 0) -> Any:
        return [
            [_compared(one.subject.text, one.predicate, one.object.text) for one in row]
            for row in self.answers(texts, verbose=verbose)
        ]

    def baselines(self, text_count: int) -> list[Baseline]:
        return [CharacterTriples()]

    def answer_kinds(self, count: int) -> dict:
        ends = {"subject": SPAN_KIND, "predicate": str, "object": SPAN_KIND}
        return {"relations": [{**ends, "score": float}]}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        return {"relations": [relation.to_json() for relation in answer]}


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerRelationExtractor(TextTask):
    """Finds relations `(subject, predicate, object)` between spans of a text: GPLinker.

    One pointer scores subjects and objects as spans. Two others score, for each
    predicate, pairs of a subject and an object: by their first, and by their last
    tokens. A relation is there if all four scores exceed the threshold.

    Args:
        backbone, tokenizer, max_length: as in `TextTask`.
        labels: sequence of str. Names of the predicates, as `["作者", "首都"]`.
        head_dim: int, even. Features of a start, and of an end.
        threshold: float. What the four scores must exceed; 0 is trained for.
        kwargs: as in `keras.Model`, such as `name`.

    Labels of a text are triples `(subject, predicate, object)` of str, or dicts of
    these, as in DuIE. A subject or object is where the text first has it as whole
    tokens; a relation is not learned where one was cut off or is part of a token. Large
    and small letters are the same.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them.

    Returns:
        float32 `(batch, 2 + 2 * labels, length, length)`: scores of subjects and of
        objects, over their first and last tokens; then, for each predicate, of the
        first tokens of both; then of the last. -inf where padding is, and at `[CLS]`
        with itself. `extract` gives a list of `Relation` a text.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> model = roformer_keras.RoFormerRelationExtractor.from_preset(
        ...     "roformer-char", labels=["作者"]
        ... )
        >>> labels = [[("史记", "作者", "司马迁")]]
        >>> history = model.fit(["司马迁写了史记。"], labels, verbose=0)
        >>> [relations] = model.extract(["班固写了汉书。"])  # a list of Relation

    Source: https://kexue.fm/archives/8888
    """

    files_class = RelationFiles

    text_counts = (1,)

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        labels: Sequence[str] | None = None,
        head_dim: int = 64,
        threshold: float = 0.0,
        max_length: int = 512,
        **kwargs: Any,
    ):
        labels = checked_labels(labels)
        check_number("threshold", threshold)
        token_ids = backbone.input["token_ids"]
        tokens = TextTokens((), dtype="bool", name="tokens")(token_ids)
        hidden, scores = sequence_of(backbone), []
        for name, count in (("entities", 2), ("heads", None), ("tails", None)):
            pointer = EfficientGlobalPointer(
                count or len(labels),
                head_dim,
                use_rotary=count is not None,
                upper_triangular=count is not None,
                kernel_initializer=initializer(backbone.config),
                dtype=keras.DTypePolicy("float32"),
                name=name,
            )
            scores.append(pointer(hidden, mask=tokens))
        outputs = JoinedScores(dtype="float32", name="scores")(scores, tokens)
        super().__init__(backbone, tokenizer, outputs, max_length, **kwargs)
        self.labels, self.head_dim, self.threshold = labels, head_dim, threshold

    def default_loss(self) -> keras.losses.Loss:
        return RelationCrossentropy("relation_crossentropy")

    def default_metrics(self) -> list[keras.metrics.Metric]:
        return [SpanF1(self.threshold, name="pointer_f1")]

    def make_rows(self, texts: list[tuple[str, ...]]) -> SpanRows:
        return SpanRows(self.text_tokenizer(), texts, self.max_length)

    def make_targets(self, y: Texts, rows: SpanRows) -> Any:
        targets, count = [], len(self.labels)
        for row, labels in enumerate(y):
            cells = set()
            for subject, predicate, entity in as_triples(
                labels, rows.texts[row][0], row
            ):
                if predicate not in self.labels:
                    raise ConfigurationError(
                        f"a predicate must be one of {self.labels}, got {predicate!r}",
                        row=row,
                    )
                places = [_tokens_of(name, rows, row) for name in (subject, entity)]
                if None in places:
                    continue
                number = 2 + self.labels.index(predicate)
                heads, tails = zip(*places, strict=True)
                cells |= {(0, *places[0]), (1, *places[1])}
                cells |= {(number, *heads), (number + count, *tails)}
            targets.append(np.array(sorted(cells), "int32").reshape(-1, 3))
        return targets

    def batch_targets(
        self, targets: Any, numbers: Sequence[int] | np.ndarray, inputs: dict[str, Any]
    ) -> np.ndarray:
        return padded_spans(targets, numbers)

    @Answers[list[Relation], list[list[Relation]], Any]
    def extract(self, x: Texts, **kwargs: Any) -> Any:
        """The relations in each text, by the start of the subject.

        Of a text with more than 100 subjects or objects those with the highest scores
        are combined.

        Args:
            x, kwargs: as in `predict`.

        Returns:
            A list of `Relation` for each text; for an iterator an iterator of lists.
        """
        return self.map_outputs(x, self._find, lambda found, _: found, **kwargs)

    def _find(self, outputs, rows, numbers):
        outputs = ops.convert_to_numpy(outputs)
        visible = rows.visible(numbers, outputs.shape[-1])
        for place, number in enumerate(numbers):
            yield self._relations(outputs[place], visible[place], rows, number)

    def _relations(self, scores, visible, rows, number):
        spans = np.where(visible[:, None] & visible, scores[:2], -np.inf)
        subjects, objects = (_best_cells(part, self.threshold) for part in spans)
        count = len(self.labels)
        # (predicates, subjects, objects) of their first and of their last tokens.
        pairs = [
            part[:, subjects[:, end, None], objects[None, :, end]]
            for end, part in enumerate((scores[2 : 2 + count], scores[2 + count :]))
        ]
        lowest, relations = np.minimum(*pairs), []
        for predicate, *sides in np.argwhere(lowest > self.threshold):
            ends = [
                rows.span(number, *cell, name, spans[role, *cell])
                for role, (name, cell) in enumerate(
                    (("subject", subjects[sides[0]]), ("object", objects[sides[1]]))
                )
            ]
            score = min(lowest[predicate, *sides], *(span.score for span in ends))
            name = self.labels[predicate]
            relations.append(Relation(ends[0], name, ends[1], float(score)))
        return sorted(
            relations,
            key=lambda one: (one.subject.start, one.object.start, one.predicate),
        )


# === Layers and loss ===


@keras.saving.register_keras_serializable("roformer_keras")
class JoinedScores(keras.layers.Layer):
    """Scores of pointers one after the other, with -inf at `[CLS]` with itself.

    That cell is the padding of labels in the published training.

    Call arguments:
        scores: list of float `(batch, heads, length, length)`.
        tokens: `(batch, length)`.
    """

    def call(self, scores, tokens):
        positions = ops.arange(ops.shape(tokens)[1])
        is_first = ops.equal(positions[:, None] + positions, 0)
        return ops.where(is_first, -np.inf, ops.concatenate(scores, axis=1))

    def write_network(self, writer, scores, tokens):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        graph, positions = writer.graph, writer.positions(tokens)
        sums = graph.add(
            graph.expand_dims(positions, (1, 3)), graph.expand_dims(positions, (1, 2))
        )
        joined = graph.concatenated(*scores, axis=1)
        is_first = graph.equal(sums, np.float32(0))
        return graph.where(is_first, np.float32(-np.inf), joined)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@keras.saving.register_keras_serializable("roformer_keras")
class RelationCrossentropy(SpanCrossentropy):
    """`SpanCrossentropy` summed over heads, as GPLinker is trained."""

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        return super().call(y_true, y_pred) * y_pred.shape[1]


# === Labels ===


def as_triples(
    labels: Any, text: str, row: int | None = None
) -> list[tuple[str, str, str]]:
    """The labels of one text as (subject, predicate, object), checked, each once."""
    if isinstance(labels, str | Mapping) or not isinstance(labels, Iterable):
        raise ConfigurationError(
            f"labels of a text must be a list of relations, got {labels!r:.60}", row=row
        )
    triples = []
    for label in labels:
        triple = _triple(label)
        if (
            not isinstance(triple, list | tuple)
            or len(triple) != 3
            or not all(isinstance(part, str) and part.strip() for part in triple)
        ):
            raise ConfigurationError(
                "a relation must be (subject, predicate, object) of str, or a dict "
                f"with these keys, got {label!r:.80}",
                row=row,
            )
        subject, predicate, entity = map(str.strip, triple)
        for part in (subject, entity):
            if lower_in_place(part) not in lower_in_place(text):
                raise ConfigurationError(
                    f"a subject or object must be in its text, got {part!r:.40}",
                    row=row,
                )
        triples.append((subject, predicate, entity))
    return list(dict.fromkeys(triples))


def _triple(label):
    if isinstance(label, Relation):
        return label.subject.text, label.predicate, label.object.text
    if not isinstance(label, Mapping):
        return label
    entity = label.get("object")
    if isinstance(entity, Mapping):
        entity = entity.get("@value")
    return label.get("subject"), label.get("predicate"), entity


def _compared(subject, predicate, entity):
    """A relation as `SpanMeasure` compares it, with its label last."""
    return lower_in_place(subject), lower_in_place(entity), predicate


def _tokens_of(entity, rows, row):
    """First and last token of the first place of an entity as whole tokens, or None."""
    text, entity = lower_in_place(rows.texts[row][0]), lower_in_place(entity)
    start = text.find(entity)
    while start >= 0:
        tokens = rows.tokens_of(row, start, start + len(entity))
        if tokens is not None:
            span = rows.span(row, *tokens, "", 0)
            if (span.start, span.end) == (start, start + len(entity)):
                return tokens
        start = text.find(entity, start + 1)
    return None


def _best_cells(scores, threshold):
    """int `(cells, 2)`: those above a threshold, at most `MAX_ENTITIES`."""
    cells = np.argwhere(scores > threshold)
    if len(cells) > MAX_ENTITIES:
        order = np.argsort(-scores[tuple(cells.T)], kind="stable")
        cells = cells[order[:MAX_ENTITIES]]
    return cells

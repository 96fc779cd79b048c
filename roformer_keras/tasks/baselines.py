"""Answers without a model, which a model should be better than.

A baseline learns a little of the training data, as plain JSON types, which a preset
keeps.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from roformer_keras.base.checks import is_integer
from roformer_keras.base.extras import import_extra
from roformer_keras.tasks.measures import nearest_rows
from roformer_keras.tasks.span_labels import Span, spans_of_tags
from roformer_keras.text.characters import lower_in_place

# Rows whose nearest neighbour is searched, for each of which all rows are read.
_MAX_QUERIES = 2000
_SENTENCE = re.compile(r"[^。！？!?；;\n]+[。！？!?；;\n]*")


class Baseline:
    """One way to answer without a model."""

    name: str
    figures: tuple[str, ...] | None = None

    def fit(self, texts: list[tuple[str, ...]], expected: Any) -> dict:
        """State learned from rows, in plain JSON types.

        Args:
            texts: of the rows.
            expected: as `TaskFiles.expected_answers` returns it.
        """
        return {}

    def answer(self, learned: dict, texts: list[tuple[str, ...]]) -> Any:
        """Answers, as the measure of the task takes them."""
        raise NotImplementedError

    def is_valid(self, learned: Any) -> bool:
        """True if `fit` of these names may have returned it; files hold anything."""
        try:
            return self.accepts(**learned)
        except (AttributeError, TypeError):
            return False

    def accepts(self) -> bool:
        """True if entries of a state are valid; a subclass takes those that it has."""
        return True

    def describe(self, learned: dict) -> dict:
        """Part of it that a report shows."""
        return {}


# === How alike two texts are ===


class Similarity(Baseline):
    """Similarities of the texts of each pair, in another range than the labels."""

    figures: tuple[str, ...] | None = ("spearman", "pearson")

    def cosines(self, learned: dict, first: Sequence[str], second: Sequence[str]):
        """Similarity of the texts of each pair: float `(pairs,)`."""
        raise NotImplementedError

    def answer(self, learned, texts):
        return self.cosines(learned, *zip(*texts, strict=True))


class Jaccard(Similarity):
    """Shared characters divided by all characters of each pair."""

    name = "Jaccard of characters"

    def cosines(self, learned, first, second):
        pairs = [(set(one), set(two)) for one, two in zip(first, second, strict=True)]
        return np.array([len(a & b) / max(len(a | b), 1) for a, b in pairs])


class TfIdf(Similarity):
    """The cosine of the TF-IDF vectors of each pair.

    It learns `texts`, how many there are; and `characters`: in how many of them each
    is. Runs of characters are not kept: they would give away what was written.
    """

    name = "TF-IDF of characters"

    def fit(self, texts, expected=None):
        counts = Counter(
            character
            for row in texts
            for text in row
            for character in set(text.lower())
        )
        total = sum(map(len, texts))
        return {"texts": total, "characters": dict(sorted(counts.items()))}

    def accepts(self, texts, characters):
        counts = characters.values()
        return is_integer(texts) and all(
            is_integer(n) and 0 < n <= texts for n in counts
        )

    def vectors(self, learned: dict, texts: Sequence[str]):
        """Vectors of length 1 by the characters: sparse `(texts, characters)`.

        Characters that the learned texts lack count as the rarest. The logarithm of the
        count of a character is taken, as in scikit-learn's `sublinear_tf`.
        """
        name = "sklearn.feature_extraction.text"
        vectorizer = import_extra(name, "TF-IDF").TfidfVectorizer
        characters = sorted({c for text in texts for c in text.lower()})
        vectors = vectorizer(analyzer="char", vocabulary=characters, sublinear_tf=True)
        counts, total = learned["characters"], learned["texts"]
        vectors.idf_ = np.array(
            [math.log((1 + total) / (1 + counts.get(c, 0))) + 1 for c in characters]
        )
        return vectors.transform(texts)

    def cosines(self, learned, first, second):
        # Fitted together, so that both have the same columns.
        vectors = self.vectors(learned, [*first, *second])
        products = vectors[: len(first)].multiply(vectors[len(first) :])
        return np.asarray(products.sum(axis=1)).ravel()


SIMILARITIES = (Jaccard(), TfIdf())


class _BySimilarity(Baseline):
    """A base of those that learn what a similarity learns."""

    def __init__(self, similarity: Similarity):
        self.similarity, self.name = similarity, similarity.name

    def fit(self, texts, expected):
        return self.similarity.fit(texts, expected)

    def accepts(self, **learned):
        return self.similarity.is_valid(learned)


class PairThreshold(_BySimilarity):
    """One class for pairs of at least some similarity, another for those below."""

    def __init__(self, similarity: Similarity, names: Sequence[str]):
        super().__init__(similarity)
        self.names = list(names)

    def fit(self, texts, expected):
        learned = super().fit(texts, expected)
        cosines = self.similarity.answer(learned, texts)
        return {**learned, **best_threshold(cosines, expected, len(self.names))}

    def accepts(self, threshold, below, above, **learned):
        return (
            _is_finite(threshold)
            and all(is_integer(n) and 0 <= n < len(self.names) for n in (below, above))
            and super().accepts(**learned)
        )

    def answer(self, learned, texts):
        is_above = self.similarity.answer(learned, texts) >= learned["threshold"]
        return np.where(is_above, learned["above"], learned["below"])

    def describe(self, learned):
        sides = {side: self.names[learned[side]] for side in ("below", "above")}
        return {"threshold": learned["threshold"], **sides}


def best_threshold(found: np.ndarray, expected: Sequence[int], count: int) -> dict:
    """The threshold by which most rows are right."""
    order = np.argsort(found, kind="stable")
    values, numbers = found[order], np.asarray(expected)[order]
    # Rows of the most frequent class among the first n, and among the others.
    lower, upper = _mode_counts(numbers, count), _mode_counts(numbers[::-1], count)
    rights = (lower + upper[::-1])[:-1]
    # Equal values are on one side.
    is_cut = np.concatenate([[True], values[1:] > values[:-1]])
    cut = int(np.where(is_cut, rights, -1).argmax())
    above = int(np.bincount(numbers[cut:], minlength=count).argmax())
    if not cut:
        return {"threshold": float(values[0]), "below": above, "above": above}
    below = int(np.bincount(numbers[:cut], minlength=count).argmax())
    threshold = float(values[cut - 1] + values[cut]) / 2
    return {"threshold": threshold, "below": below, "above": above}


def _mode_counts(numbers, count):
    """Rows of the most frequent class among the first n: int64 `(rows + 1,)`."""
    counts = np.zeros(len(numbers) + 1, "int64")
    for number in range(count):
        so_far = np.cumsum(numbers == number)
        counts[1:] = np.maximum(counts[1:], so_far)
    return counts


class NearerText(_BySimilarity):
    """Chooses the text of a triplet that is more like the first."""

    def answer(self, learned, texts):
        anchors, second, third = zip(*texts, strict=True)
        cosines = self.similarity.cosines(learned, [*anchors] * 2, [*second, *third])
        return (cosines[len(texts) :] > cosines[: len(texts)]).astype("int64")


class MostSimilarChoice(_BySimilarity):
    """The choice that is most like the context and the question."""

    def fit(self, texts, expected):
        return super().fit([(*row[:-1], *row[-1]) for row in texts], expected)

    def answer(self, learned, texts):
        pairs = [("".join(row[:-1]), choice) for row in texts for choice in row[-1]]
        cosines = self.similarity.answer(learned, pairs)
        ends = np.cumsum([len(row[-1]) for row in texts])
        return np.array([part.argmax() for part in np.split(cosines, ends[:-1])])


class NearestTexts(TfIdf):
    """The nearest other text by TF-IDF; of many texts only some are searched for."""

    figures = None

    def answer(self, learned, texts):
        rows = np.linspace(0, len(texts), min(len(texts), _MAX_QUERIES), endpoint=False)
        vectors = self.vectors(learned, [text for (text,) in texts])
        return nearest_rows(vectors, rows.astype("int64"))


# === Constants ===


class MostFrequent(Baseline):
    """The class, or the set of classes, that most rows are of."""

    def __init__(self, name: str, count: int, multi_label: bool = False):
        self.name, self.count, self.multi_label = name, count, multi_label

    def fit(self, texts, expected):
        rows, counts = np.unique(expected, axis=0, return_counts=True)
        return {"most_frequent": rows[counts.argmax()].tolist()}

    def accepts(self, most_frequent):
        if self.multi_label:
            return len(most_frequent) == self.count and {*most_frequent} <= {0, 1}
        return is_integer(most_frequent) and 0 <= most_frequent < self.count

    def answer(self, learned, texts):
        return np.array([learned["most_frequent"]] * len(texts))


class Mean(Baseline):
    """The mean of the labels."""

    name, figures = "mean", ("mean_absolute_error",)

    def fit(self, texts, expected):
        return {"mean": float(np.mean(expected))}

    def accepts(self, mean):
        return _is_finite(mean)

    def answer(self, learned, texts):
        return np.full(len(texts), learned["mean"])

    def describe(self, learned):
        return learned


# === Spans and answers ===


class CharacterTags(Baseline):
    """The tag that each character most often has."""

    name = "most frequent tag of each character"

    def __init__(self, nested: bool):
        self.nested = nested

    def fit(self, texts, expected):
        counts: dict = defaultdict(lambda: defaultdict(Counter))
        labels = {label for spans in expected for *_, label in spans}
        layers = sorted(labels) if self.nested else [""]
        for (text,), spans in zip(texts, expected, strict=True):
            for layer in layers:
                tags = ["O"] * len(text)
                for start, end, label in sorted(spans):
                    if layer in ("", label):
                        inside = [f"I-{label}"] * (end - start - 1)
                        tags[start:end] = [f"B-{label}", *inside]
                for character, tag in zip(text, tags, strict=True):
                    counts[layer][character][tag] += 1
        return {
            "tags": {
                layer: {
                    character: tag
                    for character, own in sorted(found.items())
                    # For equal counts, use the first name in the alphabet.
                    if (tag := min(own, key=lambda tag: (-own[tag], tag))) != "O"
                }
                for layer, found in counts.items()
            }
        }

    def accepts(self, tags):
        return all(_is_tag(tag) for layer in tags.values() for tag in layer.values())

    def answer(self, learned, texts):
        return [
            [
                Span(start, end, label, text[start:end], 1.0)
                for tags in learned["tags"].values()
                for start, end, label in spans_of_tags(tags.get(c, "O") for c in text)
            ]
            for (text,) in texts
        ]


class CharacterTriples(CharacterTags):
    """All pairs of subjects and objects of a predicate, by their most frequent tags."""

    name = "subjects and objects by the most frequent tag of each character"

    def __init__(self):
        super().__init__(nested=True)

    def fit(self, texts, expected):
        spans = []
        for (text,), triples in zip(texts, expected, strict=True):
            places = {
                (lower_in_place(text).find(entity), len(entity), f"{predicate}/{role}")
                for *entities, predicate in triples
                for role, entity in enumerate(entities)
            }
            spans.append([(at, at + size, tag) for at, size, tag in places if at >= 0])
        return super().fit(texts, spans)

    def answer(self, learned, texts):
        return [
            [
                (
                    lower_in_place(subject.text),
                    lower_in_place(entity.text),
                    subject.label[:-2],
                )
                for subject in spans
                for entity in spans
                if subject.label.endswith("/0")
                and entity.label == f"{subject.label[:-1]}1"
            ]
            for spans in super().answer(learned, texts)
        ]


def _is_finite(value):
    return isinstance(value, float) and math.isfinite(value)


def _is_tag(tag):
    return isinstance(tag, str) and tag[:2] in ("B-", "I-") and len(tag) > 2


class BestSentence(Baseline):
    """The sentence of the text that has most characters of the question."""

    name = "sentence with most characters of the question"

    def answer(self, learned, texts):
        return [_best_sentence(question, text) for question, text in texts]


def _best_sentence(question, text):
    wanted = set(question)
    sentences = _SENTENCE.findall(text) or [text]
    return max(sentences, key=lambda sentence: len(wanted & set(sentence))).strip()


class NoAnswer(Baseline):
    """That no text has an answer."""

    name = "no answer"

    def answer(self, learned, texts):
        return [None] * len(texts)

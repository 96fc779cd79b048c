"""From records to items: the token ids of a row of a batch, or of a pair."""

import itertools
import math
import re
from typing import NamedTuple

import numpy as np

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import ConfigurationError, Hint, SourceError
from roformer_keras.io.journal import digest
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.words import default_segmenter

# Where a text is cut, in order of preference: after a sentence, with the quotation
# marks that close there, and after a clause or a word.
_CUTS = (
    re.compile("[^\n。！？!?]*[\n。！？!?]+[”’」』）】》〉\"')]*|[^\n。！？!?]+"),
    re.compile("[^；;，,\\s]*[；;，,\\s]+|[^；;，,\\s]+"),
)


class Item(NamedTuple):
    """A batch to train on."""

    ids: tuple
    starts: tuple | None = None
    label: float | None = None


def split_sentences(text: str, longest: int) -> list[str]:
    """Cuts a text into pieces of at most `longest` characters, at ends of sentences.

    It cuts after line feeds and 。！？!? (with closing quotation marks). A sentence
    that is still too long is cut after ；;，, and spaces, a clause that is too long
    anywhere. Neighbours that fit together are joined again, from the left. Pieces have
    no spaces around them, and none is blank.
    """
    pieces, current = [], ""
    for piece in _cut(text, longest, _CUTS):
        if len(current) + len(piece) > longest:
            pieces.append(current)
            current = piece
        else:
            current += piece
    pieces.append(current)
    return [stripped for piece in pieces if (stripped := piece.strip())]


def _cut(text, longest, patterns):
    if len(text) <= longest:
        yield text
    elif patterns:
        for piece in patterns[0].findall(text):
            yield from _cut(piece, longest, patterns[1:])
    else:
        for start in range(0, len(text), longest):
            yield text[start : start + longest]


class _Encoder:
    """Base of the encoders; `max_id` is the largest id that items can have."""

    def __init__(self, tokenizer: RoFormerTokenizer, length: int | None, **options):
        if length is not None:
            # An item needs room for [CLS], a token and [SEP].
            check_integer("length", length, minimum=3)
        self.tokenizer = tokenizer
        self.max_id = tokenizer.vocabulary_size - 1
        self._limit = None if length is None else length - 2
        self._options: dict = {"length": length, **options}

    def identity(self) -> dict:
        """JSON values that are equal if and only if encoders return equal items."""
        return {
            "encoder": type(self).__name__,
            **self._options,
            "tokenizer": _digest(self.tokenizer),
        }

    def _encode(self, text):
        """The ids of a text, and the starts of its words or None."""
        ids = np.array(self.tokenizer.encode(text)[0][1:-1], "int32")
        is_wanted = self._options["whole_word"]
        return ids, self._word_starts(text, len(ids)) if is_wanted else None

    def _word_starts(self, text, length):
        if not length:
            return np.zeros(0, bool)
        words = list(map(len, default_segmenter().cut(text)))
        tokens = self.tokenizer.tokenize(text)[1:-1]
        if tokens == list("".join(text.split())):
            # Without spaces, each character is a token: no search is needed.
            starts = np.zeros(len(text), bool)
            starts[list(itertools.accumulate(words[:-1], initial=0))] = True
            if length < len(text):
                starts = starts[[not character.isspace() for character in text]]
            return starts
        spans = self.tokenizer.offsets(text)[1:-1]
        # The number of the word of each character, then of each token.
        words = np.repeat(np.arange(len(words)), words)
        words = words[[start for start, _ in spans]]
        starts = np.ones(length, bool)
        starts[1:] = words[1:] != words[:-1]
        # jieba ends a word at an accented letter.
        return starts & [not token.startswith("##") for token in tokens]


def _digest(tokenizer):
    return digest([tokenizer.to_dict(), tokenizer.vocabulary])


class DocumentEncoder(_Encoder):
    """Splits documents, the fields of a record, into items of whole sentences."""

    def __init__(
        self, tokenizer: RoFormerTokenizer, length: int | None, whole_word: bool = False
    ):
        super().__init__(tokenizer, length, whole_word=whole_word)

    def __call__(self, record):
        items, limit = [], self._limit
        for document in record:
            pieces = [document] if limit is None else split_sentences(document, limit)
            for piece in pieces:
                ids, starts = self._encode(piece)
                # A character may become several tokens, such as a Hangul syllable.
                step = limit or max(1, len(ids))
                for start in range(0, len(ids), step):
                    span = slice(start, start + step)
                    items.append(
                        Item((ids[span],), None if starts is None else (starts[span],))
                    )
        return items


class PairEncoder(_Encoder):
    """Makes an item from a record of two texts, or of two texts and a label."""

    def __init__(
        self,
        tokenizer: RoFormerTokenizer,
        length: int,
        *,
        whole_word: bool = False,
        labels: tuple | None = None,
        teacher_tokenizer: RoFormerTokenizer | None = None,
    ):
        super().__init__(tokenizer, length, whole_word=whole_word, labels=labels)
        self._labels = labels
        self._teacher = teacher_tokenizer
        if teacher_tokenizer is not None:
            self._options["teacher"] = _digest(teacher_tokenizer)
            self.max_id = max(self.max_id, teacher_tokenizer.vocabulary_size - 1)

    def __call__(self, record):
        label_part = "" if self._labels is None else " and a label"
        if len(record) != (3 if label_part else 2):
            raise SourceError(
                f"a record must be two texts{label_part}, got {len(record)} fields: "
                f"{record!r:.60}",
                hint=Hint("set {fields} of the corpus"),
            )
        texts = [self._encode(text) for text in record[:2]]
        if self._teacher is not None:
            for text in record[:2]:
                ids = np.array(self._teacher.encode(text)[0][1:-1], "int32")
                texts.append((ids, np.ones(len(ids), bool)))
        limit = self._limit
        if not all(len(ids) for ids, _ in texts):
            return []
        label = None if self._labels is None else self._number(record)
        starts = None
        if self._options["whole_word"]:
            starts = tuple(starts[:limit] for _, starts in texts)
        return [Item(tuple(ids[:limit] for ids, _ in texts), starts, label)]

    def _number(self, record):
        a, _, label = record
        try:
            number = float(label)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise SourceError(
                f"the label of a pair must be a number, got {label!r} with {a!r:.60}",
                hint=Hint("set {fields} to the two texts and the label"),
            )
        if self._labels and number not in self._labels:
            raise ConfigurationError(
                f"a label must be one of {', '.join(map(str, self._labels))}, got "
                f"{label!r} with {a!r:.60}: change the data, or set label_sets"
            )
        return number

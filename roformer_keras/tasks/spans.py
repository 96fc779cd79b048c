"""The tokens that spans of a text cover."""

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from roformer_keras.base.errors import ConfigurationError, Hint
from roformer_keras.tables.tagged import are_plain, name_tags
from roformer_keras.tasks.span_labels import Span
from roformer_keras.text.rows import Rows


class SpanRows(Rows):
    """Rows that know the characters of each token."""

    def __init__(self, tokenizer, texts, max_length):
        self.texts = list(texts)
        super().__init__(tokenizer, self.texts, max_length)
        self._offsets, self._uncut = [], []
        for number, row in enumerate(self.texts):
            offsets = np.full((self.lengths[number], 2), -1, "int32")
            text_offsets = offsets_of(tokenizer, row[-1])
            self._uncut.append(text_offsets)
            first = self._firsts[number] if len(row) == 2 else 1
            room = int(self.lengths[number]) - first - 1
            offsets[first : first + min(room, len(text_offsets))] = text_offsets[
                : max(room, 0)
            ]
            self._offsets.append(offsets)

    def offsets(self, number: int) -> np.ndarray:
        """int32 `(lengths[number], 2)`: `[start, end)` of each token, or -1."""
        return self._offsets[number]

    def visible(self, numbers: Sequence[int], width: int) -> np.ndarray:
        """bool `(rows, width)`: where tokens of the text are."""
        visible = np.zeros((len(numbers), width), bool)
        for place, number in enumerate(numbers):
            visible[place, : self.lengths[number]] = self.offsets(number)[:, 0] >= 0
        return visible

    def tokens_of(self, number: int, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token of a span.

        A token that is partly in the span belongs to it. Characters at its edges
        without a token, such as blanks, do not.

        Returns:
            None if a token of the span was cut off, or if it has none at all.
        """
        uncut = self._uncut[self.owners[number]]
        overlapping = uncut[(uncut[:, 1] > start) & (uncut[:, 0] < end)]
        if not len(overlapping):
            return None
        start, end = max(start, overlapping[0, 0]), min(end, overlapping[-1, 1])
        starts, ends = self.offsets(number).T
        inside = np.flatnonzero((starts >= 0) & (ends > start) & (starts < end))
        is_whole = (
            len(inside) and ends[inside[-1]] >= end and starts[inside[0]] <= start
        )
        return (int(inside[0]), int(inside[-1])) if is_whole else None

    def span(self, number: int, first: int, last: int, label, score) -> Span:
        """The tokens from `first` to `last` as a span of the text."""
        offsets = self.offsets(number)
        start, end = int(offsets[first, 0]), int(offsets[last, 1])
        text = self.texts[self.owners[number]][-1]
        return Span(start, end, label, text[start:end], float(score))


def offsets_of(tokenizer, text: str) -> np.ndarray:
    """int32 `(tokens, 2)`: `[start, end)` of each token of a text that is not cut."""
    # `[CLS]` and `[SEP]` have no characters.
    return np.array(tokenizer.offsets(text)[1:-1], "int32").reshape(-1, 2)


# Letters of a span's tokens -> the same, and what stands in for it in other schemes.
_LETTERS = {"S": "SBEIM", "B": "BISME", "I": "IMBES", "E": "EIMBS"}


@functools.lru_cache(maxsize=4096)
def _numbers_of_span(label: str, count: int, tags: tuple[str, ...]) -> list[int]:
    """The numbers of the tags of a span of `count` tokens."""
    if are_plain(tags):
        return [tags.index(label)] * count
    names = name_tags(tags)
    letters = "S" if count == 1 else f"B{'I' * (count - 2)}E"
    return [
        next(
            names.index(f"{kind}-{label}")
            for kind in _LETTERS[letter]
            if f"{kind}-{label}" in names
        )
        for letter in letters
    ]


def padded_spans(
    targets: Sequence[np.ndarray], numbers: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Spans of some rows as `SpanCrossentropy` takes them: int32 `(rows, spans, 3)`."""
    count = max(1, *(len(targets[number]) for number in numbers))
    padded = np.full((len(numbers), count, 3), -1, "int32")
    for place, number in enumerate(numbers):
        padded[place, : len(targets[number])] = targets[number]
    return padded


def tags_of_spans(
    spans: Iterable[tuple[int, int, str]],
    rows: SpanRows,
    number: int,
    tags: Iterable[str],
) -> np.ndarray:
    """The number of a tag for each token; -1 outside the text, and if none is `O`.

    A span with a token that was cut off is left out. Of two neighbours that share a
    token, such as two words in one of Latin letters, the second begins after it.
    """
    tags = tuple(tags)
    outside = tags.index("O") if "O" in tags else -1
    numbers = np.where(rows.offsets(number)[:, 0] >= 0, outside, -1).astype("int32")
    end_before = 0
    for start, end, label in sorted(spans):
        tokens = rows.tokens_of(number, start, end)
        if tokens is None:
            continue
        first, last = tokens
        if start < end_before:
            raise ConfigurationError(
                f"spans must not overlap, got {label} from {start} to {end}",
                row=number,
                hint="use RoFormerSpanExtractor, which finds nested spans",
            )
        end_before = end
        if numbers[first] != outside:
            # Part of the neighbour's last token.
            first += 1
        if first > last:
            raise ConfigurationError(
                f"a span must have a token of its own, but {label} from {start} to "
                f"{end} lies in the token of the span before it",
                row=number,
                hint=Hint(
                    "leave the row out, in files by {on_bad_row:'skip'}, or use "
                    "RoFormerSpanExtractor"
                ),
            )
        numbers[first : last + 1] = _numbers_of_span(label, last + 1 - first, tags)
    return numbers

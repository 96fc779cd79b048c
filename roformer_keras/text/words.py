"""Cuts Chinese text into words, as `jieba.cut(text, HMM=False)` does.

Word-level RoFormer vocabularies were built on that cut, so it must match to the last
tie. The words and frequencies come from jieba's dictionary, see `NOTICE`. The search is
not jieba's: it is faster, needs no cache file, and does not change when other code
calls `jieba.add_word`.
"""

import functools
import gzip
import math
import pathlib
import re
from collections.abc import Iterable

# Characters that jieba looks up in its dictionary; every other character is one item.
_BLOCK = re.compile(r"([\u4E00-\u9FD5a-zA-Z0-9+#&._%\-]+)")
_ALPHANUMERIC = re.compile("[a-zA-Z0-9]")
_NEVER = -math.inf
_DICTIONARY = pathlib.Path(__file__).with_name("words.txt.gz")


class Segmenter:
    """Cuts text along the most probable route through a word-frequency dictionary.

    The score of a route is the sum of `log(frequency) - log(total)` over its words;
    a character that begins no word counts as a word of frequency 1. Of two equal
    scores, the one with the longer first word wins. Neighbouring words of one ASCII
    letter or digit are joined at the end.

    Source: jieba 0.42.1, `Tokenizer.cut` with `HMM=False`.
    """

    def __init__(self, entries: Iterable[tuple[str, int]]):
        frequencies = {}
        total = 0
        for word, frequency in entries:
            frequencies[word] = frequency
            total += frequency
        log_total = math.log(total)

        @functools.cache
        def weight(frequency):
            return math.log(frequency) - log_total if frequency else _NEVER

        # First character -> {following characters: weight}. A mere prefix of words is
        # there too, with a weight that lets the search continue and never wins.
        words_from: dict[str, dict[str, float]] = {}
        for word, frequency in frequencies.items():
            rests = words_from.setdefault(word[0], {"": _NEVER})
            rests[word[1:]] = weight(frequency)
            for end in range(2, len(word)):
                rests.setdefault(word[1:end], _NEVER)
        self._heads = {
            head: (rests.pop(""), rests.get) for head, rests in words_from.items()
        }
        self._lone_weight = -log_total
        none: dict[str, float] = {}
        self._unknown_head = (self._lone_weight, none.get)

    def cut(self, text: str) -> list[str]:
        """Cuts `text` into items whose concatenation is `text`.

        The items equal jieba's, except that "\\r\\n" is two items.
        """
        items = []
        for position, block in enumerate(_BLOCK.split(text)):
            if position % 2:
                items.extend(self._cut_block(block))
            else:
                items.extend(block)
        return items

    def _cut_block(self, block):
        ends = self._best_ends(block)
        words = []
        start = 0
        while start < len(block):
            words.append(block[start : ends[start]])
            start = ends[start]
        return _join_alphanumerics(words) if _ALPHANUMERIC.search(block) else words

    def _best_ends(self, block):
        """For each start, the end of the first word of the best route from there."""
        # Words hold no line feed, so no match runs past the end of the block.
        padded = block + "\n"
        scores = [0.0] * len(padded)
        ends = [0] * len(block)
        head_of = self._heads.get
        second, second_character = len(block), "\n"
        for character in reversed(block):
            start = second - 1
            weight, weight_of = head_of(character, self._unknown_head)
            best, best_end = weight + scores[second], second
            end = second + 1
            weight = weight_of(second_character)
            while weight is not None:
                score = weight + scores[end]
                if score >= best:
                    best, best_end = score, end
                end += 1
                weight = weight_of(padded[second:end])
            if best == _NEVER:
                best, best_end = self._lone_weight + scores[second], second
            scores[start], ends[start] = best, best_end
            second, second_character = start, character
        return ends


def _join_alphanumerics(words):
    joined = []
    letters = ""
    for word in words:
        if _ALPHANUMERIC.fullmatch(word):
            letters += word
            continue
        if letters:
            joined.append(letters)
            letters = ""
        joined.append(word)
    return [*joined, letters] if letters else joined


@functools.cache
def default_segmenter() -> Segmenter:
    """The segmenter of jieba's default dictionary, read once in a process."""
    return Segmenter(_read_entries(_DICTIONARY))


def _read_entries(path):
    """Yields (word, frequency) from lines of `word frequency`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            word, frequency = line.split(" ")
            yield word, int(frequency)

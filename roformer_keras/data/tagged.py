"""Files of tags (.bio, .conll): a token and its tag a line."""

import itertools
import logging
from collections.abc import Iterator

from roformer_keras.data.lines import file_name, place_line, read_lines
from roformer_keras.errors import SourceError

_LOGGER = logging.getLogger(__name__)


def read_tagged(path: str, count: int) -> Iterator[tuple[int, list]]:
    """Line numbers, and the text and its tags, one of each character.

    Args:
        path: of the file.
        count: int. Texts of a row, which must be 1.

    Raises:
        SourceError: a line is no token and tag, or a row has several texts.
    """
    if count != 1:
        raise SourceError(
            f"{file_name(path)} has tags, which are for tasks of one text a row"
        )
    texts: list[tuple[int, list]] = []
    is_inside = False
    for line, text in read_lines(path):
        words = text.split()
        if not words:
            is_inside = False
            continue
        if len(words) < 2:
            raise SourceError(
                f"{place_line(line, path)} must be a token and its tag, got "
                f"{text!r:.60}"
            )
        if not is_inside:
            texts.append((line, []))
        is_inside = True
        texts[-1][1].append((words[0], words[-1]))
    has_places = all(_have_places([token for token, _ in found]) for _, found in texts)
    if texts and has_places:
        _LOGGER.info(
            "%s has a number after each character, its place in a word; it is left out",
            file_name(path),
        )
    for begins, tokens in texts:
        if has_places:
            tokens = [(token[0], tag) for token, tag in tokens]
        yield (
            begins,
            [
                "".join(token for token, _ in tokens),
                [tag for token, whole in tokens for tag in _tags_of(token, whole)],
            ],
        )


def _have_places(tokens):
    """Whether each token is a character and its place in a word: 0, 1, 2, 0, 0, ...

    So is the first column of Weibo's corpus of entities.
    """
    if not all(len(token) > 1 and token[1:].isdecimal() for token in tokens):
        return False
    # int() takes no number of thousands of digits.
    places = [int(token[1:]) for token in tokens if len(token) < 10]
    pairs = itertools.pairwise([-1, *places])
    is_row = all(place in (0, before + 1) for before, place in pairs)
    return is_row and len(places) == len(tokens)


def _tags_of(token, tag):
    """A tag for each character of a token."""
    kind, label, more = tag[:1], tag[1:], len(token) - 1
    if not more or not label:
        return [tag] * (more + 1)
    # The first and the last character of a token that begins and ends a span.
    first = {"S": "B", "E": "I"}.get(kind, kind)
    last = {"S": "E", "B": "I"}.get(kind, kind)
    return [first + label, *["I" + label] * (more - 1), last + label]

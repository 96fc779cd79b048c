"""Files of tags (.bio, .conll): a token and its tag a line."""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

from roformer_keras.data.lines import file_name, place_line, read_lines
from roformer_keras.errors import SourceError

_LOGGER = logging.getLogger(__name__)


def read_tagged(path: str, count: int) -> Iterator[tuple[int, Any]]:
    """Line numbers, and the text and its tags, one of each character.

    In place of a text with a line that is no token and tag, its SourceError. Lines
    `-DOCSTART-`, between the documents of CoNLL, are left out.

    Args:
        path: of the file.
        count: int. Texts of a row, which must be 1.

    Raises:
        SourceError: a row has several texts.
    """
    if count != 1:
        raise SourceError(
            f"{file_name(path)} has tags, which are for tasks of one text a row"
        )
    texts: list[tuple[int, list]] = []
    errors: dict[int, SourceError] = {}
    is_inside = False
    for line, text in read_lines(path):
        if not text.strip() or text.startswith("-DOCSTART-"):
            is_inside = False
            continue
        if not is_inside:
            texts.append((line, []))
        is_inside = True
        begins, tokens = texts[-1]
        words = _words_of(text)
        if len(words) > 1:
            tokens.append((words[0], words[-1]))
        else:
            error = SourceError(
                f"{place_line(line, path)} must be a token and its tag, got "
                f"{text!r:.60}"
            )
            errors.setdefault(begins, error)
    readable = [tokens for begins, tokens in texts if begins not in errors]
    has_places = all(_have_places([token for token, _ in found]) for found in readable)
    if readable and has_places:
        _LOGGER.info(
            "%s has a number after each character, its place in a word; it is left out",
            file_name(path),
        )
    for begins, tokens in texts:
        if begins in errors:
            yield begins, errors[begins]
            continue
        if has_places:
            tokens = [(token[0], tag) for token, tag in tokens]
        yield (
            begins,
            [
                "".join(token for token, _ in tokens),
                [tag for token, whole in tokens for tag in _tags_of(token, whole)],
            ],
        )


def _words_of(text):
    """The columns of a line, with tabs or else spaces between them.

    With tabs a token may have spaces, or be one.
    """
    text = text.rstrip()
    if "\t" not in text:
        return text.split()
    token, *others = text.split("\t")
    return [token.strip() or token, *(other.strip() for other in others)]


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

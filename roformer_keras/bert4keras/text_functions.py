"""Functions of texts and token lists, and the file reader of scripts."""

import builtins
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.base.types import Unchecked


def is_string(s: Unchecked) -> bool:
    """True if it is a str."""
    return isinstance(s, str)


def is_one_of(x: Unchecked, ys: Iterable) -> bool:
    """True if `ys` has the object `x`, and not just an equal one."""
    return any(x is y for y in ys)


# Full-width ASCII and the ideographic space.
_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def strQ2B(ustring: str) -> str:
    """The text with ASCII in place of full-width characters."""
    return ustring.translate(_HALF_WIDTH)


def string_matching(s: str, keywords: Iterable[str]) -> bool:
    """True if one of the regular expressions matches somewhere in the text."""
    return any(re.search(keyword, s) for keyword in keywords)


def convert_to_unicode(
    text: str | bytes, encoding: str = "utf-8", errors: str = "ignore"
) -> str:
    """The text as str, decoded if it is bytes."""
    return text.decode(encoding, errors) if isinstance(text, bytes) else text


# In Python 3 both are str.
convert_to_str = convert_to_unicode


def lowercase_and_normalize(text: str) -> str:
    """The text in lower case, decomposed (NFD), without combining marks."""
    text = unicodedata.normalize("NFD", text.lower())
    return "".join(one for one in text if unicodedata.category(one) != "Mn")


def truncate_sequences(
    maxlen: int, indices: int | Sequence[int], *sequences: list | None
) -> list[list]:
    """Removes elements in place, from the longest sequence, the first of them.

    Args:
        maxlen: int. How many elements all sequences may have together.
        indices: int, or one for each sequence that is not empty: which one to remove,
            as in `list.pop`.
        sequences: lists; empty ones and None are left out.

    Returns:
        list of the lists that are not empty.
    """
    filled = [one for one in sequences if one]
    if isinstance(indices, int | np.integer):
        indices = [int(indices)] * len(filled)
    while sum(map(len, filled)) > maxlen:
        longest = max(range(len(filled)), key=lambda place: len(filled[place]))
        filled[longest].pop(indices[longest])
    return filled


def text_segmentate(
    text: str, maxlen: int, seps: str = "\n", strips: str | None = None
) -> list[str]:
    """Divides a text into pieces, if possible of at most `maxlen` characters.

    Args:
        text: str.
        maxlen: int, at least 1.
        seps: characters to divide at, the preferred one first.
        strips: characters to strip from each piece, besides spaces.
    """
    text = text.strip().strip(strips)
    if not seps or len(text) <= maxlen:
        return [text]
    separator, other_separators = seps[0], seps[1:]
    parts = text.split(separator)
    parts[:-1] = [part + separator for part in parts[:-1]]
    pieces: list[str] = []
    joined = ""
    for place, part in enumerate(parts):
        # Separators do not count here, except for the one at the end of a piece.
        size = len(part) - (place + 1 < len(parts))
        if joined and size and len(joined) + size > maxlen - 1:
            pieces += text_segmentate(joined, maxlen, other_separators, strips)
            joined = ""
        joined += part
    if joined:
        pieces += text_segmentate(joined, maxlen, other_separators, strips)
    return pieces


def open(
    name: str | os.PathLike,
    mode: str = "r",
    encoding: str | None = None,
    errors: str = "strict",
    indexable: Unchecked = False,
) -> IO:
    """Python's `open`, which also decodes a file that is opened as bytes.

    Args:
        name, mode, encoding, errors: as in Python's `open`.
        indexable: must be False.

    Raises:
        ConfigurationError: `indexable` is set.
    """
    if indexable:
        raise ConfigurationError(explain_withdrawn("indexable="))
    if "b" not in mode:
        return builtins.open(name, mode, encoding=encoding, errors=errors)
    if encoding is None:
        return builtins.open(name, mode)
    mode = mode.replace("b", "")
    # Only a line feed ends a line, as in bytes.
    return builtins.open(name, mode, encoding=encoding, errors=errors, newline="\n")

"""Functions of texts and token lists, and the file reader of scripts."""

import builtins
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np


def is_string(s: Any) -> bool:
    """True if it is a str."""
    return isinstance(s, str)


def is_one_of(x: Any, ys: Iterable) -> bool:
    """True if `x` is one of `ys` itself, and not just equal to one."""
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


class open:
    """Python's `open`, whose lines can be reached by their number.

    Args:
        name, mode, encoding, errors: as in Python's `open`.
        indexable: bool, or str: whether to index the lines of the file; with a str the
            index is read from that path, or written to it if there is no such file.

    Attributes:
        offsets: list of int, with an index: where each line starts.
    """

    def __init__(
        self,
        name: str | os.PathLike,
        mode: str = "r",
        encoding: str | None = None,
        errors: str = "strict",
        indexable: bool | str = False,
    ):
        self.name = name
        if "b" in mode:
            self.file: Any = builtins.open(name, mode)  # noqa: SIM115
        else:
            self.file = builtins.open(  # noqa: SIM115
                name, mode, encoding=encoding, errors=errors
            )
        self.encoding = encoding
        self.errors = errors
        self.iterator: Iterator | None = None
        if indexable:
            self._read_index(indexable)

    def _read_index(self, indexable):
        if isinstance(indexable, str) and os.path.exists(indexable):
            with builtins.open(indexable, encoding="utf-8") as file:
                self.offsets: list[int] = json.load(file)
            return
        self.create_indexes()
        if isinstance(indexable, str):
            with builtins.open(indexable, "w", encoding="utf-8") as file:
                json.dump(self.offsets, file)

    def create_indexes(self) -> None:
        """Finds where each line starts."""
        self.offsets = []
        offset = 0
        while self.readline():
            self.offsets.append(offset)
            offset = self.tell()
        self.seek(0)

    def _as_text(self, text):
        if self.encoding:
            return convert_to_unicode(text, self.encoding, self.errors)
        return text

    def __getitem__(self, key: int) -> Any:
        self.seek(self.offsets[key])
        return self.readline()

    def __len__(self) -> int:
        if not hasattr(self, "offsets"):
            # What `list` expects of a file without a length.
            raise TypeError("a file has a length with indexable=True only")
        return len(self.offsets)

    def __iter__(self) -> Iterator:
        return map(self._as_text, self.file)

    def __next__(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self)
        return next(self.iterator)

    next = __next__

    def read(self) -> Any:
        """The rest of the file."""
        return self._as_text(self.file.read())

    def readline(self) -> Any:
        """The next line."""
        return self._as_text(self.file.readline())

    def readlines(self) -> list:
        """The lines that follow."""
        return list(map(self._as_text, self.file.readlines()))

    def write(self, text: Any) -> None:
        """Writes a text."""
        self.file.write(self._as_text(text))

    def __getattr__(self, name: str) -> Any:
        # Such as `tell` and `close`.
        if name in ("file", "offsets"):
            raise AttributeError(name)
        return getattr(self.file, name)

    def seek(self, offset: int = 0) -> int:
        """Moves to a position."""
        return self.file.seek(offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

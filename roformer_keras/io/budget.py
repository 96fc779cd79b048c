"""What a file may become when it is read: one rule for every reader of rows.

A small file can ask for much: packed lines, pages of Parquet and parts of workbooks
unpack to a thousand times their size, a million cells may name one long text, and
passages are repeated for each of their questions. So what is made of a file is counted
while it is read, in bytes of memory, and compared with the size of the file.
"""

import math
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from roformer_keras.errors import SourceError

# Bytes that any file may become, which are read within two seconds; and how many times
# its size. Chinese texts of ten characters are 16 bytes each in a gzip and 160 in
# memory; a Parquet file in which texts repeat so that zstd makes them 30 times smaller
# becomes 90 to 160 times its size. What is beyond 200 is made to be so.
EXEMPT, MAX_RATIO = 2**26, 200
# Bytes of a row, of which a hostile file can have any number.
MAX_ROW = 2**26
# Blank lines or rows more than others: a sheet of Excel has so many rows.
MAX_BLANK = 2**20
# Bytes of memory for each byte of JSON that is parsed as a whole; those of tokens with
# numbers of tags become 17 times their size.
_JSON_RATIO = 24
# Bytes of a text without its characters, and of the error that replaces a row.
VALUE, _ERROR = 64, 512
_TEXTS = frozenset([str])


class Budget:
    """Counts what is made of a file.

    Args:
        label: what errors call the file.
        size: of the file in bytes; infinite for a stream, whose size nobody knows.

    Attributes:
        limit: bytes that the file may become.
    """

    def __init__(self, label: str, size: float):
        self._label, self._spent = label, 0
        self.limit = max(EXEMPT, MAX_RATIO * size)

    @classmethod
    def of_files(cls, label: str, paths: Iterable[str]) -> "Budget":
        """The budget of some files; without a limit if one is a stream or missing."""
        sizes = [os.path.getsize(p) if os.path.isfile(p) else math.inf for p in paths]
        return cls(label, sum(sizes))

    @classmethod
    def like(cls, other: "Budget") -> "Budget":
        """A budget of the same file, of which nothing is spent."""
        return cls(other._label, other.limit / MAX_RATIO)

    def spend(self, amount: int) -> None:
        """Counts some bytes.

        Raises:
            SourceError: the file becomes more than it may.
        """
        self._spent += amount
        self.check(self._spent)

    def check(self, size: int) -> None:
        """Raises SourceError if the file becomes so many bytes, and may not."""
        if size > self.limit:
            raise SourceError(
                f"{self._label} must take at most {self.limit:,.0f} bytes in memory, "
                f"{MAX_RATIO} times its size or {EXEMPT // 2**20} MiB, and takes "
                f"{size:,.0f} or more",
                hint="if you trust it, write its rows as .jsonl or .csv that is not "
                "packed, or split it into smaller files",
            )

    def rows(self, rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """The numbers and values of rows, which are counted.

        Raises:
            SourceError: a row, or the file, becomes more than it may.
        """
        size_of, limit = sys.getsizeof, self.limit
        for line, values in rows:
            if type(values) is list and _TEXTS.issuperset(map(type, values)):
                # As below, at less cost for each row.
                size = 64 + sum(map(size_of, values)) + 8 * len(values)
            else:
                size = _ERROR if isinstance(values, Exception) else memory_of(values)
            self._spent += size
            if size > MAX_ROW or self._spent > limit:
                self.check_row(size)
                self.check(self._spent)
            yield line, values

    def spend_line(self, text: str) -> None:
        """Counts a line of JSON before it is parsed; raises as `spend`, `check_row`."""
        size = memory_of_json(text)
        self.check_row(size)
        self.spend(size)

    def check_row(self, size: int) -> None:
        """Raises SourceError if a row of so many bytes is too large."""
        if size > MAX_ROW:
            raise SourceError(
                f"a row of {self._label} must take at most {MAX_ROW:,} bytes in "
                f"memory, got {size:,}",
                hint="split its text",
            )


def check_json(text: str, label: str, hint: str | None = None) -> None:
    """Raises SourceError if one value of JSON becomes more than it may.

    Args:
        text: of the value, which is not parsed.
        label, hint: of the error.
    """
    if (size := memory_of_json(text)) > max(EXEMPT, _JSON_RATIO * len(text)):
        raise SourceError(
            f"{label} must take at most {_JSON_RATIO} times its size in memory, as it "
            f"is one JSON value, and takes {size:,} bytes or more",
            hint=hint,
        )


def check_blank(blank: int, line: int, label: str) -> None:
    """Raises SourceError if a file has far more blank lines than others.

    Args:
        blank: blank lines or rows so far.
        line: all so far.
        label: what errors call the file.
    """
    if 2 * blank > line + MAX_BLANK:
        raise SourceError(
            f"{label} must have at most {MAX_BLANK:,} more blank lines than others, "
            f"and has {blank:,} of the first {line:,}",
            hint="leave them out",
        )


def memory_of(value: Any) -> int:
    """Bytes of a value of JSON or of a row, with those of all that is in it."""
    total, lists = 8 + sys.getsizeof(value), [value]
    while lists:
        parts = lists.pop()
        if isinstance(parts, dict):
            parts = [*parts, *parts.values()]
        elif not isinstance(parts, list | tuple):
            continue
        total += 8 * len(parts) + sum(map(sys.getsizeof, parts))
        # Most rows are of texts.
        if not _TEXTS.issuperset(map(type, parts)):
            lists += parts
    return total


def memory_of_json(text: str) -> int:
    """Bytes that a JSON text becomes, about, without parsing it."""
    # An empty list is two characters; a dict begins with 200 bytes and some work.
    lists, dicts, others = map(text.count, "[{,")
    return len(text) + 64 * (lists + others) + 256 * dicts

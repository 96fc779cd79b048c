"""Lines of text files and of standard input, packed or not, in any encoding."""

import codecs
import contextlib
import functools
import gzip
import io
import lzma
import math
import mmap
import os
import sys
import zlib
from collections.abc import Iterator

from roformer_keras.checks import check_no_pipe
from roformer_keras.errors import Hint, SourceError
from roformer_keras.io.budget import (
    MAX_ROW,
    Budget,
    check_blank,
    check_json,
    memory_of_json,
)
from roformer_keras.io.declared_sizes import packed_size

# Of other formats in an .xz, lzma takes zeros after the end for many empty files.
OPENERS = {
    ".gz": gzip.open,
    ".xz": functools.partial(lzma.open, format=lzma.FORMAT_XZ),
}
UTF_8 = "utf-8"
# Bytes of a line, of which /dev/zero has any number.
_LONGEST_LINE = MAX_ROW
# Bytes that are tried together.
_BLOCK = 2**16
# Bytes of a packed file beyond twice those that it became, such as its headers, zeros
# at its end and empty parts, of which gzip reads each in microseconds.
_MAX_IDLE = 2**20


def file_name(path: str) -> str:
    """Name of a file in errors."""
    return "standard input" if path == "-" else path


def place_line(line: int, path: str) -> str:
    """Position of a line, as errors say it."""
    return f"line {line} of {file_name(path)}"


def read_lines(path: str, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines, with their ends.

    Args:
        path: of the file; "-" is standard input.
        encoding: of `types.FileEncoding`.

    Raises:
        SourceError: the file cannot be read, is of another encoding, or is packed and
            becomes more than it may.
    """
    number = blank = 0
    try:
        with _open(path) as file:
            budget = _packed_budget(path) if _opener(path) else None
            if encoding in ("auto", "utf-16"):
                file, encoding = _detect(file, path, budget, encoding)
            for number, size, text in _decoded(file, encoding):
                if size > _LONGEST_LINE:
                    raise SourceError(
                        f"{place_line(number, path)} must be of at most "
                        f"{_LONGEST_LINE:,} bytes"
                    )
                if budget is not None:
                    budget.spend(sys.getsizeof(text))
                if text.isspace():
                    blank += 1
                    check_blank(blank, number, file_name(path))
                yield number, text
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{place_line(number + 1, path)} must be {encoding.upper()}: {error}",
            hint=Hint(
                "give its encoding, such as {encoding:'gbk'}, or {encoding:'auto'}; or "
                "convert it, for instance with iconv"
            ),
        ) from error
    except SourceError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f" after line {number}" if number else ""
        raise SourceError(f"cannot read {file_name(path)}{where}: {reason}") from error


def read_json_text(path: str, encoding: str = UTF_8) -> str:
    """The text of a file that is one JSON value; arguments as in `read_lines`.

    Raises:
        SourceError: as in `read_lines`, or its value would be more than it may.
    """
    text = "".join(line for _, line in read_lines(path, encoding))
    budget_of(path).check(memory_of_json(text))
    hint = "if you trust it, write its rows as .jsonl"
    check_json(text, file_name(path), hint)
    return text


def budget_of(path: str) -> Budget:
    """The budget of a file; a stream, whose size nobody knows, has no limit."""
    return Budget.of_files(file_name(path), [path])


def _packed_budget(path):
    """The budget of a packed file, which is not beyond it before a line is read."""
    budget, ending = budget_of(path), os.path.splitext(path)[1].lower()
    if not os.path.isfile(path) or not os.path.getsize(path):
        return budget
    with (
        open(path, "rb") as packed,
        mmap.mmap(packed.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        size = packed_size(data, ending)
    total = 0
    with _open(path) as file:
        # Chinese texts take two bytes in memory of three in UTF-8. What the end says is
        # not believed, as a file that is cut off ends with any bytes.
        while size * 2 // 3 > budget.limit and (block := file.read(_BLOCK)):
            total += len(block)
            budget.check(total * 2 // 3)
    return budget


def decode_line(line: bytes, number: int, encoding: str, errors: str = "strict") -> str:
    """The text of a line, without the mark of UTF-8 at the begin of a file.

    Args:
        line: the bytes.
        number: of the line, from 1.
        encoding: of the file.
        errors: as in `bytes.decode`.
    """
    is_marked = number == 1 and encoding == UTF_8
    return line.decode("utf-8-sig" if is_marked else encoding, errors)


class Lines:
    """Lines that can be read several times, also those of a pipe.

    Args:
        path, encoding: as in `read_lines`.
    """

    def __init__(self, path: str, encoding: str = UTF_8):
        self.path, self._encoding = path, encoding
        self._kept: list | None = None

    def __iter__(self) -> Iterator[tuple[int, str]]:
        if self._kept is None and not os.path.isfile(self.path):
            self._kept = list(read_lines(self.path, self._encoding))
        if self._kept is None:
            return read_lines(self.path, self._encoding)
        return iter(self._kept)


def _decoded(file, encoding):
    """Number, size and text of each line; a line that is too long is cut."""
    if encoding.startswith("utf-16"):
        # A line feed is two bytes, and each of them part of other characters.
        text = io.TextIOWrapper(file, encoding, newline="\n")
        try:
            lines = iter(lambda: text.readline(_LONGEST_LINE + 1), "")
            for number, line in enumerate(lines, start=1):
                yield number, len(line), line
        finally:
            # An error closes the file first.
            with contextlib.suppress(ValueError):
                text.detach()
        return
    lines = iter(lambda: file.readline(_LONGEST_LINE + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE:
            yield number, len(line), ""
        yield number, len(line), decode_line(line, number, encoding)


def _detect(file, path, budget, encoding):
    """A file at its begin, and its encoding: of "utf-16" the order of the bytes."""
    if not file.seekable():
        file = io.BytesIO(file.read())
    head = file.read(_BLOCK)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        candidates = ["utf-16"]
    elif b"\0" in head or encoding == "utf-16":
        # Without a mark: characters below 256 have a zero as their high byte.
        is_little = head[1::2].count(0) >= head[::2].count(0)
        candidates = ["utf-16-le" if is_little else "utf-16-be"]
    else:
        candidates = [UTF_8, "gb18030"]
    if encoding == "utf-16":
        file.seek(0)
        return file, candidates[0]
    for encoding in candidates:
        file.seek(0)
        decoder, total = codecs.getincrementaldecoder(encoding)(), 0
        limit = math.inf if budget is None else budget.limit
        try:
            while total <= limit and (block := file.read(_BLOCK)):
                total += len(block)
                decoder.decode(block)
            decoder.decode(b"", final=total <= limit)
        except UnicodeDecodeError:
            continue
        file.seek(0)
        return file, encoding
    raise SourceError(
        f"{file_name(path)} must be UTF-8, UTF-16 or GB18030, and is none of them",
        hint=Hint("give its encoding, such as {encoding:'big5'}"),
    )


def _opener(path):
    """The function that opens a packed file; None of others."""
    return OPENERS.get(os.path.splitext(path)[1].lower())


def _open(path):
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    check_no_pipe(path, "read it from standard input as -")
    opener = _opener(path)
    if opener is None:
        return open(path, "rb")
    return io.BufferedReader(_Unpacked(path, opener), _BLOCK)


class _Packed(io.FileIO):
    """A packed file, of which a part becomes some bytes before the next is read.

    Attributes:
        left: bytes that may be read.
    """

    def __init__(self, path: str):
        super().__init__(path)
        self._path, self.left = path, _MAX_IDLE

    def readinto(self, buffer, /):
        size = super().readinto(buffer)
        self.left -= size
        if self.left < 0:
            raise SourceError(
                f"{self._path} must hold packed text, and has parts of "
                f"{_MAX_IDLE // 2**20} MiB or more that hold none",
                hint="if you trust it, unpack it",
            )
        return size


class _Unpacked(io.RawIOBase):
    """The bytes that a packed file becomes."""

    def __init__(self, path, opener):
        self._packed = _Packed(path)
        self._source = io.BufferedReader(self._packed, _BLOCK)
        self._file = opener(self._source)

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET, /):
        return self._file.seek(offset, whence)

    def readinto(self, buffer, /):
        size = self._file.readinto(buffer)
        self._packed.left += 2 * size
        return size

    def close(self):
        self._file.close()
        self._source.close()
        super().close()

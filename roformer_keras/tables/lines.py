"""Lines of text files and of standard input, packed or not, in any encoding."""

import codecs
import contextlib
import functools
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import Hint, SourceError

# In other formats in an .xz, lzma takes zeros after the end for many empty files.
OPENERS = {
    ".gz": gzip.open,
    ".xz": functools.partial(lzma.open, format=lzma.FORMAT_XZ),
}
UTF_8 = "utf-8"
# Bytes that are tried together.
_BLOCK = 2**16


def file_name(path: str) -> str:
    """Name of a file in errors."""
    return "standard input" if path == "-" else path


def place_line(line: int, path: str) -> str:
    """Position of a line, as errors say it."""
    return f"line {line} of {file_name(path)}"


def read_lines(path: str, encoding: str = UTF_8) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines, with their ends."""
    if path != "-":
        check_file(path, "read it from standard input as -")
    number = 0
    try:
        with _open(path) as file:
            if encoding in ("auto", "utf-16"):
                file, encoding = _detect(file, path, encoding)
            for number, text in _decoded(file, encoding):
                yield number, text
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{place_line(number + 1, path)} must be {encoding.upper()}: {error}",
            hint=Hint(
                "give its encoding, such as {encoding:'gbk'}, or {encoding:'auto'}; or "
                "convert it, for instance with iconv"
            ),
        ) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f" after line {number}" if number else ""
        raise SourceError(f"cannot read {file_name(path)}{where}: {reason}") from error


def read_text(path: str, encoding: str = UTF_8) -> str:
    """The whole text of a file; arguments and errors as in `read_lines`."""
    return "".join(line for _, line in read_lines(path, encoding))


class Lines:
    """Lines that can be read several times, also those of a pipe."""

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
    """Number and text of each line."""
    if encoding.startswith("utf-16"):
        # A line feed is two bytes, and each of them part of other characters.
        text = io.TextIOWrapper(file, encoding, newline="\n")
        try:
            yield from enumerate(text, start=1)
        finally:
            # An error closes the file first.
            with contextlib.suppress(ValueError):
                text.detach()
        return
    for number, line in enumerate(file, start=1):
        # A file of UTF-8 may begin with a mark.
        is_marked = number == 1 and encoding == UTF_8
        yield number, line.decode("utf-8-sig" if is_marked else encoding)


def _detect(file, path, encoding):
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
    for candidate in candidates:
        file.seek(0)
        # With "utf-16", the reader of lines names the line that is damaged.
        if encoding == "utf-16" or _is_encoded(file, candidate):
            file.seek(0)
            return file, candidate
    raise SourceError(
        f"{file_name(path)} must be UTF-8, UTF-16 or GB18030, and is none of them",
        hint=Hint("give its encoding, such as {encoding:'big5'}"),
    )


def _is_encoded(file, encoding):
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while block := file.read(_BLOCK):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _open(path):
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return OPENERS.get(os.path.splitext(path)[1].lower(), open)(path, "rb")

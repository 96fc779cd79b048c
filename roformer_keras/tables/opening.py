"""Files of tables, opened: paths and URIs, packed or not, in any encoding."""

import codecs
import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import Hint, RoFormerError, SourceError
from roformer_keras.base.extras import import_extra
from roformer_keras.tables.table import Place

UTF_8 = "utf-8"
# Bytes that are tried together.
_BLOCK = 2**16


def _open_zstd(file: IO[bytes]) -> IO[bytes]:
    arrow = import_extra("pyarrow", "a .zst file")
    return io.BufferedReader(arrow.CompressedInputStream(file, "zstd"))


# In other formats in an .xz, lzma takes zeros after the end for many empty files.
UNPACKERS: Mapping[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": functools.partial(lzma.open, format=lzma.FORMAT_XZ),
    ".zst": _open_zstd,
}


def is_uri(path: str) -> bool:
    """True for what `fsspec` opens, such as `s3://bucket/texts.jsonl`."""
    return "://" in path


@dataclasses.dataclass(frozen=True)
class File:
    """A file that a table is read from.

    Args:
        path: of the file, a URI, or "-" for standard input.
        encoding: of its text; `"auto"` tries some.
        unit: what `place` counts, `"line"` or `"row"`.
    """

    path: str
    encoding: str = UTF_8
    unit: str = "line"

    @property
    def name(self) -> str:
        """The file as errors say it."""
        return "standard input" if self.path == "-" else self.path

    def place(self, number: int) -> Place:
        """The place of a line or row."""
        return Place(number, self.name, self.unit)

    @contextlib.contextmanager
    def open(self, seeks: bool = False) -> Iterator[IO[bytes]]:
        """The unpacked bytes; `seeks` are for readers that jump in them."""
        with contextlib.ExitStack() as stack:
            try:
                file = self._raw(stack)
                unpack = UNPACKERS.get(os.path.splitext(self.path)[1].lower())
                if unpack is not None:
                    file = stack.enter_context(unpack(file))
                if seeks and not file.seekable():
                    file = io.BytesIO(file.read())
            except RoFormerError:
                raise
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                raise self._unreadable(error) from error
            yield file

    def _raw(self, stack: contextlib.ExitStack) -> IO[bytes]:
        if self.path == "-":
            return sys.stdin.buffer
        if not is_uri(self.path):
            check_file(self.path, "read it from standard input as -")
            return stack.enter_context(open(self.path, "rb"))
        fsspec = import_extra("fsspec", "a file at a URI")
        try:
            return stack.enter_context(fsspec.open(self.path, "rb"))
        # File systems raise errors of many types.
        except Exception as error:
            raise self._unreadable(error) from error

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbers and texts of the lines, with their ends."""
        number, encoding = 0, self.encoding
        try:
            with self.open() as file:
                if encoding in ("auto", "utf-16"):
                    file, encoding = self._detect(file)
                for number, text in _decoded(file, encoding):
                    yield number, text
        except RoFormerError:
            raise
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self.place(number + 1)} must be {encoding.upper()}: {error}",
                hint=Hint(
                    "give its encoding, such as {encoding:'gbk'}, or "
                    "{encoding:'auto'}; or convert it, for instance with iconv"
                ),
            ) from error
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            where = f" after line {number}" if number else ""
            raise self._unreadable(error, where) from error

    def text(self) -> str:
        """The whole text; errors as in `lines`."""
        lines = dataclasses.replace(self, unit="line").lines()
        return "".join(line for _, line in lines)

    def _unreadable(self, error: Exception, where: str = "") -> SourceError:
        reason = getattr(error, "strerror", None) or str(error)
        return SourceError(f"cannot read {self.name}{where}: {reason}")

    def _detect(self, file: IO[bytes]) -> tuple[IO[bytes], str]:
        """The file at its begin, and its encoding: of "utf-16" the order of bytes."""
        if not file.seekable():
            file = io.BytesIO(file.read())
        head = file.read(_BLOCK)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            candidates = ["utf-16"]
        elif b"\0" in head or self.encoding == "utf-16":
            # Without a mark: characters below 256 have a zero as their high byte.
            is_little = head[1::2].count(0) >= head[::2].count(0)
            candidates = ["utf-16-le" if is_little else "utf-16-be"]
        else:
            candidates = [UTF_8, "gb18030"]
        for candidate in candidates:
            file.seek(0)
            # With "utf-16", the reader of lines names the line that is damaged.
            if self.encoding == "utf-16" or _is_encoded(file, candidate):
                file.seek(0)
                return file, candidate
        raise SourceError(
            f"{self.name} must be UTF-8, UTF-16 or GB18030, and is none of them",
            hint=Hint("give its encoding, such as {encoding:'big5'}"),
        )


class Lines:
    """Lines that can be read several times, also those of a pipe."""

    def __init__(self, file: File):
        self.file = file
        self._lines: list[tuple[int, str]] | None = None

    def __iter__(self) -> Iterator[tuple[int, str]]:
        if self._lines is None and os.path.isfile(self.file.path):
            return self.file.lines()
        self._lines = self._lines or list(self.file.lines())
        return iter(self._lines)


def _decoded(file: IO[bytes], encoding: str) -> Iterator[tuple[int, str]]:
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


def _is_encoded(file: IO[bytes], encoding: str) -> bool:
    decode = codecs.getincrementaldecoder(encoding)().decode
    blocks = iter(functools.partial(file.read, _BLOCK), b"")
    try:
        for block in itertools.chain(blocks, [b""]):
            decode(block, final=not block)
    except UnicodeDecodeError:
        return False
    return True

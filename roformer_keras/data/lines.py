"""Lines of text files and of standard input, packed or not."""

import contextlib
import gzip
import io
import lzma
import math
import os
import stat
import sys
import zlib
from collections.abc import Iterator

from roformer_keras.errors import SourceError

OPENERS = {".gz": gzip.open, ".xz": lzma.open}
# Bytes of a line, of which a hostile file can have any number: /dev/zero is one line.
_LONGEST_LINE = 2**26
# Bytes that a packed file may become if it is this many times smaller, or any larger.
_UNPACKED_EXEMPT, _MAX_RATIO = 2**30, 200


def file_name(path: str) -> str:
    """How errors call a file."""
    return "standard input" if path == "-" else path


def place_line(line: int, path: str) -> str:
    """Where a line stands, as errors say it."""
    return f"line {line} of {file_name(path)}"


def columns_error(line: int, path: str, wanted: int, found: int) -> SourceError:
    """The error of a line that has too few columns."""
    return SourceError(
        f"{place_line(line, path)} must have {wanted} columns, got {found}"
    )


def read_lines(path) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines, with their ends; "-" is standard input."""
    number = 0
    try:
        with _open(path) as file:
            largest, total = _largest(path), 0
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                total += len(line)
                if len(line) > _LONGEST_LINE or total > largest:
                    raise SourceError(
                        f"{place_line(number, path)} must be of at most "
                        f"{_LONGEST_LINE:,} bytes, and a packed file at most "
                        f"{_MAX_RATIO} times smaller than its content"
                    )
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{place_line(number, path)} must be UTF-8: {error}",
            hint="convert it, for instance with iconv",
        ) from error
    except SourceError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f" after line {number}" if number else ""
        raise SourceError(f"cannot read {file_name(path)}{where}: {reason}") from error


def _largest(path):
    """Bytes that a file may have, which is bounded if it is packed."""
    if path == "-" or os.path.splitext(path)[1].lower() not in OPENERS:
        return math.inf
    return max(_UNPACKED_EXEMPT, _MAX_RATIO * os.stat(path).st_size)


def _open(path):
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    # Opening one waits for a writer. A shell's <(...) is in /dev/fd, and has one.
    is_named = not path.startswith(("/dev/", "/proc/"))
    if is_named and stat.S_ISFIFO(os.stat(path).st_mode):
        raise SourceError(
            f"{path} must be a file, and is a pipe: read it from standard input as -"
        )
    opener = OPENERS.get(os.path.splitext(path)[1].lower())
    if opener is None:
        return open(path, "rb")
    return io.BufferedReader(opener(path), 1 << 16)

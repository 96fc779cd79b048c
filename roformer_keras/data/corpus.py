"""From files to records, streamed, mixed and shuffled, for ever.

    files -> lines -> records -> blocks -> shuffled records

A record is one line: of a text, of a table (`.tsv`), or one JSON object (`.jsonl`).

The files of an epoch come in a drawn order. Eight of them are open at a time, and
each record comes from one of those, drawn in proportion to its size on the disk, so
that big files end at about the same time. Records are collected in blocks of
`buffer_size`, which are shuffled; no block holds records of two epochs, so every
record comes once an epoch. While one block is given, the next is read, record by
record: there is no pause, and about `buffer_size` records in memory.

What is drawn for a block follows from the seed, the epoch and the number of the block.
So a state needs no text: it says where the files stood when the reading of the current
block began, and how many of its records were given.
"""

import functools
import glob
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import random
import weakref
import zlib
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roformer_keras.checks import Settings, check_integer, columns, file_paths, number
from roformer_keras.errors import ConfigurationError, SourceError

__all__ = ["Corpus", "CorpusSource"]

PARTS = ("train", "held_out", "all")

# Enough to mix; an .xz file costs its dictionary, 8 to 64 MB, while it is open.
_OPEN_FILES = 8
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WILDCARDS = "*?["
_PACKED = (".gz", ".xz")
# Whose lines or bytes would be taken for text.
_REFUSED = (".json", ".csv", ".zip", ".tar", ".bz2", ".zst", ".parquet", *_PACKED)


@dataclass(frozen=True, kw_only=True)
class CorpusSource(Settings):
    """Files of one kind, and what of them is taken.

    The extension tells the kind: `.jsonl`, `.tsv`, or any other for plain text; a
    `.gz` or `.xz` after it is unpacked while reading. Extensions of what is no text
    that is read line by line, such as `.json` or `.zip`, are refused.

    Args:
        files: paths or glob patterns, in which `**` is any number of folders. A file
            that two of them name is read once.
        fields: what a record consists of. Of `.jsonl` the keys, by default `text`: a
            string, a list of strings, which are joined, or a number. Of `.tsv` the
            columns, counted from `"1"`, which is the default. Plain text has none:
            there the record is the line.
        group: the key or column by whose value records are held out together, such as
            the book; None for the record's own values.
        holdout: float in [0, 1). The share of the groups that is held out. Whether a
            group is depends on its value alone, so it holds for every seed, every
            order and every file.

    Raises:
        ConfigurationError: a field breaks its rule.
    """

    files: tuple[str, ...] = file_paths()
    fields: tuple[str, ...] = columns(())
    group: str | None = columns(None)
    holdout: float = number(0.0, minimum=0, below=1)

    def _check_together(self):
        if not self.files:
            raise ConfigurationError("files must name a file, got none")
        if "" in self.files or "" in self.fields or self.group == "":
            raise ConfigurationError(
                "files, fields and group must be names that are not empty, got "
                f"files={self.files}, fields={self.fields}, group={self.group!r}"
            )

    def paths(self) -> list[str]:
        """The files, patterns resolved, each once.

        Raises:
            SourceError: one does not exist, or a pattern matches none.
        """
        return list(
            dict.fromkeys(itertools.chain.from_iterable(map(_matches, self.files)))
        )


class Corpus:
    """The records of some sources, epoch after epoch, for ever.

    Lines that are empty, and records whose every field is blank, are skipped. Values
    come without the spaces around them.

    Args:
        sources: the sources, or one.
        seed: int. Of the order of files and records.
        buffer_size: int, at least 1. Records that are shuffled together.
        part: `"train"` leaves out what the sources hold out, `"held_out"` gives only
            that, `"all"` gives both.

    Attributes:
        epoch: int from 0. Of the record that was given last.

    Raises:
        ConfigurationError: an argument breaks its rule, or `fields` do not fit the
            kind of a file.
        SourceError: a file does not exist or is of a kind that is not read, or,
            later, is broken or not what its extension says; names file and line.

    Example:
        >>> poems = CorpusSource(files=("poems.jsonl.gz",), fields=("lines",))
        >>> next(Corpus([poems], seed=1))
        ('缀玉联珠六十年，谁教冥路作诗仙。',)
    """

    def __init__(
        self,
        sources: CorpusSource | Sequence[CorpusSource],
        *,
        seed: int = 0,
        buffer_size: int = 10_000,
        part: str = "train",
    ):
        if isinstance(sources, CorpusSource):
            sources = [sources]
        if not sources:
            raise ConfigurationError("a corpus needs a source, got none")
        check_integer("seed", seed, minimum=0)
        check_integer("buffer_size", buffer_size, minimum=1)
        if part not in PARTS:
            raise ConfigurationError(
                f"part must be one of {', '.join(map(repr, PARTS))}, got {part!r}"
            )
        if part == "held_out":
            sources = [source for source in sources if source.holdout]
            if not sources:
                raise ConfigurationError(
                    "part='held_out' needs a source with a holdout above 0, got none"
                )
        self._seed, self._buffer_size, self._part = seed, buffer_size, part
        self._files = [
            _File(source, path, part) for source in sources for path in source.paths()
        ]
        self._identity = self._identify()
        self._readers = []
        weakref.finalize(self, _close_all, self._readers)
        self._rewind({"epoch": 0, "block": 0, "next_file": 0, "open_files": []})

    def __iter__(self) -> "Corpus":
        return self

    def __next__(self) -> tuple[str, ...]:
        if not self._block:
            self._turn()
        self._fill(len(self._next_block) + 1)
        self._given += 1
        return self._block.pop()

    def once(self) -> Iterator[tuple[str, ...]]:
        """One pass in the order of the files; leaves the state as it is."""
        for file in self._files:
            reader = file.open()
            try:
                yield from iter(reader.read, None)
            finally:
                reader.close()

    def close(self) -> None:
        """Closes the files; `state` still works, and so does `restore`."""
        _close_all(self._readers)

    # === State ===

    def state(self) -> dict:
        """Where the corpus stands, in JSON types, without any text."""
        return {**self._start, "given": self._given, "corpus": self._identity}

    def restore(self, state: dict) -> None:
        """Goes on with the record that followed when the state was taken.

        Reads up to two blocks again, and compressed files from their beginning.

        Raises:
            ConfigurationError: the state is of a corpus with other files, fields,
                seed, buffer size or part.
        """
        identity = state.get("corpus") or {}
        for name, value in self._identity.items():
            if identity.get(name) != value:
                raise ConfigurationError(
                    "a corpus goes on only where it was left: its state has "
                    f"{name}={identity.get(name)!r}, this one {name}={value!r}; put "
                    "back what changed, or begin anew"
                )
        self._rewind(
            {name: state[name] for name in ("epoch", "block", "next_file")}
            | {"open_files": state["open_files"]}
        )
        for _ in range(state["given"]):
            next(self)

    def _identify(self):
        files = [
            [
                os.path.basename(file.path),
                file.size,
                file.source.fields,
                file.source.group,
                file.source.holdout,
            ]
            for file in self._files
        ]
        return {
            "seed": self._seed,
            "buffer_size": self._buffer_size,
            "part": self._part,
            "files": hashlib.sha256(json.dumps(files).encode()).hexdigest(),
        }

    # === Blocks ===

    def _rewind(self, start):
        """Stands where the reading of a block began, with none of it given."""
        _close_all(self._readers)
        self._epoch, self._number = start["epoch"], start["block"]
        self._next_file = start["next_file"]
        self._order = self._draw_order()
        self._readers.extend(
            self._files[index].open(offset, line)
            for index, offset, line in start["open_files"]
        )
        self._weigh()
        self.epoch = self._epoch
        self._block = []
        self._start, self._given = start, 0
        self._begin_block()

    def _turn(self):
        """The block that was being read is given now, and the next one is begun."""
        self._fill(self._buffer_size)
        if not self._next_block and self._number:
            self._begin_epoch()
            self._fill(self._buffer_size)
        if not self._next_block:
            raise SourceError(
                f"a corpus must hold a record, got none in {len(self._files)} files "
                f"for part={self._part!r}: {self._files[0].path}, ...; look at the "
                "files, and at holdout"
            )
        self._block, self._start, self._given = self._next_block, self._next_start, 0
        self.epoch = self._epoch
        self._random.shuffle(self._block)
        if self._is_filling:
            self._number += 1
            self._begin_block()
        else:
            self._begin_epoch()

    def _begin_epoch(self):
        self._epoch += 1
        self._number = 0
        self._next_file = 0
        self._order = self._draw_order()
        self._begin_block()

    def _begin_block(self):
        self._next_block = []
        self._next_start = {
            "epoch": self._epoch,
            "block": self._number,
            "next_file": self._next_file,
            "open_files": [
                [self._files.index(reader.file), *reader.position()]
                for reader in self._readers
            ],
        }
        self._random = random.Random(f"{self._seed} {self._epoch} {self._number}")
        self._draw = self._random.random
        self._is_filling = True

    def _fill(self, size):
        """Reads until the next block has `size` records, or all it will have."""
        size = min(size, self._buffer_size)
        while self._is_filling and len(self._next_block) < size:
            record = self._read()
            if record is None:
                self._is_filling = False
            else:
                self._next_block.append(record)

    # === Files ===

    def _draw_order(self):
        order = list(range(len(self._files)))
        random.Random(f"{self._seed} {self._epoch} files").shuffle(order)
        return order

    def _weigh(self):
        self._bounds = list(
            itertools.accumulate(reader.file.size for reader in self._readers)
        )

    def _read(self):
        """The next record of the epoch, or None."""
        while True:
            while len(self._readers) < _OPEN_FILES and self._next_file < len(
                self._order
            ):
                file = self._files[self._order[self._next_file]]
                self._next_file += 1
                self._readers.append(file.open())
                self._weigh()
            if not self._readers:
                return None
            index = bisect(self._bounds, self._draw() * self._bounds[-1])
            record = self._readers[index].read()
            if record is not None:
                return record
            self._readers.pop(index).close()
            self._weigh()


class _File:
    """One file of a source, and how its lines become records."""

    def __init__(self, source, path, part):
        self.source, self.path = source, path
        # An empty file has to be drawn too, to be found empty.
        self.size = max(os.path.getsize(path), 1)
        self.parse = _parser(source, path)
        # Which groups are taken: True, False, or None for all.
        self.wants_held_out = (
            None if part == "all" or not source.holdout else part == "held_out"
        )

    def open(self, offset=0, line=0) -> "_Reader":
        return _Reader(self, offset, line)


class _Reader:
    """An open file.

    Args:
        file: _File.
        offset: int. Bytes of the unpacked file to begin behind.
        line: int. Lines before that.
    """

    def __init__(self, file, offset, line):
        self.file = file
        self._line = line
        try:
            self._stream = _unpacked(file.path)
        except OSError as error:
            raise self._broken(error) from error
        try:
            self._stream.seek(offset)
            if not offset and self._stream.peek(3)[:3] == _BYTE_ORDER_MARK:
                self._stream.seek(3)
        except _BROKEN as error:
            self.close()
            raise self._broken(error) from error

    def position(self) -> tuple[int, int]:
        """Bytes and lines of the unpacked file that were read."""
        return self._stream.tell(), self._line

    def read(self) -> tuple[str, ...] | None:
        """The next record of the wanted part, or None at the end."""
        file = self.file
        try:
            for line in self._stream:
                self._line += 1
                values, group = file.parse(line.decode())
                if not any(values):
                    continue
                if file.wants_held_out is None or file.wants_held_out == _is_held_out(
                    "\n".join(values) if group is None else group, file.source.holdout
                ):
                    return values
        except UnicodeDecodeError as error:
            raise SourceError(
                f"a corpus must be UTF-8, line {self._line} of {file.path} is not: "
                f"{error}; convert it, for instance with iconv"
            ) from error
        except _LineError as error:
            raise SourceError(f"{error}: line {self._line} of {file.path}") from error
        except _BROKEN as error:
            raise self._broken(error) from error
        return None

    def close(self) -> None:
        self._stream.close()

    def _broken(self, error):
        return SourceError(
            f"cannot read {self.file.path} beyond line {self._line}: {error}; the file "
            "may be incomplete, or not what its name says"
        )


# What unpacking raises.
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


class _LineError(Exception):
    """A line that is no record; says the rule and what was found."""


def _close_all(readers):
    while readers:
        readers.pop().close()


def _matches(pattern):
    if os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        raise SourceError(
            f"a corpus is made of files, {pattern} is a folder; give a pattern such as "
            f"{os.path.join(pattern, '*.txt')}"
        )
    if not any(character in pattern for character in _WILDCARDS):
        raise SourceError(f"there is no file {pattern} for the corpus")
    paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    if not paths:
        raise SourceError(
            f"a pattern of a corpus must match a file, got {pattern}, which matches "
            f"none from {os.getcwd()}"
        )
    return paths


def _unpacked(path):
    """The bytes of a file, unpacked, as a buffered stream."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path), 1 << 16)
    if suffix == ".xz":
        return io.BufferedReader(lzma.open(path), 1 << 16)
    return open(path, "rb", buffering=1 << 16)


def _parser(source, path):
    """A function from a line to the values of a record and its group or None."""
    name, kind = os.path.splitext(path.lower())
    if kind in _PACKED:
        kind = os.path.splitext(name)[1]
    if kind in _REFUSED:
        raise SourceError(
            "a corpus must be of .jsonl, .tsv or plain text such as .txt, each also "
            f"with .gz or .xz behind, got {path}: convert it, or unpack it"
        )
    if kind == ".jsonl":
        fields = source.fields or ("text",)
        return functools.partial(_parse_json, fields, source.group)
    if kind == ".tsv":
        columns = [_column(field, path) for field in source.fields or ("1",)]
        group = None if source.group is None else _column(source.group, path)
        return functools.partial(_parse_table, columns, group)
    if source.fields or source.group is not None:
        raise ConfigurationError(
            f"plain text has neither fields nor group, {path} is given "
            f"fields={list(source.fields)!r}, group={source.group!r}; name it .jsonl "
            "or .tsv if it is that"
        )
    return _parse_text


def _column(field, path):
    """Index of a column that is counted from 1."""
    if not (field.isascii() and field.isdigit() and int(field)):
        raise ConfigurationError(
            f"a column of a table is a number from '1', got {field!r} for {path}"
        )
    return int(field) - 1


def _parse_text(line):
    return (line.strip(),), None


def _parse_table(columns, group, line):
    cells = line.rstrip("\r\n").split("\t")
    if cells == [""]:
        return (), None
    try:
        values = tuple([cells[column].strip() for column in columns])
        return values, None if group is None else cells[group].strip()
    except IndexError:
        wanted = max([*columns] if group is None else [*columns, group]) + 1
        raise _LineError(
            f"a line of a table must have {wanted} columns, got {len(cells)}"
        ) from None


def _parse_json(keys, group, line):
    if line.isspace():
        return (), None
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _LineError(f"a line must be a JSON object, got {error}") from None
    if not isinstance(found, dict):
        raise _LineError(f"a line must be a JSON object, got {found!r:.60}")
    values = tuple([_value(found, key) for key in keys])
    return values, None if group is None else _value(found, group)


def _value(found, key):
    value = found.get(key)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "".join(value).strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if key not in found:
        raise _LineError(
            f"a record must have the key {key!r}, got {', '.join(found) or 'none'}"
        )
    raise _LineError(
        f"{key!r} must be a string, a list of strings or a number, got {value!r:.60}"
    )


@functools.lru_cache(256)
def _is_held_out(group, holdout):
    # JSON may escape half of a surrogate pair, which is no character.
    data = group.encode("utf-8", "surrogatepass")
    drawn = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(drawn) < holdout * 2**64

"""Corpora: files of texts, and the part of their records that is held out."""

import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roformer_keras.base.checks import (
    Only,
    Settings,
    check_choice,
    choice,
    columns,
    file_paths,
    number,
)
from roformer_keras.base.errors import SourceError, refuse
from roformer_keras.tables.arrow import is_saved_dataset
from roformer_keras.tables.files import ENCODINGS, HEADERS, read_records
from roformer_keras.tables.formats import FORMAT_CHOICES
from roformer_keras.tables.opening import is_uri

PARTS = ("train", "held_out", "all")


@dataclass(frozen=True, kw_only=True)
class CorpusSource(Settings):
    """Files of one kind, and which fields of them are used.

    Args:
        files: paths or glob patterns, in which `**` is any number of folders; each file
            is read once. See `tables.files` for the kinds; a folder is one that
            `datasets.Dataset.save_to_disk` has written.
        fields: the keys or columns of a record; by default `text`, or the first column
            of a table without a header. Without them a line of plain text is a record.
        format: for files whose extension does not say it.
        header, encoding: of the files. See `FinetuningSettings`.
        group: the key or column by whose value records are held out together, such as
            the book; by default the record's own values.
        holdout: float. The share of the groups that is held out. It depends on a
            group's value alone, so it is the same for every seed, order and file; from
            0 to less than 1.

    Raises:
        ConfigurationError: a field breaks its rule.

    Example:
        >>> source = roformer_keras.CorpusSource(files=("poems.jsonl",), holdout=0.05)
        >>> source.files, source.holdout
        (('poems.jsonl',), 0.05)
    """

    files: tuple[str, ...] = file_paths()
    fields: tuple[str, ...] = columns(())
    format: str | None = choice(None, choices=FORMAT_CHOICES)
    header: str | None = choice(None, choices=(None, *HEADERS))
    encoding: str = choice("utf-8", choices=ENCODINGS)
    group: str | None = columns(None, only=Only("holdout", bool, "holdout"))
    holdout: float = number(0.0, minimum=0, below=1)

    def _check_together(self) -> None:
        refuse(
            not self.files,
            "files must name a file, got none",
        )
        refuse(
            "" in self.files or "" in self.fields or self.group == "",
            "files, fields and group must be names that are not empty, got "
            f"files={self.files}, fields={self.fields}, group={self.group!r}",
        )

    def paths(self) -> list[str]:
        """The files, patterns resolved, each once.

        Raises:
            SourceError: one does not exist, or a pattern matches none.
        """
        return list(dict.fromkeys(itertools.chain(*map(_matches, self.files))))


def read_corpus(
    sources: CorpusSource | Sequence[CorpusSource], part: str = "train"
) -> Iterator[tuple[str, ...]]:
    """The records of some sources, in the order of the files."""
    sources = [sources] if isinstance(sources, CorpusSource) else sources
    refuse(
        not sources,
        "a corpus needs a source, got none",
    )
    check_choice("part", part, PARTS)
    if part == "held_out":
        sources = [source for source in sources if source.holdout]
        refuse(
            not sources,
            "part='held_out' needs a source with a holdout above 0, got none",
        )
    # The files are found, and refused, before the first record is read.
    files = [(path, source) for source in sources for path in source.paths()]
    parts = [
        _select(
            read_records(
                path,
                source.fields,
                source.group,
                source.format,
                source.header,
                source.encoding,
            ),
            source.holdout,
            part,
        )
        for path, source in files
    ]
    return itertools.chain(*parts)


def _select(
    records: Iterator[tuple[tuple[str, ...], str | None]], holdout: float, part: str
) -> Iterator[tuple[str, ...]]:
    for values, group in records:
        if holdout and part != "all":
            group = "\n".join(values) if group is None else group
            if _is_held_out(group, holdout) != (part == "held_out"):
                continue
        yield values


@functools.lru_cache(256)
def _is_held_out(group: str, holdout: float) -> bool:
    # JSON may escape half of a surrogate pair, which is no character.
    data = group.encode("utf-8", "surrogatepass")
    drawn = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(drawn) < holdout * 2**64


def _matches(pattern: str) -> list[str]:
    if _is_corpus(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        raise SourceError(
            f"a corpus is made of files, {pattern} is a folder",
            hint=f"give a pattern such as {os.path.join(pattern, '*.txt')}, or a "
            "folder of datasets.Dataset.save_to_disk",
        )
    refuse(
        not glob.has_magic(pattern),
        f"there is no file {pattern} for the corpus",
        error=SourceError,
    )
    paths = sorted(filter(_is_corpus, glob.glob(pattern, recursive=True)))
    if not paths:
        raise SourceError(
            f"a pattern of a corpus must match a file, got {pattern}, which matches "
            f"none from {os.getcwd()}"
        )
    return paths


def _is_corpus(path: str) -> bool:
    return os.path.isfile(path) or is_saved_dataset(path) or is_uri(path)

"""Texts that the benchmarks read."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from roformer_keras.tables import opening
from tools import DATA, ROOT

POEMS = DATA / "poetry" / "tang_poems.jsonl.gz"
FILES = [DATA / "sentiment" / "sentiment.train.tsv.gz", POEMS]
# Characters of the texts that are drawn.
MIN_CHARACTERS, MAX_CHARACTERS = 5, 500


def _read_rows(path):
    """Of `.jsonl` the values of each object, of `.tsv` the first field, or the line."""
    for _, row in opening.File(str(path)).lines():
        if ".jsonl" in path.suffixes:
            yield json.loads(row).values()
        else:
            yield [row.split("\t")[0] if ".tsv" in path.suffixes else row]


def _strings(value):
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [text for item in values for text in _strings(item)]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of all strings of a file, gzipped or not."""
    for row in _read_rows(path):
        for text in _strings(row):
            yield from filter(None, text.strip().splitlines())


def read_texts(path: Path) -> Iterator[str]:
    """The longest text of each row of a file; the strings of a list are one text."""
    for row in _read_rows(path):
        texts = ["".join(value) for value in row if isinstance(value, str | list)]
        yield max(texts, key=len).strip()


def draw_texts(paths: Sequence[Path], count: int) -> list[str]:
    """Different texts, as many of each file, in an order given by a seed."""
    draw, drawn = random.Random(0), []
    for number, path in enumerate(paths):
        texts = sorted(
            text
            for text in set(read_texts(path))
            if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS
        )
        share = count * (number + 1) // len(paths) - len(drawn)
        drawn += draw.sample(texts, share)
    draw.shuffle(drawn)
    return drawn


def short_lines() -> list[str]:
    """Some thousand clauses of the reviews that come with the notebooks."""
    reviews = read_lines(ROOT / "notebooks" / "data" / "reviews.train.tsv.gz")
    clauses = (part for line in reviews for part in re.split("[^\\w]+", line))
    return list(dict.fromkeys(part for part in clauses if 4 <= len(part) <= 20))

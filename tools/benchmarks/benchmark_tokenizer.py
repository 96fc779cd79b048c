"""How much faster than bert4keras's the tokenizer is, on real lines.

    python -m tools.benchmarks.benchmark_tokenizer [--lines 10000] [--rounds 5] \\
        [FILE ...]

The two take turns, each in its own process, on one thread. Every round starts with a
fresh tokenizer of ours and with lines of which none occurs twice; both have their
dictionary of words loaded before the clock starts. Ours makes padded int32 batches of
64, bert4keras's makes lists of ids, which is less. Times are CPU times.
"""

import argparse
import gzip
import json
import pathlib
import random
import statistics
import sys
import time

from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.words import default_segmenter
from tools import ROOT
from tools.reference.bert4keras import reference_worker

DATA = ROOT.parent / "shared" / "data"
FILES = [
    DATA / "poetry" / "tang_poems.jsonl.gz",
    DATA / "sentiment" / "sentiment.train.tsv.gz",
    DATA / "unlicensed" / "cail2019-scm.sample.jsonl.gz",
]
VOCABULARIES = {
    "character": DATA / "vocab" / "char_12000.txt",
    "word": DATA / "vocab" / "word_50000.txt",
}
BATCH = 64


def read_lines(path):
    """Yields the texts of a file, gzipped or not, a line at a time.

    Of `.jsonl` every string of every object, of `.tsv` the first field.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as rows:
        for row in rows:
            if ".jsonl" in path.suffixes:
                texts = _strings(json.loads(row))
            elif ".tsv" in path.suffixes:
                texts = [row.split("\t")[0]]
            else:
                texts = [row]
            for text in texts:
                yield from filter(None, text.strip().splitlines())


def _strings(value):
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [text for item in values for text in _strings(item)]


def time_ours(vocabulary, level, lines):
    """CPU seconds that a fresh tokenizer takes for all lines, in padded batches."""
    tokenizer = RoFormerTokenizer(vocabulary, level)
    start = time.process_time()
    for first in range(0, len(lines), BATCH):
        tokenizer(lines[first : first + BATCH])
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path, default=FILES)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    for level, path in VOCABULARIES.items():
        parser.add_argument(f"--{level}", type=pathlib.Path, default=path)
    options = parser.parse_args()
    missing = [
        str(path)
        for path in (*options.files, *(vars(options)[level] for level in VOCABULARIES))
        if not path.is_file()
    ]
    if missing:
        parser.error(
            f"no {', '.join(missing)}: give text files, and the vocabularies of a "
            "released zip as --character and --word"
        )

    lines = sorted({line for path in options.files for line in read_lines(path)})
    if len(lines) < options.lines:
        sys.exit(f"{options.lines} different lines are needed, got {len(lines)}")
    lines = random.Random(0).sample(lines, options.lines)
    size = sum(map(len, lines))
    print(f"{len(lines)} lines, {size} characters, {options.rounds} rounds, medians")
    default_segmenter()
    with reference_worker("tools.reference.tokenizer:Tokenizer") as reference:
        for level in VOCABULARIES:
            vocabulary = str(getattr(options, level))
            here = {"vocabulary": vocabulary, "level": level}
            reference.call("tokenize", texts=[], **here)
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(time_ours(vocabulary, level, lines))
                theirs.append(reference.call("time_encode", texts=lines, **here))
            ours, theirs = statistics.median(ours), statistics.median(theirs)
            print(
                f"{level:9}  ours {len(lines) / ours:8.0f} lines/s   bert4keras "
                f"{len(lines) / theirs:8.0f} lines/s   {theirs / ours:.2f}x"
            )


if __name__ == "__main__":
    main()

"""Speed of the tokenizer, compared with the real bert4keras, on real lines.

    python -m tools.benchmarks.tokenization [--lines 10000] [--rounds 5] [FILE ...]

The two take turns, each in its own process on one thread. Every turn has a fresh
tokenizer of ours, and no line occurs twice; both have loaded their dictionary of words
before. Ours makes padded int32 batches of 64, bert4keras's makes lists of ids, which is
less. Times are CPU times.
"""

import random
import statistics
import sys
import time
from pathlib import Path

from tools import DATA
from tools.benchmarks.harness import exit_with_error, make_parser, print_table
from tools.benchmarks.texts import FILES, read_lines
from tools.reference.bert4keras import reference_worker

DEFAULT_FILES = [*FILES, DATA / "unlicensed" / "cail2019-scm.sample.jsonl.gz"]
VOCABULARIES = {
    "character": DATA / "vocab" / "char_12000.txt",
    "word": DATA / "vocab" / "word_50000.txt",
}
SIZES = {"lines": (10_000, "lines to encode"), "rounds": (5, "turns of each side")}
BATCH = 64


def main(arguments=None):
    parser = make_parser(__doc__, SIZES)
    parser.add_argument("files", nargs="*", type=Path, default=DEFAULT_FILES)
    for level, path in VOCABULARIES.items():
        help = f"vocabulary of {level}s"
        parser.add_argument(f"--{level}", type=Path, default=path, help=help)
    options = parser.parse_args(arguments)
    vocabularies = {level: getattr(options, level) for level in VOCABULARIES}
    paths = [*options.files, *vocabularies.values()]
    if missing := [str(path) for path in paths if not path.is_file()]:
        parser.error(
            f"no {', '.join(missing)}: give text files, and the vocabularies of a "
            "released zip as --character and --word"
        )
    lines = sorted({line for path in options.files for line in read_lines(path)})
    if len(lines) < options.lines:
        raise SystemExit(
            f"{options.lines} different lines are needed, got {len(lines)}"
        )
    lines = random.Random(0).sample(lines, options.lines)
    rows = [
        measure(level, str(path), lines, options.rounds)
        for level, path in vocabularies.items()
    ]
    title = f"{len(lines)} lines of {sum(map(len, lines))} characters, lines/s"
    print_table(title, ("roformer_keras", "bert4keras", "ratio"), rows)


def measure(level, vocabulary, lines, rounds):
    from roformer_keras.text.words import default_segmenter

    default_segmenter()
    ours, theirs = [], []
    with reference_worker("tools.reference.tokenizer:Tokenizer") as reference:
        here = {"vocabulary": vocabulary, "level": level}
        reference.call("tokenize", texts=[], **here)
        for _ in range(rounds):
            ours.append(time_ours(vocabulary, level, lines))
            theirs.append(reference.call("time_encode", texts=lines, **here))
    ours, theirs = (len(lines) / statistics.median(own) for own in (ours, theirs))
    return level, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}x"


def time_ours(vocabulary, level, lines):
    """CPU seconds that a fresh tokenizer takes for all lines, in padded batches."""
    from roformer_keras.text.tokenizer import RoFormerTokenizer

    tokenizer = RoFormerTokenizer(vocabulary, level)
    start = time.process_time()
    for first in range(0, len(lines), BATCH):
        tokenizer(lines[first : first + BATCH])
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(exit_with_error(main))

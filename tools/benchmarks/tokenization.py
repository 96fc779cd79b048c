"""Speed of the tokenizer, compared with the real bert4keras, on real lines.

    python -m tools.benchmarks.tokenization [--lines 10000] [--rounds 5] [FILE ...]

The two take turns, each in its own process on one thread. Every turn has a fresh
tokenizer of ours, and no line occurs twice. Ours makes padded batches of 64,
bert4keras's makes lists of ids, which is less. Times are CPU times.
"""

import json
import random
import sys
import time
from pathlib import Path

from tools import DATA
from tools.benchmarks.harness import Benchmark, Run, Side, compare, make_parser
from tools.benchmarks.texts import FILES, read_lines
from tools.commands import command
from tools.reference import tokenizer

DEFAULT_FILES = [*FILES, DATA / "unlicensed" / "cail2019-scm.sample.jsonl.gz"]
VOCABULARIES = {
    "character": DATA / "vocab" / "char_12000.txt",
    "word": DATA / "vocab" / "word_50000.txt",
}
SIZES = {"lines": (10_000, 20, "lines to encode"), "rounds": (5, 1, "turns of each")}
BATCH = 64


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES)
    parser.add_argument("files", nargs="*", type=Path, default=DEFAULT_FILES)
    for level, path in VOCABULARIES.items():
        help = f"vocabulary of {level}s, of a released zip"
        parser.add_argument(f"--{level}", type=Path, default=path, help=help)
    options = parser.parse_args(arguments)
    lines = sorted({line for path in options.files for line in read_lines(path)})
    lines = random.Random(0).sample(lines, options.lines)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        (benchmark.folder / "lines.json").write_text(json.dumps(lines))
        for level in VOCABULARIES:
            vocabulary = str(getattr(options, level))
            runs = {name: Run(name, "encode", (vocabulary, level)) for name in SIDES}
            figures = compare(
                benchmark, runs, level, "lines/s", len(lines), "bert4keras"
            )
            benchmark.save(level, figures)


class Tokenizer(Side):
    def __init__(self, **options):
        super().__init__(**options)
        self.texts = json.loads((self.folder / "lines.json").read_text())


class RoFormer(Tokenizer):
    def encode(self, vocabulary, level):
        from roformer_keras.text.tokenizer import RoFormerTokenizer

        tokenizer = RoFormerTokenizer(vocabulary, level)
        start = time.process_time()
        for first in range(0, len(self.texts), BATCH):
            tokenizer(self.texts[first : first + BATCH])
        return {"seconds": time.process_time() - start}


class Bert4keras(Tokenizer):
    def encode(self, vocabulary, level):
        encode = self.keep(tokenizer.make_tokenizer, vocabulary, level).encode
        start = time.process_time()
        for text in self.texts:
            encode(text)
        return {"seconds": time.process_time() - start}


SIDES = {"roformer_keras": RoFormer, "bert4keras": Bert4keras}


if __name__ == "__main__":
    sys.exit(main())

"""Scripts of bert4keras's users: the real bert4keras and `roformer_keras.bert4keras`.

    python -m tools.benchmarks.scripts
    python -m tools.benchmarks.scripts --parts write synonyms

Both sides run the same code, which imports `bert4keras`; on one side this name is
`roformer_keras.bert4keras`. They read a checkpoint of random weights and compute in
float32. Every turn is a new process. The first time is of a whole script, with
imports, loading and compilation; the second is of the same work once more.

features    [CLS] vectors of reviews by `model.predict`.
write       RoFormer-GPT continues a prompt by `random_sample` and `last_token`.
synonyms    RoFormer-Sim writes similar sentences and ranks them by its vectors.
titles      Beam search with a model of `application="unilm"`.
classify    `fit` of a classifier with a `DataGenerator` and AdamW.
"""

import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np

from tools.benchmarks import finetune, generate, sides, texts
from tools.benchmarks.harness import (
    MODEL_SIZES,
    THEIRS,
    Benchmark,
    Run,
    Side,
    compare,
    make_parser,
)
from tools.commands import command
from tools.reference import training
from tools.reference.bert4keras import make_tokenizer
from tools.tables import write_json

SCRIPTS = ("features", "write", "synonyms", "titles", "classify")
# Run -> side. Weights and seeds are equal, and so is what they compute.
RUNS = {
    THEIRS: "bert4keras",
    "roformer_keras.bert4keras float32": "roformer_keras",
}
PACKAGE = "roformer_keras.bert4keras"
MODULES = ("backend", "layers", "models", "optimizers", "snippets", "tokenizers")
BEAMS, SAMPLED = 4, 4
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 500, "its tokens"),
    "rows": (256, 8, "reviews of features and classify"),
    "batch": (16, 4, "rows of a batch of classify"),
    "max-length": (128, 16, "tokens to which reviews are cut"),
    "new": (240, 6, "tokens to write with RoFormer-GPT"),
    "candidates": (100, 4, "similar sentences"),
    "longest": (64, 30, "tokens of a similar sentence and of a title, with its text"),
    "rounds": (3, 1, "turns of each run"),
}


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES, SCRIPTS)
    help = "lines of a text, a tab and a label; plain or .gz"
    parser.add_argument("--reviews", type=Path, default=texts.FILES[0], help=help)
    options = parser.parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        reviews = draw_reviews(options.reviews, options.rows)
        write_json(benchmark.folder / "reviews.json", reviews)
        benchmark.write_checkpoint()
        generate.write_ending_checkpoint(benchmark)
        theirs, ours = RUNS
        for script in options.parts:
            runs = {
                name: Run(side, "run_twice", (script,)) for name, side in RUNS.items()
            }
            figures = compare(benchmark, runs, script, "s", fresh=True)
            ratio = figures[theirs]["again"] / figures[ours]["again"]
            print(f"{script}, once more: {ours} is {ratio:.2f} times as fast")
            benchmark.save(script, figures)
    return 0


def draw_reviews(path, count):
    """Texts and classes of some reviews, chosen by a seed."""
    from roformer_keras.tables.files import read_table

    table = read_table(path, 1)
    chosen = np.random.default_rng(0).permutation(len(table.labels))[:count]
    classes = sorted(set(table.labels))
    return [
        (table.texts[n][0], classes.index(table.labels[n])) for n in np.sort(chosen)
    ]


class Trainer(finetune.Bert4keras):
    """Trains on reviews as bert4keras's example task_sentiment_albert.py."""

    def train(self):
        from bert4keras.snippets import DataGenerator

        side, tokenizer = self, self.keep(make_tokenizer, self.folder)

        class Reviews(DataGenerator):
            def __iter__(self, random=False):
                rows, labels = [], []
                for is_end, (text, label) in self.sample(random):
                    rows += training.encode_texts(tokenizer, [text], side.max_length)
                    labels.append(label)
                    if len(rows) == self.batch_size or is_end:
                        yield training.pad_rows(rows), np.array(labels)
                        rows, labels = [], []

        data = Reviews(self.reviews, self.batch)
        self.keep(self.model).fit(
            data.forfit(), steps_per_epoch=len(data), epochs=1, verbose=0
        )


class Real(Side):
    """The scripts; some are parts of other benchmarks."""

    def part(self, kind):
        """A side of another benchmark, with the options of this one."""
        options = {name: x for name, x in vars(self).items() if name != "_kept"}
        return kind(**options, reviews=json.loads(self._read("reviews.json")))

    def _read(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def run_twice(self, script):
        """A sample of the output of a script, and the seconds of both runs."""
        # A script's process starts with its first import.
        start = time.perf_counter()
        sample = getattr(self, script)()
        first = time.perf_counter() - start
        start = time.perf_counter()
        getattr(self, script)()
        again = time.perf_counter() - start
        return {"seconds": first, "again": again, "sample": sample}

    def features(self):
        encoder = self.keep(self.part, sides.Bert4keras)
        reviews = [text for text, _ in encoder.reviews]
        return sides.sample(encoder.vectors(reviews))["sample"]

    def write(self):
        writer = self.keep(self.part, generate.Bert4keras)
        inputs = [writer.prompt(), [0] * generate.PROMPT]
        sampler = writer.keep(writer.sampler, None)
        np.random.seed(0)
        (ids,) = sampler.random_sample(inputs, 1, topp=generate.DRAWING["top_p"])
        # With random weights all tokens are about equally likely, and one that rounding
        # changes changes all that follow.
        return np.asarray(ids[:SAMPLED]).tolist()

    def synonyms(self):
        writer = self.keep(self.part, generate.Bert4keras)
        return [writer.paraphrase(self.candidates, "ending")["tokens a text"]]

    def titles(self):
        writer = self.keep(self.part, generate.Bert4keras)
        sampler = writer.keep(writer.sampler, ".")
        tokenizer = writer.keep(make_tokenizer, self.folder)
        inputs = tokenizer.encode(writer.sentence(), maxlen=self.longest)
        ids = sampler.beam_search(list(inputs), topk=BEAMS)
        return np.asarray(ids).tolist()

    def classify(self):
        self.keep(self.part, Trainer).train()
        return [0.0]


class Ours(Real):
    """The same with `roformer_keras.bert4keras` under the name `bert4keras`."""

    def run_twice(self, script):
        start = time.perf_counter()
        sys.modules["bert4keras"] = importlib.import_module(PACKAGE)
        for name in MODULES:
            module = importlib.import_module(f"{PACKAGE}.{name}")
            sys.modules[f"bert4keras.{name}"] = module
        imported = time.perf_counter() - start
        figures = super().run_twice(script)
        return {**figures, "seconds": imported + figures["seconds"]}


SIDES = {"bert4keras": Real, "roformer_keras": Ours}


if __name__ == "__main__":
    sys.exit(main())

"""Fine-tuning a text classifier, against the real bert4keras in the same run.

    python -m tools.benchmarks.benchmark_finetuning # the base model, 12x768
    python -m tools.benchmarks.benchmark_finetuning --parts step
    python -m tools.benchmarks.benchmark_finetuning --layers 2 --hidden 128 --rows 64

The real bert4keras 0.11.5 writes a checkpoint of random weights first, which all sides
read. Each works in a process of its own, in turn, when it is asked:
roformer_keras in float32, the same in mixed_bfloat16, and bert4keras in float32, the
only type it computes in. They have the same number of weights and make the same ids of
the texts, which is checked; dropout of 0.1, also on attention weights; and AdamW, the
decay sparing biases and norms, gradients clipped to a norm of 1. Two parts:

step        Updates on one batch of ids, `--batch` by `--length`, that lies in memory,
            by `train_on_batch`, which for both is as fast as `fit`: tokens a second.
reviews     Texts of a file (a line is text, tab, label; plain or .gz), of which some
            are drawn, from strings to the updates of one epoch: examples a second.
            roformer_keras by `fit(texts, labels)`, whose batches are of texts of
            similar length. bert4keras as in its example task_sentiment_albert.py: texts
            in random order, each batch padded to its longest. Beside it, the other way
            that is usual: all padded to `--max-length`.

The limit is the time of the matrix products alone, as tools/benchmarks/benchmark.py
measures it,
in float32: a step has those of a forward pass three times. It has no part for
attention, for what lies between products, nor for the update of the weights.

First runs compile and are not counted. Figures are medians; a ratio is the median of
the ratios of neighbouring runs, in brackets the least and the most. Behind the tables
come the bars that this package is held to.

Most of a full run is bert4keras's epochs, two in each round: fewer `--rows` shorten it,
but are fewer to sort by length.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tools.benchmarks.benchmark_sides import batch_of, matrix_products
from tools.benchmarks.reporting import pairs, shown, write_figures
from tools.benchmarks.workers import Worker, serve
from tools.reference.full_size_checkpoint import (
    ROOT,
    check_bert4keras,
    write_checkpoint,
)

REVIEWS = ROOT.parent / "shared" / "data" / "sentiment" / "sentiment.train.tsv.gz"
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 2e-5, 0.01, 1.0
DROPOUT = 0.1
BERT4KERAS_RUN = "bert4keras float32"
# Part -> name of a run, the side that does it, and its job; in the order of turns.
RUNS = {
    "step": {
        "matrix products float32": ("limit", "step"),
        "roformer_keras float32": ("float32", "step"),
        "roformer_keras mixed_bfloat16": ("mixed_bfloat16", "step"),
        BERT4KERAS_RUN: ("bert4keras", "step"),
    },
    "reviews": {
        "roformer_keras float32": ("float32", "reviews"),
        "roformer_keras mixed_bfloat16": ("mixed_bfloat16", "reviews"),
        BERT4KERAS_RUN: ("bert4keras", "reviews"),
        "bert4keras float32, all padded": ("bert4keras", "padded"),
    },
}
# How many times as fast as bert4keras we must be.
BARS = (
    ("step", "roformer_keras float32", 1.3),
    ("step", "roformer_keras mixed_bfloat16", 2.0),
    ("reviews", "roformer_keras float32", 2.5),
)
SIZES = {
    "layers": (12, "layers of the model"),
    "hidden": (768, "its width, a multiple of 64"),
    "heads": (None, "its heads; one each 64 of the width"),
    "vocabulary": (12000, "its tokens"),
    "batch": (16, "rows a batch"),
    "length": (128, "tokens of a row of the step"),
    "steps": (4, "updates a turn of the step"),
    "rows": (512, "reviews of an epoch"),
    "max-length": (256, "tokens to which reviews are cut"),
    "rounds": (3, "turns of each side"),
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, what) in SIZES.items():
        shown = "" if default is None else f"; {default}"
        parser.add_argument(f"--{name}", type=int, default=default, help=what + shown)
    parser.add_argument("--parts", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--reviews", type=Path, default=REVIEWS, help="labelled texts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.heads is None:
        options.heads = options.hidden // 64
    if options.worker:
        serve(SIDES[options.worker](options))
        return
    check(options)
    figures = {"options": {name: getattr(options, name) for name in option_names()}}
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = Path(scratch)
        if "reviews" in options.parts:
            draw_reviews(options)
        write_model(options)
        with contextlib.ExitStack() as stack:
            workers = {
                side: stack.enter_context(worker_of(options, side)) for side in SIDES
            }
            figures["texts"] = check_sides(options, workers)
            if "step" in options.parts:
                seconds = measure(options, "step", workers.__getitem__)
                figures["step"] = figures_of(options, "step", seconds)
                report(options, "step", figures)
                # What has been measured is kept if the other part fails.
                write_figures(options.json, figures)
        if "reviews" in options.parts:
            # An hour's work: what each turn took is kept when it ends.
            def keep(seconds):
                write_figures(options.json, {**figures, "turns": seconds})

            seconds = measure(options, "reviews", keep=keep)
            figures["reviews"] = figures_of(options, "reviews", seconds)
            report(options, "reviews", figures)
    figures["bars"] = bars_of(figures)
    for bar in figures["bars"]:
        print(
            f"{bar['part']}, {bar['run']}: {bar['ratio']:.2f}x, at least "
            f"{bar['least']}x: {'met' if bar['met'] else 'missed'}"
        )
    write_figures(options.json, figures)


def option_names():
    return [name.replace("-", "_") for name in SIZES]


def check(options):
    """Refuses what would fail only after minutes, or in another process."""
    for name in option_names():
        if getattr(options, name) < 1:
            raise SystemExit(
                f"--{name.replace('_', '-')} must be at least 1, got "
                f"{getattr(options, name)}"
            )
    if options.hidden % 64 or options.hidden % (2 * options.heads):
        raise SystemExit(
            "--hidden must be a multiple of 64, and of twice --heads, got "
            f"{options.hidden} and {options.heads}"
        )
    check_bert4keras()
    if "reviews" in options.parts and not options.reviews.is_file():
        raise SystemExit(
            f"the labelled texts must be a file, and {options.reviews} is none: give "
            "another by --reviews, or leave this part out by --parts step"
        )


# === What all sides read ===


def write_model(options):
    """A checkpoint of random weights, in the folder."""
    sizes = options.layers, options.hidden, options.vocabulary
    write_checkpoint(options.folder, "roformer", *sizes)
    path = options.folder / "bert_config.json"
    config = json.loads(path.read_text())
    # The shapes of the weights do not tell.
    config["num_attention_heads"] = options.heads
    path.write_text(json.dumps(config))


def draw_reviews(options):
    """Pairs of a text and the number of its class, in the folder."""
    from roformer_keras.errors import RoFormerError
    from tools.experiments.compare_finetuning import read_records

    try:
        records = read_records(options.reviews, options.rows)
    except RoFormerError as error:
        raise SystemExit(f"error: {error}") from error
    if len(records) < options.rows:
        raise SystemExit(
            f"--rows must be at most the texts of {options.reviews}, "
            f"{len(records)}, got {options.rows}"
        )
    classes = sorted({label for _, label in records})
    numbered = [[text, classes.index(label)] for text, label in records]
    reviews_of(options).write_text(json.dumps(numbered), encoding="utf-8")


def reviews_of(options):
    return options.folder / "reviews.json"


def read_reviews(options):
    """Texts, and the numbers of their classes; none where that part is left out."""
    path = reviews_of(options)
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [text for text, _ in records], np.array([label for _, label in records])


def classes_of(labels):
    return max(2, 1 + int(labels.max(initial=0)))


# === The side that measures ===


def worker_of(options, side):
    sizes = {name: getattr(options, name) for name in option_names()}
    return Worker(__spec__.name, side, {**sizes, "folder": options.folder})


def check_sides(options, workers):
    """Builds the models; makes sure that they are one, and get the same ids.

    Returns:
        Side -> mean tokens of a text, of the reviews, without and with padding.
    """
    found = {
        side: worker.ask("build") for side, worker in workers.items() if side != "limit"
    }
    for what in ("weights", "ids"):
        values = {side: figures[what] for side, figures in found.items()}
        if len(set(values.values())) > 1:
            raise SystemExit(f"the sides must have the same {what}, got {values}")
    if "reviews" not in options.parts:
        return {}
    return {
        side: {name: figures[name] for name in ("tokens", "padded")}
        for side, figures in found.items()
    }


def measure(options, part, kept=None, keep=None):
    """Name of a run -> the seconds of its turns.

    Args:
        kept: of a side; its worker, which stays. Without, each turn has a new one:
            TensorFlow holds on to what an epoch has taken, and what three of them have
            does not fit into 24 GB.
        keep: called with what was found so far, after each turn.
    """
    runs, found = RUNS[part], {name: [] for name in RUNS[part]}
    with tqdm(total=len(runs) * options.rounds, unit="turn", desc=part) as bar:
        for number in range(options.rounds):
            for name, (side, job) in runs.items():
                bar.set_postfix_str(name)
                with contextlib.ExitStack() as stack:
                    if kept is None:
                        worker = stack.enter_context(worker_of(options, side))
                    else:
                        worker = kept(side)
                    if kept is None or not number:
                        worker.ask(job, "first")
                    found[name].append(worker.ask(job, "whole")["seconds"])
                if keep is not None:
                    keep(found)
                bar.update()
    return found


def figures_of(options, part, seconds):
    """Name of a run -> its seconds, the median rate, and its ratios to bert4keras."""
    if part == "step":
        amount = options.steps * options.batch * options.length
    else:
        amount = options.rows
    return {
        name: {
            "seconds": own,
            "rate": amount / statistics.median(own),
            "ratios": pairs(own, seconds[BERT4KERAS_RUN]),
        }
        for name, own in seconds.items()
    }


def bars_of(figures):
    """The bars of the parts that were measured."""
    bars = []
    for part, run, least in BARS:
        if part in figures:
            ratio = statistics.median(figures[part][run]["ratios"])
            bars.append(
                {
                    "part": part,
                    "run": run,
                    "least": least,
                    "ratio": ratio,
                    "met": ratio >= least,
                }
            )
    return bars


def report(options, part, figures):
    if part == "step":
        title = f"step {options.batch}x{options.length}, tokens/s"
    else:
        title = f"reviews, batches of {options.batch}, examples/s"
    print(f"\n{title:<42} {'rate':>10}  times bert4keras")
    for name, run in figures[part].items():
        ratio = "" if name == BERT4KERAS_RUN else shown(run["ratios"])
        print(f"{name:<42} {run['rate']:>10,.5g}  {ratio}".rstrip())
    if part == "step":
        limit, ours = list(figures[part].values())[:2]
        share = ours["rate"] / limit["rate"]
        print(f"float32 reaches {share:.0%} of its matrix products")
        return
    ours, theirs = (figures["texts"][side] for side in ("float32", "bert4keras"))
    print(
        f"{options.rows} texts of {ours['tokens']:.0f} tokens; with padding "
        f"{ours['padded']:.0f} in our batches, {theirs['padded']:.0f} in bert4keras's, "
        f"or {options.max_length}"
    )


# === The sides that work ===


def step_of(options, train_on_batch):
    """The job of that name: `first` is one update, `whole` as many as a turn has."""
    token_ids, segment_ids = batch_of(options)
    labels = np.arange(options.batch) % 2

    def step(what):
        for _ in range(1 if what == "first" else options.steps):
            train_on_batch([token_ids, segment_ids], labels)

    return step


def our_side(options):
    import keras

    from roformer_keras import RoFormerTextClassifier
    from roformer_keras.models.lora import trainable_count
    from roformer_keras.optimizers import make_optimizer
    from tools.experiments.bert4keras_classifier import hash_of_ids
    from tools.experiments.compare_finetuning import LAYER_NORM_EPSILON, batches_of

    texts, labels = read_reviews(options)
    keras.utils.set_random_seed(0)
    model = RoFormerTextClassifier.from_preset(
        options.folder,
        num_classes=classes_of(labels),
        max_length=options.max_length,
        dtype=options.worker,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
    )
    model.compile(
        make_optimizer(LEARNING_RATE, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM)
    )

    def build():
        found = {"weights": trainable_count(model), "ids": None}
        if not texts:
            return found
        rows = model.make_rows([(text,) for text in texts])
        sizes = argparse.Namespace(batch_size=options.batch, epochs=1)
        # Those of `fit`, whose seed is 0 too.
        batches = batches_of(rows.lengths, sizes, seed=0)
        padded = sum(len(batch) * int(rows.lengths[batch].max()) for batch in batches)
        return {
            **found,
            "ids": hash_of_ids([rows.ids(number) for number in range(len(rows))]),
            "tokens": float(rows.lengths.mean()),
            "padded": padded / len(rows),
        }

    def train_on_batch(inputs, targets):
        names = ("token_ids", "segment_ids")
        model.train_on_batch(dict(zip(names, inputs, strict=True)), targets)

    def reviews(what):
        count = first_rows(options) if what == "first" else len(texts)
        model.fit(texts[:count], labels[:count], batch_size=options.batch, verbose=0)

    return {
        "build": build,
        "step": step_of(options, train_on_batch),
        "reviews": reviews,
    }


def first_rows(options):
    """How many make two batches, from which Keras tells what width varies."""
    return 2 * options.batch


def their_side(options):
    from bert4keras.backend import keras
    from bert4keras.snippets import DataGenerator, sequence_padding
    from bert4keras.tokenizers import Tokenizer

    from tools.experiments.bert4keras_classifier import (
        encoded,
        hash_of_ids,
        make_classifier,
        make_optimizer,
    )

    texts, labels = read_reviews(options)
    keras.utils.set_random_seed(0)
    tokenizer = Tokenizer(str(options.folder / "vocab.txt"), do_lower_case=True)
    classes = classes_of(labels)
    kernel = np.random.default_rng(0).normal(0, 0.02, (options.hidden, classes))
    model = make_classifier(
        options.folder,
        "roformer",
        kernel,
        np.zeros(classes),
        dropout_rate=DROPOUT,
        attention_dropout_rate=DROPOUT,
    )
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=make_optimizer(
            LEARNING_RATE, WEIGHT_DECAY, global_clipnorm=CLIP_NORM
        ),
        metrics=["accuracy"],
    )

    class Reviews(DataGenerator):
        """Batches as bert4keras's examples make them, from texts in each epoch."""

        # To which rows are padded; to the longest of the batch if None.
        length = None

        def __iter__(self, random=False):
            rows = []
            for is_end, (text, label) in self.sample(random):
                rows.append((*tokenizer.encode(text, maxlen=options.max_length), label))
                if len(rows) == self.batch_size or is_end:
                    token_ids, segment_ids, batch_labels = zip(*rows, strict=True)
                    inputs = [
                        sequence_padding(ids, self.length)
                        for ids in (token_ids, segment_ids)
                    ]
                    yield inputs, np.array(batch_labels)
                    rows = []

    def build():
        weights = sum(int(np.prod(v.shape)) for v in model.trainable_weights)
        if not texts:
            return {"weights": weights, "ids": None}
        rows = encoded(tokenizer, texts, options.max_length)
        batches = Reviews(records, options.batch).__iter__(random=True)
        return {
            "weights": weights,
            "ids": hash_of_ids(rows),
            "tokens": float(np.mean([len(row) for row in rows])),
            "padded": sum(inputs[0].size for inputs, _ in batches) / len(rows),
        }

    records = list(zip(texts, labels, strict=True))

    def train(what, length=None):
        count = first_rows(options) if what == "first" else len(records)
        batches = Reviews(records[:count], options.batch)
        batches.length = length
        model.fit(batches.forfit(), steps_per_epoch=len(batches), epochs=1, verbose=0)

    return {
        "build": build,
        "step": step_of(options, model.train_on_batch),
        "reviews": train,
        "padded": lambda what: train(what, options.max_length),
    }


def limit_side(options):
    tokens = options.batch * options.length
    products = matrix_products(options.layers, options.hidden, tokens)

    def step(what):
        # Forward, for the gradients of the inputs, and for those of the weights.
        for _ in range(1 if what == "first" else 3 * options.steps):
            products()

    return {"step": step}


SIDES = {
    "float32": our_side,
    "mixed_bfloat16": our_side,
    "bert4keras": their_side,
    "limit": limit_side,
}


if __name__ == "__main__":
    sys.exit(main())

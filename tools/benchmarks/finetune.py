"""Fine-tuning a text classifier, compared with the real bert4keras.

    python -m tools.benchmarks.finetune                   # the base model, 12x768
    python -m tools.benchmarks.finetune --parts step
    python -m tools.benchmarks.finetune --layers 2 --hidden 128 --rows 64

The real bert4keras 0.11.5 writes a checkpoint of random weights, which all sides read:
roformer_keras in float32 and mixed_bfloat16, and bert4keras in float32, its only type.
They have the same number of weights and the same ids, which is checked; dropout of 0.1,
also on attention weights; AdamW, which does not decay biases and norms; and gradients
clipped to a norm of 1. Two parts:

step        Updates on one batch in memory by `train_on_batch`: tokens a second.
reviews     One epoch on labelled texts, from strings to updates: examples a second.
            roformer_keras by `fit(texts, labels)`, whose batches have texts of similar
            length. bert4keras as in its example task_sentiment_albert.py: random order,
            each batch padded to its longest text, or all to `--max-length`. Each turn
            has a new process: TensorFlow keeps the memory of an epoch.

The limit is the time of the matrix products alone, in float32: a step has those of a
forward pass three times. Most of a full run are bert4keras's epochs, two in each round.
"""

import statistics
import sys
from pathlib import Path

import numpy as np

from tools.benchmarks import texts
from tools.benchmarks.harness import (
    Benchmark,
    Run,
    Side,
    exit_with_error,
    make_batch,
    make_parser,
    matrix_products,
    medians,
    print_table,
    ratios,
    show_ratios,
    take_turns,
)
from tools.reference.full_size_checkpoint import write_checkpoint
from tools.reference.training import (
    encode_texts,
    hash_ids,
    make_classifier,
    make_optimizer,
    pad_rows,
)

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM, DROPOUT = 2e-5, 0.01, 1.0, 0.1
# Of bert4keras 0.11.5.
LAYER_NORM_EPSILON = 1e-7
THEIRS = "bert4keras float32"
# Two batches, from which Keras infers which sizes vary.
WARM_UP = ("train", 2)
OURS = {
    "roformer_keras float32": "float32",
    "roformer_keras mixed_bfloat16": "mixed_bfloat16",
}
RUNS = {
    "step": {
        "matrix products float32": Run("limit", "step"),
        **{name: Run(side, "step") for name, side in OURS.items()},
        THEIRS: Run("bert4keras", "step"),
    },
    "reviews": {
        **{name: Run(side, "train", (), WARM_UP) for name, side in OURS.items()},
        THEIRS: Run("bert4keras", "train", (), WARM_UP),
        "bert4keras float32, all padded": Run(
            "bert4keras", "train", (None, True), (*WARM_UP, True)
        ),
    },
}
SIZES = {
    "layers": (12, "layers of the model"),
    "hidden": (768, "its width, a multiple of 64"),
    "heads": (None, "its heads; one for each 64 of the width"),
    "vocabulary": (12000, "its tokens"),
    "batch": (16, "rows of a batch"),
    "length": (128, "tokens of a row of the step"),
    "steps": (4, "updates of a turn of the step"),
    "rows": (512, "reviews of an epoch"),
    "max-length": (256, "tokens to which reviews are cut"),
    "rounds": (3, "turns of each run"),
}


def main(arguments=None):
    parser = make_parser(__doc__, SIZES, RUNS)
    help = "lines of a text, a tab and a label; plain or .gz"
    parser.add_argument("--reviews", type=Path, default=texts.FILES[0], help=help)
    options = parser.parse_args(arguments)
    options.heads = options.heads or max(1, options.hidden // 64)
    if options.hidden % 64 or options.hidden % (2 * options.heads):
        parser.error("--hidden must be a multiple of 64 and of twice --heads")
    with Benchmark(options, SIDES) as benchmark:
        if "reviews" in options.parts:
            draw_reviews(options, benchmark.folder)
        sizes = options.layers, options.hidden, options.vocabulary, options.heads
        write_checkpoint(benchmark.folder, "roformer", *sizes)
        benchmark.save("texts", check_sides(benchmark))
        for part in options.parts:
            fresh = part == "reviews"
            if fresh:
                benchmark.stop()
            turns = take_turns(benchmark, RUNS[part], options.rounds, part, fresh)
            tokens = options.steps * options.batch * options.length
            benchmark.save(part, medians(turns, options.rows if fresh else tokens))
            report(part, benchmark.figures)
    return 0


def draw_reviews(options, folder):
    """Writes some reviews, chosen by a seed, and the numbers of their classes."""
    from roformer_keras.data.files import read_table

    table = read_table(options.reviews, 1)
    rows = [
        (row[0], label) for row, label in zip(table.texts, table.labels, strict=True)
    ]
    if len(rows) < options.rows:
        raise SystemExit(
            f"--rows must be at most the texts of {options.reviews}, {len(rows)}, got "
            f"{options.rows}"
        )
    chosen = np.random.default_rng(0).permutation(len(rows))[: options.rows]
    classes = sorted({label for _, label in rows})
    np.savez(
        folder / "reviews.npz",
        texts=[rows[number][0] for number in np.sort(chosen)],
        labels=[classes.index(rows[number][1]) for number in np.sort(chosen)],
    )


def check_sides(benchmark):
    """Checks that all sides have equal models and ids; returns their mean tokens."""
    found = {
        side: benchmark[side].call("describe") for side in SIDES if side != "limit"
    }
    for what in ("weights", "ids"):
        values = {side: description[what] for side, description in found.items()}
        if len(set(values.values())) > 1:
            raise SystemExit(f"the sides must have the same {what}, got {values}")
    return found


def report(part, figures):
    unit = "tokens/s" if part == "step" else "examples/s"
    rows = [
        (name, f"{run['rate']:,.5g}", show_ratios(ratios(figures[part], name, THEIRS)))
        for name, run in figures[part].items()
    ]
    print_table(part, (unit, f"times {THEIRS}"), rows)
    if part == "step":
        limit, ours = list(figures[part])[:2]
        share = statistics.median(ratios(figures[part], ours, limit))
        print(f"float32 reaches {share:.0%} of its matrix products")
        return
    ours, theirs = figures["texts"]["float32"], figures["texts"]["bert4keras"]
    print(
        f"texts of {ours['tokens']:.0f} tokens; with padding {ours['padded']:.0f} in "
        f"batches of roformer_keras, {theirs['padded']:.0f} in those of bert4keras"
    )


# === The sides ===


class Classifier(Side):
    """A side that trains; a subclass makes `model()`.

    Attributes:
        texts, labels: of the reviews; empty if that part is left out.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.texts, self.labels = [], np.array([], int)
        if (self.folder / "reviews.npz").exists():
            with np.load(self.folder / "reviews.npz") as reviews:
                self.texts, self.labels = reviews["texts"].tolist(), reviews["labels"]
        self.classes = max(2, 1 + int(self.labels.max(initial=0)))

    def description(self, rows, padded):
        """What must be equal on all sides; mean tokens without and with padding."""
        trainable = self.keep(self.model).trainable_weights
        return {
            "weights": sum(int(np.prod(weight.shape)) for weight in trainable),
            "ids": hash_ids(rows) if rows else None,
            "tokens": float(np.mean(list(map(len, rows)))) if rows else 0,
            "padded": padded / max(1, len(rows)),
        }

    def step(self):
        inputs = make_batch(self.batch, self.length, self.vocabulary)
        labels, model = np.arange(self.batch) % 2, self.keep(self.model)
        for _ in range(self.steps):
            model.train_on_batch(self.as_inputs(*inputs), labels)


class RoFormer(Classifier):
    """roformer_keras, in the type that is the side's name."""

    def model(self):
        import keras

        from roformer_keras import RoFormerTextClassifier
        from roformer_keras.optimizers import make_optimizer

        keras.utils.set_random_seed(0)
        model = RoFormerTextClassifier.from_preset(
            self.folder,
            num_classes=self.classes,
            max_length=self.max_length,
            dtype=self.name,
            layer_norm_epsilon=LAYER_NORM_EPSILON,
            dropout=DROPOUT,
            attention_dropout=DROPOUT,
        )
        optimizer = make_optimizer(
            LEARNING_RATE, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM
        )
        model.compile(optimizer)
        return model

    def describe(self):
        from roformer_keras.data.batches import TextBatches

        if not self.texts:
            return self.description([], 0)
        rows = self.keep(self.model).make_rows([(text,) for text in self.texts])
        # As `fit` makes them.
        batches = TextBatches(
            rows.lengths, lambda numbers, more: numbers, self.batch, shuffle=True
        )
        padded = sum(
            len(batches[i]) * int(rows.lengths[batches[i]].max())
            for i in range(len(batches))
        )
        ids = [rows.ids(number) for number in range(len(rows))]
        return self.description(ids, padded)

    def as_inputs(self, token_ids, segment_ids):
        return {"token_ids": token_ids, "segment_ids": segment_ids}

    def train(self, batches=None):
        count = batches * self.batch if batches else len(self.texts)
        texts, labels = self.texts[:count], self.labels[:count]
        self.keep(self.model).fit(texts, labels, batch_size=self.batch, verbose=0)


class Bert4keras(Classifier):
    """The real bert4keras, as its examples train."""

    def model(self):
        from bert4keras.backend import keras

        keras.utils.set_random_seed(0)
        kernel = np.random.default_rng(0).normal(0, 0.02, (self.hidden, self.classes))
        model = make_classifier(
            self.folder,
            "roformer",
            kernel,
            np.zeros(self.classes),
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
        return model

    def tokenizer(self):
        from tools.reference.bert4keras import make_tokenizer

        return make_tokenizer(self.folder)

    def batches(self, count, all_padded=False):
        """bert4keras's generator of batches, which encodes texts in each epoch."""
        from bert4keras.snippets import DataGenerator, sequence_padding

        side = self

        class Reviews(DataGenerator):
            def __iter__(self, random=False):
                rows, labels = [], []
                for is_end, (text, label) in self.sample(random):
                    tokenizer = side.keep(side.tokenizer)
                    rows += encode_texts(tokenizer, [text], side.max_length)
                    labels.append(label)
                    if len(rows) == self.batch_size or is_end:
                        inputs = pad_rows(rows)
                        if all_padded:
                            inputs = [
                                sequence_padding(ids, side.max_length) for ids in inputs
                            ]
                        yield inputs, np.array(labels)
                        rows, labels = [], []

        records = list(zip(self.texts, self.labels, strict=True))
        return Reviews(records[:count], self.batch)

    def describe(self):
        rows = encode_texts(self.keep(self.tokenizer), self.texts, self.max_length)
        batches = self.batches(len(rows)).__iter__(random=True)
        return self.description(rows, sum(inputs[0].size for inputs, _ in batches))

    def as_inputs(self, *inputs):
        return list(inputs)

    def train(self, batches=None, all_padded=False):
        count = batches * self.batch if batches else len(self.texts)
        data = self.batches(count, all_padded)
        self.keep(self.model).fit(
            data.forfit(), steps_per_epoch=len(data), epochs=1, verbose=0
        )


class Limit(Side):
    def products(self):
        return matrix_products(self.layers, self.hidden, self.batch * self.length)

    def step(self):
        # Forward, for the gradients of the inputs, and for those of the weights.
        for _ in range(3 * self.steps):
            self.keep(self.products)()


SIDES = {
    "float32": f"{__spec__.name}:RoFormer",
    "mixed_bfloat16": f"{__spec__.name}:RoFormer",
    "bert4keras": f"{__spec__.name}:Bert4keras",
    "limit": f"{__spec__.name}:Limit",
}


if __name__ == "__main__":
    sys.exit(exit_with_error(main))

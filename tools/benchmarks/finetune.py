"""Fine-tuning a text classifier, compared with the real bert4keras.

    python -m tools.benchmarks.finetune

All sides read a checkpoint of random weights. Dropout of 0.1, AdamW, gradients clipped.

step        Updates on one batch in memory by `train_on_batch`: tokens a second.
reviews     One epoch on labelled texts, from strings to updates: examples a second.
            roformer_keras by `fit(texts, labels)`; bert4keras as in its example
            task_sentiment_albert.py: random order, each batch padded to its longest
            text, or all to `--max-length`. Each turn has a new process: TensorFlow
            keeps the memory of an epoch.

The limit is the time of the matrix products alone, in that type: a step has those of
a forward pass three times. Hugging Face transformers take part in `step` if they are
installed.
"""

import sys
from pathlib import Path

import numpy as np

from tools.benchmarks import texts
from tools.benchmarks.harness import (
    LIMIT,
    MODEL_SIZES,
    THEIRS,
    Benchmark,
    Run,
    Side,
    compare,
    make_batch,
    make_inputs,
    make_parser,
    matrix_products,
)
from tools.benchmarks.hugging_face import (
    CLIP_NORM,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Transformers,
)
from tools.benchmarks.sides import is_installed
from tools.commands import command
from tools.reference import training
from tools.reference.bert4keras import make_tokenizer
from tools.reference.full_size_checkpoint import write_checkpoint

DROPOUT = 0.1
# Of bert4keras 0.11.5.
LAYER_NORM_EPSILON = 1e-7
# Two batches, from which Keras infers which sizes vary.
WARM_UP = ("train", 2)
TYPES = ("float32", "bfloat16")
OURS = {f"roformer_keras {name}": name for name in ("float32", "mixed_bfloat16")}
RUNS = {
    "step": {
        **{f"{LIMIT} {dtype}": Run("limit", "step", (dtype,)) for dtype in TYPES},
        **{name: Run(side, "step") for name, side in OURS.items()},
        THEIRS: Run("bert4keras", "step"),
        **{
            f"transformers {dtype}": Run("transformers", "step", (dtype,))
            for dtype in TYPES
        },
    },
    "reviews": {
        **{name: Run(side, "train", (), WARM_UP) for name, side in OURS.items()},
        THEIRS: Run("bert4keras", "train", (), WARM_UP),
        "bert4keras float32, all padded": Run(
            "bert4keras", "train", (None, True), (*WARM_UP, True)
        ),
    },
}
UNITS = {"step": "tokens/s", "reviews": "examples/s"}
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 200, "its tokens"),
    "batch": (16, 4, "rows of a batch"),
    "length": (128, 12, "tokens of a row of the step"),
    "steps": (4, 1, "updates of a turn of the step"),
    "rows": (512, 12, "reviews of an epoch"),
    "max-length": (256, 16, "tokens to which reviews are cut"),
    "rounds": (3, 1, "turns of each run"),
}


@command
def main(arguments=None):
    parser = make_parser(__doc__, SIZES, RUNS)
    help = "lines of a text, a tab and a label; plain or .gz"
    parser.add_argument("--reviews", type=Path, default=texts.FILES[0], help=help)
    options = parser.parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        draw_reviews(options, benchmark.folder)
        sizes = options.layers, options.hidden, options.vocabulary
        write_checkpoint(benchmark.folder, "roformer", *sizes)
        benchmark.save("texts", check_sides(benchmark))
        tokens = options.steps * options.batch * options.length
        amounts = {"step": tokens, "reviews": options.rows}
        for part in options.parts:
            is_fresh, unit = part == "reviews", UNITS[part]
            runs = {k: run for k, run in RUNS[part].items() if is_installed(run.side)}
            amount = amounts[part]
            found = compare(benchmark, runs, part, unit, amount, fresh=is_fresh)
            benchmark.save(part, found)
            benchmark.stop()
        for side, found in benchmark.figures["texts"].items():
            print(
                f"{side}: a review has {found['tokens']:.0f} tokens, with padding "
                f"{found['padded']:.0f}"
            )


def draw_reviews(options, folder):
    """Writes some reviews, chosen by a seed, and the numbers of their classes."""
    from roformer_keras.data.files import read_table

    table = read_table(options.reviews, 1)
    chosen = np.random.default_rng(0).permutation(len(table.labels))[: options.rows]
    classes = sorted(set(table.labels))
    np.savez(
        folder / "reviews.npz",
        texts=[table.texts[number][0] for number in np.sort(chosen)],
        labels=[classes.index(table.labels[number]) for number in np.sort(chosen)],
    )


def check_sides(benchmark):
    """Checks that all sides have equal models and ids; returns their mean tokens."""
    found = {s: benchmark[s].call("describe") for s in COMPARED}
    for what in ("weights", "ids"):
        values = {side: description[what] for side, description in found.items()}
        if len(set(values.values())) > 1:
            raise SystemExit(f"the sides must have the same {what}, got {values}")
    return found


class Classifier(Side):
    """A side that trains."""

    def __init__(self, **options):
        super().__init__(**options)
        with np.load(self.folder / "reviews.npz") as reviews:
            self.texts, self.labels = reviews["texts"].tolist(), reviews["labels"]
        self.classes = 1 + int(self.labels.max())

    def description(self, rows, padded):
        """What must be equal on all sides; mean tokens without and with padding."""
        trainable = self.keep(self.model).trainable_weights
        return {
            "weights": sum(int(np.prod(weight.shape)) for weight in trainable),
            "ids": training.hash_ids(rows),
            "tokens": float(np.mean(list(map(len, rows)))),
            "padded": padded / len(rows),
        }

    def step(self):
        inputs = self.make_inputs(self.batch, self.length, self.vocabulary)
        labels, model = np.arange(self.batch) % 2, self.keep(self.model)
        for _ in range(self.steps):
            model.train_on_batch(inputs, labels)


class RoFormer(Classifier):
    """roformer_keras, in the type that is the side's name."""

    make_inputs = staticmethod(make_inputs)

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
        options = {"weight_decay": WEIGHT_DECAY, "clip_norm": CLIP_NORM}
        model.compile(make_optimizer(LEARNING_RATE, **options))
        return model

    def describe(self):
        from roformer_keras.data.batches import TextBatches

        rows = self.keep(self.model).make_rows([(text,) for text in self.texts])
        # As `fit` makes them.
        batches = TextBatches(
            rows.lengths,
            lambda numbers, more: len(numbers) * int(rows.lengths[numbers].max()),
            self.batch,
            shuffle=True,
        )
        padded = sum(batches[number] for number in range(len(batches)))
        return self.description([rows.ids(n) for n in range(len(rows))], padded)

    def train(self, batches=None):
        count = batches * self.batch if batches else len(self.texts)
        texts, labels = self.texts[:count], self.labels[:count]
        self.keep(self.model).fit(texts, labels, batch_size=self.batch, verbose=0)


class Bert4keras(Classifier):
    """The real bert4keras, as its examples train."""

    make_inputs = staticmethod(lambda *sizes: list(make_batch(*sizes)))

    def model(self):
        from bert4keras.backend import keras

        keras.utils.set_random_seed(0)
        kernel = np.random.default_rng(0).normal(0, 0.02, (self.hidden, self.classes))
        head = kernel, np.zeros(self.classes)
        rates = {"dropout_rate": DROPOUT, "attention_dropout_rate": DROPOUT}
        model = training.make_classifier(self.folder, "roformer", *head, **rates)
        options = {"global_clipnorm": CLIP_NORM}
        model.compile(
            loss="sparse_categorical_crossentropy",
            optimizer=training.make_optimizer(LEARNING_RATE, WEIGHT_DECAY, **options),
            metrics=["accuracy"],
        )
        return model

    def batches(self, count, all_padded=False):
        """bert4keras's generator of batches, which encodes texts in each epoch."""
        from bert4keras.snippets import DataGenerator, sequence_padding

        side = self

        class Reviews(DataGenerator):
            def __iter__(self, random=False):
                rows, labels = [], []
                for is_end, (text, label) in self.sample(random):
                    tokenizer = side.keep(make_tokenizer, side.folder)
                    rows += training.encode_texts(tokenizer, [text], side.max_length)
                    labels.append(label)
                    if len(rows) == self.batch_size or is_end:
                        inputs = training.pad_rows(rows)
                        length = side.max_length if all_padded else None
                        inputs = [sequence_padding(ids, length) for ids in inputs]
                        yield inputs, np.array(labels)
                        rows, labels = [], []

        records = list(zip(self.texts, self.labels, strict=True))
        return Reviews(records[:count], self.batch)

    def describe(self):
        rows = training.encode_texts(
            self.keep(make_tokenizer, self.folder), self.texts, self.max_length
        )
        batches = self.batches(len(rows)).__iter__(random=True)
        return self.description(rows, sum(inputs[0].size for inputs, _ in batches))

    def train(self, batches=None, all_padded=False):
        count = batches * self.batch if batches else len(self.texts)
        data = self.batches(count, all_padded)
        self.keep(self.model).fit(
            data.forfit(), steps_per_epoch=len(data), epochs=1, verbose=0
        )


class Peer(Transformers):
    """Hugging Face's classifier of the same size, with random weights."""

    def step(self, dtype):
        self.calls = self.steps
        super().step(self.batch, self.length, dtype)


class Limit(Side):
    def products(self, dtype):
        tokens = self.batch * self.length
        return matrix_products(self.layers, self.hidden, tokens, dtype)

    def step(self, dtype):
        # Forward, for the gradients of the inputs, and for those of the weights.
        for _ in range(3 * self.steps):
            self.keep(self.products, dtype)()


SIDES = {
    "float32": RoFormer,
    "mixed_bfloat16": RoFormer,
    "bert4keras": Bert4keras,
    "transformers": Peer,
    "limit": Limit,
}
# Sides with the same weights and texts.
COMPARED = [name for name in SIDES if name not in ("transformers", "limit")]


if __name__ == "__main__":
    sys.exit(main())

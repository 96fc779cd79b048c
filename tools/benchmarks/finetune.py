"""Updates of a text classifier, compared with the real bert4keras.

    python -m tools.benchmarks.finetune

All sides read a checkpoint of random weights, and update on one batch in memory by
`train_on_batch`: tokens a second. Dropout of 0.1, AdamW, gradients clipped.

The limit is the time of the matrix products alone, in that type: a step has those of
a forward pass three times. Hugging Face transformers take part if they are installed.
"""

import sys

import numpy as np

from tools.benchmarks.harness import (
    LIMIT,
    MODEL_SIZES,
    THEIRS,
    Benchmark,
    Run,
    compare,
    make_parser,
)
from tools.benchmarks.sides import (
    CLIP_NORM,
    LEARNING_RATE,
    WEIGHT_DECAY,
    EncodeSide,
    Limit,
    Transformers,
    installed,
)
from tools.commands import command
from tools.reference import training

CLASSES, DROPOUT = 2, 0.1
# Of bert4keras 0.11.5.
LAYER_NORM_EPSILON = 1e-7
TYPES = ("float32", "bfloat16")
OURS = {f"roformer_keras {name}": name for name in ("float32", "mixed_bfloat16")}
# Name of a run -> side and arguments; the shape comes before them.
RUNS = {
    **{f"{LIMIT} {dtype}": ("limit", (dtype,)) for dtype in TYPES},
    **{name: (side, ()) for name, side in OURS.items()},
    THEIRS: ("bert4keras", ()),
    **{f"transformers {dtype}": ("transformers", (dtype,)) for dtype in TYPES},
}
SIZES = {
    **MODEL_SIZES,
    "vocabulary": (12000, 200, "its tokens"),
    "batch": (16, 4, "rows of a batch"),
    "length": (128, 12, "tokens of a row"),
    "steps": (4, 1, "updates of a turn"),
    "rounds": (3, 1, "turns of each run"),
}


@command
def main(arguments=None):
    options = make_parser(__doc__, SIZES).parse_args(arguments)
    with Benchmark(options, __spec__.name, SIDES) as benchmark:
        benchmark.write_checkpoint()
        shape = f"{options.batch}x{options.length}"
        runs = {
            name: Run(side, "step", (shape, *arguments))
            for name, (side, arguments) in RUNS.items()
        }
        tokens = options.steps * options.batch * options.length
        figures = compare(benchmark, installed(runs), "step", "tokens/s", tokens)
        benchmark.save("step", figures)


class Classifier(EncodeSide):
    """A side that trains a classifier."""

    def step(self, shape):
        inputs, model = self.keep(self.step_inputs, shape), self.keep(self.model)
        labels = np.arange(self.batch) % CLASSES
        for _ in range(self.steps):
            model.train_on_batch(inputs, labels)


class RoFormer(Classifier):
    """roformer_keras, in the type that is the side's name."""

    step_inputs = EncodeSide.inputs

    def model(self):
        import keras

        from roformer_keras import RoFormerTextClassifier
        from roformer_keras.optimizers import make_optimizer

        keras.utils.set_random_seed(0)
        model = RoFormerTextClassifier.from_preset(
            self.folder,
            num_classes=CLASSES,
            dtype=self.name,
            layer_norm_epsilon=LAYER_NORM_EPSILON,
            dropout=DROPOUT,
            attention_dropout=DROPOUT,
        )
        options = {"weight_decay": WEIGHT_DECAY, "clip_norm": CLIP_NORM}
        model.compile(make_optimizer(LEARNING_RATE, **options))
        return model


class Bert4keras(Classifier):
    """The real bert4keras, as its examples train."""

    def step_inputs(self, shape):
        return list(self.ids(shape))

    def model(self):
        from bert4keras.backend import keras

        keras.utils.set_random_seed(0)
        kernel = np.random.default_rng(0).normal(0, 0.02, (self.hidden, CLASSES))
        head = kernel, np.zeros(CLASSES)
        rates = {"dropout_rate": DROPOUT, "attention_dropout_rate": DROPOUT}
        model = training.make_classifier(self.folder, "roformer", *head, **rates)
        options = {"global_clipnorm": CLIP_NORM}
        model.compile(
            loss="sparse_categorical_crossentropy",
            optimizer=training.make_optimizer(LEARNING_RATE, WEIGHT_DECAY, **options),
            metrics=["accuracy"],
        )
        return model


SIDES = {
    "float32": RoFormer,
    "mixed_bfloat16": RoFormer,
    "bert4keras": Bert4keras,
    "transformers": Transformers,
    "limit": Limit,
}


if __name__ == "__main__":
    sys.exit(main())

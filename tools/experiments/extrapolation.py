"""Losses of language models on texts longer than those of training.

    python -m tools.experiments.extrapolation --output FOLDER --seeds 3 \\
        --config checkpoints/training/extrapolation.toml

Two causal language models that differ only in positions read longer held-out texts than
they were trained on:

rotary        as trained
cut           the same model; the text is cut into rows of the length of training
interpolated  positions divided by s, the ratio of the lengths (arXiv:2306.15595)
ntk           the base times s ** (d / (d - 2)) with d features per head: the slowest
              pair rotates as with interpolation, the fastest as in training
absolute      the learned table; positions beyond training take its last row
rotary+, interpolated+
              trained further on long rows, without and with divided positions

The configuration is one of `pretrain lm` with two stages: the training, and the further
training on long rows. Its data have two fields, a text and its document. losses.csv has
mean losses of each 32 positions in nats per token.
"""

import itertools
import sys

import keras
import numpy as np
from keras import ops

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.models import RoFormerCausalLM
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.experiments import language_models
from tools.experiments.harness import count_seeds, curves, describe_model, fit, spread
from tools.tables import markdown

# model -> its methods -> label, color, line
METHODS = {
    "roformer": {
        "rotary": ("rotary", "C0", "-"),
        "cut": ("rotary, each row alone", "C6", "-"),
        "interpolated": ("interpolated", "C1", "-"),
        "ntk": ("NTK-aware base", "C2", "-"),
        "rotary+": ("rotary, trained further", "C0", "--"),
        "interpolated+": ("interpolated, trained further", "C1", "--"),
    },
    "absolute": {"absolute": ("learned table, then its last row", "C3", ":")},
}
LABELS = METHODS["roformer"] | METHODS["absolute"]
# Positions per mean loss.
BIN = 32
TOKENS_PER_BATCH = 4096


class Extrapolation(language_models.DocumentExperiment):
    max_windows = 128
    names, styles = tuple(METHODS), LABELS
    tables = ("losses.csv",)
    plots = (("losses.csv", "method", "position", "loss", "loss (nats a token)"),)
    tick_step = 128

    def __init__(self, options):
        super().__init__(options)
        training = PretrainingSettings.from_toml(options.config)
        self.check_training(training)
        self.lengths = [stage.length for stage in self.training.stages]

    def name_of(self, row):
        return "absolute" if row["method"] == "absolute" else "roformer"

    def prepare(self):
        super().prepare()
        self.config = RoFormerConfig.from_dict(
            {
                **self.training.model,
                "attention": "causal",
                "vocabulary_size": self.vocabulary_size,
                # Interpolation divides positions.
                "custom_position_ids": True,
            }
        )

    def train(self, name, seed):
        short, long = self.lengths
        scale, losses = long / short, []
        sizes = self.config, short, seed
        model = language_models.make_models(RoFormerCausalLM, *sizes)[name]

        def measure(method, model, divisor=1):
            bin_losses = self.measure(model, name, method == "cut", divisor)
            run = {"method": method, "seed": seed}
            losses.extend(
                {**run, "position": number * BIN, "loss": float(loss)}
                for number, loss in enumerate(bin_losses)
            )

        first, second = self.training.stages
        self.fit(model, name, first, seed)
        if name == "absolute":
            measure("absolute", model)
            return [losses]
        measure("rotary", model)
        measure("cut", model)
        measure("interpolated", model, scale)
        base = ntk_base(self.config.rotary_base, self.config.key_dim, scale)
        measure("ntk", copy_model(model, rotary_base=base))
        for method, divisor in (("rotary+", 1), ("interpolated+", scale)):
            longer = copy_model(model)
            self.fit(longer, name, second, seed, divisor)
            measure(method, longer, divisor)
        return [losses]

    def fit(self, model, name, stage, seed, divisor=1):
        """Trains on rows that depend only on the seed."""

        def batches():
            for step in itertools.count():
                rows = self.draw_rows(stage, [seed, stage.length, step])
                inputs = make_inputs(name, rows[:, :-1], self.lengths[0], divisor)
                yield inputs, rows[:, 1:]

        title = f"{name}, seed {seed}, {stage.length} tokens"
        trainer = language_models.next_token_trainer(model, self.training, stage)
        fit(trainer, stage, title, batches())

    def measure(self, model, name, is_cut, divisor):
        """Mean losses by position: float `(positions / BIN,)`."""
        token_ids, targets = self.windows[:, :-1], self.windows[:, 1:]
        if is_cut:
            token_ids, targets = (
                rows.reshape(-1, self.lengths[0]) for rows in (token_ids, targets)
            )
        inputs = make_inputs(name, token_ids, self.lengths[0], divisor)
        losses = next_token_losses(model, inputs, targets)
        return losses.reshape(len(self.windows), -1, BIN).mean(axis=(0, 2))

    def summarize(self, losses):
        short, long = self.lengths
        ends = [short]
        while ends[-1] < long:
            ends.append(min(2 * ends[-1], long))
        by_method = {}
        for method in LABELS:
            _, values = curves(losses, "position", "loss", method=method)
            by_method[method] = [
                {"from": start, "to": end}
                | spread(values[:, start // BIN : end // BIN].mean(axis=1).tolist())
                for start, end in itertools.pairwise([0, *ends])
            ]
        return {"losses": by_method}

    def report(self, results):
        by_method = results["losses"]
        first, second = self.training.stages
        bands = next(iter(by_method.values()))
        columns = ["positions", *(f"{b['from'] + 1} to {b['to']}" for b in bands)]
        rows = [
            [LABELS[method][0], *(f"{b['mean']:.3f} ({b['spread']:.3f})" for b in own)]
            for method, own in by_method.items()
        ]
        return (
            f"{markdown(columns, rows)}\n\nLoss in nats per token: mean and range of "
            f"{count_seeds(self.options.seeds)}. "
            f"{describe_model(self.training, first)} Further training: "
            f"{second.steps} steps of {second.batch_size} rows of {second.length}."
        )


def make_inputs(name, token_ids, length, divisor=1):
    """The inputs of a model of `make_models`, whose table has `length` rows."""
    zeros, numbers = np.zeros_like(token_ids), np.arange(token_ids.shape[1])
    if name == "absolute":
        # The segment table is the table of positions, and nothing is rotated.
        segments = zeros + np.minimum(numbers, length - 1).astype("int32")
        positions = zeros
    else:
        segments, positions = zeros, zeros + numbers / divisor
    return {
        "token_ids": token_ids,
        "segment_ids": segments,
        "position_ids": positions.astype("float32"),
    }


def ntk_base(base, features, scale):
    """The base with which the slowest pair of a head rotates `scale` times slower."""
    return base * scale ** (features / (features - 2))


def copy_model(model, **changes):
    """A model with the same weights and a changed configuration."""
    other = type(model).from_roformer_config(model.config.replace(**changes))
    other.set_weights(model.get_weights())
    return other


def next_token_losses(model, inputs, targets):
    """Cross-entropies of the targets: float64 `(rows, tokens)`."""
    expected = keras.Input((None,), dtype="int32", name="targets")
    scorer = keras.Model(
        {**model.input, "targets": expected},
        ops.sparse_categorical_crossentropy(expected, model.output, from_logits=True),
    )
    batch_size = max(1, TOKENS_PER_BATCH // targets.shape[1])
    return scorer.predict(
        {**inputs, "targets": targets}, batch_size=batch_size, verbose=0
    ).astype("float64")


if __name__ == "__main__":
    sys.exit(Extrapolation.main())

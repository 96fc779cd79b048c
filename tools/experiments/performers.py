"""Performers with and without rotary positions: the loss by training steps.

    python -m tools.experiments.performers --output FOLDER --seeds 3 \\
        --config checkpoints/training/performers.toml

The right of figure 3 in arXiv:2104.09864, at another size. The models are causal
language models of characters that differ only in their attention:

performer-rope, performer   Positive random features replace the softmax. Those of
                            queries and keys are rotated, or nothing is.
performer-of-rope           Queries and keys are rotated before their features.
linear-rope, linear         The same as the first two, with elu + 1 as features.
softmax-rope, softmax       Softmax attention, for comparison.

A model without rotation has no positions. It still knows something of the order,
because attention is causal: each token sees only the tokens before it.

The configuration is one of `pretrain lm` without a source, with one stage and a list
`models`. Its data have two fields, a text and its document; rows start anywhere in a
document. A seed decides the initial weights, the rows, the dropout and the random
features, which are drawn once. The models of a seed start with equal weights and get
equal rows. Validation rows are from held-out documents, and equal for all. All is
float32.

curves.csv has `train_loss`, the mean since the row before, and `validation_loss` in
nats per token, and `tokens_per_second` of training without validation.
"""

import itertools
import statistics
import sys

import numpy as np

from roformer_keras.checks import check_choice
from roformer_keras.config import PERFORMERS, RoFormerConfig
from roformer_keras.errors import ConfigurationError, errors_at
from roformer_keras.training.pretraining_settings import (
    PretrainingSettings,
    read_settings,
)
from tools.experiments.corpora import DocumentExperiment
from tools.experiments.harness import count_seeds, curves, describe_model, draw_mean
from tools.tables import markdown

# name -> attention, whether it is rotary, label, color, line
MODELS = {
    "performer-rope": ("performer", True, "Performer with RoPE", "C0", "-"),
    "performer-of-rope": ("rotary_performer", True, "Performer of RoPE", "C1", "-"),
    "performer": ("performer", False, "Performer without", "C0", "--"),
    "linear-rope": ("linear", True, "elu + 1 with RoPE", "C2", "-"),
    "linear": ("linear", False, "elu + 1 without", "C2", "--"),
    "softmax-rope": ("softmax", True, "softmax with RoPE", "C7", "-"),
    "softmax": ("softmax", False, "softmax without", "C7", "--"),
}


class Performers(DocumentExperiment):
    max_windows = 64

    def __init__(self, options):
        super().__init__(options)
        content = read_settings(options.config)
        with errors_at(options.config):
            self.names = check_names(content.pop("models", []))
            self.check_training(PretrainingSettings.from_dict(content), stages=1)
        (self.stage,) = self.training.stages

    def train(self, name, seed):
        from tools.experiments.language_models import fit_next_tokens, make_curve

        rows = fit_next_tokens(
            self.make_model(name, seed),
            self.training,
            self.stage,
            f"{name}, seed {seed}",
            self.batches(seed),
            validation_data=inputs_and_targets(self.windows),
            # The logits of larger batches would take more memory than training does.
            validation_batch_size=self.stage.batch_size,
        )
        return [make_curve(rows, "validation_loss", model=name, seed=seed)]

    def make_model(self, name, seed):
        """A model whose initial weights depend only on the seed."""
        import keras

        from roformer_keras.models import RoFormerCausalLM

        attention, is_rotary, *_ = MODELS[name]
        fields = {
            **self.training.model,
            "vocabulary_size": self.vocabulary_size,
            "attention": "causal",
            "attention_type": attention,
            "rotary": is_rotary,
        }
        if attention in PERFORMERS:
            fields["performer_seed"] = seed
        else:
            fields.pop("performer_features", None)
        keras.utils.set_random_seed(seed)
        return RoFormerCausalLM.from_roformer_config(
            RoFormerConfig.from_dict(fields), "float32"
        )

    def batches(self, seed):
        for step in itertools.count():
            yield inputs_and_targets(
                self.documents.rows(
                    np.random.default_rng([seed, step]),
                    self.stage.batch_size,
                    self.stage.length + 1,
                )
            )

    def summarize(self, rows):
        found = {}
        for name in self.names:
            steps, losses = curves(rows, "step", "validation_loss", model=name)
            _, speeds = curves(rows, "step", "tokens_per_second", model=name)
            found[name] = {
                "steps": steps,
                "mean": losses.mean(axis=0).tolist(),
                "spread": np.ptp(losses, axis=0).tolist(),
                "seeds": losses.tolist(),
                "tokens_per_second": float(np.median(speeds)),
            }
        rotation = {}
        for name, rotary in found.items():
            # Models are named after the one without rotation.
            without = found.get(name.split("-")[0])
            if without is not None and without is not rotary:
                rotation[name] = compare_rotation(rotary, without)
        return {"models": found, "rotation": rotation}

    def report(self, results):
        found = results["models"]
        first = next(iter(found.values()))
        steps, seeds = first["steps"], len(first["seeds"])
        # The points of a curve that are nearest to its quarters.
        places = [-(-len(steps) * quarter // 4) - 1 for quarter in range(1, 5)]
        places = list(dict.fromkeys(places))
        table = markdown(
            ["steps", *(f"{steps[i]:,}" for i in places), "tokens/s"],
            [
                [
                    MODELS[name][2],
                    *(f"{one['mean'][i]:.3f} ({one['spread'][i]:.3f})" for i in places),
                    f"{one['tokens_per_second']:,.0f}",
                ]
                for name, one in found.items()
            ],
        )
        lines = [
            "",
            "Validation loss in nats per character: mean and range of "
            f"{count_seeds(seeds)}. {describe_model(self.training, self.stage)}",
        ]
        for name, rotation in results["rotation"].items():
            differences, step = rotation["differences"], rotation["steps_to_same_loss"]
            lower = sum(difference < 0 for difference in differences)
            lines.append(
                f"{MODELS[name][2]}: {statistics.mean(differences):+.3f} at the end, "
                f"lower with {lower} of {seeds}; the final loss without rotation is "
                + ("not reached." if step is None else f"reached by step {step:,}.")
            )
        return "\n".join([table, *lines])

    def draw(self, figure, results, rows):
        axes = figure.add_subplot()
        for name in self.names:
            *_, label, color, line = MODELS[name]
            steps, losses = curves(rows, "step", "validation_loss", model=name)
            draw_mean(axes, steps, losses, label, color, line)
        axes.set(
            xlabel="training steps",
            ylabel="validation loss (nats per character)",
            title=f"Mean and range of {count_seeds(self.options.seeds)}",
        )
        axes.legend()


def check_names(names):
    if not isinstance(names, list) or not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"models must be a list of at least one name, each once, got {names!r}"
        )
    for name in names:
        check_choice("models", name, MODELS)
    return names


def inputs_and_targets(rows):
    """Rows of one token more as a batch: the target is the next token."""
    token_ids = rows[:, :-1]
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    return inputs, rows[:, 1:]


def compare_rotation(rotary, without):
    """Final differences by seed, and the step at which rotation has the same loss."""
    reached = zip(rotary["steps"], rotary["mean"], strict=True)
    pairs = zip(rotary["seeds"], without["seeds"], strict=True)
    final = without["mean"][-1]
    return {
        "differences": [one[-1] - other[-1] for one, other in pairs],
        "steps_to_same_loss": next((s for s, loss in reached if loss <= final), None),
    }


if __name__ == "__main__":
    sys.exit(Performers.main())

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
"""

import itertools
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
from tools.experiments.harness import LossCurves

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
STYLES = {name: style for name, (_, _, *style) in MODELS.items()}
# Models are named after the one without rotation.
BASELINES = {name: name.split("-")[0] for name in MODELS if "-" in name}


class Performers(DocumentExperiment, LossCurves):
    styles, baselines = STYLES, BASELINES
    max_windows = 64

    def __init__(self, options):
        super().__init__(options)
        content = read_settings(options.config)
        with errors_at(options.config):
            self.names = check_names(content.pop("models", []))
            self.check_training(PretrainingSettings.from_dict(content), stages=1)
        (self.stage,) = self.training.stages

    def prepare(self):
        super().prepare()
        self.validation = inputs_and_targets(self.windows)

    def make_trainer(self, name, seed):
        import keras

        from roformer_keras.models import RoFormerCausalLM
        from tools.experiments.language_models import next_token_trainer

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
        config = RoFormerConfig.from_dict(fields)
        model = RoFormerCausalLM.from_roformer_config(config, "float32")
        return next_token_trainer(model, self.training, self.stage)

    def batches(self, seed):
        for step in itertools.count():
            rows = self.draw_rows(self.stage, [seed, step])
            yield inputs_and_targets(rows)


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


if __name__ == "__main__":
    sys.exit(Performers.main())

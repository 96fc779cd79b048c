"""Performers with and without rotary positions: the loss by training steps.

    python -m tools.experiments.performers --output FOLDER --seeds 3 \\
        --config checkpoints/training/performers.toml

The right of figure 3 in arXiv:2104.09864, at another size. The models differ only in
their attention: "-rope" rotates random features, "-of-rope" queries and keys before
their features; the others have no positions. The models of a seed start with equal
weights and random features, and get equal rows.

The configuration is one of `pretrain lm` with one stage and a list `models`. Its data
have two fields, a text and its document.
"""

import itertools
import sys

import keras
import numpy as np

from roformer_keras.base.config import PERFORMERS, RoFormerConfig
from roformer_keras.base.errors import errors_at
from roformer_keras.models import RoFormerCausalLM
from roformer_keras.training import pretraining_settings
from tools.experiments.harness import LossCurves
from tools.experiments.language_models import DocumentExperiment, next_token_trainer

# name -> attention, whether it is rotary, label, color, line
MODELS = {
    "performer-rope": ("performer", True, "Performer, features rotated", "C0", "-"),
    "performer-of-rope": (
        *("rotary_performer", True),
        *("Performer of rotated queries and keys", "C1", "-"),
    ),
    "performer": ("performer", False, "Performer, no positions", "C0", "--"),
    "softmax-rope": ("softmax", True, "softmax, rotary", "C6", "-"),
    "softmax": ("softmax", False, "softmax, no positions", "C6", "--"),
}
STYLES = {name: style for name, (_, _, *style) in MODELS.items()}
# Models are named after the one without rotation.
BASELINES = {name: name.split("-")[0] for name in MODELS if "-" in name}


class Performers(DocumentExperiment, LossCurves):
    styles, baselines = STYLES, BASELINES
    max_windows, max_shown = 64, 6.6

    def __init__(self, options):
        super().__init__(options)
        content = pretraining_settings.read_settings(options.config)
        with errors_at(options.config):
            self.names = content.pop("models")
            settings = pretraining_settings.PretrainingSettings.from_dict(content)
            self.check_training(settings)

    def prepare(self):
        super().prepare()
        self.validation = inputs_and_targets(self.windows)

    def make_trainer(self, name, seed):
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
        return next_token_trainer(model, self.training, self.training.stages[0])

    def batches(self, seed):
        for step in itertools.count():
            rows = self.draw_rows(self.training.stages[0], [seed, step])
            yield inputs_and_targets(rows)


def inputs_and_targets(rows):
    """Rows of one token more as a batch: the target is the next token."""
    token_ids = rows[:, :-1]
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    return inputs, rows[:, 1:]


if __name__ == "__main__":
    sys.exit(Performers.main())

"""Rotary against learned absolute positions: the loss of masked tokens by steps.

    python -m tools.experiments.positions --output FOLDER --steps 1500 --seeds 3 \\
        --config checkpoints/training/roformer-char.toml

The left of figure 3 in arXiv:2104.09864, at another size. For each seed two models that
differ only in positions start with equal weights and get equal batches, masks and
dropout. The configuration is one of `pretrain mlm`. Documents are joined until a row is
full: short texts would hardly train the last positions of a table.
"""

import sys

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_integer
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.data.loader import Loader, batch_maker
from roformer_keras.models import RoFormerMaskedLM
from roformer_keras.objectives import MaskedLM, TakePositions
from roformer_keras.training.pretrain import optimizer_of
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.experiments import language_models
from tools.experiments.harness import LossCurves, linear_schedule

HELD_OUT_ROWS = 1024
MODEL = {"num_layers": 3, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}
STAGE = {"length": 64, "batch_size": 32}
STYLES = {
    "roformer": ("RoFormer", "C0", "-"),
    "absolute": ("absolute positions", "C1", "-"),
}
BASELINES = {"roformer": "absolute"}


class Positions(LossCurves):
    names, styles, baselines = tuple(STYLES), STYLES, BASELINES

    @classmethod
    def add_arguments(cls, parser):
        super().add_arguments(parser)
        parser.add_argument("--steps", type=int, default=1500)

    def __init__(self, options):
        super().__init__(options)
        check_integer("steps", options.steps, 2)
        settings = PretrainingSettings.from_toml(options.config)
        language_models.check_fresh(settings, "mlm")
        stage = {
            **STAGE,
            "steps": options.steps,
            "learning_rate": settings.stages[-1].learning_rate,
            "schedule": linear_schedule(options.steps),
        }
        model = {**settings.model, **MODEL}
        self.training = settings.replace(
            stages=(stage,), model=model, packed=True, dtype="float32"
        )
        self.settings = self.training.to_dict()

    def prepare(self):
        tokenizer = language_models.make_tokenizer(self.folder, self.training)
        self.config = RoFormerConfig.from_dict(
            {**self.training.model, "vocabulary_size": tokenizer.vocabulary_size}
        )
        length = STAGE["length"]
        self.objective = MaskedLM(tokenizer, length, **self.training.options)
        self.corpus = language_models.tokenize(self.training, self.objective, "train")
        self.validation = self.draw_held_out()

    def draw_held_out(self):
        """Whole batches of drawn held-out rows: inputs, targets and weights."""
        corpus = language_models.tokenize(self.training, self.objective, "held_out")
        examples = language_models.make_examples(corpus, self.objective, None)
        items, size = examples.batch(0, len(examples)), STAGE["batch_size"]
        generator = np.random.default_rng(self.training.seed)
        order = generator.permutation(len(items))[:HELD_OUT_ROWS]
        rows = [items[i] for i in order[: len(order) - len(order) % size]]
        batches = [
            self.objective.batch(rows[start : start + size], generator)
            for start in range(0, len(rows), size)
        ]
        return keras.tree.map_structure(lambda *x: np.concatenate(x), *batches)

    def make_trainer(self, name, seed):
        (stage,) = self.training.stages
        sizes = self.config, stage.length, seed
        model = language_models.make_models(RoFormerMaskedLM, *sizes)[name]
        if name == "roformer":
            trainer = self.objective.training_model(model)
        else:
            trainer = absolute_trainer(model, self.objective)
        optimizer = optimizer_of(self.training, stage)
        trainer.compile(optimizer, **self.objective.compile_options())
        return trainer

    def batches(self, seed):
        examples = language_models.make_examples(self.corpus, self.objective, seed)
        size = STAGE["batch_size"]
        loader = Loader(batch_maker(examples, self.objective, size, [seed]))
        try:
            yield from loader
        finally:
            loader.close()


def absolute_trainer(model, objective):
    """The training model of absolute positions, on the batches of `MaskedLM`."""
    inputs = objective.rows.inputs(masked_positions=objective.max_hidden)
    zeros = ops.zeros_like(inputs["token_ids"])
    sequence = model.backbone(
        {
            "token_ids": inputs["token_ids"],
            "segment_ids": zeros + ops.arange(objective.rows.length, dtype="int32"),
            "position_ids": ops.cast(zeros, "float32"),
        }
    )
    hidden = TakePositions(dtype="float32", name="hidden")(
        sequence, inputs["masked_positions"]
    )
    return keras.Model(inputs, model.mlm_head(hidden), name="absolute")


if __name__ == "__main__":
    sys.exit(Positions.main())

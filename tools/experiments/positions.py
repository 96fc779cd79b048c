"""Rotary against learned absolute positions: the loss of masked tokens by steps.

    python -m tools.experiments.positions --output FOLDER --steps 1500 --seeds 3 \\
        --config checkpoints/training/roformer-char.toml

The left of figure 3 in arXiv:2104.09864, at another size. For each seed two models are
trained that differ only in positions: `roformer` is the model of this package,
`absolute` has a learned table of positions, as BERT has. A seed decides the initial
weights, the order of the data, the masks and the dropout: both models start with equal
weights and get equal batches. Held-out texts and their masks are equal for all.

The configuration is one of `pretrain mlm`. It gives the corpus and its vocabulary,
dropout, learning rate and optimizer. The rate rises over the first tenth of the steps
and then falls linearly to 0. Documents are joined until a row is full: short texts
would hardly train the last positions of a table. All is float32.

curves.csv has `train_loss`, the mean since the row before, `held_out_loss`, and
`tokens_per_second` of training without evaluation.
"""

import sys

import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.config import RoFormerConfig
from roformer_keras.data.loader import Loader, batch_maker
from roformer_keras.errors import ConfigurationError
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.experiments.corpora import (
    check_fresh,
    make_examples,
    make_tokenizer,
    tokenize,
)
from tools.experiments.harness import (
    Experiment,
    count_seeds,
    curves,
    describe_model,
    draw_mean,
    linear_schedule,
    spread,
)
from tools.tables import markdown

# name -> label, color, marker
MODELS = {
    "roformer": ("RoFormer", "C0", "o"),
    "absolute": ("absolute positions", "C1", "s"),
}
HELD_OUT_ROWS = 1024


class Positions(Experiment):
    names = tuple(MODELS)

    @classmethod
    def add_arguments(cls, parser):
        super().add_arguments(parser)
        parser.add_argument("--steps", type=int, default=1500)
        parser.add_argument("--layers", type=int, default=3)
        parser.add_argument("--hidden", type=int, default=128)
        parser.add_argument("--heads", type=int, default=4)
        parser.add_argument("--length", type=int, default=64)
        parser.add_argument("--batch-size", type=int, default=32)

    def __init__(self, options):
        super().__init__(options)
        check_integer("steps", options.steps, 2)
        self.training = make_settings(options)
        self.settings = self.training.to_dict()
        (self.stage,) = self.training.stages

    def prepare(self):
        from roformer_keras.objectives import MaskedLM

        tokenizer = make_tokenizer(self.folder, self.training)
        self.config = RoFormerConfig.from_dict(
            {**self.training.model, "vocabulary_size": tokenizer.vocabulary_size}
        )
        self.objective = MaskedLM(tokenizer, self.stage.length, **self.training.options)
        self.corpus = tokenize(self.training, self.objective, "train")
        self.held_out = draw_held_out(self.training, self.objective)

    def train(self, name, seed):
        from roformer_keras.models import RoFormerMaskedLM
        from roformer_keras.training.pretrain import optimizer_of
        from tools.experiments.language_models import fit, make_curve, make_models

        models = make_models(RoFormerMaskedLM, self.config, self.stage.length, seed)
        trainer = make_trainer(name, models[name], self.objective)
        trainer.compile(
            optimizer_of(self.training, self.stage), **self.objective.compile_options()
        )
        examples = make_examples(self.corpus, self.objective, seed)
        # A batch depends on the seed and its number, not on the model.
        rows = self.stage.batch_size
        loader = Loader(batch_maker(examples, self.objective, rows, [seed]))
        try:
            rows = fit(
                trainer,
                self.stage,
                f"{name}, seed {seed}",
                iter(loader),
                validation_data=self.held_out,
                validation_batch_size=self.stage.batch_size,
            )
        finally:
            loader.close()
        return [make_curve(rows, "held_out_loss", model=name, seed=seed)]

    def summarize(self, rows):
        found = {}
        for name in MODELS:
            _, losses = curves(rows, "step", "held_out_loss", model=name)
            _, speeds = curves(rows, "step", "tokens_per_second", model=name)
            found[name] = {
                **spread(losses[:, -1].tolist()),
                "tokens_per_second": float(np.median(speeds)),
            }
        return {"models": found}

    def report(self, results):
        roformer, absolute = (results["models"][name] for name in MODELS)
        losses = list(zip(roformer["seeds"], absolute["seeds"], strict=True))
        lines = [*enumerate(losses), ("mean", (roformer["mean"], absolute["mean"]))]
        lower = sum(first < second for first, second in losses)
        return "\n".join(
            [
                markdown(
                    ["seed", *(label for label, *_ in MODELS.values()), "difference"],
                    [
                        [seed, f"{a:.4f}", f"{b:.4f}", f"{a - b:+.4f}"]
                        for seed, (a, b) in lines
                    ],
                ),
                "",
                f"Held-out MLM loss. {describe_model(self.training, self.stage)} "
                f"RoFormer is lower with {lower} of {count_seeds(len(losses))}.",
                "Median training speed, tokens/s: RoFormer "
                f"{roformer['tokens_per_second']:,.0f}, absolute "
                f"{absolute['tokens_per_second']:,.0f}. Absolute positions save "
                "nothing here: they rotate by 0.",
            ]
        )

    def draw(self, figure, results, rows):
        axes = figure.add_subplot()
        for name, (label, color, marker) in MODELS.items():
            steps, losses = curves(rows, "step", "train_loss", model=name)
            draw_mean(axes, steps, losses, f"{label}, training", color)
            steps, losses = curves(rows, "step", "held_out_loss", model=name)
            draw_mean(axes, steps, losses, f"{label}, held out", color, marker=marker)
        axes.set(
            xlabel="training steps",
            ylabel="MLM loss (nats a masked token)",
            title=f"Mean and range of {count_seeds(self.options.seeds)}",
        )
        axes.legend()


def make_settings(options):
    """The settings of the file, with the size and the steps of this experiment."""
    settings = PretrainingSettings.from_toml(options.config)
    check_fresh(settings, "mlm")
    if not any(data.holdout for data in settings.data):
        raise ConfigurationError(
            "the experiment needs held-out data, got holdout=0 for all data"
        )
    steps = options.steps
    stage = {
        "steps": steps,
        "length": options.length,
        "batch_size": options.batch_size,
        "learning_rate": settings.stages[-1].learning_rate,
        "schedule": linear_schedule(steps),
    }
    model = {
        **settings.model,
        "num_layers": options.layers,
        "num_heads": options.heads,
        "hidden_dim": options.hidden,
        "intermediate_dim": 4 * options.hidden,
    }
    return settings.replace(stages=(stage,), model=model, packed=True, dtype="float32")


def make_trainer(name, model, objective):
    """The training model of either; both take the batches of `MaskedLM`."""
    if name == "roformer":
        return objective.training_model(model)
    import keras
    from keras import ops

    from roformer_keras.objectives import TakePositions

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
    return keras.Model(inputs, model.mlm_head(hidden), name=name)


def draw_held_out(settings, objective):
    """Whole batches of drawn held-out rows: inputs, targets and weights."""
    corpus = tokenize(settings, objective, "held_out")
    examples = make_examples(corpus, objective, None)
    items = examples.batch(0, len(examples))
    size = settings.stages[0].batch_size
    generator = np.random.default_rng(settings.seed)
    order = generator.permutation(len(items))[:HELD_OUT_ROWS]
    if len(order) < size:
        raise ConfigurationError(
            f"a batch takes {size} held-out rows, and there are {len(order)}: raise "
            "holdout, or lower the batch size"
        )
    batches = [
        objective.batch([items[i] for i in order[start : start + size]], generator)
        for start in range(0, len(order) - size + 1, size)
    ]
    inputs, targets, weights = zip(*batches, strict=True)
    return (
        {name: np.concatenate([x[name] for x in inputs]) for name in inputs[0]},
        np.concatenate(targets),
        np.concatenate(weights),
    )


if __name__ == "__main__":
    sys.exit(Positions.main())

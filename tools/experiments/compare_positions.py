"""RoFormer against the same model with learned absolute positions, as BERT has them.

    python -m tools.experiments.compare_positions --output FOLDER \\
        --config checkpoints/training/roformer-char.toml --steps 1500 --seeds 3

Both are trained on masked tokens of the corpus of the configuration. It draws the
losses (the left of figure 3 in arXiv:2104.09864, at another size) and prints the final
ones. For each seed two trainings that differ in nothing but the positions:

roformer  The model of this package: queries and keys are turned by position.
absolute  The same with positions that are all 0, so that nothing is turned, and with
          the numbers 0, 1, 2, ... of the tokens as their segments: a segment table of
          as many rows as a text has tokens is a learned table of absolute positions.
          In a RoFormer all segments are 0 here, which adds one vector to every token.

A seed decides the fresh weights, the order of the data, the masks and the dropout. The
two get the same batches, and begin with the same weights but for the segment table, and
so with the same dropout too. Held-out texts and their masks are the same for all.

From the configuration come the corpus and its vocabulary, dropout, learning rate and
optimizer. The rate rises over the first tenth of the steps, and then falls linearly to
0. Documents are joined until a row is full: short texts would hardly train a table's
last positions. All is float32. In the folder:

settings.json, vocab.txt   what is compared
curves.csv                 losses of each training; `train_loss` is the mean since the
                           row before, `tokens_per_second` is without the evaluation
curves.png

Interrupted, the same command goes on with the trainings that are missing; with more
`--seeds` it adds to those that are there.
"""

import argparse
import dataclasses
import re
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np
from keras import ops
from tqdm import tqdm

from roformer_keras.config import RoFormerConfig
from roformer_keras.data.corpus import Corpus
from roformer_keras.data.encoders import Examples
from roformer_keras.data.loader import Loader
from roformer_keras.errors import ConfigurationError, RoFormerError
from roformer_keras.models import RoFormerMaskedLM
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import build_vocabulary
from roformer_keras.training.objectives import MaskedLM, TakePositions
from roformer_keras.training.plots import new_figure, save_figure
from roformer_keras.training.pretrain import optimizer_of
from roformer_keras.training.pretraining_settings import TrainingStage, load_settings
from tools.experiments.comparisons import read_rows, reset_run, write_rows

# name -> how it is called, and drawn
MODELS = {
    "roformer": ("RoFormer", "C0", "o"),
    "absolute": ("absolute positions", "C1", "s"),
}
HELD_OUT_ROWS = 1024
# Points of a curve.
INTERVALS = 20
COLUMNS = {
    "model": str,
    "seed": int,
    "step": int,
    "train_loss": float,
    "held_out_loss": float,
    "tokens_per_second": float,
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="of `pretrain mlm`")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args(arguments)
    try:
        settings = settings_of(options)
        reset_run(options.output, settings.to_dict())
        rows = train_missing(options.output, settings, range(options.seeds))
        draw(rows, options.output / "curves.png")
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"\n{report(rows, settings)}")
    return 0


def settings_of(options):
    """The settings of the file, with the size and the steps of this comparison."""
    settings = load_settings(options.config)
    if settings.objective != "mlm" or settings.source is not None:
        raise ConfigurationError(
            "a comparison needs a configuration of mlm from fresh weights, got "
            f"objective={settings.objective!r}, source={settings.source!r}"
        )
    if not any(data.holdout for data in settings.data):
        raise ConfigurationError(
            "a comparison needs held-out data, got holdout=0 for all data"
        )
    steps = options.steps
    if steps < 2 or options.seeds < 1:
        raise ConfigurationError(
            "a comparison takes at least 2 steps and 1 seed, got "
            f"steps={steps}, seeds={options.seeds}"
        )
    stage = TrainingStage(
        steps=steps,
        length=options.length,
        batch_size=options.batch_size,
        learning_rate=settings.stages[-1].learning_rate,
        schedule=((max(1, steps // 10), 1.0), (steps, 0.0)),
    )
    model = {
        **settings.model,
        "num_layers": options.layers,
        "num_heads": options.heads,
        "hidden_dim": options.hidden,
        "intermediate_dim": 4 * options.hidden,
    }
    return dataclasses.replace(
        settings, stages=(stage,), model=model, packed=True, dtype="float32"
    )


# === The two models ===


def make_models(config, length, seed, kind=RoFormerMaskedLM):
    """Both models, with the same fresh weights and the same dropout to come.

    Args:
        config: `RoFormerConfig` of the RoFormer.
        length: int. Positions of the other.
        seed: int.
        kind: class of both.

    Returns:
        dict of two models, by the names in `MODELS`.
    """
    configs = {
        "roformer": config,
        "absolute": config.replace(custom_position_ids=True, num_segments=length),
    }
    models = {}
    for name, own in configs.items():
        keras.utils.set_random_seed(seed)
        models[name] = kind.from_roformer_config(own, "float32")
    copies = zip(*(shared_variables(model) for model in models.values()), strict=True)
    for (path, variable), (other_path, other) in copies:
        if path != other_path:
            raise AssertionError(f"{path} is not {other_path}")
        other.assign(variable)
    return models


def shared_variables(model):
    """(path, variable) of all but the segment table: dropout's generators too."""
    return [
        # Keras numbers all generators of a process.
        (re.sub(r"seed_generator_\d+", "seed_generator", variable.path), variable)
        for variable in model.variables
        if "segment_embedding" not in variable.path
    ]


def make_trainer(name, model, objective):
    """The training model of either; both take the batches of `MaskedLM`."""
    if name == "roformer":
        return objective.training_model(model)
    inputs = objective.rows.inputs(masked_positions=objective.most_hidden)
    none = ops.zeros_like(inputs["token_ids"])
    sequence = model.backbone(
        {
            "token_ids": inputs["token_ids"],
            "segment_ids": none + ops.arange(objective.rows.length, dtype="int32"),
            "position_ids": ops.cast(none, "float32"),
        }
    )
    hidden = TakePositions(dtype="float32", name="hidden")(
        sequence, inputs["masked_positions"]
    )
    return keras.Model(inputs, model.mlm_head(hidden), name=name)


# === The data ===


def make_corpus(settings, seed, part):
    return Corpus(
        settings.data,
        seed=seed,
        buffer_size=settings.buffer_size,
        part=part,
    )


def make_tokenizer(folder, settings):
    """Of the vocabulary of the settings, or of one that is built once and kept."""
    if settings.vocabulary is not None:
        return RoFormerTokenizer(settings.vocabulary)
    path = folder / "vocab.txt"
    if not path.exists():
        records = make_corpus(settings, 0, "train").once()
        tokens, _ = build_vocabulary(
            tqdm(records, desc="vocabulary", unit=" records"),
            min_count=settings.min_count,
            max_size=settings.max_vocabulary,
        )
        RoFormerTokenizer(tokens).save_vocabulary(path)
    return RoFormerTokenizer(path)


def make_examples(settings, objective, seed, part):
    length = settings.stages[0].length
    return Examples(
        make_corpus(settings, seed, part),
        objective.encoder(objective.rows.tokenizer, length),
        packed_length=length,
        workers=settings.workers,
    )


class HeldOut(keras.utils.PyDataset):
    """Batches of rows that are drawn from all that are held out."""

    def __init__(self, settings, objective):
        super().__init__()
        examples = make_examples(settings, objective, 0, "held_out")
        items = list(tqdm(examples.once(), desc="held out", unit=" rows"))
        examples.close()
        size = settings.stages[0].batch_size
        generator = np.random.default_rng(settings.seed)
        order = generator.permutation(len(items))[:HELD_OUT_ROWS]
        if len(order) < size:
            raise ConfigurationError(
                f"a batch takes {size} held-out rows, and there are {len(order)}: "
                "raise holdout, or lower the size of a batch"
            )
        self.batches = [
            objective.batch([items[i] for i in order[start : start + size]], generator)
            for start in range(0, len(order) - size + 1, size)
        ]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        return self.batches[number]


# === Training ===


def train_missing(folder, settings, seeds):
    """Rows of all trainings; each is in `curves.csv` as soon as it is whole."""
    path = folder / "curves.csv"
    rows = read_rows(path, COLUMNS)
    done = {(row["model"], row["seed"]) for row in rows}
    missing = [
        (name, seed) for seed in seeds for name in MODELS if (name, seed) not in done
    ]
    if missing:
        tokenizer = make_tokenizer(folder, settings)
        length = settings.stages[0].length
        objective = MaskedLM(tokenizer, length, **settings.options)
        held_out = HeldOut(settings, objective)
        for name, seed in missing:
            rows += train(name, seed, settings, objective, held_out)
            write_rows(path, COLUMNS, rows)
    return [row for row in rows if row["seed"] in seeds]


def train(name, seed, settings, objective, held_out):
    """Rows of one training."""
    (stage,) = settings.stages
    config = RoFormerConfig.from_dict(
        {
            **settings.model,
            "vocabulary_size": objective.rows.tokenizer.vocabulary_size,
        }
    )
    model = make_models(config, stage.length, seed)[name]
    trainer = make_trainer(name, model, objective)
    trainer.compile(optimizer_of(settings, stage), **objective.compile_options())
    examples = make_examples(settings, objective, seed, "train")
    # By the number of a batch, and nothing that a model does.
    loader = Loader(examples, objective, stage.batch_size, [seed])
    every = max(1, stage.steps // INTERVALS)
    recorder = Recorder(name, seed, stage.steps, loader)
    try:
        trainer.fit(
            iter(loader),
            steps_per_epoch=every,
            epochs=-(-stage.steps // every),
            validation_data=held_out,
            shuffle=False,
            callbacks=[recorder],
            verbose=0,
        )
    finally:
        loader.close()
        recorder.bar.close()
    return recorder.rows


class Recorder(keras.callbacks.Callback):
    """Makes the rows of a training, shows how far it is, and ends it."""

    def __init__(self, name, seed, steps, loader):
        super().__init__()
        self.name, self.seed, self.steps, self.loader = name, seed, steps, loader
        self.rows = []
        self.step = self.tokens = 0
        self.bar = tqdm(
            total=steps, desc=f"{name}, seed {seed}", unit=" steps", dynamic_ncols=True
        )

    def on_epoch_begin(self, epoch, logs=None):
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.bar.update(1)
        self.seconds = time.perf_counter() - self.since
        if self.step == self.steps:
            # The last interval may be shorter.
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        tokens = self.loader.state_after(self.step - 1)["tokens"]
        figures = {
            "train_loss": logs["loss"],
            "held_out_loss": logs["val_loss"],
            "tokens_per_second": (tokens - self.tokens) / self.seconds,
        }
        self.tokens = tokens
        self.rows.append(
            {"model": self.name, "seed": self.seed, "step": self.step, **figures}
        )
        self.bar.set_postfix({k: f"{value:.4g}" for k, value in figures.items()})


# === Results ===


def curves(rows, name, column):
    """Steps, and the values of every seed: float `(seeds, steps)`."""
    by_seed = {}
    for row in rows:
        if row["model"] == name:
            by_seed.setdefault(row["seed"], {})[row["step"]] = row[column]
    values = [list(curve.values()) for curve in by_seed.values()]
    return list(next(iter(by_seed.values()))), np.array(values)


def draw(rows, path):
    """Both losses of both models: the mean over the seeds, and all between them."""
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    for name, (label, colour, marker) in MODELS.items():
        steps, losses = curves(rows, name, "train_loss")
        axes.plot(steps, losses.mean(0), color=colour, label=f"{label}, training")
        axes.fill_between(
            steps, losses.min(0), losses.max(0), color=colour, alpha=0.2, linewidth=0
        )
        steps, losses = curves(rows, name, "held_out_loss")
        means = losses.mean(0)
        axes.errorbar(
            steps,
            means,
            yerr=[means - losses.min(0), losses.max(0) - means],
            color=colour,
            linestyle="none",
            linewidth=1,
            marker=marker,
            markersize=4,
            markerfacecolor="white",
            label=f"{label}, held out",
        )
    seeds = len({row["seed"] for row in rows})
    axes.set(
        xlabel="training steps",
        ylabel="MLM loss (nats a masked token)",
        title=f"Mean and range of {seeds} seed{'s' if seeds > 1 else ''}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def report(rows, settings):
    """A table in Markdown, and what it is of."""
    (stage,) = settings.stages
    final = {
        name: curves(rows, name, "held_out_loss")[1][:, -1].tolist() for name in MODELS
    }
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    lines = [
        (str(seed), *losses)
        for seed, *losses in zip(seeds, *final.values(), strict=True)
    ]
    lines.append(("mean", *(statistics.mean(losses) for losses in final.values())))
    table = [
        f"| {seed} | {roformer:.4f} | {absolute:.4f} | {roformer - absolute:+.4f} |"
        for seed, roformer, absolute in lines
    ]
    lower = sum(
        roformer < absolute for roformer, absolute in zip(*final.values(), strict=True)
    )
    speed = {
        name: np.median(curves(rows, name, "tokens_per_second")[1]) for name in MODELS
    }
    model = settings.model
    return "\n".join(
        [
            "| seed | RoFormer | absolute positions | difference |",
            "|---|---|---|---|",
            *table,
            "",
            f"Held-out MLM loss after {stage.steps} steps of {stage.batch_size} rows "
            f"of {stage.length} tokens; {model['num_layers']} layers, "
            f"{model['num_heads']} heads, width {model['hidden_dim']}. RoFormer is "
            f"lower with {lower} of {len(seeds)} seeds.",
            f"Median training speed: RoFormer {speed['roformer']:,.0f} tokens/s, "
            f"absolute {speed['absolute']:,.0f}, which here turns by 0 and so saves "
            "nothing of RoPE's cost.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

"""Performers with and without rotary positions: the loss by steps of training.

    python -m tools.experiments.compare_performers --output FOLDER \\
        --config checkpoints/training/performers.toml --seeds 3

The models are causal language models of single characters, which differ in their
attention alone (the right of figure 3 in arXiv:2104.09864, at another size):

performer-rope, performer   Positive random features in place of the softmax; those of
                            queries and keys are rotated, or nothing is.
performer-of-rope           Queries and keys are rotated, and then have such features.
linear-rope, linear         The same with elu + 1 in place of random features.
softmax-rope, softmax       Attention as usual, for scale.

Without rotation a model is told no positions. It still has a sense of them, because it
is causal: a token sees those before it and no others, so that what it sees grows from
token to token. But it cannot tell in which order they stand, other than by that.

The configuration is one of `pretrain lm` from fresh weights with one stage, and
`models`, names of the above, says which are trained. The fields of its data are the
text, and the document that it is of, as in tools/experiments/measure_extrapolation.py:
rows are
from anywhere in a document. A seed decides the fresh weights, the rows, the dropout and
the random features; the models of a seed begin with the same weights and get the same
rows. Random features are drawn once, and not again in training. The rows of validation
are of held-out documents, and the same for all. All is float32. In the folder:

settings.json, vocab.txt   what is compared
curves.csv                 losses of each training in nats a token; `train_loss` is the
                           mean since the row before, `tokens_per_second` is without
                           the validation
results.json, table.md, curves.png

Interrupted, the same command goes on with the trainings that are missing; with more
`--seeds`, or more `models`, it adds to those that are there.
"""

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np

from roformer_keras.checks import check_choice, check_integer
from roformer_keras.config import PERFORMERS, RoFormerConfig
from roformer_keras.errors import ConfigurationError, RoFormerError, errors_at
from roformer_keras.io.atomic import replacing
from roformer_keras.models import RoFormerCausalLM
from roformer_keras.training.plots import new_figure, save_figure
from roformer_keras.training.pretrain import optimizer_of
from roformer_keras.training.pretraining_settings import (
    PretrainingSettings,
    read_settings,
)
from tools.experiments.compare_positions import INTERVALS, curves, make_tokenizer
from tools.experiments.comparisons import read_rows, reset_run, write_json, write_rows
from tools.experiments.measure_extrapolation import (
    Recorder,
    check_documents,
    make_documents,
)

# name -> attention, whether it is rotary, how it is called, its colour and line
MODELS = {
    "performer-rope": ("performer", True, "Performer with RoPE", "C0", "-"),
    "performer-of-rope": ("rotary_performer", True, "Performer of RoPE", "C1", "-"),
    "performer": ("performer", False, "Performer without", "C0", "--"),
    "linear-rope": ("linear", True, "elu + 1 with RoPE", "C2", "-"),
    "linear": ("linear", False, "elu + 1 without", "C2", "--"),
    "softmax-rope": ("softmax", True, "softmax with RoPE", "C7", "-"),
    "softmax": ("softmax", False, "softmax without", "C7", "--"),
}
# Rows of validation.
WINDOWS = 64
COLUMNS = {
    "model": str,
    "seed": int,
    "step": int,
    "train_loss": float,
    "validation_loss": float,
    "tokens_per_second": float,
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="TOML; see above")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, 2, ...")
    options = parser.parse_args(arguments)
    try:
        check_integer("seeds", options.seeds, minimum=1)
        comparison = load_comparison(options.config)
        reset_run(options.output, comparison.settings.to_dict())
        rows = train_missing(options.output, comparison, range(options.seeds))
        results = results_of(rows, comparison)
        write_json(options.output / "results.json", results)
        table = report(results)
        with replacing(options.output / "table.md", overwrite=True) as partial:
            partial.write_text(table + "\n", encoding="utf-8")
        draw(rows, comparison.models, options.output / "curves.png")
    except RoFormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"\n{table}")
    return 0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the models are trained, and which.

    Args:
        settings: `PretrainingSettings` of pre-training, with one stage.
        models: names, keys of `MODELS`.
    """

    settings: PretrainingSettings
    models: tuple[str, ...]

    def __post_init__(self):
        settings = self.settings
        if not self.models or len(set(self.models)) < len(self.models):
            raise ConfigurationError(
                f"models must be at least one name, each once, got {list(self.models)}"
            )
        for name in self.models:
            check_choice("models", name, MODELS)
        if settings.objective != "lm" or settings.source is not None:
            raise ConfigurationError(
                "Performers are compared with a configuration of lm from fresh "
                f"weights, got objective={settings.objective!r}, "
                f"source={settings.source!r}"
            )
        if len(settings.stages) != 1:
            raise ConfigurationError(
                f"a comparison has one stage, got {len(settings.stages)}"
            )
        check_documents(settings)


def load_comparison(path):
    """Reads a TOML file; its relative paths are taken from its own folder."""
    content = read_settings(path)
    with errors_at(path):
        models = content.pop("models", [])
        if not isinstance(models, list):
            raise ConfigurationError(f"models must be a list of names, got {models!r}")
        return Comparison(PretrainingSettings.from_dict(content), tuple(models))


# === Training ===


def make_model(name, settings, vocabulary_size, seed):
    """A model with weights that follow from the seed, and not from the name."""
    attention, is_rotary, *_ = MODELS[name]
    fields = {
        **settings.model,
        "vocabulary_size": vocabulary_size,
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


def examples_of(rows):
    """Inputs, and the token behind each of them, of rows of one token more."""
    token_ids = rows[:, :-1]
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    return inputs, rows[:, 1:]


def train_missing(folder, comparison, seeds):
    """Rows of all trainings; each is in `curves.csv` as soon as it is whole."""
    path, settings = folder / "curves.csv", comparison.settings
    rows = read_rows(path, COLUMNS)
    done = {(row["model"], row["seed"]) for row in rows}
    wanted = list(itertools.product(seeds, comparison.models))
    missing = [(name, seed) for seed, name in wanted if (name, seed) not in done]
    if missing:
        tokenizer = make_tokenizer(folder, settings)
        documents = make_documents(settings, tokenizer, "train")
        windows = make_documents(settings, tokenizer, "held_out").windows(
            np.random.default_rng(settings.seed),
            WINDOWS,
            settings.stages[0].length + 1,
        )
        for name, seed in missing:
            model = make_model(name, settings, tokenizer.vocabulary_size, seed)
            found = train(name, seed, model, settings, documents, windows)
            rows += [{"model": name, "seed": seed, **row} for row in found]
            write_rows(path, COLUMNS, rows)
    return [row for row in rows if (row["seed"], row["model"]) in wanted]


def train(name, seed, model, settings, documents, windows):
    """A dict of figures for each interval of a training."""
    (stage,) = settings.stages

    def batches():
        for step in itertools.count():
            generator = np.random.default_rng([seed, step])
            rows = documents.rows(generator, stage.batch_size, stage.length + 1)
            yield examples_of(rows)

    model.compile(
        optimizer_of(settings, stage),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    every = max(1, stage.steps // INTERVALS)
    recorder, clock = Recorder(stage.steps, f"{name}, seed {seed}"), Clock()
    history = model.fit(
        batches(),
        steps_per_epoch=every,
        epochs=-(-stage.steps // every),
        # In batches of as many tokens, for the memory that the logits take.
        validation_data=examples_of(windows),
        validation_batch_size=stage.batch_size,
        shuffle=False,
        callbacks=[clock, recorder],
        verbose=0,
    ).history
    recorder.bar.close()
    ends = np.cumsum(clock.steps).tolist()
    figures = zip(
        ends,
        clock.steps,
        clock.seconds,
        history["loss"],
        history["val_loss"],
        strict=True,
    )
    return [
        {
            "step": end,
            "train_loss": loss,
            "validation_loss": validation_loss,
            "tokens_per_second": steps * stage.batch_size * stage.length / seconds,
        }
        for end, steps, seconds, loss, validation_loss in figures
    ]


class Clock(keras.callbacks.Callback):
    """Steps of each interval, and seconds that they took without the validation."""

    def __init__(self):
        super().__init__()
        self.steps, self.seconds = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.since = time.perf_counter()
        self.steps.append(0)
        self.seconds.append(0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1] += 1
        self.seconds[-1] = time.perf_counter() - self.since


# === Results ===


def results_of(rows, comparison):
    """Plain types: mean and spread by step, and what rotation makes of them."""
    found = {}
    for name in comparison.models:
        steps, losses = curves(rows, name, "validation_loss")
        _, speeds = curves(rows, name, "tokens_per_second")
        found[name] = {
            "steps": steps,
            "mean": losses.mean(axis=0).tolist(),
            "spread": np.ptp(losses, axis=0).tolist(),
            "seeds": losses.tolist(),
            "tokens_per_second": float(np.median(speeds)),
        }
    rotation = {}
    for name, rotary in found.items():
        # It is called after what it is without rotation.
        without = found.get(name.split("-")[0])
        if without is not None and without is not rotary:
            final = without["mean"][-1]
            reached = zip(rotary["steps"], rotary["mean"], strict=True)
            rotation[name] = {
                "differences": [
                    one[-1] - other[-1]
                    for one, other in zip(
                        rotary["seeds"], without["seeds"], strict=True
                    )
                ],
                "steps_to_same_loss": next(
                    (step for step, loss in reached if loss <= final), None
                ),
            }
    return {
        "settings": comparison.settings.to_dict(),
        "models": found,
        "rotation": rotation,
    }


def report(results):
    """A table in Markdown, and what it is of."""
    found, settings = results["models"], results["settings"]
    (stage,), model = settings["stages"], settings["model"]
    first = next(iter(found.values()))
    steps, seeds = first["steps"], len(first["seeds"])
    # Of the points of a curve, those that are nearest to its quarters.
    places = [-(-len(steps) * quarter // 4) - 1 for quarter in range(1, 5)]
    places = list(dict.fromkeys(places))
    table = [
        " | ".join(
            [
                f"| {MODELS[name][2]}",
                *(f"{one['mean'][i]:.3f} ({one['spread'][i]:.3f})" for i in places),
                f"{one['tokens_per_second']:,.0f} |",
            ]
        )
        for name, one in found.items()
    ]
    lines = [
        f"| steps | {' | '.join(f'{steps[i]:,}' for i in places)} | tokens/s |",
        f"|{'---|' * (len(places) + 2)}",
        *table,
        "",
        "Validation loss, nats a character: the mean of the seeds, and how far they "
        f"are apart ({seeds} seed{'s' if seeds > 1 else ''}). {stage['steps']:,} steps "
        f"of {stage['batch_size']} rows of {stage['length']} characters; "
        f"{model['num_layers']} layers, {model['num_heads']} heads, width "
        f"{model['hidden_dim']}.",
    ]
    for name, rotation in results["rotation"].items():
        differences = rotation["differences"]
        lower = sum(difference < 0 for difference in differences)
        reached = rotation["steps_to_same_loss"]
        lines.append(
            f"{MODELS[name][2]}: {statistics.mean(differences):+.3f} at the "
            f"end, lower with {lower} of {seeds}; "
            + (
                "the final loss without is not reached."
                if reached is None
                else f"the final loss without is reached by step {reached:,}."
            )
        )
    return "\n".join(lines)


def draw(rows, models, path):
    """Losses of validation by steps: the mean over the seeds, and all between them."""
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    for name in models:
        *_, label, colour, line = MODELS[name]
        steps, losses = curves(rows, name, "validation_loss")
        axes.plot(steps, losses.mean(0), color=colour, linestyle=line, label=label)
        axes.fill_between(
            steps, losses.min(0), losses.max(0), color=colour, alpha=0.2, linewidth=0
        )
    seeds = len({row["seed"] for row in rows})
    axes.set(
        xlabel="training steps",
        ylabel="validation loss (nats a character)",
        title=f"Mean and range of {seeds} seed{'s' if seeds > 1 else ''}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())

"""The harness of the experiments: models trained with seeds, in a folder that resumes.

The folder holds `settings.json`, tables as CSV, `results.json`, `table.md` and
`picture.png`. Interrupted, the same command continues with the trainings that are
missing; more `--seeds` add to those that are done.
"""

import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.io.journal import (
    is_new_run,
    locked,
    read_record,
    run_metadata,
    write_record,
)
from roformer_keras.training.plots import new_figure, save_figure
from tools.commands import Parser, command
from tools.tables import markdown, read_rows, write_json, write_rows, write_text


class Experiment:
    """Trainings of several models, each with the seeds 0, 1, 2, ...

    Args:
        options: of the command line.

    Attributes:
        tables: names of the CSV files. A training is done if the last one has its rows.
        key: column with the name of a training.
        names: of the trainings with each seed.
        settings: plain types, equal for all trainings of a folder.
        picture_size: width and height in inches.
    """

    tables: Sequence[str] = ("curves.csv",)
    key = "model"
    names: Sequence
    settings: Mapping
    picture_size = (8, 4.5)

    def __init__(self, options):
        self.options, self.folder = options, options.output
        check_integer("seeds", options.seeds, 1)

    @classmethod
    def add_arguments(cls, parser):
        parser.add_argument("--config", type=Path, required=True, help="TOML file")

    def name_of(self, row):
        """The name of the training that a row belongs to."""
        return row[self.key]

    def prepare(self):
        """Makes what the trainings share; called if one of them is missing."""

    def train(self, name, seed) -> Sequence[Sequence[Mapping]]:
        """Trains a model; returns its rows of each table."""
        raise NotImplementedError

    def summarize(self, *tables) -> dict:
        """What `results.json` holds, next to the settings."""
        raise NotImplementedError

    def report(self, results) -> str:
        """A table in Markdown, and what it shows."""
        raise NotImplementedError

    def draw(self, figure, results, *tables):
        """Draws the picture."""

    @classmethod
    @command
    def main(cls, arguments=None):
        """The command line."""
        parser = Parser(sys.modules[cls.__module__].__doc__)
        cls.add_arguments(parser)
        parser.add_argument("--output", type=Path, required=True, help="folder")
        parser.add_argument("--seeds", type=int, default=3, help="default 3: 0, 1, 2")
        print(f"\n{cls(parser.parse_args(arguments)).run()}")

    def run(self) -> str:
        """Trains what is missing, and writes the results of all; returns the report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            self._open_folder()
            tables = self._train_missing()
            results = {"settings": self.settings, **self.summarize(*tables)}
            write_json(self.folder / "results.json", results)
            report = self.report(results)
            write_text(self.folder / "table.md", f"{report}\n")
            figure = new_figure(*self.picture_size)
            self.draw(figure, results, *tables)
            if figure.axes:
                save_figure(figure, self.folder / "picture.png")
            return report

    def _open_folder(self):
        """Starts in a new folder, or checks that it has equal settings."""
        record, run = self.folder / "settings.json", run_metadata(self.settings, {})
        has_data = any(path.name != ".lock" for path in self.folder.iterdir())
        if is_new_run(read_record(record), run, self.folder, has_data=has_data):
            write_record(record, run)

    def _train_missing(self):
        """The rows of the trainings asked for, table by table."""
        tables = [read_rows(self.folder / file) for file in self.tables]
        done = {self._key(row) for row in tables[-1]}
        # An interruption can come between two tables.
        tables = [[row for row in rows if self._key(row) in done] for rows in tables]
        seeds = range(self.options.seeds)
        wanted = [(name, seed) for seed in seeds for name in self.names]
        missing = [key for key in wanted if key not in done]
        if missing:
            self.prepare()
        for name, seed in missing:
            print(f"{name}, seed {seed}", flush=True)
            for rows, new in zip(tables, self.train(name, seed), strict=True):
                rows += new
            for file, rows in zip(self.tables, tables, strict=True):
                write_rows(self.folder / file, rows)
        return [[row for row in rows if self._key(row) in wanted] for rows in tables]

    def _key(self, row):
        return self.name_of(row), row["seed"]


class LossCurves(Experiment):
    """An experiment that shows losses by training steps.

    curves.csv has `train_loss`, the mean since the row before, `validation_loss`, and
    `tokens_per_second` of training without validation.

    Attributes:
        training: `PretrainingSettings`; `stage`, its only stage.
        styles: name of a model -> label, color, line.
        baselines: name of a model -> that of the one it is compared with.
        validation: inputs and targets.
    """

    styles: Mapping
    baselines: Mapping

    def make_trainer(self, name, seed):
        """A compiled `keras.Model` whose initial weights depend only on the seed."""
        raise NotImplementedError

    def batches(self, seed):
        """A generator of batches that depend only on the seed."""
        raise NotImplementedError

    def train(self, name, seed):
        from tools.experiments.language_models import fit

        trainer = self.make_trainer(name, seed)
        with contextlib.closing(self.batches(seed)) as batches:
            rows = fit(
                trainer,
                self.stage,
                f"{name}, seed {seed}",
                batches,
                validation_data=self.validation,
                # The logits of larger batches would take more memory than training.
                validation_batch_size=self.stage.batch_size,
            )
        run = {"model": name, "seed": seed}
        columns = {
            "step": "step",
            "train_loss": "loss",
            "validation_loss": "val_loss",
            "tokens_per_second": "tokens_per_second",
        }
        return [[run | {k: row[v] for k, v in columns.items()} for row in rows]]

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
        compared = {
            name: compare_losses(found[name], found[other])
            for name, other in self.baselines.items()
            if name in found and other in found
        }
        return {"models": found, "compared": compared}

    def report(self, results):
        found = results["models"]
        first = next(iter(found.values()))
        steps, seeds = first["steps"], len(first["seeds"])
        # The points of a curve that are nearest to its quarters.
        places = [-(-len(steps) * quarter // 4) - 1 for quarter in range(1, 5)]
        places = list(dict.fromkeys(places))
        columns = ["steps", *(f"{steps[i]:,}" for i in places)]
        columns += [*(f"seed {seed}" for seed in range(seeds)), "tokens/s"]
        rows = [
            [
                self.styles[name][0],
                *(f"{one['mean'][i]:.3f} ({one['spread'][i]:.3f})" for i in places),
                *(f"{losses[-1]:.3f}" for losses in one["seeds"]),
                f"{one['tokens_per_second']:,.0f}",
            ]
            for name, one in found.items()
        ]
        lines = [
            markdown(columns, rows),
            "",
            f"Validation loss in nats per token: mean and range of "
            f"{count_seeds(seeds)}, and each at the end. "
            f"{describe_model(self.training, self.stage)}",
        ]
        for name, compared in results["compared"].items():
            differences, step = compared["differences"], compared["steps_to_same_loss"]
            shown = ", ".join(f"{difference:+.3f}" for difference in differences)
            lines.append(
                f"{self.styles[name][0]}: {statistics.mean(differences):+.3f} at the "
                f"end ({shown}) than {self.styles[self.baselines[name]][0]}, whose "
                "final loss is "
                + ("not reached." if step is None else f"reached by step {step:,}.")
            )
        return "\n".join(lines)

    def draw(self, figure, results, rows):
        axes = figure.add_subplot()
        for name in self.names:
            label, color, line = self.styles[name]
            steps, losses = curves(rows, "step", "validation_loss", model=name)
            draw_mean(axes, steps, losses, label, color, line)
        axes.set(
            xlabel="training steps",
            ylabel="validation loss (nats per token)",
            title=f"Mean and range of {count_seeds(self.options.seeds)}",
        )
        axes.legend()


def compare_losses(one, other):
    """Final differences by seed, and the step at which one has the other's loss."""
    pairs = zip(one["seeds"], other["seeds"], strict=True)
    reached = zip(one["steps"], one["mean"], strict=True)
    final = other["mean"][-1]
    return {
        "differences": [own[-1] - others[-1] for own, others in pairs],
        "steps_to_same_loss": next((s for s, loss in reached if loss <= final), None),
    }


def linear_schedule(updates: int) -> list[tuple[int, float]]:
    """A rate that rises over the first tenth of the updates and then falls to 0."""
    return [(max(1, updates // 10), 1.0), (max(2, updates), 0.0)]


def describe_model(training, stage) -> str:
    """The sizes of a model and of a stage of its `PretrainingSettings`."""
    model = training.model
    return (
        f"{stage.steps:,} steps of {stage.batch_size} rows of {stage.length} tokens; "
        f"{model['num_layers']} layers, {model['num_heads']} heads, width "
        f"{model['hidden_dim']}."
    )


# === Seeds ===


def curves(rows, x: str, y: str, **where):
    """Values of column `x`, and of `y` at each of them: float `(seeds, values)`.

    Args:
        rows: dicts with these columns and `seed`.
        where: columns -> value that rows must have.
    """
    by_seed = {}
    for row in rows:
        if all(row[name] == value for name, value in where.items()):
            by_seed.setdefault(row["seed"], {})[row[x]] = row[y]
    values = [list(curve.values()) for curve in by_seed.values()]
    return list(next(iter(by_seed.values()))), np.array(values)


def spread(values: Sequence[float]) -> dict:
    """The mean of the seeds, and how far the largest is from the smallest."""
    return {
        "mean": statistics.mean(values),
        "spread": max(values) - min(values),
        "seeds": list(values),
    }


def count_seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def draw_mean(axes, xs, values, label, color, line="-"):
    """Draws the mean of the seeds, and their range as an area."""
    axes.plot(xs, values.mean(0), line, color=color, label=label)
    bounds = values.min(0), values.max(0)
    axes.fill_between(xs, *bounds, color=color, alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)

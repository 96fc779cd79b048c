"""The harness of the experiments: models trained with seeds, in a folder that resumes.

The folder holds `settings.json`, tables as CSV, `results.json`, `table.md` and
`picture.png`. Interrupted, the same command continues with the trainings that are
missing; more `--seeds` add to those that are done.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from roformer_keras.base.checks import check_integer
from roformer_keras.io import journal
from roformer_keras.training.plots import drawing
from tools.commands import Parser, command
from tools.tables import markdown, read_rows, write_json, write_rows, write_text


class Experiment:
    """Trainings of several models, each with the seeds 0, 1, 2, ...

    A subclass has `train(name, seed)`, which returns a training's rows of each table;
    `summarize(*tables)`, what `results.json` holds; and `report(results)`, Markdown.
    `settings` are plain types, equal for all trainings of a folder.
    """

    # A training is done if the last one has its rows; `key` is the column of its name.
    tables: Sequence[str] = ("curves.csv",)
    key = "model"
    names: Sequence
    settings: Mapping
    # Table, column of the names in `styles`, x, y and what y is.
    plots: Sequence[tuple] = ()
    # Name -> label, color, line.
    styles: Mapping
    # Steps of the ticks of x, and the largest y that is shown; by default all.
    tick_step: int | None = None
    max_shown: float | None = None

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
        with journal.locked(self.folder):
            self._open_folder()
            tables = self._train_missing()
            results = {"settings": self.settings, **self.summarize(*tables)}
            write_json(self.folder / "results.json", results)
            report = self.report(results)
            write_text(self.folder / "table.md", f"{report}\n")
            if self.plots:
                self.draw(tables, self.folder / "picture.png")
            return report

    @classmethod
    def draw(cls, tables: Sequence[Sequence[Mapping]], path: Path):
        """Draws `plots` from the rows of `tables`, as PNG."""
        seeds = len({row["seed"] for row in tables[0]})
        with drawing(path, max(8, 5 * len(cls.plots)), 4.4) as figure:
            every = figure.subplots(1, len(cls.plots), squeeze=False)[0]
            for axes, (file, column, x, y, what) in zip(every, cls.plots, strict=True):
                rows = tables[cls.tables.index(file)]
                for name, (label, color, line) in cls.styles.items():
                    if own := [row for row in rows if row.get(column) == name]:
                        label = label if axes is every[0] else None
                        xs, values = curves(own, x, y)
                        draw_mean(axes, xs, values, label, color, line)
                axes.set(xlabel=x, ylabel=what)
                limits = axes.dataLim
                if cls.max_shown and limits.y0 < cls.max_shown < limits.y1:
                    axes.set_ylim(top=cls.max_shown)
                if cls.tick_step and limits.x1 >= 2 * cls.tick_step:
                    ticks = range(cls.tick_step, int(limits.x1) + 1, cls.tick_step)
                    axes.set_xticks(ticks)
            figure.suptitle(f"Mean and range of {count_seeds(seeds)}", size="medium")
            figure.legend(loc="outside lower center", ncols=3, fontsize="small")

    def _open_folder(self):
        """Starts in a new folder, or checks that it has equal settings."""
        record = self.folder / "settings.json"
        before, run = (
            journal.read_record(record),
            journal.run_metadata(self.settings, {}),
        )
        has_data = any(path.name != ".lock" for path in self.folder.iterdir())
        if journal.is_new_run(before, run, self.folder, has_data=has_data):
            journal.write_record(record, run)

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
    """An experiment that shows losses by training steps; see `fit`.

    A subclass has `training`, settings of one stage; `make_trainer(name, seed)`, a
    compiled `keras.Model`; `batches(seed)`, a generator; `validation`, inputs and
    targets; `baselines`, name of a model -> that of the one it is compared with.
    """

    plots = (("curves.csv", "model", "step", "validation_loss", "loss (nats a token)"),)
    baselines: Mapping

    def train(self, name, seed):
        (stage,) = self.training.stages
        trainer, title = self.make_trainer(name, seed), f"{name}, seed {seed}"
        with contextlib.closing(self.batches(seed)) as batches:
            rows = fit(trainer, stage, title, batches, self.validation)
        return [[{"model": name, "seed": seed, **row} for row in rows]]

    def summarize(self, rows):
        models = {}
        for name in self.names:
            steps, losses = curves(rows, "step", "validation_loss", model=name)
            _, speeds = curves(rows, "step", "tokens_per_second", model=name)
            models[name] = {
                "steps": steps,
                "mean": losses.mean(axis=0).tolist(),
                "spread": np.ptp(losses, axis=0).tolist(),
                "seeds": losses.tolist(),
                "tokens_per_second": float(np.median(speeds)),
            }
        compared = {
            name: compare_losses(models[name], models[other])
            for name, other in self.baselines.items()
            if name in models and other in models
        }
        return {"models": models, "compared": compared}

    def report(self, results):
        found, (stage,) = results["models"], self.training.stages
        first = next(iter(found.values()))
        steps, seeds = first["steps"], len(first["seeds"])
        # The points of a curve that are nearest to its quarters.
        quarters = [-(-len(steps) * quarter // 4) - 1 for quarter in range(1, 5)]
        quarters = list(dict.fromkeys(quarters))
        columns = ["steps", *(f"{steps[i]:,}" for i in quarters)]
        columns += [*(f"seed {seed}" for seed in range(seeds)), "tokens/s"]
        rows = [
            [
                self.styles[name][0],
                *(f"{one['mean'][i]:.3f} ({one['spread'][i]:.3f})" for i in quarters),
                *(f"{losses[-1]:.3f}" for losses in one["seeds"]),
                f"{one['tokens_per_second']:,.0f}",
            ]
            for name, one in found.items()
        ]
        lines = [
            f"{markdown(columns, rows)}\n",
            f"Validation loss in nats per token: mean and range of "
            f"{count_seeds(seeds)}, and each at the end. "
            f"{describe_model(self.training, stage)}",
        ]
        for name, (differences, step) in results["compared"].items():
            shown = ", ".join(f"{difference:+.3f}" for difference in differences)
            lines.append(
                f"{name}: {statistics.mean(differences):+.3f} at the end ({shown}) "
                f"than {self.baselines[name]}, whose final loss is "
                + (f"reached by step {step:,}." if step else "not reached.")
            )
        return "\n".join(lines)


def compare_losses(one, other):
    """Final differences by seed, and the step at which one has the other's loss."""
    pairs = zip(one["seeds"], other["seeds"], strict=True)
    reached = zip(one["steps"], one["mean"], strict=True)
    final = other["mean"][-1]
    step = next((step for step, loss in reached if loss <= final), None)
    return [own[-1] - others[-1] for own, others in pairs], step


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


def fit(model, stage, title, batches, validation=None, intervals=20) -> list[dict]:
    """Trains for the steps of a stage; rows of losses and speed of training alone."""
    interval, rows, losses, seconds = max(1, stage.steps // intervals), [], [], 0.0
    for step in tqdm(range(1, stage.steps + 1), desc=title, unit=" steps"):
        batch, start = next(batches), time.perf_counter()
        losses.append(model.train_on_batch(*batch, return_dict=True)["loss"])
        seconds += time.perf_counter() - start
        if step % interval and step < stage.steps:
            continue
        row = {"step": step, "train_loss": float(np.mean(losses))}
        if validation:
            names = ("x", "y", "sample_weight")
            evaluated = model.evaluate(
                **dict(zip(names, validation, strict=False)),
                # The logits of larger batches would take more memory than training.
                batch_size=stage.batch_size,
                verbose=0,
                return_dict=True,
            )
            row["validation_loss"] = evaluated["loss"]
        tokens = len(losses) * stage.batch_size * stage.length
        rows.append({**row, "tokens_per_second": tokens / seconds})
        losses, seconds = [], 0.0
    return rows


def curves(rows, x: str, y: str, **where):
    """Values of column `x` where columns match, and of `y`: float `(seeds, values)`."""
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

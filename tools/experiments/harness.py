"""The harness of the experiments: models trained with seeds, in a folder that resumes.

The folder holds `settings.json`, tables as CSV, `results.json`, `table.md` and
`picture.png`. Interrupted, the same command continues with the trainings that are
missing; more `--seeds` add to those that are done.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.errors import RoFormerError
from roformer_keras.io.journal import (
    is_new_run,
    locked,
    read_record,
    run_metadata,
    write_record,
)
from roformer_keras.training.plots import new_figure, save_figure
from tools.tables import read_rows, write_json, write_rows, write_text


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
    def main(cls, arguments=None) -> int:
        """The command line."""
        parser = argparse.ArgumentParser(
            description=sys.modules[cls.__module__].__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        cls.add_arguments(parser)
        parser.add_argument("--output", type=Path, required=True, help="folder")
        parser.add_argument("--seeds", type=int, default=3, help="default 3: 0, 1, 2")
        options = parser.parse_args(arguments)
        try:
            table = cls(options).run()
        except RoFormerError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        print(f"\n{table}")
        return 0

    def run(self) -> str:
        """Trains what is missing, and writes the results of all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            open_folder(self.folder, self.settings)
            return self._run()

    def _run(self):
        tables = self.train_missing()
        results = {"settings": self.settings, **self.summarize(*tables)}
        write_json(self.folder / "results.json", results)
        table = self.report(results)
        write_text(self.folder / "table.md", f"{table}\n")
        figure = new_figure(*self.picture_size)
        self.draw(figure, results, *tables)
        if figure.axes:
            save_figure(figure, self.folder / "picture.png")
        return table

    def train_missing(self):
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


def open_folder(folder: Path, settings: Mapping):
    """Starts an experiment in a new folder, or checks that it has equal settings."""
    record, run = folder / "settings.json", run_metadata(settings, {})
    has_data = any(path.name != ".lock" for path in folder.iterdir())
    if is_new_run(read_record(record), run, folder, has_data=has_data):
        write_record(record, run)


def linear_schedule(updates: int) -> list[tuple[int, float]]:
    """A rate that rises over the first tenth of the updates and then falls to 0."""
    return [(max(1, updates // 10), 1.0), (max(2, updates), 0.0)]


def describe_model(training, stage) -> str:
    """The sizes of a model and its training, as sentences.

    Args:
        training: `PretrainingSettings`.
        stage: one of its stages.
    """
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


def draw_mean(axes, xs, values, label, color, line="-", marker=None):
    """Draws the mean of the seeds, and their range: an area, or bars with a marker."""
    mean, low, high = values.mean(0), values.min(0), values.max(0)
    if marker is None:
        axes.plot(xs, mean, line, color=color, label=label)
        axes.fill_between(xs, low, high, color=color, alpha=0.2, linewidth=0)
    else:
        style = {"marker": marker, "markersize": 4, "markerfacecolor": "white"}
        bars = [mean - low, high - mean]
        axes.errorbar(xs, mean, bars, fmt="none", color=color, linewidth=1)
        axes.plot(xs, mean, linestyle="none", color=color, label=label, **style)
    axes.grid(alpha=0.3)

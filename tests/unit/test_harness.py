"""tools.experiments.harness: trainings are resumed, and their seeds summarized."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from roformer_keras.errors import ConfigurationError, OutputError
from tools.experiments.harness import Experiment, curves, draw_mean, spread
from tools.tables import read_rows

ROWS = [
    {"model": model, "seed": seed, "step": step, "loss": 10.0 * seed + step}
    for model in ("a", "b")
    for seed in (0, 1)
    for step in (2, 4)
]


def test_curves_and_spread():
    steps, values = curves(ROWS, "step", "loss", model="b")
    assert steps == [2, 4]
    np.testing.assert_array_equal(values, [[2, 4], [12, 14]])
    assert spread([1.0, 4.0]) == {"mean": 2.5, "spread": 3.0, "seeds": [1.0, 4.0]}


class Counted(Experiment):
    """Two models; `interrupt_at` is the number of a training that is interrupted."""

    names = ("a", "b")
    tables = ("curves.csv", "runs.csv")

    def __init__(self, folder, seeds=2, interrupt_at=None):
        super().__init__(SimpleNamespace(output=folder, seeds=seeds))
        self.trained, self.interrupt_at = [], interrupt_at
        self.settings = {"steps": 2}

    def train(self, name, seed):
        if len(self.trained) == self.interrupt_at:
            raise KeyboardInterrupt
        self.trained.append((name, seed))
        run = {"model": name, "seed": seed}
        curve = [{**run, "step": step, "loss": seed + 1 / step} for step in (1, 2)]
        return [curve, [run]]

    def summarize(self, rows, runs):
        return {
            name: spread(curves(rows, "step", "loss", model=name)[1][:, -1].tolist())
            for name in self.names
        }

    def report(self, results):
        return f"| a | {results['a']['mean']} |"

    def draw(self, figure, results, rows, runs):
        steps, values = curves(rows, "step", "loss", model="a")
        draw_mean(figure.add_subplot(), steps, values, "a", "C0")


def test_an_interrupted_experiment_resumes(tmp_path):
    folder = tmp_path / "run"
    first = Counted(folder, interrupt_at=2)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert first.trained == [("a", 0), ("b", 0)]
    # Rows of a training whose last table was not written do not count.
    with open(folder / "curves.csv", "a", encoding="utf-8") as file:
        file.write("a,1,1,9.0\n")
    second = Counted(folder)
    assert second.run() == "| a | 1.0 |"
    assert second.trained == [("a", 1), ("b", 1)]
    assert len(read_rows(folder / "curves.csv")) == 8
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["settings"] == {"steps": 2}
    assert results["b"] == {"mean": 1.0, "spread": 1.0, "seeds": [0.5, 1.5]}
    assert (folder / "table.md").read_text(encoding="utf-8") == "| a | 1.0 |\n"
    assert (folder / "picture.png").exists()
    # Complete, with fewer seeds, with more.
    for seeds, mean, trained in ((2, 1.0, []), (1, 0.5, []), (3, 1.5, ["a", "b"])):
        more = Counted(folder, seeds=seeds)
        assert more.run() == f"| a | {mean} |"
        assert more.trained == [(name, 2) for name in trained]


def test_a_folder_of_another_experiment_is_kept(tmp_path):
    folder = tmp_path / "run"
    Counted(folder, seeds=1).run()
    before = (folder / "curves.csv").read_bytes()
    other = Counted(folder)
    other.settings = {"steps": 3}
    with pytest.raises(OutputError, match="steps"):
        other.run()
    (folder / "settings.json").unlink()
    with pytest.raises(OutputError, match="missing"):
        Counted(folder).run()
    assert (folder / "curves.csv").read_bytes() == before
    with pytest.raises(ConfigurationError, match="seeds must be"):
        Counted(folder, seeds=0)

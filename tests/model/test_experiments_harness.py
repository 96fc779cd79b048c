"""tools.experiments: trainings resume, seeds are summarized, rows are drawn."""

import argparse
import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from common import read_json

from roformer_keras.base.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.experiments.harness import Experiment, curves, spread
from tools.experiments.language_models import Documents
from tools.experiments.lengths import Settings
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


STYLES = {"a": ("a", "C0", "-")}


class Counted(Experiment):
    """Two models; `interrupt_at` is the number of a training that is interrupted."""

    names = ("a", "b")
    tables = ("curves.csv", "runs.csv")
    plots = (("curves.csv", "model", "step", "loss", "loss"),)
    styles = STYLES

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
    results = read_json(folder / "results.json")
    assert results["settings"] == {"steps": 2}
    assert results["b"] == {"mean": 1.0, "spread": 1.0, "seeds": [0.5, 1.5]}
    assert (folder / "table.md").read_text(encoding="utf-8") == "| a | 1.0 |\n"
    assert (folder / "picture.png").exists()
    # Complete, with fewer seeds, with more.
    for seeds, mean, trained in ((2, 1.0, []), (1, 0.5, []), (3, 1.5, ["a", "b"])):
        resumed = Counted(folder, seeds=seeds)
        assert resumed.run() == f"| a | {mean} |"
        assert resumed.trained == [(name, 2) for name in trained]


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


def test_rows_and_windows_lie_in_one_document():
    tokenizer = RoFormerTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(chr(0x4E00 + i) for i in range(100))]
    )
    text = "".join(tokenizer.vocabulary[4:])
    lines = [(text[:33], "a"), (text[33:40], "a"), (text[40:45], "b"), (text[45:], "c")]
    documents = Documents(lines, tokenizer)
    # 40 tokens, 5 and 55.
    windows = documents.windows(np.random.default_rng(0), 50, 10)
    assert windows.shape == (9, 10) and len(np.unique(windows)) == 90
    rows = documents.rows(np.random.default_rng(0), 500, 10)
    for found in (windows, rows):
        np.testing.assert_array_equal(np.diff(found, axis=1), 1)
        assert not np.any((found[:, 0] < 49) & (found[:, -1] >= 44))
    assert {4, 34, 49, 94} <= set(rows[:, 0])
    with pytest.raises(ConfigurationError, match="a row takes 90 tokens"):
        documents.rows(np.random.default_rng(0), 1, 90)


NAMES = "extrapolation finetuning lengths performers positions translation"
TOOLS = [f"experiments.{name}" for name in ("evaluate_checkpoints", *NAMES.split())]
NAMES = ("__main__", "full_size_checkpoint", "round_checkpoint")
TOOLS += [f"reference.{name}" for name in NAMES]


def test_help(capsys):
    wrong = []
    for tool in TOOLS:
        module, name = importlib.import_module(f"tools.{tool}"), tool.split(".")[1]
        main = getattr(module, "main", None) or getattr(module, name.title()).main
        with pytest.raises(SystemExit) as ended:
            main(["--help"])
        command = f"python -m tools.{tool}".removesuffix(".__main__")
        if ended.value.code or command not in capsys.readouterr().out:
            wrong.append(tool)
    assert not wrong


CONFIGURATIONS = {
    "extrapolation": "extrapolation",
    "performers": "performers",
    "roformer-char": "positions",
    "translation-classical": "translation",
    "translation-multi30k": "translation",
}


def test_committed_configurations(tmp_path):
    """They are valid; what they train on is not in the repository."""
    folder = Path(__file__).parents[2] / "checkpoints" / "training"
    for config, name in CONFIGURATIONS.items():
        module = importlib.import_module(f"tools.experiments.{name}")
        experiment = getattr(module, name.title())
        parser = argparse.ArgumentParser()
        experiment.add_arguments(parser)
        options = parser.parse_args(["--config", str(folder / f"{config}.toml")])
        options.output, options.seeds = tmp_path / "run", 3
        try:
            assert experiment(options).settings
        except SourceError as error:
            assert name == "translation" and "data" in str(error)
    for name in ("roformer-gpt-char", "roformer-sim-char"):
        assert PretrainingSettings.from_toml(folder / f"{name}.toml")
    assert Settings.from_toml(folder / "lengths.toml")

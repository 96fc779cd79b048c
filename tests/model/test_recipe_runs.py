"""Whole fine-tunings by recipe, on a few invented rows."""

import json

import pytest

from roformer_keras.cli.finetune import read_settings
from roformer_keras.errors import ConfigurationError
from roformer_keras.training import recipes
from roformer_keras.training.recipes import finetune_recipe

FLAGS = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3}


def test_the_best_rate_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "LEARNING_RATES", (2e-5, 1e-2))
    rows = ["x\t1\t\tgood one\n", "x\t0\t*\tbad the\n"] * 4
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("".join(rows))
    flags = {key: FLAGS[key] for key in ("epochs", "batch_size")}
    settings = read_settings(None, None, flags, "glue/cola", str(tmp_path))
    out = tmp_path / "out"
    preset = finetune_recipe("glue/cola", settings, out, verbose=False)
    found = json.loads((out / "recipe.json").read_text())
    figures = {
        rate: split["valid"]["matthews"] for rate, split in found["rates"].items()
    }
    assert list(figures) == ["2e-05", "0.01"]
    best = found["best_rate"]
    assert figures[f"{best:g}"] == max(figures.values())
    assert preset == out / f"rate-{best:g}" / "preset"
    assert (preset / "metadata.json").is_file()
    assert "RoFormer in the paper" in (out / "recipe.txt").read_text()


def test_no_rate_is_tried_without_a_development_set(tmp_path):
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("x\t1\t\tgood one\n" * 4)
    flags = {**FLAGS, "holdout": 0.0}
    settings = read_settings(None, None, flags, "glue/cola", str(tmp_path))
    with pytest.raises(ConfigurationError, match="leave holdout out"):
        finetune_recipe("glue/cola", settings, tmp_path / "out", verbose=False)
    assert not (tmp_path / "out").exists()


def test_rows_without_a_class_are_left_out(tmp_path):
    for name in ("train.50k.json", "dev.json"):
        labels = ("entailment", "neutral", "contradiction", "-")
        lines = [
            json.dumps({"sentence1": "下雨", "sentence2": label, "label": label})
            for label in labels
        ]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    settings = read_settings(None, None, FLAGS, "clue/ocnli", str(tmp_path))
    finetune_recipe("clue/ocnli", settings, tmp_path / "out", verbose=False)
    report = json.loads((tmp_path / "out/rate-0.001/report.json").read_text())
    assert report["valid"]["rows"] == 3
    assert [one["line"] for one in report["valid"]["skipped"]] == [4]


def test_entities_of_cluener(tmp_path):
    line = {"text": "他在台湾", "label": {"address": {"台湾": [[2, 3]]}}}
    other = {"text": "王五来了", "label": {"name": {"王五": [[0, 1]]}}}
    content = "".join(f"{json.dumps(one)}\n" for one in (line, other))
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text(content)
    settings = read_settings(None, None, FLAGS, "clue/cluener", str(tmp_path))
    finetune_recipe("clue/cluener", settings, tmp_path / "out", verbose=False)
    report = json.loads((tmp_path / "out/rate-0.001/report.json").read_text())
    classes = report["valid"]["classes"]
    assert {name: one["count"] for name, one in classes.items()} == {
        "address": 1,
        "name": 1,
    }

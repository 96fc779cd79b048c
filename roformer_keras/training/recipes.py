"""Recipes of `finetune`: what is known of the files and figures of GLUE and CLUE.

A recipe gives settings for a benchmark's own files, and tries the learning rates of the
paper, of which the best on the development set is kept.

Sources: Su et al. 2021, arXiv:2104.09864, section 4.3 and table 2; Wang et al. 2019,
arXiv:1804.07461 (GLUE); Xu et al. 2020, arXiv:2004.05986 (CLUE).
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roformer_keras.checks import check_choice
from roformer_keras.errors import ConfigurationError
from roformer_keras.io.atomic import replacing
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import json_bytes, read_json
from roformer_keras.training.finetuning_settings import FinetuningSettings
from roformer_keras.training.folder import PRESET

# The paper's settings; rows are padded to the longest of their batch.
LEARNING_RATES = (2e-5, 3e-5, 4e-5, 5e-5)
_PAPER = {"epochs": 3, "batch_size": 32, "max_length": 512}
REPORT = "recipe.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Record of a task of a benchmark.

    Attributes:
        fields: columns or keys of the texts and the label.
        task: of `TASKS`.
        train, valid, test: names of files in the folder of the task.
        classes: names of the labels; rows of others are left out.
        metrics: names of figures, the one that determines the best epoch and the best
            rate first.
        paper: figures of RoFormer in the paper's table 2 for `valid`, in percent, by
            the name of the figure.
        paper_test: likewise for `test`.
        settings: more settings.
    """

    fields: tuple[str, ...] = ()
    task: str = "text-classification"
    train: str = "train.tsv"
    valid: str = "dev.tsv"
    test: str | None = None
    classes: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)
    paper_test: Mapping[str, float] = dataclasses.field(default_factory=dict)
    settings: Mapping = dataclasses.field(default_factory=dict)


def _glue(*fields, **options):
    return Recipe(fields=fields, **options)


def _clue(*fields, **options):
    names = {"train": "train.json", "valid": "dev.json", "settings": _JSON}
    return Recipe(fields=fields, **{**names, **options})


_BINARY, _JSON = ("0", "1"), {"format": "jsonl"}
_NLI = ("entailment", "neutral", "contradiction")
RECIPES = {
    # Without a header: source, label, the author's mark, sentence.
    "glue/cola": _glue("4", "2", classes=_BINARY, metrics=("matthews", "accuracy")),
    "glue/sst-2": _glue(
        *("sentence", "label"), classes=_BINARY, paper={"accuracy": 90.7}
    ),
    "glue/mrpc": _glue(
        *("#1 String", "#2 String", "Quality"),
        classes=_BINARY,
        metrics=("f1", "accuracy"),
        paper={"f1": 89.5},
    ),
    "glue/sts-b": _glue(
        *("sentence1", "sentence2", "score"),
        task="text-regression",
        metrics=("spearman", "pearson"),
        paper={"spearman": 87.0},
    ),
    # Some rows lack columns.
    "glue/qqp": _glue(
        *("question1", "question2", "is_duplicate"),
        classes=_BINARY,
        metrics=("f1", "accuracy"),
        paper={"f1": 86.4},
    ),
    "glue/mnli": _glue(
        *("sentence1", "sentence2", "gold_label"),
        valid="dev_matched.tsv",
        test="dev_mismatched.tsv",
        classes=_NLI,
        paper={"accuracy": 80.2},
        paper_test={"accuracy": 79.8},
    ),
    "glue/qnli": _glue(
        *("question", "sentence", "label"),
        classes=("entailment", "not_entailment"),
        paper={"accuracy": 88.0},
    ),
    "glue/rte": _glue(
        "sentence1", "sentence2", "label", classes=("entailment", "not_entailment")
    ),
    "clue/afqmc": _clue("sentence1", "sentence2", "label", classes=_BINARY),
    "clue/tnews": _clue("sentence", "label"),
    "clue/iflytek": _clue("sentence", "label"),
    "clue/cmnli": _clue("sentence1", "sentence2", "label", classes=_NLI),
    "clue/ocnli": _clue(
        "sentence1", "sentence2", "label", classes=_NLI, train="train.50k.json"
    ),
    # The keywords are a list.
    "clue/csl": _clue("abst", "keyword", "label", classes=_BINARY),
    "clue/cluener": _clue(
        "text", "label", task="span-extraction", metrics=("f1", "macro_f1")
    ),
    "clue/cmrc2018": _clue(
        task="question-answering",
        metrics=("f1", "exact_match"),
        settings={"format": "squad"},
    ),
    # At most 32 texts are computed together, as in other tasks: 2 rows of 10 choices,
    # or 8 of 4.
    "clue/chid": _clue(
        task="multiple-choice", settings={"format": "chid", "accumulation": 16}
    ),
    # Dialogues and other texts: d-train.json and m-train.json.
    "clue/c3": _clue(
        task="multiple-choice",
        train="?-train.json",
        valid="?-dev.json",
        settings={"format": "c3", "accumulation": 4},
    ),
}


def recipe_settings(name: str, data: str, task: str | None = None) -> dict[str, Any]:
    """The settings of a recipe, but the learning rate.

    Args:
        name: of `RECIPES`.
        data: folder of the benchmark's files.
        task: the task that was asked for, or None.

    Raises:
        ConfigurationError: there is no such recipe, or it is for another task.
    """
    check_choice("recipe", name, RECIPES)
    recipe = RECIPES[name]
    if task not in (None, recipe.task):
        raise ConfigurationError(
            f"{name} is for the task {recipe.task!r}, the command for {task!r}"
        )
    files = {"train": recipe.train, "valid": recipe.valid, "test": recipe.test}
    options = {"classes": recipe.classes} if recipe.classes else {}
    pairs = len(recipe.fields) == 3
    return {
        "task": recipe.task,
        **{name: os.path.join(data, file) for name, file in files.items() if file},
        "fields": recipe.fields,
        "on_bad_row": "skip",
        **({"pairs": True} if pairs else {}),
        **({"options": options} if options else {}),
        **_PAPER,
        **recipe.settings,
    }


def recipe_rates(settings: FinetuningSettings) -> tuple[float, ...]:
    """The rates to try: that of the settings, or the paper's."""
    rate = settings.learning_rate
    return LEARNING_RATES if rate is None else (rate,)


def recipe_figures(recipe: Recipe, report: Mapping) -> dict[str, float | None]:
    """The figures of a benchmark, of a report of its task, from 0 to 1."""
    # It imports a backend, which the settings of a recipe do not need.
    from roformer_keras.tasks.measures import class_figure

    found: dict[str, float | None] = {}
    for name in recipe.metrics:
        found[name] = report[name] if name in report else class_figure(report, name)
    return found


def finetune_recipe(
    name: str, settings: FinetuningSettings, folder: str | os.PathLike, **options: Any
) -> Path:
    """Trains with each rate, or resumes, and writes the figures next to the paper's.

    Args:
        name: of `RECIPES`.
        settings: as `recipe_settings` gives them, or changed.
        folder: of a folder for each rate, and of `recipe.txt` and `recipe.json`.
        options: of `finetune`.

    Returns:
        The preset of the best rate.

    Raises:
        ConfigurationError: there is no development set; or as in `finetune`.
    """
    from roformer_keras.training.finetune import finetune

    recipe, folder, rates = RECIPES[name], Path(folder), recipe_rates(settings)
    files, paper = recipe_files(recipe, settings)
    first = recipe.metrics[0]
    settings = dataclasses.replace(settings, monitor=settings.monitor or first)
    found: dict[float, dict] = {}
    for rate in rates:
        rate_folder = folder / f"rate-{rate:g}"
        finetune(
            dataclasses.replace(settings, learning_rate=rate), rate_folder, **options
        )
        # Figures may be NaN.
        reports = read_json(Blob.of_file(rate_folder / "report.json"), strict=False)
        found[rate] = {
            split: recipe_figures(recipe, reports[split])
            for split in ("valid", "test")
            if split in reports
        }
    # A correlation of equal numbers is undefined.
    values = {rate: found[rate]["valid"][first] for rate in rates}
    best = max(rates, key=lambda rate: -2 if values[rate] is None else values[rate])
    content = {"recipe": name, "best_rate": best, "files": files}
    content |= {"rates": found, "paper": paper}
    text = format_recipe(name, found, best, files, paper)
    for file, written in (
        (REPORT, text.encode()),
        ("recipe.json", json_bytes(content)),
    ):
        with replacing(folder / file, overwrite=True) as partial:
            partial.write_bytes(written)
    return folder / f"rate-{best:g}" / PRESET


def recipe_files(
    recipe: Recipe, settings: FinetuningSettings
) -> tuple[dict[str, str], dict[str, Mapping[str, float]]]:
    """Measures by the name of the split, and the paper's figures for them.

    The paper has figures for the recipe's own files alone.

    Raises:
        ConfigurationError: there is no development set.
    """
    if settings.valid is None and not settings.holdout:
        raise ConfigurationError(
            f"a recipe keeps the best learning rate on {recipe.valid}, got no file for "
            "it and holdout=0: leave holdout out, give another share, or give valid"
        )
    paths = {"valid": settings.valid, "test": settings.test}
    files = {split: Path(path).name for split, path in paths.items() if path}
    files_of_parts = {
        split: Path(settings.train).with_name(file)
        for split, file in (("valid", recipe.valid), ("test", recipe.test))
        if file and Path(settings.train).name == recipe.train
    }
    figures = {"valid": recipe.paper, "test": recipe.paper_test}
    paper = {
        split: figures[split]
        for split in files
        if figures[split] and files_of_parts.get(split) == Path(str(paths[split]))
    }
    return {"valid": "held out", **files}, paper


def format_recipe(
    name: str,
    found: Mapping[float, Mapping],
    best: float,
    files: Mapping[str, str],
    paper: Mapping[str, Mapping[str, float]],
) -> str:
    """A table of the figures of each rate and of the paper, in percent.

    Args:
        name: of `RECIPES`.
        found: the figures of each rate, by the names of the split and of the figure.
        best: the rate that is kept.
        files, paper: as `recipe_files` returns them.
    """
    recipe = RECIPES[name]
    columns = [(split, metric) for split in found[best] for metric in recipe.metrics]
    heads = [f"{files[split]} {metric}" for split, metric in columns]
    lines = [f"{name}, in percent; the rate with the best {recipe.metrics[0]} is kept"]
    lines.append("  ".join([f"{'':<24}", *heads]))
    rows: list[tuple[str, list]] = [
        (
            f"rate {rate:g}{', kept' if rate == best else ''}",
            [
                None if (value := figures[split][metric]) is None else 100 * value
                for split, metric in columns
            ],
        )
        for rate, figures in found.items()
    ]
    theirs = [paper.get(split, {}).get(metric) for split, metric in columns]
    rows.append(("RoFormer in the paper", theirs))
    for label, values in rows:
        cells = [
            f"{'-' if value is None else format(value, '.1f'):>{len(head)}}"
            for value, head in zip(values, heads, strict=True)
        ]
        lines.append("  ".join([f"{label:<24}", *cells]))
    return "\n".join(lines) + "\n"

"""A model that was fine-tuned: its rows, its answers and its figures."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import check_choice, check_path
from roformer_keras.base.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.atomic import replacing
from roformer_keras.io.json_file import json_bytes, parse_json
from roformer_keras.io.sources import PRESET_BASELINES
from roformer_keras.io.training_folder import PRESET, SETTINGS, training_folder
from roformer_keras.models.preset_files import opened_checkpoint
from roformer_keras.tables.choices import parse_choices
from roformer_keras.tables.files import LABEL, TextTable, row_names
from roformer_keras.tables.opening import UTF_8
from roformer_keras.tables.texts import as_texts
from roformer_keras.tasks.evaluation import evaluate_task
from roformer_keras.tasks.finetuning_settings import trained_settings
from roformer_keras.tasks.labelled_files import (
    Examples,
    known_classes,
    parse_examples,
    read_labelled,
    read_unlabelled,
)
from roformer_keras.tasks.load import load_model
from roformer_keras.tasks.task import TextTask


@dataclasses.dataclass(frozen=True)
class FinetunedTask:
    """A model that was fine-tuned.

    Attributes:
        task: `TextTask`.
        preset: Path of its preset folder.
        text_count: int. Texts of a row, if a file does not say it.
        fields: names of the texts and of the label in the training, if they had any.
        learned: what baselines learned of the training data, as `fit_baselines` of
            `tasks.evaluation` returns it; None if the preset does not say it.
    """

    task: TextTask
    preset: Path
    text_count: int
    fields: tuple[str, ...] = ()
    learned: dict | None = None

    def read_rows(
        self,
        path: str,
        fields: Sequence[str] = (),
        format: str | None = None,
        header: str | None = None,
        encoding: str = UTF_8,
    ) -> list[tuple[str, tuple[Any, ...]]]:
        """Rows of a file to answer: the place of each, and its texts.

        Args:
            path: of a file as `read_table` takes it, or "-" for standard input.
            fields: columns or keys of the texts; a last one that is `label`, or the
                label of the training after its texts, is left out. The names of the
                training if none are given, or the first columns on standard input and
                of a `.txt` that lacks those.
            format, header, encoding: as in `read_table`, whatever the files of the
                training were.

        Raises:
            SourceError, ConfigurationError: as in `read_table`.
        """
        return read_unlabelled(
            path,
            self.task,
            self.text_count,
            self.fields,
            fields,
            format=format,
            header=header,
            encoding=encoding,
        )

    def read_row(self, texts: Sequence[str]) -> tuple[Any, ...]:
        """A row of texts as str; choices are a JSON list.

        Args:
            texts: list of str.

        Raises:
            ConfigurationError: the last text must be such a list, and is not.
        """
        if not self.task.has_choices:
            return tuple(texts)
        return (*texts[:-1], parse_choices(texts[-1]))

    def check_rows(self, rows: list[tuple[str, ...]]) -> None:
        """Checks that the model can answer rows.

        Args:
            rows: texts of each.

        Raises:
            ConfigurationError: it cannot; names the row.
        """
        counts = self.answer_counts
        as_texts(rows, counts, self.task.has_choices, may_be_empty=True)

    @property
    def answer_counts(self) -> tuple[int, ...]:
        """Numbers of texts that a row may have, as far as the training is known."""
        counts = self.task.files.answer_counts
        if self.learned is not None and counts == self.task.text_counts == (1, 2):
            # What was learned of pairs says nothing of single texts.
            return (
                (self.text_count,)
                if self.fields
                else _counts_of(self.task, self.learned)
            )
        return counts

    def answer(self, rows: list[tuple[Any, ...]], **options: Any) -> list[dict]:
        """Texts with their answers, as plain JSON types.

        Args:
            rows: texts of each.
            options: of `predict`.
        """
        names = row_names(rows[0])
        lines = self.task.files.to_json(rows, **options)
        return [
            {**dict(zip(names, row, strict=True)), **line}
            for row, line in zip(rows, lines, strict=True)
        ]

    def evaluate(
        self,
        path: str,
        fields: Sequence[str] = (),
        *,
        on_bad_row: str = "error",
        format: str | None = None,
        header: str | None = None,
        encoding: str = UTF_8,
        verbose: bool = False,
    ) -> dict:
        """Report of the model on a file, next to baselines.

        Args:
            path: of a file as `read_table` takes it.
            fields: columns or keys of texts and label; the names of the training if
                none are given.
            on_bad_row: `"error"`, or `"skip"` to leave out rows that are not what the
                task takes; they are listed in the report as `skipped`.
            format, header, encoding: as in `read_rows`.
            verbose: bool. Whether a progress bar is shown.

        Returns:
            dict of `file`, and of what `tasks.evaluation.evaluate_task` returns.

        Raises:
            SourceError, ConfigurationError: as in `read_table`.
        """
        check_choice("on_bad_row", on_bad_row, ("error", "skip"))
        count = len(fields) - 1 if fields else self.text_count
        if count not in self.task.text_counts:
            counts = " or ".join(map(str, sorted(self.task.text_counts)))
            raise ConfigurationError(
                f"fields must name {counts} {'text' if counts == '1' else 'texts'} and "
                f"a label, got {', '.join(fields or self.fields)}"
            )
        table = read_labelled(
            path,
            self.task,
            self.text_count,
            self.fields,
            fields,
            skips=on_bad_row == "skip",
            classes=known_classes(self.task.preset_options()),
            format=format,
            header=header,
            encoding=encoding,
        )
        return evaluate_on(table, self, path, fields, on_bad_row, verbose)


def evaluate_on(
    table: TextTable,
    tuned: FinetunedTask,
    path: str,
    fields: Sequence[str] = (),
    on_bad_row: str = "error",
    verbose: bool = False,
) -> dict:
    """Report of a model on a file that was read; arguments as in `evaluate`."""
    skips = on_bad_row == "skip"
    options = tuned.task.preset_options()
    column = (fields or tuned.fields or [LABEL])[-1]
    examples = parse_examples(path, table, type(tuned.task), options, column, skips)
    if skips:
        examples = examples.usable_by(tuned.task)
    return report_on(tuned.task, examples, tuned.learned, verbose=verbose)


def load_finetuned(folder: str | os.PathLike, **options: Any) -> FinetunedTask:
    """Loads the model that `finetune` wrote.

    Args:
        folder: of the fine-tuning, or a preset folder or `.keras` file of a task, or
            `hf://owner/name` of such a preset. The names of columns are known in the
            folder of a fine-tuning, and of a preset in it.
        options: as in `from_preset` of the task.

    Returns:
        `FinetunedTask`.

    Raises:
        SourceError: there is nothing, or the fine-tuning is not finished.
        ConfigurationError: the preset holds no task.

    Example:
        >>> model = roformer_keras.RoFormerTextRegressor.from_preset("roformer-char")
        >>> model.save_to_preset("scores", overwrite=True)
        >>> tuned = roformer_keras.load_finetuned("scores")
        >>> list(tuned.answer([("今天天气不错",)])[0])
        ['text', 'score']
    """
    check_path("folder", folder)
    preset = training_folder(folder) / PRESET
    if not os.path.isfile(preset.parent / SETTINGS):
        preset = resolve(folder)
        if not preset.exists():
            raise SourceError(
                f"{folder} must be a folder of a fine-tuning, a preset, or a .keras "
                "file of a task"
            )
        task, learned = _load_task(preset, **options), _read_baselines(preset)
        return FinetunedTask(task, preset, _counts_of(task, learned)[0], (), learned)
    if not preset.is_dir():
        raise SourceError(
            f"{folder} has no {PRESET} yet: run `roformer-keras finetune` again to its "
            "end"
        )
    settings = trained_settings(folder)
    assert settings is not None
    task = _load_task(preset, **options)
    count, learned = settings.text_count, _read_baselines(preset)
    return FinetunedTask(task, preset, count, settings.field_names, learned)


def _load_task(folder, **options):
    with opened_checkpoint(folder) as checkpoint:
        if not checkpoint.is_task:
            raise ConfigurationError(
                f"{folder} must be a preset folder that a task was saved to, a .keras "
                "file of one, or a folder of Hugging Face with a task and its "
                f"tokenizer, got {checkpoint.model or 'no saved model'}"
            )
        return load_model(checkpoint, **options)


def _counts_of(task, learned):
    """Texts of a row: as many as those whose baselines a preset has."""
    counts = [
        count
        for count in task.text_counts
        if {one.name for one in task.files.baselines(count)} == (learned or {}).keys()
    ]
    return tuple(counts) or task.text_counts


def write_baselines(preset: Path, learned: dict[str, dict]) -> None:
    """Writes what baselines learned of the training data next to a model."""
    with replacing(preset / PRESET_BASELINES, overwrite=True) as partial:
        partial.write_bytes(json_bytes(learned))


def _read_baselines(preset):
    path = preset / PRESET_BASELINES
    if not path.is_file():
        return None
    try:
        # What a large table teaches can be long.
        return parse_json(path.read_bytes(), str(path), strict=False)
    except (OSError, RoFormerError) as error:
        raise SourceError(
            f"{path} must be what finetune wrote: {error}",
            hint="without the file, baselines learn from the rows that they are "
            "measured on",
        ) from error


def report_on(
    task: TextTask,
    examples: Examples,
    learned: dict[str, dict] | None = None,
    *,
    verbose: bool = False,
) -> dict:
    """Report of a task on a file: its name, and the result of `evaluate_task`."""
    texts, labels = examples.texts, examples.labels
    with examples.named():
        # Labels that the task does not know are found before it works.
        task.labelled(texts, labels)
        report = evaluate_task(
            task,
            texts,
            labels,
            lines=examples.lines,
            unit=examples.unit,
            learned=learned,
            verbose=int(verbose),
        )
    report_here = {"file": examples.path, **report}
    if examples.skipped:
        report_here["skipped"] = [
            {examples.unit: line, "reason": reason} for line, reason in examples.skipped
        ]
    return report_here

"""A fine-tuning from its settings to a model that serves, in its own folder.

settings.json              its settings, and fingerprints of the files that it reads
state.safetensors          the state after the last epoch; replaced in one step
log.csv, curves.png        figures of each epoch
preset/                    the model: backbone, tokenizer, head and labels; and
                           baselines.json, the baselines' fit to the training data
report.txt, report.json    its figures on files that were not trained on
comparison.png             the model next to its baselines, on the last of these files
confusion.png              counts of true and predicted classes, on the same file
"""

import contextlib
import dataclasses
import inspect
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np

from roformer_keras.base.checks import check_instance, check_names, check_path
from roformer_keras.base.errors import ConfigurationError, Hint, SourceError
from roformer_keras.base.extras import require
from roformer_keras.io.atomic import replacing
from roformer_keras.io.json_file import json_bytes
from roformer_keras.io.training_folder import LOG, PRESET
from roformer_keras.models.lora import train_everything
from roformer_keras.models.preset_files import opened_checkpoint
from roformer_keras.models.training_loop import choose_blocks
from roformer_keras.optimizers import finetuning_rate, layerwise_rates, make_optimizer
from roformer_keras.tables.files import TextTable
from roformer_keras.tasks.evaluation import LOWER_IS_BETTER, fit_baselines
from roformer_keras.tasks.finetuned import report_on, write_baselines
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.tasks.measures import CLASS_FIGURES, class_figure
from roformer_keras.tasks.saved_task import in_saved_order
from roformer_keras.tasks.task import TextTask
from roformer_keras.training.finetuning_data import count_leaks, read_data
from roformer_keras.training.finetuning_plots import draw_curves
from roformer_keras.training.results import REPORTS, write_reports
from roformer_keras.training.resumable_run import (
    ResumableRun,
    check_loss,
    copy_variables,
)
from roformer_keras.training.state import state_variables

_CURVES = "curves.png"


def finetune(
    settings: FinetuningSettings,
    folder: str | os.PathLike,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    overwrite: bool = False,
    verbose: bool = True,
) -> TextTask:
    """Trains a task on a file, or resumes a training that was interrupted.

    Args:
        settings: `FinetuningSettings`.
        folder: path of the folder of this training. If it holds a training of equal
            settings and files, that one resumes after its last epoch, and ends with the
            weights that it would have had without the interruption.
        callbacks: more callbacks for `model.fit`.
        overwrite: bool. Whether to discard another training in the folder, once this
            one has passed its checks.
        verbose: bool. Whether progress bars are shown.

    Returns:
        The model; it is also in the folder, as `preset`.

    Raises:
        ConfigurationError: a setting breaks its rule, or the loss is not finite.
        SourceError: a file cannot be read, or has wrong content.
        OutputError: the folder holds another training, or cannot be written to; earlier
            saved files stay complete.
        BackendError: Keras runs on OpenVINO, which does not train.

    Example:
        >>> from pathlib import Path
        >>> lines = "text,label\\n好极了,好\\n太差了,差\\n不错,好\\n不好,差\\n"
        >>> size = Path("reviews.csv").write_text(lines, encoding="utf-8")
        >>> settings = roformer_keras.FinetuningSettings(
        ...     task="text-classification", train="reviews.csv", epochs=1, max_length=16
        ... )
        >>> model = roformer_keras.finetune(settings, "reviews", verbose=False)
        >>> model.classes
        ['好', '差']
    """
    check_instance("settings", settings, FinetuningSettings)
    check_path("folder", folder)
    require("a fine-tuning")
    return finetune_on(settings, folder, None, callbacks, overwrite, verbose)


def finetune_on(
    settings: FinetuningSettings,
    folder: str | os.PathLike,
    tables: Mapping[str, TextTable] | None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    overwrite: bool = False,
    verbose: bool = True,
) -> TextTask:
    """Trains a task on files that were read; other arguments as in `finetune`."""
    run = FinetuningRun(settings, folder, callbacks, verbose, tables)
    return run.execute(overwrite)


def finetune_best(
    runs: Mapping[str, FinetuningSettings],
    folder: str | os.PathLike,
    tables: Mapping[str, TextTable] | None = None,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    overwrite: bool = False,
    verbose: bool = True,
) -> Path:
    """Trains or resumes several runs, and returns the best one on held-out data."""
    folder, best = Path(folder), {}
    for name, settings in runs.items():
        if settings.valid is None and not settings.holdout:
            raise ConfigurationError(
                "the best of several runs is chosen on held-out data, got none",
                hint=Hint("give {valid} or {holdout}"),
            )
        run = FinetuningRun(settings, folder / name, callbacks, verbose, tables)
        run.execute(overwrite)
        best[name] = {**run.progress["best"], "monitor": run.monitor}
    sign = -1 if run.monitor in LOWER_IS_BETTER else 1
    # The correlation of equal numbers is undefined.
    values = {
        name: -math.inf if row["value"] is None else sign * row["value"]
        for name, row in best.items()
    }
    winner = max(runs, key=lambda name: values[name])
    with replacing(folder / "runs.json", overwrite=True) as partial:
        partial.write_bytes(json_bytes({"best": winner, "runs": best}))
    return folder / winner


class FinetuningRun(ResumableRun):
    """One fine-tuning in its folder; see `finetune`."""

    start: ClassVar = {"done": 0, "best": None}
    leftovers = (_CURVES, *REPORTS)

    def __init__(self, settings, folder, callbacks=(), verbose=True, tables=None):
        super().__init__(settings, folder, callbacks, verbose)
        self.data = read_data(settings, tables)
        self.metrics = self.data.task_class.files_class.metric_names(settings.options)
        self.monitor = settings.monitor or self.metrics[0]

    # === Model and data ===

    def build(self, is_new):
        known = ("loss", *self.metrics, *self._class_figures())
        if self.monitor not in known:
            raise ConfigurationError(
                f"monitor must be one of {', '.join(known)}, got {self.monitor!r}"
            )
        self.model = self._make_task()
        self.trained = self.twin(self._make_task)
        if self.settings.on_bad_row == "skip":
            self.data = self.data.usable_by(self.model)
        data = self.data
        self.train_rows = self._labelled(data.train, self._class_weights())
        self.valid_rows = data.valid and self._labelled(data.valid)
        if data.test is not None:
            self._labelled(data.test)
        with self.together():
            rows = self.settings.rows * (2 if self.settings.r_drop else 1)
            choose_blocks(self.trained, rows, self.train_rows.max_length)
            self._compile(self.trained)
        if self.model is not self.trained:
            # `evaluate` needs it.
            self.model.compile("sgd")
        # Frozen weights stay as in the source.
        weights = self.trained.weights
        frozen = [variable for variable in weights if not variable.trainable]
        self.variables = state_variables(self.trained, frozen)
        self.best = [
            BestWeights(variable) for variable in self.trained.trainable_variables
        ]

    def _class_figures(self):
        """Figures of classes that can be monitored, in addition to the report's."""
        settings = self.settings
        if settings.task != "text-classification" or settings.options.get(
            "multi_label"
        ):
            return ()
        return [
            name
            for name in CLASS_FIGURES
            if name != "f1" or len(self.data.names or ()) == 2
        ]

    def _make_task(self):
        """The task on its checkpoint, frozen and with LoRA by the settings."""
        settings, task_class = self.settings, self.data.task_class
        arguments = set(inspect.signature(task_class.__init__).parameters)
        arguments -= {"self", "backbone", "tokenizer", "max_length", "kwargs"}
        check_names(settings.task, "option", settings.options, sorted(arguments))
        names = {}
        if self.data.names is not None:
            names = task_class.files_class.name_options(
                self.data.names, settings.options
            )
        try:
            with opened_checkpoint(settings.source) as checkpoint:
                names = in_saved_order(task_class, checkpoint, names)
                task = task_class.from_preset(
                    checkpoint,
                    ignore=settings.ignore,
                    max_length=settings.max_length,
                    dtype=settings.dtype,
                    gradient_checkpointing=settings.gradient_checkpointing,
                    **settings.model,
                    **{**names, **settings.options},
                )
        except SourceError as error:
            raise SourceError(f"source: {error}") from error
        train_everything(task)
        if settings.freeze_embeddings or settings.freeze_layers:
            task.freeze(settings.freeze_embeddings, settings.freeze_layers)
        if settings.lora_rank:
            task.enable_lora(
                settings.lora_rank, settings.lora_alpha, settings.lora_targets
            )
        return task

    def _labelled(self, examples, class_weight=None):
        """Rows and targets of a file."""
        with examples.named():
            return self.model.labelled(
                examples.texts, examples.labels, class_weight=class_weight
            )

    def _class_weights(self):
        weights = self.settings.class_weights
        if weights != "balanced":
            return weights
        counts = Counter(self.data.train.labels)
        mean = counts.total() / len(counts)
        return {label: mean / count for label, count in counts.items()}

    def _batches(self, epoch):
        return self.train_rows.batches(
            self.settings.rows,
            copies=2 if self.settings.r_drop else 1,
            shuffle=True,
            seed=self.settings.seed,
            epoch=epoch,
        )

    def _compile(self, model):
        settings, config = self.settings, model.config
        batches = settings.epochs * len(self._batches(0))
        updates = batches // settings.accumulation
        if not updates:
            raise ConfigurationError(
                f"an update takes {settings.accumulation} parts of {settings.rows} "
                f"rows, and all epochs have {batches}: lower batch_size or accumulation"
            )
        warmup = round(settings.warmup_ratio * updates)
        schedule = [(warmup, 1.0)]
        if settings.schedule == "linear" and updates > warmup:
            schedule.append((updates, 0.0))
        rate = settings.learning_rate
        optimizer = make_optimizer(
            finetuning_rate(config.hidden_dim) if rate is None else rate,
            schedule,
            accumulation=settings.accumulation,
            rates=layerwise_rates(config.num_layers, settings.layer_decay),
            **dataclasses.asdict(settings.optimizer),
        )
        model.compile(
            optimizer,
            adversarial_epsilon=settings.adversarial_epsilon,
            r_drop=settings.r_drop,
        )
        model.optimizer.build(model.trainable_variables)

    # === Training ===

    def train(self):
        """Trains the remaining epochs; ends with the weights of the result."""
        if self.has_state:
            self.restore(self.state_of(self.progress))
        if not self.is_over():
            done = self.progress["done"]
            self.trained.fit(
                self._batches(done),
                initial_epoch=done,
                epochs=self.settings.epochs,
                callbacks=[_AfterEpoch(self), *self.callbacks],
                verbose=int(self.verbose),
            )
        variables = self.trained.trainable_variables
        if self.kept_epoch(self.progress) is None:
            self.trained.optimizer.finalize_variable_values(variables)
            return
        for best, variable in zip(self.best, variables, strict=True):
            variable.assign(best.numpy())

    def is_over(self) -> bool:
        """True if no epoch remains."""
        patience, best = self.settings.patience, self.progress["best"]
        done = self.progress["done"]
        waited = done - (best["epoch"] if best else 0)
        return done == self.settings.epochs or (
            patience is not None and waited >= patience
        )

    def kept_epoch(self, progress) -> int | None:
        """The epoch with the best weights, or None for the last epoch's weights."""
        best = progress["best"]
        return best["epoch"] if best and self.settings.keep_best else None

    def state_of(self, progress) -> dict:
        """The variables of a state, in groups."""
        best = {"best": self.best} if self.kept_epoch(progress) is not None else {}
        return {**self.variables, **best}

    @contextlib.contextmanager
    def final_weights(self):
        """Temporarily replaces the weights with their moving average, if any."""
        variables = self.trained.trainable_variables
        if not self.settings.optimizer.ema:
            yield
            return
        last_values = [np.array(variable) for variable in variables]
        self.trained.optimizer.finalize_variable_values(variables)
        for variable in variables:
            # On JAX, weight and mean now share an array, which a step donates.
            variable.assign(np.array(variable))
        try:
            yield
        finally:
            for variable, value in zip(variables, last_values, strict=True):
                variable.assign(value)

    def evaluate(self) -> dict:
        """The loss and all figures of `valid`; empty without `valid`."""
        valid = self.data.valid
        if valid is None:
            return {}
        with self.together(alone=True):
            copy_variables(self.trained, self.model)
            return self._figures_of(valid)

    def _figures_of(self, valid):
        batches = self.valid_rows.batches(self.settings.rows)
        evaluated = self.model.evaluate(batches, verbose=0, return_dict=True)
        report = self.model.files.report(valid.texts, valid.labels)
        figures = {"loss": evaluated["loss"], **{n: report[n] for n in self.metrics}}
        if self.monitor not in figures:
            figures[self.monitor] = class_figure(report, self.monitor)
        return figures

    def shared(self, figures: dict) -> dict:
        """The figures of the first process, so that all processes decide alike."""
        if self.distribution is None or not figures:
            return figures
        from jax.experimental import multihost_utils

        values = np.array(
            [np.nan if value is None else value for value in figures.values()]
        )
        values = multihost_utils.broadcast_one_to_all(values).tolist()
        return {
            name: None if math.isnan(value) else value
            for name, value in zip(figures, values, strict=True)
        }

    def compare(self, value, epoch) -> dict | None:
        """Stores the weights if this epoch is the best; returns the best epoch."""
        best = self.progress["best"]
        if value is None or not math.isfinite(value):
            return best
        sign = -1 if self.monitor in LOWER_IS_BETTER else 1
        if best is not None and sign * value <= sign * best["value"]:
            return best
        if self.settings.keep_best:
            variables = self.trained.trainable_variables
            for best_value, variable in zip(self.best, variables, strict=True):
                best_value.take(variable)
        return {"epoch": epoch, "value": value}

    # === Results ===

    def finish(self):
        if self.settings.lora_rank:
            self.model.merge_lora()

    def write_results(self):
        """The preset, the reports and the pictures."""
        self.save_preset()
        train = self.data.train
        learned = fit_baselines(self.model, train.texts, train.labels)
        write_baselines(self.folder / PRESET, learned)
        held_out = {
            name: examples
            for name in ("valid", "test")
            if (examples := getattr(self.data, name)) is not None
        }
        reports = {
            name: report_on(self.model, examples, learned, verbose=self.verbose)
            for name, examples in held_out.items()
        }
        epoch = self.kept_epoch(self.progress) or self.progress["done"]
        if reports or train.skipped:
            metadata = {
                "task": self.settings.task,
                "epochs": self.progress["done"],
                "kept epoch": epoch,
            }
            if self.settings.holdout_by:
                rows, total = len(self.data.valid.texts), len(train.texts)
                total += rows
                metadata["held out"] = (
                    f"{rows:,} of {total:,} rows; holdout asks for "
                    f"{round(self.settings.holdout * total):,}"
                )
            metadata["leaks"] = {
                name: count_leaks(train, examples)
                for name, examples in held_out.items()
            }
            if skipped := train.skipped:
                described = (
                    f"{train.unit} {line}: {reason}" for line, reason in skipped
                )
                rows = f"{len(skipped):,} row{'s' * (len(skipped) > 1)}"
                metadata["left out of train"] = f"{rows}; {'; '.join(described)}"
            write_reports(self.folder, metadata, reports)
        metrics = [metric.name for metric in self.model.default_metrics()]
        draw_curves(
            self.folder / LOG,
            self.folder / _CURVES,
            self.monitor,
            metrics[0] if metrics else None,
            epoch,
        )


class BestWeights:
    """A variable's value in the best epoch, as a variable of a state."""

    def __init__(self, variable):
        self.path, self._value = variable.path, None

    def take(self, variable):
        self._value = np.array(variable)

    def numpy(self):
        return self._value

    def assign(self, value):
        self._value = value


class _AfterEpoch(keras.callbacks.Callback):
    """Evaluates, logs, stores the best weights, saves and stops after each epoch."""

    def __init__(self, run):
        super().__init__()
        self._run = run

    def on_epoch_begin(self, epoch, logs=None):
        self._since = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        run, done, trained = self._run, epoch + 1, dict(logs)
        check_loss(logs["loss"], f"in epoch {done}")
        seconds = time.perf_counter() - self._since
        best = run.progress["best"]
        with run.final_weights():
            figures = run.shared(run.evaluate())
            if figures:
                best = run.compare(figures[run.monitor], done)
        figures = {f"val_{name}": value for name, value in figures.items()}
        # Keras's bar and history show them.
        logs.update(
            (name, value) for name, value in figures.items() if value is not None
        )
        run.log.write(
            {
                "epoch": done,
                "learning_rate": float(self.model.optimizer.learning_rate),
                "seconds": seconds,
                **trained,
                **{n: "" if value is None else value for n, value in figures.items()},
            }
        )
        progress = {"done": done, "best": best}
        run.save(run.state_of(progress), **progress)
        if run.is_over():
            self.model.stop_training = True

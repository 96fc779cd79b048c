"""A fine-tuning from its settings to a model that serves, in a folder of its own.

settings.json              what it was told, and the files that it reads
state.safetensors          where it stands; replaced in one step after each epoch
log.csv, curves.png        figures of each epoch
preset/                    the model: backbone, tokenizer, head and labels
report.txt, report.json    how good it is on the files that were not trained on
confusion.png              which class was taken for which, on the last of these
"""

import dataclasses
import inspect
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np

from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.hub.catalog import checkpoint_files
from roformer_keras.io.journal import fingerprints, run_metadata
from roformer_keras.optimizers import (
    finetuning_rate,
    layerwise_rates,
    make_optimizer,
)
from roformer_keras.tasks.task import TextTask
from roformer_keras.training.finetuning_data import Data, read_data
from roformer_keras.training.finetuning_plots import draw_curves
from roformer_keras.training.finetuning_settings import FinetuningSettings
from roformer_keras.training.folder import (
    LOG,
    PRESET,
    STATE,
    is_new_run,
    locked,
    reset_run,
)
from roformer_keras.training.log import LogFile
from roformer_keras.training.results import REPORTS, report_on, write_reports
from roformer_keras.training.state import (
    DIVERGED,
    load_metadata,
    load_variables,
    save_state,
    state_variables,
)

__all__ = ["finetune"]

_CURVES = "curves.png"
# Figures that are better where they are lower.
_LOWER = ("loss", "mean_absolute_error")
# The facts of a state, where there is none.
_BEGINNING = {"done": 0, "best": None, "log": 0}


def finetune(
    settings: FinetuningSettings,
    folder: str | os.PathLike,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    overwrite: bool = False,
    progress: bool = True,
) -> TextTask:
    """Trains a task on a file, or goes on where an earlier call was interrupted.

    Args:
        settings: `FinetuningSettings`.
        folder: path of the folder of this training. If it holds a training of equal
            settings and files, that one is gone on with from the end of its last epoch,
            to the weights that it would have had without the interruption.
        callbacks: more callbacks for `model.fit`.
        overwrite: bool. Whether a training of other settings there is thrown away,
            once the new one is found to be possible.
        progress: bool. Whether progress bars are shown.

    Returns:
        The model; it is also in the folder, as `preset`.

    Raises:
        ConfigurationError: a setting breaks its rule.
        SourceError: a file cannot be read, or is not what it should be; names the line.
        OutputError: the folder holds another training, or cannot be written to; what
            was saved before stays whole.
    """
    folder, data = Path(folder), read_data(settings)
    facts = _facts_of(settings, data)
    with locked(folder):
        is_new = is_new_run(folder, facts, overwrite)
        run = _Run(settings, data, folder)
        if is_new:
            # Whatever can be wrong with the settings, before anything is thrown away.
            reset_run(folder, facts, (_CURVES, *REPORTS))
        run.train(callbacks, progress)
        run.write_results(progress)
        return run.task


def _facts_of(settings, data):
    """What distinguishes one training from another, and the names of the labels."""
    files = {
        name: [path]
        for name in ("train", "valid", "test")
        if (path := getattr(settings, name)) is not None
    }
    files["preset"] = checkpoint_files(settings.preset)
    inputs = {name: fingerprints(paths) for name, paths in files.items()}
    metadata = run_metadata(settings.to_dict(), inputs)
    return {**metadata, "labels": data.names}


class _Run:
    """One training in its folder; see `finetune`."""

    def __init__(self, settings, data: Data, folder):
        self.settings, self.data, self.folder = settings, data, folder
        self.figures = data.task_class.figures(settings.options)
        self.monitor = settings.monitor or self.figures[0]
        if self.monitor not in ("loss", *self.figures):
            raise ConfigurationError(
                f"monitor must be one of loss, {', '.join(self.figures)}, got "
                f"{self.monitor!r}"
            )
        # A fresh head and dropout go by Keras's own generators.
        keras.utils.set_random_seed(settings.seed)
        self.task = _make_task(settings, data)
        self.train_rows = self._labelled(data.train, self._class_weights())
        self.valid_rows = data.valid and self._labelled(data.valid)
        if data.test is not None:
            self._labelled(data.test)
        self._compile()
        # What is not trained is in the source.
        frozen = [variable for variable in self.task.weights if not variable.trainable]
        self.variables = state_variables(self.task, frozen)
        self.best = [
            BestWeights(variable) for variable in self.task.trainable_variables
        ]

    # === What is trained ===

    def _labelled(self, examples, class_weight=None):
        """Rows and targets of a file."""
        with examples.named():
            return self.task.labelled(
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
            # Under R-Drop each row comes twice, side by side.
            copies=2 if self.settings.r_drop else 1,
            shuffle=True,
            seed=self.settings.seed,
            epoch=epoch,
        )

    def _compile(self):
        settings = self.settings
        batches = settings.epochs * len(self._batches(0))
        updates = batches // settings.accumulation
        if not updates:
            raise ConfigurationError(
                f"an update takes {settings.accumulation} parts of {settings.rows} "
                f"rows, and all epochs have {batches}: lower batch_size or accumulation"
            )
        warmup = round(settings.warmup * updates)
        schedule = [(warmup, 1.0)]
        if settings.schedule == "linear" and updates > warmup:
            schedule.append((updates, 0.0))
        rate = settings.learning_rate
        if rate is None:
            rate = finetuning_rate(self.task.config.hidden_dim)
        optimizer = make_optimizer(
            rate,
            schedule,
            accumulation=settings.accumulation,
            rates=layerwise_rates(self.task.config.num_layers, settings.layer_decay),
            **dataclasses.asdict(settings.optimizer),
        )
        self.task.compile(
            optimizer,
            adversarial_epsilon=settings.adversarial_epsilon,
            r_drop=settings.r_drop,
        )
        self.task.optimizer.build(self.task.trainable_variables)

    # === Training ===

    def train(self, callbacks, progress):
        """All epochs that are left; the weights are those to keep then."""
        path, facts = self.folder / STATE, _BEGINNING
        if path.exists():
            facts = load_metadata(path)
            load_variables(path, self.state_of(facts))
        after = _AfterEpoch(self, facts)
        if not after.is_over():
            self.task.fit(
                self._batches(facts["done"]),
                initial_epoch=facts["done"],
                epochs=self.settings.epochs,
                callbacks=[after, *callbacks],
                verbose=int(progress),
            )
        self.facts = after.facts
        if self.kept_epoch(self.facts) is not None:
            for kept, variable in zip(
                self.best, self.task.trainable_variables, strict=True
            ):
                variable.assign(kept.numpy())
        else:
            self.task.optimizer.finalize_variable_values(self.task.trainable_variables)

    def kept_epoch(self, facts) -> int | None:
        """The epoch whose weights are kept apart; None if the last ones will do."""
        best = facts["best"]
        return best["epoch"] if best and self.settings.keep_best else None

    def state_of(self, facts) -> dict:
        """The variables of a state, in groups."""
        best = {"best": self.best} if self.kept_epoch(facts) is not None else {}
        return {**self.variables, **best}

    @contextmanager
    def final_weights(self):
        """The weights as they would be kept: means, if the optimizer has them."""
        variables = self.task.trainable_variables
        if not self.settings.optimizer.ema:
            yield
            return
        kept = [np.array(variable) for variable in variables]
        self.task.optimizer.finalize_variable_values(variables)
        for variable in variables:
            # On JAX weight and mean are one array now, which a step gives away.
            variable.assign(np.array(variable))
        try:
            yield
        finally:
            for variable, value in zip(variables, kept, strict=True):
                variable.assign(value)

    def evaluate(self) -> dict:
        """The loss and all figures of `valid`; empty without one."""
        if self.data.valid is None:
            return {}
        found = self.task.evaluate(
            self.valid_rows.batches(self.settings.rows), verbose=0, return_dict=True
        )
        report = self.task.report(self.data.valid.texts, self.data.valid.labels)
        figures = {name: report[name] for name in self.figures}
        return {"loss": found["loss"], **figures}

    # === Results ===

    def write_results(self, progress):
        """The preset, the reports and the pictures."""
        if self.settings.lora_rank:
            self.task.merge_lora()
        self.task.save_to_preset(self.folder / PRESET, overwrite=True)
        reports = {
            name: report_on(self.task, examples, progress=progress)
            for name, examples in (
                ("valid", self.data.valid),
                ("test", self.data.test),
            )
            if examples is not None
        }
        kept = self.kept_epoch(self.facts) or self.facts["done"]
        if reports:
            facts = {
                "task": self.settings.task,
                "epochs": self.facts["done"],
                "kept epoch": kept,
            }
            write_reports(self.folder, facts, reports)
        metrics = [metric.name for metric in self.task.default_metrics()]
        draw_curves(
            self.folder / LOG,
            self.folder / _CURVES,
            self.monitor,
            metrics[0] if metrics else None,
            kept,
        )


class BestWeights:
    """What a variable was once, for a state."""

    def __init__(self, variable):
        self.path, self._value = variable.path, None

    def take(self, variable):
        self._value = np.array(variable)

    def numpy(self):
        return self._value

    def assign(self, value):
        self._value = value


class _AfterEpoch(keras.callbacks.Callback):
    """Evaluates, logs, remembers the best weights, saves, and stops.

    Args:
        run: `_Run`.
        facts: of the state that is gone on with.
    """

    def __init__(self, run, facts):
        super().__init__()
        self._run, self.facts = run, dict(facts)
        self._log = LogFile(run.folder / LOG, facts["log"])

    def is_over(self) -> bool:
        """Whether no epoch is left."""
        settings, best = self._run.settings, self.facts["best"]
        waited = self.facts["done"] - (best["epoch"] if best else 0)
        return self.facts["done"] == settings.epochs or (
            settings.patience is not None and waited >= settings.patience
        )

    def on_epoch_begin(self, epoch, logs=None):
        self._since = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        if not math.isfinite(logs["loss"]):
            raise ConfigurationError(
                f"the loss must be finite, in epoch {epoch + 1} it became "
                f"{logs['loss']}: {DIVERGED}"
            )
        seconds = time.perf_counter() - self._since
        run, trained = self._run, dict(logs)
        self.facts["done"] = epoch + 1
        with run.final_weights():
            found = run.evaluate()
            if found:
                self._compare(found[run.monitor])
        found = {f"val_{name}": value for name, value in found.items()}
        # Keras's bar shows them, and its history has them.
        logs.update((name, value) for name, value in found.items() if value is not None)
        self._log.write(
            {
                "epoch": epoch + 1,
                "learning_rate": float(self.model.optimizer.learning_rate),
                "seconds": seconds,
                **trained,
                **{n: "" if value is None else value for n, value in found.items()},
            }
        )
        self.facts["log"] = self._log.size
        save_state(run.folder / STATE, run.state_of(self.facts), self.facts)
        if self.is_over():
            self.model.stop_training = True

    def _compare(self, value):
        """Keeps the weights if none were better."""
        best = self.facts["best"]
        if value is None or not math.isfinite(value):
            return
        sign = -1 if self._run.monitor in _LOWER else 1
        if best is None or sign * value > sign * best["value"]:
            self.facts["best"] = {"epoch": self.facts["done"], "value": value}
            if not self._run.settings.keep_best:
                return
            variables = self._run.task.trainable_variables
            for kept, variable in zip(self._run.best, variables, strict=True):
                kept.take(variable)


def _make_task(settings, data):
    """The task on its checkpoint, frozen and with LoRA as the settings say."""
    own = set(inspect.signature(data.task_class.__init__).parameters)
    own -= {"self", "backbone", "tokenizer", "max_length", "kwargs"}
    unknown = sorted(set(settings.options) - own)
    if unknown:
        raise ConfigurationError(
            f"{settings.task} has no {', '.join(unknown)}; options of it are "
            f"{', '.join(sorted(own))}"
        )
    try:
        task = data.task_class.from_preset(
            settings.preset,
            max_length=settings.max_length,
            dtype=settings.dtype,
            gradient_checkpointing=settings.gradient_checkpointing,
            **settings.model,
            **{
                **data.task_class.name_options(data.names, settings.options),
                **settings.options,
            },
        )
    except SourceError as error:
        raise SourceError(f"preset: {error}") from error
    if settings.freeze_embeddings or settings.freeze_layers:
        task.freeze(settings.freeze_embeddings, settings.freeze_layers)
    if settings.lora_rank:
        task.enable_lora(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    return task

"""The callback of a pre-training: it counts, logs, saves and stops."""

import time
from collections.abc import Callable, Mapping

import keras
from tqdm import tqdm

from roformer_keras.training.log import EventLog, LogFile
from roformer_keras.training.resumable_run import check_loss


class Recorder(keras.callbacks.Callback):
    """Counts the updates of one stage, logs them, saves, and ends the stage.

    An interval of the log is an epoch of Keras.
    """

    def __init__(
        self,
        *,
        stage: int,
        before: int,
        done: int,
        steps: int,
        save_every: int,
        parts: int,
        loader,
        log: LogFile,
        events: EventLog,
        evaluates: bool,
        bar: tqdm,
        save: Callable,
    ):
        super().__init__()
        self._stage, self._before, self._done, self._steps = stage, before, done, steps
        self._save_every, self._parts = save_every, parts
        self._loader, self._evaluates = loader, evaluates
        self._log, self._events = log, events
        self._bar, self._save = bar, save
        self._batches = done * parts
        self.tokens = loader.tokens_before(self._batches)

    def on_epoch_begin(self, epoch, logs=None):
        self._since, self._until = self._clocks(), None

    def on_test_begin(self, logs=None):
        # Evaluation time does not count as training. Keras has read the metrics, so an
        # accelerator has finished its work.
        self._until = self._clocks()

    def on_train_batch_end(self, batch, logs=None):
        self._batches += 1
        if self._batches % self._parts == 0:
            self._done += 1
            self._bar.update(1)
        if self._done == self._steps:
            # The last interval may be shorter.
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        check_loss(logs["loss"], f"before update {self._before + self._done}")
        tokens = self._loader.tokens_before(self._batches)
        seconds, waited = (
            end - start
            for start, end in zip(
                self._since, self._until or self._clocks(), strict=True
            )
        )
        seconds = max(seconds, 1e-9)
        new = tokens - self.tokens
        self.tokens = tokens
        scalars = {
            name: value for name, value in logs.items() if not name.startswith("val_")
        }
        figures = {
            "stage": self._stage + 1,
            "update": self._before + self._done,
            "tokens": self.tokens,
            "learning_rate": float(self.model.optimizer.learning_rate),
            "tokens_per_second": new / seconds,
            # At most so many: a backend may request batches ahead of time.
            "waiting": min(1.0, waited / seconds),
            **scalars,
        }
        if self._evaluates:
            names = [f"val_{name}" for name in scalars]
            figures |= {name: logs.get(name, "") for name in names}
        self._write(figures)
        shown = {name: f"{value:.4g}" for name, value in scalars.items()}
        self._bar.set_postfix({**shown, "tokens/s": f"{new / seconds:,.0f}"})
        if self._done % self._save_every == 0 and self._done < self._steps:
            self._save(stage=self._stage, done=self._done, tokens=tokens)

    def log_evaluation(self, figures: Mapping) -> None:
        """Adds the figures of held-out data at the end of the stage."""
        self._write(
            {
                "stage": self._stage + 1,
                "update": self._before + self._done,
                "tokens": self.tokens,
                **{f"val_{name}": value for name, value in figures.items()},
            }
        )

    def _clocks(self):
        """Elapsed seconds, and how many of them were spent waiting."""
        return time.perf_counter(), self._loader.waited

    def _write(self, figures):
        self._log.write(figures)
        self._events.write(figures)

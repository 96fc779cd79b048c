"""The mean of the weights that a training had at its last few checkpoints."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from roformer_keras.conversion.outputs import one_line
from roformer_keras.errors import CheckpointError, ConfigurationError, OutputError
from roformer_keras.training.settings import check_integer
from roformer_keras.training.state import assign, save_state

__all__ = ["AverageCheckpoints", "LastCheckpoints"]


class LastCheckpoints:
    """Weights in files of a folder, one for each of the last few times.

    Args:
        folder: path. Made when it is first written to.
        most: int, at least 1. Files that are kept, the latest.

    Source: of their mean, Vaswani et al. 2017, arXiv:1706.03762, section 6.1.
    """

    def __init__(self, folder: Path, most: int):
        self.folder, self.most = folder, most

    def add(self, update: int, variables: Sequence) -> None:
        """Keeps what variables are after so many updates.

        Raises:
            ConfigurationError: a number is not finite.
            OutputError: they cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"could not write {self.folder} ({one_line(error)})"
            ) from error
        save_state(self._path(update), {"model": variables}, {"update": update})
        for earlier in self.updates()[: -self.most]:
            self._path(earlier).unlink()

    def updates(self) -> list[int]:
        """After how many updates they are that are there, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors"))

    def drop_after(self, update: int) -> None:
        """Throws away what is of later updates, which a training comes to again."""
        for later in self.updates():
            if later > update:
                self._path(later).unlink()

    def assign_mean(self, variables: Sequence, least: int = 1) -> None:
        """Gives variables the mean of what they were, summed in float64.

        Args:
            variables: those of `add`.
            least: int, at least 1. How many files there should be, or more.

        Raises:
            CheckpointError: a file is missing, damaged, or of other variables.
        """
        updates = self.updates()
        if len(updates) < least:
            raise CheckpointError(
                f"{self.folder} must hold the {least} files of weights of which the "
                f"mean is taken, got {len(updates)}: put the others back, or begin "
                "again in another folder"
            )
        sums = [np.zeros(variable.shape) for variable in variables]
        for update in updates:
            # Looks whether the file is whole, and of these variables.
            assign(self._path(update), {"model": variables})
            for total, variable in zip(sums, variables, strict=True):
                total += keras.ops.convert_to_numpy(variable)
        for variable, total in zip(variables, sums, strict=True):
            variable.assign((total / len(updates)).astype("float32"))

    def _path(self, update):
        return self.folder / f"{update}.safetensors"


class AverageCheckpoints(keras.callbacks.Callback):
    """Gives a model at the end of `fit` the mean of its weights at the last few times.

    Trainable weights alone are saved, and averaged. What Keras says of held-out data
    meanwhile is of the weights as they are then.

    Args:
        most: int, at least 1. Times of which the mean is taken, the last ones.
        every: int, at least 1, or None. Updates of the optimizer from one time to the
            next, counted as the optimizer counts; what comes behind the last such
            time is left out. None: each time is the end of an epoch.
        folder: path. One that a training has for itself, which keeps the weights, so
            that a training that was interrupted, and is gone on with from a state of
            model and optimizer, ends in the same mean: as `keras.callbacks.
            BackupAndRestore` does it, or a `.keras` file. If not given a temporary one
            that goes when the training ends.

    Raises:
        ConfigurationError: an argument breaks its rule; from `fit`: the folder holds
            weights of another training, a weight is no finite number any more, or the
            training ended before the first of the times.
        OutputError: from `fit`: weights cannot be written.

    Example:
    ```python
    model.fit(sources, targets, epochs=20, callbacks=[AverageCheckpoints(most=5)])
    ```

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 6.1.
    """

    def __init__(
        self,
        most: int = 5,
        every: int | None = None,
        folder: str | os.PathLike | None = None,
    ):
        super().__init__()
        check_integer("most", most, 1)
        if every is not None:
            check_integer("every", every, 1)
        self.most, self.every = most, every
        self.folder = None if folder is None else Path(folder)
        self._checkpoints = None

    def on_train_begin(self, logs=None):
        # One that was interrupted may have left its own.
        self._checkpoints = None

    def on_epoch_begin(self, epoch, logs=None):
        optimizer = self.model.optimizer
        # Under mixed_float16 it stands within one that scales the loss.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._parts = optimizer.gradient_accumulation_steps or 1
        self._begin = self._last = int(optimizer.iterations)
        if self._checkpoints is None:
            # Not before: the callback that restores a state may stand behind this one.
            self._checkpoints = self._opened()

    def on_train_batch_end(self, batch, logs=None):
        # Counted here, for on JAX asking the optimizer interrupts the training.
        update = self._begin + (batch + 1) // self._parts
        if self.every and update // self.every > self._last // self.every:
            self._checkpoints.add(update, self.model.trainable_variables)
        self._last = update

    def on_epoch_end(self, epoch, logs=None):
        if self.every is None:
            self._checkpoints.add(self._last, self.model.trainable_variables)

    def on_train_end(self, logs=None):
        if self._checkpoints is None or not self._checkpoints.updates():
            times = "epoch" if self.every is None else f"of every={self.every} updates"
            raise ConfigurationError(
                f"the mean is of weights at the end of an {times}, and the training "
                "ended before the first"
            )
        self._checkpoints.assign_mean(self.model.trainable_variables)
        self._close()

    def _opened(self):
        """Where the weights go, with those of this training that are there."""
        folder, self._close = self.folder, lambda: None
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="roformer-keras-"))
            # Also if the training fails.
            self._close = weakref.finalize(
                self, shutil.rmtree, folder, ignore_errors=True
            )
        checkpoints = LastCheckpoints(folder, self.most)
        if checkpoints.updates() and not self._begin:
            raise ConfigurationError(
                f"{folder} must hold no weights where a training begins, and holds "
                "those of another: choose another folder, or go on with the state of "
                "that training"
            )
        checkpoints.drop_after(self._begin)
        return checkpoints

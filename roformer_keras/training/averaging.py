"""The mean of the weights at a training's last checkpoints.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 6.1.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import CheckpointError, ConfigurationError, refuse
from roformer_keras.io.atomic import make_folder
from roformer_keras.training.state import load_variables, save_state


class LastCheckpoints:
    """The weights of the last few checkpoints, one file each in a folder."""

    def __init__(self, folder: Path, max_count: int):
        self.folder, self.max_count = folder, max_count

    def add(self, update: int, variables: Sequence) -> None:
        """Saves the present values of variables as the checkpoint of an update."""
        make_folder(self.folder)
        save_state(self._path(update), {"model": variables}, {"update": update})
        for earlier in self.updates()[: -self.max_count]:
            self._path(earlier).unlink()

    def updates(self) -> list[int]:
        """The updates of the saved checkpoints, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.safetensors"))

    def drop_after(self, update: int) -> None:
        """Deletes the checkpoints after an update from which a training resumes."""
        for later in self.updates():
            if later > update:
                self._path(later).unlink()

    def assign_mean(self, variables: Sequence, min_count: int = 1) -> None:
        """Assigns the mean of saved values to variables, summed in float64."""
        updates = self.updates()
        if len(updates) < min_count:
            raise CheckpointError(
                f"{self.folder} must hold at least {min_count} checkpoints to average, "
                f"got {len(updates)}: restore the missing ones, or start again in "
                "another folder"
            )
        sums = [np.zeros(variable.shape) for variable in variables]
        for update in updates:
            load_variables(self._path(update), {"model": variables})
            for total, variable in zip(sums, variables, strict=True):
                total += keras.ops.convert_to_numpy(variable)
        for variable, total in zip(variables, sums, strict=True):
            variable.assign((total / len(updates)).astype("float32"))

    def _path(self, update):
        return self.folder / f"{update}.safetensors"


class AverageCheckpoints(keras.callbacks.Callback):
    """Gives a model the mean of its weights at the last few checkpoints of `fit`.

    Only trainable weights are saved and averaged. During the training, Keras evaluates
    the current weights, not their mean.

    Args:
        max_count: int, at least 1. Number of checkpoints to average, the last ones.
        every: int, at least 1, or None. Updates of the optimizer between checkpoints;
            updates after the last multiple do not count. None: the end of each epoch is
            a checkpoint.
        folder: path or None. A folder for the checkpoints of this training alone. It
            lets an interrupted training, resumed by `keras.callbacks.BackupAndRestore`
            or from a `.keras` file, end in the same mean. None: a temporary folder,
            deleted at the end.

    Raises:
        ConfigurationError: an argument breaks its rule; from `fit`: the folder holds
            checkpoints of another training, a weight is not finite, or the training
            ended before the first checkpoint.
        OutputError: from `fit`: a checkpoint cannot be written.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> mean = callbacks.AverageCheckpoints(max_count=2)
        >>> history = model.fit(
        ...     np.ones((8, 2)), np.ones((8, 1)), epochs=3, callbacks=[mean], verbose=0
        ... )

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 6.1.
    """

    def __init__(
        self,
        max_count: int = 5,
        every: int | None = None,
        folder: str | os.PathLike | None = None,
    ):
        super().__init__()
        check_integer("max_count", max_count, minimum=1)
        if every is not None:
            check_integer("every", every, minimum=1)
        self.max_count, self.every = max_count, every
        self.folder = None if folder is None else Path(folder)
        self._checkpoints: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        # An interrupted training may have left a folder.
        self._checkpoints = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        # Under mixed_float16, an optimizer that scales the loss wraps it.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._parts = optimizer.gradient_accumulation_steps or 1
        self._first = self._last = int(optimizer.iterations)
        if self._checkpoints is None:
            # The first batch is early enough: a later callback may restore the state
            # before.
            self._checkpoints = self._open_checkpoints()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # The callback counts itself, because asking the optimizer interrupts JAX.
        update = self._first + (batch + 1) // self._parts
        if self.every and update // self.every > self._last // self.every:
            self._checkpoints.add(update, self.model.trainable_variables)
        self._last = update

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.every is None:
            self._checkpoints.add(self._last, self.model.trainable_variables)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._checkpoints is None or not self._checkpoints.updates():
            first = f"update {self.every}" if self.every else "the end of an epoch"
            raise ConfigurationError(
                f"there must be a checkpoint to average, the first at {first}: "
                "the training ended before it"
            )
        self._checkpoints.assign_mean(self.model.trainable_variables)
        self._delete()

    def _open_checkpoints(self):
        """The checkpoints of this training, including those from before a resume."""
        folder, self._delete = self.folder, lambda: None
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="roformer-keras-"))
            # The finalizer deletes the folder even if the training fails.
            self._delete = weakref.finalize(
                self, shutil.rmtree, folder, ignore_errors=True
            )
        checkpoints = LastCheckpoints(folder, self.max_count)
        refuse(
            checkpoints.updates() and not self._first,
            f"{folder} must hold no checkpoints when a training starts, but holds "
            "checkpoints of another training: choose another folder, or resume that "
            "training from its state",
        )
        checkpoints.drop_after(self._first)
        return checkpoints

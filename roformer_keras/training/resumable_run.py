"""The life of a training in its folder: lock, seed, build, restore, fit, save, preset.

A kind of training is a subclass, which defines the model and its training:

    class Training(ResumableRun):
        start: ClassVar = {"epochs": 0}
        leftovers = ("curves.png",)

        def build(self, is_new):
            self.model = self.trained = ...  # compiled

        def train(self):
            if self.has_state:
                self.restore(state_variables(self.trained))
            self.trained.fit(..., initial_epoch=self.progress["epochs"])
            # A callback calls check_loss, self.log.write and self.save.

        def write_results(self):
            self.save_preset()

    model = Training(settings, folder).execute()

`execute` may be interrupted at any moment; the next one with equal settings and files
resumes the last saved state. `io.training_folder` lists the files.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.io.training_folder import (
    LOG,
    PRESET,
    STATE,
    is_new_run,
    locked,
    reset_run,
)
from roformer_keras.training.log import LogFile
from roformer_keras.training.state import (
    DIVERGED,
    load_metadata,
    load_variables,
    save_state,
)


class ResumableRun:
    """A training in a folder."""

    start: ClassVar[Mapping] = {}
    leftovers: Sequence[str] = ()

    def __init__(self, settings, folder, callbacks=(), verbose: bool = True):
        self.settings, self.folder = settings, Path(folder)
        self.callbacks = list(callbacks)
        # `build` makes the first two, and `execute` the third.
        self.model: Any = None
        self.trained: Any = None
        self.log: Any = None
        self.distribution: keras.distribution.Distribution | None = None
        self.verbose = verbose
        self.progress, self.has_state = dict(self.start), False

    def execute(self, overwrite: bool = False):
        """Trains the remaining steps, writes the results and returns the model."""
        with locked(self.folder):
            metadata = self.settings.describe()
            is_new = is_new_run(self.folder, metadata, overwrite, self.settings.free)
            self.prepare(is_new)
            if is_new:
                reset_run(self.folder, metadata, self.leftovers)
            self.log = LogFile(self.folder / LOG, self.progress.get("log", 0))
            with self.together():
                self.train()
            copy_variables(self.trained, self.model)
            self.finish()
            self.write_results()
            return self.model

    def prepare(self, is_new: bool = True) -> None:
        """Reads the progress, sets the seed and builds; writes nothing."""
        state = self.folder / STATE
        if not is_new and state.exists():
            self.progress, self.has_state = load_metadata(state), True
        # Keras's own generators draw initial weights and dropout.
        keras.utils.set_random_seed(self.settings.seed)
        self.build(is_new)

    # === Methods of subclasses ===

    def build(self, is_new: bool) -> None:
        """Makes `model` and `trained`, and checks them against the data.

        It runs before anything in the folder is deleted, and raises every error.
        """
        raise NotImplementedError

    def train(self) -> None:
        """Trains the remaining updates, with `restore`, `save` and `log`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Makes the result from the trained model; writes nothing."""

    def write_results(self) -> None:
        """Writes the preset and the files that depend on it."""
        self.save_preset()

    # === Several processes ===

    @contextlib.contextmanager
    def together(self, alone: bool = False) -> Iterator[None]:
        """Makes and runs models on the devices of all processes."""
        if self.distribution is None:
            yield
            return
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(None if alone else self.distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)

    def twin(self, make: Callable[[], Any]) -> Any:
        """The model to train: `model`, or a copy on the devices of all processes."""
        if self.distribution is None:
            return self.model
        with self.together():
            other = make()
            copy_variables(self.model, other)
        return other

    # === Methods for subclasses ===

    def restore(self, variables: Mapping[str, Sequence]) -> None:
        """Assigns the saved state to variables, in groups."""
        load_variables(self.folder / STATE, variables)

    def save(self, variables: Mapping[str, Sequence], **progress) -> None:
        """Replaces the saved state."""
        progress = {**progress, "log": self.log.size}
        save_state(self.folder / STATE, variables, progress)
        self.progress, self.has_state = progress, True

    def save_preset(self) -> None:
        """Writes the model to the folder."""
        self.model.save_to_preset(self.folder / PRESET, overwrite=True)


def check_loss(loss: float, when: str) -> None:
    """Raises ConfigurationError unless a loss is finite."""
    if not math.isfinite(loss):
        raise ConfigurationError(
            f"the loss must be finite, {when} it became {loss}: {DIVERGED}"
        )


def copy_variables(source: keras.Model, target: keras.Model) -> None:
    """Copies the values of all variables to another model of the same kind.

    Nothing happens if source and target are the same model.
    """
    if source is target:
        return
    for variable, other in zip(source.variables, target.variables, strict=True):
        other.assign(variable.numpy())

"""The mean of the weights that a training had at its last few checkpoints."""

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from roformer_keras.errors import CheckpointError
from roformer_keras.training.state import assign, save_state

__all__ = ["LastCheckpoints"]


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
        self.folder.mkdir(exist_ok=True)
        save_state(self._path(update), {"model": variables}, {"update": update})
        for earlier in self.updates()[: -self.most]:
            self._path(earlier).unlink()

    def updates(self) -> list[int]:
        """After how many updates they are that are there, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors"))

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

"""Keras datasets: batches of rows of similar length, or computed from an index."""

from collections.abc import Callable

import keras
import numpy as np

from roformer_keras.base.checks import check_integer
from roformer_keras.data.loader import sorted_batches


class TextBatches(keras.utils.PyDataset):
    """Batches of rows of similar length, which Keras makes during the training."""

    def __init__(
        self,
        lengths: np.ndarray,
        make_batch: Callable,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
    ):
        super().__init__(workers=1)
        check_integer("seed", seed, minimum=0)
        self._make_batch = make_batch
        self._lengths = lengths
        self._batch_size, self._shuffle = batch_size, shuffle
        self._seed, self._epoch = seed, epoch
        self._batches = self._arrange()

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, number):
        return self._make_batch(self._batches[number])

    @property
    def order(self) -> np.ndarray:
        """Row numbers in the order of this epoch."""
        return np.concatenate(self._batches)

    def on_epoch_end(self):
        self.start_epoch(self._epoch + 1)

    def start_epoch(self, epoch: int) -> None:
        """Puts the rows in the order of an epoch, counted from 0."""
        if self._shuffle and epoch != self._epoch:
            self._epoch = epoch
            self._batches = self._arrange()

    def _arrange(self):
        size = self._batch_size
        if not self._shuffle:
            rows = np.argsort(self._lengths, kind="stable")
            return [rows[start : start + size] for start in range(0, len(rows), size)]
        random = np.random.default_rng([self._seed, self._epoch])
        return sorted_batches(self._lengths, size, random)


class NumberedBatches(keras.utils.PyDataset):
    """`count` batches an epoch, which `make` computes from their index.

    `epoch` is the first epoch; if `advances`, each epoch has other batches.
    """

    def __init__(
        self, make: Callable, count: int, epoch: int = 0, advances: bool = False
    ):
        super().__init__(workers=1)
        self._make, self._count = make, count
        self._epoch, self._advances = epoch, advances

    def __len__(self):
        return self._count

    def __getitem__(self, number):
        first = self._epoch * self._count if self._advances else 0
        return self._make(first + number)

    def on_epoch_end(self):
        self._epoch += 1

    def start_epoch(self, epoch: int) -> None:
        """Moves to the batches of an epoch, counted from 0."""
        self._epoch = epoch


class MappedDataset(keras.utils.PyDataset):
    """A dataset with a function of each batch."""

    def __init__(self, dataset, function):
        super().__init__()
        self._dataset, self._function = dataset, function

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, number):
        return self._function(self._dataset[number])

    def on_epoch_end(self):
        self._dataset.on_epoch_end()

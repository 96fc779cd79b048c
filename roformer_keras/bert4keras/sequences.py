"""Batches of a `keras.utils.Sequence` or a generator, in the order of Keras 2."""

from collections.abc import Iterator
from typing import Any

import keras

from roformer_keras.base.types import Unchecked
from roformer_keras.data.generators import as_arrays, as_batches


class SequenceBatches(keras.utils.PyDataset):
    """The batches of a script's `Sequence`, whose inputs may be a list.

    Before the first epoch, Keras 3 reads batches and ends an epoch. Keras 2 reads the
    first batch, and ends none.
    """

    def __init__(self, sequence: keras.utils.PyDataset):
        super().__init__()
        self._sequence = sequence
        self._read_before: dict[int, tuple] = {}
        self._has_begun = False

    def __len__(self) -> int:
        return len(self._sequence)

    def __getitem__(self, index: int) -> tuple:
        if index in self._read_before:
            return self._read_before.pop(index)
        batch = as_arrays(self._sequence[index])
        if index and not self._has_begun:
            self._read_before[index] = batch
        return batch

    def on_epoch_begin(self) -> None:
        self._has_begun = True

    def end_epoch(self) -> None:
        self._sequence.on_epoch_end()


def take_batches(options: dict[str, Any], read_ahead: int) -> None:
    """Puts what Keras 3 reads in the place of `x` and `validation_data`.

    Args:
        options: arguments of `fit`, `evaluate` or `predict`, which are changed.
        read_ahead: as in `as_batches`.
    """
    weights = options.get("class_weight")
    if weights and isinstance(options["x"], Iterator):
        del options["class_weight"]
        options["x"] = (_weighted(as_arrays(x), weights) for x in options["x"])
    for name in {"x", "validation_data"} & options.keys():
        data = options[name]
        if isinstance(data, keras.utils.PyDataset):
            options[name] = SequenceBatches(data)
        elif data is not None:
            options[name] = as_batches(data, read_ahead)


def _weighted(batch: tuple, class_weight: dict[int, float]) -> tuple:
    inputs, targets = batch
    classes = targets.argmax(-1) if targets.shape[1:] not in ((), (1,)) else targets
    weights = [class_weight.get(int(x), 1.0) for x in classes.reshape(-1)]
    return inputs, targets, keras.ops.convert_to_numpy(weights)


def end_epoch(data: Unchecked) -> None:
    """Ends an epoch of a `Sequence`."""
    if isinstance(data, SequenceBatches):
        data.end_epoch()


def with_ends(options: dict[str, Any]) -> Unchecked:
    """The callbacks of `fit`, and one that ends the epochs of a `Sequence`."""
    callbacks = options.get("callbacks")
    data = [options.get(name) for name in ("validation_data", "x")]
    if not any(isinstance(x, SequenceBatches) for x in data):
        return callbacks

    def end(epoch: int, logs: dict | None) -> None:
        for sequence in data:
            end_epoch(sequence)

    last = keras.callbacks.LambdaCallback(on_epoch_end=end)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.append(last)
        return callbacks
    return [*keras.tree.flatten(callbacks or []), last]

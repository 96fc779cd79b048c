"""Batches of generators, for Keras's loops.

Keras makes a signature from the first two batches of a generator or a `PyDataset`, and
on TensorFlow fails at the first batch of another width.
"""

import contextlib
import itertools
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks

# None if Keras has renamed it: data then goes to it unchanged, and waits.
_KERAS = quirks.data_adapters()
DataAdapter: Any = object if _KERAS is None else _KERAS.data_adapter.DataAdapter


def as_batches(x: Any, read_ahead: int = 0) -> Any:
    """Data that Keras takes even if widths differ."""
    return _Batches(x, read_ahead) if isinstance(x, Iterator) else x


# Interval at which a thread checks that its items are still wanted, in seconds.
_PATIENCE = 0.1


def as_inputs(x: Any) -> Any:
    """Makes arrays from lists of numbers, such as `[[token_ids], [segment_ids]]`.

    Anything else is returned unchanged: Keras 3 takes single numbers for inputs of a
    model.
    """
    is_nested = isinstance(x, list | tuple) and all(
        isinstance(item, list) for item in x
    )
    if is_nested and all(np.isscalar(item) for item in keras.tree.flatten(x)):
        return tuple(_array(item) for item in x)
    return x


class _ReadAhead:
    """An iterator that a thread reads before its items are needed.

    The thread ends with the iterator, with an error, which is raised instead of the
    next item, or when nothing refers to the iterator any more.
    """

    def __init__(self, items, size):
        self._queue: queue.Queue = queue.Queue(size)
        self._is_over = False
        try:
            find = weakref.ref(items)
        except TypeError:
            # The iterator of a list takes no weak reference, and ends by itself.
            def find():
                return items

        threading.Thread(target=_read, args=(find, self._queue), daemon=True).start()

    def __iter__(self):
        return self

    def __next__(self):
        if self._is_over:
            raise StopIteration
        item, error = self._queue.get()
        if error is None:
            return item
        self._is_over = True
        if isinstance(error, StopIteration):
            raise StopIteration
        raise error


def _read(find, item_queue):
    """Puts items into a queue as pairs with None, and an error last."""
    error = None
    while error is None:
        items = find()
        if items is None:
            return
        try:
            pair = next(items), None
        except BaseException as caught:  # Raised by the reader.
            error = caught
            pair = None, error
        # Waiting must not keep the iterator alive.
        del items
        while find() is not None:
            try:
                item_queue.put(pair, timeout=_PATIENCE)
                break
            except queue.Full:
                continue


# One call of `fit` leaves the items that it read ahead to the next call.
_readers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _reader(items, size):
    """An iterator of the items, which continues where an earlier reader stopped."""
    # The iterator of a list takes no weak references, so it cannot be a key.
    if items in _readers:
        return _readers[items]
    if not size:
        return items
    reader = _ReadAhead(items, size)
    with contextlib.suppress(TypeError):
        _readers[items] = reader
    return reader


class _Batches(DataAdapter):
    """Keras's interface to an iterator; see `as_batches`."""

    # The inputs and outputs of this model fix the sizes of batches.
    model: Any = None

    def __init__(self, batches, read_ahead):
        # The iterator must live as long as it is read.
        self._source, self._read_ahead = batches, read_ahead
        self._first = self._batches = None

    def _begin(self):
        """Reads the first batch when Keras asks for it: its order may be drawn."""
        if self._batches is not None:
            return
        self._batches = map(as_arrays, _reader(self._source, self._read_ahead))
        self._first = next(self._batches, None)
        if self._first is None:
            raise ValueError(
                "the generator must yield at least one batch, and it yields none"
            )
        self._is_first_needed = True

    def get_numpy_iterator(self) -> Iterator:
        self._begin()
        # Keras may take the first batch to build a model, and then start again.
        count = 0
        if self._is_first_needed:
            yield self._first
            count = 1
        for batch in self._batches:
            self._is_first_needed = False
            yield batch
            count += 1
        if count:
            self._is_first_needed = False

    def get_jax_iterator(self) -> Iterator:
        return self.get_numpy_iterator()

    def get_torch_dataloader(self) -> Any:
        utils = quirks.data_adapters().data_adapter_utils
        return utils.get_torch_dataloader(self.get_numpy_iterator())

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        self._begin()

        return without_tuning(
            tf.data.Dataset.from_generator(
                self.get_numpy_iterator,
                output_signature=signature_of(self._first, self.model),
            )
        )

    @property
    def num_batches(self) -> None:
        return None

    @property
    def batch_size(self) -> None:
        return None


def signature_of(batch: Any, model: Any) -> Any:
    """The `tf.TensorSpec`s of batches like this one, with variable widths.

    Keras fixes the sizes that are equal in two batches. Here the inputs and outputs of
    the model fix them.
    """
    import tensorflow as tf

    def spec_of(spec, shape):
        if not isinstance(spec, tf.TensorSpec):
            return spec
        if len(shape) != spec.shape.rank:
            # Keras distinguishes labels of shape (rows, 1) from others by their last
            # size.
            shape = (*[None] * (spec.shape.rank - 1), 1)
        sizes = [
            size if fixed is not None and size in (1, fixed) else None
            for size, fixed in zip(spec.shape[1:], shape[1:], strict=True)
        ]
        return tf.TensorSpec([None, *sizes], spec.dtype)

    specs = _KERAS.data_adapter_utils.get_tensor_spec([batch])
    parts = specs if isinstance(specs, tuple) else (specs,)
    shapes: list[Any] = []
    for spec, tensors in itertools.zip_longest(
        parts, (getattr(model, "inputs", ()), getattr(model, "outputs", ()))
    ):
        count = len(keras.tree.flatten(spec))
        is_known = len(tensors or ()) == count
        shapes += [x.shape for x in tensors] if is_known else [()] * count
    flat = map(spec_of, keras.tree.flatten(specs), shapes)
    return keras.tree.pack_sequence_as(specs, list(flat))


def without_tuning(dataset: Any) -> Any:
    """A `tf.data.Dataset` whose tuning is off unless its options say otherwise."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def as_arrays(batch):
    """A tuple of inputs and, if given, targets and weights."""
    values = batch if isinstance(batch, tuple) else (batch,)
    values = [_part(value) for value in values]
    if len(values) > 1 and values[1] is None:
        # Weights apply to targets.
        values = values[:1]
    return tuple(value for value in values if value is not None)


def _part(inputs):
    if isinstance(inputs, dict):
        return {name: _array(value) for name, value in inputs.items()}
    is_several = isinstance(inputs, list | tuple) and any(
        isinstance(item, list | tuple) or getattr(item, "ndim", 0) for item in inputs
    )
    if is_several:
        return tuple(_array(item) for item in inputs)
    return None if inputs is None else _array(inputs)


def _array(value):
    array = np.asarray(value)
    # Keras makes the same of arrays that `fit` gets.
    return array.astype(keras.config.floatx()) if array.dtype == "float64" else array

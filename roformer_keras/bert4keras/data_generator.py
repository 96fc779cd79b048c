"""Batches: `DataGenerator` draws samples, and `sequence_padding` makes arrays."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Unchecked


def to_array(*args: Unchecked) -> np.ndarray | list[np.ndarray]:
    """Converts one argument to an array, and several to a list of arrays."""
    arrays = [np.array(one) for one in args]
    return arrays[0] if len(arrays) == 1 else arrays


def sequence_padding(
    inputs: Sequence,
    length: int | Sequence[int] | None = None,
    value: float = 0,
    seq_dims: int = 1,
    mode: str = "post",
) -> np.ndarray:
    """One array of sequences, padded or cut to one length.

    Args:
        inputs: lists or arrays of equal numbers of axes.
        length: int, or one for each of the first `seq_dims` axes; by default that of
            the longest.
        value: what to pad with.
        seq_dims: int. How many axes of each sequence to pad.
        mode: `"post"` or `"pre"`: pads at the end or at the start. Both cut at the end.

    Returns:
        `(len(inputs), *length, ...)`.
    """
    refuse(
        mode not in ("post", "pre"),
        f"mode must be 'post' or 'pre', got {mode!r}",
    )
    if length is None:
        length = np.max([np.shape(one)[:seq_dims] for one in inputs], axis=0)
    sizes = np.atleast_1d(length)[:seq_dims]
    cut = tuple(slice(size) for size in sizes)
    padded = []
    for one in inputs:
        # An empty list has no type.
        has_type = np.size(one) or isinstance(one, np.ndarray)
        array = np.asarray(one, None if has_type else int)[cut]
        missing = [
            size - given for size, given in zip(sizes, array.shape, strict=False)
        ]
        widths = [(0, size) if mode == "post" else (size, 0) for size in missing]
        widths += [(0, 0)] * (array.ndim - len(widths))
        padded.append(np.pad(array, widths, constant_values=value))
    return np.array(padded)


class DataGenerator:
    """Samples in batches: subclass it with `__iter__(self, random=False)`.

    `__iter__` reads samples with `self.sample(random)` and yields batches `(inputs,
    targets)`.

    Args:
        data: list, or another iterable of samples, which may have no length.
        batch_size: int. Samples in a batch.
        buffer_size: int. Samples among which random ones are drawn where `data` has no
            length; by default those of 1000 batches.

    Attributes:
        steps: int, or None without a length. Batches in an epoch.
    """

    def __init__(
        self, data: Iterable, batch_size: int = 32, buffer_size: int | None = None
    ):
        self.data: Any = data
        self.batch_size = batch_size
        count = len(data) if isinstance(data, Sized) else None
        self.steps = None if count is None else -(-count // batch_size)
        self.buffer_size = buffer_size or batch_size * 1000

    def __len__(self) -> int:
        return self.steps  # type: ignore[return-value]  # A TypeError, as it should be.

    def sample(self, random: bool = False) -> Iterator[tuple[bool, Any]]:
        """The samples, each with whether it is the last one.

        Args:
            random: bool. Whether to shuffle, by `numpy.random`.
        """
        if not random:
            samples = iter(self.data)
        elif self.steps is None:
            samples = self._drawn()
        else:
            order = np.random.permutation(len(self.data))
            samples = (self.data[place] for place in order)
        held: list = []
        for one in samples:
            if held:
                yield False, held.pop()
            held.append(one)
        if held:
            yield True, held.pop()

    def _drawn(self) -> Iterator:
        """Samples in random order, from a buffer that is filled from the data."""
        buffer: list = []
        for one in self.data:
            buffer.append(one)
            # One more than the buffer holds, as soon as it has been full.
            if len(buffer) > self.buffer_size:
                yield buffer.pop(np.random.randint(len(buffer)))
        while buffer:
            yield buffer.pop(np.random.randint(len(buffer)))

    def __iter__(self, random: bool = False) -> Iterator:
        """The batches of an epoch; subclasses define it."""
        raise NotImplementedError

    def forfit(self, random: bool = True) -> Iterator:
        """The batches of one epoch after another, without end, for `fit`.

        Raises:
            ConfigurationError: an epoch has no batch.
        """
        while True:
            batch = None
            for batch in self.__iter__(random):
                yield batch
            refuse(
                batch is None,
                "an epoch of a DataGenerator must have a batch, this one yields "
                "none: is its data empty, or all of it skipped?",
            )

    def fortest(self, random: bool = False) -> Iterator:
        """The inputs of these batches alone, without end, for `predict`."""
        return (batch[0] for batch in self.forfit(random))

    def to_dataset(
        self,
        types: tuple,
        shapes: tuple,
        names: str | Sequence | None = None,
        padded_batch: bool = False,
    ) -> Any:
        """A `tf.data.Dataset` without end, in batches.

        Args:
            types, shapes: of a sample, nested as `__iter__` yields it: single samples,
                not batches.
            names: for samples that become dicts: a name, a list of names, or a list of
                those of inputs and targets.
            padded_batch: bool. Whether samples differ in length.
        """
        import tensorflow as tf

        generator: Callable = self.forfit
        if names is not None:

            def generator() -> Iterator:
                return (_named(names, sample) for sample in self.forfit())

            types, shapes = _named(names, types), _named(names, shapes)
        if not padded_batch:
            dataset = tf.data.Dataset.from_generator(
                generator, output_types=types, output_shapes=shapes
            )
            return dataset.batch(self.batch_size)
        dataset = tf.data.Dataset.from_generator(generator, output_types=types)
        return dataset.padded_batch(self.batch_size, shapes)


def _named(names, values):
    """A dict of the values by name, or one for each list of names."""
    if isinstance(names, str):
        return {names: values}
    if isinstance(names[0], str):
        return dict(zip(names, values, strict=False))
    pairs = zip(names, values, strict=False)
    return tuple(dict(zip(*pair, strict=False)) for pair in pairs)

"""Keras's containers of texts or ids: `tf.data`, `PyDataset` and generators."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.data.adapters import is_adapter
from roformer_keras.data.batches import MappedDataset, NumberedBatches, TextBatches
from roformer_keras.tables.texts import as_texts, is_loader


def check_container(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    validation_split: float = 0.0,
) -> None:
    """Refuses arguments that a container of batches already has, or cannot have."""
    is_dataset = hasattr(x, "as_numpy_iterator")
    is_stream = isinstance(x, Iterator | keras.utils.PyDataset)
    if not (is_dataset or is_stream):
        return
    if is_dataset:
        name = "a tf.data.Dataset"
    else:
        name = "a PyDataset" if isinstance(x, keras.utils.PyDataset) else "a generator"
    refuse(
        y is not None,
        f"{name} holds its labels: leave y out",
    )
    refuse(
        sample_weight is not None,
        f"{name} holds its weights: leave sample_weight out, and give triples of "
        "texts, labels and weights",
    )
    refuse(
        validation_split and (is_stream or is_ready(x)),
        f"the rows of {name} come batch by batch, and cannot be split: leave "
        "validation_split out, and give validation_data",
    )


def is_ready(x) -> bool:
    """True for input that Keras takes itself: batches, or dicts of ids."""
    is_own = isinstance(x, TextBatches | NumberedBatches | MappedDataset)
    if is_own or is_adapter(x):
        return True
    if isinstance(x, keras.utils.PyDataset):
        spec = x[0]
    elif is_loader(x):
        spec = next(iter(x), None)
    else:
        spec = x if isinstance(x, dict) else getattr(x, "element_spec", None)
    first = spec[0] if isinstance(spec, tuple | list) else spec
    return isinstance(first, dict) and any("token_ids" in name for name in first)


def texts_of(
    dataset,
    counts: Sequence[int],
    has_choices: bool = False,
    has_tokens: bool = False,
) -> list:
    """Rows of a `tf.data.Dataset` or `PyDataset` of texts, with or without labels."""
    texts: list = []
    for element in _elements(dataset):
        # Keras's tuples hold inputs, then labels and weights.
        parts = element if isinstance(element, tuple) else (element,)
        if isinstance(dataset, keras.utils.PyDataset):
            texts += as_texts(parts[0], counts, has_choices, has_tokens, True)
        else:
            texts += [record[0] for record in _records(*parts)]
    return texts


def labelled_texts(dataset):
    """Texts, labels and weights of a `tf.data.Dataset`, batched or not."""
    records: list = []
    for element in _elements(dataset):
        refuse(
            not isinstance(element, tuple) or len(element) not in (2, 3),
            "a dataset must give pairs of texts and labels, or triples with "
            f"weights, got {type(element).__name__}",
        )
        records += _records(*element)
    refuse(
        not records,
        "a dataset must have an element, got none",
    )
    texts, labels, *weights = map(list, zip(*records, strict=True))
    return texts, labels, (weights or [None])[0]


def _records(texts, *others):
    """The rows of an element, a row or a batch: texts (str or tuples) and others."""
    several = isinstance(texts, tuple)
    parts = texts if several else (texts,)
    # A label distinguishes a row of several texts from a batch of single texts.
    is_row = np.ndim(parts[0]) == 0 or (others and np.ndim(others[-1]) == 0)
    columns = [
        [_plain(value)] if is_row else _plain(value) for value in (*parts, *others)
    ]
    if len({len(column) for column in columns}) > 1:
        raise ConfigurationError(
            "a batch of a dataset must have as many labels and weights as texts, got "
            f"{', '.join(str(len(column)) for column in columns)}"
        )
    count, rows = len(parts), []
    for values in zip(*columns, strict=True):
        text = values[:count] if several else values[0]
        rows.append((tuple(text) if isinstance(text, list) else text, *values[count:]))
    return rows


def _plain(array):
    """An array as lists of Python values; bytes as str."""
    value = array.tolist() if hasattr(array, "tolist") else array
    if isinstance(value, list):
        return [_plain(value) for value in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _elements(dataset):
    """The elements of a finite dataset; those of TensorFlow as NumPy arrays."""
    if isinstance(dataset, keras.utils.PyDataset):
        return (dataset[number] for number in range(len(dataset)))
    refuse(
        int(dataset.cardinality()) == -1,
        "a dataset must end, but this one repeats forever: leave repeat() out and "
        "set epochs",
    )
    return dataset.as_numpy_iterator()

"""Data for Keras's loops, without the wait of `tf.data` at their end.

On TensorFlow, Keras makes a dataset from any data. A thread of `tf.data` tunes it,
sleeps for 10, 20, 40, ... ms between its checks, and is joined when the dataset is
deleted: a call lasts until 70, 150, 310, 630, 1,270 or 2,550 ms. Without tuning there
is no such thread. docs/performance.md describes the measurement.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.data.generators import (
    DataAdapter,
    as_batches,
    signature_of,
    without_tuning,
)

# None if Keras has renamed them: data then goes to it unchanged, and waits.
_KERAS = quirks.data_adapters()

# Arguments of `fit`, `evaluate` and `predict` that make up an adapter.
_DATA = ("y", "sample_weight", "class_weight")


def is_adapter(x: Any) -> bool:
    """True if `x` comes from `prepare_data`, which Keras's loops take unchanged."""
    return _KERAS is not None and isinstance(x, DataAdapter)


def prepare_data(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: Mapping | None = None,
    sliced: bool = False,
    model: keras.Model | None = None,
) -> Any:
    """An adapter of data that Keras's `fit`, `evaluate` and `predict` take as `x`."""
    is_alone = y is None and sample_weight is None and class_weight is None
    if is_alone:
        x = as_batches(x)
    if is_adapter(x):
        x.model = model
        return x
    adapter = _KERAS.get_data_adapter(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )
    make_dataset = adapter.get_tf_dataset

    def get_tf_dataset():
        is_short = sliced or adapter.num_batches == 1
        if is_short and not shuffle and _is_of_arrays(adapter):
            arrays = keras.tree.flatten((x, y, sample_weight))
            if all(_is_dense(array) for array in arrays):
                return _Slices(adapter)
        quirks.set_signature(adapter, lambda batch: signature_of(batch, model))
        return without_tuning(make_dataset())

    adapter.get_tf_dataset = get_tf_dataset
    return adapter


# Keras's own signatures: a function that wraps a method may hide them.
SIGNATURES = {
    name: inspect.signature(getattr(keras.Model, name))
    for name in ("fit", "evaluate", "predict")
}


def call_without_wait(method: Any, arguments: Sequence, options: Mapping) -> Any:
    """Calls Keras's `fit`, `evaluate` or `predict` with data that does not wait."""
    is_fit = method.__name__ == "fit"
    if _KERAS is None or keras.backend.backend() != "tensorflow":
        with uneven_batches():
            return method(*arguments, **options)
    model = method.__self__
    signature = SIGNATURES[method.__name__]
    bound = signature.bind(model, *arguments, **options).arguments
    del bound["self"]
    bound |= bound.pop("kwargs", {})
    is_prepared = bound.get("x") is None or bound.get(quirks.IS_VALIDATION)
    if is_prepared or bound.get("validation_split"):
        return method(*arguments, **options)
    batch_size = bound.get("batch_size")
    x, validation = bound["x"], bound.get("validation_data")
    is_divided = _is_divided_by_keras(model)
    if validation is not None and not (is_divided and _is_whole(validation)):
        bound["validation_data"] = prepare_data(
            *keras.utils.unpack_x_y_sample_weight(validation),
            batch_size=bound.get("validation_batch_size") or batch_size,
            steps=bound.get("validation_steps"),
            model=model,
        )
    if not (is_divided and _is_whole(x)):
        bound["x"] = prepare_data(
            x,
            **{name: bound.pop(name) for name in _DATA if name in bound},
            batch_size=batch_size,
            steps=bound.get("steps_per_epoch" if is_fit else "steps"),
            shuffle=bound.get("shuffle", True) if is_fit else False,
            # The function of `predict` has one graph for all shapes, see `FastModel`.
            sliced=method.__name__ == "predict",
            model=model,
        )
    adapters = [bound["x"], bound.get("validation_data")]
    try:
        return method(**bound)
    finally:
        for adapter, value in zip(adapters, (x, validation), strict=True):
            if is_adapter(adapter) and adapter is not value:
                quirks.empty_adapter(adapter)


class _Slices:
    """The batches of an adapter of arrays, which Keras takes instead of a dataset."""

    def __init__(self, adapter):
        self._adapter = adapter

    def __iter__(self) -> Iterator:
        import tensorflow as tf

        for batch in self._adapter.get_numpy_iterator():
            yield keras.tree.map_structure(
                lambda x: None if x is None else tf.convert_to_tensor(x),
                keras.tree.lists_to_tuples(batch),
            )


def _is_of_arrays(adapter):
    return isinstance(adapter, _KERAS.array_data_adapter.ArrayDataAdapter)


def _is_dense(array):
    import tensorflow as tf

    return array is None or isinstance(array, np.ndarray | tf.Tensor)


def has_strategy(model: keras.Model) -> bool:
    """True for a model that was made, or is used, in the scope of `tf.distribute`."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return (
        tf.distribute.has_strategy()
        or model.distribute_strategy is not tf.distribute.get_strategy()
    )


def _is_divided_by_keras(model):
    """True if Keras counts the steps of arrays and datasets, or divides them."""
    return bool(
        keras.config.max_steps_per_epoch()
        or has_strategy(model)
        or keras.distribution.distribution()
    )


def _is_whole(x):
    """True for data that does not come batch by batch."""
    return not isinstance(x, keras.utils.PyDataset | Iterator)


def refuse_strategy(model: keras.Model) -> None:
    """Refuses to train on texts under `tf.distribute`.

    Each of its devices clips gradients and weighs rows and tokens by itself: on odd or
    padded batches the results differ from those of one device.
    """
    if has_strategy(model):
        raise ConfigurationError(
            f"{type(model).__name__} does not learn texts under tf.distribute, whose "
            "devices weigh their rows and clip their gradients each for itself",
            hint="use keras.distribution.DataParallel on the backend JAX, see "
            "docs/several-devices.md; ids are trained as Keras does",
        )


# === Devices of `keras.distribution` ===

# Attribute of a distribution whose processes each get every batch whole.
WHOLE_BATCHES = "_gives_whole_batches"


def uneven_batches() -> contextlib.AbstractContextManager:
    """Lets JAX compute a batch whole that it cannot split equally.

    Results equal those of one device. It does not affect other backends, programs
    without a distribution, or several processes that each get a slice of a batch.
    """
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return contextlib.nullcontext()
    return quirks.distributing_batches(_distribute)


def _distribute(
    original: Callable, batch: Any, layout: Any, *args: Any, **kwargs: Any
) -> Any:
    import jax

    sharding = getattr(layout, "backend_layout", layout)
    # Each process gets every batch whole and computes its own rows, so that random
    # numbers do not depend on the number of processes.
    is_whole = getattr(keras.distribution.distribution(), WHOLE_BATCHES, False)
    has_whole = is_whole or jax.process_count() == 1
    if has_whole and isinstance(sharding, jax.sharding.NamedSharding):
        try:
            sharding.shard_shape(batch.shape)
        except ValueError:
            replicated = jax.sharding.PartitionSpec()
            layout = sharding = jax.sharding.NamedSharding(sharding.mesh, replicated)
    if is_whole:
        rows = np.asarray(batch)
        return jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
    return original(batch, layout, *args, **kwargs)

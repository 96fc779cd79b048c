"""Batches of any size on the devices of `keras.distribution`."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from roformer_keras import quirks


class WholeBatches(keras.distribution.DataParallel):
    """`DataParallel` of several processes that are each given every batch whole.

    Each device computes its own rows of a batch. What a batch holds, and what is drawn
    for it, do not depend on how many processes there are.
    """

    def __init__(self):
        super().__init__(auto_shard_dataset=False)


def uneven_batches() -> contextlib.AbstractContextManager:
    """While it lasts, JAX computes a batch that it cannot split equally, whole.

    Results equal those of one device. Other backends are not affected, nor are programs
    without a distribution, nor several processes that are each given a part of a batch.
    """
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return contextlib.nullcontext()
    return quirks.distributing_batches(_distribute)


def _distribute(
    original: Callable, batch: Any, layout: Any, *args: Any, **kwargs: Any
) -> Any:
    import jax

    sharding = getattr(layout, "backend_layout", layout)
    is_whole = isinstance(keras.distribution.distribution(), WholeBatches)
    has_whole = is_whole or jax.process_count() == 1
    if has_whole and isinstance(sharding, jax.sharding.NamedSharding):
        try:
            sharding.shard_shape(batch.shape)
        except ValueError:
            whole = jax.sharding.PartitionSpec()
            layout = sharding = jax.sharding.NamedSharding(sharding.mesh, whole)
    if is_whole:
        rows = np.asarray(batch)
        return jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)
    return original(batch, layout, *args, **kwargs)

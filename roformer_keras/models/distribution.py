"""Batches under `keras.distribution` whose rows the devices cannot share equally."""

import functools
from typing import Any

import keras


def allow_uneven_batches() -> None:
    """Lets JAX compute a batch that cannot be split equally on every device, whole.

    Keras 3.15 shards every batch like the first one, and JAX refuses the odd last
    batch of a data set (IndivisibleError). Keras has no hook for this, so that its
    function is wrapped. Results are those of one device. Other backends and programs
    without a distribution are not affected, nor are batches that several processes
    share.
    """
    if keras.backend.backend() != "jax":
        return
    from keras.src.backend.jax import distribution_lib

    function = distribution_lib.distribute_data_input
    if not hasattr(function, "allows_uneven_batches"):
        distribution_lib.distribute_data_input = _allowing_uneven_batches(function)


def _allowing_uneven_batches(distribute):
    import jax

    @functools.wraps(distribute)
    def distribute_data_input(batch: Any, layout: Any, *args: Any, **kwargs: Any):
        sharding = getattr(layout, "backend_layout", layout)
        is_one_process = jax.process_count() == 1
        if is_one_process and isinstance(sharding, jax.sharding.NamedSharding):
            try:
                sharding.shard_shape(batch.shape)
            except ValueError:
                whole = jax.sharding.PartitionSpec()
                layout = jax.sharding.NamedSharding(sharding.mesh, whole)
        return distribute(batch, layout, *args, **kwargs)

    distribute_data_input.allows_uneven_batches = True
    return distribute_data_input

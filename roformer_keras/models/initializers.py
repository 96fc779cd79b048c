"""New weights as bert4keras draws them, or any where they will be loaded."""

import contextlib
import contextvars

import keras
from keras import ops

_LOADING = contextvars.ContextVar("roformer_keras_loading", default=False)


@contextlib.contextmanager
def weights_to_be_loaded():
    """Inside it, models are built without drawing random numbers.

    The caller assigns every weight, because what these hold is undefined. Drawing 95
    million normal numbers takes longer than reading them.
    """
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


def _undefined(shape, dtype):
    if keras.backend.backend() != "tensorflow":
        return ops.zeros(shape, dtype)
    import tensorflow as tf

    # Memory that is never written takes none: with zeros, a model and what is being
    # read would be there at the same time.
    dtype = keras.backend.standardize_dtype(dtype)
    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)


@keras.saving.register_keras_serializable("roformer_keras")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """Keras's initializer, or any numbers inside `weights_to_be_loaded`."""

    def __call__(self, shape, dtype=None):
        if _LOADING.get():
            return _undefined(shape, dtype)
        return super().__call__(shape, dtype)


@keras.saving.register_keras_serializable("roformer_keras")
class ScaledTruncatedNormal(keras.initializers.VarianceScaling):
    """Keras's `VarianceScaling`, or any numbers inside `weights_to_be_loaded`."""

    def __call__(self, shape, dtype=None):
        if _LOADING.get():
            return _undefined(shape, dtype)
        return super().__call__(shape, dtype)


def initializer(config):
    """For kernels: `initializer_range` in v1; by fan-in and depth in v2.

    Source: https://kexue.fm/archives/8998 for v2.
    """
    if config.model_type == "roformer":
        return TruncatedNormal(stddev=config.initializer_range)
    return ScaledTruncatedNormal(
        scale=1 / config.num_layers, mode="fan_in", distribution="truncated_normal"
    )


def embedding_initializer(config):
    """For embedding tables: as for kernels, with the width as fan-in in v2."""
    if config.model_type == "roformer":
        return TruncatedNormal(stddev=config.initializer_range)
    # A normal distribution cut at two deviations keeps 0.8796 of its deviation.
    deviation = (config.num_layers * config.input_dim) ** -0.5 / 0.87962566
    return TruncatedNormal(stddev=deviation)

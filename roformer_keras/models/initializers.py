"""Fresh weights as bert4keras draws them, and the means not to draw them at all."""

import contextlib
import contextvars

import keras
from keras import ops

__all__ = ["embedding_initializer", "initializer", "weights_to_be_loaded"]

_LOADING = contextvars.ContextVar("roformer_keras_loading", default=False)


@contextlib.contextmanager
def weights_to_be_loaded():
    """Within it, models are built with zeros where random numbers would be replaced.

    Drawing 95 million normal numbers takes longer than reading them.
    """
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


@keras.saving.register_keras_serializable("roformer_keras")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """Normal numbers within two standard deviations, unless they are not needed."""

    def __call__(self, shape, dtype=None):
        if _LOADING.get():
            return ops.zeros(shape, dtype)
        return super().__call__(shape, dtype)


@keras.saving.register_keras_serializable("roformer_keras")
class ScaledTruncatedNormal(keras.initializers.VarianceScaling):
    """Truncated normal numbers of variance `scale / fan_in`, unless not needed."""

    def __call__(self, shape, dtype=None):
        if _LOADING.get():
            return ops.zeros(shape, dtype)
        return super().__call__(shape, dtype)


def initializer(config):
    """Of kernels: `initializer_range` in v1; in v2 by fan-in and depth.

    Source: https://kexue.fm/archives/8998 for v2.
    """
    if config.model_type == "roformer":
        return TruncatedNormal(stddev=config.initializer_range)
    return ScaledTruncatedNormal(
        scale=1 / config.num_layers, mode="fan_in", distribution="truncated_normal"
    )


def embedding_initializer(config):
    """Of the embedding tables: as kernels, with the width as their fan-in in v2."""
    if config.model_type == "roformer":
        return TruncatedNormal(stddev=config.initializer_range)
    # A normal distribution cut at two deviations keeps 0.8796 of its deviation.
    deviation = (config.num_layers * config.input_dim) ** -0.5 / 0.87962566
    return TruncatedNormal(stddev=deviation)

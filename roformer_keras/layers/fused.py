"""Norm and GELU in fewer operations, for TensorFlow on a CPU.

Between matrix products, each operation reads and writes its whole tensor. oneDNN
computes the norm in one operation. XLA, exported graphs and gradients do not support
it, so layers use it only inside `fused`, which a caller enters for graphs that only
predict. There oneDNN fuses GELU with the product before it; elsewhere GELU has a closed
gradient.
"""

import contextlib
import contextvars
import functools
import math

import keras

from roformer_keras.base import quirks
from roformer_keras.base.compiled import runs_on_cpu
from roformer_keras.layers.long_attention import predicting

_is_fused = contextvars.ContextVar("is_fused", default=False)


@contextlib.contextmanager
def fused():
    """Lets layers use the fused norm inside its block.

    Use it for models in a TensorFlow function without XLA, gradients and export. It
    changes only TensorFlow on a CPU with oneDNN.
    """
    token = _is_fused.set(_is_possible())
    try:
        with predicting():
            yield
    finally:
        _is_fused.reset(token)


def is_fused() -> bool:
    """True inside `fused`, where `fused_layer_norm` works."""
    return _is_fused.get()


def fused_layer_norm(x, gamma, beta, epsilon):
    """`(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis.

    It is a batch norm over one row whose channels are the vectors, and then factors.
    TensorFlow's graph rewriting turns exactly this form into a layer norm, and only if
    the shapes are computed in this way.
    """
    import tensorflow as tf

    shape = tf.shape(x)
    count = tf.reduce_prod(shape[:-1])
    rows = tf.reshape(x, (1, count, x.shape[-1], 1))
    none = tf.constant([], tf.float32)
    normalised = tf.raw_ops.FusedBatchNormV3(
        x=rows,
        scale=tf.ones((count,)),
        offset=tf.zeros((count,)),
        mean=none,
        variance=none,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    ).y
    return tf.reshape(normalised, shape) * gamma + beta


def computes_gelu(x) -> bool:
    """True if `gelu_with_gradient` applies to a tensor, in a graph that may train."""
    if keras.backend.backend() != "tensorflow" or is_fused():
        return False
    import tensorflow as tf

    return tf.is_tensor(x) and x.dtype in (tf.float32, tf.bfloat16)


def gelu_with_gradient(x):
    """The exact GELU of a TensorFlow tensor, with its gradient in closed form.

    It computes in float32, because operations on bfloat16 take twice as long.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def gelu(x):
        value = tf.cast(x, "float32")
        share = 0.5 + 0.5 * tf.math.erf(value * math.sqrt(0.5))

        def gradient(upstream):
            density = tf.exp(-0.5 * tf.square(value)) / math.sqrt(2 * math.pi)
            slope = share + value * density
            return tf.cast(tf.cast(upstream, "float32") * slope, x.dtype)

        return tf.cast(value * share, x.dtype), gradient

    return gelu(x)


@functools.cache
def _is_possible():
    """True if TensorFlow uses oneDNN on this CPU.

    By default it does so with VNNI (of AVX-512 or AVX), AMX or BF16. On other CPUs its
    graph rewriting does not fuse the norm's operations, and encoding takes 13 % longer
    with them (on a Zen 3).
    """
    return runs_on_cpu() and quirks.has_onednn() and _norm_works()


def _norm_works():
    """True if a kernel exists for channels before the last axis."""
    import tensorflow as tf

    with tf.init_scope():
        x = tf.constant([[1.0, 3.0], [4.0, 2.0]])
        norm = tf.function(
            lambda x: fused_layer_norm(x, tf.ones((2,)), tf.zeros((2,)), 1e-12),
            autograph=False,
        )
        try:
            result = norm(x).numpy()
        except tf.errors.OpError:
            return False
    return abs(result - [[-1, 1], [1, -1]]).max() < 1e-5

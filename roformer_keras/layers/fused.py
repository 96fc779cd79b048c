"""Norm and rotation as one operation each, for TensorFlow on a CPU.

Between matrix products each operation reads and writes its whole tensor. oneDNN has the
norm as one operation, and the rotation of neighbouring features is one complex product.
XLA, exported graphs and gradients do not support them, so layers use them only inside
`fused`, which a caller enters for graphs that only predict.

Measured on 32 rows of 128 tokens (docs/performance-of-encoding.md): encoding takes
1.5 % longer without the norm in float32, 4 % in bfloat16, and 1.1 % longer without the
rotation.
"""

import contextlib
import contextvars
import functools

from keras import ops

from roformer_keras import quirks
from roformer_keras.compiled import runs_on_cpu
from roformer_keras.layers.long_attention import predicting
from roformer_keras.layers.position import rotary_table

_held = contextvars.ContextVar("fused_operations", default=None)


@contextlib.contextmanager
def fused():
    """Lets layers that are called inside it use fused operations.

    For passes of models in a TensorFlow function without XLA, gradients and export. It
    changes nothing but on TensorFlow on a CPU with oneDNN.
    """
    token = _held.set(FusedOperations() if _is_possible() else None)
    try:
        with predicting():
            yield
    finally:
        _held.reset(token)


def fused_operations() -> "FusedOperations | None":
    """The operations of the enclosing `fused`, or None."""
    return _held.get()


class FusedOperations:
    """The operations, and the angles that all layers of a pass share."""

    def __init__(self):
        self._turns = {}

    def turn(self, position_ids, length, dim, base, mask=None):
        """Rotations cos + i sin: complex64 `(batch or 1, length, 1, dim / 2)`.

        Args:
            position_ids: as `RoPEAttention` takes them, or None for 0, 1, 2, ...
            length: of the rows, an int or a scalar tensor.
            dim: int. Features per head.
            base: float.
            mask: of the attention, or None. Without position ids the layers that share
                it share the angles: an encoder and its decoder have other lengths.
        """
        import tensorflow as tf

        shared = mask if position_ids is None else position_ids
        key = (id(shared), dim, base)
        if shared is None or key not in self._turns:
            if position_ids is None:
                position_ids = ops.arange(length)[None]
            table = rotary_table(position_ids, dim, base)
            sin, cos = (part[:, :, None, ::2] for part in table)
            # What is shared is kept, or another tensor might get its `id`.
            self._turns[key] = tf.complex(cos, sin), shared
        return self._turns[key][0]

    def rotated(self, x, turn):
        """Turns each pair of features `(2i, 2i + 1)` by its angle.

        Args:
            x: float `(batch, length, heads, dim)`.
            turn: rotations, as `turn` returns them.

        Returns:
            float, of the shape and type of `x`.
        """
        import tensorflow as tf

        batch, length, heads, dim = ops.shape(x)
        pairs = ops.reshape(ops.cast(x, "float32"), (batch, length, heads, dim // 2, 2))
        turned = tf.bitcast(tf.bitcast(pairs, tf.complex64) * turn, tf.float32)
        return ops.cast(ops.reshape(turned, (batch, length, heads, dim)), x.dtype)

    def layer_norm(self, x, gamma, beta, epsilon):
        """`(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis.

        Args:
            x: float32 or bfloat16 `(..., dim)`. Means and variances are float32.
            gamma, beta: float `(dim,)`.
            epsilon: float.
        """
        return _layer_norm(
            x, ops.cast(gamma, x.dtype), ops.cast(beta, x.dtype), epsilon
        )


def _layer_norm(x, gamma, beta, epsilon):
    """A batch norm over one row whose channels are the vectors, then factors.

    TensorFlow's graph rewriting turns exactly this form into a layer norm, and only if
    the shapes are computed as here.
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


@functools.cache
@functools.cache
def _is_possible():
    """True if this is a CPU on which TensorFlow uses oneDNN.

    By default that is one with VNNI (of AVX-512 or AVX), AMX or BF16. On others its
    graph rewriting leaves the norm's operations as they are, and encoding takes 13 %
    longer with them (on a Zen 3).
    """
    return runs_on_cpu() and quirks.has_onednn() and _norm_works()


def _norm_works():
    """True if there is a kernel with channels before the last axis."""
    import tensorflow as tf

    with tf.init_scope():
        x = tf.constant([[1.0, 3.0], [4.0, 2.0]])
        norm = tf.function(
            lambda x: _layer_norm(x, tf.ones((2,)), tf.zeros((2,)), 1e-12),
            autograph=False,
        )
        try:
            result = norm(x).numpy()
        except tf.errors.OpError:
            return False
    return abs(result - [[-1, 1], [1, -1]]).max() < 1e-5

"""Attention of long texts that never stores all scores at once.

The scores of a text are a square: 8,192 tokens of a base model take 3.2 GB in each
layer. Here they are computed for some queries at a time, and again in the backward
pass, so memory grows linearly with the length. PyTorch's own attention does so for
texts of any length.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import keras

# More scores of a layer than the first number are computed in blocks of the second.
MAX_SCORES = 2**26
_BLOCK = 2**23
# Assumed rows of a batch of unknown size.
_ROWS = 8
# Minimal queries of a block: products of fewer rows are slow.
_MIN_QUERIES = 32


_predicts = contextvars.ContextVar("predicts", default=False)


@contextlib.contextmanager
def predicting() -> Iterator[None]:
    """Lets a graph of unknown sizes choose between blocks and all scores at once.

    It is for TensorFlow graphs that only predict: TensorFlow stores the tensors of both
    ways for gradients, and converters of exported graphs do not support the blocks.
    """
    token = _predicts.set(True)
    try:
        yield
    finally:
        _predicts.reset(token)


def may_be_long(query: Any, rate: float = 0.0) -> bool:
    """True if the scores may exceed `MAX_SCORES` and need not be stored."""
    backend = keras.backend.backend()
    if backend == "torch":
        return not rate
    if backend not in ("tensorflow", "jax"):
        return False
    batch, heads, length, _ = query.shape
    if length is None:
        return backend == "tensorflow" and _predicts.get()
    return is_long(batch or _ROWS, heads, length)


def is_long(rows: int, heads: int, length: int) -> bool:
    """True if there are more scores than `MAX_SCORES`."""
    return rows * heads * length**2 > MAX_SCORES


def attend(
    query: Any, key: Any, value: Any, mask: Any, rate: float, seed: Any, plain: Any
) -> Any:
    """The values, weighted by softmax attention: `(batch, heads, length, head_dim)`.

    If sizes are unknown, TensorFlow's graph chooses between blocks and `plain` when it
    runs. In training it always uses blocks, because TensorFlow stores the tensors of
    both ways for gradients.
    """
    if keras.backend.backend() == "torch":
        heads_last = (keras.ops.swapaxes(x, 1, 2) for x in (query, key, value))
        mixed = keras.ops.dot_product_attention(*heads_last, bias=mask)
        return keras.ops.swapaxes(mixed, 1, 2)
    if keras.backend.backend() == "jax":
        return _in_blocks_of_jax(query, key, value, mask, rate, seed)
    import tensorflow as tf

    if seed is not None or None not in query.shape:
        drawn = tf.cast(seed(), "int32") if rate else tf.zeros([2], "int32")
        return _in_blocks(query, key, value, mask, rate, drawn)
    sizes = tf.cast(tf.shape(query), "int64")
    return tf.cond(
        tf.reduce_prod(sizes[:3]) * sizes[2] > MAX_SCORES,
        lambda: _in_blocks(query, key, value, mask, 0.0, None),
        plain,
    )


def _dropped(x, factors):
    return x if factors is None else x * factors


def _factors(weights, rate, seed, number):
    """Factors of dropout for the weights of a block, in TensorFlow."""
    import tensorflow as tf

    # A sum would equal the seed of another block in the next step.
    seeds = tf.random.fold_in(seed, number)
    drawn = tf.random.stateless_uniform(tf.shape(weights), seeds)
    return tf.cast(drawn >= rate, weights.dtype) / (1 - rate)


def _in_blocks_of_jax(query, key, value, mask, rate, seed):
    import jax
    import jax.numpy as jnp

    length, factor = query.shape[2], query.shape[-1] ** -0.5
    count = max(_BLOCK // math.prod(query.shape[:3]), _MIN_QUERIES)
    blocks = -(-length // count)

    def parts(x):
        padded = jnp.pad(x, [(0, 0), (0, 0), (0, blocks * count - length), (0, 0)])
        shape = (*x.shape[:2], blocks, count, x.shape[3])
        return jnp.moveaxis(padded.reshape(shape), 2, 0)

    # A mask with a row for each query is cut into the same blocks.
    has_rows = mask is not None and mask.shape[2] != 1
    drawn = seed() if rate else None
    # Gradients of all blocks are summed in the type of these tensors.
    precise_key, precise_value = (x.astype(_sum_type(x)) for x in (key, value))

    @jax.checkpoint
    def attend(block):
        number, queries, *masks = block
        key, value = precise_key.astype(query.dtype), precise_value.astype(query.dtype)
        scores = queries @ jnp.swapaxes(key, 2, 3) * jnp.asarray(factor, query.dtype)
        if mask is not None:
            scores += masks[0] if has_rows else mask
        weights = jax.nn.softmax(scores)
        if rate:
            block_key = jax.random.fold_in(drawn, number)
            is_kept = jax.random.bernoulli(block_key, 1 - rate, weights.shape)
            weights = jnp.where(is_kept, weights / (1 - rate), 0)
        return weights.astype(value.dtype) @ value

    masks = (parts(mask),) if has_rows else ()
    by_block = jax.lax.map(attend, (jnp.arange(blocks), parts(query), *masks))
    mixed = jnp.moveaxis(by_block, 0, 2)
    mixed = mixed.reshape(*query.shape[:2], blocks * count, value.shape[3])
    return mixed[:, :, :length]


def _sum_type(x):
    """The type in which gradients are summed."""
    is_double = keras.backend.standardize_dtype(x.dtype) == "float64"
    return "float64" if is_double else "float32"


def _in_blocks(query, key, value, mask, rate, seed):
    import tensorflow as tf

    dim = query.shape[-1]
    factor = tf.cast(dim**-0.5, query.dtype)
    sizes = tf.shape(query)
    length = sizes[2]
    count = tf.maximum(_BLOCK // tf.reduce_prod(sizes[:3]), _MIN_QUERIES)
    blocks = -(-length // count)
    sum_type = _sum_type(query)

    def block_of(x, number):
        # A mask may have one row for all queries.
        first = tf.minimum(number * count, tf.shape(x)[2] - 1)
        return x[:, :, first : first + count]

    def weights_of(query, key, number):
        """The weights of a block, and their factors of dropout."""
        scores = tf.matmul(block_of(query, number), key, transpose_b=True) * factor
        if mask is not None:
            scores += block_of(mask, number)
        weights = tf.nn.softmax(scores)
        return weights, _factors(weights, rate, seed, number) if rate else None

    @tf.custom_gradient
    def attend(query, key, value):
        def step(number, mixed):
            weights, factors = weights_of(query, key, number)
            block = tf.matmul(_dropped(weights, factors), value)
            # Concatenation works along the first axis.
            return number + 1, mixed.write(number, tf.transpose(block, (2, 0, 1, 3)))

        mixed = tf.TensorArray(query.dtype, blocks, infer_shape=False)
        _, mixed = tf.while_loop(
            lambda number, _: number < blocks,
            step,
            (0, mixed),
            parallel_iterations=1,
        )
        joined = tf.transpose(mixed.concat(), (1, 2, 0, 3))
        joined = tf.ensure_shape(joined, (*query.shape[:3], value.shape[3]))

        def gradient(upstream):
            def product(x, y):
                return tf.cast(tf.matmul(x, y, transpose_a=True), sum_type)

            def step(number, query_gradients, key_gradient, value_gradient):
                weights, factors = weights_of(query, key, number)
                above, queries = block_of(upstream, number), block_of(query, number)
                value_gradient += product(_dropped(weights, factors), above)
                change = _dropped(tf.matmul(above, value, transpose_b=True), factors)
                total = tf.reduce_sum(change * weights, -1, keepdims=True)
                change = weights * (change - total) * factor
                key_gradient += product(change, queries)
                block = tf.transpose(tf.matmul(change, key), (2, 0, 1, 3))
                query_gradients = query_gradients.write(number, block)
                return number + 1, query_gradients, key_gradient, value_gradient

            _, by_block, key_gradient, value_gradient = tf.while_loop(
                lambda number, *_: number < blocks,
                step,
                (
                    0,
                    tf.TensorArray(query.dtype, blocks, infer_shape=False),
                    tf.zeros_like(key, sum_type),
                    tf.zeros_like(value, sum_type),
                ),
                parallel_iterations=1,
            )
            query_gradient = tf.transpose(by_block.concat(), (1, 2, 0, 3))
            query_gradient = tf.ensure_shape(query_gradient, query.shape)
            sums = (key_gradient, key), (value_gradient, value)
            return query_gradient, *(tf.cast(x, y.dtype) for x, y in sums)

        return joined, gradient

    return attend(query, key, value)

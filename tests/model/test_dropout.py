"""Dropout: what is dropped, how often, and what the rest becomes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_keras.layers import Dropout


def dropped(rate=0.1, shape=(400, 501), dtype="float32", seed=0):
    layer = Dropout(rate, seed=seed, dtype=dtype)
    outputs = layer(keras.ops.ones(shape, dtype), training=True)
    return keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_share_and_mean(rate):
    outputs = dropped(rate)
    deviation = np.sqrt(rate * (1 - rate) / outputs.size)
    assert abs((outputs == 0).mean() - rate) < 5 * deviation
    kept = outputs[outputs != 0]
    np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=1e-4)
    # In no direction are neighbours dropped together.
    is_dropped = outputs == 0
    for pairs in (
        is_dropped[1:] & is_dropped[:-1],
        is_dropped[:, 1:] & is_dropped[:, :-1],
    ):
        assert abs(pairs.mean() - rate**2) < 0.01


def test_scale_is_of_what_is_dropped():
    """The rate nearest to 1e-4 that two bytes can say, 7 in 65536."""
    np.testing.assert_allclose(dropped(1e-4).max(), 65536 / 65529, rtol=1e-6)


def test_masks_follow_the_seed_and_then_change():
    layers = [Dropout(0.5, seed=3) for _ in range(2)]
    x = np.ones((7, 9), "float32")
    first, same = (np.array(layer(x, training=True)) for layer in layers)
    np.testing.assert_array_equal(first, same)
    second = np.array(layers[0](x, training=True))
    assert (first != second).any()
    assert (dropped(0.5, seed=4, shape=(7, 9)) != first).any()


def test_shapes():
    for shape in ((1,), (3, 5), (2, 0, 4), (2, 3, 5, 7)):
        outputs = dropped(0.5, shape)
        assert outputs.shape == shape
        assert set(outputs.ravel()) <= {0.0, 2.0}
    for rate in (0.0, 1.0):
        assert (dropped(rate, (3, 4)) == 1 - rate).all()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_and_graphs_of_any_length(jit_compile):
    layer = Dropout(0.5, seed=0)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, x)

    signature = [tf.TensorSpec((None, None), "float32")]
    run = tf.function(run, signature, jit_compile=jit_compile)
    for shape in ((4, 6), (3, 5)):
        y, gradient = run(tf.fill(shape, 3.0))
        np.testing.assert_array_equal(y, 3 * gradient)
        assert set(np.ravel(y)) == {0.0, 6.0}


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float16"])
def test_types_of_few_bits(dtype):
    layer = Dropout(0.25, dtype=dtype)
    outputs = layer(keras.ops.ones((64, 64)), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    values = np.unique(keras.ops.cast(outputs, "float32"))
    np.testing.assert_allclose(values, [0, 4 / 3], rtol=4e-3)

"""Random arrays and weights, and the comparison of what is computed from them."""

import numpy as np
from keras import ops


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype("float32")


def to_numpy(value):
    """Float64, of a tensor of any type."""
    return np.asarray(ops.convert_to_numpy(value)).astype("float64")


def assert_close(ours, expected, atol=1e-5, message=""):
    ours, expected = to_numpy(ours), to_numpy(expected)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=atol, err_msg=message)


def randomize(layer, scale=0.3):
    """Values that show every term: no zeros in biases, no ones in gammas."""
    for i, weight in enumerate(layer.weights):
        weight.assign(normal(*weight.shape, seed=i, scale=scale))

"""The course of the learning rate in the optimizers of training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_keras.optimizers import finetuning_rate, make_optimizer


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("adamw", [(4, 1.0), (8, 0.0)]),
        ("lamb", [(0, 0.5), (8, 1.0)]),
        ("adamw", []),
    ],
)
def test_a_schedule_goes_by_updates_however_they_are_cut(name, schedule):
    runs = []
    for parts in (1, 4):
        optimizer = make_optimizer(
            0.01, schedule, name=name, accumulation=parts, clip_norm=0
        )
        # By its config, as a saved model brings it back.
        optimizer = type(optimizer).from_config(optimizer.get_config())
        variable = keras.Variable(np.ones(3, "float32"), name="kernel")
        optimizer.build([variable])
        logged, weights = [], []
        for _ in range(8):
            for _ in range(parts):
                optimizer.apply([keras.ops.ones(3)])
            logged.append(float(optimizer.learning_rate))
            weights.append(np.array(variable))
        runs.append((logged, weights))
    (rates, weights), (cut_rates, cut_weights) = runs
    assert cut_rates == rates
    # What an update does goes by the rate it was made with.
    np.testing.assert_allclose(cut_weights, weights, rtol=1e-6)
    if schedule and schedule[0][0]:
        assert rates[1::2] == pytest.approx([0.005, 0.01, 0.005, 0.0])


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_weights_need_not_decay(name):
    optimizer = make_optimizer(0.1, name=name, weight_decay=0)
    optimizer = type(optimizer).from_config(optimizer.get_config())
    variable = keras.Variable(np.ones(3, "float32"), name="kernel")
    optimizer.build([variable])
    optimizer.apply([keras.ops.zeros(3)])
    np.testing.assert_array_equal(np.array(variable), np.ones(3))


@pytest.mark.parametrize(
    ("beta_2", "epsilon", "jit_compile"), [(0.999, 1e-6, False), (0.98, 1e-9, True)]
)
def test_updates_are_those_of_the_formula(beta_2, epsilon, jit_compile):
    """Also where TensorFlow compiles them by XLA, as it does on a GPU."""
    start = np.array([1.0, -2.0, 0.5])
    gradients = np.array([[1.0, -0.5, 2.0], [0.25, 1.0, 0.0], [-1.0, 0.5, 1.0]])
    options = {"beta_2": beta_2, "epsilon": epsilon}
    optimizer = make_optimizer(0.125, weight_decay=0.1, clip_norm=0, **options)
    variable = keras.Variable(start, dtype="float32", name="kernel")
    optimizer.build([variable])
    apply = tf.function(optimizer.apply, jit_compile=jit_compile, autograph=False)
    first = second = 0
    for step, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        root = np.sqrt(second / (1 - beta_2**step))
        move = first / (1 - 0.9**step) / (root + epsilon)
        start = start - 0.125 * (move + 0.1 * start)
        apply([tf.constant(gradient, "float32")])
        np.testing.assert_allclose(np.array(variable), start, atol=1e-6)


def test_rate_of_a_finetuning_that_names_none():
    rates = [finetuning_rate(width) for width in (768, 384, 32)]
    assert rates == pytest.approx([2e-5, 8e-5, 5e-4])


@pytest.mark.parametrize("norm", [0.5, 4.0, np.inf, np.nan])
def test_gradients_are_clipped_as_keras_clips_them(norm):
    def updated(optimizer):
        table = keras.Variable(np.ones((4, 2), "float32"), name="embeddings")
        kernel = keras.Variable(np.ones((2, 3), "float32"), name="kernel")
        unused = keras.Variable(np.ones(2, "float32"), name="unused")
        optimizer.build([table, kernel, unused])
        # Rows 1 and 3 of the table, one of them twice.
        rows = tf.constant([[0.6, 0.0], [0.0, 0.4], [0.2, 0.2]])
        rows = tf.IndexedSlices(
            rows * norm, tf.constant([1, 3, 1]), tf.constant([4, 2])
        )
        clipped = optimizer._clip_gradients([rows, tf.fill((2, 3), norm / 4), None])
        assert clipped[2] is None
        return [tf.convert_to_tensor(gradient).numpy() for gradient in clipped[:2]]

    ours = updated(make_optimizer(0.1, clip_norm=1.5))
    theirs = updated(keras.optimizers.AdamW(0.1, global_clipnorm=1.5))
    for own, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-6)

"""Losses against the same in plain NumPy, and how they behave where it matters."""

import keras
import numpy as np
import plain_losses as plain
import pytest
from keras import ops

from roformer_keras import losses

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(8, 5)).astype("float32")
NEIGHBOURS = np.array([1, 0, 3, 2, 5, 4, 7, 6])
SETS = ((0, 1), (2, 3, 4))
LOGITS = RNG.normal(size=(6, 5)).astype("float32")
LABELS = np.array([0, 3, 4, 1, 2, 2])
DEGREES = np.array([0.0, 3.0, 1.0, 1.0, 5.0, 0.0], "float32")
SIMILARITIES = RNG.uniform(-1, 1, size=6).astype("float32")


def close(ours, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("scale", "neighbours"), [(1.0, NEIGHBOURS), (20.0, NEIGHBOURS[::-1])]
)
def test_contrastive(scale, neighbours):
    loss = losses.contrastive(neighbours, VECTORS, scale)
    assert loss.dtype == "float32"
    close(loss, plain.contrastive(VECTORS, neighbours, scale))


def test_a_vector_of_zeros_is_no_error():
    vectors = VECTORS.copy()
    vectors[2] = 0
    assert np.isfinite(losses.contrastive(NEIGHBOURS, vectors)).all()
    assert np.isfinite(losses.pair_cosines(vectors, VECTORS)).all()


def test_neighbour_is_nearest():
    # By pairs: side by side, and opposite.
    vectors = np.array([[1, 0.1], [1, 0.0], [0, 1.0], [0, -1.0]], "float32")
    is_nearest = losses.neighbour_is_nearest(np.array([1, 0, 3, 2]), vectors)
    assert np.asarray(is_nearest).tolist() == [1, 1, 0, 0]


def test_similarity_regression():
    teacher = RNG.normal(size=(8, 3))
    row_losses = losses.similarity_regression(
        plain.cosines(teacher), plain.cosines(VECTORS)
    )
    assert row_losses.shape == (8,)
    close(np.mean(row_losses), plain.similarity_regression(teacher, VECTORS), 1e-4)


def test_cosines():
    close(losses.cosines(VECTORS), plain.cosines(VECTORS), 1e-6)
    expected = np.diag(plain.unit(VECTORS) @ plain.unit(VECTORS[::-1]).T)
    close(losses.pair_cosines(VECTORS, VECTORS[::-1]), expected, 1e-6)


def test_masked_label_crossentropy():
    row_losses = losses.masked_label_crossentropy(LABELS, LOGITS, SETS)
    close(row_losses, plain.masked_label_crossentropy(LABELS, LOGITS, SETS))


def test_label_is_best():
    logits = np.array([[1, 2, 9, 9, 9], [9, 9, 3, 1, 2], [0, 0, 0, 0, 1]], "float32")
    is_best = losses.label_is_best(np.array([1, 3, 4]), logits, SETS)
    assert np.asarray(is_best).tolist() == [1, 0, 1]


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_cosent(scale):
    loss = losses.cosent(DEGREES, SIMILARITIES, scale)
    close(loss, plain.cosent(DEGREES, SIMILARITIES, scale))


CASES = {
    "contrastive": (
        losses.Contrastive(scale=10.0),
        NEIGHBOURS,
        VECTORS,
        lambda: plain.contrastive(VECTORS, NEIGHBOURS, 10.0),
    ),
    "similarity_regression": (
        losses.SimilarityRegression(factor=3.0),
        np.zeros((8, 8), "float32"),
        plain.cosines(VECTORS).astype("float32"),
        lambda: 3 * np.mean(plain.cosines(VECTORS) ** 2, axis=1),
    ),
    "masked_label_crossentropy": (
        losses.MaskedLabelCrossentropy(SETS),
        LABELS,
        LOGITS,
        lambda: plain.masked_label_crossentropy(LABELS, LOGITS, SETS),
    ),
    "supervised_contrastive": (
        losses.SupervisedContrastive(scale=10.0),
        # The last is alone in its class.
        np.array([0, 1, 0, 2, 1, 0, 2, 3]),
        VECTORS,
        lambda: plain.supervised_contrastive([0, 1, 0, 2, 1, 0, 2, 3], VECTORS, 10.0),
    ),
    "cosent": (
        losses.CoSENT(scale=10.0),
        DEGREES,
        SIMILARITIES,
        lambda: np.full(6, plain.cosent(DEGREES, SIMILARITIES, 10.0)),
    ),
    "label_smoothing": (
        losses.LabelSmoothing(0.2),
        LABELS,
        LOGITS,
        lambda: plain.smoothed_crossentropy(LABELS, LOGITS, 0.2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_is_the_weighted_mean(name):
    loss, targets, outputs, expected = CASES[name]
    expected = expected()
    assert loss.name == name
    close(loss(targets, outputs), expected.mean())
    if name != "cosent":  # It refuses them.
        weights = np.arange(len(expected), dtype="float32")
        mean = (weights * expected).sum() / weights.sum()
        close(loss(targets, outputs, weights), mean)
    restored = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(restored) is type(loss)
    assert restored(targets, outputs) == loss(targets, outputs)
    # In float32, of the bfloat16 numbers that a model gives, to the last bit.
    coarse = ops.cast(outputs, "bfloat16")
    rounded = loss(targets, coarse)
    assert rounded.dtype == "float32"
    assert rounded == loss(targets, ops.cast(coarse, "float32"))


def test_defaults_of_losses_and_functions():
    for loss, options in {
        losses.Contrastive: {"scale": 20.0},
        losses.SupervisedContrastive: {"scale": 20.0},
        losses.SimilarityRegression: {"factor": 100.0},
        losses.CoSENT: {"scale": 20.0},
        losses.LabelSmoothing: {"smoothing": 0.1},
    }.items():
        assert loss().options == options
    # The functions too compute in float32.
    coarse = ops.cast(VECTORS, "bfloat16")
    exact = np.asarray(ops.cast(coarse, "float32"))
    close(losses.contrastive(NEIGHBOURS, coarse), plain.contrastive(exact, NEIGHBOURS))
    close(losses.cosent(DEGREES, SIMILARITIES), plain.cosent(DEGREES, SIMILARITIES))
    expected = plain.supervised_contrastive(LABELS, LOGITS)
    close(losses.supervised_contrastive(LABELS, LOGITS), expected)
    expected = plain.smoothed_crossentropy(LABELS, LOGITS)
    close(losses.smoothed_crossentropy(LABELS, LOGITS), expected)

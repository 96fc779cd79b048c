"""Attention in blocks computes what attention at once does, with its gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import CHARACTER
from finetuning_cases import BAD, GOOD, ONE_BLOCK

from roformer_keras import RoFormerMaskedLM, RoFormerTextClassifier, layers
from roformer_keras.layers import long_attention
from roformer_keras.layers.long_attention import _in_blocks

LENGTH = 37
MASKS = {
    "none": lambda: None,
    "padding": lambda: (np.arange(LENGTH) < LENGTH - 5)[None, None, None],
    "causal": lambda: layers.causal_mask(LENGTH),
}


@pytest.fixture
def short(monkeypatch):
    """Blocks of eight queries or so, where there are more than a hundred scores."""
    monkeypatch.setattr(long_attention, "MAX_SCORES", 100)
    monkeypatch.setattr(long_attention, "_BLOCK", 600)
    monkeypatch.setattr(long_attention, "_MIN_QUERIES", 4)


def attention(dtype="float32", dropout=0.0):
    keras.utils.set_random_seed(1)
    layer = layers.RoPEAttention(num_heads=2, head_dim=8, dropout=dropout, dtype=dtype)
    layer.build((None, None, 16))
    return layer


def texts():
    return np.random.default_rng(0).normal(size=(2, LENGTH, 16)).astype("float32")


def outputs_and_gradients(layer, mask, shape):
    @tf.function(input_signature=[tf.TensorSpec(shape, "float32")])
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, attention_mask=mask, training=True)
            total = tf.reduce_sum(y * tf.sin(tf.range(16.0)))
        return y, *tape.gradient(total, [x, *layer.trainable_variables])

    return [np.array(value) for value in compute(texts())]


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", [(None, None, 16), (2, LENGTH, 16)])
def test_training(short, monkeypatch, name, shape):
    layer, mask = attention(), MASKS[name]()
    layer.in_blocks = True
    computed = outputs_and_gradients(layer, mask, shape)
    monkeypatch.setattr(long_attention, "MAX_SCORES", 2**60)
    layer.in_blocks = False
    expected = outputs_and_gradients(layer, mask, shape)
    for value, other in zip(computed, expected, strict=True):
        np.testing.assert_allclose(value, other, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prediction(short, monkeypatch, name, dtype):
    layer, mask = attention(dtype), MASKS[name]()
    signature = [tf.TensorSpec((None, None, 16), "float32")]

    def predict():
        @tf.function(input_signature=signature)
        def call(x):
            with long_attention.predicting():
                return layer(x, attention_mask=mask)

        return np.array(tf.cast(call(texts()), "float32"))

    first, blocks = predict(), []
    in_blocks = long_attention._in_blocks
    monkeypatch.setattr(
        long_attention,
        "_in_blocks",
        lambda *given: blocks.append(1) or in_blocks(*given),
    )
    np.testing.assert_array_equal(predict(), first)
    assert blocks == [1]
    monkeypatch.setattr(long_attention, "MAX_SCORES", 2**60)
    atol = 1e-5 if dtype == "float32" else 3e-2
    np.testing.assert_allclose(first, predict(), atol=atol)


def test_dropout_and_its_gradient(short):
    random, seed = np.random.default_rng(0), tf.constant([3, 4])
    parts = [tf.constant(random.normal(size=(2, 2, 11, size))) for size in (4, 4, 3)]
    factors = random.normal(size=(2, 2, 11, 3))

    def total(*parts):
        mixed = _in_blocks(*parts, None, 0.4, seed)
        return tf.reduce_sum(mixed * factors)

    with tf.GradientTape() as tape:
        tape.watch(parts)
        value = total(*parts)
    assert float(value) == float(total(*parts))
    for number, gradient in enumerate(tape.gradient(value, parts)):
        change = random.normal(size=gradient.shape)
        moved = [
            total(
                *(
                    x + sign * 1e-5 * change * (at == number) if at == number else x
                    for at, x in enumerate(parts)
                )
            )
            for sign in (1, -1)
        ]
        slope = float(moved[0] - moved[1]) / 2e-5
        assert slope == pytest.approx(float(tf.reduce_sum(gradient * change)), rel=1e-6)


def test_dropout_has_its_share(short):
    value = tf.eye(LENGTH, batch_shape=[1, 2])
    same = tf.zeros((1, 2, LENGTH, 4))
    weights = np.array(_in_blocks(same, same, value, None, 0.25, tf.constant([1, 2])))
    assert np.mean(weights == 0) == pytest.approx(0.25, abs=0.03)
    np.testing.assert_allclose(weights[weights > 0], 1 / (0.75 * LENGTH), rtol=1e-5)
    # Each block draws its own.
    assert not np.array_equal(weights[:, :, :8] == 0, weights[:, :, 8:16] == 0)


def in_blocks(model):
    return {
        layer.in_blocks
        for layer in model._flatten_layers()
        if isinstance(layer, layers.RoPEAttention)
    }


@pytest.mark.slow
def test_fit_chooses_by_the_longest_text(short, monkeypatch):
    texts, labels = GOOD + BAD, ["a"] * len(GOOD) + ["b"] * len(BAD)
    options = {"classes": ["a", "b"], "dropout": 0.0, **ONE_BLOCK}
    losses = []
    for limit in (100, 2**26):
        monkeypatch.setattr(long_attention, "MAX_SCORES", limit)
        keras.utils.set_random_seed(0)
        model = RoFormerTextClassifier.from_preset(CHARACTER, **options)
        model.compile("sgd")
        losses.append(model.fit(texts, labels, verbose=0).history["loss"])
        assert in_blocks(model) == {limit == 100}
        losses[-1] += [model.train_on_batch(texts, labels)[0]]
        language_model = RoFormerMaskedLM.from_preset(CHARACTER, **ONE_BLOCK)
        language_model.fit(texts, verbose=0)
        assert in_blocks(language_model) == {limit == 100}
    np.testing.assert_allclose(*losses, rtol=1e-5)

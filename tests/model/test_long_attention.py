"""Attention in blocks computes what attention at once does, with its gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from finetuning_cases import BAD, GOOD, load_small

from roformer_keras import RoFormerMaskedLM, RoFormerTextClassifier, layers
from roformer_keras.layers import long_attention
from roformer_keras.layers.long_attention import _in_blocks

LENGTH = 37
MASKS = {
    "none": lambda: None,
    "padding": lambda: (np.arange(LENGTH) < LENGTH - 5)[None, None, None],
    "causal": lambda: layers.causal_mask(LENGTH),
    "keys": lambda: np.arange(LENGTH) < LENGTH - 5,
    "queries and keys": lambda: np.tri(LENGTH, dtype="bool"),
    "a mask for each head": lambda: np.stack(
        [np.tri(LENGTH, dtype="bool"), np.ones((LENGTH, LENGTH), "bool")]
    ),
    "a mask for each row": lambda: (
        np.arange(LENGTH)[None, None, None] <= np.array([20, 36])[:, None, None, None]
    ),
    "queries": lambda: (np.arange(LENGTH) % 3 > 0)[:, None],
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


def outputs_and_gradients(layer, mask, shape, is_known=True):
    """Masks of which the graph knows the sizes, or only the rank."""
    mask_shape = () if mask is None else mask.shape if is_known else [None] * mask.ndim
    signature = [tf.TensorSpec(shape, "float32"), tf.TensorSpec(mask_shape, "bool")]

    @tf.function(input_signature=signature)
    def compute(x, mask):
        mask = None if mask.shape.rank == 0 else mask
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, attention_mask=mask, training=True)
            total = tf.reduce_sum(y * tf.sin(tf.range(16.0)))
        return y, *tape.gradient(total, [x, *layer.trainable_variables])

    outputs = compute(texts(), False if mask is None else mask)
    return [np.array(value) for value in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", [(None, None, 16), (2, LENGTH, 16)])
def test_training(short, monkeypatch, name, shape):
    layer, mask = attention(), MASKS[name]()
    mask = mask if mask is None else np.array(mask)
    layer.in_blocks = True
    computed = outputs_and_gradients(layer, mask, shape, is_known=None not in shape)
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


def test_dropout_of_blocks_and_steps_is_independent(short):
    """No block of a step draws what another block, of this step or the next, draws."""
    same, drawn = tf.zeros((1, 2, LENGTH, 4)), []
    value = tf.eye(LENGTH, batch_shape=[1, 2])
    generator = keras.random.SeedGenerator(5)
    for _ in range(3):
        weights = _in_blocks(same, same, value, None, 0.5, generator.next())
        dropped = np.array(weights)[0, 0] == 0
        drawn += [dropped[start : start + 8] for start in range(0, 32, 8)]
    # Half of the places are equal by chance.
    shares = [np.mean(a == b) for i, a in enumerate(drawn) for b in drawn[:i]]
    assert max(shares) < 0.65


def test_gradients_of_many_blocks_are_summed_in_float32(monkeypatch):
    monkeypatch.setattr(long_attention, "_BLOCK", 1)
    monkeypatch.setattr(long_attention, "_MIN_QUERIES", 4)
    random = np.random.default_rng(0)
    parts = [random.normal(size=(1, 1, 256, 8)) for _ in range(3)]

    def gradients(dtype):
        tensors = [tf.cast(part, "bfloat16") for part in parts]
        tensors = [tf.cast(tensor, dtype) for tensor in tensors]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = tf.reduce_sum(_in_blocks(*tensors, None, 0.0, None))
        return [np.array(tf.cast(x, "float64")) for x in tape.gradient(total, tensors)]

    exact = gradients("float64")
    for value, other in zip(gradients("bfloat16")[1:], exact[1:], strict=True):
        assert np.linalg.norm(value - other) < 0.006 * np.linalg.norm(other)


def in_blocks(model):
    return {
        layer.in_blocks
        for layer in model._flatten_layers()
        if isinstance(layer, layers.RoPEAttention)
    }


@pytest.mark.slow
def test_fit_chooses_by_the_longest_text(short, monkeypatch):
    texts, labels = GOOD + BAD, ["a"] * len(GOOD) + ["b"] * len(BAD)
    losses = []
    for limit in (100, 2**26):
        monkeypatch.setattr(long_attention, "MAX_SCORES", limit)
        keras.utils.set_random_seed(0)
        model = load_small(RoFormerTextClassifier, classes=["a", "b"])
        model.compile("sgd")
        losses.append(model.fit(texts, labels, verbose=0).history["loss"])
        assert in_blocks(model) == {limit == 100}
        losses[-1] += [model.train_on_batch(texts, labels)[0]]
        language_model = load_small(RoFormerMaskedLM)
        language_model.fit(texts, verbose=0)
        assert in_blocks(language_model) == {limit == 100}
    np.testing.assert_allclose(*losses, rtol=1e-5)

"""Every layer: one check for all of them, then its numbers.

The numbers are float64 NumPy, written from the formulas; nothing of the package
computes its own reference. TensorFlow here; the other backends have test_backends.py.
"""

import inspect
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import roformer_keras.layers as package_layers
from roformer_keras.config import ACTIVATIONS
from roformer_keras.errors import ConfigurationError
from roformer_keras.layers import (
    AttentionMask,
    ConditionalRandomField,
    CrossAttention,
    Dropout,
    EfficientGlobalPointer,
    FeedForward,
    GlobalPointer,
    LayerNorm,
    LinearRoPEAttention,
    MaskedLMHead,
    Pooler,
    RMSNorm,
    RoFormerBlock,
    RoFormerDecoderBlock,
    RoPEAttention,
    SinusoidalPositionEmbedding,
    apply_rotary,
    causal_mask,
    erf_gelu,
    padding_mask,
    rotary_table,
    unilm_mask,
)
from roformer_keras.layers.masks import PaddingMask

POLICIES = {"float32": 2e-5, "mixed_bfloat16": 6e-2, "mixed_float16": 8e-3}


def block(norm=LayerNorm, attention=None, feed_forward=None, dtype=None, **options):
    """A `RoFormerBlock` of two heads of four features."""
    return RoFormerBlock(
        attention or RoPEAttention(2, 4, dtype=dtype, name="attention"),
        feed_forward or FeedForward(16, dtype=dtype, name="feed_forward"),
        norm(dtype=dtype, name="attention_norm"),
        norm(dtype=dtype, name="feed_forward_norm"),
        dtype=dtype,
        **options,
    )


def decoder_block(attention=None, activation="relu", epsilon=1e-6, dtype=None, **more):
    """A `RoFormerDecoderBlock` of two heads of four features."""
    return RoFormerDecoderBlock(
        RoPEAttention(2, 4, dtype=dtype, **(attention or {})),
        CrossAttention(2, 4, dtype=dtype),
        FeedForward(16, activation, dtype=dtype),
        *(LayerNorm(epsilon, dtype=dtype) for _ in range(3)),
        dtype=dtype,
        **more,
    )


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def array(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32")).astype("float64")


def randomize(layer, scale=0.3):
    """Values that show every term: no zeros in biases, no ones in gammas."""
    for i, weight in enumerate(layer.weights):
        weight.assign(scale * random(*weight.shape, seed=i))


def weights_of(layer):
    """Float64, by the last two parts of the path: `query/kernel`."""
    return {"/".join(w.path.split("/")[1:]): array(w) for w in layer.weights}


# === One check for every layer ===

X = random(2, 5, 8)
IDS = np.array([[3, 0, 4, 5, 0], [6, 7, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], "int32")
KEYS = (IDS != 0)[:, None, None]
MEMORY_KEYS = np.array([[1, 1, 0], [1, 0, 0]], bool)[:, None, None]
POSITIONS = np.array([[0, 1, 2.5, 3, 4], [7, 8, 9, 1, 0]], "float32")
CONDITION = random(2, 3, seed=1)


@dataclass(frozen=True)
class Case:
    """A layer, and what it must give."""

    make: Callable  # of a dtype policy
    inputs: dict = field(default_factory=lambda: {"x": X})
    weights: int = 0
    shape: tuple = (2, 5, 8)
    dtype: str | None = None  # the compute type of the policy
    has_dropout: bool = False


def head(width, dtype=None, **options):
    embedding = keras.layers.ReversibleEmbedding(11, width, dtype=dtype)
    return MaskedLMHead(embedding, dtype=dtype, **options)


def conditional_block(dtype=None):
    norm = partial(LayerNorm, 1e-7, True, 4, condition_hidden_activation="tanh")
    return block(norm, RoPEAttention(2, 4, 0.5, key_dim=6, dtype=dtype), dtype=dtype)


def linear_block(dtype=None):
    options = {"causal": True, "num_features": 8, "seed": 3, "dtype": dtype}
    attention = LinearRoPEAttention(2, 4, "performer", **options)
    return block(attention=attention, dtype=dtype)


def v2_block(dtype=None):
    attention = RoPEAttention(2, 4, use_bias=False, dtype=dtype)
    fed = FeedForward(16, "relu", use_bias=False, dtype=dtype)
    return block(RMSNorm, attention, fed, dtype=dtype)


PLACED = {"x": X, "attention_mask": KEYS, "position_ids": POSITIONS}
MEMORY = {"x": X, "memory": random(2, 3, 6, seed=2)}
CONDITIONED = {"x": X, "condition": CONDITION}
EVERYTHING = {
    "key_dim": 6,
    "base": 50.0,
    "layout": "half_split",
    "use_bias": False,
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3),
}
CONDITIONAL = {"conditional": True}
HIDDEN = {"condition_hidden_dim": 4, "condition_hidden_activation": "tanh"}
BOTH_WAYS = {"upper_triangular": False}  # no tolerance is next to -inf

CASES = {
    "dropout": Case(partial(Dropout, 0.5), {"inputs": X}, has_dropout=True),
    "sinusoidal": Case(
        partial(SinusoidalPositionEmbedding, 6), shape=(1, 5, 6), dtype="float32"
    ),
    "sinusoidal-positions": Case(
        partial(SinusoidalPositionEmbedding, 6, base=100.0),
        {"x": X, "position_ids": POSITIONS},
        shape=(2, 5, 6),
        dtype="float32",
    ),
    "attention": Case(
        partial(RoPEAttention, 2, 4, dropout=0.5), weights=8, has_dropout=True
    ),
    "attention-everything": Case(
        partial(RoPEAttention, 2, 3, **EVERYTHING),
        {**PLACED, "residual_scores": random(2, 2, 5, 5)},
        weights=4,
    ),
    **{
        f"{kind}-attention{'-causal' * causal}": Case(
            partial(LinearRoPEAttention, 2, 4, kind, causal), PLACED, weights=8
        )
        for kind in ("linear", "cosine", "performer", "rotary_performer")
        for causal in (False, True)
    },
    "linear-attention-everything": Case(
        partial(LinearRoPEAttention, 2, 3, **EVERYTHING), weights=4
    ),
    "performer-attention-without-positions": Case(
        partial(
            LinearRoPEAttention, 2, 4, "performer", num_features=6, seed=3, rotary=False
        ),
        weights=8,
    ),
    "cross-attention": Case(
        partial(CrossAttention, 2, 4, dropout=0.5),
        {**MEMORY, "attention_mask": MEMORY_KEYS},
        weights=8,
        has_dropout=True,
    ),
    "layer-norm": Case(LayerNorm, weights=2),
    "layer-norm-condition": Case(
        partial(LayerNorm, 1e-7, **CONDITIONAL), CONDITIONED, weights=4
    ),
    "layer-norm-condition-hidden": Case(
        partial(LayerNorm, **CONDITIONAL, **HIDDEN), CONDITIONED, weights=5
    ),
    "rms-norm": Case(partial(RMSNorm, 1e-7)),
    "feed-forward": Case(partial(FeedForward, 16), weights=4),
    "feed-forward-v2": Case(
        partial(FeedForward, 16, "relu", use_bias=False), weights=2
    ),
    "block": Case(partial(block, dropout=0.5), PLACED, weights=16, has_dropout=True),
    "block-pre": Case(partial(block, norm_first=True), PLACED, weights=16),
    "block-condition": Case(
        conditional_block, CONDITIONED, weights=22, has_dropout=True
    ),
    "block-of-linear-cost": Case(linear_block, PLACED, weights=16),
    "block-v2": Case(
        v2_block, {"x": X, "residual_scores": random(2, 2, 5, 5)}, weights=6
    ),
    "decoder-block": Case(
        partial(decoder_block, dropout=0.5),
        {**MEMORY, "cross_attention_mask": MEMORY_KEYS, **PLACED},
        weights=26,
        has_dropout=True,
    ),
    "decoder-block-pre": Case(
        partial(
            decoder_block, {"rotary": False, "dropout": 0.1}, "gelu", norm_first=True
        ),
        MEMORY,
        weights=26,
        has_dropout=True,
    ),
    "mlm-head": Case(partial(head, 8), weights=6, shape=(2, 5, 11)),
    "mlm-head-narrow-condition": Case(
        partial(head, 6, layer_norm_epsilon=1e-7, **CONDITIONAL),
        CONDITIONED,
        weights=8,
        shape=(2, 5, 11),
    ),
    "mlm-head-v2": Case(
        partial(head, 8, transform=False, dropout=0.5),
        weights=1,
        shape=(2, 5, 11),
        has_dropout=True,
    ),
    "mlm-head-v2-narrow": Case(
        partial(head, 6, transform=False), weights=2, shape=(2, 5, 11)
    ),
    "crf": Case(
        partial(ConditionalRandomField, 5.0), {"scores": X}, weights=1, dtype="float32"
    ),
    "pointer": Case(
        partial(GlobalPointer, 3, 4, **BOTH_WAYS), weights=2, shape=(2, 3, 5, 5)
    ),
    "pointer-efficient": Case(
        partial(EfficientGlobalPointer, 3, 4, **BOTH_WAYS),
        weights=4,
        shape=(2, 3, 5, 5),
    ),
    "pooler": Case(partial(Pooler, "tanh"), weights=2, shape=(2, 8)),
    **{
        f"mask-{pattern}": Case(
            partial(AttentionMask, pattern, pad_segments=True),
            {"token_ids": IDS, "segment_ids": SEGMENTS},
            shape=(2, 1, queries, 5),
            dtype="bool",
        )
        for pattern, queries in (("bidirectional", 1), ("causal", 5), ("unilm", 5))
    },
}
HAS_DROPOUT = [name for name, case in CASES.items() if case.has_dropout]
# The transitions of a CRF are for its loss.
HAS_WEIGHTS = [name for name, case in CASES.items() if case.weights and name != "crf"]
# One of each way to compute in float32 inside.
MIXED = (
    "attention-everything",
    "rotary_performer-attention-causal",
    "block-condition",
    "decoder-block",
    "mlm-head",
    "pointer-efficient",
)
PASSES_THE_MASK = ("layer-norm", "rms-norm", "feed-forward", "attention", "block")


def call(layer, inputs, **options):
    """The first argument by position, as Keras wants a layer to be called."""
    first, *others = inputs
    return layer(inputs[first], **{name: inputs[name] for name in others}, **options)


@pytest.mark.slow
def test_every_layer_has_a_case():
    layers = {
        name
        for name in package_layers.__all__
        if inspect.isclass(getattr(package_layers, name))
        and issubclass(getattr(package_layers, name), keras.layers.Layer)
    }
    assert layers == {
        type(case.make(dtype="float32")).__name__ for case in CASES.values()
    }


def run_layer_test(case, policy, folder):
    """Shapes, types, modes, precision, and serialisation of a layer."""
    tolerance = POLICIES[policy]
    layer = case.make(dtype=policy)
    output = call(layer, case.inputs)
    dtype = case.dtype or layer.compute_dtype
    assert tuple(output.shape) == case.shape
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert len(layer.weights) == case.weights
    assert {weight.dtype for weight in layer.weights} <= {"float32"}
    randomize(layer)
    expected = array(call(layer, case.inputs))

    # Eager and graph mode, with every length unknown.
    signature = {
        key: tf.TensorSpec(
            [None if size == 5 else size for size in value.shape], value.dtype
        )
        for key, value in case.inputs.items()
    }
    graph = tf.function(lambda inputs: call(layer, inputs), input_signature=[signature])
    tensors = {key: tf.constant(value) for key, value in case.inputs.items()}
    np.testing.assert_allclose(array(graph(tensors)), expected, rtol=0, atol=tolerance)

    # The mixed policies compute the same as float32, to their precision.
    exact = case.make(dtype="float32")
    call(exact, case.inputs)
    exact.set_weights(layer.get_weights())
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(
        expected, array(call(exact, case.inputs)), rtol=0, atol=tolerance * scale
    )

    # By its configuration, as JSON.
    config = json.loads(json.dumps(keras.layers.serialize(layer)))
    arguments = inspect.signature(type(layer)).parameters
    assert set(arguments) - {"kwargs"} <= set(config["config"])
    restored = keras.layers.deserialize(config)
    assert restored.get_config() == layer.get_config()
    restored.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(call(restored, case.inputs)), expected)

    # In a functional model, saved and loaded.
    symbols = {
        key: keras.Input(value.shape[1:], dtype=value.dtype.name, name=key)
        for key, value in case.inputs.items()
    }
    model = keras.Model(symbols, call(layer, symbols))
    assert model.output.shape[1:] == case.shape[1:]
    assert model.output.dtype == dtype
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    np.testing.assert_array_equal(array(loaded(tensors)), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "float32") for name in CASES),
        *itertools.product(MIXED, ("mixed_bfloat16", "mixed_float16")),
    ],
)
def test_layer(name, policy, tmp_path):
    run_layer_test(CASES[name], policy, tmp_path)


@pytest.mark.parametrize("name", PASSES_THE_MASK)
def test_the_mask_of_padding_is_passed_on(name):
    layer = CASES[name].make(dtype="float32")
    masked = PaddingMask()([tf.constant(X), IDS, SEGMENTS])
    expected = IDS != 0
    expected[:, 0] = True
    np.testing.assert_array_equal(layer(masked)._keras_mask, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", HAS_DROPOUT)
def test_dropout_is_for_training_and_follows_the_seed(name):
    case = CASES[name]

    def run(training):
        keras.utils.set_random_seed(7)
        return array(call(case.make(dtype="float32"), case.inputs, training=training))

    assert (run(True) == run(True)).all()
    assert (run(True) != run(False)).any()
    assert (run(False) == run(None)).all()


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_block_drops_what_each_part_gives(part):
    keras.utils.set_random_seed(0)
    layer = block(dropout=0.5)
    layer(X)
    for name in ("attention", "feed_forward"):
        dense = getattr(layer, name).output_dense
        dense.kernel.assign(np.zeros(dense.kernel.shape))
        dense.bias.assign(np.full(dense.bias.shape, float(name == part)))
    # One part gives ones, which a norm takes off again, and the other zeros.
    plain = normalized(normalized(X, 1e-12), 1e-12)
    np.testing.assert_allclose(array(layer(X)), plain, rtol=0, atol=1e-5)
    assert np.abs(array(layer(X, training=True)) - plain).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", HAS_WEIGHTS)
def test_gradients_reach_every_weight(name):
    case = CASES[name]
    layer = case.make(dtype="float32")
    call(layer, case.inputs)
    randomize(layer)
    with tf.GradientTape() as tape:
        output = call(layer, case.inputs)
        loss = tf.reduce_sum(output * random(*output.shape, seed=9))
    variables = [weight.value for weight in layer.trainable_weights]
    assert len(variables) == case.weights
    for weight, gradient in zip(
        layer.weights, tape.gradient(loss, variables), strict=True
    ):
        gradient = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(gradient).all(), weight.path
        assert (gradient != 0).mean() > 0.5, weight.path


def test_tied_embedding_stays_tied_when_loaded(tmp_path):
    """The head and the graph share one embedding, in a user's own model too."""
    embedding = keras.layers.ReversibleEmbedding(11, 8)
    token_ids = keras.Input((None,), dtype="int32")
    model = keras.Model(token_ids, MaskedLMHead(embedding)(embedding(token_ids)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights) == 6
    np.testing.assert_array_equal(array(loaded(IDS)), array(model(IDS)))


# === Positions ===


def angles(positions, dim, base=10000.0):
    """`(..., length)` to `(..., length, dim / 2)`."""
    frequencies = np.array([base ** (-2 * i / dim) for i in range(dim // 2)])
    return np.asarray(positions, "float64")[..., None] * frequencies


def rotated(x, positions, base=10000.0, layout="interleaved"):
    """x `(batch, length, heads, dim)`: pairs as complex numbers, turned."""
    x, half = np.asarray(x, "float64"), x.shape[-1] // 2
    if layout == "interleaved":
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x[..., :half], x[..., half:]
    turned = (first + 1j * second) * np.exp(
        1j * angles(positions, x.shape[-1], base)[:, :, None]
    )
    result = np.empty_like(x)
    if layout == "interleaved":
        result[..., 0::2], result[..., 1::2] = turned.real, turned.imag
    else:
        result[..., :half], result[..., half:] = turned.real, turned.imag
    return result


@pytest.mark.parametrize("base", [10000.0, 50.0])
@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
@pytest.mark.parametrize(
    "positions",
    [
        [[0, 1, 2, 3, 4]],
        [[0, 1, 2, 3, 4], [9, 9, 0, 511, 1535]],
        [[0.5, 1.25, -2.75, 0.1, 100.125], [0, 0, 0, 0, 0]],
    ],
    ids=["ints", "per row", "fractional"],
)
def test_rotation(positions, layout, base):
    x = random(2, 5, 3, 6)
    sin, cos = rotary_table(np.array(positions), 6, base, layout)
    assert sin.dtype == cos.dtype == "float32"
    assert sin.shape == (len(positions), 5, 6)
    np.testing.assert_allclose(
        array(apply_rotary(x, sin, cos, layout)),
        rotated(x, positions, base, layout),
        rtol=0,
        # A float32 frequency is off by 6e-8 of itself, an angle by as much of 1535.
        atol=2e-4 if np.max(positions) > 1000 else 2e-5,
    )


@pytest.mark.parametrize(("dim", "base"), [(6, 10000.0), (8, 30.0)])
def test_sinusoidal_position_embedding(dim, base):
    expected = np.empty((2, 5, dim))
    for row, column in np.ndindex(2, 5):
        for i in range(dim // 2):
            angle = float(POSITIONS[row, column]) / base ** (2 * i / dim)
            expected[row, column, 2 * i] = np.sin(angle)
            expected[row, column, 2 * i + 1] = np.cos(angle)
    layer = SinusoidalPositionEmbedding(dim, base)
    np.testing.assert_allclose(array(layer(X, POSITIONS)), expected, rtol=0, atol=2e-6)
    counted = array(layer(X))
    np.testing.assert_allclose(counted[0, 3:, 0], np.sin([3, 4]), rtol=0, atol=1e-6)


# === Norms and activations ===


def normalized(x, epsilon, gamma=1.0, beta=0.0):
    x = np.asarray(x, "float64")
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * gamma + beta


@pytest.mark.parametrize("epsilon", [1e-12, 1e-7, 1e-3])
@pytest.mark.parametrize("deviation", [1e-5, 3e-4, 1.0])
def test_layer_norm(deviation, epsilon):
    x = deviation * X
    layer = LayerNorm(epsilon)
    layer(x)
    randomize(layer)
    gamma, beta = (array(w) for w in (layer.gamma, layer.beta))
    np.testing.assert_allclose(
        array(layer(x)), normalized(x, epsilon, gamma, beta), rtol=0, atol=5e-6
    )


def test_layer_norm_far_from_zero():
    """Where the mean is 1e4 deviations, what is left of float32 is kept."""
    x = 100 + 1e-2 * X
    np.testing.assert_allclose(
        array(LayerNorm()(x)), normalized(x, 1e-12), rtol=0, atol=5e-3
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 300.1])
def test_norms_of_constant_rows_are_finite(value):
    x = np.full((2, 5, 9), value, "float32")
    assert np.isfinite(array(LayerNorm()(x))).all()
    assert np.isfinite(array(RMSNorm()(x))).all()


@pytest.mark.parametrize("hidden", [None, 4])
def test_conditional_layer_norm(hidden):
    layer = LayerNorm(
        1e-7,
        conditional=True,
        condition_hidden_dim=hidden,
        condition_hidden_activation="tanh",
    )
    plain = array(LayerNorm(1e-7)(X))
    # The condition counts for nothing until it is trained.
    np.testing.assert_array_equal(array(layer(X, CONDITION)), plain)
    randomize(layer)
    kernels = {k.removesuffix("/kernel"): v for k, v in weights_of(layer).items()}
    condition = CONDITION.astype("float64")
    if hidden:
        condition = np.tanh(condition @ kernels["hidden_dense"])
    gamma = kernels["gamma"] + condition @ kernels["gamma_dense"]
    beta = kernels["beta"] + condition @ kernels["beta_dense"]
    np.testing.assert_allclose(
        array(layer(X, CONDITION)),
        normalized(X, 1e-7, gamma[:, None], beta[:, None]),
        rtol=0,
        atol=5e-6,
    )
    # Without a length, and with two axes in place of one.
    for shape in ((2, 8), (2, 5, 3, 8)):
        x = random(*shape)
        axes = (slice(None),) + (None,) * (len(shape) - 2)
        np.testing.assert_allclose(
            array(layer(x, CONDITION)),
            normalized(x, 1e-7, gamma[axes], beta[axes]),
            rtol=0,
            atol=5e-6,
        )


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3])
@pytest.mark.parametrize("deviation", [1e-3, 1.0])
def test_rms_norm(deviation, epsilon):
    x = (deviation * (X + 1)).astype("float64")
    expected = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)
    np.testing.assert_allclose(array(RMSNorm(epsilon)(x)), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16"])
def test_norms_do_not_overflow_in_float16(dtype):
    x = (3e4 * X / np.abs(X).max()).astype("float16")
    for layer, expected in (
        (LayerNorm(dtype=dtype), normalized(x, 1e-12)),
        (
            RMSNorm(dtype=dtype),
            x / np.sqrt(np.square(x.astype("d")).mean(-1)[..., None]),
        ),
    ):
        np.testing.assert_allclose(array(layer(x)), expected, rtol=0, atol=3e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layers_run_with_weights_of_half_precision(dtype):
    """Policies that keep the weights themselves in a small type."""
    for name in ("attention-everything", "block-condition", "mlm-head"):
        case = CASES[name]
        output = call(case.make(dtype=dtype), case.inputs)
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        assert np.isfinite(array(output)).all()


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def test_gelu_is_the_exact_one():
    x = np.linspace(-6, 6, 301, dtype="float32")
    np.testing.assert_allclose(array(erf_gelu(x)), gelu(x.astype("d")), atol=1e-6)


# === Attention ===


def attention(
    weights,
    x,
    heads,
    visible=None,
    positions=None,
    residual=None,
    base=10000.0,
    layout="interleaved",
):
    """Returns the output and the scores, by loops over rows and heads.

    `visible`: bool `(batch, heads, query, key)`.
    """
    x = np.asarray(x, "float64")
    batch, length, _ = x.shape
    if positions is None:
        positions = np.arange(length)[None]
    projected = {
        name: (x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0)).reshape(
            batch, length, heads, -1
        )
        for name in ("query", "key", "value")
    }
    query = rotated(projected["query"], positions, base, layout)
    key = rotated(projected["key"], positions, base, layout)
    output = np.empty(projected["value"].shape)
    scores = np.empty((batch, heads, length, length))
    for row, h, q in np.ndindex(batch, heads, length):
        score = key[row, :, h] @ query[row, q, h] / np.sqrt(query.shape[-1])
        scores[row, h, q] = score
        if residual is not None:
            score = score + residual[row, h, q]
        seen = np.ones(length, bool) if visible is None else visible[row, h, q]
        weight = np.exp(score[seen] - score[seen].max())
        output[row, q, h] = weight / weight.sum() @ projected["value"][row, seen, h]
    output = output.reshape(batch, length, -1)
    output = output @ weights["output_dense/kernel"]
    return output + weights.get("output_dense/bias", 0), scores


def fixed(layer, x=X, **arguments):
    """The layer, built and with weights that show every term."""
    layer(x, **arguments)
    randomize(layer)
    return layer


ARBITRARY = np.random.default_rng(4).random((2, 2, 5, 5)) < 0.5
ARBITRARY[..., 2] = True  # every query sees something


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"head_dim": 4},
        {"head_dim": 4, "use_bias": False, "base": 100.0},
        {"head_dim": 3, "key_dim": 10, "layout": "half_split"},
    ],
    ids=["v1", "v2", "key_dim"],
)
@pytest.mark.parametrize(
    "mask",
    [
        None,
        KEYS,
        np.tril(np.ones((5, 5), bool)),
        array(unilm_mask(SEGMENTS)).astype(bool),
        ARBITRARY,
        ARBITRARY[:1],
        ARBITRARY[0],
    ],
    ids=["none", "padding", "causal", "unilm", "4-D", "one row", "3-D"],
)
def test_attention(mask, options):
    layer = fixed(RoPEAttention(2, **options))
    visible = None if mask is None else np.broadcast_to(mask, (2, 2, 5, 5))
    expected, scores = attention(
        weights_of(layer),
        X,
        2,
        visible,
        base=options.get("base", 10000.0),
        layout=options.get("layout", "interleaved"),
    )
    output, ours = layer(X, attention_mask=mask, return_scores=True)
    np.testing.assert_allclose(array(output), expected, rtol=0, atol=2e-5)
    # Scores come as they are before the mask.
    np.testing.assert_allclose(array(ours), scores, rtol=0, atol=2e-5)


@pytest.mark.parametrize("positions", [POSITIONS, POSITIONS[:1], POSITIONS.astype(int)])
def test_attention_with_given_positions_and_residual_scores(positions):
    layer = fixed(RoPEAttention(2, 4))
    residual = 2 * random(2, 2, 5, 5)
    visible = np.broadcast_to(KEYS, (2, 2, 5, 5))
    expected, scores = attention(weights_of(layer), X, 2, visible, positions, residual)
    inputs = {"position_ids": positions, "residual_scores": residual}
    output, ours = layer(X, attention_mask=KEYS, return_scores=True, **inputs)
    np.testing.assert_allclose(array(output), expected, rtol=0, atol=2e-5)
    # They are not in what is passed on.
    np.testing.assert_allclose(array(ours), scores, rtol=0, atol=2e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_query_that_sees_nothing(policy):
    layer = fixed(RoPEAttention(2, 4, dtype=policy))
    mask = np.ones((2, 1, 5, 5), bool)
    before = array(layer(X, attention_mask=mask))
    mask[0, 0, 3] = False
    output = array(layer(X, attention_mask=mask))
    assert np.isfinite(output).all()
    others = np.ones((2, 5), bool)
    others[0, 3] = False
    np.testing.assert_array_equal(output[others], before[others])


@pytest.mark.parametrize("policy", POLICIES)
def test_masked_keys_weigh_nothing_beside_large_scores(policy):
    """Scores of some hundreds, the largest of them masked; NaN-safe in float16."""
    layer = fixed(RoPEAttention(2, 4, dtype=policy), 8 * X)
    visible = np.ones(5, bool)
    visible[[1, 4]] = False
    output, scores = layer(
        16 * X, attention_mask=visible[None, None, None], return_scores=True
    )
    assert 100 < np.abs(array(scores)).max() < 10000
    positions = np.arange(5)[None, visible]
    expected = layer((16 * X)[:, visible], position_ids=positions)
    assert np.isfinite(array(output)).all()
    np.testing.assert_allclose(
        array(output)[:, visible],
        array(expected),
        rtol=0,
        atol=POLICIES[policy] * np.abs(array(expected)).max(),
    )


# === Angles are float32 whatever the policy ===

FAR = np.array([[0, 1000.0, 1], [0, 1001.0, 1], [0, 1000.25, 1]], "float32")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_long_sequences_keep_their_distances(policy):
    """Counted positions past 512: what stands last sees what it would see first."""
    x = np.repeat(random(1, 1, 8), 700, axis=1)
    x[:, 10], x[:, 690] = random(8, seed=1), random(8, seed=1)
    layer = fixed(RoPEAttention(2, 4, dtype=policy), x)
    near = np.zeros((700, 700), bool)
    for query in (12, 692):
        near[query, query - 5 : query + 1] = True
    near[:, 0] |= ~near.any(axis=1)

    def difference(**arguments):
        output = array(layer(x, attention_mask=near, **arguments))[0]
        return np.abs(output[692] - output[12]).max()

    assert difference() < 0.01
    # Positions in bfloat16 would be off by up to two here, which shows.
    assert difference(position_ids=ops.cast(np.arange(700)[None], "bfloat16")) > 0.2


@pytest.mark.parametrize("policy", POLICIES)
def test_sinusoidal_positions_are_not_rounded(policy):
    layer = SinusoidalPositionEmbedding(6, dtype=policy)
    inputs = keras.Input((3, 8)), keras.Input((3,), dtype="float32")
    model = keras.Model(inputs, layer(inputs[0], position_ids=inputs[1]))
    output = array(model([random(3, 3, 8), FAR]))
    expected = np.sin(angles(FAR, 6))
    np.testing.assert_allclose(output[..., 0::2], expected, rtol=0, atol=1e-4)


# === Cache ===


def stepper(layer, mode):
    def step(x, index, cache, mask, positions):
        return layer(
            x,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            cache_index=index,
        )

    return tf.function(step) if mode == "graph" else step


INDEXES = {"int": int, "tensor": lambda i: tf.constant(i, tf.int32)}


@pytest.mark.slow
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_cache_with_unequal_prefixes(mode, index):
    """Row 0 has 2 tokens and a gap where row 1 has 4; then both continue."""
    x, lengths, prefix, capacity = random(2, 7, 8), (2, 4), 4, 8
    layer = fixed(RoPEAttention(2, 3, key_dim=4), x)
    step, as_index = stepper(layer, mode), INDEXES[index]
    written = np.arange(prefix)[None] < np.array(lengths)[:, None]

    def mask(start, stop):
        keys = np.zeros((2, 1, 1, capacity), bool)
        keys[:, 0, 0, :prefix] = written
        keys[..., prefix:] = True
        causal = np.arange(capacity)[None] <= np.arange(start, stop)[:, None]
        return tf.constant(keys & causal)

    positions = np.tile(np.arange(prefix, dtype="float32"), (2, 1))
    cache = layer.create_cache(2, capacity)
    output, cache = step(x[:, :prefix], as_index(0), cache, mask(0, 4), positions)
    outputs = [array(output)]
    for at in range(prefix, 7):
        positions = np.array([[length + at - prefix] for length in lengths], "float32")
        output, cache = step(
            x[:, at : at + 1], as_index(at), cache, mask(at, at + 1), positions
        )
        outputs.append(array(output))
    outputs = np.concatenate(outputs, axis=1)
    for row, length in enumerate(lengths):
        kept = np.r_[0:length, prefix:7]
        alone = x[row : row + 1, kept]
        expected = array(layer(alone, attention_mask=causal_mask(len(kept))))[0]
        np.testing.assert_allclose(outputs[row, kept], expected, rtol=0, atol=1e-5)


def test_cache_of_any_prompt_length_in_one_graph():
    """One trace for every prompt: lengths and the index are tensors."""
    layer = fixed(RoPEAttention(2, 4))
    traces = []

    @tf.function(
        input_signature=[
            tf.TensorSpec([2, None, 8]),
            tf.TensorSpec([], tf.int32),
            (tf.TensorSpec([2, 2, None, 4]), tf.TensorSpec([2, 2, None, 4])),
        ]
    )
    def step(x, index, cache):
        traces.append(1)
        mask = causal_mask(tf.shape(x)[1], tf.shape(cache[0])[2], index)
        return layer(x, attention_mask=mask, cache=cache, cache_index=index)

    for prompt, capacity in ((1, 5), (3, 6), (4, 5)):
        cache, outputs = layer.create_cache(2, capacity), []
        for start, stop in ((0, prompt), *((i, i + 1) for i in range(prompt, 5))):
            output, cache = step(X[:, start:stop], start, cache)
            outputs.append(array(output))
        expected = array(layer(X, attention_mask=causal_mask(5)))
        np.testing.assert_allclose(
            np.concatenate(outputs, axis=1), expected, rtol=0, atol=1e-5
        )
    assert len(traces) == 1


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_cache_of_a_block(policy):
    layer = fixed(block(dtype=policy))
    expected = array(layer(X, attention_mask=causal_mask(5)))
    cache = layer.attention.create_cache(2, 5)
    first, cache = layer(
        X[:, :3], attention_mask=causal_mask(3, 5), cache=cache, cache_index=0
    )
    second, scores, cache = layer(
        X[:, 3:],
        attention_mask=causal_mask(2, 5, 3),
        cache=cache,
        cache_index=3,
        return_scores=True,
    )
    assert keras.backend.standardize_dtype(cache[0].dtype) == layer.compute_dtype
    assert scores.shape == (2, 2, 2, 5)
    np.testing.assert_allclose(
        np.concatenate([array(first), array(second)], axis=1),
        expected,
        rtol=0,
        atol=max(1e-5, POLICIES[policy] * (policy != "float32")),
    )


# === Context ===


def split(layer, x, cuts, capacity):
    """Caches of the stretches of `x` between cuts, each in `capacity` places."""
    caches = []
    for start, stop in itertools.pairwise(cuts):
        positions = np.arange(start, stop)[None]
        cache = layer.create_cache(len(x), capacity)
        # What it attends to is of no interest here, only its keys and values.
        _, cache = layer(x[:, start:stop], position_ids=positions, cache=cache)
        caches.append(cache)
    return caches


def mask_of(cuts, capacity, rest, hidden):
    """Bool `(1, 1, rest, keys)`: what is written and not hidden, causal in the rest."""
    keys = []
    for start, stop in itertools.pairwise(cuts):
        at = np.arange(start, start + capacity)
        keys.append((at < stop) & ~np.isin(at, hidden))
    before = np.tile(np.concatenate(keys), (rest, 1)) if keys else np.ones((rest, 0))
    own = np.tril(np.ones((rest, rest)))
    return np.concatenate([before, own], axis=1).astype(bool)[None, None]


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("hidden", [[], [1, 4]])
@pytest.mark.parametrize("cuts", [[0, 5], [0, 3, 5], [0, 1, 2, 5]])
def test_context_equals_all_at_once(cuts, hidden, cached):
    """Contexts that are longer than what is in them, read in their order."""
    x = random(2, 8, 8)
    layer = fixed(RoPEAttention(2, 3, key_dim=4), x)
    visible = np.tril(np.ones((8, 8), bool))
    visible[5:, hidden] = False
    expected = array(layer(x, attention_mask=visible[None, None]))[:, 5:]
    options = {"context": split(layer, x, cuts, 5)}
    before = [[array(part) for part in cache] for cache in options["context"]]
    mask = mask_of(cuts, 5, 3, hidden)
    if cached:
        options.update(cache=layer.create_cache(2, 4), cache_index=1)
        # Nothing is at place 0 of the cache that is written.
        mask = np.insert(mask, mask.shape[-1] - 3, False, axis=-1)
    output = layer(
        x[:, 5:],
        attention_mask=mask,
        position_ids=np.arange(5, 8)[None],
        return_scores=True,
        **options,
    )
    np.testing.assert_allclose(array(output[0]), expected, rtol=0, atol=1e-5)
    keys = 5 * (len(cuts) - 1) + (4 if cached else 3)
    assert output[1].shape == (2, 2, 3, keys)
    assert len(output) == (3 if cached else 2)
    if cached:
        assert output[2][0].shape == (2, 2, 4, 4)
    # They are only read.
    for cache, old in zip(options["context"], before, strict=True):
        for part, value in zip(cache, old, strict=True):
            np.testing.assert_array_equal(array(part), value)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("residual", [False, True])
def test_context_of_fewer_rows_serves_neighbours(rows, residual):
    """As a context in which each row is repeated for those that share it."""
    shared, x = random(rows, 4, 8), random(6, 2, 8, seed=1)
    layer = fixed(RoPEAttention(2, 3, key_dim=4), x)
    own = random(6, 3, 8, seed=2)
    mask = np.random.default_rng(0).random((6, 1, 2, 4 + 3 + 2)) < 0.7
    mask[..., -1] = True
    options = {"attention_mask": mask, "return_scores": True}
    options["position_ids"] = np.array([[7, 8]])
    if residual:
        options["residual_scores"] = random(6, 2, 2, 9, seed=3)
    (few,), (past,) = split(layer, shared, [0, 4], 4), split(layer, own, [0, 3], 3)
    many = tuple(np.repeat(array(part), 6 // rows, axis=0) for part in few)
    many = tuple(part.astype("float32") for part in many)
    found = layer(x, context=[few, past], **options)
    expected = layer(x, context=[many, past], **options)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(array(ours), array(theirs), rtol=0, atol=1e-5)
    # Rows of another order would show.
    if rows > 1:
        other = layer(x, context=[tuple(p[::-1] for p in many), past], **options)
        assert np.abs(array(other[0]) - array(found[0])).max() > 1e-2


# === Masks ===


@pytest.mark.parametrize("seed", range(5))
def test_masks_against_loops(seed):
    generator = np.random.default_rng(seed)
    token_ids = generator.integers(0, 4, (3, 6)).astype("int32")
    segment_ids = generator.integers(0, 2, (3, 6)).astype("int32")
    padding = np.zeros((3, 1, 1, 6), bool)
    pad_segments = np.zeros((3, 1, 1, 6), bool)
    causal = np.zeros((1, 1, 6, 6), bool)
    unilm = np.zeros((3, 1, 6, 6), bool)
    for row in range(3):
        for key in range(6):
            padding[row, 0, 0, key] = token_ids[row, key] != 0 or key == 0
            pad_segments[row, 0, 0, key] = segment_ids[row, key] != 0 or key == 0
            for query in range(6):
                causal[0, 0, query, key] = key <= query
                ones = [sum(segment_ids[row, : at + 1]) for at in (key, query)]
                unilm[row, 0, query, key] = ones[0] <= ones[1]
    np.testing.assert_array_equal(padding_mask(token_ids), padding)
    np.testing.assert_array_equal(causal_mask(6), causal)
    np.testing.assert_array_equal(unilm_mask(segment_ids), unilm)
    for pattern, expected in (
        ("bidirectional", padding),
        ("causal", padding & causal),
        ("unilm", padding & unilm),
    ):
        np.testing.assert_array_equal(
            AttentionMask(pattern)(token_ids, segment_ids), expected
        )
        np.testing.assert_array_equal(
            AttentionMask(pattern, pad_segments=True)(token_ids, segment_ids),
            expected & pad_segments,
        )


# === Errors ===


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: RoPEAttention(0, 4), ["num_heads", "0"]),
        (lambda: RoPEAttention(2, 0), ["head_dim", "0"]),
        (lambda: RoPEAttention(2, 5), ["key_dim", "even", "5"]),
        (lambda: RoPEAttention(2, 4, key_dim=7), ["key_dim", "even", "7"]),
        (lambda: RoPEAttention(2, 4, key_dim=0), ["key_dim", "0"]),
        (lambda: RoPEAttention(2, 4, base=0), ["base", "0"]),
        (lambda: RoPEAttention(2, 4, layout="split"), ["interleaved", "'split'"]),
        (lambda: RoPEAttention(2, 4, dropout=1), ["dropout", "[0, 1)", "1"]),
        (lambda: SinusoidalPositionEmbedding(5), ["even", "5"]),
        (lambda: SinusoidalPositionEmbedding(6, base=-1.0), ["base", "-1.0"]),
        (lambda: rotary_table([[0]], 3), ["even", "3"]),
        (lambda: rotary_table([[0]], 4, layout="x"), ["half_split", "'x'"]),
        (lambda: apply_rotary(X[:, :, None], X, X, layout="x"), ["layout", "'x'"]),
        (lambda: LayerNorm(0), ["epsilon", "0"]),
        (lambda: LayerNorm(conditional=True)(X), ["condition"]),
        (lambda: RMSNorm(-1e-7), ["epsilon", "-1e-07"]),
        (lambda: FeedForward(0), ["intermediate_dim", "0"]),
        (lambda: FeedForward(4, activation="geluu"), ["activation", "'geluu'"]),
        (lambda: Pooler("tanhh")(X), ["activation", "'tanhh'"]),
        (
            lambda: head(8, transform=False, conditional=True)("float32"),
            ["transform", "condition"],
        ),
        (lambda: AttentionMask("lm"), ["causal", "'lm'"]),
    ],
)
def test_broken_rules(make, parts):
    with pytest.raises(ConfigurationError) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


def test_attention_wants_three_axes():
    with pytest.raises(ValueError, match=r"\(batch, length, hidden_dim\).*\(2, 8\)"):
        RoPEAttention(2, 4)(random(2, 8))


def test_a_cache_has_no_room_for_more_than_its_capacity():
    layer = RoPEAttention(2, 4)
    x = random(1, 3, 8)
    layer(x)
    with pytest.raises(ConfigurationError, match="capacity 4 has no room for 3 tokens"):
        layer(x, cache=layer.create_cache(1, 4), cache_index=2)


def test_a_block_takes_its_arguments_by_position_in_a_functional_model():
    layer = block()
    x = keras.Input((None, 8))
    mask = keras.Input((1, 1, None), dtype="bool")
    model = keras.Model([x, mask], layer(x, mask))
    visible = np.ones((1, 1, 1, 3), bool)
    values = random(1, 3, 8)
    np.testing.assert_allclose(model([values, visible]), layer(values, visible))


def test_activations_of_a_configuration_are_those_of_keras():
    assert all(callable(keras.activations.get(name)) for name in ACTIVATIONS)

"""Every layer: one check for all of them, then its numbers.

The numbers are float64 NumPy, written from the formulas; nothing of the package
computes its own reference. TensorFlow here; the other backends have test_backends.py.
"""

import inspect
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import assert_close, normal, randomize, to_numpy
from keras import ops

import roformer_keras.layers as package_layers
from roformer_keras.base.config import ACTIVATIONS
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.layers import (
    AttentionMask,
    ConditionalRandomField,
    EfficientGlobalPointer,
    FeedForward,
    GlobalPointer,
    LayerNorm,
    LinearRoPEAttention,
    MaskedLMHead,
    Pooler,
    RMSNorm,
    RoFormerBlock,
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


def weights_of(layer):
    """Float64, by the last two parts of the path: `query/kernel`."""
    return {"/".join(w.path.split("/")[1:]): to_numpy(w) for w in layer.weights}


# === One check for every layer ===

X = normal(2, 5, 8)
IDS = np.array([[3, 0, 4, 5, 0], [6, 7, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], "int32")
KEYS = (IDS != 0)[:, None, None]
POSITIONS = np.array([[0, 1, 2.5, 3, 4], [7, 8, 9, 1, 0]], "float32")
CONDITION = normal(2, 3, seed=1)


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


@dataclass(frozen=True)
class Case:
    """A layer, and what it must give."""

    make: Callable  # of a dtype policy
    weights: int
    inputs: dict
    shape: tuple
    dtype: str | None


def case(weights, cls, *sizes, inputs=None, shape=(2, 5, 8), dtype=None, **options):
    """Without a `dtype` the output is of the compute type of the policy."""
    make = partial(cls, *sizes, **options)
    return Case(make, weights, inputs or {"x": X}, shape, dtype)


PLACED = {"x": X, "attention_mask": KEYS, "position_ids": POSITIONS}
CONDITIONED = {"x": X, "condition": CONDITION}
RESIDUAL = {"residual_scores": normal(2, 2, 5, 5)}
ALL = {
    "key_dim": 6,
    "base": 50.0,
    "layout": "half_split",
    "use_bias": False,
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3),
}
FEW = {"num_features": 6, "seed": 3, "rotary": False}
CONDITIONAL = {"conditional": True, "inputs": CONDITIONED}
HIDDEN = {"condition_hidden_dim": 4, "condition_hidden_activation": "tanh"}
AT_POSITIONS = {"x": X, "position_ids": POSITIONS}
SINES = {"shape": (2, 5, 6), "dtype": "float32"}
TOKENS = {"shape": (2, 5, 11)}
# No tolerance is next to -inf.
PAIRS = {"shape": (2, 3, 5, 5), "upper_triangular": False}
MASK = {"dtype": "bool", "pad_segments": True}
MASK["inputs"] = {"token_ids": IDS, "segment_ids": SEGMENTS}

CASES = {
    "sinusoidal": case(
        0, SinusoidalPositionEmbedding, 6, **{**SINES, "shape": (1, 5, 6)}
    ),
    "sinusoidal-positions": case(
        0, SinusoidalPositionEmbedding, 6, 100.0, inputs=AT_POSITIONS, **SINES
    ),
    "attention": case(8, RoPEAttention, 2, 4, dropout=0.5),
    "attention-all": case(4, RoPEAttention, 2, 3, **ALL, inputs=PLACED | RESIDUAL),
    **{
        f"{kind}-attention{'-causal' * causal}": case(
            8, LinearRoPEAttention, 2, 4, kind, causal, inputs=PLACED
        )
        for kind in ("linear", "cosine", "performer", "rotary_performer")
        for causal in (False, True)
    },
    "linear-attention-all": case(4, LinearRoPEAttention, 2, 3, **ALL),
    "performer-unplaced": case(8, LinearRoPEAttention, 2, 4, "performer", **FEW),
    "layer-norm": case(2, LayerNorm),
    "layer-norm-condition": case(4, LayerNorm, 1e-7, **CONDITIONAL),
    "layer-norm-condition-hidden": case(5, LayerNorm, **CONDITIONAL, **HIDDEN),
    "rms-norm": case(0, RMSNorm, 1e-7),
    "feed-forward": case(4, FeedForward, 16),
    "feed-forward-v2": case(2, FeedForward, 16, "relu", use_bias=False),
    "block": case(16, block, dropout=0.5, inputs=PLACED),
    "block-pre": case(16, block, norm_first=True, inputs=PLACED),
    "block-condition": case(22, conditional_block, inputs=CONDITIONED),
    "block-of-linear-cost": case(16, linear_block, inputs=PLACED),
    "block-v2": case(6, v2_block, inputs={"x": X} | RESIDUAL),
    "mlm-head": case(6, head, 8, **TOKENS),
    "mlm-head-narrow-condition": case(
        8, head, 6, layer_norm_epsilon=1e-7, **CONDITIONAL, **TOKENS
    ),
    "mlm-head-v2": case(1, head, 8, transform=False, dropout=0.5, **TOKENS),
    "mlm-head-v2-narrow": case(2, head, 6, transform=False, **TOKENS),
    "crf": case(1, ConditionalRandomField, 5.0, inputs={"scores": X}, dtype="float32"),
    "pointer": case(2, GlobalPointer, 3, 4, **PAIRS),
    "pointer-efficient": case(4, EfficientGlobalPointer, 3, 4, **PAIRS),
    "pooler": case(2, Pooler, "tanh", shape=(2, 8)),
    "mask-bidirectional": case(0, AttentionMask, **MASK, shape=(2, 1, 1, 5)),
    "mask-causal": case(0, AttentionMask, "causal", **MASK, shape=(2, 1, 5, 5)),
    "mask-unilm": case(0, AttentionMask, "unilm", **MASK, shape=(2, 1, 5, 5)),
}
# All classes, all arguments of calls, and all ways to go by the length.
IN_A_MODEL = (
    *("sinusoidal-positions", "attention-all"),
    *("linear-attention", "cosine-attention-causal", "layer-norm-condition-hidden"),
    *("rotary_performer-attention-causal", "rms-norm", "feed-forward", "pooler"),
    *("block-pre", "block-condition", "block-of-linear-cost", "block-v2"),
    *("mlm-head-narrow-condition", "mlm-head-v2-narrow", "crf"),
    *("pointer", "pointer-efficient", "mask-causal", "mask-unilm"),
)
HAS_DROPOUT = (*("attention", "block", "block-condition", "mlm-head-v2"),)
# One of each way to compute in float32 inside.
MIXED = (
    "attention-all",
    "rotary_performer-attention-causal",
    "block-condition",
    "decoder-block",
    "mlm-head",
    "pointer-efficient",
)


def call(layer, inputs, **options):
    """The first argument by position, as Keras wants a layer to be called."""
    first, *others = inputs
    return layer(inputs[first], **{name: inputs[name] for name in others}, **options)


@pytest.fixture(scope="module")
def layers():
    """(case, policy) -> a layer with weights that show every term, and its output."""
    built = {}
    for name, case in CASES.items():
        for policy in POLICIES if name in MIXED else ("float32",):
            layer = case.make(dtype=policy)
            call(layer, case.inputs)
            randomize(layer)
            built[name, policy] = layer, to_numpy(call(layer, case.inputs))
    return built


def test_every_layer_has_a_case(layers):
    public = {getattr(package_layers, name) for name in package_layers.__all__}
    public = {x for x in public if inspect.isclass(x)}
    expected = {x for x in public if issubclass(x, keras.layers.Layer)}
    assert expected == {type(layer) for layer, _ in layers.values()}


def test_layers_have_shapes_types_and_configurations(layers):
    wrong = []
    for (name, policy), (layer, expected) in layers.items():
        case = CASES[name]
        output = call(layer, case.inputs)
        config = json.loads(json.dumps(keras.layers.serialize(layer)))
        arguments = set(inspect.signature(type(layer)).parameters) - {"kwargs"}
        restored = keras.layers.deserialize(config)
        restored.set_weights(layer.get_weights())
        # The mixed policies compute the same as float32, to their precision.
        error = np.abs(expected - layers[name, "float32"][1]).max()
        checks = {
            "shape": output.shape == case.shape,
            "type": keras.backend.standardize_dtype(output.dtype)
            == (case.dtype or layer.compute_dtype),
            "number of weights": len(layer.weights) == case.weights,
            "type of weights": {w.dtype for w in layer.weights} <= {"float32"},
            "precision": error <= POLICIES[policy] * max(1, np.abs(expected).max()),
            "arguments": arguments <= set(config["config"]),
            "configuration": restored.get_config() == layer.get_config(),
            "output of the restored layer": np.array_equal(
                to_numpy(call(restored, case.inputs)), expected
            ),
        }
        wrong += [
            (name, policy, what) for what, is_right in checks.items() if not is_right
        ]
    assert wrong == []


@pytest.mark.slow
def test_a_model_of_layers_is_traced_and_loaded(layers, tmp_path):
    """No length is known: in the model, and in a graph of the loaded model."""
    symbols, values, outputs = {}, {}, {}
    policies = {x: "mixed_bfloat16" if x in MIXED else "float32" for x in IN_A_MODEL}
    for name, policy in policies.items():
        case, (layer, _) = CASES[name], layers[name, policy]
        arguments = {}
        for key, value in case.inputs.items():
            shape = [None if size == 5 else size for size in value.shape[1:]]
            label = f"{name}.{key}"
            arguments[key] = keras.Input(shape, dtype=value.dtype.name, name=label)
            symbols[label], values[label] = arguments[key], tf.constant(value)
        output = outputs[name] = call(layer, arguments)
        assert output.dtype == (case.dtype or layer.compute_dtype), name
        sizes = [None if size == 5 else size for size in case.shape[1:]]
        assert output.shape[1:] == tuple(sizes), name
    keras.Model(symbols, outputs).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    specs = {
        label: tf.TensorSpec([None, *symbol.shape[1:]], values[label].dtype)
        for label, symbol in symbols.items()
    }
    traced = tf.function(lambda inputs: loaded(inputs), input_signature=[specs])
    eager, graph = loaded(values), traced(values)
    for name, policy in policies.items():
        _, expected = layers[name, policy]
        np.testing.assert_array_equal(to_numpy(eager[name]), expected, err_msg=name)
        assert_close(graph[name], expected, POLICIES[policy], name)


def test_the_mask_of_padding_is_passed_on():
    expected = IDS != 0
    expected[:, 0] = True
    for name in ("layer-norm", "rms-norm", "feed-forward", "attention", "block"):
        masked = PaddingMask()([tf.constant(X), IDS, SEGMENTS])
        output = CASES[name].make(dtype="float32")(masked)
        np.testing.assert_array_equal(output._keras_mask, expected, err_msg=name)


def test_dropout_is_for_training_and_follows_the_seed():
    def run(case, training):
        keras.utils.set_random_seed(7)
        return to_numpy(
            call(case.make(dtype="float32"), case.inputs, training=training)
        )

    for name in HAS_DROPOUT:
        trained, plain = run(CASES[name], True), run(CASES[name], False)
        assert (run(CASES[name], True) == trained).all(), name
        assert (trained != plain).any(), name
        assert (run(CASES[name], None) == plain).all(), name


def test_block_drops_what_each_part_gives():
    # One part gives ones, which a norm takes off again, and the other zeros.
    plain = normalized(normalized(X, 1e-12), 1e-12)
    for part in ("attention", "feed_forward"):
        layer = block(dropout=0.5)
        layer(X)
        for name in ("attention", "feed_forward"):
            dense = getattr(layer, name).output_dense
            dense.kernel.assign(np.zeros(dense.kernel.shape))
            dense.bias.assign(np.full(dense.bias.shape, float(name == part)))
        assert_close(layer(X), plain, 1e-5)
        assert np.abs(to_numpy(layer(X, training=True)) - plain).max() > 0.1


def test_gradients_reach_every_weight(layers):
    for (name, policy), (layer, _) in layers.items():
        case = CASES[name]
        # The transitions of a CRF are for its loss.
        if not case.weights or name == "crf" or policy != "float32":
            continue
        with tf.GradientTape() as tape:
            output = call(layer, case.inputs)
            loss = tf.reduce_sum(output * normal(*output.shape, seed=9))
        variables = [weight.value for weight in layer.trainable_weights]
        assert len(variables) == case.weights
        for weight, gradient in zip(
            layer.weights, tape.gradient(loss, variables), strict=True
        ):
            gradient = tf.convert_to_tensor(gradient).numpy()
            assert np.isfinite(gradient).all(), (name, weight.path)
            assert (gradient != 0).mean() > 0.5, (name, weight.path)


def test_tied_embedding_stays_tied_when_loaded(tmp_path):
    """The head and the graph share one embedding, in a user's own model too."""
    embedding = keras.layers.ReversibleEmbedding(11, 8)
    token_ids = keras.Input((None,), dtype="int32")
    model = keras.Model(token_ids, MaskedLMHead(embedding)(embedding(token_ids)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights) == 6
    np.testing.assert_array_equal(to_numpy(loaded(IDS)), to_numpy(model(IDS)))


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


@pytest.mark.parametrize("policy", POLICIES)
def test_sinusoidal_position_embedding(policy):
    """Positions are not rounded, whatever the policy."""
    far = np.array([[0, 1000.0, 1], [0, 1001.0, 1], [0, 1000.25, 1]], "float32")
    for dim, base in ((6, 10000.0), (8, 30.0)):
        layer = SinusoidalPositionEmbedding(dim, base, dtype=policy)
        inputs = keras.Input((3, 8)), keras.Input((3,), dtype="float32")
        model = keras.Model(inputs, layer(inputs[0], position_ids=inputs[1]))
        for positions, atol in ((far, 1e-4), (POSITIONS[:, :3], 2e-6)):
            output = to_numpy(model([normal(len(positions), 3, 8), positions]))
            assert_close(output[..., 0::2], np.sin(angles(positions, dim, base)), atol)
            assert_close(output[..., 1::2], np.cos(angles(positions, dim, base)), atol)
        assert_close(layer(X)[0, 3:, 0], np.sin([3, 4]), 1e-6)


# === Norms and activations ===


def normalized(x, epsilon, gamma=1.0, beta=0.0):
    x = np.asarray(x, "float64")
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * gamma + beta


def test_norms():
    for deviation, epsilon in itertools.product((1e-5, 3e-4, 1.0), (1e-12, 1e-3)):
        x = deviation * X
        layer = fixed(LayerNorm(epsilon))
        gamma, beta = (to_numpy(w) for w in (layer.gamma, layer.beta))
        assert_close(layer(x), normalized(x, epsilon, gamma, beta), 5e-6)
        x = (deviation * (X + 1)).astype("float64")
        expected = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon)
        assert_close(RMSNorm(epsilon)(x), expected, 5e-6)
    # Where the mean is 1e4 deviations, what is left of float32 is kept.
    x = 100 + 1e-2 * X
    assert_close(LayerNorm()(x), normalized(x, 1e-12), 5e-3)
    for value in (0.0, 0.1, 300.1):
        x = np.full((2, 5, 9), value, "float32")
        assert np.isfinite(to_numpy(LayerNorm()(x))).all()
        assert np.isfinite(to_numpy(RMSNorm()(x))).all()


@pytest.mark.parametrize("hidden", [None, 4])
def test_conditional_layer_norm(hidden):
    options = {**HIDDEN, "condition_hidden_dim": hidden}
    layer = LayerNorm(1e-7, conditional=True, **options)
    # The condition counts for nothing until it is trained.
    assert_close(layer(X, CONDITION), to_numpy(LayerNorm(1e-7)(X)), 0)
    randomize(layer)
    kernels = {k.removesuffix("/kernel"): v for k, v in weights_of(layer).items()}
    condition = CONDITION.astype("float64")
    if hidden:
        condition = np.tanh(condition @ kernels["hidden_dense"])
    gamma = kernels["gamma"] + condition @ kernels["gamma_dense"]
    beta = kernels["beta"] + condition @ kernels["beta_dense"]
    # With a length, without one, and with two axes in place of one.
    for shape in ((2, 5, 8), (2, 8), (2, 5, 3, 8)):
        x = normal(*shape)
        axes = (slice(None),) + (None,) * (len(shape) - 2)
        assert_close(
            layer(x, CONDITION), normalized(x, 1e-7, gamma[axes], beta[axes]), 5e-6
        )


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16"])
def test_norms_do_not_overflow_in_float16(dtype):
    x = (3e4 * X / np.abs(X).max()).astype("float16")
    assert_close(LayerNorm(dtype=dtype)(x), normalized(x, 1e-12), 3e-3)
    length = np.sqrt(np.square(x.astype("d")).mean(-1)[..., None])
    assert_close(RMSNorm(dtype=dtype)(x), x / length, 3e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layers_run_with_weights_of_half_precision(dtype):
    """Policies that keep the weights themselves in a small type."""
    for name in ("attention-all", "block-condition", "mlm-head"):
        case = CASES[name]
        output = call(case.make(dtype=dtype), case.inputs)
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        assert np.isfinite(to_numpy(output)).all()


def test_gelu_is_the_exact_one():
    x = np.linspace(-6, 6, 301, dtype="float32")
    exact = x.astype("d")
    assert_close(
        erf_gelu(x), exact / 2 * (1 + np.vectorize(math.erf)(exact / 2**0.5)), 1e-6
    )


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
MASKS = {
    "none": None,
    "padding": KEYS,
    "causal": np.tril(np.ones((5, 5), bool)),
    "unilm": to_numpy(unilm_mask(SEGMENTS)).astype(bool),
    "4-D": ARBITRARY,
    "one row": ARBITRARY[:1],
    "3-D": ARBITRARY[0],
}


@pytest.mark.parametrize(
    "options",
    [
        {"head_dim": 4},
        {"head_dim": 4, "use_bias": False, "base": 100.0},
        {"head_dim": 3, "key_dim": 10, "layout": "half_split"},
        {"head_dim": 4, "rotary": False},
    ],
    ids=["v1", "v2", "key_dim", "unplaced"],
)
def test_attention(options):
    layer = fixed(RoPEAttention(2, **options))
    rotation = {key: options[key] for key in ("base", "layout") if key in options}
    if not options.get("rotary", True):
        rotation["positions"] = np.zeros((1, 5))
    for name, mask in MASKS.items():
        visible = None if mask is None else np.broadcast_to(mask, (2, 2, 5, 5))
        expected = attention(weights_of(layer), X, 2, visible, **rotation)
        outputs = layer(X, attention_mask=mask, return_scores=True)
        # Scores come as they are before the mask.
        for ours, value in zip(outputs, expected, strict=True):
            assert_close(ours, value, message=name)


def test_attention_with_given_positions_and_residual_scores():
    layer = fixed(RoPEAttention(2, 4))
    residual = 2 * normal(2, 2, 5, 5)
    visible = np.broadcast_to(KEYS, (2, 2, 5, 5))
    for positions in (POSITIONS, POSITIONS[:1], POSITIONS.astype(int)):
        expected = attention(weights_of(layer), X, 2, visible, positions, residual)
        inputs = {"position_ids": positions, "residual_scores": residual}
        outputs = layer(X, attention_mask=KEYS, return_scores=True, **inputs)
        # Residual scores are not in what is passed on.
        for ours, value in zip(outputs, expected, strict=True):
            assert_close(ours, value)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_query_that_sees_nothing(policy):
    layer = fixed(RoPEAttention(2, 4, dtype=policy))
    mask = np.ones((2, 1, 5, 5), bool)
    before = to_numpy(layer(X, attention_mask=mask))
    mask[0, 0, 3] = False
    output = to_numpy(layer(X, attention_mask=mask))
    assert np.isfinite(output).all()
    others = np.ones((2, 5), bool)
    others[0, 3] = False
    np.testing.assert_array_equal(output[others], before[others])


@pytest.mark.parametrize("policy", POLICIES)
def test_masked_keys_weigh_nothing_next_to_large_scores(policy):
    """Scores of some hundreds, the largest of them masked; NaN-safe in float16."""
    layer = fixed(RoPEAttention(2, 4, dtype=policy), 8 * X)
    visible = np.ones(5, bool)
    visible[[1, 4]] = False
    output, scores = layer(
        16 * X, attention_mask=visible[None, None, None], return_scores=True
    )
    assert 100 < np.abs(to_numpy(scores)).max() < 10000
    positions = np.arange(5)[None, visible]
    expected = to_numpy(layer((16 * X)[:, visible], position_ids=positions))
    assert np.isfinite(to_numpy(output)).all()
    atol = POLICIES[policy] * np.abs(expected).max()
    assert_close(to_numpy(output)[:, visible], expected, atol)


# === Angles are float32 whatever the policy ===


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_long_sequences_keep_their_distances(policy):
    """Counted positions past 512: what stands last sees what it would see first."""
    x = np.repeat(normal(1, 1, 8), 700, axis=1)
    x[:, 10], x[:, 690] = normal(8, seed=1), normal(8, seed=1)
    layer = fixed(RoPEAttention(2, 4, dtype=policy), x)
    near = np.zeros((700, 700), bool)
    for query in (12, 692):
        near[query, query - 5 : query + 1] = True
    near[:, 0] |= ~near.any(axis=1)

    def difference(**arguments):
        output = to_numpy(layer(x, attention_mask=near, **arguments))[0]
        return np.abs(output[692] - output[12]).max()

    assert difference() < 0.01
    # Positions in bfloat16 would be off by up to two here, which shows.
    assert difference(position_ids=ops.cast(np.arange(700)[None], "bfloat16")) > 0.2


# === Cache ===


def test_cache_with_unequal_prefixes():
    """Row 0 has 2 tokens and a gap where row 1 has 4; then both continue."""
    x, lengths, prefix, capacity = normal(2, 7, 8), (2, 4), 4, 8
    layer = fixed(RoPEAttention(2, 3, key_dim=4), x)
    written = np.arange(prefix)[None] < np.array(lengths)[:, None]

    def mask(start, stop):
        keys = np.zeros((2, 1, 1, capacity), bool)
        keys[:, 0, 0, :prefix] = written
        keys[..., prefix:] = True
        causal = np.arange(capacity)[None] <= np.arange(start, stop)[:, None]
        return keys & causal

    positions = np.tile(np.arange(prefix, dtype="float32"), (2, 1))
    cache, outputs = layer.create_cache(2, capacity), []
    for start, stop in itertools.pairwise((0, prefix, 5, 6, 7)):
        if start:
            positions = np.array([[n + start - prefix] for n in lengths], "float32")
        output, cache = layer(
            x[:, start:stop],
            attention_mask=mask(start, stop),
            position_ids=positions,
            cache=cache,
            cache_index=start,
        )
        outputs.append(to_numpy(output))
    outputs = np.concatenate(outputs, axis=1)
    for row, length in enumerate(lengths):
        tokens = np.r_[0:length, prefix:7]
        alone = x[row : row + 1, tokens]
        expected = layer(alone, attention_mask=causal_mask(len(tokens)))
        assert_close(outputs[row, tokens], to_numpy(expected)[0], 1e-5)


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

    expected = to_numpy(layer(X, attention_mask=causal_mask(5)))
    for prompt, capacity in ((1, 5), (3, 6), (4, 5)):
        cache, outputs = layer.create_cache(2, capacity), []
        for start, stop in ((0, prompt), *((i, i + 1) for i in range(prompt, 5))):
            output, cache = step(X[:, start:stop], start, cache)
            outputs.append(to_numpy(output))
        assert_close(np.concatenate(outputs, axis=1), expected, 1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_cache_of_a_block(policy):
    layer = fixed(block(dtype=policy))
    expected = to_numpy(layer(X, attention_mask=causal_mask(5)))
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
    output = np.concatenate([to_numpy(first), to_numpy(second)], axis=1)
    assert_close(output, expected, 1e-5 if policy == "float32" else POLICIES[policy])


# === Context ===


def split(layer, x, cuts, capacity):
    """Caches of the stretches of `x` between cuts, each of this capacity."""
    caches = []
    for start, stop in itertools.pairwise(cuts):
        positions = np.arange(start, stop)[None]
        cache = layer.create_cache(len(x), capacity)
        # What it attends to is of no interest here, only its keys and values.
        _, cache = layer(x[:, start:stop], position_ids=positions, cache=cache)
        caches.append(cache)
    return caches


def mask_of(cuts, capacity, length, hidden):
    """Bool `(1, 1, length, keys)`: `hidden` and empty keys are hidden, then causal."""
    keys = []
    for start, stop in itertools.pairwise(cuts):
        at = np.arange(start, start + capacity)
        keys.append((at < stop) & ~np.isin(at, hidden))
    before = np.tile(np.concatenate(keys), (length, 1))
    after = np.tril(np.ones((length, length)))
    return np.concatenate([before, after], axis=1).astype(bool)[None, None]


@pytest.mark.parametrize(
    ("cuts", "hidden", "cached"),
    [([0, 5], [1, 4], True), ([0, 3, 5], [], False), ([0, 1, 2, 5], [1, 4], False)],
)
def test_context_equals_all_at_once(cuts, hidden, cached):
    """Contexts that are longer than what is in them, read in their order."""
    x = normal(2, 8, 8)
    layer = fixed(RoPEAttention(2, 3, key_dim=4), x)
    visible = np.tril(np.ones((8, 8), bool))
    visible[5:, hidden] = False
    expected = to_numpy(layer(x, attention_mask=visible[None, None]))[:, 5:]
    options = {"context": split(layer, x, cuts, 5)}
    before = [[to_numpy(part) for part in cache] for cache in options["context"]]
    mask = mask_of(cuts, 5, 3, hidden)
    if cached:
        options.update(cache=layer.create_cache(2, 4), cache_index=1)
        # Nothing is at index 0 of the cache that is written.
        mask = np.insert(mask, mask.shape[-1] - 3, False, axis=-1)
    output = layer(
        x[:, 5:],
        attention_mask=mask,
        position_ids=np.arange(5, 8)[None],
        return_scores=True,
        **options,
    )
    assert_close(output[0], expected, 1e-5)
    keys = 5 * (len(cuts) - 1) + (4 if cached else 3)
    assert output[1].shape == (2, 2, 3, keys)
    assert len(output) == (3 if cached else 2)
    assert not cached or output[2][0].shape == (2, 2, 4, 4)
    # They are only read.
    for cache, old in zip(options["context"], before, strict=True):
        for part, value in zip(cache, old, strict=True):
            np.testing.assert_array_equal(to_numpy(part), value)


@pytest.mark.parametrize("rows", [1, 2])
def test_context_of_fewer_rows_serves_neighbours(rows):
    """As a context in which each row is repeated for those that share it."""
    shared, x = normal(rows, 4, 8), normal(6, 2, 8, seed=1)
    layer = fixed(RoPEAttention(2, 3, key_dim=4), x)
    mask = np.random.default_rng(0).random((6, 1, 2, 4 + 3 + 2)) < 0.7
    mask[..., -1] = True
    options = {"attention_mask": mask, "return_scores": True}
    options["position_ids"] = np.array([[7, 8]])
    if rows > 1:
        options["residual_scores"] = normal(6, 2, 2, 9, seed=3)
    (few,) = split(layer, shared, [0, 4], 4)
    (past,) = split(layer, normal(6, 3, 8, seed=2), [0, 3], 3)
    many = tuple(np.repeat(to_numpy(part), 6 // rows, axis=0) for part in few)
    many = tuple(part.astype("float32") for part in many)
    output = layer(x, context=[few, past], **options)
    expected = layer(x, context=[many, past], **options)
    for ours, theirs in zip(output, expected, strict=True):
        assert_close(ours, to_numpy(theirs), 1e-5)
    # Rows of another order would show.
    if rows > 1:
        other = layer(x, context=[tuple(p[::-1] for p in many), past], **options)
        assert np.abs(to_numpy(other[0]) - to_numpy(output[0])).max() > 1e-2


# === Masks ===


def test_masks_against_loops():
    generator = np.random.default_rng(0)
    token_ids = generator.integers(0, 4, (15, 6)).astype("int32")
    segment_ids = generator.integers(0, 2, (15, 6)).astype("int32")
    padding = np.zeros((15, 1, 1, 6), bool)
    pad_segments = np.zeros((15, 1, 1, 6), bool)
    causal = np.zeros((1, 1, 6, 6), bool)
    unilm = np.zeros((15, 1, 6, 6), bool)
    for row, key in np.ndindex(15, 6):
        padding[row, 0, 0, key] = token_ids[row, key] != 0 or key == 0
        pad_segments[row, 0, 0, key] = segment_ids[row, key] != 0 or key == 0
        for query in range(6):
            causal[0, 0, query, key] = key <= query
            ones = [sum(segment_ids[row, : at + 1]) for at in (key, query)]
            unilm[row, 0, query, key] = ones[0] <= ones[1]
    np.testing.assert_array_equal(padding_mask(token_ids), padding)
    np.testing.assert_array_equal(causal_mask(6), causal)
    np.testing.assert_array_equal(causal_mask(2, 6, 3), causal[:, :, 3:5])
    np.testing.assert_array_equal(unilm_mask(segment_ids), unilm)
    for pattern, expected in (
        ("bidirectional", padding),
        ("causal", padding & causal),
        ("unilm", padding & unilm),
    ):
        for with_segments in (False, True):
            mask = AttentionMask(pattern, pad_segments=with_segments)
            np.testing.assert_array_equal(
                mask(token_ids, segment_ids),
                expected & pad_segments if with_segments else expected,
            )


# === Errors ===

BROKEN_RULES = [
    (lambda: RoPEAttention(0, 4), "num_heads 0"),
    (lambda: RoPEAttention(2, 0), "head_dim 0"),
    (lambda: RoPEAttention(2, 5), "key_dim even 5"),
    (lambda: RoPEAttention(2, 4, key_dim=7), "key_dim even 7"),
    (lambda: RoPEAttention(2, 4, key_dim=0), "key_dim 0"),
    (lambda: RoPEAttention(2, 4, base=0), "base 0"),
    (lambda: RoPEAttention(2, 4, layout="split"), "interleaved 'split'"),
    (lambda: RoPEAttention(2, 4, dropout=1), "dropout [0, 1) 1"),
    (lambda: SinusoidalPositionEmbedding(5), "even 5"),
    (lambda: SinusoidalPositionEmbedding(6, base=-1.0), "base -1.0"),
    (lambda: rotary_table([[0]], 3), "even 3"),
    (lambda: rotary_table([[0]], 4, layout="x"), "half_split 'x'"),
    (lambda: apply_rotary(X[:, :, None], X, X, layout="x"), "layout 'x'"),
    (lambda: LayerNorm(0), "epsilon 0"),
    (lambda: LayerNorm(conditional=True)(X), "condition"),
    (lambda: RMSNorm(-1e-7), "epsilon -1e-07"),
    (lambda: FeedForward(0), "intermediate_dim 0"),
    (lambda: FeedForward(4, activation="geluu"), "activation 'geluu'"),
    (lambda: Pooler("tanhh")(X), "activation 'tanhh'"),
    (lambda: head(8, transform=False, conditional=True), "transform condition"),
    (lambda: AttentionMask("lm"), "causal 'lm'"),
]


def test_broken_rules():
    for make, words in BROKEN_RULES:
        with pytest.raises(ConfigurationError) as caught:
            make()
        message = str(caught.value)
        assert all(word in message for word in words.split()), (words, message)


def test_attention_wants_three_axes():
    with pytest.raises(ValueError, match=r"\(batch, length, hidden_dim\).*\(2, 8\)"):
        RoPEAttention(2, 4)(normal(2, 8))


def test_a_cache_has_no_room_for_more_than_its_capacity():
    layer = RoPEAttention(2, 4)
    x = normal(1, 3, 8)
    layer(x)
    with pytest.raises(ConfigurationError, match="capacity 4 has no room for 3 tokens"):
        layer(x, cache=layer.create_cache(1, 4), cache_index=2)


def test_a_block_takes_its_arguments_by_position_in_a_functional_model():
    layer = block()
    x = keras.Input((None, 8))
    mask = keras.Input((1, 1, None), dtype="bool")
    model = keras.Model([x, mask], layer(x, mask))
    visible = np.ones((1, 1, 1, 3), bool)
    values = normal(1, 3, 8)
    np.testing.assert_allclose(model([values, visible]), layer(values, visible))


def test_activations_of_a_configuration_are_those_of_keras():
    # Keras's `gelu` is both of its forms.
    own = {"gelu_tanh"}
    assert own < {*ACTIVATIONS}
    assert all(callable(keras.activations.get(name)) for name in {*ACTIVATIONS} - own)

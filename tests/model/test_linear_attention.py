"""Attention of linear cost, against all pairs of tokens in float64.

The references compute every weight and every sum from the formulas. TensorFlow here;
the other backends have backend_checks.py.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import weight_cases
from arrays import assert_close, normal, randomize, to_numpy
from common import CHARACTER, GPT
from keras import ops

import roformer_keras
from roformer_keras import RoFormerBackbone, RoFormerCausalLM, RoFormerConfig
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.layers import LinearRoPEAttention, RoPEAttention
from roformer_keras.layers.linear_attention import (
    orthogonal_directions,
    positive_features,
)

pytestmark = pytest.mark.slow

KINDS = ("linear", "cosine", "performer", "rotary_performer")
# Longer than a chunk of the causal sums, and no multiple of one.
LENGTH = 300


def fixed(layer, x, scale=0.3):
    """The layer, built, with such weights."""
    layer(x)
    randomize(layer, scale)
    return layer


# === The formulas, in float64 ===


def rotated(x, positions, base=10000.0):
    """`(batch, heads, length, dim)`, neighbours turned by complex numbers."""
    dim = x.shape[-1]
    angles = np.asarray(positions, "float64")[:, None, :, None] * base ** (
        -np.arange(0, dim, 2) / dim
    )
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def features(layer, x):
    if layer.kind == "linear":
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    x = x * layer.key_dim**-0.25
    directions = layer.directions.astype("float64")
    return np.exp(x @ directions.T - np.square(x).sum(-1, keepdims=True) / 2)


def attention(layer, x, visible=None, positions=None):
    """The output of a layer."""
    batch, length, _ = x.shape
    weights = {"/".join(w.path.split("/")[-2:]): to_numpy(w) for w in layer.weights}

    def dense(name, x):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    query, key, value = (
        dense(name, x.astype("float64"))
        .reshape(batch, length, layer.num_heads, -1)
        .transpose(0, 2, 1, 3)
        for name in ("query", "key", "value")
    )
    if positions is None:
        positions = np.arange(length)[None]
    turn = (lambda x: rotated(x, positions)) if layer.rotary else (lambda x: x)
    if layer.kind == "cosine":
        units = [
            part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (query, key)
        ]
        above = 1 + np.einsum("bhmd,bhnd->bhmn", *map(turn, units))
        below = above
    elif layer.kind == "rotary_performer":
        mapped = [features(layer, turn(part)) for part in (query, key)]
        above = np.einsum("bhmd,bhnd->bhmn", *mapped)
        below = above
    else:
        mapped = [features(layer, part) for part in (query, key)]
        above = np.einsum("bhmd,bhnd->bhmn", *map(turn, mapped))
        below = np.einsum("bhmd,bhnd->bhmn", *mapped)
    seen = np.ones((batch, 1, length, length), bool)
    if visible is not None:
        seen = seen & visible
    if layer.causal:
        seen = seen & np.tril(np.ones((length, length), bool))
    above, below = above * seen, below * seen
    mixed = (above @ value) / below.sum(-1, keepdims=True)
    mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, length, -1)
    return dense("output_dense", mixed)


def two_layers(kind):
    """Options of two layers of a kind."""
    yield {"kind": kind, "rotary": True, "causal": False}
    yield {"kind": kind, "rotary": False, "causal": True}


@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_all_pairs(kind):
    for options in two_layers(kind):
        for length in (1, 128, LENGTH):
            x = normal(2, length, 12)
            layer = fixed(LinearRoPEAttention(3, 4, key_dim=6, **options), x)
            expected = attention(layer, x)
            assert_close(layer(x), expected)
    # The same in a graph of any length, causal and in several chunks.
    shape = tf.TensorSpec([None, None, 12])
    graph = tf.function(lambda x: layer(x), input_signature=[shape])
    assert_close(graph(x), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_positions(kind, causal):
    """Hidden keys count for nothing, wherever they are; positions may be any."""
    x = normal(2, LENGTH, 12)
    generator = np.random.default_rng(1)
    visible = generator.random((2, 1, 1, LENGTH)) < 0.5
    visible[..., 0] = True
    visible[1, ..., 200:] = False
    positions = generator.uniform(0, 50, (2, LENGTH)).astype("float32")
    layer = fixed(LinearRoPEAttention(3, 4, kind=kind, causal=causal), x)
    output = to_numpy(layer(x, attention_mask=visible, position_ids=positions))
    assert_close(output, attention(layer, x, visible, positions))
    # A padded text is the text.
    alone = layer(
        x[1:, :200],
        attention_mask=visible[1:, ..., :200],
        position_ids=positions[1:, :200],
    )
    assert_close(output[1:, :200], to_numpy(alone))


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_bfloat16_rounds_projections_alone(kind):
    """Far positions too: sums, normalisers and angles are not rounded."""
    x = normal(1, LENGTH, 16)
    positions = 60_000 + np.arange(LENGTH, dtype="float32")[None]
    for options in two_layers(kind):
        exact, rounded = (
            fixed(LinearRoPEAttention(2, 8, dtype=policy, **options), x)(
                x, position_ids=positions
            )
            for policy in ("float32", "mixed_bfloat16")
        )
        assert keras.backend.standardize_dtype(rounded.dtype) == "bfloat16"
        error = np.abs(to_numpy(rounded) - to_numpy(exact)).mean()
        assert error < 0.02 * np.abs(to_numpy(exact)).mean()


def test_nothing_visible_is_zero_and_has_gradients():
    x = normal(1, 4, 8)
    layer = fixed(LinearRoPEAttention(2, 4), x)
    with tf.GradientTape() as tape:
        output = layer(x, attention_mask=np.zeros((1, 1, 1, 4), bool))
        loss = ops.sum(output)
    np.testing.assert_allclose(
        to_numpy(output),
        np.broadcast_to(to_numpy(layer.output_dense.bias), (1, 4, 8)),
        atol=1e-7,
    )
    for gradient in tape.gradient(loss, layer.trainable_variables):
        assert np.isfinite(to_numpy(gradient)).all()


# === Numbers that float32 could lose ===


@pytest.mark.parametrize(("length", "causal"), [(1, False), (3, True)])
def test_keys_opposite_to_queries(length, causal):
    """Values are not divided by a `1 + cos` that is only rounding."""
    x = normal(2, length, 16)
    layer = fixed(LinearRoPEAttention(2, 8, kind="cosine", causal=causal), x)
    layer.key.kernel.assign(-layer.query.kernel)
    layer.key.bias.assign(-layer.query.bias)
    largest = np.abs(to_numpy(layer.value(x))).max() * np.abs(
        to_numpy(layer.output_dense.kernel)
    )
    bound = largest.sum(axis=0) + np.abs(to_numpy(layer.output_dense.bias))
    assert (np.abs(to_numpy(layer(x))) <= 2 * bound).all()


@pytest.mark.parametrize(
    ("dim", "options", "bias"),
    [
        (32, {"kind": "performer", "key_dim": 192}, 0),
        (32, {"kind": "rotary_performer", "key_dim": 256}, 0),
        (16, {}, -8),
        (16, {}, -20),
    ],
)
def test_wide_heads_and_strongly_negative_vectors(dim, options, bias):
    """No feature comes near the largest that there could be, or becomes 0."""
    x = normal(1, 64, dim)
    layer = fixed(LinearRoPEAttention(2, 8, **options), x, scale=0.1)
    if bias:
        for projection in (layer.query, layer.key):
            projection.bias.assign(ops.full_like(projection.bias, bias))
    with tf.GradientTape() as tape:
        output = layer(x)
        loss = ops.sum(ops.square(output))
    assert_close(output, attention(layer, x))
    for gradient in tape.gradient(loss, layer.trainable_variables):
        assert np.isfinite(to_numpy(gradient)).all()


# === The state ===


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_all_at_once(kind):
    """A prompt at once, more of it, then token by token, some of them hidden."""
    x = normal(2, 160, 12)
    visible = np.random.default_rng(2).random((2, 1, 1, 160)) < 0.7
    visible[..., 0] = True
    layer = fixed(LinearRoPEAttention(3, 4, kind=kind, causal=True), x)
    expected = to_numpy(layer(x, attention_mask=visible))

    def step(x, index, cache, mask):
        return layer(x, attention_mask=mask, cache=cache, cache_index=index)

    # One of them in a graph.
    step = tf.function(step) if kind == "performer" else step
    cache, parts = layer.create_cache(2), []
    shapes = [part.shape for part in cache]
    for start, stop in itertools.pairwise((0, 140, 150, *range(151, 161))):
        part, cache = step(
            x[:, start:stop], tf.constant(start), cache, visible[..., start:stop]
        )
        parts.append(to_numpy(part))
        assert [part.shape for part in cache] == shapes
        assert {keras.backend.standardize_dtype(p.dtype) for p in cache} == {"float32"}
    assert_close(np.concatenate(parts, axis=1), expected)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("softmax", "causal"),
        ("linear", "bidirectional"),
        ("cosine", "causal"),
        ("performer", "bidirectional"),
        ("rotary_performer", "causal"),
    ],
)
def test_no_tensor_grows_with_the_square_of_the_length(kind, pattern):
    """The largest output of an operation, twice as many tokens being twice as large."""
    sizes = {**SIZES, "num_layers": 1, "attention_type": kind}
    model = RoFormerBackbone(RoFormerConfig(**sizes, attention=pattern))
    largest = []
    for length in (2048, 4096):
        shape = tf.TensorSpec([1, length], "int32")
        function = tf.function(model).get_concrete_function(
            {"token_ids": shape, "segment_ids": shape}
        )
        largest.append(
            max(
                output.shape.num_elements()
                for operation in function.graph.get_operations()
                for output in operation.outputs
                if output.shape.is_fully_defined()
            )
        )
    assert largest[1] / largest[0] == (4 if kind == "softmax" else 2)


# === Random features ===


def test_directions_are_orthogonal_and_as_long_as_normal_vectors():
    directions = orthogonal_directions(200, 16, seed=5)
    assert directions.shape == (200, 16)
    lengths = np.linalg.norm(directions, axis=1)
    assert np.square(lengths).mean() == pytest.approx(16, rel=0.1)
    assert lengths.std() > 0.4
    for block in np.split(directions[:192] / lengths[:192, None], 12):
        np.testing.assert_allclose(block @ block.T, np.eye(16), atol=1e-6)
    np.testing.assert_array_equal(directions, orthogonal_directions(200, 16, seed=5))
    assert np.abs(directions - orthogonal_directions(200, 16, seed=6)).max() > 1
    # Every direction is as likely as its opposite.
    firsts = [orthogonal_directions(4, 4, seed)[0] for seed in range(200)]
    assert np.abs(np.mean(firsts, axis=0)).max() < 0.3


def test_features_of_any_vectors_are_finite():
    directions = orthogonal_directions(256, 128, seed=0)
    longest = directions[np.square(directions).sum(-1).argmax()]
    # Where a feature is as large as it can be, and where all are as small.
    keys = np.stack([longest * 128**0.25, 100 * longest, 0 * longest])
    mapped = to_numpy(positive_features(keys, directions, is_query=False))
    assert np.isfinite(mapped * 1e6).all()
    queries = to_numpy(positive_features(keys, directions, is_query=True))
    np.testing.assert_allclose(queries.max(-1), 1)


@pytest.mark.parametrize(
    ("kind", "rotary"), [("performer", False), ("rotary_performer", True)]
)
def test_performers_come_to_softmax_as_features_grow(kind, rotary):
    x = normal(1, 64, 32)
    exact = fixed(RoPEAttention(2, 16, rotary=rotary), x, scale=0.07)
    expected, errors = to_numpy(exact(x)), []
    for count in (16, 128, 1024):
        squares = []
        for seed in range(8):
            layer = LinearRoPEAttention(
                2, 16, kind=kind, num_features=count, rotary=rotary, seed=seed
            )
            layer(x)
            layer.set_weights(exact.get_weights())
            squares.append(np.square(to_numpy(layer(x)) - expected).mean())
        errors.append(np.mean(squares) ** 0.5)
    # As one over the root of their number: eight times as many, a third of the error.
    assert errors[1] < 0.55 * errors[0] and errors[2] < 0.55 * errors[1]


# === In models ===

SIZES = {**weight_cases.SIZES, "vocabulary_size": 260}
SIZES |= {"hidden_dim": 16, "intermediate_dim": 24}


def inputs_of(model, length=9, seed=0):
    ids = np.random.default_rng(seed).integers(1, 260, (2, length)).astype("int32")
    ids[1, length // 2 :] = 0
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
    if "position_ids" in model.input:
        inputs["position_ids"] = np.tile(0.5 * np.arange(length), (2, 1))
    return inputs


def test_a_backbone_takes_weights_of_softmax_attention(backbone):
    model = RoFormerBackbone.from_preset(CHARACTER, attention_type="cosine")
    assert {w.path for w in model.weights} == {w.path for w in backbone.weights}
    for ours, theirs in zip(model.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    inputs = inputs_of(model)
    output = to_numpy(model(inputs))
    assert np.isfinite(output).all()
    assert np.abs(output - to_numpy(backbone(inputs))).max() > 1e-2
    # What comes after the end of a text changes nothing in it.
    shorter = {name: value[1:, :4] for name, value in inputs.items()}
    assert_close(output[1:, :4], to_numpy(model(shorter)))


def test_every_format_keeps_it(tmp_path):
    options = {"attention_type": "performer", "rotary": False}
    options |= {"performer_features": 12, "performer_seed": 7}
    config = RoFormerConfig(**SIZES, **options, attention="causal")
    model = RoFormerCausalLM.from_roformer_config(config)
    assert not any(b.attention.rotary for b in model.backbone.transformer_layers)
    randomize(model, 0.4)
    inputs = inputs_of(model)
    expected = to_numpy(model(inputs))
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    roformer_keras.convert(tmp_path / "preset", tmp_path / "x.safetensors")
    model.save_weights(tmp_path / "x.weights.h5")
    for loaded in (
        RoFormerCausalLM.from_preset(tmp_path / "preset"),
        RoFormerCausalLM.from_preset(tmp_path / "model.keras"),
        keras.saving.load_model(tmp_path / "model.keras"),
        RoFormerCausalLM.from_preset(tmp_path / "x.safetensors"),
        RoFormerCausalLM.from_preset(tmp_path / "x.weights.h5", config=config),
    ):
        assert loaded.config == config
        np.testing.assert_array_equal(to_numpy(loaded(inputs)), expected)


def test_features_are_redrawn_on_request(tmp_path):
    options = {"attention_type": "rotary_performer", "performer_features": 8}
    config = RoFormerConfig(**SIZES, **options)
    model = RoFormerBackbone(config)
    randomize(model, 0.4)
    inputs, weights = inputs_of(model), model.get_weights()
    before = to_numpy(model(inputs))
    # No two layers have the same.
    first, second = (b.attention.directions for b in model.transformer_layers)
    assert np.abs(first - second).max() > 0.1
    model.redraw_features(4)
    after = to_numpy(model(inputs))
    assert np.abs(after - before).max() > 1e-3
    for weight, value in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    model.save_to_preset(tmp_path / "preset")
    loaded = RoFormerBackbone.from_preset(tmp_path / "preset")
    assert loaded.config == config.replace(performer_seed=4)
    np.testing.assert_array_equal(to_numpy(loaded(inputs)), after)
    again = RoFormerBackbone.from_config(model.get_config())
    again.set_weights(weights)
    np.testing.assert_array_equal(to_numpy(again(inputs)), after)
    model.redraw_features(0)
    np.testing.assert_array_equal(to_numpy(model(inputs)), before)


def test_what_was_compiled_before_is_compiled_anew():
    config = RoFormerConfig(**SIZES, attention="causal", attention_type="performer")
    model = RoFormerCausalLM.from_roformer_config(config)
    inputs = inputs_of(model)
    before = run_model(model, inputs)
    decoder = model._decoder()
    model.backbone.redraw_features(1)
    assert model.config.performer_seed == 1
    assert model._decoder() is not decoder
    output = run_model(model, inputs)
    assert np.abs(output - before).max() > 1e-5
    assert_close(output, to_numpy(model(inputs)))


def test_gradients_do_not_depend_on_checkpointing():
    sizes = {**SIZES, "num_layers": 1, "attention_type": "performer"}
    model = RoFormerBackbone(RoFormerConfig(**sizes, attention="causal", dropout=0.0))
    gradients = []
    for checkpointing in (False, True):
        model.gradient_checkpointing = checkpointing
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(model(inputs_of(model), training=True)))
        gradients.append(tape.gradient(loss, model.trainable_variables))
    for plain, recomputed in zip(*gradients, strict=True):
        plain, recomputed = map(tf.convert_to_tensor, (plain, recomputed))
        assert_close(plain, recomputed, atol=1e-6 * np.abs(plain).max())


# === Wrong input ===


def called(**options):
    return lambda: LinearRoPEAttention(2, 4)(normal(1, 3, 8), **options)


REFUSED = [
    (lambda: LinearRoPEAttention(2, 4, "nystrom"), "kind 'nystrom'"),
    (lambda: LinearRoPEAttention(2, 4, "performer", num_features=7), "even 7"),
    (lambda: LinearRoPEAttention(2, 4, num_features="8"), "num_features '8'"),
    (lambda: LinearRoPEAttention(2, 4, seed=-1), "seed -1"),
    (
        called(attention_mask=np.ones((1, 1, 3, 3), bool)),
        "(1, 1, 3, 3) causal=True",
    ),
    (called(cache=()), "cache causal=True"),
    (called(return_scores=True), "return_scores softmax"),
    (
        lambda: RoFormerBackbone(RoFormerConfig(**SIZES)).redraw_features(1),
        "'performer' 'rotary_performer' 'softmax'",
    ),
]


def test_what_is_refused():
    wrong = []
    for make, words in REFUSED:
        with pytest.raises(ConfigurationError) as caught:
            make()
        if not all(word in str(caught.value) for word in words.split()):
            wrong.append((words, str(caught.value)))
    assert wrong == []


def test_no_zip_is_written_for_bert4keras(tmp_path):
    for changes in ({"attention_type": "linear"}, {"rotary": False}):
        with pytest.raises(ConfigurationError, match="bert4keras") as caught:
            roformer_keras.convert(GPT, tmp_path / "x.zip", **changes)
        (value,) = changes.values()
        assert repr(value) in str(caught.value)
        assert not (tmp_path / "x.zip").exists()

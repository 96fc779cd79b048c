"""The functional models: names, options, saving, training, fresh weights.

That their numbers are bert4keras's is the matter of test_parity.py.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import CHARACTER, SMALL
from keras import ops
from weight_cases import SIZES

from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.models import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
)
from roformer_keras.models.embedding import embed

BASE = {**SIZES, "vocabulary_size": 30}
V2_BASE = {**BASE, "model_type": "roformer_v2", "activation": "relu"}

# Which configuration a class can take.
NSP = {"pooler_activation": "tanh", "with_nsp": True}
MODELS = {
    "backbone": (RoFormerBackbone, BASE),
    "backbone-v2": (RoFormerBackbone, V2_BASE),
    "masked-lm": (RoFormerMaskedLM, BASE),
    "masked-lm-v2": (RoFormerMaskedLM, V2_BASE),
    "masked-lm-nsp": (RoFormerMaskedLM, {**BASE, **NSP}),
    "causal-lm-v2": (RoFormerCausalLM, {**V2_BASE, "attention": "causal"}),
    "sim": (RoFormerSim, {**BASE, "attention": "unilm", "pooler_activation": "linear"}),
}

TOKENS = np.array([[3, 4, 5, 6, 7], [8, 9, 0, 10, 0], [0, 0, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], "int32")


def build(name, dtype=None, **changes):
    cls, fields = MODELS[name]
    return cls.from_roformer_config(RoFormerConfig(**{**fields, **changes}), dtype)


def inputs_for(model, tokens=TOKENS, segments=SEGMENTS):
    generator = np.random.default_rng(0)
    inputs = {"token_ids": tokens, "segment_ids": segments}
    if "position_ids" in model.input:
        positions = np.sort(generator.uniform(0, 40, tokens.shape))
        inputs["position_ids"] = positions.astype("float32")
    if "layer_norm_cond" in model.input:
        width = model.config.layer_norm_cond_size
        inputs["layer_norm_cond"] = generator.normal(size=(len(tokens), width))
    return inputs


def run_model(model, inputs=None):
    """By name, as NumPy: the logits or the sequence of a model that returns one."""
    outputs = model(inputs_for(model) if inputs is None else inputs)
    if not isinstance(outputs, dict):
        outputs = {"output": outputs}
    return {
        name: ops.convert_to_numpy(ops.cast(value, "float32"))
        for name, value in outputs.items()
    }


def assert_equal(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def randomize(model):
    generator = np.random.default_rng(5)
    for weight in model.weights:
        value = generator.normal(size=weight.shape, scale=0.5)
        weight.assign(value + 1 if weight.name == "gamma" else value)


# === Outputs ===


def test_outputs():
    shapes = {
        "backbone-v2": {"output": (3, 5, 8)},
        "causal-lm-v2": {"output": (3, 5, 30)},
        "masked-lm-nsp": {
            "pooled_output": (3, 8),
            "nsp_probabilities": (3, 2),
            "logits": (3, 5, 30),
        },
        "sim": {"pooled_output": (3, 8), "logits": (3, 5, 30)},
    }
    for name, expected in shapes.items():
        model = build(name)
        assert list(model.input) == ["token_ids", "segment_ids"]
        outputs = run_model(model)
        assert {key: value.shape for key, value in outputs.items()} == expected
        assert all(np.isfinite(value).all() for value in outputs.values())
        if "nsp_probabilities" in outputs:
            sums = outputs["nsp_probabilities"].sum(-1)
            np.testing.assert_allclose(sums, 1, rtol=1e-6)
            # Targets say what a loss counts, and no mask.
            logits = model(inputs_for(model))["logits"]
            assert not hasattr(logits, "_keras_mask")


@pytest.mark.parametrize(
    "option", [{}, {"shared_segment_embeddings": True, "pooler_activation": "tanh"}]
)
def test_output_carries_the_padding_as_its_mask(option):
    """Keras layers ignore padding after `backbone.output` and after a call."""
    backbone = build("backbone", **option)
    outputs = backbone.output
    sequence = outputs["sequence_output"] if isinstance(outputs, dict) else outputs
    pooling = keras.layers.GlobalAveragePooling1D()
    inputs = inputs_for(backbone)
    means = keras.Model(backbone.inputs, pooling(sequence))(inputs)
    vectors = run_model(backbone, inputs)
    vectors = vectors.get("output", vectors.get("sequence_output"))
    visible = TOKENS != 0
    if "shared_segment_embeddings" in option:
        visible &= SEGMENTS != 0
    visible[:, 0] = True
    expected = [v[seen].mean(0) for v, seen in zip(vectors, visible, strict=True)]
    np.testing.assert_allclose(means, expected, atol=1e-6)
    called = backbone(inputs)
    called = called["sequence_output"] if isinstance(called, dict) else called
    np.testing.assert_allclose(pooling(called), expected, atol=1e-6)


def test_backbone_by_keywords():
    backbone = RoFormerBackbone(**BASE, dtype="mixed_bfloat16", name="encoder")
    assert backbone.config == RoFormerConfig(**BASE)
    assert (backbone.name, backbone.compute_dtype) == ("encoder", "bfloat16")
    for wrong, part in (
        ({"num_layer": 3}, "num_layers"),
        ({"config": backbone.config, "num_layers": 3}, "both a config and num_layers"),
    ):
        with pytest.raises(ConfigurationError, match=part):
            RoFormerBackbone(**{**({} if "config" in wrong else BASE), **wrong})


def test_inputs_are_in_alphabetical_order():
    backbone = build("backbone", **V1_OPTIONS["all"])
    names = [symbol.name for symbol in backbone.inputs]
    assert names == ["layer_norm_cond", "position_ids", "segment_ids", "token_ids"]
    # bert4keras has no other base, so that no golden number shows it.
    assert {x.attention.base for x in backbone.transformer_layers} == {500.0}


def test_any_length():
    model = build("sim", num_layers=1)
    tokens = np.random.default_rng(0).integers(1, 30, (1, 1600))
    tokens[0, 801:] = 0
    inputs = {"token_ids": tokens, "segment_ids": np.zeros_like(tokens)}
    outputs = run_model(model, inputs)
    assert all(np.isfinite(value).all() for value in outputs.values())
    assert outputs["logits"].shape[:2] == (1, 1600)


ONE = {"num_layers": 1}
V1_OPTIONS = {
    "plain": ONE,
    "embedding_dim": {**ONE, "embedding_dim": 6},
    "cond-hidden": {
        **ONE,
        "layer_norm_cond_size": 5,
        "layer_norm_cond_hidden_size": 3,
        "layer_norm_cond_hidden_activation": "tanh",
    },
    "all": {
        "embedding_dim": 6,
        "attention_key_size": 6,
        "rotary_base": 500.0,
        "custom_position_ids": True,
        "residual_attention_scores": True,
        "pooler_activation": "tanh",
        "with_nsp": True,
        "layer_norm_cond_size": 5,
        "layer_norm_cond_hidden_size": 3,
    },
}


# === Saving ===

SAVED = [
    ("backbone", "all"),
    ("masked-lm", "all"),
    ("masked-lm-v2", "embedding_dim"),
    ("causal-lm-v2", "plain"),
    ("sim", "plain"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), SAVED)
def test_config_keras_file_and_weights_file(name, option, tmp_path):
    model = build(name, **V1_OPTIONS[option])
    randomize(model)
    expected = run_model(model)

    again = type(model).from_config(model.get_config())
    assert again.config == model.config
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    assert_equal(run_model(again), expected)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert_equal(run_model(loaded), expected)

    model.save_weights(tmp_path / "model.weights.h5")
    fresh = build(name, **V1_OPTIONS[option])
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert_equal(run_model(fresh), expected)


def test_a_file_keeps_names_activation_and_what_is_frozen(tmp_path):
    config = RoFormerConfig(**{**BASE, **ONE})
    backbone = RoFormerBackbone(config, dtype="mixed_bfloat16", name="encoder")
    model = RoFormerMaskedLM(backbone, output_activation="softmax", name="mlm")
    backbone.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.name, loaded.backbone.name) == ("mlm", "encoder")
    assert loaded.output_activation == "softmax"
    # The tied embedding is the backbone's; transform, norm and bias are the head's.
    assert len(model.trainable_weights) == len(loaded.trainable_weights) == 5
    assert not loaded.backbone.trainable
    assert_equal(run_model(loaded), run_model(model))
    # Probabilities are float32, whatever the policy.
    probabilities = loaded(inputs_for(loaded))
    assert probabilities.dtype == "float32"
    np.testing.assert_allclose(np.sum(probabilities, -1), 1, rtol=1e-6)
    model.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.trainable_weights


# === Dtype policies ===

POLICIES = {"mixed_bfloat16": 0.15, "mixed_float16": 0.02, "bfloat16": 0.15}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy", "given"),
    [
        ("masked-lm-nsp", "mixed_bfloat16", "argument"),
        ("masked-lm-v2", "bfloat16", "argument"),
        ("sim", "mixed_float16", "global"),
    ],
)
def test_dtype_policy(name, policy, given, tmp_path):
    exact = build(name, **ONE)
    randomize(exact)
    expected = run_model(exact)
    if given == "argument":
        model = build(name, dtype=policy, **ONE)
    else:
        keras.config.set_dtype_policy(policy)
        try:
            model = build(name, **ONE)
        finally:
            keras.config.set_dtype_policy("float32")
    model.set_weights(exact.get_weights())
    backbone = getattr(model, "backbone", model)
    assert model.dtype_policy.name == backbone.dtype_policy.name == policy
    for layer in (*backbone.layers, *model.layers):
        if layer.weights:
            assert layer.dtype_policy.name == policy, layer.name
    tied = backbone.token_embedding(np.ones((1, 8)), reverse=True)
    assert keras.backend.standardize_dtype(tied.dtype) == model.compute_dtype
    raw = model(inputs_for(model))
    raw = raw if isinstance(raw, dict) else {"output": raw}
    for key, value in run_model(model).items():
        assert keras.backend.standardize_dtype(raw[key].dtype) == model.compute_dtype
        assert np.isfinite(value).all()
        np.testing.assert_allclose(
            value, expected[key], rtol=0, atol=POLICIES[policy] * np.ptp(expected[key])
        )
    # Loaded where the global policy is float32, it is still what it was.
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.dtype_policy.name == policy
    assert [weight.dtype for weight in loaded.weights] == (
        [weight.dtype for weight in model.weights]
    )
    assert_equal(run_model(loaded), run_model(model))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "by_predict"), [("mixed_float16", False), ("mixed_bfloat16", True)]
)
def test_position_ids_are_not_rounded(policy, by_predict):
    """A float input of the model, beyond what bfloat16 can distinguish."""
    exact = build("masked-lm", custom_position_ids=True)
    randomize(exact)
    mixed = build("masked-lm", dtype=policy, custom_position_ids=True)
    mixed.set_weights(exact.get_weights())
    far = [[0, position, 1, 2] for position in (1000, 1001, 1000.25)]
    inputs = {
        "token_ids": np.array([[5, 6, 7, 5]] * 3),
        "segment_ids": np.zeros((3, 4), "int32"),
        "position_ids": np.array(far, "float32"),
    }
    expected = run_model(exact, inputs)["output"]
    if by_predict:
        output = mixed.predict(inputs, verbose=0).astype("float32")
    else:
        output = run_model(mixed, inputs)["output"]
    np.testing.assert_allclose(output, expected, rtol=0, atol=0.2)
    for other in (1, 2):
        assert np.abs(expected[0] - expected[other]).max() > 0.5
        assert np.abs(output[0] - output[other]).max() > 0.5


# === Training ===


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("masked-lm", "cond-hidden"),
        ("masked-lm-v2", "embedding_dim"),
        ("sim", "plain"),
    ],
)
def test_gradients_reach_every_weight(name, option):
    model = build(name, **V1_OPTIONS[option])
    randomize(model)
    generator = np.random.default_rng(0)
    with tf.GradientTape() as tape:
        outputs = keras.tree.flatten(model(inputs_for(model)))
        loss = sum(ops.sum(x * generator.normal(size=x.shape)) for x in outputs)
    variables = [weight.value for weight in model.trainable_weights]
    assert len(variables) == len(model.weights)
    for weight, gradient in zip(
        model.weights, tape.gradient(loss, variables), strict=True
    ):
        gradient = tf.convert_to_tensor(gradient).numpy()
        assert np.isfinite(gradient).all() and gradient.any(), weight.path


@pytest.mark.parametrize("name", ["backbone", "backbone-v2"])
def test_dropout_of_embeddings(name):
    """After the norm in v1, before it in v2."""
    keras.utils.set_random_seed(0)
    backbone = build(name, dropout=0.5)
    normed, dropped = (
        keras.Model(backbone.input, backbone.get_layer(layer).output)(
            inputs_for(backbone), training=True
        ).numpy()
        for layer in ("embedding_norm", "embedding_dropout")
    )
    is_kept = dropped != 0
    assert 0.3 < is_kept.mean() < 0.7
    if name == "backbone":
        np.testing.assert_allclose(dropped[is_kept], 2 * normed[is_kept], rtol=1e-6)
    else:
        assert 0.3 < (normed != 0).mean() < 0.7
        np.testing.assert_allclose(np.square(normed).mean(-1), 1, rtol=1e-5)


# === Fresh weights ===

WIDE = {
    "vocabulary_size": 2000,
    "num_layers": 4,
    "num_heads": 2,
    "hidden_dim": 64,
    "intermediate_dim": 256,
}
# A normal distribution cut at two deviations keeps this much of its deviation.
KEPT = 0.8796


def matrices(model):
    return {w.path: w.numpy() for w in model.weights if len(w.shape) == 2}


def test_fresh_v1_weights():
    """Normal, cut at two deviations of `initializer_range`, as in bert4keras."""
    keras.utils.set_random_seed(0)
    config = RoFormerConfig(
        **WIDE, initializer_range=0.05, attention="unilm", pooler_activation="linear"
    )
    model = RoFormerSim.from_roformer_config(config)
    for path, value in matrices(model).items():
        assert np.abs(value).max() <= 0.1, path
        assert np.abs(value).max() > 0.09 or value.size < 200, path
        if value.size > 1000:
            assert value.std() == pytest.approx(0.05 * KEPT, rel=0.05), path
            assert abs(value.mean()) < 0.005, path
    for weight in model.weights:
        if len(weight.shape) == 1:
            start = 1.0 if weight.name == "gamma" else 0.0
            assert (weight.numpy() == start).all(), weight.path


def test_fresh_v2_weights():
    """Deviations of 1 / sqrt(fan-in * layers); a table's fan-in is its width."""
    keras.utils.set_random_seed(0)
    config = RoFormerConfig(**WIDE, model_type="roformer_v2", embedding_dim=32)
    model = RoFormerMaskedLM.from_roformer_config(config)
    drawn = matrices(model)
    assert len(drawn) == len(model.weights)
    for path, value in drawn.items():
        table = path.endswith("/embeddings")
        fan_in = value.shape[1] if table else value.shape[0]
        if value.size > 1000:
            expected = (fan_in * 4) ** -0.5
            assert value.std() == pytest.approx(expected, rel=0.05), path
            assert np.abs(value).max() <= 2 * expected / KEPT + 1e-6, path


@pytest.mark.parametrize("name", ["masked-lm", "masked-lm-v2"])
def test_fresh_weights_differ_and_follow_the_seed(name):
    """No two layers or heads have the same."""

    def fresh(seed):
        keras.utils.set_random_seed(seed)
        return matrices(build(name, num_layers=3, intermediate_dim=8))

    first, again, other = fresh(3), fresh(3), fresh(4)
    pieces = []
    for path, value in first.items():
        np.testing.assert_array_equal(value, again[path])
        assert (value != other[path]).any()
        if path.endswith(("query/kernel", "key/kernel", "value/kernel")):
            pieces += [value[:, :4], value[:, 4:]]  # one a head
        elif value.shape == (8, 8):
            pieces.append(value)
    assert len(pieces) >= 3 * 9
    for piece, other in itertools.combinations(pieces, 2):
        assert piece.shape != other.shape or not np.allclose(piece, other)


# === Loading ===


def test_loading_leaves_later_models_random():
    RoFormerBackbone.from_preset(SMALL)
    assert all((value != 0).all() for value in matrices(build("backbone")).values())


def test_head_that_is_missing_begins_afresh_on_request():
    keras.utils.set_random_seed(0)
    model = RoFormerMaskedLM.from_preset(
        CHARACTER, pooler_activation="tanh", with_nsp=True, initialize_heads=True
    )
    loaded = RoFormerMaskedLM.from_preset(CHARACTER)
    ours = {weight.path: weight.numpy() for weight in model.weights}
    for weight in loaded.weights:
        np.testing.assert_array_equal(ours.pop(weight.path), weight.numpy())
    assert sorted(ours) == [
        "nsp/bias",
        "nsp/kernel",
        "pooler/dense/bias",
        "pooler/dense/kernel",
    ]
    assert (ours["pooler/dense/kernel"] != 0).all()
    assert ours["pooler/dense/kernel"].std() == pytest.approx(0.02 * KEPT, rel=0.1)
    assert (ours["nsp/kernel"] != 0).all()
    assert (ours["pooler/dense/bias"] == 0).all()


# === The backbone must fit the class ===


def test_wrong_backbone():
    for cls, changes, words in (
        (RoFormerMaskedLM, {"attention": "unilm"}, "'bidirectional' 'unilm'"),
        (RoFormerCausalLM, {}, "'causal' 'unilm' 'bidirectional'"),
        (RoFormerSim, {"pooler_activation": "linear"}, "'unilm' 'bidirectional'"),
        (RoFormerSim, {"attention": "unilm"}, "pooler None 'linear'"),
    ):
        backbone = RoFormerBackbone(RoFormerConfig(**{**BASE, **ONE, **changes}))
        with pytest.raises(ConfigurationError) as caught:
            cls(backbone)
        for word in (cls.__name__, *words.split()):
            assert word in str(caught.value)


def test_ids_that_a_model_does_not_have(backbone):
    for name, value, message in (
        ("token_ids", [[-1, 3]], "token_ids must be integers from 0 to .*, got -1"),
        ("token_ids", [[2**40, 3]], "got 1099511627776"),
        ("token_ids", [[5.7, 3]], "got 5.7"),
        ("segment_ids", [[0, 2]], "segment_ids must be integers from 0 to 1, got 2"),
        ("token_ids", np.zeros((0, 2), int), "must have at least one row"),
    ):
        ids = {"token_ids": np.array([[5, 3]]), "segment_ids": np.zeros((1, 2), int)}
        with pytest.raises(ConfigurationError, match=message):
            backbone.predict({**ids, name: np.array(value)}, verbose=0)


def test_outputs_that_are_no_numbers_are_refused():
    model = RoFormerBackbone.from_preset(CHARACTER)
    kernel = model.transformer_layers[0].attention.query.kernel
    kernel.assign(kernel.numpy() * np.nan)
    engines = {"keras": "outputs", "auto": "outputs", "openvino": "weights"}
    for engine, what in engines.items():
        with pytest.raises(CheckpointError, match=f"{what} must be .*numbers, got NaN"):
            embed(model, model.tokenizer, ["今天"], engine=engine)

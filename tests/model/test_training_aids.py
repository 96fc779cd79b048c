"""Training less than the whole, and in less memory: LoRA, freezing, checkpointing."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import CHARACTER
from sources import assert_same, weights
from weight_cases import SIZES

from roformer_keras import (
    RoFormerBackbone,
    RoFormerConfig,
    RoFormerMaskedLM,
    RoFormerTextClassifier,
    convert,
)
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.models.lora import LORA_TARGETS, trainable_count
from roformer_keras.models.preset import PresetModel
from roformer_keras.optimizers import make_optimizer

TEXTS = ["今天天气不错", "她在北京", "天气不", "在上海工作的人"]
LABELS = [1, 1, 0, 0]
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
HEAD = {"classes/kernel", "classes/bias"}
BLOCKS = ["transformer_layer_0", "transformer_layer_1"]


def classifier(**options):
    keras.utils.set_random_seed(0)
    options = {"num_classes": 2, **NO_DROPOUT, **options}
    return RoFormerTextClassifier.from_preset(CHARACTER, **options)


def fit(model, steps=1, optimizer=None):
    if not model.compiled:
        model.compile(optimizer or keras.optimizers.Adam(1e-2), run_eagerly=True)
    model.fit(TEXTS, LABELS, epochs=steps, shuffle=False, verbose=0)
    return model


def with_lora(steps=0, **options):
    model = classifier()
    model.enable_lora(**{"rank": 3, "alpha": 6, **options})
    return fit(model, steps) if steps else model


def trained(model):
    return {variable.path for variable in model.trainable_variables}


def logits(model):
    return keras.ops.convert_to_numpy(model(model.tokenizer(TEXTS)))


# === LoRA ===


def test_lora_trains_its_factors_and_the_head():
    model = classifier()
    before, outputs = weights(model), logits(model)
    count = model.enable_lora(3)
    factors = {
        f"{block}/attention/{name}/lora_kernel_{factor}"
        for block in BLOCKS
        for name in ("query", "value")
        for factor in "ab"
    }
    assert trained(model) == HEAD | factors
    assert count == trainable_count(model) == 4 * 2 * 3 * 32 + 2 * 32 + 2
    np.testing.assert_array_equal(logits(model), outputs)
    fit(model, 2)
    after = weights(model)
    assert {n for n in before if not np.array_equal(before[n], after[n])} == HEAD
    assert all(after[name].any() for name in factors)
    assert not np.allclose(logits(model), outputs, atol=1e-2)


def test_the_additions_are_what_the_paper_says():
    """With the formula by hand: W + alpha / rank * A B."""
    model = with_lora(2, targets=[*LORA_TARGETS])
    trained_weights = weights(model)
    name = "transformer_layer_1/feed_forward/output_dense"
    assert trained_weights[f"{name}/lora_kernel_a"].shape == (128, 3)
    plain = classifier()
    for variable in plain.weights:
        kernel = trained_weights[variable.path]
        path = variable.path.removesuffix("kernel")
        if path + "lora_kernel_a" in trained_weights:
            factors = (trained_weights[f"{path}lora_kernel_{one}"] for one in "ab")
            kernel = kernel + 6 / 3 * np.matmul(*factors)
        variable.assign(kernel)
    np.testing.assert_allclose(logits(model), logits(plain), atol=1e-5)


@pytest.mark.slow
def test_merging_leaves_plain_kernels(tmp_path):
    model = with_lora(2)
    outputs = logits(model)
    paths = {variable.path for variable in classifier().weights}
    count = model.merge_lora()
    assert {variable.path for variable in model.weights} == paths
    assert trained(model) == paths
    assert count == trainable_count(classifier())
    np.testing.assert_allclose(logits(model), outputs, atol=1e-5)

    model.save_to_preset(tmp_path / "preset")
    convert(tmp_path / "preset", tmp_path / "back.zip", verbose=0)
    again = RoFormerBackbone.from_preset(tmp_path / "back.zip")
    assert_same(weights(again), weights(model.backbone))
    again = RoFormerTextClassifier.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(logits(again), logits(model))
    assert again.enable_lora(2) < count


def test_merging_does_not_round_to_the_type_that_is_computed_in():
    model = classifier(dtype="mixed_bfloat16")
    model.enable_lora(2)
    layer = model.backbone.transformer_layers[0].attention.query
    layer.lora_kernel_b.assign(np.full((2, 32), 1e-4))
    before = np.array(layer._kernel)
    product = np.array(layer.lora_kernel_a) @ np.array(layer.lora_kernel_b)
    model.merge_lora()
    np.testing.assert_allclose(layer.kernel, before + product, atol=1e-8)


@pytest.mark.slow
def test_training_goes_on_from_a_file_with_lora(tmp_path):
    model = with_lora()
    model.freeze(embeddings=False, layers=1)
    fit(model, 3)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert trained(loaded) == trained(model)
    assert not any(BLOCKS[0] in path for path in trained(loaded))
    mine, theirs = weights(model), weights(loaded)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        np.testing.assert_allclose(theirs[path], value, atol=1e-7, err_msg=path)
    assert loaded.optimizer.iterations == 3
    # The moments of the optimizer too: the next step is the same.
    for each in (model, loaded):
        fit(each)
    mine, theirs = weights(model), weights(loaded)
    for path, value in mine.items():
        np.testing.assert_allclose(theirs[path], value, atol=1e-5, err_msg=path)


@pytest.mark.slow
def test_weights_with_lora_are_for_models_with_and_without(tmp_path):
    model = with_lora(2)
    model.save_weights(tmp_path / "with.weights.h5")
    classifier().save_weights(tmp_path / "without.weights.h5")
    plain = classifier()
    plain.load_weights(tmp_path / "with.weights.h5")
    np.testing.assert_allclose(logits(plain), logits(model), atol=1e-5)

    model = with_lora()
    model.load_weights(tmp_path / "without.weights.h5")
    np.testing.assert_allclose(logits(model), logits(classifier()), atol=1e-5)
    before = weights(model)
    fit(model, 2)
    after = weights(model)
    stuck = [n for n in trained(model) if np.array_equal(before[n], after[n])]
    assert stuck == []


def test_a_preset_has_no_place_for_lora(tmp_path):
    model = RoFormerMaskedLM.from_preset(CHARACTER)
    for each in (model, model.backbone):
        each.enable_lora(2)
        with pytest.raises(ConfigurationError, match=r"by model\.merge_lora\(\)"):
            each.save_to_preset(tmp_path / "preset")
        assert list(tmp_path.iterdir()) == []
        each.merge_lora()
    model.save_to_preset(tmp_path / "preset")


def test_options_and_calls_that_break_a_rule():
    model = classifier()
    paths = trained(model)
    for options, message in (
        ({"rank": 0}, "rank must be an integer from 1 to 32, got 0"),
        ({"rank": 2.0}, "rank must be an integer from 1 to 32, got 2.0"),
        ({"rank": 2, "alpha": 0}, "alpha must be a finite number above 0, got 0"),
        ({"rank": 2, "targets": ["query", "qkv"]}, "be of 'query', .*, got 'qkv'"),
        ({"rank": 2, "targets": []}, r"must be of 'query', .*, got \(\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.enable_lora(**options)
    for layers in (-1, 3, 1.5, None):
        with pytest.raises(ConfigurationError, match="layers must be an integer from"):
            model.freeze(layers=layers)
    assert trained(model) == paths
    with pytest.raises(ConfigurationError, match=r"model\.enable_lora\(rank\)"):
        model.merge_lora()
    model.freeze(layers=2)
    with pytest.raises(ConfigurationError, match=r"call model\.unfreeze\(\) first"):
        model.enable_lora(2)
    model.unfreeze()
    model.enable_lora(2, targets="query")
    with pytest.raises(ConfigurationError, match=r"call model\.merge_lora\(\), then"):
        model.enable_lora(2)


# === Freezing ===


def test_freezing_is_from_below():
    model = classifier()
    whole, before = trainable_count(model), weights(model)
    count = model.freeze(layers=1)
    unfrozen = {path for path in before if path.startswith(BLOCKS[1])} | HEAD
    assert trained(model) == unfrozen
    assert count == sum(before[path].size for path in unfrozen) < whole
    fit(model)
    after = weights(model)
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    # A key's bias moves all scores of a query alike.
    assert unfrozen - {f"{BLOCKS[1]}/attention/key/bias"} <= changed <= unfrozen
    assert len(model.optimizer.variables) == 2 + 2 * len(unfrozen)
    # Beside what is frozen.
    assert model.freeze(embeddings=False, layers=2) == 2 * 32 + 2
    assert model.unfreeze() == whole
    assert model.freeze(embeddings=False) == whole


@pytest.mark.slow
def test_a_compiled_model_takes_it_up():
    model = classifier(num_layers=1)
    model.compile(make_optimizer(1e-2, weight_decay=0.1), jit_compile=False)
    fit(model)
    assert len(model.optimizer.variables) == 1 + 2 * len(trained(model))
    for number, change in enumerate(
        (
            functools.partial(PresetModel.enable_lora, rank=2),
            PresetModel.merge_lora,
            functools.partial(PresetModel.freeze, layers=1),
            PresetModel.unfreeze,
        )
    ):
        # A graph is traced again after the first of them; steps are faster.
        model.run_eagerly = number > 0
        change(model)
        before, expected = weights(model), trained(model)
        fit(model)
        after = weights(model)
        changed = {n for n in before if not np.array_equal(before[n], after[n])}
        assert expected - {f"{BLOCKS[0]}/attention/key/bias"} <= changed <= expected
        optimizer = model.optimizer
        assert optimizer.iterations == 1
        assert len(optimizer.variables) == 1 + 2 * len(expected)
        assert float(optimizer.learning_rate) == pytest.approx(1e-2)
        assert not optimizer._use_weight_decay(model.get_layer("classes").bias)
        assert optimizer._use_weight_decay(model.get_layer("classes").kernel)


def test_thawing_under_lora_thaws_the_factors():
    model = with_lora()
    paths = trained(model)
    assert model.freeze(layers=2) == 2 * 32 + 2
    model.unfreeze()
    assert trained(model) == paths


# === Gradient checkpointing ===

DROPOUT = {"dropout": 0.3, "attention_dropout": 0.3}
SMALL = {**SIZES, "vocabulary_size": 50, "layer_norm_cond_size": 5}
CONDITIONAL = RoFormerConfig(**SMALL, residual_attention_scores=True, **DROPOUT)
MODELS = {
    "v1": lambda: RoFormerBackbone.from_preset(CHARACTER, **DROPOUT),
    "conditional": lambda: RoFormerBackbone(CONDITIONAL, dtype="mixed_bfloat16"),
}


def inputs_of(model):
    random = np.random.default_rng(0)
    ids = random.integers(1, 50, (2, 7)).astype("int32")
    ids[1, 5:] = 0
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
    if "layer_norm_cond" in model.input:
        inputs["layer_norm_cond"] = random.normal(size=(2, 5)).astype("float32")
    return inputs


def gradients(model, graph=False):
    """Loss, gradients and the seeds that are left, all from the same seeds."""
    seeds = [v for v in model.variables if "seed_generator" in v.path]
    for number, seed in enumerate(seeds):
        seed.assign([number + 1, 0])
    inputs = inputs_of(model)

    def compute():
        with tf.GradientTape() as tape:
            hidden = tf.cast(model(inputs, training=True), "float32")
            loss = tf.reduce_sum(hidden * tf.cos(hidden))
        variables = [variable.value for variable in model.trainable_variables]
        computed = tape.gradient(loss, variables, unconnected_gradients="zero")
        return loss, [tf.convert_to_tensor(one) for one in computed]

    loss, computed_gradients = (
        tf.function(compute, jit_compile=False) if graph else compute
    )()
    return (
        float(loss),
        [g.numpy() for g in computed_gradients],
        [s.numpy().tolist() for s in seeds],
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_changes_no_gradient(name):
    model = MODELS[name]()
    loss, expected, seeds = gradients(model)
    assert len(seeds) == 1 + 2 * 3 and all(count == 1 for _, count in seeds)
    model.gradient_checkpointing = True
    assert model.gradient_checkpointing
    for graph in (False, True) if name == "v1" else (False,):
        again, checkpointed, left = gradients(model, graph)
        # A graph rounds otherwise than single steps do.
        tolerance = 5e-6 if graph else 1e-6
        assert again == pytest.approx(loss, tolerance)
        assert left == seeds
        for mine, other in zip(checkpointed, expected, strict=True):
            scale = max(1.0, np.abs(other).max())
            np.testing.assert_allclose(
                mine / scale, other / scale, rtol=0, atol=tolerance
            )
    # Other masks are drawn for the next batch.
    model.gradient_checkpointing = False
    assert gradients(model)[0] == pytest.approx(loss, 1e-6)
    assert float(np.sum(model(inputs_of(model), training=True))) != pytest.approx(
        float(np.sum(model(inputs_of(model), training=True))), 1e-4
    )


def test_blocks_are_computed_again_in_training_only(monkeypatch):
    model = classifier(gradient_checkpointing=True)
    assert model.backbone.gradient_checkpointing
    blocks = model.backbone.transformer_layers
    counts = []
    for number, block in enumerate(blocks):
        original = block.feed_forward.call

        def counted(x, number=number, original=original):
            counts.append(number)
            return original(x)

        monkeypatch.setattr(block.feed_forward, "call", counted)
    logits(model)
    assert counts == [0, 1]
    counts.clear()
    fit(model)
    assert counts == [0, 1, 1, 0]


def test_no_file_knows_of_checkpointing(tmp_path):
    plain, model = classifier(), classifier(gradient_checkpointing=True)
    config = model.backbone.get_config()
    assert config == {**plain.backbone.get_config(), "name": config["name"]}
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    for found in (
        keras.models.load_model(tmp_path / "model.keras"),
        RoFormerTextClassifier.from_preset(tmp_path / "preset"),
    ):
        assert not found.backbone.gradient_checkpointing
        np.testing.assert_array_equal(logits(found), logits(model))

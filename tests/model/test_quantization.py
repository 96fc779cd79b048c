"""Keras's own int8 and int4: every product, saved, loaded and answered."""

import json

import keras
import numpy as np
import pytest
from common import GPT

from roformer_keras import RoFormerBackbone, RoFormerCausalLM, RoFormerSim, load_model
from roformer_keras.conversion.convert import convert
from roformer_keras.errors import CheckpointError
from roformer_keras.layers.projection import Projection
from roformer_keras.models.quantization import set_quantization_state

TEXTS = ["白日依山尽", "黄河入海流，欲穷千里目", "怎么把大象放进冰箱？", "今天天气不错"]
INT4_GROUPS = keras.quantizers.Int4QuantizationConfig(block_size=64)
INT4_CHANNELS = keras.quantizers.Int4QuantizationConfig(block_size=None)


def cosines(a, b):
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / norms


def new_model():
    """The first layer of a trained model."""
    return RoFormerSim.from_preset("roformer-sim-char", num_layers=1)


@pytest.fixture(scope="module")
def float_vectors():
    return new_model().encode(TEXTS)


def quantized(mode, **options):
    model = new_model()
    model.quantize(mode, **options)
    return model


@pytest.fixture(scope="module")
def int8():
    """A model that no test changes."""
    return quantized("int8")


def test_all_products_become_int8_and_compiled_functions_are_renewed(float_vectors):
    model = new_model()
    model.encode(TEXTS)
    model.quantize("int8")
    layers = [x for x in model._flatten_layers() if isinstance(x, Projection)]
    assert len(layers) == 6
    assert {x.quantization_mode for x in layers} == {"int8"}
    vectors = model.encode(TEXTS)
    assert not np.array_equal(vectors, float_vectors)
    assert cosines(vectors, float_vectors).min() >= 0.99


PARTS = ("config.json", "task.json")
QUANTIZER = {
    "module": "keras.quantizers",
    "class_name": "AbsMaxQuantizer",
    "config": {"value_range": [-127, 127], "epsilon": 1e-07, "output_dtype": "int8"},
    "registered_name": None,
}
INT4 = {
    "module": "keras.quantizers",
    "class_name": "Int4QuantizationConfig",
    "config": {
        "weight_quantizer": None,
        "activation_quantizer": QUANTIZER,
        "block_size": 64,
    },
    "registered_name": None,
}


BAD_STATES = [
    ((), {"x": 1}),
    (("module",), "keras.layers"),
    (("class_name",), "Embedding"),
    (("class_name",), "Int8QuantizationConfig"),
    (("class_name",), ["Int4QuantizationConfig"]),
    (("registered_name",), "evil>Layer"),
    (("config",), 3),
    (("config", "block_size"), 0),
    (("config", "block_size"), 10**30),
    (("config", "block_size"), "64"),
    (("config", "x"), 1),
    (("config", "weight_quantizer"), {"class_name": "__lambda__"}),
    (("config", "weight_quantizer"), "os.system"),
    (("config", "activation_quantizer", "module"), "os"),
    (("config", "activation_quantizer", "class_name"), "Quantizer"),
    (("config", "activation_quantizer", "config", "value_range"), ["a", 10**400]),
    (("config", "activation_quantizer", "config", "value_range"), [0]),
    (("config", "activation_quantizer", "config", "value_range"), [5, -5]),
    (("config", "activation_quantizer", "config", "epsilon"), float("nan")),
    (("config", "activation_quantizer", "config", "output_dtype"), "object"),
    (("config", "activation_quantizer", "config", "axis"), 99),
    (("config", "activation_quantizer", "config", "axis"), {}),
]


def test_a_file_makes_nothing_but_configurations_of_keras():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    layer = model.layers[0].name
    for path, value in BAD_STATES:
        config = changed(INT4, path, value)
        state = {layer: {"mode": "int4", "config": config, "names": ["kernel"]}}
        message = f"quantization of {layer} must have"
        with pytest.raises(CheckpointError, match=message):
            set_quantization_state(model, state)


def changed(config, path, value):
    """A copy of nested dicts with another value at a path."""
    if not path:
        return value
    first, *rest = path
    return {**config, first: changed(config.get(first), rest, value)}


def assert_same_model(model, again):
    again.tokenizer = model.tokenizer
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    for old, new in zip(model.weights, again.weights, strict=True):
        assert (old.path, old.dtype) == (new.path, new.dtype)
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (old, new)))


@pytest.mark.parametrize("mode", ["int8", "int4-64", "int4-channel"])
def test_models_are_saved_and_loaded_bit_for_bit(tmp_path, mode, int8):
    configs = {"int4-64": INT4_GROUPS, "int4-channel": INT4_CHANNELS}
    model = int8 if mode == "int8" else quantized("int4", config=configs[mode])
    if mode != "int4-channel":
        model.save_to_preset(tmp_path / "model")
        assert_same_model(model, load_model(tmp_path / "model"))
    if mode != "int4-64":
        model.save(tmp_path / "model.keras")
        assert_same_model(model, keras.models.load_model(tmp_path / "model.keras"))
        backbone = RoFormerBackbone.from_preset(tmp_path / "model.keras")
        inputs = model.tokenizer(TEXTS)
        expected = model.backbone.predict(inputs, verbose=0)["sequence_output"]
        outputs = backbone.predict(inputs, verbose=0)
        np.testing.assert_array_equal(outputs, expected)


def test_a_quantized_preset_is_small_and_converts_to_floats(
    tmp_path, int8, float_vectors
):
    new_model().save_to_preset(tmp_path / "float")
    int8.save_to_preset(tmp_path / "int8")
    sizes = [
        (tmp_path / name / "model.weights.h5").stat().st_size
        for name in ("float", "int8")
    ]
    assert sizes[1] < 0.3 * sizes[0]
    convert(tmp_path / "int8", tmp_path / "again.safetensors")
    vectors = load_model(tmp_path / "again.safetensors").encode(TEXTS)
    assert cosines(vectors, float_vectors).min() >= 0.99


def test_lora_on_a_quantized_model_is_saved_and_merged(tmp_path):
    model = quantized("int8")
    model.enable_lora(4)
    for variable in model.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, stddev=0.05, seed=1))
    vectors = model.encode(TEXTS)
    model.save(tmp_path / "lora.keras")
    again = keras.models.load_model(tmp_path / "lora.keras")
    again.tokenizer = model.tokenizer
    np.testing.assert_allclose(again.encode(TEXTS), vectors, atol=1e-6)
    model.merge_lora()
    assert cosines(model.encode(TEXTS), vectors).min() > 0.99
    assert not [v for v in model.trainable_variables if v.dtype == "int8"]
    model.save_to_preset(tmp_path / "merged")


def test_kept_tokens_of_a_quantized_preset(tmp_path, int8):
    int8.save_to_preset(tmp_path / "int8")
    keep_tokens = range(3000)
    small = RoFormerSim.from_preset(tmp_path / "int8", keep_tokens=keep_tokens)
    assert cosines(small.encode(TEXTS), int8.encode(TEXTS)).min() > 0.9999


def test_a_preset_that_lies_about_its_layers(tmp_path, int8):
    folder = tmp_path / "int8"
    int8.save_to_preset(folder)
    (folder / "metadata.json").unlink()
    contents = {name: (folder / name).read_text() for name in PARTS}
    for change, message in (
        ({"mode": "int2"}, "must be a layer quantized to int8 or int4"),
        ({"names": []}, "must be a layer quantized to int8 or int4"),
        ({"names": ["kernel", "bias"]}, "unexpected .*/vars/2"),
        ({"mode": "int4"}, "must be int8"),
    ):
        for name, content in contents.items():
            fields = json.loads(content)
            part = fields["config"]
            part = part["backbone"]["config"] if "backbone" in part else part
            next(iter(part["quantization"].values())).update(change)
            (folder / name).write_text(json.dumps(fields))
        with pytest.raises(CheckpointError, match=message):
            load_model(folder)


@pytest.mark.slow
def test_a_quantized_language_model_writes(tmp_path):
    model = RoFormerCausalLM.from_preset(GPT, num_layers=1)
    options = {"max_length": 12, "method": "greedy", "return_scores": True}
    before = model.generate("白日", **options)
    model.quantize("int4", config=INT4_CHANNELS)
    written = model.generate("白日", **options)
    assert written.score != pytest.approx(before.score, rel=1e-3)
    model.save_to_preset(tmp_path / "int4")
    again = load_model(tmp_path / "int4").generate("白日", **options)
    assert again.output == written.output
    assert again.score == pytest.approx(written.score, rel=1e-6)

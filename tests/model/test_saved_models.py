"""Saved models equal the trained ones, in every format, for every reader."""

import json
import zipfile

import keras
import numpy as np
import pytest
from allpairspy import AllPairs
from common import CHARACTER, GPT
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from saved_models import CELLS, CLASSES, FORMATS, READERS, STATES, wrong_cells

from roformer_keras import (
    FastModel,
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerTextClassifier,
    RoFormerTextRegressor,
    RoFormerTokenClassifier,
    convert,
    load_model,
)
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    OutputError,
    RoFormerError,
    SourceError,
)
from roformer_keras.models import lora
from roformer_keras.models.embedding import embed

# What takes long to write, or says little.
EXPORT, FRESH = "saved_model", "fresh"


def sample():
    """Cells in which states, formats and readers meet in pairs; classes take turns."""
    known = {cell[1:] for cell in CELLS}
    ways = AllPairs(
        [
            [state for state in STATES if state != FRESH],
            [format for format in FORMATS if format != EXPORT],
            list(READERS),
        ],
        filter_func=lambda way: len(way) < 3 or tuple(way) in known,
    )
    cells = [(CLASSES[n % len(CLASSES)], *way) for n, way in enumerate(ways)]
    export = ("RoFormerSentenceEncoder", "merged", EXPORT, "tensorflow")
    return [cell for cell in (*cells, export) if cell in CELLS]


@pytest.mark.slow
def test_a_sample_of_the_table(tmp_path, uncompiled):
    assert wrong_cells(sample(), tmp_path) == {}


@pytest.mark.weekly
@pytest.mark.parametrize("name", CLASSES)
def test_the_table(name, tmp_path, uncompiled):
    cells = [cell for cell in CELLS if cell[0] == name]
    assert wrong_cells(cells, tmp_path) == {}


def classifier(*classes, **options):
    options = {"classes": classes or ("差", "好"), "num_layers": 1, **options}
    return RoFormerTextClassifier.from_preset(CHARACTER, **options)


def test_a_keras_file_of_an_earlier_version_is_refused(tmp_path):
    """Its head is under names that only Keras knows."""
    classifier().save(tmp_path / "new.keras")
    with (
        zipfile.ZipFile(tmp_path / "new.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        for name in new.namelist():
            if not name.startswith("assets/"):
                old.writestr(name, new.read(name))
    message = r"its head can be read by Keras alone: load it with keras\.models\.load_m"
    for read in (
        RoFormerTextClassifier.from_preset,
        load_model,
        lambda path: convert(path, tmp_path / "preset"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path / "old.keras")
    assert keras.models.load_model(tmp_path / "old.keras").classes == ["差", "好"]


def test_a_folder_of_keras_is_read(tmp_path):
    model = classifier()
    model.save(tmp_path / "folder", zipped=False)
    again = load_model(tmp_path / "folder")
    for ours, theirs in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_of_other_types(dtype, tmp_path):
    for cls, options in (
        (RoFormerMaskedLM, {}),
        (RoFormerTokenClassifier, {"labels": ["地"], "crf": True}),
    ):
        options |= {"num_layers": 1, "dtype": dtype}
        model = cls.from_preset(CHARACTER, **options)
        for variable in model.weights:
            noise = np.random.default_rng(0).normal(size=variable.shape)
            variable.assign(noise.astype("float32" if dtype == "bfloat16" else dtype))
        model.save(tmp_path / "model.keras")
        again = load_model(tmp_path / "model.keras", dtype=dtype)
        for ours, theirs in zip(again.weights, model.weights, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)


def test_no_hdf5_of_whole_models(tmp_path):
    model = classifier()
    wrapped = FastModel(model.backbone.input, model.backbone.output)
    for one in (model, wrapped):
        with pytest.raises(ConfigurationError, match=r"end the path in \.keras, or"):
            one.save(tmp_path / "model.h5")
    assert list(tmp_path.iterdir()) == []


def test_lora_of_the_head_itself_is_in_the_kernel(tmp_path):
    model = classifier()
    layer = model.get_layer("classes")
    layer.enable_lora(1)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    model.save(tmp_path / "model.keras")
    again = RoFormerTextClassifier.from_preset(tmp_path / "model.keras")
    np.testing.assert_allclose(again.get_layer("classes").kernel, layer.kernel)
    with pytest.raises(ConfigurationError, match="no place for classes/lora_kernel_a"):
        model.save_to_preset(tmp_path / "preset")


# === Adapters ===


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapter") / "adapter.safetensors"
    model = classifier()
    model.enable_lora(2)
    for layer in lora._lora_layers(model.backbone):
        layer.lora_kernel_b.assign(layer.lora_kernel_b + 0.1)
    model.save_lora(path)
    return path


def test_an_adapter_is_for_the_labels_that_it_was_trained_with(adapter, tmp_path):
    model = classifier("好", "差")
    with pytest.raises(ConfigurationError, match="was saved with classes="):
        model.load_lora(adapter)
    with pytest.raises(ConfigurationError, match="was saved with num_classes=2"):
        classifier("差", "好", "中").load_lora(adapter)
    # Nothing was changed by any.
    assert not any("lora" in weight.path for weight in model.weights)


def test_an_adapter_gives_the_outputs_of_its_model(adapter):
    model, again = classifier(), classifier()
    trained = model.load_lora(adapter)
    assert trained == lora.trainable_count(model)
    assert len(adapter.read_bytes()) < 20_000
    again.load_lora(adapter)
    again.merge_lora()
    texts = ["今天天气", "北京"]
    np.testing.assert_allclose(
        model.predict(texts, engine="keras"),
        again.predict(texts, engine="keras"),
        atol=1e-5,
    )
    plain = classifier().predict(texts, engine="keras")
    assert np.abs(model.predict(texts, engine="keras") - plain).max() > 1e-3


def drop(tensors, content):
    tensors.popitem()


def reshape(tensors, content):
    name = max(tensors)
    tensors[name] = tensors[name][:-1]


def add(tensors, content):
    tensors["more"] = np.zeros(2, "float32")


def describe(value):
    return lambda tensors, content: content.update(lora=value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, "must have the shape of this model"),
        (reshape, "must have the shape of this model"),
        (add, "more must have the shape of this model, none"),
        (describe(None), "lora must be"),
        (describe({"rank": 0, "alpha": 1, "targets": ["query"]}), "rank must be"),
        (describe({"rank": 2, "alpha": 1, "targets": ["x"]}), "targets must be of"),
        (lambda tensors, content: content.update(options=[]), "options must be"),
    ],
)
def test_a_changed_adapter_is_refused(change, message, adapter, tmp_path):
    with safe_open(adapter, "numpy") as file:
        content = json.loads(file.metadata()["roformer_keras"])
    tensors = load_file(adapter)
    change(tensors, content)
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path, {"roformer_keras": json.dumps(content)})
    model = classifier()
    with pytest.raises(RoFormerError, match=message):
        model.load_lora(path)
    assert not any("lora" in weight.path for weight in model.weights)


def test_what_is_no_adapter_is_refused(adapter, tmp_path):
    model = classifier()
    with pytest.raises(ConfigurationError, match="there is no LoRA to save"):
        model.save_lora(tmp_path / "x.safetensors")
    save_file({"x": np.zeros(2, "float32")}, tmp_path / "other.safetensors")
    for name, kind, message in (
        ("none.safetensors", SourceError, "none.safetensors"),
        (".", ConfigurationError, "merge an adapter of PEFT"),
        ("other.safetensors", ConfigurationError, "must be an adapter that save_lora"),
    ):
        with pytest.raises(kind, match=message):
            model.load_lora(tmp_path / name)
    model.load_lora(adapter)
    with pytest.raises(ConfigurationError, match="whose name ends in"):
        model.save_lora(tmp_path / "folder")
    with pytest.raises(OutputError, match="exists"):
        model.save_lora(adapter)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (RoFormerBackbone, {}),
        (RoFormerTextRegressor, {}),
        (RoFormerTokenClassifier, {"labels": ["地"]}),
    ],
)
def test_a_head_that_is_left_out_is_warned_of(cls, options, adapter):
    model = cls.from_preset(CHARACTER, num_layers=1, **options)
    with pytest.warns(UserWarning, match="head of RoFormerTextClassifier is left out"):
        model.load_lora(adapter)


# === Causal sources ===


def test_a_causal_source_stays_causal(tmp_path):
    preset = convert(GPT, tmp_path / "preset", verbose=0)
    folder = convert(GPT, tmp_path / "folder", format="huggingface", verbose=0)
    backbone = tmp_path / "bare"
    RoFormerBackbone.from_preset(GPT).save_to_preset(backbone)
    RoFormerCausalLM.from_preset(GPT).save(tmp_path / "model.keras")
    for source in (GPT, preset, folder, backbone, tmp_path / "model.keras"):
        assert RoFormerBackbone.from_preset(source).config.attention == "causal"
        with pytest.raises(ConfigurationError, match="pass attention='bidirectional'"):
            RoFormerTextClassifier.from_preset(source, num_classes=2)
    model = RoFormerCausalLM.from_preset(GPT)
    with pytest.raises(ConfigurationError, match="sees nothing of the text"):
        embed(model, model.tokenizer, ["今天"])
    for attention in ("bidirectional", "causal"):
        options = {"num_classes": 2, "attention": attention}
        model = RoFormerTextClassifier.from_preset(GPT, **options)
        model.save_to_preset(tmp_path / attention)
        again = load_model(tmp_path / attention)
        assert again.config.attention == attention


# === Paths ===


class Inside(keras.layers.Layer):
    """A layer that makes a model when it is built."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def build(self, shape):
        self.model = self.make()

    def call(self, x):
        return x


def made_in_a_layer(make):
    layer = Inside(make)
    layer(np.zeros((1, 1)))
    return layer.model


def made_in_a_scope(make):
    with keras.name_scope("outer"), keras.name_scope("inner"):
        return make()


@pytest.mark.parametrize("made", [made_in_a_scope, made_in_a_layer])
@pytest.mark.parametrize("crf", [False, True])
def test_name_scopes_change_no_file(made, crf, tmp_path):
    options = {"labels": ["地"], "crf": crf, "num_layers": 1}
    plain = RoFormerTokenClassifier.from_preset(CHARACTER, **options)
    plain.save_to_preset(tmp_path / "plain")
    model = made(lambda: load_model(tmp_path / "plain"))
    model.save_to_preset(tmp_path / "scoped")
    made(lambda: model.load_preset(tmp_path / "plain"))
    again = load_model(tmp_path / "scoped")
    for ours, theirs in zip(again.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    made(lambda: model.enable_lora(2))
    adapter = tmp_path / "adapter.safetensors"
    made(lambda: model.save_lora(adapter))
    made(lambda: load_model(tmp_path / "plain")).load_lora(adapter)
    model.merge_lora()
    model.save_to_preset(tmp_path / "merged")
    names = {path.name for path in tmp_path.rglob("*") if "outer" in path.name}
    assert not names and load_model(tmp_path / "merged").config == plain.config


# === Quantized layers ===


@pytest.mark.parametrize("of", [lambda model: model, lambda model: model.backbone])
def test_no_model_is_quantized(of):
    model = classifier()
    with pytest.raises(ConfigurationError, match="use engine='openvino-int8'"):
        of(model).quantize("int8")
    assert {layer.quantization_mode for layer in model._flatten_layers()} == {None}


@pytest.mark.parametrize(
    "quantize",
    [
        lambda model: model.get_layer("classes").quantize("int8"),
        lambda model: model.backbone.token_embedding.quantize("int4"),
        lambda model: keras.Model(model.input, model.output).quantize("int8"),
    ],
)
@pytest.mark.filterwarnings("ignore:Layer .* `quantize`:UserWarning")
def test_quantized_layers_are_not_saved(quantize, tmp_path):
    model = classifier()
    model.enable_lora(2)
    quantize(model)
    for use in (
        lambda: model.save_to_preset(tmp_path / "preset"),
        lambda: model.save(tmp_path / "model.keras"),
        lambda: model.save_lora(tmp_path / "adapter.safetensors"),
        lambda: model.load_preset(CHARACTER),
    ):
        with pytest.raises(ConfigurationError, match="withdrew quantize"):
            use()
    assert list(tmp_path.iterdir()) == []

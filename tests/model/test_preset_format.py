"""The preset format holds every model: what is read is what was saved, and strictly."""

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from common import CHARACTER, tiny_seq2seq
from sources import FOREIGN_DATA, assert_same, replace_a_dataset, tensors_of, weights

from roformer_keras import (
    RoFormerBackbone,
    RoFormerSeq2Seq,
    RoFormerTextClassifier,
    convert,
    load_model,
)
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import task_rows, weight_table
from roformer_keras.errors import CheckpointError, ConfigurationError
from roformer_keras.io.tensor import Tensor


@pytest.fixture(scope="module")
def presets(tmp_path_factory, backbone, masked_lm):
    """Preset folders by class, and the models that were saved to them."""
    folder = tmp_path_factory.mktemp("presets")
    classifier = RoFormerTextClassifier.from_preset(CHARACTER, classes=["坏", "好"])
    seq2seq = tiny_seq2seq("天地", num_layers=1, hidden_dim=8, intermediate_dim=12)
    found = {}
    for model in (backbone, masked_lm, classifier, seq2seq):
        name = type(model).__name__
        model.save_to_preset(folder / name)
        found[name] = folder / name, model
    return found


NAMES = (
    "RoFormerBackbone",
    "RoFormerMaskedLM",
    "RoFormerTextClassifier",
    "RoFormerSeq2Seq",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_stored_and_read_through_one_path(name, presets, tmp_path):
    folder, model = presets[name]
    values = weights(model)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.model == name
        assert checkpoint.config == model.config
        assert list(checkpoint.vocabulary) == model.tokenizer.vocabulary
        assert checkpoint.unexpected == checkpoint.training_state == ()
        rows = checkpoint.rows
        for row in rows.values():
            np.testing.assert_array_equal(checkpoint.weight(row.name), values[row.path])
        assert {row.path for row in rows.values()} == set(values)
        save(checkpoint, tmp_path / "copy", "preset")
    assert_same(tensors_of(tmp_path / "copy"), tensors_of(folder))
    again = load_model(tmp_path / "copy")
    assert type(again) is type(model)
    assert_same(weights(again), values)
    built = json.loads((tmp_path / "copy" / "config.json").read_text(encoding="utf-8"))
    assert keras.saving.deserialize_keras_object(built).config == model.config


def test_convert_keeps_the_head_of_a_task_in_a_preset_only(presets, tmp_path, capsys):
    folder, model = presets["RoFormerTextClassifier"]
    half = convert(folder, tmp_path / "half", dtype="float16", verbose=0)
    again = RoFormerTextClassifier.from_preset(half)
    assert again.classes == ["坏", "好"]
    np.testing.assert_allclose(
        again.get_layer("classes").kernel, model.get_layer("classes").kernel, atol=1e-3
    )
    for target in ("x.keras", "x.safetensors", "backbone"):
        options = {"model": "RoFormerBackbone"} if target == "backbone" else {}
        made = convert(folder, tmp_path / target, verbose=0, **options)
        with open_checkpoint(made) as checkpoint:
            assert checkpoint.model == "RoFormerBackbone"
            assert not checkpoint.is_task
        assert_same(tensors_of(made), tensors_of(presets["RoFormerBackbone"][0]))
    assert capsys.readouterr().err == ""
    convert(folder, tmp_path / "said.safetensors")
    assert "head of RoFormerTextClassifier is left out" in capsys.readouterr().err


def test_an_encoder_decoder_is_converted_to_a_preset_only(presets, tmp_path):
    folder, model = presets["RoFormerSeq2Seq"]
    half = convert(folder, tmp_path / "half", dtype="float16", verbose=0)
    again = RoFormerSeq2Seq.from_preset(half)
    for ours, theirs in zip(again.weights, model.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
    with pytest.raises(ConfigurationError, match="only the format 'preset' can store"):
        convert(folder, tmp_path / "x.keras", verbose=0)
    with pytest.raises(ConfigurationError, match="with its own configuration: leave"):
        convert(folder, tmp_path / "x", config=model.config, verbose=0)
    for action in (
        lambda: RoFormerBackbone.from_preset(folder),
        lambda: convert(folder, tmp_path / "x", model="RoFormerSim", verbose=0),
    ):
        with pytest.raises(ConfigurationError, match="loaded by RoFormerSeq2Seq"):
            action()
    with (
        open_checkpoint(CHARACTER) as checkpoint,
        pytest.raises(ConfigurationError, match="holds no encoder-decoder, which RoF"),
    ):
        checkpoint.config_for("RoFormerSeq2Seq")


# === Presets that do not fit ===


def changed(presets, name, folder, file, change):
    """A copy without checksums, in which a function changed one HDF5 file."""
    shutil.copytree(presets[name][0], folder)
    (folder / "metadata.json").unlink()
    with h5py.File(folder / file, "a") as opened:
        change(opened)
    return folder


def without(dataset):
    return lambda file: file.pop(dataset)


def replaced(dataset, value):
    def change(file):
        del file[dataset]
        file[dataset] = value

    return change


def with_extra(file):
    file["extra"] = np.zeros(3, "float32")


HEAD = ("RoFormerTextClassifier", "task.weights.h5")
SEQ2SEQ = ("RoFormerSeq2Seq", "model.weights.h5")
BIAS, KERNEL = "classes/bias", "classes/kernel"
QUERY = "decoder_layer_0/cross_attention/query/kernel"
SHAPE = r"/kernel has shape \({}\), expected \({}\)"
FLOATS = "{} must be a float tensor to be a weight"
CHANGES = [
    (HEAD, without(BIAS), r"missing task/classes/bias \(2,\)"),
    (HEAD, replaced(KERNEL, np.zeros((32, 3), "f")), SHAPE.format("32, 3", "32, 2")),
    (HEAD, with_extra, r"unexpected task/extra \(3,\)"),
    (HEAD, replaced(BIAS, np.zeros(2, "int32")), f"{FLOATS.format(BIAS)}, got int32"),
    (SEQ2SEQ, without(QUERY), rf"missing {QUERY} \(8, 8\)"),
    (SEQ2SEQ, replaced(QUERY, np.zeros((8, 9), "f")), SHAPE.format("8, 9", "8, 8")),
    (SEQ2SEQ, with_extra, r"unexpected extra \(3,\): if these are your own layers"),
    (SEQ2SEQ, replaced(QUERY, np.full((8, 8), b"x")), FLOATS.format(QUERY)),
]


@pytest.mark.parametrize(("preset", "change", "message"), CHANGES)
def test_a_preset_is_read_strictly(preset, change, message, presets, tmp_path):
    name, file = preset
    model = presets[name][1]
    folder = changed(presets, name, tmp_path / "preset", file, change)
    with pytest.raises(CheckpointError, match=message), open_checkpoint(folder) as made:
        shapes = None
        if made.is_task:
            shapes = {v.path: v.shape for v in model.head_variables()}
        for row in weights_to_read(made, made.config, task_shapes=shapes):
            made.weight(row.name)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [HEAD, SEQ2SEQ], ids=lambda preset: preset[0])
@pytest.mark.parametrize(("how", "message"), FOREIGN_DATA)
def test_weights_are_read_from_their_own_file_alone(
    preset, how, message, presets, tmp_path
):
    name, file = preset
    shutil.copytree(presets[name][0], tmp_path / "preset")
    replace_a_dataset(tmp_path / "preset" / file, how, tmp_path)
    from_preset = type(presets[name][1]).from_preset
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "preset", tmp_path / "copy", verbose=0)
        from_preset(tmp_path / "copy")
    with pytest.raises(CheckpointError, match=message):
        from_preset(tmp_path / "preset")


TASK = ("RoFormerTextClassifier", "task.json")
CONFIG = ("RoFormerSeq2Seq", "config.json")
TABLE = r"token_embedding/embeddings has shape \(6, 8\), expected \(10{9}, 8\)"


@pytest.mark.parametrize(
    ("preset", "fields", "message"),
    [
        (TASK, {"num_classes": 10**9}, "num_classes=1,000,000,000 in task.json does"),
        (CONFIG, {"vocabulary_size": 10**9}, TABLE),
        (CONFIG, {"num_layers": 10**9}, "has 1,000,000,000 layers, but there are only"),
        (CONFIG, {"position_embedding": "none"}, "one of 'rotary', .*, got 'none'"),
    ],
    ids=["classes", "tokens", "layers", "positions"],
)
def test_sizes_are_known_before_anything_is_built(
    preset, fields, message, presets, tmp_path
):
    name, file = preset
    error = ConfigurationError if "position_embedding" in fields else CheckpointError
    folder = Path(shutil.copytree(presets[name][0], tmp_path / "preset"))
    serialized = json.loads((folder / file).read_text(encoding="utf-8"))
    serialized["config"] |= fields
    (folder / file).write_text(json.dumps(serialized), encoding="utf-8")
    (folder / "metadata.json").unlink()
    with pytest.raises(error, match=message), open_checkpoint(folder) as checkpoint:
        weights_to_read(checkpoint, checkpoint.config)


@pytest.mark.parametrize("content", ["3", '{"class_name": []}', '{"config": 3}'])
@pytest.mark.parametrize("file", ["config.json", "task.json"])
def test_a_preset_says_that_its_json_holds_no_model(file, content, presets, tmp_path):
    folder = Path(
        shutil.copytree(presets["RoFormerTextClassifier"][0], tmp_path / "preset")
    )
    if file == "config.json":
        (folder / "task.json").unlink()
    (folder / file).write_text(content, encoding="utf-8")
    (folder / "metadata.json").unlink()
    with (
        pytest.raises(ConfigurationError, match=r"no RoFormer model|must hold one"),
        open_checkpoint(folder),
    ):
        pass


def test_a_model_is_saved_from_its_variables(presets, tmp_path):
    """The way in which models save themselves, without a file to begin with."""
    model = presets["RoFormerTextClassifier"][1]
    values = weights(model)
    head = {v.path: v.shape for v in model.head_variables()}
    rows = (*weight_table(model.config, ()), *task_rows(head))
    checkpoint = Checkpoint(
        label="model",
        format="model",
        config=model.config,
        tensors={
            row.name: Tensor(
                row.checkpoint_shape, "float32", lambda row=row: values[row.path]
            )
            for row in rows
        },
        vocabulary=tuple(model.tokenizer.vocabulary),
        model="RoFormerTextClassifier",
        model_options=model.preset_options(),
        tokenizer=model.tokenizer.to_dict(),
    )
    save(checkpoint, tmp_path / "preset", "preset")
    with open_checkpoint(tmp_path / "preset") as found:
        assert found.model_options == checkpoint.model_options
        assert found.tokenizer == checkpoint.tokenizer
        same = ("config", "model", "vocabulary")
        assert [getattr(found, name) for name in same] == [
            getattr(checkpoint, name) for name in same
        ]
    unsaved = dataclasses.replace(checkpoint, model="RoFormerBackbone")
    with pytest.raises(CheckpointError, match="holds roformer weights"):
        weights_to_read(unsaved, presets["RoFormerSeq2Seq"][1].config)

"""The preset format holds every model: what is read is what was saved, and strictly."""

import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from common import CHARACTER, read_json, write_file
from sources import (
    FOREIGN_DATA,
    assert_same,
    listing,
    replace_a_dataset,
    tensors_of,
    weights,
)

from roformer_keras import (
    RoFormerTextClassifier,
    convert,
    load_model,
)
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.conversion.checkpoint import weights_to_read
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint


@pytest.fixture(scope="module")
def presets(tmp_path_factory, backbone, masked_lm):
    """Preset folders by class, and the models that were saved to them."""
    folder = tmp_path_factory.mktemp("presets")
    classifier = RoFormerTextClassifier.from_preset(CHARACTER, classes=["坏", "好"])
    saved = {}
    for model in (backbone, masked_lm, classifier):
        name = type(model).__name__
        model.save_to_preset(folder / name)
        saved[name] = folder / name, model
    return saved


NAMES = ("RoFormerBackbone", "RoFormerMaskedLM", "RoFormerTextClassifier")


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
    assert again.tokenizer.to_dict() == model.tokenizer.to_dict()
    parts = {"config.json"} | ({"task.json"} if name.endswith("MaskedLM") else set())
    for part in parts:
        content = read_json(folder / part)
        built = keras.saving.deserialize_keras_object(content)
        assert type(built) is type(model) or part == "config.json"
        assert built.config == model.config
    metadata = read_json(folder / "metadata.json")
    assert metadata["parameter_count"] == model.count_params()
    assert metadata["keras_version"] == keras.__version__
    assert set(listing(folder)) - {"task.json", "task.weights.h5"} == {
        *("config.json", "metadata.json", "model.weights.h5", "tokenizer.json"),
        *("assets", "assets/tokenizer", "assets/tokenizer/vocabulary.txt"),
    }


def test_convert_keeps_the_head_of_a_task_in_a_preset_only(presets, tmp_path, capsys):
    folder, model = presets["RoFormerTextClassifier"]
    half = convert(folder, tmp_path / "half", dtype="float16", verbose=0)
    again = RoFormerTextClassifier.from_preset(half)
    assert again.classes == ["坏", "好"]
    np.testing.assert_allclose(
        again.get_layer("classes").kernel, model.get_layer("classes").kernel, atol=1e-3
    )
    for target in ("x.keras", "x.safetensors", "x.weights.h5"):
        with pytest.raises(ConfigurationError, match="has a place in a folder only"):
            convert(folder, tmp_path / target, verbose=0)
    options = {"model": "RoFormerBackbone", "verbose": 0}
    for target in ("x.keras", "x.safetensors", "backbone"):
        made = convert(folder, tmp_path / target, **options)
        with open_checkpoint(made) as checkpoint:
            assert checkpoint.model == "RoFormerBackbone"
            assert not checkpoint.is_task
        assert_same(tensors_of(made), tensors_of(presets["RoFormerBackbone"][0]))
    assert capsys.readouterr().err == ""
    convert(folder, tmp_path / "said.zip", verbose=0)
    assert "head of RoFormerTextClassifier is left out" in capsys.readouterr().err


# === Presets that do not fit ===


def changed(presets, name, folder, file, change):
    """A copy in which a function changed one HDF5 file."""
    shutil.copytree(presets[name][0], folder)
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
BIAS, KERNEL = "classes/bias", "classes/kernel"
SHAPE = r"/kernel has shape \({}\), expected \({}\)"
FLOATS = "{} must be a float tensor to be a weight"
CHANGES = [
    (HEAD, without(BIAS), r"missing task/classes/bias \(2,\)"),
    (HEAD, replaced(KERNEL, np.zeros((32, 3), "f")), SHAPE.format("32, 3", "32, 2")),
    (HEAD, with_extra, r"unexpected task/extra \(3,\)"),
    (HEAD, replaced(BIAS, np.zeros(2, "int32")), f"{FLOATS.format(BIAS)}, got int32"),
]


def test_a_preset_is_read_strictly(presets, tmp_path):
    for number, ((name, file), change, message) in enumerate(CHANGES):
        model = presets[name][1]
        folder = changed(presets, name, tmp_path / str(number), file, change)
        with (
            pytest.raises(CheckpointError, match=message),
            open_checkpoint(folder) as made,
        ):
            shapes = None
            if made.is_task:
                shapes = {v.path: v.shape for v in model.head_variables()}
            for row in weights_to_read(made, made.config, task_shapes=shapes):
                made.weight(row.name)


def test_weights_are_read_from_their_own_file_alone(presets, tmp_path):
    name, file = HEAD
    for how, message in FOREIGN_DATA:
        folder = tmp_path / how
        shutil.copytree(presets[name][0], folder / "preset")
        replace_a_dataset(folder / "preset" / file, how, folder)
        from_preset = type(presets[name][1]).from_preset
        with pytest.raises(CheckpointError, match=message):
            from_preset(folder / "preset")
        if how == "group":
            # Only the task knows the weights of its head.
            continue
        with pytest.raises(CheckpointError, match=message):
            convert(folder / "preset", folder / "copy", verbose=0)


SIZES = [
    (
        ("RoFormerTextClassifier", "task.json"),
        {"num_classes": 10**9},
        CheckpointError,
        "num_classes=1,000,000,000 in task.json does",
    ),
    (
        ("RoFormerBackbone", "config.json"),
        {"num_layers": 10**9},
        CheckpointError,
        "has 1,000,000,000 layers, but there are only",
    ),
    (
        ("RoFormerBackbone", "config.json"),
        {"attention": "none"},
        ConfigurationError,
        "one of 'bidirectional', .*, got 'none'",
    ),
]


def test_sizes_are_known_before_anything_is_built(presets, tmp_path):
    for number, ((name, file), fields, error, message) in enumerate(SIZES):
        folder = Path(shutil.copytree(presets[name][0], tmp_path / str(number)))
        serialized = read_json(folder / file)
        serialized["config"] |= fields
        write_file(folder / file, serialized)
        (folder / "metadata.json").unlink()
        with pytest.raises(error, match=message), open_checkpoint(folder) as checkpoint:
            weights_to_read(checkpoint, checkpoint.config)

"""Checkpoints and models: the zips against TensorFlow, what Keras itself saves, errors.

The table of sources that are read and refused is in `unit/test_reader.py`.
"""

import numpy as np
import pytest
from common import CHARACTER, CHECKPOINTS, SAVED, SMALL, zipped_json
from sources import (
    assert_same,
    listing,
    outputs,
    tensorflow_tensors,
    tensors_of,
    unpacked,
    weights,
)

from roformer_keras import RoFormerBackbone, RoFormerMaskedLM, RoFormerSim, convert
from roformer_keras.base.errors import CheckpointError
from roformer_keras.conversion.reader import open_checkpoint

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")

CONFIG = zipped_json(SMALL)


def test_every_zip_of_bert4keras_gives_what_tensorflow_reads(tmp_path):
    for archive in sorted(CHECKPOINTS.glob("*.zip")):
        prefix = unpacked(archive, tmp_path) / "bert_model.ckpt"
        assert_same(tensors_of(archive), tensorflow_tensors(prefix))


def test_float16_is_loaded_as_the_float32_of_its_values(tmp_path):
    source = convert(SMALL, tmp_path / "x.keras", dtype="float16", verbose=0)
    table = RoFormerSim.from_preset(source).backbone.token_embedding.embeddings
    assert table.dtype == "float32"
    halves = tensors_of(SMALL)["bert/embeddings/word_embeddings"].astype("float16")
    np.testing.assert_array_equal(np.asarray(table), halves.astype("float32"))


def test_a_fitted_model_of_keras_is_read_without_its_optimizer(tmp_path):
    model = RoFormerMaskedLM.from_preset(SMALL, output_activation="softmax")
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    inputs = {
        "token_ids": np.ones((2, 3), "int32"),
        "segment_ids": np.zeros((2, 3), "int32"),
    }
    before = tensors_of(SMALL)
    model.fit(inputs, np.ones((2, 3), "int32"), verbose=0)
    model.save(tmp_path / "x.keras")
    with open_checkpoint(tmp_path / "x.keras") as checkpoint:
        assert len(checkpoint.training_state) > len(checkpoint.tensors)
        assert checkpoint.unexpected == ()
        assert set(checkpoint.tensors) == {n for n in before if "pooler" not in n}
    again = RoFormerMaskedLM.from_preset(tmp_path / "x.keras")
    assert again.output_activation == "softmax"
    assert_same(outputs(again), outputs(model))


def test_what_from_preset_refuses_and_passes_over(tmp_path):
    before = listing(tmp_path)
    source = SAVED / "encoder-dense.h5"
    with pytest.raises(CheckpointError, match=r"unexpected dense/dense/bias:0 \(2,\)"):
        RoFormerBackbone.from_preset(source, config=CONFIG)
    assert listing(tmp_path) == before
    model = RoFormerBackbone.from_preset(source, config=CONFIG, ignore="dense/*")
    assert_same(outputs(model), outputs(RoFormerBackbone.from_preset(SMALL)))


def test_the_first_layers_are_those_of_the_whole_model(backbone):
    first = RoFormerBackbone.from_preset(CHARACTER, num_layers=1)
    assert first.config.num_layers == 1 < backbone.config.num_layers
    whole = weights(backbone)
    for path, value in weights(first).items():
        np.testing.assert_array_equal(value, whole[path])

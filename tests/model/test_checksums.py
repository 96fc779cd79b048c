"""Files of this package in which a bit has changed are refused."""

import json

import keras
import numpy as np
import pytest
from common import CHARACTER, SIM
from safetensors import safe_open

from roformer_keras import RoFormerSeq2Seq, RoFormerSim, load_model
from roformer_keras.conversion.convert import convert
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.errors import CheckpointError, RoFormerError
from roformer_keras.tasks import RoFormerTextClassifier
from roformer_keras.text.tokenizer import RoFormerTokenizer


def content(path):
    """All that a model gets from a file, as bytes."""
    with open_checkpoint(path) as checkpoint:
        tensors = {n: checkpoint.weight(n).tobytes() for n in checkpoint.tensors}
        return (
            tensors,
            checkpoint.vocabulary,
            checkpoint.config,
            checkpoint.model,
            dict(checkpoint.model_options),
            dict(checkpoint.tokenizer),
        )


def flip(path, position):
    """Flips one bit; returns the bytes before."""
    data = path.read_bytes()
    damaged = bytearray(data)
    damaged[position // 8] ^= 1 << position % 8
    path.write_bytes(damaged)
    return data


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    convert(SIM, folder / "preset")
    convert(SIM, folder / "sim.safetensors")
    task = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2)
    task.save_to_preset(folder / "task")
    model = RoFormerSim.from_preset(SIM)
    model.quantize("int8")
    model.save_to_preset(folder / "int8")
    RoFormerSeq2Seq(
        vocabulary_size=20,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
    ).save_to_preset(folder / "seq2seq")
    return folder


@pytest.mark.parametrize(
    "name, file",
    [
        ("preset", "model.weights.h5"),
        ("preset", "config.json"),
        ("preset", "task.json"),
        ("preset", "tokenizer.json"),
        ("preset", "assets/tokenizer/vocabulary.txt"),
        ("preset", "metadata.json"),
        ("task", "task.weights.h5"),
        ("task", "task.json"),
        ("int8", "model.weights.h5"),
        ("seq2seq", "model.weights.h5"),
        ("sim.safetensors", ""),
    ],
)
def test_no_flipped_bit_changes_what_is_read(written, name, file):
    source = written / name
    path = source / file if file else source
    expected = content(source)
    positions = np.random.default_rng(7).integers(8 * path.stat().st_size, size=40)
    refused = 0
    for position in positions:
        data = flip(path, int(position))
        try:
            assert content(source) == expected, f"bit {position}"
        except RoFormerError:
            refused += 1
        finally:
            path.write_bytes(data)
    # Some bits hold nothing, such as those of the free space in HDF5.
    assert refused > 0
    assert content(source) == expected


def test_the_error_says_what_to_do(written, tmp_path):
    preset = tmp_path / "preset"
    convert(SIM, preset)
    path = preset / "task.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"task\.json is not what was written"):
        load_model(preset)
    metadata = json.loads((preset / "metadata.json").read_text())
    del metadata["crc32c"]
    (preset / "metadata.json").write_text(json.dumps(metadata))
    load_model(preset)


def test_a_tokenizer_that_is_saved_again_is_that_of_the_preset(tmp_path):
    convert(SIM, tmp_path / "preset")
    tokenizer = RoFormerTokenizer.from_preset(SIM)
    RoFormerTokenizer(list(tokenizer.vocabulary), "character", False).save_to_preset(
        tmp_path / "preset"
    )
    assert not load_model(tmp_path / "preset").tokenizer.lower_case


def test_other_readers_read_the_files(written):
    with safe_open(written / "sim.safetensors", framework="numpy") as file:
        assert file.get_tensor("bert/embeddings/word_embeddings").shape[1] == 32
    model = RoFormerSim.from_preset(SIM)
    model.backbone.load_weights(written / "preset" / "model.weights.h5")
    assert isinstance(model.backbone, keras.Model)

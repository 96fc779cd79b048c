"""Converted files in TensorFlow, weights that models refuse, and the memory.

The round trips and errors of `convert` are in `unit/test_convert.py`.
"""

import json
import shutil
import sys
import zipfile

import numpy as np
import pytest
from common import (
    GPT,
    NSP,
    SIM,
    SMALL,
    V2,
    V2_EMBEDDING_SIZE,
    run,
    write_file,
    zipped_json,
)
from sources import (
    assert_same,
    tensorflow_tensors,
    tensors_of,
    unpacked,
    write_checkpoint,
)

from roformer_keras import RoFormerBackbone, convert
from roformer_keras.base.config import RoFormerConfig
from roformer_keras.base.errors import CheckpointError
from roformer_keras.conversion.weights import weight_table

# Nothing may be left in the temporary folder.
pytestmark = pytest.mark.usefixtures("scratch")


def test_tensorflow_reads_what_is_written_for_bert4keras(tmp_path):
    for source in (SIM, V2, NSP, V2_EMBEDDING_SIZE, GPT):
        middle = convert(source, tmp_path / f"{source.stem}.safetensors", verbose=0)
        target = convert(middle, tmp_path / f"named-{source.stem}.zip", verbose=0)
        with zipfile.ZipFile(target) as archive:
            assert archive.testzip() is None
            names = [name.split("/") for name in archive.namelist()]
        assert {folder for folder, _ in names} == {target.stem}
        assert {name for _, name in names} == {
            *("bert_config.json", "vocab.txt", "checkpoint", "bert_model.ckpt.index"),
            "bert_model.ckpt.data-00000-of-00001",
        }
        files = unpacked(target, tmp_path)
        truth = tensors_of(source)
        assert_same(tensorflow_tensors(files / "bert_model.ckpt"), truth)
        # The folder is enough for TensorFlow: the state file names its neighbour.
        assert_same(tensorflow_tensors(files), truth)


def test_a_model_refuses_weights_that_are_no_numbers(tmp_path):
    tensors = tensors_of(SMALL)
    tensors["bert/pooler/dense/bias"][0] = np.nan
    source = write_checkpoint(tmp_path / "source", tensors, zipped_json(SMALL))
    with pytest.raises(CheckpointError, match=r"pooler/dense/bias must hold finit"):
        RoFormerBackbone.from_preset(source, pooler_activation="tanh")


# Each child begins with the memory of its parent, which has made no model.
MEMORY = """
    import json, os, sys

    def peak(action, *arguments, **options):
        read, write = os.pipe()
        if not os.fork():
            action(*arguments, **options)
            status = open("/proc/self/status").read()
            kilobytes = status.split("VmHWM:")[1].split()[0]
            os.write(write, str(int(kilobytes) * 1024).encode())
            os._exit(0)
        os.close(write)
        os.wait()
        with os.fdopen(read) as file:
            return int(file.read())

    folder, targets, config = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    peaks = {"tensorflow": peak(__import__, "tensorflow")}
    from roformer_keras import convert
    for name in targets:
        paths = f"{folder}/base.zip", f"{folder}/{name}"
        peaks[f"zip to {name}"] = peak(convert, *paths, verbose=0)
    from roformer_keras import RoFormerSim
    for name in ("base.zip", *targets):
        options = {"config": config} if name.endswith(".h5") else {}
        path = f"{folder}/{name}"
        peaks[f"from_preset of {name}"] = peak(RoFormerSim.from_preset, path, **options)
    print(json.dumps(peaks))
"""


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_stays_within_tensorflow_and_one_and_a_half_times_the_weights(tmp_path):
    config = {
        **zipped_json(SMALL),
        "vocab_size": 12_000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
    }
    random = np.random.default_rng(0)
    tensors = {
        row.name: random.standard_normal(row.checkpoint_shape, "float32") * 0.02
        for row in weight_table(
            RoFormerConfig.from_bert_config(config), ("pooler", "mlm")
        )
    }
    weights = sum(value.nbytes for value in tensors.values())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(11_996))]
    write_checkpoint(tmp_path / "base", tensors, config, tokens)
    options = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(tmp_path / "base.zip", "w", **options) as archive:
        for path in (tmp_path / "base").iterdir():
            archive.write(path, f"base/{path.name}")
    shutil.rmtree(tmp_path / "base")
    config_file = tmp_path / "bert_config.json"
    write_file(config_file, config)
    names = ["preset", "x.weights.h5", "x.keras", "x.safetensors", "x.zip"]
    process = run(MEMORY, tmp_path, json.dumps(names), config_file)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    peaks = json.loads(output.splitlines()[-1])
    bar = peaks.pop("tensorflow") + 1.5 * weights
    assert len(peaks) == 11
    shown = {name: f"{value / 1e6:.0f} MB" for name, value in peaks.items()}
    print(f"weights {weights / 1e6:.0f} MB, at most {bar / 1e6:.0f} MB", shown)
    assert {name: value for name, value in peaks.items() if value > bar} == {}

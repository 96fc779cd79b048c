"""tools/reference, and the files that it wrote.

The checkpoints are read with TensorFlow, h5py and NumPy alone, so that a mistake of the
package's own readers cannot hide one of the files.
"""

import functools
import json
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from common import SIM, reference_folder
from sources import tensorflow_tensors, tensors_of, unpacked

from tools import ROOT
from tools.reference import __main__ as reference
from tools.reference import round_checkpoint
from tools.reference.bert4keras import CHECKPOINTS, VERSIONS, run_jobs

README = (CHECKPOINTS / "README.md").read_text(encoding="utf-8")
SAVED_FOLDER = CHECKPOINTS / "saved"


def table(*header):
    """Rows of the README's table with this header."""
    _, _, rest = README.partition("| " + " | ".join(header) + " |\n")
    lines = rest.split("\n\n")[0].splitlines()[1:]
    assert lines, header
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


HEADER = ("zip", "model", *"VEHKIL", "stored as", "tensors")
ZIPS = {row[0]: dict(zip(HEADER, row, strict=True)) for row in table(*HEADER)}


def test_the_readme_lists_every_file():
    assert set(ZIPS) == {path.stem for path in CHECKPOINTS.glob("*.zip")}
    saved = {path.name + "/" * path.is_dir() for path in SAVED_FOLDER.iterdir()}
    rows = table("file", "model", "holds")
    assert {name for row in rows for name in row[0].split(", ")} == saved
    golden = {path.name for path in CHECKPOINTS.glob("*.npz")}
    assert golden == {f"golden-{version}.npz" for version in VERSIONS}


def expected_shapes(facts):
    """Name -> shape of every tensor that the README lists for a zip."""
    groups, shapes = {"", *facts["tensors"].split(", ")}, {}
    for name, shape, where in table("tensor", "shape", "where"):
        sizes = tuple(int(facts.get(size, size)) for size in shape.split(", "))
        for i in range(int(facts["L"]) if "layer_i" in name else 1):
            if where in groups:
                shapes[name.replace("layer_i", f"layer_{i}")] = sizes
    return shapes


@pytest.mark.parametrize("name", ZIPS)
def test_zip(name, tmp_path):
    facts = ZIPS[name]
    with zipfile.ZipFile(CHECKPOINTS / f"{name}.zip") as archive:
        assert archive.testzip() is None
        members = archive.infolist()
    methods = {member.compress_type for member in members[1:]}
    is_stored = facts["stored as"] == "stored"
    assert methods == {zipfile.ZIP_STORED if is_stored else zipfile.ZIP_DEFLATED}
    assert len({member.date_time for member in members}) == 1
    folder = unpacked(CHECKPOINTS / f"{name}.zip", tmp_path)
    parts = {"data-00000-of-00001", "index"}
    if name == "chinese_roformer-char_L-2_H-32_A-4":
        parts.add("meta")
    assert {path.name for path in folder.iterdir()} == {
        *("bert_config.json", "vocab.txt", "checkpoint"),
        *(f"bert_model.ckpt.{part}" for part in parts),
    }
    assert (folder / "checkpoint").read_text().startswith('model_checkpoint_path: "/')
    tensors = tensorflow_tensors(folder / "bert_model.ckpt")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == expected_shapes(facts)
    for tensor in tensors.values():
        assert tensor.dtype == "float32" and np.isfinite(tensor).all()
        assert np.count_nonzero(tensor) == tensor.size

    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert len(vocabulary) == len(set(vocabulary)) == int(facts["V"])
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert list(map(vocabulary.index, specials)) == [0, *range(100, 104)]
    config = json.loads((folder / "bert_config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    found = {
        "V": config["vocab_size"],
        "E": config.get("embedding_size", hidden),
        "H": hidden,
        "K": heads * config.get("attention_key_size", hidden // heads),
        "I": config["intermediate_size"],
        "L": config["num_hidden_layers"],
    }
    assert found == {key: int(facts[key]) for key in found}


@functools.cache
def golden(version):
    with np.load(CHECKPOINTS / f"golden-{version}.npz") as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("metadata"))), arrays


@pytest.mark.parametrize("version", VERSIONS)
def test_bert4keras_computes_the_golden_outputs_again(version, tmp_path):
    if reference_folder(version) is None:
        pytest.skip(f"needs bert4keras {version}")
    metadata, arrays = golden(version)
    cases, jobs = ["unilm-pool-small", "nsp-pool-linear"], [{"op": "info"}]
    for case in cases:
        facts = metadata["cases"][case]
        folder = unpacked(CHECKPOINTS / f"{facts['source']}.zip", tmp_path)
        inputs, outputs = (str(tmp_path / f"{case}-{n}.npz") for n in ("in", "out"))
        names = ("token_ids", "segment_ids")
        np.savez(inputs, **{name: arrays[f"{case}/main/{name}"] for name in names})
        job = {
            "op": "predict",
            "bert_config": str(folder / "bert_config.json"),
            "checkpoint": str(folder / "bert_model.ckpt"),
            "kwargs": facts["kwargs"],
            "batches": [{"inputs": inputs, "outputs": outputs}],
        }
        jobs.append(job)
    info, *answers, refused = run_jobs([*jobs, {"op": "none"}], version)
    assert info["bert4keras"] == version
    assert refused["error"].startswith("ValueError: op must be one of")
    for case, answer in zip(cases, answers, strict=True):
        assert answer["ok"], answer
        assert answer["outputs"] == metadata["cases"][case]["outputs"]
        with np.load(tmp_path / f"{case}-out.npz") as outputs:
            for name, values in outputs.items():
                if name == "mlm":
                    values = values[..., arrays[f"{case}/main/mlm_columns"]]
                # Relative to values of order 1: other processors round differently.
                close(values, arrays[f"{case}/main/{name}"])


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(reference_folder() is None, reason="needs bert4keras")
def test_the_writers_give_the_committed_files(tmp_path, capfd):
    """Those of a few seconds each; `generation` and `checkpoints` take longer."""
    writers = ["layers", "losses", "tokenizer", "finetuning"]
    assert reference.main([*writers, "--output", str(tmp_path)]) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == len(writers)
    for path in written:
        committed = ROOT / "tests" / path.relative_to(tmp_path)
        if path.suffix == ".json":
            assert json.loads(path.read_text()) == json.loads(committed.read_text())
            continue
        with np.load(path) as new, np.load(committed) as old:
            assert set(new) == set(old)
            for name in set(new) - {"metadata"}:
                close(new[name], old[name])


def test_shipped_weights_are_rounded_and_deflated(tmp_path, capsys):
    target = tmp_path / SIM.name
    arguments = [str(SIM), str(target)]
    assert round_checkpoint.main(arguments) == 0
    assert str(target) in capsys.readouterr().out
    before, after = tensors_of(SIM), tensors_of(target)
    assert before.keys() == after.keys()
    for name, value in before.items():
        rounded = value.astype(ml_dtypes.bfloat16).astype("float32")
        np.testing.assert_array_equal(after[name], rounded)
        assert after[name].dtype == "float32"
    assert target.stat().st_size < 0.6 * SIM.stat().st_size
    with zipfile.ZipFile(target) as archive:
        assert {Path(name).parts[0] for name in archive.namelist()} == {target.stem}
    assert round_checkpoint.main(arguments) == 4
    assert round_checkpoint.main([*arguments, "--overwrite"]) == 0
    missing = [str(tmp_path / "none.zip"), str(tmp_path / "x.zip")]
    assert round_checkpoint.main(missing) == 2
    assert "error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [target]

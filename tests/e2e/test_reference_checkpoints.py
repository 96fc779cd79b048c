"""The files in tests/checkpoints are whole and are what their README says.

Read here with zipfile, h5py and NumPy alone, so that a mistake of the package's own
readers cannot hide one of the files.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "checkpoints"
SCRIPT = ROOT / "roformer_keras" / "verification" / "reference_process.py"
VERSIONS = ["0.11.5", "0.10.6"]
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def table(*header):
    """Rows of the README's table with this header."""
    _, _, rest = README.partition("| " + " | ".join(header) + " |\n")
    rows = []
    for line in rest.splitlines()[1:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows, header
    return rows


ZIP_HEADER = ("zip", "model", *"VEHKIL", "stored as", "tensors")
ZIPS = {row[0]: dict(zip(ZIP_HEADER, row, strict=True)) for row in table(*ZIP_HEADER)}
LAYER_WEIGHTS = {
    name: weights.split(", ") for name, weights in table("layer", "weights")
}
SAVED = {
    name: holds
    for names, _, holds in table("file", "model", "holds")
    for name in names.split(", ")
}


def expected_tensors(facts):
    """Name -> shape of every tensor that the README lists for one zip."""
    groups = {"", *facts["tensors"].split(", ")}
    tensors = {}
    for name, shape, where in table("tensor", "shape", "where"):
        if where in groups:
            sizes = tuple(int(facts.get(size, size)) for size in shape.split(", "))
            layers = range(int(facts["L"])) if "layer_i" in name else [0]
            for i in layers:
                tensors[name.replace("layer_i", f"layer_{i}")] = sizes
    return tensors


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(message):
    """(number, value) of each field of a protocol buffer message."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == 0:
            value, at = varint(message, at)
        elif key & 7 == 5:
            value, at = message[at : at + 4], at + 4
        else:
            assert key & 7 == 2
            size, at = varint(message, at)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def block(table_file, offset, size):
    """(key, value) pairs of one block of a LevelDB table."""
    data = table_file[offset : offset + size]
    end = len(data) - 4 - 4 * int.from_bytes(data[-4:], "little")
    at, key = 0, b""
    while at < end:
        shared, at = varint(data, at)
        fresh, at = varint(data, at)
        length, at = varint(data, at)
        key = key[:shared] + data[at : at + fresh]
        yield key, data[at + fresh : at + fresh + length]
        at += fresh + length


def index_tensors(index):
    """Name -> shape, from the bytes of a bert_model.ckpt.index."""
    at = len(index) - 48
    for _ in range(2):
        _, at = varint(index, at)
    offset, at = varint(index, at)
    size, at = varint(index, at)
    tensors = {}
    for _, handle in block(index, offset, size):
        start, after = varint(handle, 0)
        length, _ = varint(handle, after)
        for name, entry in block(index, start, length):
            if name:
                tensors[name.decode()] = tuple(
                    dict(fields(dimension))[1]
                    for number, shape in fields(entry)
                    if number == 2
                    for _, dimension in fields(shape)
                )
    return tensors


def test_the_readme_lists_every_file():
    assert set(ZIPS) == {path.stem for path in FOLDER.glob("*.zip")}
    saved = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (FOLDER / "saved").iterdir()
    }
    assert set(SAVED) == saved
    golden = {path.name for path in FOLDER.glob("*.npz")}
    assert golden == {f"golden-{version}.npz" for version in VERSIONS}


@pytest.mark.parametrize("name", ZIPS)
def test_zip(name):
    facts = ZIPS[name]
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        assert archive.testzip() is None
        files = {
            info.filename.removeprefix(f"{name}/"): archive.read(info)
            for info in archive.infolist()
            if not info.is_dir()
        }
        methods = {info.compress_type for info in archive.infolist()[1:]}
        dates = {info.date_time for info in archive.infolist()}
    stored = facts["stored as"] == "stored"
    assert methods == {zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED}
    assert len(dates) == 1

    data = files.pop("bert_model.ckpt.data-00000-of-00001")
    index = files.pop("bert_model.ckpt.index")
    config = json.loads(files.pop("bert_config.json"))
    vocabulary = files.pop("vocab.txt").decode().splitlines()
    assert files.pop("checkpoint").startswith(b'model_checkpoint_path: "/')
    meta = files.pop("bert_model.ckpt.meta", None)
    assert (meta is not None) == (name == "chinese_roformer-char_L-2_H-32_A-4")
    assert not files

    tensors = expected_tensors(facts)
    assert index_tensors(index) == tensors
    sizes = sum(int(np.prod(shape)) for shape in tensors.values())
    weights = np.frombuffer(data, "<f4")
    assert weights.size == sizes
    assert np.isfinite(weights).all()
    assert np.count_nonzero(weights) == sizes

    assert len(vocabulary) == len(set(vocabulary)) == int(facts["V"])
    ids = {token: i for i, token in enumerate(vocabulary)}
    assert [ids[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [
        0,
        *range(100, 104),
    ]
    heads = config["num_attention_heads"]
    key_size = config.get("attention_key_size", config["hidden_size"] // heads)
    read = {
        "V": config["vocab_size"],
        "E": config.get("embedding_size", config["hidden_size"]),
        "H": config["hidden_size"],
        "K": heads * key_size,
        "I": config["intermediate_size"],
        "L": config["num_hidden_layers"],
    }
    assert {key: str(value) for key, value in read.items()} == {
        key: facts[key] for key in read
    }
    assert key_size % 2 == 0


def plain(name):
    """`dense_12/kernel:0` as the README writes it: without numbers."""
    return "/".join(
        "dense" if part.startswith("dense") else part
        for part in name.split(":")[0].split("/")
    )


def layer_weights(group):
    """Layer -> weights without numbers, of one HDF5 file in tf.keras's older layout."""
    return {
        layer: [plain(name) for name in group[layer].attrs["weight_names"]]
        for layer in group.attrs["layer_names"]
        if len(group[layer].attrs["weight_names"])
    }


def expected_layers(holds):
    """Layer -> weights of a model of two layers, in Keras's order."""
    names = {part: [] for part in ("Embedding", "Transformer", "MLM", "Pooler")}
    for name in LAYER_WEIGHTS:
        names[name.split("-")[0]].append(name)
    ordered = names["Embedding"]
    for i in range(2):
        ordered += [name.replace("-i-", f"-{i}-") for name in names["Transformer"]]
    ordered += names["MLM"] if "mlm" in holds else []
    ordered += names["Pooler"] if "pool" in holds else []
    return {
        layer: [f"{layer}/{w}" for w in LAYER_WEIGHTS[re.sub(r"-\d-", "-i-", layer)]]
        for layer in ordered
    }


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in SAVED
        if name.endswith(".h5") and not name.startswith(("v2", "unilm-pool.weights"))
    ],
)
def test_saved_hdf5(name):
    expected = expected_layers(SAVED[name])
    if name.startswith("condition"):
        extra = 3 if "hidden" in name else 2
        for layer, weights in expected.items():
            if layer.endswith("-Norm"):
                weights += extra * [f"{layer}/dense/kernel"]
    if "nested" in name:
        expected = {"model": [name for names in expected.values() for name in names]}
    small = "roformer-small_L-2_H-8_A-2"
    with zipfile.ZipFile(FOLDER / f"{small}.zip") as archive:
        written = archive.read(f"{small}/bert_model.ckpt.data-00000-of-00001")
    with h5py.File(FOLDER / "saved" / name) as file:
        group = file["model_weights"] if "-model" in name else file
        found = layer_weights(group)
        for layer in found:
            for weight in group[layer].attrs["weight_names"]:
                values = group[layer][weight][()]
                assert np.isfinite(values).all()
                extra = layer == "dense" or "-Norm/dense" in weight
                assert (values.tobytes() in written) != extra, weight
        heads = [layer for layer in found if layer.startswith("dense")]
        assert len(heads) == (SAVED[name] == "head")
        assert {k: v for k, v in found.items() if k not in heads} == expected
        config = file.attrs.get("model_config")
        assert (config is not None) == ("-model" in name)


def test_saved_v2_hdf5_holds_the_mapping_that_no_checkpoint_holds():
    with h5py.File(FOLDER / "saved" / "v2-embedding-size-mlm.h5") as file:
        found = layer_weights(file)
        kernel = file["Output-Mapping/Output-Mapping/kernel:0"]
        assert kernel.shape == (24, 16)
    assert not [
        name for weights in found.values() for name in weights if "bias" in name
    ]


def test_saved_newer_hdf5_has_one_group_per_layer_class():
    with h5py.File(FOLDER / "saved" / "unilm-pool.weights.h5") as file:
        assert "layer_names" not in file.attrs
        assert file["layers/embedding/vars/0"].shape == (260, 8)
        assert file["layers/multi_head_attention_1/q_dense/vars/0"].shape == (8, 8)


@pytest.mark.parametrize("name", [name for name in SAVED if name.endswith("/")])
def test_saved_object_checkpoint(name):
    prefix = FOLDER / "saved" / name / "best_model.weights"
    tensors = index_tensors(Path(f"{prefix}.index").read_bytes())
    layers = expected_layers(SAVED[name])
    graph = tensors.pop("_CHECKPOINTABLE_OBJECT_GRAPH")
    assert graph == ()
    weights = sum(len(names) for names in layers.values())
    assert len(tensors) == weights + 2 * (SAVED[name] == "head")
    start = "layer_with_weights-0/" if "nested" in name else ""
    assert tensors[
        f"{start}layer_with_weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE"
    ] == (260, 8)
    if "pool" in SAVED[name]:
        last = len(layers) - 1
        assert list(layers)[last] == "Pooler-Dense"
        key = f"layer_with_weights-{last}/kernel/.ATTRIBUTES/VARIABLE_VALUE"
        assert tensors[key] == (8, 8)
    size = Path(f"{prefix}.data-00000-of-00001").stat().st_size
    assert size > 4 * sum(int(np.prod(shape)) for shape in tensors.values())


@pytest.fixture(scope="module", params=VERSIONS)
def golden(request):
    with np.load(FOLDER / f"golden-{request.param}.npz") as arrays:
        metadata = json.loads(str(arrays["metadata"]))
        return request.param, metadata, {key: arrays[key] for key in arrays}


def test_golden_outputs_are_finite_and_padded(golden):
    version, metadata, arrays = golden
    assert metadata["bert4keras"] == version
    assert metadata["layer_norm_epsilon"] == {"0.11.5": 1e-7, "0.10.6": 1e-12}[version]
    for case, facts in metadata["cases"].items():
        lengths = (arrays[f"{case}/main/token_ids"] != 0).sum(1)
        assert lengths.min() < lengths.max(), case
        assert arrays[f"{case}/main/segment_ids"].max() == 1, case
        for batch in ("main", "length-2", "length-1"):
            shape = arrays[f"{case}/{batch}/token_ids"].shape
            for output in facts["outputs"]:
                values = arrays[f"{case}/{batch}/{output}"]
                assert values.dtype == np.float32
                assert np.isfinite(values).all(), (case, batch, output)
                assert values.std() > 0, (case, batch, output)
                batched = shape[: 1 if output in ("pooled", "nsp") else 2]
                assert values.shape[: len(batched)] == batched, (case, batch, output)


def test_golden_files_hold_the_same_cases_and_inputs():
    loaded = [np.load(FOLDER / f"golden-{version}.npz") for version in VERSIONS]
    new, old = (json.loads(str(arrays["metadata"])) for arrays in loaded)
    assert set(new["cases"]) | set(new["unsupported"]) == {
        *old["cases"],
        *old["unsupported"],
    }
    assert set(new["unsupported"]) == {
        "residual-attention-scores-lm",
        "residual-attention-scores-unilm",
    }
    assert {name.split("-")[0] for name in old["unsupported"]} == {"v2"}
    for case in set(new["cases"]) & set(old["cases"]):
        for array in ("token_ids", "segment_ids"):
            key = f"{case}/main/{array}"
            np.testing.assert_array_equal(loaded[0][key], loaded[1][key])


@pytest.mark.e2e
def test_the_real_bert4keras_computes_the_golden_outputs_again(golden, tmp_path):
    version, metadata, arrays = golden
    reference = ROOT / ".reference" / f"bert4keras-{version}"
    if not reference.is_dir():
        pytest.skip(f"bert4keras {version} is not in {reference.parent}")
    cases = ["unilm-pool-small", "nsp-pool-linear"]
    jobs = []
    for case in cases:
        stem = metadata["cases"][case]["source"]
        with zipfile.ZipFile(FOLDER / f"{stem}.zip") as archive:
            archive.extractall(tmp_path)
        inputs = {
            key: arrays[f"{case}/main/{key}"] for key in ("token_ids", "segment_ids")
        }
        np.savez(tmp_path / f"{case}.npz", **inputs)
        jobs.append(
            {
                "op": "predict",
                "bert_config": str(tmp_path / stem / "bert_config.json"),
                "checkpoint": str(tmp_path / stem / "bert_model.ckpt"),
                "kwargs": metadata["cases"][case]["kwargs"],
                "batches": [
                    {
                        "inputs": str(tmp_path / f"{case}.npz"),
                        "outputs": str(tmp_path / f"{case}-outputs.npz"),
                    }
                ],
            }
        )
    jobs = [{"op": "info"}, *jobs, {"op": "none"}]
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, "PYTHONPATH": str(reference)},
        input="".join(f"{json.dumps(job)}\n" for job in jobs),
        capture_output=True,
        text=True,
    )
    info, *answers, refused = map(json.loads, done.stdout.splitlines())
    assert info["bert4keras"] == version
    assert done.returncode == 1
    assert refused["error"].startswith("ValueError: op must be one of")
    for case, answer in zip(cases, answers, strict=True):
        assert answer["ok"], answer
        assert answer["outputs"] == metadata["cases"][case]["outputs"]
        outputs = np.load(tmp_path / f"{case}-outputs.npz")
        for name in outputs:
            values = outputs[name]
            if name == "mlm":
                values = values[..., arrays[f"{case}/main/mlm_columns"]]
            # Relative to values of order 1: other processors round differently.
            np.testing.assert_allclose(
                values, arrays[f"{case}/main/{name}"], rtol=1e-6, atol=1e-6
            )

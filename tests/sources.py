"""Sources for tests: real checkpoints in every wrapping, and changed copies of them."""

import os
import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
from common import write_file

from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.io.tensor_bundle import write_tensor_bundle

SHARD = "bert_model.ckpt.data-00000-of-00001"
INPUTS = {
    "token_ids": np.array([[2, 7, 9, 0, 11, 3], [2, 8, 3, 0, 0, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]], "int32"),
}


def wrong_modes(folder, umask):
    """Files in a folder whose mode is not that of the umask."""
    expected = 0o666 & ~umask
    modes = {
        path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777
        for path in folder.rglob("*")
        if path.is_file()
    }
    return [f"{name}: {mode:o}" for name, mode in modes.items() if mode != expected]


def unpacked(archive, folder):
    """Unpacks a checkpoint zip into `folder`; returns the folder of its files."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
        return Path(folder, file.namelist()[0].split("/")[0])


def packed(folder, archive, prefix="", method=zipfile.ZIP_STORED, strangers=()):
    """Packs the files of a folder, as members `prefix/name`."""
    with zipfile.ZipFile(archive, "w", method) as file:
        for name in strangers:
            file.writestr(name, b"stranger")
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                file.write(path, f"{prefix}{path.relative_to(folder).as_posix()}")
    return archive


def tensorflow_tensors(prefix):
    """The variables that TensorFlow itself reads: name -> array."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {
        name: reader.get_tensor(name) for name in reader.get_variable_to_dtype_map()
    }


def tensors_of(source, **given):
    """The variables that this package reads: name -> array."""
    with open_checkpoint(source, **given) as checkpoint:
        return {
            name: np.array(tensor.read()) for name, tensor in checkpoint.tensors.items()
        }


def write_checkpoint(folder, tensors, config, vocabulary=None):
    """Writes a folder like an unpacked zip; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensor_bundle(folder / "bert_model.ckpt", tensors.items())
    write_file(folder / "bert_config.json", config)
    if vocabulary is not None:
        text = "".join(f"{token}\n" for token in vocabulary)
        (folder / "vocab.txt").write_text(text, encoding="utf-8")
    return folder


def listing(folder):
    """Every path under a folder, hidden ones too."""
    return sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )


def outputs(model, inputs=INPUTS):
    """The outputs of a model by name, as NumPy."""
    computed = model({name: inputs[name] for name in model.input}, training=False)
    if not isinstance(computed, dict):
        computed = {"output": computed}
    return {name: np.asarray(value) for name, value in computed.items()}


def assert_same(first, second):
    """Two dicts of arrays are equal bit for bit."""
    assert set(first) == set(second)
    different = [n for n in first if not np.array_equal(first[n], second[n])]
    assert different == []


def weights(model):
    """The weights of a model by path, without the states of generators."""
    return {
        weight.path: np.array(weight)
        for weight in model.weights
        if "seed_generator" not in weight.path
    }


def assert_same_weights(first, second):
    assert_same(weights(first), weights(second))


def copied(source, folder):
    """Copies a file, or a folder, into `folder`; returns the copy."""
    target = Path(folder, Path(source).name)
    if Path(source).is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


# What may stand in place of a dataset, and what is said of it.
FOREIGN_DATA = [
    ("external storage", "lies in another file"),
    ("link", "lies in another file"),
    ("sparse", "declares 400,000,000,000,000 bytes"),
    ("group", "missing"),
    ("strings", "must be a float tensor"),
]


def replace_a_dataset(path, how, folder):
    """Replaces a dataset of an HDF5 file by one whose numbers lie elsewhere."""
    with h5py.File(path, "a") as file:
        names = []
        file.visititems(
            lambda name, node: (
                names.append(name) if isinstance(node, h5py.Dataset) else None
            )
        )
        name, shape = names[0], file[names[0]].shape
        del file[name]
        if how == "external storage":
            secret = folder / "secret"
            secret.write_bytes(os.urandom(4 * int(np.prod(shape))))
            file.create_dataset(
                name, shape, "float32", external=[(str(secret), 0, h5py.h5f.UNLIMITED)]
            )
        elif how == "link":
            with h5py.File(folder / "other.h5", "w") as other:
                other["x"] = np.ones(shape, "float32")
            file[name] = h5py.ExternalLink(str(folder / "other.h5"), "x")
        elif how == "sparse":
            file.create_dataset(name, (10**7, 10**7), "float32", chunks=(1000, 1000))
        elif how == "group":
            file.create_group(name)
        elif how == "strings":
            file[name] = np.full(shape, b"x")

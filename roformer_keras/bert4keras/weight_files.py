"""The files that `save_weights` and `load_weights` of scripts mean, under any name.

`save` writes HDF5 in the layout of Keras 2, which bert4keras reads as well, and so does
`roformer-keras convert`. `load` looks into a file: HDF5 of Keras 2 or Keras 3, or an
object checkpoint of TensorFlow, as bert4keras writes it with tf.keras.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_file
from roformer_keras.base.errors import CheckpointError, SourceError, refuse
from roformer_keras.bert4keras.block_layers import FeedForward, MultiHeadAttention
from roformer_keras.bert4keras.structured_layers import EfficientGlobalPointer
from roformer_keras.conversion.reader import opened_bundle
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.atomic import replacing
from roformer_keras.io.blob import Blob
from roformer_keras.io.hdf5 import hdf5_errors, hdf5_layers, open_hdf5

_KERAS_2 = "layer_names"


def original_name(layer: keras.layers.Layer, weight: keras.Variable) -> str:
    """bert4keras's name of a weight in its layer, such as `q_dense/kernel`."""
    part, *rest = weight.path.removeprefix(f"{layer.path}/").split("/")
    part = getattr(layer, "original_parts", {}).get(part, part)
    return "/".join([part, *rest])


def is_of_keras_3(path: str | os.PathLike) -> bool:
    """True if Keras 3 wrote a file of weights."""
    if str(path).endswith(".weights.json"):
        return True
    check_file(path)
    if not h5py.is_hdf5(path):
        return False
    with h5py.File(path, "r") as file:
        return _KERAS_2 not in file.attrs and "model_weights" not in file


@contextlib.contextmanager
def with_own_parts(path: str | os.PathLike) -> Iterator[Path]:
    """The path of a file of Keras 3 in which parts of layers have this package's names.

    tf-keras has the same layout since 2.12, with bert4keras's names of parts.
    """
    renamed = {
        (to_snake(kind.__name__), theirs): ours
        for kind in (MultiHeadAttention, FeedForward, EfficientGlobalPointer)
        for ours, theirs in kind.original_parts.items()
    }

    def moves(file):
        for layer in file.get("layers", ()):
            kind = re.sub(r"_\d+$", "", layer)
            for part in list(file["layers"][layer]):
                if (kind, part) in renamed:
                    prefix = f"layers/{layer}"
                    yield f"{prefix}/{part}", f"{prefix}/{renamed[kind, part]}"

    path = Path(path)
    parts = []
    if h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            parts = list(moves(file))
    if not parts:
        yield path
        return
    with scratch_folder() as folder:
        copied = folder / "model.weights.h5"
        shutil.copyfile(path, copied)
        with h5py.File(copied, "r+") as file:
            for old, new in parts:
                file.move(old, new)
        yield copied


def to_snake(name: str) -> str:
    """`"FeedForward"` as `"feed_forward"`, as Keras names layers."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def save(model: keras.Model, path: str | os.PathLike, overwrite: bool = True) -> None:
    """Writes the weights of a model in the layout of Keras 2."""
    with replacing(path, overwrite) as target, h5py.File(target, "w") as file:
        layers = list(model.layers)
        file.attrs[_KERAS_2] = _texts(layer.name for layer in layers)
        file.attrs["backend"] = b"tensorflow"
        file.attrs["keras_version"] = b"2.3.1"
        for layer in layers:
            group = file.create_group(layer.name)
            names = []
            for weight in layer.weights:
                name = f"{layer.name}/{original_name(layer, weight)}:0"
                # A nested model may have layers of one name.
                while name in names:
                    name = f"{name[:-2]}_1:0"
                names.append(name)
                group.create_dataset(name, data=ops.convert_to_numpy(weight))
            group.attrs["weight_names"] = _texts(names)


def _texts(names: Iterable[str]) -> np.ndarray:
    return np.array([name.encode() for name in names], dtype="S")


def load(
    model: keras.Model,
    path: str | os.PathLike,
    by_name: bool = False,
    skip_mismatch: bool = False,
) -> None:
    """Assigns the weights of a file, layer by layer; all of them, or none.

    Args:
        path: HDF5 of Keras 2 under any name, or the prefix of an object checkpoint.
        by_name: bool. Whether layers are found by their names, and those that the file
            lacks stay as they are; by default they are found by their order alone.
        skip_mismatch: bool. Whether layers of other shapes stay as they are.

    Raises:
        SourceError: there is no such file.
        CheckpointError: it holds other layers; names the first that differs.
    """
    path = Path(path)
    stored: list[tuple[str, Any]]
    if Path(f"{path}.index").exists():
        stored = _object_layers(path)
    elif path.is_file():
        stored = _hdf5_layers(path)
    else:
        raise SourceError(f"there is no file of weights {path}")
    targets = [layer for layer in model.layers if layer.weights]
    if by_name:
        stored_by_name = dict(stored)
        pairs = [
            (x, x.name, stored_by_name[x.name])
            for x in targets
            if x.name in stored_by_name
        ]
    elif len(targets) == len(stored):
        pairs = [(x, *layer) for x, layer in zip(targets, stored, strict=True)]
    else:
        raise CheckpointError(
            f"{path}: the file has {len(stored)} layers with weights, and the model "
            f"{len(targets)}: give by_name=True to take those of the same name"
        )
    assigned: list[tuple] = []
    for layer, name, weights in pairs:
        try:
            assigned += _matched(layer, weights)
        except ValueError as error:
            if not skip_mismatch:
                raise CheckpointError(
                    f"{path}: layer {name!r} of the file and {layer.name!r} of the "
                    f"model: {error}"
                ) from None
    for variable, value in assigned:
        variable.assign(value)


def _matched(layer, weights):
    """Pairs of a variable and its value; `weights` is a dict, or a list in order."""
    variables = layer.weights
    if isinstance(weights, dict):
        names = [original_name(layer, variable) for variable in variables]
        # bert4keras before 0.11 called the bias of MLM-Bias so.
        weights = {
            "beta" if name == "bias" and "beta" in names else name: value
            for name, value in weights.items()
        }
        missing = [name for name in names if name not in weights]
        if missing:
            raise ValueError(f"the file lacks {missing[0]}")
        weights = [weights[name] for name in names]
    if len(weights) != len(variables):
        raise ValueError(f"{len(weights)} weights and {len(variables)}")
    for variable, value in zip(variables, weights, strict=True):
        if tuple(variable.shape) != tuple(value.shape):
            raise ValueError(
                f"weights of shapes {tuple(value.shape)} and {tuple(variable.shape)}"
            )
    return list(zip(variables, weights, strict=True))


def _hdf5_layers(path: Path) -> list[tuple[str, list[np.ndarray]]]:
    """Names of layers with weights, and these in order."""
    blob = Blob.of_file(path)
    layers = []
    with open_hdf5(blob) as file, hdf5_errors(blob.label):
        root = file.get("model_weights", file)
        refuse(
            _KERAS_2 not in root.attrs,
            f"{path} holds no weights of a model of Keras 2",
            error=CheckpointError,
        )
        for name, group, names in hdf5_layers(blob, root):
            weights = [np.asarray(group[weight]) for weight in names]
            if weights:
                layers.append((name, weights))
    return layers


_OF_LAYER = re.compile(
    r"(?:.*/)?layer_with_weights-(\d+)/(.+)/\.ATTRIBUTES/VARIABLE_VALUE"
)


def _object_layers(prefix: Path) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Names of layers with weights, and these by bert4keras's name."""
    layers: dict[int, tuple[str, dict[str, np.ndarray]]] = {}
    with opened_bundle(prefix) as reader:
        names = reader.object_names()
        for key in reader.names():
            match = _OF_LAYER.fullmatch(key)
            if match is None or ".OPTIMIZER_SLOT" in key:
                continue
            number, attribute = int(match[1]), match[2]
            name = names.get(key, ("", ""))[0].split("/")[0]
            layers.setdefault(number, (name, {}))[1][attribute] = reader.read(key)
    refuse(
        not layers,
        f"{prefix} holds no model's layers: read a checkpoint of bert4keras with "
        "load_weights_from_checkpoint",
        error=CheckpointError,
    )
    return [layers[number] for number in sorted(layers)]

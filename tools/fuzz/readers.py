"""Targets that read checkpoints: every format, damaged and crafted."""

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from roformer_keras.base.errors import RoFormerError
from roformer_keras.conversion.checkpoint import model_of
from roformer_keras.conversion.convert import convert, prepare
from roformer_keras.conversion.reader import open_checkpoint, read_tokenizer
from roformer_keras.generation.served import is_served_generator
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import read_json
from roformer_keras.io.pytorch import open_pytorch
from roformer_keras.io.sources import verify_archive
from roformer_keras.text.tokenizer import RoFormerTokenizer
from tools.fuzz import seeds
from tools.fuzz.formats import Files, damage_files
from tools.fuzz.target import Target, expect

# What a source holds if it is a file, not a folder.
_FILES = (".zip", ".keras", ".safetensors", ".h5")


def source_of(folder: Path) -> Path:
    """The file of a checkpoint in a folder, or the folder."""
    files = [path for path in sorted(folder.iterdir()) if path.name.startswith("x.")]
    return files[0] if len(files) == 1 and files[0].suffix in _FILES else folder


def read_all(folder: Path):
    """Everything that a source holds, as values that can be compared."""
    with open_checkpoint(source_of(folder)) as checkpoint:
        fields = (
            checkpoint.model,
            checkpoint.config,
            checkpoint.vocabulary,
            json.dumps([checkpoint.model_options, checkpoint.tokenizer], default=str),
        )
        tensors = {}
        for name, tensor in checkpoint.tensors.items():
            value = tensor.read()
            expect(value.shape == tensor.shape, "shape as declared", name, value.shape)
            digest = hashlib.sha256(value.tobytes()) if value.dtype.kind != "O" else ""
            tensors[name] = (value.dtype.str, value.shape, digest and digest.digest())
        return fields, tensors


def _use_all(folder: Path):
    """Reads a source in every way, and writes it in one of two formats."""
    source = source_of(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with open_checkpoint(source) as checkpoint:
        str(checkpoint.config), checkpoint.rows, checkpoint.heads
        model_of(checkpoint)
        for name in checkpoint.tensors:
            checkpoint.weight(name)
        prepare(checkpoint)
    _convert(source, folder / ("out", "out.safetensors")[size % 2])
    RoFormerTokenizer(list(read_tokenizer(source)[0]))


def _convert(source, target):
    """Writes a format; what was written is read again, or nothing is left."""
    # In another folder, where a hidden file would be seen.
    written = target.parent / "written"
    written.mkdir(exist_ok=True)
    before = sorted(written.iterdir())
    try:
        made = convert(source, written / target.name, verbose=0)
    except RoFormerError:
        left = [p.name for p in written.iterdir() if p not in before]
        expect(not left, "an error leaves no file", left)
        raise
    with open_checkpoint(made) as checkpoint:
        for name in checkpoint.tensors:
            checkpoint.weight(name)


def _read_pickle(folder: Path):
    with ExitStack() as stack:
        tensors = open_pytorch(Blob.of_file(folder / "x.bin"), stack)
        for name, tensor in tensors.items():
            shape = tensor.read().shape
            expect(shape == tensor.shape, "shape as declared", name, shape)


def _open_export(folder: Path):
    """An `export.json` is refused, or its network is missing."""
    from roformer_keras.export import ServedEncoder, ServedGenerator

    served = ServedGenerator if is_served_generator(folder) else ServedEncoder
    served(folder)
    expect(False, "an export needs its network")


def _load_model(folder: Path):
    """Builds the model of a source, and asks it for a result where it has one."""
    import keras

    import roformer_keras

    keras.backend.clear_session()
    model = roformer_keras.load_model(source_of(folder))
    if getattr(model, "tokenizer", None) is not None:
        ids = model.tokenizer.encode("今天天气")[0][:8]
        expect(max(ids) < model.config.vocabulary_size, "ids are in the table", ids)


_CLASSES = ("RoFormerBackbone", "RoFormerMaskedLM")


def _from_config(folder: Path):
    """Reads the config of a file as Keras does when it loads it."""
    import keras

    import roformer_keras

    keras.backend.clear_session()
    content = read_json(Blob.of_file(folder / "config.json"))
    name, options = content.get("class_name"), content.get("config")
    if name in _CLASSES and isinstance(options, dict):
        getattr(roformer_keras, name).from_config(options)


def _configs(made):
    presets = seeds.presets(made, *_CLASSES)
    return [{"config.json": files["config.json"]} for files in presets]


def _both(name: str, starts: Callable, *, checksums: bool = True, **options):
    """The target of crafted files, and, where there are checksums, that of damage."""
    targets = {name: Target(starts, _use_all, **options)}
    if checksums:
        targets[f"{name}-damage"] = Target(
            starts, read_all, damage_files, is_damage=True, **options
        )
    return targets


def _bundle_damage(draw: random.Random, files: Files) -> Files:
    """Damage of the index or the data: the texts next to them have no checksum."""
    names = [name for name in files if ".index" in name or ".data-" in name]
    changed = damage_files(draw, {name: files[name] for name in names})
    return {**files, **changed}


def _bundles(_):
    names = ("lm", "encoder-dense", "unilm-pool", "encoder-nested")
    return [seeds.bundle(), *map(seeds.object_checkpoint, names)]


def _converted(suffix):
    return lambda made: seeds.converted(made, suffix)


def _presets(*names):
    return lambda made: seeds.presets(made, *names)


_MADE = {"needs_made": True}
_MODELS = {"seconds": 60, "needs_keras": True, **_MADE}
TARGETS = {
    **_both("zip", lambda _: seeds.zips()),
    "zip-verify": Target(
        lambda _: seeds.zips()[:1], lambda folder: verify_archive(folder / "x.zip")
    ),
    **_both("tensor-bundle", _bundles, checksums=False),
    "tensor-bundle-damage": Target(_bundles, read_all, _bundle_damage, is_damage=True),
    **_both("hdf5", lambda _: list(map(seeds.hdf5, seeds.HDF5)), checksums=False),
    **_both("weights-h5", _converted(".weights.h5"), checksums=False, **_MADE),
    **_both("keras-file", _converted(".keras"), **_MADE),
    **_both("safetensors", _converted(".safetensors"), checksums=False, **_MADE),
    **_both("huggingface", lambda _: seeds.huggingface(), checksums=False),
    "pickle": Target(lambda _: seeds.pickles(), _read_pickle),
    "export": Target(lambda _: seeds.exports(), _open_export, needs_keras=True),
    **_both(
        "preset",
        _presets("RoFormerBackbone", "RoFormerMaskedLM"),
        checksums=False,
        **_MADE,
    ),
    **_both("preset-task", _presets(*seeds.TASKS), checksums=False, **_MADE),
    "load-model": Target(_presets(), _load_model, **_MODELS),
    # `keras.models.load_model` is Keras's: so are the classes of its errors.
    "from-config": Target(
        _configs, _from_config, allowed=(ValueError, TypeError), **_MODELS
    ),
}

"""Writes a checkpoint in every format of this package, one tensor at a time.

Each function writes to the given path; `convert.save` moves a complete result into its
place.
"""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from roformer_keras.base.config import BERT_CONFIG_OPTIONS
from roformer_keras.base.errors import CheckpointError, ConfigurationError, refuse
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.conversion.huggingface import POSITIONS, position_table
from roformer_keras.conversion.huggingface_config import (
    MAX_POSITIONS,
    write_config,
    write_tokenizer_config,
    write_tokenizer_file,
)
from roformer_keras.conversion.sentence_modules import (
    DENSES,
    dense_tensors,
    write_modules,
)
from roformer_keras.conversion.weights import (
    KERAS_BACKBONE,
    PYTORCH_BIAS,
    PYTORCH_DECODER,
    PYTORCH_DECODER_BIAS,
    Weight,
)
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.atomic import PARTIAL_PREFIX, make_folder, replacing
from roformer_keras.io.json_file import json_bytes
from roformer_keras.io.sources import SENTENCE_PARTS
from roformer_keras.io.tensor_bundle import write_shard
from roformer_keras.io.vocabulary import write_vocabulary

DTYPES = ("float32", "float16")

# Every member of a zip has this date, so that equal weights give equal bytes.
_ZIP_TIME = (2021, 3, 1, 0, 0, 0)


def _values(
    checkpoint: Checkpoint, dtype: str, on_tensor: Callable
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every tensor of the checkpoint, in `dtype`."""
    if dtype not in DTYPES:
        raise ConfigurationError(
            f"dtype must be {' or '.join(map(repr, DTYPES))}, got {dtype!r}"
        )
    for name in checkpoint.tensors:
        value = checkpoint.weight(name)
        with np.errstate(over="ignore"):
            converted = value.astype(dtype, copy=False)
        if converted.dtype != value.dtype and not np.isfinite(converted).all():
            raise CheckpointError(
                f"{checkpoint.label}: {name} has values up to "
                f"{np.abs(value).max():.3g}, beyond {dtype}'s "
                f"{np.finfo(dtype).max:.6g}"
                + (": keep float32" if dtype == "float16" else "")
            )
        yield name, converted
        on_tensor()


# === Presets ===


def _write_preset(folder: Path, checkpoint: Checkpoint, dtype: str, on_tensor):
    """Writes Keras-Hub's layout: a backbone, and a task on it."""
    import h5py

    serialized = {"config.json": _serialized(checkpoint, "RoFormerBackbone")}
    rows, count = checkpoint.rows, 0
    with ExitStack() as stack:
        backbone = stack.enter_context(h5py.File(folder / "model.weights.h5", "w"))
        if checkpoint.model != "RoFormerBackbone":
            serialized["task.json"] = _serialized(checkpoint, checkpoint.model)
            head = stack.enter_context(h5py.File(folder / "task.weights.h5", "w"))
        for name, value in _values(checkpoint, dtype, on_tensor):
            row = rows[name]
            file = head if row.head in ("mlm", "task") else backbone
            count += value.size
            _write_dataset(file, row.dataset, row, value)
    for name, content in serialized.items():
        _write_json(folder / name, content)
    _write_json(
        folder / "metadata.json",
        {
            "keras_version": version("keras"),
            "roformer_keras_version": version("roformer-keras"),
            "parameter_count": count,
        },
    )
    if checkpoint.vocabulary is not None:
        save_tokenizer(folder, checkpoint.vocabulary, checkpoint.tokenizer)


def write_head(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the `task.weights.h5` of a preset: all tensors of a checkpoint."""
    import h5py

    rows = checkpoint.rows
    with h5py.File(path, "w") as file:
        for name, tensor in checkpoint.tensors.items():
            # Keras saves numbers that are not finite too.
            value = tensor.read()
            if value.dtype.name == "bfloat16":
                value = value.astype("float32")
            _write_dataset(file, rows[name].dataset, rows[name], value)


def save_tokenizer(folder: Path, vocabulary: Iterable[str], fields: Mapping):
    """Writes `tokenizer.json` and the vocabulary into a preset folder.

    Each file is replaced in one step; the folder is made if there is none.
    """
    assets = folder / "assets" / "tokenizer"
    make_folder(assets)
    tokenizer = {
        "module": "roformer_keras.text.tokenizer",
        "class_name": "RoFormerTokenizer",
        "config": dict(fields),
        "registered_name": "roformer_keras>RoFormerTokenizer",
    }
    contents = {
        assets / "vocabulary.txt": write_vocabulary(vocabulary),
        folder / "tokenizer.json": json_bytes(tokenizer),
    }
    for path, content in contents.items():
        with replacing(path, overwrite=True) as partial:
            partial.write_bytes(content)


def _serialized(checkpoint: Checkpoint, model: str | None) -> dict:
    """Configuration that Keras serializes for a model, without building it."""
    fields = {"name": "backbone", **checkpoint.config.to_dict()}
    if model != "RoFormerBackbone":
        backbone = _serialized(checkpoint, "RoFormerBackbone")
        fields = {"backbone": backbone, **checkpoint.model_options}
    return {
        # Keras finds the class by its registered name.
        "module": "roformer_keras",
        "class_name": model,
        "config": fields,
        "registered_name": f"roformer_keras>{model}",
    }


# === Files of Keras ===


def _write_keras_weights(path: Path, checkpoint: Checkpoint, dtype: str, on_tensor):
    """Writes the same file as `save_weights` of the model."""
    import h5py

    prefix = "" if checkpoint.model == "RoFormerBackbone" else KERAS_BACKBONE
    rows = checkpoint.rows
    with h5py.File(path, "w") as file:
        for name, value in _values(checkpoint, dtype, on_tensor):
            row = rows[name]
            key = row.dataset if row.head == "mlm" else prefix + row.dataset
            _write_dataset(file, key, row, value)


def _write_keras(path: Path, checkpoint: Checkpoint, dtype: str, on_tensor):
    """Writes the same file as `model.save`."""
    with scratch_folder() as scratch, zipfile.ZipFile(path, "w") as archive:
        weights = scratch / "model.weights.h5"
        _write_keras_weights(weights, checkpoint, dtype, on_tensor)
        metadata = {"keras_version": version("keras")}
        _add(archive, "metadata.json", json_bytes(metadata))
        serialized = _serialized(checkpoint, checkpoint.model)
        if checkpoint.vocabulary is not None:
            serialized["config"]["vocabulary"] = list(checkpoint.vocabulary)
            serialized["config"]["tokenizer"] = dict(checkpoint.tokenizer)
        _add(archive, "config.json", json_bytes(serialized))
        with (
            open(weights, "rb") as source,
            archive.open(_member(weights.name), "w", force_zip64=True) as file,
        ):
            shutil.copyfileobj(source, file, 2**20)


# === safetensors ===


def _write_safetensors(path: Path, checkpoint: Checkpoint, dtype: str, on_tensor):
    """Writes tensors by checkpoint name; the header holds all other content."""
    from safetensors.numpy import save_file

    # `prepare` has set the class.
    assert checkpoint.model is not None
    metadata = {
        "config": str(checkpoint.config),
        "model": checkpoint.model,
        "model_options": json.dumps(dict(checkpoint.model_options)),
        "tokenizer": json.dumps(dict(checkpoint.tokenizer)),
    }
    if checkpoint.vocabulary is not None:
        metadata["vocabulary"] = json.dumps(
            list(checkpoint.vocabulary), ensure_ascii=False
        )
    tensors = {
        name: np.ascontiguousarray(value)
        for name, value in _values(checkpoint, dtype, on_tensor)
    }
    save_file(tensors, path, metadata)


# === Hugging Face ===


def _write_huggingface(folder: Path, checkpoint: Checkpoint, dtype: str, on_tensor):
    """Writes the folder from which Transformers loads the same model."""
    config = write_config(checkpoint)
    tensors = _huggingface_tensors(checkpoint, dtype, on_tensor)
    length = min(
        MAX_POSITIONS, checkpoint.model_options.get("max_length", MAX_POSITIONS)
    )
    _write_encoder(folder, checkpoint, {**config, "dtype": dtype}, tensors, length)


def _write_sentence_transformers(
    folder: Path, checkpoint: Checkpoint, dtype: str, on_tensor
):
    """Writes a Hugging Face folder, with modules that pool its outputs to vectors."""
    from safetensors.numpy import save_file

    encoder = checkpoint
    if checkpoint.is_task:
        encoder = replace(checkpoint, model="RoFormerBackbone", model_options={})
    config = write_config(encoder, one_segment=True)
    contents = write_modules(checkpoint)
    tensors = _huggingface_tensors(encoder, dtype, on_tensor)
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        _write_json(folder / name, content)
    for role, names in zip(DENSES, dense_tensors(checkpoint), strict=False):
        dense = {
            name: tensors.pop(original_name) for name, original_name in names.items()
        }
        path = folder / SENTENCE_PARTS[f"{role}_weights"]
        save_file(dense, path, {"format": "pt"})
    length = contents[SENTENCE_PARTS["sentence_config"]]["max_seq_length"]
    _write_encoder(folder, encoder, {**config, "dtype": dtype}, tensors, length)


def _huggingface_tensors(checkpoint, dtype, on_tensor) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint as PyTorch has them, and the table of positions."""
    rows = checkpoint.rows
    table = position_table(MAX_POSITIONS, checkpoint.config.head_dim)
    tensors = {POSITIONS: table.astype(dtype)}
    for name, value in _values(checkpoint, dtype, on_tensor):
        row = rows[name]
        turned = value.T if row.huggingface_transposed else value
        tensors[row.huggingface] = np.ascontiguousarray(turned)
    if PYTORCH_DECODER in tensors and PYTORCH_BIAS in tensors:
        # Transformers adds this bias if the output is not tied.
        tensors[PYTORCH_DECODER_BIAS] = tensors[PYTORCH_BIAS].copy()
    return tensors


def _write_encoder(
    folder, checkpoint, config, tensors, max_length: int = MAX_POSITIONS
):
    """Writes weights, configuration and a tokenizer that cuts at `max_length`."""
    from safetensors.numpy import save_file

    if checkpoint.model == "RoFormerBackbone":
        tensors = {n.removeprefix("roformer."): v for n, v in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    _write_json(folder / "config.json", config)
    if checkpoint.vocabulary is not None:
        tokens = write_vocabulary(checkpoint.vocabulary)
        (folder / "vocab.txt").write_bytes(tokens)
        tokenizer = write_tokenizer_config(checkpoint, max_length)
        _write_json(folder / "tokenizer_config.json", tokenizer)
        if tokenizer["tokenizer_class"] == "RoFormerTokenizer":
            _write_json(folder / "tokenizer.json", write_tokenizer_file(checkpoint))


# === bert4keras ===


def _write_bert4keras(path: Path, checkpoint: Checkpoint, dtype: str, on_tensor):
    """Writes a zip in the released layout, without its unused `.meta` graph."""
    encoder = checkpoint.config
    label = checkpoint.label
    refuse(
        checkpoint.vocabulary is None,
        f"{label} has no vocabulary, and a bert4keras zip needs its vocab.txt: give it "
        "as vocabulary=",
    )
    refuse(
        encoder.layer_norm_cond_size,
        f"{label} has conditional norms, which bert4keras keeps in no checkpoint: "
        "choose another format",
    )
    refuse(
        encoder.activation == "gelu_tanh",
        f"{label} has activation='gelu_tanh', which no bert_config.json can name: "
        "choose another format",
    )
    refuse(
        "cls/predictions/output_mapping/kernel" in checkpoint.tensors,
        f"{label} maps the output to another width, which bert4keras reads from no "
        "RoFormerV2 checkpoint: choose another format",
    )
    folder = PARTIAL_PREFIX.sub("", path.name).removesuffix(".zip")
    bert_config = checkpoint.bert_config or {}
    config = {
        **{
            name: bert_config[name]
            for name in bert_config
            if name not in BERT_CONFIG_OPTIONS
        },
        **encoder.to_bert_config(),
    }
    state = "".join(
        f'{key}: "bert_model.ckpt"\n'
        for key in ("model_checkpoint_path", "all_model_checkpoint_paths")
    )
    with zipfile.ZipFile(path, "w") as archive:
        _add(archive, f"{folder}/bert_config.json", json_bytes(config))
        _add(archive, f"{folder}/vocab.txt", write_vocabulary(checkpoint.vocabulary))
        _add(archive, f"{folder}/checkpoint", state.encode())
        shard = _member(f"{folder}/bert_model.ckpt.data-00000-of-00001")
        with archive.open(shard, "w", force_zip64=True) as file:
            index = write_shard(file, _values(checkpoint, dtype, on_tensor))
        _add(archive, f"{folder}/bert_model.ckpt.index", index)


# === Details ===


def _write_dataset(file, key: str, row: Weight, value: np.ndarray):
    file.create_dataset(key, data=value.T if row.transposed else value)


def _write_json(path: Path, content):
    path.write_bytes(json_bytes(content))


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, _ZIP_TIME)


def _add(archive: zipfile.ZipFile, name: str, content: bytes):
    archive.writestr(_member(name), content)


FORMATS = {
    "preset": _write_preset,
    "weights.h5": _write_keras_weights,
    "keras": _write_keras,
    "safetensors": _write_safetensors,
    "bert4keras": _write_bert4keras,
    "huggingface": _write_huggingface,
    "sentence-transformers": _write_sentence_transformers,
}

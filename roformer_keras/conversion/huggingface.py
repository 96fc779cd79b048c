"""Models of Hugging Face: their files, and the tensors that follow from others.

Transformers' RoFormer is bert4keras's v1 with one epsilon for all norms and a table of
positions. JunnYu's package `roformer` adds poolers and RoFormerV2 under the same names.
The weight table has the names, see `Weight.huggingface`.
"""

import re
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import CheckpointError, SourceError, errors_at, refuse
from roformer_keras.conversion.huggingface_config import (
    MAX_POSITIONS,
    read_config,
)
from roformer_keras.conversion.huggingface_heads import read_task
from roformer_keras.conversion.huggingface_tokenizer import huggingface_tokenizer
from roformer_keras.conversion.sentence_modules import (
    has_one_segment,
    read_length,
    read_modules,
)
from roformer_keras.conversion.source_content import SourceContent
from roformer_keras.conversion.weights import (
    PYTORCH_BIAS,
    PYTORCH_DECODER,
    PYTORCH_DECODER_BIAS,
    task_rows,
)
from roformer_keras.io.archive import looks_like_zip
from roformer_keras.io.blob import HDF5_MAGIC, HEAD_SIZE, Blob
from roformer_keras.io.hdf5 import hdf5_datasets, open_hdf5
from roformer_keras.io.json_file import read_json
from roformer_keras.io.pytorch import open_pytorch
from roformer_keras.io.safetensors_file import open_safetensors
from roformer_keras.io.sources import SourceFiles
from roformer_keras.io.tensor import Tensor, check_names
from roformer_keras.io.vocabulary import fitting_tokens

_WORDS = "roformer.embeddings.word_embeddings.weight"
_SEGMENTS = "roformer.embeddings.token_type_embeddings.weight"
POSITIONS = "roformer.encoder.embed_positions.weight"
# Tensor -> the tensor that it equals if the output is tied.
_TIED = {PYTORCH_DECODER: _WORDS, PYTORCH_DECODER_BIAS: PYTORCH_BIAS}
# Maximal features per head; models have far fewer.
_MAX_HEAD_SIZE = 65_536
_BUFFERS = ("roformer.embeddings.position_ids", "roformer.embeddings.token_type_ids")
_BARE = re.compile(r"(embeddings|embeddings_project|encoder|pooler)\.")
# Prefixes that PyTorch's DataParallel, DDP and compile add to names.
_WRAPPERS = re.compile(r"(?<![^.])(module|_orig_mod)\.")


def is_huggingface(names: Any) -> bool:
    """True if tensors have the names of a PyTorch model of Hugging Face."""
    return any(name.endswith("embeddings.word_embeddings.weight") for name in names)


def own_tensors(
    tensors: Mapping[str, Tensor], label: str, is_tied: bool = True
) -> dict[str, Tensor]:
    """The weights by their full names, after a check of the other tensors.

    Positions and tied outputs follow from the configuration or from other tensors.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = _WRAPPERS.sub("", name)
        full = f"roformer.{full}" if _BARE.match(full) else full
        full = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", full)
        full = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", full)
        refuse(
            full in weights,
            f"{label} has two tensors for {full}: save it again",
            error=CheckpointError,
        )
        weights[full] = tensor
    for name in _BUFFERS:
        weights.pop(name, None)
    positions = weights.pop(POSITIONS, None)
    if positions is not None:
        _check_positions(positions, label)
    if not is_tied:
        refuse(
            PYTORCH_BIAS in weights and PYTORCH_DECODER not in weights,
            f"{label} lacks {PYTORCH_DECODER}, which tie_word_embeddings=false "
            "asks for: save the model again",
            error=CheckpointError,
        )
        if PYTORCH_DECODER_BIAS in weights:
            # Transformers adds this name.
            weights[PYTORCH_BIAS] = weights.pop(PYTORCH_DECODER_BIAS)
        return weights
    for name, original in _TIED.items():
        tied = weights.pop(name, None)
        if tied is None:
            continue
        if original not in weights:
            weights[original] = tied
        elif not _are_equal(tied, weights[original]):
            raise CheckpointError(
                f"{label}: {name} must equal {original}, because the output is tied, "
                "but does not: if the output was trained separately, write "
                "tie_word_embeddings=false into its config.json"
            )
    return weights


def _are_equal(first, second):
    return first.shape == second.shape and np.array_equal(first.read(), second.read())


def _is_padded(count, rows):
    """True if an embedding has the next multiple of 8, 16, ... 128 rows."""
    return any(rows == -(-count // size) * size for size in (8, 16, 32, 64, 128))


def _limit(parts, fields) -> dict[str, int]:
    """The `max_length` of a task, if its folder has one."""
    positions: Any = fields.get("max_position_embeddings", MAX_POSITIONS)
    check_integer("max_position_embeddings", positions, minimum=1)
    length = read_length(parts) or positions
    # The table of positions limits Transformers' model, but not this package's.
    return {"max_length": length} if "modules" in parts or length < positions else {}


def _without_padding(
    tensors: Mapping[str, Tensor], count: int, rows: int, label: str
) -> dict[str, Tensor]:
    """The tensors, with one row for each token of the vocabulary."""
    tensors = dict(tensors)
    for name in (_WORDS, PYTORCH_BIAS, PYTORCH_DECODER):
        if name in tensors and tensors[name].shape[:1] == (rows,):
            tensors[name] = tensors[name].first_rows(count)
    warnings.warn(
        f"{label}: the embedding is padded to {rows:,} rows, and is cut to the "
        f"{count:,} tokens of the vocabulary",
        stacklevel=2,
    )
    return tensors


def _check_positions(tensor, label):
    columns = tensor.shape[1] if len(tensor.shape) == 2 else 1
    if columns % 2 == 0 and 0 < columns <= _MAX_HEAD_SIZE:
        positions = tensor.read().astype("float32")
        bar = 1e-4 if tensor.dtype in ("float32", "float64") else 1e-2
        if np.abs(positions - position_table(*tensor.shape)).max(initial=0) <= bar:
            return
    raise CheckpointError(
        f"{label}: {POSITIONS} {tensor.shape} must hold sines and cosines of positions "
        "with base 10000, but does not: rotary embeddings have no other table"
    )


def position_table(count: int, size: int) -> np.ndarray:
    """Sines, then cosines, of positions as in Transformers: float32 `(count, size)`."""
    powers = [np.power(10000, 2 * (j // 2) / size) for j in range(size)]
    angles = np.arange(count)[:, None] / np.array(powers)
    parts = [np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])]
    return np.concatenate(parts, axis=1).astype("float32")


# === Weights in their files ===


def open_weights(files: SourceFiles, stack: ExitStack) -> dict[str, Tensor]:
    """The tensors of a folder by PyTorch's names, from one file or several."""
    if "index" not in files.parts:
        return _open_file(files.parts["weights"], stack)
    blob = files.parts["index"]
    index = read_json(blob).get("weight_map")
    refuse(
        not isinstance(index, dict)
        or not all(isinstance(name, str) for name in index.values()),
        f"{blob.label} must have a weight_map from tensors to files: download it again",
        error=CheckpointError,
    )
    check_names(index, blob.label)
    tensors: dict[str, Tensor] = {}
    listed_in: dict[str, set[str]] = {}
    for tensor, name in index.items():
        listed_in.setdefault(name, set()).add(tensor)
    for name, listed in sorted(listed_in.items()):
        if name not in files.parts or not _SHARD.fullmatch(name):
            raise SourceError(
                f"{blob.label} names {name[:80]!r}, but the folder has no such shard: "
                "download the missing file"
            )
        shard = _open_file(files.parts[name], stack)
        if wrong := sorted(listed ^ shard.keys()):
            where = "in the index only" if wrong[0] in listed else "in the shard only"
            raise CheckpointError(
                f"{files.parts[name].label} and {blob.label} must name the same "
                f"tensors, but {wrong[0][:80]} is {where}: download both again"
            )
        tensors |= shard
    return tensors


_SHARD = re.compile(r"\w+-\d{5}-of-\d{5}\.\w+")


def _open_file(blob: Blob, stack: ExitStack) -> dict[str, Tensor]:
    head = blob.read(0, HEAD_SIZE)
    if head.startswith(HDF5_MAGIC):
        file = stack.enter_context(open_hdf5(blob))
        datasets = hdf5_datasets(blob, file)
        return dict(_from_tensorflow(name, tensor) for name, tensor in datasets)
    is_safetensors = head[8:9] == b"{" and not looks_like_zip(head)
    if is_safetensors or blob.label.endswith(".safetensors"):
        return open_safetensors(blob, stack)[0]
    return open_pytorch(blob, stack)


def _from_tensorflow(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Gives a tensor of a `tf_model.h5` PyTorch's name and layout.

    `mlm___cls/tf_model/mlm___cls/predictions/transform/dense/kernel:0` becomes
    `cls.predictions.transform.dense.weight`, transposed.
    """
    *parts, last = name.removesuffix(":0").split("/")[2:] or [name]
    parts = [re.sub(r"^.*___", "", part).replace("_._", ".") for part in parts]
    is_kernel = last == "kernel" and len(tensor.shape) == 2
    last = {"kernel": "weight", "embeddings": "weight", "gamma": "weight"}.get(
        last, last
    )
    last = "bias" if last == "beta" else last
    return ".".join([*parts, last]), tensor.transposed() if is_kernel else tensor


# === Folders ===


def by_huggingface_name(
    format: str, tensors: Mapping[str, Tensor], **options: Any
) -> SourceContent:
    """Tensors that have the names and shapes of a PyTorch model."""
    by_name = {name: (name, tensor) for name, tensor in tensors.items()}
    return SourceContent(
        format,
        by_name,
        lambda row: row.huggingface,
        lambda row: row.huggingface_transposed,
        **options,
    )


def open_huggingface(files: SourceFiles, stack: ExitStack) -> SourceContent:
    """Opens a model of Hugging Face; raises as `open_checkpoint` does."""
    tensors = open_weights(files, stack)
    config = files.parts["config"]
    if not is_huggingface(tensors):
        raise CheckpointError(
            f"{files.label} must hold the weights of a RoFormer of Hugging Face, such "
            "as roformer.embeddings.word_embeddings.weight, got "
            f"{', '.join(sorted(tensors)[:3]) or 'none'}"
        )
    fields: Mapping[str, Any] = read_json(config)
    is_tied = fields.get("tie_word_embeddings") is not False
    tensors = own_tensors(tensors, files.label, is_tied)
    modules = read_modules(files.parts, lambda blob: _open_file(blob, stack))
    if modules is not None:
        fields = {**fields, **modules.fields}
        tensors = {**tensors, **modules.tensors}
    with errors_at(config.label):
        saved = read_config(fields, tensors)
        head: dict[str, Tensor] = {}
        reason = "no class of this package has that head"
        if modules is not None:
            saved |= modules.task(saved, fields)
            head = dict(modules.head)
        else:
            if "tokenizer_config" in files.parts:
                names = read_json(files.parts["tokenizer_config"])
                names = names.get("model_input_names")
                fields = {**fields, "model_input_names": names}
            head, changes = read_task(fields, tensors, saved)
            if head and has_one_segment(files.parts):
                tensors[_SEGMENTS] = tensors[_SEGMENTS].with_rows_of_first()
            if head:
                changes["model_options"] |= _limit(files.parts, fields)
            if {"vocabulary", "tokenizer_file"} & files.parts.keys():
                saved |= changes
            elif head:
                # A task without a tokenizer would be unusable.
                head = {}
                reason = (
                    "a task needs a tokenizer (put its vocab.txt or tokenizer.json "
                    "next to the weights)"
                )
    saved |= huggingface_tokenizer(files.parts)
    rows, tokens = saved["config"].vocabulary_size, saved.get("vocabulary") or ()
    if len(fitting_tokens(tokens, rows)) != rows:
        tokens = fitting_tokens(tokens)
    if tokens and len(tokens) < rows and _is_padded(len(tokens), rows):
        saved["vocabulary"] = tokens
        tensors = _without_padding(tensors, len(tokens), rows, files.label)
        saved["config"] = saved["config"].replace(vocabulary_size=len(tokens))
    if saved["left_out"]:
        warnings.warn(
            f"{files.label}: {len(saved['left_out'])} tensors are left out, "
            f"{saved['left_out'][0]} among them, because {reason}; the rest is whole",
            stacklevel=2,
        )
    rows = task_rows({path: tensor.shape for path, tensor in head.items()})
    gone = {*saved["left_out"], *(row.huggingface for row in rows)}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in gone}
    return by_huggingface_name("huggingface", tensors, task=head, saved=saved)

"""LoRA files in the layout of Hugging Face's PEFT."""

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roformer_keras.checks import check_integer, check_number
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    SourceError,
    errors_at,
)
from roformer_keras.hub.huggingface import PREFIX, fetch_adapter
from roformer_keras.io.atomic import replacing
from roformer_keras.io.blob import Blob
from roformer_keras.io.json_file import json_bytes, parse_json, read_json
from roformer_keras.io.pytorch import open_pytorch
from roformer_keras.io.safetensors_file import open_safetensors
from roformer_keras.io.sources import ADAPTER_CONFIG, ADAPTER_HEAD, ADAPTER_WEIGHTS
from roformer_keras.io.tensor import Tensor

_WEIGHTS, _PICKLE = ADAPTER_WEIGHTS
# More columns than any adapter has.
_MAX_RANK = 65_536
_FACTOR = re.compile(
    r"(?:base_model\.model\.)?(?:roformer\.)?(encoder\.layer\.\d+\.[\w.]+?"
    r"|embeddings_project|cls\.predictions\.transform\.dense|classifier(?:\.\w+?)?|qa_outputs"
    r"|sequence_summary\.summary)\.lora_(A|B)(?:\.default)?\.weight"
)
# Starts of names outside of a head.
BACKBONE = ("encoder.", "embeddings_project")
# Heads that are trained next to LoRA: their tensors in Transformers, and modules with
# nothing else. That of the bias of a masked LM has the tied output too; PEFT loads the
# bias although it is in no module here. Names of other heads have a slash.
_MODULES = {
    r"cls\.predictions\.transform\.": "transform",
    r"cls\.predictions\.decoder\.": "cls",
    r"classifier\.": "classifier",
    r"qa_outputs\.": "qa_outputs",
    r"sequence_summary\.": "summary",
}
_HEAD_TENSOR = re.compile(
    r"(?:base_model\.model\.)?"
    r"((?:cls\.predictions|classifier|qa_outputs|sequence_summary)"
    r"\.(?!.*lora_)[\w.]+)"
)
# Fields that say how an adapter was made or trained, and not what it computes. Of the
# others, only those that are read below may be set.
_HARMLESS = {
    *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying"),
    *("eva_config", "exclude_modules", "inference_mode", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config"),
    *("megatron_core", "peft_version", "qalora_group_size", "revision"),
    *("runtime_config", "target_modules", "task_type"),
}
_READ = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "init_lora_weights", "bias"),
    "modules_to_save",
}
# Others change the weights of the model too.
_INITIALIZERS = (True, False, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True)
class Adapter:
    """Low-rank additions to dense layers.

    Args:
        rank: int. Rows of A and columns of B.
        alpha: float. A layer's weight W becomes `W + alpha / rank * B A`.
        factors: dict of a layer's name in an encoder of Transformers, such as
            `encoder.layer.0.attention.self.query`, or of a head, to A `(rank, inputs)`
            and B `(outputs, rank)`, as PyTorch has them.
        head: dict of a weight's name to its value, both as `Weight.huggingface` has
            them: a head that was trained too.
        model: str or None. Name of the class that was saved, if it has a head.
        model_options: dict. Arguments of that class.
    """

    rank: int
    alpha: float
    factors: Mapping[str, tuple[np.ndarray, np.ndarray]]
    head: Mapping[str, np.ndarray] = field(default_factory=dict)
    model: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)


def write_adapter(
    folder: str | os.PathLike,
    adapter: Adapter,
    prefix: str = "",
    base: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the folder from which `peft.PeftModel.from_pretrained` loads an adapter.

    Args:
        folder: path. It appears complete, or not at all.
        prefix: str. What precedes the names in the model of Transformers: `""` for
            `RoFormerModel`, `"roformer."` for one with a head.
        base: str. The folder or repository of that model, for readers that load it.
        overwrite: bool. Whether an existing folder may be replaced.

    Raises:
        OutputError: the folder exists, or cannot be written.
    """
    from safetensors.numpy import save_file

    tensors = {}
    for name, (down, up) in adapter.factors.items():
        for letter, value in (("A", down), ("B", up)):
            key = f"base_model.model.{prefix}{name}.lora_{letter}.weight"
            tensors[key] = np.ascontiguousarray(value)
    # PEFT puts these in the place of the modules.
    theirs = {name: adapter.head[name] for name in adapter.head if "/" not in name}
    others = {name: adapter.head[name] for name in adapter.head if "/" in name}
    for name, value in theirs.items():
        tensors[f"base_model.model.{name}"] = np.ascontiguousarray(value)
    modules = [
        module
        for pattern, module in _MODULES.items()
        if any(re.match(pattern, name) for name in theirs)
    ]
    # All of a masked LM's head.
    modules = ["cls"] if "cls" in modules else modules
    metadata = {"format": "pt"}
    if adapter.model is not None:
        options = json.dumps(dict(adapter.model_options), ensure_ascii=False)
        metadata |= {"model": adapter.model, "model_options": options}
    # The whole name: `output.dense` alone would be two layers of a block.
    patterns = {re.sub(r"\d+", r"\\d+", re.escape(name)) for name in adapter.factors}
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": adapter.rank,
        # PEFT's own is an integer, and it computes with either.
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": rf"(.*\.)?({'|'.join(sorted(patterns))})",
        "modules_to_save": modules or None,
    }
    with replacing(folder, overwrite, folder=ADAPTER_CONFIG) as partial:
        save_file(tensors, partial / _WEIGHTS, metadata)
        if others:
            values = {k: np.ascontiguousarray(v) for k, v in others.items()}
            save_file(values, partial / ADAPTER_HEAD, {"format": "pt"})
        (partial / ADAPTER_CONFIG).write_bytes(json_bytes(config))


def read_adapter(folder: str | os.PathLike) -> Adapter:
    """The adapter in a folder that PEFT or `write_adapter` wrote.

    Args:
        folder: path, or `hf://owner/name`, which is downloaded.

    Raises:
        DownloadError: it cannot be fetched; says why.
        CheckpointError: a tensor is missing, unexpected or mis-shaped.
        ConfigurationError: the configuration is no LoRA, or computes something else.
        SourceError: a file is missing or cannot be read.
    """
    name = os.fsdecode(folder)
    folder = fetch_adapter(name) if name.startswith(PREFIX) else Path(name)
    config = _blob(folder, ADAPTER_CONFIG)
    with errors_at(config.label):
        fields = read_json(config)
        rank, alpha = _read_config(fields)
    with ExitStack() as stack:
        metadata: Mapping[str, str] = {}
        if (folder / _WEIGHTS).is_file() or not (folder / _PICKLE).is_file():
            blob = _blob(folder, _WEIGHTS)
            tensors, metadata = open_safetensors(blob, stack)
        else:
            blob = _blob(folder, _PICKLE)
            tensors = open_pytorch(blob, stack)
        with errors_at(config.label):
            head, tensors = _head_of(tensors, fields.get("modules_to_save"))
        if (folder / ADAPTER_HEAD).is_file():
            head |= open_safetensors(_blob(folder, ADAPTER_HEAD), stack)[0]
        options = metadata.get("model_options", "{}")
        return Adapter(
            rank,
            alpha,
            _read_factors(tensors, rank, blob.label),
            {
                name: tensor.read_weight(f"{blob.label}: {name[:80]}")
                for name, tensor in head.items()
            },
            metadata.get("model"),
            parse_json(options, f"{blob.label}: model_options"),
        )


def _head_of(tensors: Mapping[str, Tensor], modules: Any):
    """Tensors of modules that were trained whole, by their names there; the others."""
    matches = {name: _HEAD_TENSOR.fullmatch(name) for name in tensors}
    head = {match[1]: tensors[name] for name, match in matches.items() if match}
    # PEFT names `score` for each classifier, which other architectures have.
    parts = {"score", *(part for name in head for part in name.split(".")[:-1])}
    is_list = isinstance(modules or [], list)
    if not is_list or not parts.issuperset(map(str, modules or ())):
        raise ConfigurationError(
            "modules that are trained whole must be heads, whose tensors are in the "
            f"adapter, got modules_to_save={modules!r:.80}: merge the adapter into the "
            "model by PEFT's merge_and_unload, then convert it"
        )
    return head, {name: tensors[name] for name in tensors if not matches[name]}


def _blob(folder: Path, name: str) -> Blob:
    try:
        return Blob.of_file(folder / name)
    except OSError as error:
        raise SourceError(
            f"{folder} must be a folder with {ADAPTER_CONFIG} and {_WEIGHTS}, as "
            f"PEFT's save_pretrained writes it, and {name} cannot be read: "
            f"{error.strerror}"
        ) from error


def _read_config(content: Mapping[str, Any]) -> tuple[int, float]:
    """Rank, and the alpha for which the additions are `alpha / rank * B A`."""
    if content.get("peft_type") != "LORA":
        raise ConfigurationError(
            f"peft_type must be 'LORA', got {content.get('peft_type')!r:.80}: merge "
            "other adapters into the model by PEFT's merge_and_unload, then convert it"
        )
    rank: Any = content.get("r")
    alpha: Any = content.get("lora_alpha")
    check_integer("r", rank, minimum=1, maximum=_MAX_RANK)
    check_number("lora_alpha", alpha, above=0)
    start = content.get("init_lora_weights", True)
    changed = {} if start in _INITIALIZERS else {"init_lora_weights": start}
    if content.get("bias", "none") != "none":
        changed["bias"] = content["bias"]
    changed |= {
        name: value
        for name, value in content.items()
        if value and name not in _HARMLESS | _READ
    }
    if changed:
        name, value = next(iter(changed.items()))
        raise ConfigurationError(
            f"additions to kernels are all that LoRA has here, got {name[:80]}="
            f"{value!r:.80}: merge the adapter into the model by PEFT's "
            "merge_and_unload, then convert it"
        )
    return rank, alpha * math.sqrt(rank) if content.get("use_rslora") else alpha


def _read_factors(tensors: Mapping[str, Tensor], rank: int, label: str):
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _FACTOR.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f"{label}: names must be those of lora_A and lora_B of an encoder's "
                f"dense layers or a head's, got {name[:120]!r}: merge the adapter into "
                "the model by PEFT's merge_and_unload, then convert it"
            )
        layer, letter = match.groups()
        pair = found.setdefault(layer, {})
        if letter in pair:
            raise CheckpointError(
                f"{label} has two tensors for lora_{letter} of {layer[:80]}: save the "
                "adapter again"
            )
        pair[letter] = tensor
    if not found:
        raise CheckpointError(
            f"{label} must have factors of a layer, got no tensor: save the adapter "
            "again"
        )
    for layer, pair in found.items():
        for letter, axis in (("A", 0), ("B", 1)):
            shape = pair[letter].shape if letter in pair else None
            if shape is None or len(shape) != 2 or shape[axis] != rank:
                raise CheckpointError(
                    f"{label}: lora_{letter} of {layer[:80]} must be a matrix of "
                    f"{rank} {'rows' if axis == 0 else 'columns'}, got "
                    f"{'none' if shape is None else shape}"
                )
    return {
        layer: tuple(
            pair[letter].read_weight(f"{label}: lora_{letter} of {layer[:80]}")
            for letter in "AB"
        )
        for layer, pair in found.items()
    }

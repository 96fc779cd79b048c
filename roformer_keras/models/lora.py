"""Partial training: frozen layers, and low-rank additions to kernels (LoRA).

`freeze`, `unfreeze`, `enable_lora`, `merge_lora`, `save_lora` and `load_lora` are
methods of `PresetModel`; their `model` is a `RoFormerBackbone`, or has one as
`backbone`. Those that change which weights are trained return how many parameters are.

They may be called before or after `compile`. If they change which weights are
trained, the optimizer starts again with the same settings, without moments and steps.
Call them on the compiled model, not on the backbone inside it, for that.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks
from roformer_keras.base.checks import (
    as_names,
    check_instance,
    check_integer,
    check_number,
    check_path,
)
from roformer_keras.base.errors import (
    CheckpointError,
    ConfigurationError,
    errors_at,
    refuse,
)
from roformer_keras.inference.fast_model import refuse_quantized
from roformer_keras.io.atomic import replacing
from roformer_keras.io.blob import Blob, unreadable
from roformer_keras.io.json_file import parse_json
from roformer_keras.io.safetensors_file import open_safetensors
from roformer_keras.models.weight_paths import (
    backbone_of,
    layers_by_path,
    saved_name,
    weights_by_path,
)

# Dense layers of a block, by their names in `enable_lora`.
LORA_TARGETS = {
    "query": ("attention", "query"),
    "key": ("attention", "key"),
    "value": ("attention", "value"),
    "attention_output": ("attention", "output_dense"),
    "intermediate": ("feed_forward", "intermediate_dense"),
    "feed_forward_output": ("feed_forward", "output_dense"),
}
# The one outside of the blocks, where the embeddings have another width.
_MAPPING = "embedding_mapping"
_EMBEDDINGS = (
    "token_embedding",
    "segment_embedding",
    "embedding_norm",
    "embedding_mapping",
)


def trainable_count(model) -> int:
    """The number of trainable parameters."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


# === Freezing ===


def freeze(model: Any, embeddings: bool = True, layers: int = 0) -> int:
    """Freezes embeddings and the lowest blocks, in addition to what is frozen.

    A head is still trained, also one that shares the token embedding.

    Args:
        embeddings: bool. Whether token and segment embeddings are, with their norm.
        layers: int from 0 to `num_layers`. How many of the lowest blocks are.

    Returns:
        int. Parameters that are trained.

    Raises:
        ConfigurationError: `layers` is out of its range.

    Example:
        >>> model = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
        >>> model.freeze(layers=4)
        0
    """
    backbone = backbone_of(model)
    blocks = backbone.transformer_layers
    check_integer("layers", layers, minimum=0, maximum=len(blocks))
    lowest = [getattr(backbone, name) for name in _EMBEDDINGS] if embeddings else []
    with _changes(model):
        for layer in (*lowest, *blocks[:layers]):
            if layer is not None:
                layer.trainable = False
    return trainable_count(model)


def unfreeze(model: Any) -> int:
    """Trains the whole backbone again; under LoRA, its additions alone."""
    backbone = backbone_of(model)
    with _changes(model):
        backbone.trainable = True
        for layer in backbone.layers:
            _set_trainable(layer, True)
        _train_factors_only(backbone)
    return trainable_count(model)


# === LoRA ===


def enable_lora(
    model: Any,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] = ("query", "value"),
) -> int:
    """Trains low-rank additions to kernels of every block, and the heads, alone.

    A kernel W becomes `W + alpha / rank * A B`, A random and B zero: outputs are
    the same at first. `.keras` and `.weights.h5` files hold the additions twice: in
    the kernels, for other readers, and apart, so that training can continue. Call
    `merge_lora` before `save_to_preset` and `convert`.

    Args:
        rank: int from 1 to `hidden_dim`. Columns of A and rows of B.
        alpha: float above 0. `rank` if not given.
        targets: names of `LORA_TARGETS`: the dense layers with an addition; and
            `"embedding_mapping"`, if the model has it.

    Returns:
        int. Parameters that are trained.

    Raises:
        ConfigurationError: an argument breaks its rule, LoRA is enabled already, or
            every block is frozen.

    Example:
        >>> model = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
        >>> model.enable_lora(rank=4)  # 4 blocks, 2 kernels of 192 x 192 each
        12288

    Source: Hu et al. 2021, arXiv:2106.09685.
    """
    backbone = backbone_of(model)
    targets = _check_lora(model, rank, alpha, targets)
    with _changes(model):
        _add_factors(backbone, rank, alpha, targets)
    return trainable_count(model)


def _check_lora(model, rank, alpha, targets):
    """The names of the targets, if LoRA can be enabled with these arguments."""
    backbone = backbone_of(model)
    targets = as_names("targets", targets)
    known = _targets(backbone)
    unknown = [name for name in targets if name not in known]
    if unknown or not targets:
        raise ConfigurationError(
            f"targets must be of {', '.join(map(repr, known))}, got "
            f"{unknown[0] if unknown else targets!r}"
        )
    check_integer("rank", rank, 1, backbone.config.hidden_dim)
    if alpha is not None:
        check_number("alpha", alpha, above=0)
    refuse(
        _lora_layers(backbone),
        "LoRA is enabled already: call model.merge_lora(), then enable it again",
    )
    refuse(
        not any(block.trainable for block in backbone.transformer_layers),
        "LoRA has nothing to train in frozen blocks: call model.unfreeze() first",
    )
    return targets


def merge_lora(model: Any) -> int:
    """Adds what LoRA has learned to the kernels, and removes the additions.

    Outputs stay the same. What was trainable before LoRA is trainable again.

    Raises:
        ConfigurationError: LoRA is not enabled.
    """
    backbone = backbone_of(model)
    layers = _lora_layers(backbone)
    refuse(
        not layers,
        "there is no LoRA to merge: model.enable_lora(rank) enables it",
    )
    with _changes(model):
        for layer in layers:
            layer.merge_lora()
        for layer in backbone.layers:
            _set_trainable(layer, layer.trainable)
    return trainable_count(model)


def save_lora(model: Any, path: str | os.PathLike, *, overwrite: bool = False) -> None:
    """Writes the additions of LoRA, and the head, to one safetensors file.

    The weights under the additions are not in it: `load_lora` adds them to the model
    that they were trained on. The head is in the file because it is trained with them.

    Args:
        path: a name that ends in `.safetensors`. The file appears complete, or not at
            all.
        overwrite: bool. Whether an existing file may be replaced.

    Raises:
        ConfigurationError: LoRA is not enabled, or the name has another ending.
        OutputError: the file exists, or cannot be written.
    """
    from safetensors.numpy import save_file

    state = trainable_state(backbone_of(model))
    if not isinstance(state, dict) or state["lora"] is None:
        raise ConfigurationError(
            "there is no LoRA to save: model.enable_lora(rank) enables it"
        )
    refuse_quantized(model)
    check_path("path", path)
    if not os.fsdecode(path).endswith(".safetensors"):
        raise ConfigurationError(
            "an adapter is one file whose name ends in .safetensors, got "
            f"{os.fsdecode(path)[:80]!r}"
        )
    lora = state["lora"]
    slots = _factor_slots(model, lora["rank"], lora["targets"]) | _head_slots(model)
    tensors = {
        name: np.ascontiguousarray(keras.ops.convert_to_numpy(variable()))
        for name, (_, variable) in slots.items()
    }
    content = {
        "lora": lora,
        "model": saved_name(type(model)),
        "options": model.preset_options(),
    }
    metadata = {"roformer_keras": json.dumps(content, ensure_ascii=False)}
    with replacing(path, overwrite) as partial:
        save_file(tensors, partial, metadata)


def load_lora(model: Any, path: str | os.PathLike) -> int:
    """Enables LoRA with the additions that `save_lora` wrote.

    Outputs are those with the additions. They can be trained further, or merged by
    `merge_lora`. The head in the file takes the place of this model's; that of another
    kind of model is left out, with a warning.

    Args:
        path: a file that `save_lora` wrote.

    Returns:
        int. Parameters that are trained.

    Raises:
        CheckpointError: a tensor is missing, unexpected or mis-shaped.
        ConfigurationError: the file is no adapter of this package, or was trained with
            other labels; or LoRA is enabled already, or every block is frozen.
        SourceError: the file is missing or cannot be read.
    """
    check_path("path", path)
    label = os.fsdecode(path)
    content, tensors = _read_adapter(label)
    with errors_at(label):
        lora, options = content.get("lora"), content.get("options")
        check_instance("lora", lora, dict)
        check_instance("options", options, dict)
        rank, alpha = lora.get("rank"), lora.get("alpha")
        targets = _check_lora(model, rank, alpha, lora.get("targets"))
    factors, head = _factor_slots(model, rank, targets), {}
    if content.get("model") == saved_name(type(model)):
        model.check_saved_options(options, label)
        head = _head_slots(model)
    elif others := sorted(name for name in tensors if "/lora_" not in name):
        warnings.warn(
            f"{label}: the head of {content.get('model')} is left out, {others[0]} "
            f"among it, because the model is a {type(model).__name__}; the additions "
            "are whole",
            stacklevel=2,
        )
        tensors = {name: tensors[name] for name in tensors if name not in others}
    slots = factors | head
    for name in sorted(slots.keys() | tensors.keys()):
        shape = tensors[name].shape if name in tensors else "none"
        expected = slots[name][0] if name in slots else "none"
        if shape != expected:
            raise CheckpointError(
                f"{label}: {name[:80]} must have the shape of this model, {expected}, "
                f"got {shape}: load the model that the adapter was trained on"
            )
    count = model.enable_lora(rank, alpha, targets)
    for name, (_, variable) in slots.items():
        variable().assign(tensors[name])
    return count


def _read_adapter(label):
    """The description in an adapter, and its arrays by name."""
    refuse(
        os.path.isdir(label),
        f"an adapter must be a file that save_lora wrote, got the folder {label}",
        hint="merge an adapter of PEFT by its merge_and_unload, then convert the "
        "model; load a folder of version 0.1 with that version, and merge_lora",
    )
    with contextlib.ExitStack() as stack:
        try:
            blob = Blob.of_file(Path(label))
        except OSError as error:
            raise unreadable(label, error) from error
        stored, metadata = open_safetensors(blob, stack)
        refuse(
            "roformer_keras" not in metadata,
            f"{label} must be an adapter that save_lora wrote, got other tensors",
            hint="merge an adapter of PEFT by its merge_and_unload, then convert "
            "the model",
        )
        content = parse_json(metadata["roformer_keras"], label)
        with errors_at(label):
            check_instance("the description of an adapter", content, dict)
        return content, {
            name: tensor.read_weight(f"{label}: {name[:80]}")
            for name, tensor in stored.items()
        }


def _factor_slots(model, rank, targets):
    """Name of a factor in an adapter -> its shape, and a function of its variable."""
    backbone = backbone_of(model)
    paths = {id(layer): path for path, layer in layers_by_path(backbone).items()}
    slots: dict[str, tuple] = {}
    for layer in itertools.chain(*(_targets(backbone)[name] for name in targets)):
        shapes = {"a": (layer.input_spec.axes[-1], rank), "b": (rank, layer.units)}
        for letter, shape in shapes.items():
            variable = functools.partial(getattr, layer, f"lora_kernel_{letter}")
            slots[f"{paths[id(layer)]}/lora_{letter}"] = shape, variable
    return slots


def _head_slots(model):
    """Name of a weight of the head -> its shape, and a function of its variable."""
    variables = weights_by_path(model)
    return {
        row.path: (
            tuple(variables[row.path].shape),
            lambda row=row: variables[row.path],
        )
        for row in model.presets.rows()
        if row.head in ("mlm", "task")
    }


# === Saving ===


def trainable_state(model) -> bool | dict:
    """The trainable state of a backbone or of a head, as its configuration stores it.

    Args:
        model: a backbone, or a model on one. Of a model, its other layers are meant.

    Returns:
        bool if it holds for the whole model, else a dict with the paths of `frozen`
        layers and the arguments of `enable_lora` as `lora`.
    """
    backbone = backbone_of(model)
    stored = () if backbone is model else quirks.nested_layers(backbone)
    stored_ids = set(map(id, stored))
    frozen: list[str] = []
    for path, layer in layers_by_path(model).items():
        is_frozen = layer.weights and not layer.trainable
        is_inside = any(path.startswith(f"{outer}/") for outer in frozen)
        if is_frozen and not is_inside and id(layer) not in stored_ids:
            frozen.append(path)
    layers = _lora_layers(backbone) if backbone is model else []
    if not model.trainable or not (frozen or layers):
        return model.trainable
    state: dict[str, Any] = {"frozen": frozen, "lora": None}
    if layers:
        state["lora"] = {
            "rank": layers[0].lora_rank,
            "alpha": layers[0].lora_alpha,
            "targets": [
                name
                for name, (first, *_) in _targets(backbone).items()
                if first.lora_enabled
            ],
        }
    return state


def set_trainable_state(model, state: bool | dict):
    """Restores a `trainable_state` in a new model."""
    if not isinstance(state, dict):
        if not state:
            # Setting True would unfreeze a backbone that was frozen by itself.
            model.trainable = False
        return
    layers = layers_by_path(model)
    for path in state["frozen"]:
        layers[path].trainable = False
    if state["lora"]:
        _add_factors(model, **state["lora"])


def train_everything(model):
    """Merges LoRA, and trains all weights, whatever a `.keras` file said."""
    if _lora_layers(backbone_of(model)):
        model.merge_lora()
    model.trainable = True
    model.unfreeze()


def _set_trainable(layer, value):
    layer.trainable = value
    # TensorFlow ignores an assignment that changes nothing, and all below it.
    for variable in layer.weights:
        variable.trainable = value


def _targets(backbone):
    """Name in `enable_lora` -> its dense layers."""
    layers = {
        name: [
            getattr(getattr(block, part), layer)
            for block in backbone.transformer_layers
        ]
        for name, (part, layer) in LORA_TARGETS.items()
    }
    if backbone.embedding_mapping is not None:
        layers[_MAPPING] = [backbone.embedding_mapping]
    return layers


def _lora_layers(backbone):
    layers = itertools.chain.from_iterable(_targets(backbone).values())
    return [layer for layer in layers if layer.lora_enabled]


def _add_factors(backbone, rank, alpha, targets):
    layers = _targets(backbone)
    for name in targets:
        for layer in layers[name]:
            layer.enable_lora(rank, lora_alpha=alpha)
    _train_factors_only(backbone)


def _train_factors_only(backbone):
    if not _lora_layers(backbone):
        return
    for layer in backbone.layers:
        for variable in layer.weights:
            is_factor = variable.name.startswith("lora_kernel_")
            variable.trainable = layer.trainable and is_factor


@contextlib.contextmanager
def _changes(model):
    """Resets the optimizer of a compiled model if the trained weights change."""
    before = {id(variable) for variable in model.trainable_variables}
    yield
    optimizer = getattr(model, "optimizer", None)
    after = {id(variable) for variable in model.trainable_variables}
    if optimizer is None or before == after:
        return
    model.train_function = None
    if optimizer.built:
        model.optimizer = quirks.new_optimizer(optimizer)
        # A file that is saved now is read by one that is built.
        model.optimizer.build(model.trainable_variables)

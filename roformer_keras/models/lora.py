"""Partial training: frozen layers, and low-rank additions to kernels (LoRA).

`freeze`, `unfreeze`, `enable_lora`, `merge_lora`, `save_lora` and `load_lora` are
methods of `PresetModel`; their `model` is a `RoFormerBackbone`, or has one as
`backbone`. Those that change which weights are trained return how many parameters are.

They may be called before or after `compile`. If they change which weights are
trained, the optimizer starts again with the same settings, without moments and steps.
Call them on the compiled model, not on the backbone inside it, for that.
"""

import contextlib
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import keras

from roformer_keras import quirks
from roformer_keras.checks import as_names, check_integer, check_number, check_path
from roformer_keras.conversion.peft import (
    BACKBONE,
    Adapter,
    read_adapter,
    write_adapter,
)
from roformer_keras.conversion.weights import weight_table
from roformer_keras.errors import CheckpointError, ConfigurationError
from roformer_keras.models.adapter_head import head_fields, matched_head
from roformer_keras.models.paths import backbone_of, layers_by_path, weights_by_path
from roformer_keras.models.quantization import quantized_variables

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
    if _lora_layers(backbone):
        raise ConfigurationError(
            "LoRA is enabled already: call model.merge_lora(), then enable it again"
        )
    if not any(block.trainable for block in backbone.transformer_layers):
        raise ConfigurationError(
            "LoRA has nothing to train in frozen blocks: call model.unfreeze() first"
        )
    with _changes(model):
        _add_factors(backbone, rank, alpha, targets)
    return trainable_count(model)


def merge_lora(model: Any) -> int:
    """Adds what LoRA has learned to the kernels, and removes the additions.

    Outputs stay the same. What was trainable before LoRA is trainable again.

    Raises:
        ConfigurationError: LoRA is not enabled.
    """
    backbone = backbone_of(model)
    layers = _lora_layers(backbone)
    if not layers:
        raise ConfigurationError(
            "there is no LoRA to merge: model.enable_lora(rank) enables it"
        )
    with _changes(model):
        for layer in layers:
            layer.merge_lora()
        for layer in backbone.layers:
            _set_trainable(layer, layer.trainable)
    return trainable_count(model)


def save_lora(
    model: Any,
    folder: str | os.PathLike,
    *,
    base: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the additions of LoRA as an adapter of Hugging Face's PEFT.

    `peft.PeftModel.from_pretrained(model, folder)` adds them to the model of
    Transformers that `convert --format huggingface` writes, and `load_lora` to a
    model here. The folder has the head too, which is trained with the additions:
    one that Transformers has as `modules_to_save`, others in `head.safetensors`,
    which PEFT does not read.

    Args:
        folder: path. It appears complete, or not at all.
        base: str. The folder or repository of the model without the additions, for
            readers that load that too.
        overwrite: bool. Whether an existing folder may be replaced.

    Raises:
        ConfigurationError: LoRA is not enabled.
        OutputError: the folder exists, or cannot be written.
    """
    backbone = backbone_of(model)
    layers = _lora_layers(backbone)
    if not layers:
        raise ConfigurationError(
            "there is no LoRA to save: model.enable_lora(rank) enables it"
        )
    factors = {
        name: tuple(
            keras.ops.convert_to_numpy(factor).T
            for factor in (layer.lora_kernel_a, layer.lora_kernel_b)
        )
        for name, (_, layer) in _layers_of_transformers(backbone).items()
        if layer.lora_enabled
    }
    first = layers[0]
    adapter = Adapter(first.lora_rank, first.lora_alpha, factors, **head_fields(model))
    prefix = "" if backbone is model else "roformer."
    write_adapter(folder, adapter, prefix, base, overwrite)


def load_lora(
    model: Any, folder: str | os.PathLike, *, labels: Sequence[str] | None = None
) -> int:
    """Enables LoRA with the additions of an adapter of Hugging Face's PEFT.

    Outputs are those with the additions. They can be trained on, or merged by
    `merge_lora`. A head in the adapter takes the place of this model's, and additions
    to it are added to its kernels, which are trained whole; those of another kind of
    model are left out, with a warning.

    Args:
        folder: path of what `save_lora` or PEFT's `save_pretrained` wrote, or
            `hf://owner/name`.
        labels: names of the classes or tags in the adapter's order, which is
            `id2label` of the model that it was trained on. An adapter of PEFT does not
            have them; needed if this model's have names.

    Raises:
        DownloadError: it cannot be fetched; says why.
        CheckpointError: a tensor is missing, unexpected or mis-shaped.
        ConfigurationError: the adapter is no LoRA of these layers, or was trained
            with other labels; or LoRA is enabled already, or every block is frozen.
        SourceError: a file is missing or cannot be read.
    """
    check_path("folder", folder)
    backbone = backbone_of(model)
    adapter = read_adapter(folder)
    known = _layers_of_transformers(backbone)
    additions = {
        name: factors
        for name, factors in adapter.factors.items()
        if name.startswith(BACKBONE)
    }
    for name, factors in additions.items():
        if name not in known:
            raise CheckpointError(
                f"{folder}: {name[:80]} must be a dense layer of this model, such "
                f"as {next(iter(known))}"
            )
        layer = known[name][1]
        rows, columns = layer.input_spec.axes[-1], layer.units
        if (factors[0].shape[1], factors[1].shape[0]) != (rows, columns):
            raise CheckpointError(
                f"{folder}: {name} has factors for {factors[0].shape[1]} inputs "
                f"and {factors[1].shape[0]} outputs, and here it has {rows} and "
                f"{columns}: load the model that the adapter was trained on"
            )
    head = matched_head(model, adapter, os.fspath(folder), labels)
    targets = dict.fromkeys(known[name][0] for name in additions)
    # Where a block has no addition, B stays zero.
    count = model.enable_lora(adapter.rank, adapter.alpha, list(targets))
    for name, (down, up) in additions.items():
        layer = known[name][1]
        layer.lora_kernel_a.assign(down.T)
        layer.lora_kernel_b.assign(up.T)
    for variable, value in head:
        variable.assign(value)
    return count


def _layers_of_transformers(backbone):
    """Name in an encoder of Transformers -> name in `LORA_TARGETS`, and the layer."""
    names = {
        row.path: row.huggingface.removeprefix("roformer.").removesuffix(".weight")
        for row in weight_table(backbone.config, ())
    }
    paths = {id(layer): path for path, layer in layers_by_path(backbone).items()}
    return {
        names[f"{paths[id(layer)]}/kernel"]: (name, layer)
        for name, layers in _targets(backbone).items()
        for layer in layers
    }


# === Saving ===


def trainable_state(backbone) -> bool | dict:
    """The trainable state of a backbone, as its configuration stores it.

    Returns:
        bool if it holds for the whole backbone, else a dict with the names of `frozen`
        layers and the arguments of `enable_lora` as `lora`.
    """
    frozen = [
        layer.name for layer in backbone.layers if layer.weights and not layer.trainable
    ]
    layers = _lora_layers(backbone)
    if not backbone.trainable or not (frozen or layers):
        return backbone.trainable
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


def set_trainable_state(backbone, state: bool | dict):
    """Restores a `trainable_state` in a new backbone."""
    if not isinstance(state, dict):
        backbone.trainable = state
        return
    for name in state["frozen"]:
        backbone.get_layer(name).trainable = False
    if state["lora"]:
        _add_factors(backbone, **state["lora"])


def _set_trainable(layer, value):
    layer.trainable = value
    # TensorFlow ignores an assignment that changes nothing, and all below it.
    fixed = quantized_variables(layer)
    for path, variable in weights_by_path(layer).items():
        variable.trainable = value and path not in fixed


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

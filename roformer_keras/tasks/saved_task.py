"""Saved tasks: presets, and the head in files of Keras.

Presets and `.keras` files hold the head under the paths of its variables, in a separate
file; Keras's own file names layers by their classes, which only a built model knows.
"""

import dataclasses
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from roformer_keras.base.checks import check_names
from roformer_keras.base.config import ConfigSource, RoFormerConfig
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.convert import pooler_activation_of
from roformer_keras.conversion.weights import (
    TASK_PREFIX,
    model_heads,
    task_rows,
    weight_table,
)
from roformer_keras.conversion.writer import write_head
from roformer_keras.inference.fast_model import remember_layers
from roformer_keras.io.sources import TASK_WEIGHTS
from roformer_keras.io.tensor import Tensor
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import (
    check_options,
    checkpoint_of,
    opened_checkpoint,
    restore_training,
    saved_dtype,
)
from roformer_keras.models.weight_paths import (
    argument_names,
    layers_by_path,
    stored_name,
    weights_by_path,
)
from roformer_keras.tasks.labels import plain_names


def loaded_task(
    cls: Any,
    source: str | os.PathLike | Checkpoint,
    config: ConfigSource | None,
    max_length: int | None,
    name: str | None,
    options: dict[str, Any],
) -> Any:
    """`TextTask.from_preset`."""
    with opened_checkpoint(source, config) as checkpoint:
        if max_length is not None:
            options["max_length"] = max_length
        names = argument_names(cls)
        _check_arguments(cls, names, options)
        arguments = {name: options.pop(name) for name in names if name in options}
        is_saved = checkpoint.model == stored_name(cls)
        if is_saved:
            saved = checkpoint.model_options
            check_options(cls, saved, checkpoint.label)
            arguments = _with_saved(cls, saved, arguments, checkpoint.label)
            if options.get("dtype") is None:
                options["dtype"] = saved_dtype(checkpoint)
        if arguments.get("pooling") == "pooler" and not checkpoint.is_task:
            options.setdefault("pooler_activation", pooler_activation_of(checkpoint))
        is_whole = isinstance(config, RoFormerConfig)
        if not (is_whole or checkpoint.is_task or "attention" in options):
            _refuse_causal(cls, checkpoint)
        backbone = RoFormerBackbone.from_preset(checkpoint, config=config, **options)
        tokenizer = arguments.pop("tokenizer", None)
        if tokenizer is None:
            tokenizer = backbone.text_tokenizer()
        elif backbone.tokenizer is not None:
            _check_ids(tokenizer, backbone.tokenizer, checkpoint.label)
        if name is not None:
            arguments["name"] = name
        model = cls(backbone, tokenizer, **arguments)
        remember_layers(model)
        if is_saved:
            _read_head(model, checkpoint)
            if not {"keep_tokens", "compound_tokens"} & options.keys():
                restore_training(model, checkpoint, name)
    return model


def _check_arguments(cls, names, options):
    """Raises ConfigurationError unless all have a place in a task or its backbone."""
    head = [name for name in names if name != "backbone"]
    places = (PresetModel.from_preset, RoFormerConfig)
    others = [name for place in places for name in inspect.signature(place).parameters]
    known = [name for name in (*head, *others) if name not in ("source", "changes")]
    check_names(cls.__name__, "argument", options, dict.fromkeys(known))


def _with_saved(cls, saved, arguments, label):
    """Arguments with the saved ones; a saved head keeps its names in their order."""
    merged = {**saved, **arguments}
    before, after = (plain_names(cls.output_names(each)) for each in (saved, merged))
    count = saved.get("num_classes")
    if before is None and count is not None and len(after or ()) == count:
        # Classes that were numbers get names.
        before = after
    is_counted = merged.get("num_classes") in (None, count)
    if is_counted and (after is None or before == after or before is count is None):
        return merged
    raise ConfigurationError(
        f"the head in {label} has weights for {before or count} in this order, got "
        f"{after if is_counted else merged['num_classes']}",
        hint="leave the names out; or make the task with a new head: backbone = "
        f"RoFormerBackbone.from_preset(source), then {cls.__name__}(backbone, "
        "backbone.tokenizer, ...) with the names; for a command, first write the "
        "encoder by `convert --model RoFormerBackbone`",
    )


def in_saved_order(cls: Any, checkpoint: Checkpoint, names: dict[str, Any]) -> dict:
    """The names in a file of labels; in the order of a saved head that has the same."""
    saved = checkpoint.model_options if checkpoint.model == stored_name(cls) else {}
    return {
        field: saved[field]
        if set(plain_names(saved.get(field)) or ()) == set(plain_names(value) or ())
        else value
        for field, value in names.items()
    }


def _check_ids(tokenizer, saved, label):
    """Raises ConfigurationError if a token has another id than in the checkpoint."""
    ids = {token: number for number, token in enumerate(saved.vocabulary)}
    for number, token in enumerate(tokenizer.vocabulary):
        if ids.get(token, number) != number:
            raise ConfigurationError(
                f"tokenizer must have the ids of {label}, where {token!r} is "
                f"{ids[token]}, got {number}",
                hint="leave tokenizer out, or pass keep_tokens to reorder the tokens",
            )


def _refuse_causal(cls, checkpoint):
    refuse(
        checkpoint.config_for("RoFormerBackbone").attention == "causal",
        f"{cls.__name__} reads texts in both directions, and the attention of "
        f"{checkpoint.label} is causal",
        hint="pass attention='bidirectional' to fine-tune it so, or "
        "attention='causal' to keep it; for a command, first write a "
        "bidirectional preset by `convert --model RoFormerMaskedLM`",
    )


def matched_task(
    model: Any, checkpoint: Checkpoint, initialize_heads: bool, ignore: Sequence[str]
) -> list:
    """Pairs of a variable of a task and its row of the weight table."""
    pairs = model.backbone._matched(checkpoint, initialize_heads, ignore)
    if checkpoint.model != stored_name(type(model)):
        return pairs
    model.check_saved_options(checkpoint.model_options, checkpoint.label)
    return pairs + _matched_head(model, checkpoint, ignore)


def check_saved_options(model: Any, saved: Mapping, label: str) -> None:
    """Raises ConfigurationError if a head was saved with other arguments."""
    for name, own in model.preset_options().items():
        # Lengths are cut as this model cuts them; a file has lists of tuples.
        stored = saved.get(name, own)
        if name != "max_length" and _plain(own) != _plain(stored):
            raise ConfigurationError(
                f"{label} was saved with {name}={stored!r}, and this model has "
                f"{name}={own!r}: load it by from_preset"
            )


def _matched_head(model, checkpoint, ignore=()):
    """Pairs of a variable of the head and its row of the weight table."""
    head = head_weights(model)
    shapes = {path: tuple(variable.shape) for path, variable in head.items()}
    config = checkpoint.config_for("RoFormerBackbone")
    heads = model_heads("RoFormerBackbone", config)
    rows = weights_to_read(checkpoint, config, heads, ignore, task_shapes=shapes)
    return [(head[row.path], row) for row in rows if row.head == "task"]


def _read_head(model, checkpoint):
    for variable, row in _matched_head(model, checkpoint):
        variable.assign(checkpoint.weight(row.name))


def task_weight_rows(model: Any) -> tuple:
    """Rows of the weight table, one for each weight that a preset of a task stores."""
    heads = model_heads("RoFormerBackbone", model.config)
    shapes = {path: tuple(v.shape) for path, v in head_weights(model).items()}
    return weight_table(model.config, heads) + task_rows(shapes)


def head_weights(model: Any) -> dict[str, keras.Variable]:
    """Weights of the head by path, without those of LoRA."""
    backbone = {id(variable) for variable in model.backbone.variables}
    return {
        path: variable
        for path, variable in weights_by_path(model).items()
        if id(variable) not in backbone
        and "seed_generator" not in path
        and not variable.name.startswith("lora_")
    }


def save_head(model: Any, folder: str) -> None:
    """Writes the head as a preset has it, into a `.keras` file."""
    head = [row for row in model._weight_rows() if row.head == "task"]
    checkpoint = checkpoint_of(model, head)
    tensors = {**checkpoint.tensors, **_merged_kernels(model)}
    checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
    write_head(Path(folder, TASK_WEIGHTS), checkpoint)


def _merged_kernels(model):
    """Kernels of the head with their LoRA added, by tensor name."""
    kernels = {}
    for path, layer in layers_by_path(model).items():
        is_head = f"{path}/kernel" in head_weights(model)
        if not (is_head and getattr(layer, "lora_enabled", False)):
            continue
        kernel = keras.ops.convert_to_numpy(layer.kernel)
        kernels[f"{TASK_PREFIX}{path}/kernel"] = Tensor(
            kernel.shape, str(kernel.dtype), lambda kernel=kernel: kernel
        )
    return kernels


def _plain(value):
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))


class TaskSettings(dict):
    """Settings of `compile` with arguments that only tasks have.

    Keras saves its items, and `compile_from_config` of a task takes them. `clone_model`
    hands them to a plain model, which asks first whether they describe a class.
    """

    def __contains__(self, name: object) -> bool:
        if name == "class_name":
            raise ConfigurationError(
                "keras.models.clone_model makes a plain keras.Model, which does not "
                "train with adversarial_epsilon and r_drop, got a task compiled with "
                f"adversarial_epsilon={self.get('adversarial_epsilon', 0.0)} and "
                f"r_drop={self.get('r_drop', 0.0)}",
                hint="copy the task by type(model).from_config(model.get_config()) and "
                "set_weights, then compile the copy",
            )
        return super().__contains__(name)

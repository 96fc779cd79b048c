"""Saved tasks: presets, and the head in files of Keras.

Presets and `.keras` files hold the head under the paths of its variables, in a separate
file; Keras's own file names layers by their classes, which only a built model knows.
"""

import dataclasses
import inspect
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

from roformer_keras.base.checks import check_names
from roformer_keras.base.config import ConfigSource, RoFormerConfig
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.convert import pooler_activation_of
from roformer_keras.conversion.weights import (
    TASK_PREFIX,
    Weight,
    model_heads,
    task_rows,
)
from roformer_keras.conversion.writer import write_head
from roformer_keras.inference.fast_model import FastModel, remember_layers
from roformer_keras.io.sources import TASK_WEIGHTS
from roformer_keras.io.tensor import Tensor
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import (
    Presets,
    check_options,
    opened_checkpoint,
    saved_dtype,
)
from roformer_keras.models.weight_paths import (
    argument_names,
    layers_by_path,
    stored_name,
    weights_by_path,
)
from roformer_keras.tasks.labels import plain_names

_Task = TypeVar("_Task", bound=FastModel)


class TaskPresets(Presets):
    """The backbone and the head of a task in files.

    Args:
        model: a `TextTask`.
    """

    @staticmethod
    def load_task(
        kind: type[_Task],
        source: str | os.PathLike | Checkpoint,
        config: ConfigSource | None,
        max_length: int | None,
        name: str | None,
        options: dict[str, Any],
    ) -> _Task:
        """A new task of this class; arguments as in `TextTask.from_preset`."""
        with opened_checkpoint(source, config) as checkpoint:
            if max_length is not None:
                options["max_length"] = max_length
            names = argument_names(kind)
            _check_arguments(kind, names, options)
            arguments = {name: options.pop(name) for name in names if name in options}
            is_saved = checkpoint.model == stored_name(kind)
            if is_saved:
                saved = checkpoint.model_options
                check_options(kind, saved, checkpoint.label)
                arguments = _with_saved(kind, saved, arguments, checkpoint.label)
                if options.get("dtype") is None:
                    options["dtype"] = saved_dtype(checkpoint)
            if arguments.get("pooling") == "pooler" and not checkpoint.is_task:
                activation = pooler_activation_of(checkpoint)
                options.setdefault("pooler_activation", activation)
            is_whole = isinstance(config, RoFormerConfig)
            if not (is_whole or checkpoint.is_task or "attention" in options):
                refuse(
                    checkpoint.config_for("RoFormerBackbone").attention == "causal",
                    f"{kind.__name__} reads texts in both directions, and the "
                    f"attention of {checkpoint.label} is causal",
                    hint="pass attention='bidirectional' to fine-tune it so, or "
                    "attention='causal' to keep it; for a command, first write a "
                    "bidirectional preset by `convert --model RoFormerMaskedLM`",
                )
            backbone = RoFormerBackbone.from_preset(
                checkpoint, config=config, **options
            )
            tokenizer = arguments.pop("tokenizer", None)
            if tokenizer is None:
                tokenizer = backbone.text_tokenizer()
            elif backbone.tokenizer is not None:
                _check_ids(tokenizer, backbone.tokenizer, checkpoint.label)
            if name is not None:
                arguments["name"] = name
            model = kind(backbone, tokenizer, **arguments)
            remember_layers(model)
            if is_saved:
                for variable, row in model.presets.matched_head(checkpoint):
                    variable.assign(checkpoint.weight(row.name))
                if not {"keep_tokens", "compound_tokens"} & options.keys():
                    model.presets.restore_training(checkpoint, name)
        return model

    def matched(
        self, checkpoint: Checkpoint, initialize_heads: bool, ignore: Sequence[str]
    ) -> list[tuple[keras.Variable, Weight]]:
        backbone = self.model.backbone.presets
        pairs = backbone.matched(checkpoint, initialize_heads, ignore)
        if checkpoint.model != stored_name(type(self.model)):
            return pairs
        self.model.check_saved_options(checkpoint.model_options, checkpoint.label)
        return pairs + self.matched_head(checkpoint, ignore)

    def matched_head(
        self, checkpoint: Checkpoint, ignore: Sequence[str] = ()
    ) -> list[tuple[keras.Variable, Weight]]:
        """Pairs of a variable of the head and its row of the weight table."""
        head = self.head_weights()
        shapes = {path: tuple(variable.shape) for path, variable in head.items()}
        config = checkpoint.config_for("RoFormerBackbone")
        heads = model_heads("RoFormerBackbone", config)
        rows = weights_to_read(checkpoint, config, heads, ignore, task_shapes=shapes)
        return [(head[row.path], row) for row in rows if row.head == "task"]

    def rows(self) -> tuple[Weight, ...]:
        shapes = {path: tuple(v.shape) for path, v in self.head_weights().items()}
        return self.model.backbone.presets.rows() + task_rows(shapes)

    def head_weights(self) -> dict[str, keras.Variable]:
        """Weights of the head by path, without those of LoRA."""
        backbone = {id(variable) for variable in self.model.backbone.variables}
        return {
            path: variable
            for path, variable in weights_by_path(self.model).items()
            if id(variable) not in backbone
            and "seed_generator" not in path
            and not variable.name.startswith("lora_")
        }

    def save_head(self, folder: str) -> None:
        """Writes the head as a preset has it, into a `.keras` file."""
        checkpoint = self.checkpoint(row for row in self.rows() if row.head == "task")
        tensors = {**checkpoint.tensors, **self._merged_kernels()}
        checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
        write_head(Path(folder, TASK_WEIGHTS), checkpoint)

    def _merged_kernels(self):
        """Kernels of the head with their LoRA added, by tensor name."""
        kernels, head = {}, self.head_weights()
        for path, layer in layers_by_path(self.model).items():
            if f"{path}/kernel" in head and getattr(layer, "lora_enabled", False):
                kernel = keras.ops.convert_to_numpy(layer.kernel)
                kernels[f"{TASK_PREFIX}{path}/kernel"] = Tensor(
                    kernel.shape, str(kernel.dtype), lambda kernel=kernel: kernel
                )
        return kernels


def _check_arguments(kind, names, options):
    """Raises ConfigurationError unless all have a place in a task or its backbone."""
    head = [name for name in names if name != "backbone"]
    functions = (PresetModel.from_preset, RoFormerConfig)
    others = [
        name
        for function in functions
        for name in inspect.signature(function).parameters
    ]
    known = [name for name in (*head, *others) if name not in ("source", "changes")]
    check_names(kind.__name__, "argument", options, dict.fromkeys(known))


def _with_saved(kind, saved, arguments, label):
    """Arguments with the saved ones; a saved head keeps its names in their order."""
    merged = {**saved, **arguments}
    before, after = (plain_names(kind.output_names(each)) for each in (saved, merged))
    count = saved.get("num_classes")
    if before is None and count is not None and len(after or ()) == count:
        # Classes that were numbers get names.
        before = after
    is_counted = merged.get("num_classes") in (None, count)
    is_same = after is None or before == after or before is count is None
    refuse(
        not (is_counted and is_same),
        f"the head in {label} has weights for {before or count} in this order, got "
        f"{after if is_counted else merged['num_classes']}",
        hint="leave the names out; or make the task with a new head: backbone = "
        f"RoFormerBackbone.from_preset(source), then {kind.__name__}(backbone, "
        "backbone.tokenizer, ...) with the names; for a command, first write the "
        "encoder by `convert --model RoFormerBackbone`",
    )
    return merged


def in_saved_order(
    kind: type[FastModel], checkpoint: Checkpoint, names: dict[str, Any]
) -> dict:
    """The names in a file of labels; in the order of a saved head that has the same."""
    saved = checkpoint.model_options if checkpoint.model == stored_name(kind) else {}
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


def plain(value: Any) -> Any:
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

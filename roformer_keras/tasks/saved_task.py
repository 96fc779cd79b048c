"""Loading and saving of tasks: a backbone, a head, and a tokenizer."""

import dataclasses
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import keras

from roformer_keras.config import ConfigSource, RoFormerConfig
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.weights import (
    TASK_PREFIX,
    model_heads,
    task_rows,
    weight_table,
)
from roformer_keras.conversion.writer import write_head
from roformer_keras.errors import ConfigurationError
from roformer_keras.io.sources import TASK_WEIGHTS
from roformer_keras.io.tensor import Tensor
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.paths import layers_by_path, weights_by_path
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import (
    check_options,
    checkpoint_of,
    opened_checkpoint,
    restored_model,
    take_backbone,
    take_tokenizer,
)
from roformer_keras.models.quantization import quantized_layers, restore_quantized
from roformer_keras.text.tokenizer import RoFormerTokenizer


class SavedTask(PresetModel):
    """A task as files hold it.

    Presets and `.keras` files hold the head under the paths of its variables, in a
    separate file; Keras's own file names layers by their classes, which only a built
    model knows.
    """

    tokenizer: RoFormerTokenizer
    if TYPE_CHECKING:

        @property
        def config(self) -> RoFormerConfig: ...

    @classmethod
    def from_preset(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        config: ConfigSource | None = None,
        max_length: int | None = None,
        **options: Any,
    ) -> Self:
        """Builds the task on the backbone of a checkpoint, or loads a saved task.

        Args:
            source: as in `RoFormerBackbone.from_preset`; the head has new weights then.
                Or what `save_to_preset` or `save` of this class wrote.
            config: as in `RoFormerBackbone.from_preset`.
            max_length: int. Tokens to which longer rows are cut; as saved, or the
                default of the class, if not given.
            options: arguments of this class, and those of
                `RoFormerBackbone.from_preset`, such as `dropout=0.2` and `dtype`. A
                causal source needs `attention`: `"bidirectional"` to read texts in both
                directions, as tasks do, or `"causal"`.

        Raises:
            ConfigurationError: the folder holds another task, or an argument breaks its
                rule.
            RoFormerError: as in `RoFormerBackbone.from_preset`.
        """
        with opened_checkpoint(source, config) as checkpoint:
            if max_length is not None:
                options["max_length"] = max_length
            names = inspect.signature(cls.__init__).parameters
            arguments = {name: options.pop(name) for name in names if name in options}
            is_saved = checkpoint.model == cls.__name__
            if is_saved:
                saved = checkpoint.model_options
                check_options(cls, saved, checkpoint.label)
                arguments = {**saved, **arguments}
            is_whole = isinstance(config, RoFormerConfig)
            if not (is_whole or checkpoint.is_task or "attention" in options):
                cls._refuse_causal(checkpoint)
            backbone = RoFormerBackbone.from_preset(
                checkpoint, config=config, **options
            )
            tokenizer = arguments.pop("tokenizer", None) or backbone.text_tokenizer()
            model = cls(backbone, tokenizer, **arguments)
            if is_saved:
                model._read_head(checkpoint)
        return model

    @classmethod
    def _refuse_causal(cls, checkpoint):
        if checkpoint.config_for("RoFormerBackbone").attention == "causal":
            raise ConfigurationError(
                f"{cls.__name__} reads texts in both directions, and the attention of "
                f"{checkpoint.label} is causal",
                hint="pass attention='bidirectional' to fine-tune it so, or "
                "attention='causal' to keep it; for a command, first write a "
                "bidirectional preset by `convert --model RoFormerMaskedLM`",
            )

    def _matched(self, checkpoint, initialize_heads, ignore):
        pairs = self.backbone._matched(checkpoint, initialize_heads, ignore)
        if checkpoint.model != type(self).__name__:
            return pairs
        self.check_saved_options(checkpoint.model_options, checkpoint.label)
        return pairs + self._matched_head(checkpoint, ignore)

    def check_saved_options(self, saved: Mapping, label: str) -> None:
        for name, own in self.preset_options().items():
            # Lengths are cut as this model cuts them; a file has lists of tuples.
            stored = saved.get(name, own)
            if name != "max_length" and _plain(own) != _plain(stored):
                raise ConfigurationError(
                    f"{label} was saved with {name}={stored!r}, and this model has "
                    f"{name}={own!r}: load it by from_preset"
                )

    def _matched_head(self, checkpoint, ignore=()):
        """Pairs of a variable of the head and its row of the weight table."""
        head = self._head_weights()
        shapes = {path: tuple(variable.shape) for path, variable in head.items()}
        config = checkpoint.config_for("RoFormerBackbone")
        heads = model_heads("RoFormerBackbone", config)
        rows = weights_to_read(checkpoint, config, heads, ignore, task_shapes=shapes)
        return [(head[row.path], row) for row in rows if row.head == "task"]

    def _read_head(self, checkpoint):
        for variable, row in self._matched_head(checkpoint):
            variable.assign(checkpoint.weight(row.name))
        restore_quantized(self, checkpoint.quantized)

    def _weight_rows(self):
        heads = model_heads("RoFormerBackbone", self.config)
        quantized = quantized_layers(self)
        shapes = {path: tuple(v.shape) for path, v in self._head_weights().items()}
        for path, layer in quantized.items():
            weight = f"{path}/{layer.weight_name}"
            if weight not in shapes:
                # Of the backbone.
                continue
            shapes[weight] = layer.weight(path).shape
            for name in layer.added:
                shapes.pop(f"{path}/{name}", None)
        return weight_table(self.config, heads) + task_rows(shapes)

    def preset_options(self) -> dict[str, Any]:
        # An argument of the constructor is an attribute of the same name.
        names = inspect.signature(type(self).__init__).parameters
        return {
            name: getattr(self, name)
            for name in names
            if name not in ("self", "backbone", "tokenizer", "kwargs")
        }

    def head_variables(self) -> list[keras.Variable]:
        """Weights that are not the backbone's."""
        return list(self._head_weights().values())

    def _head_weights(self) -> dict[str, keras.Variable]:
        """Weights of the head by path, without those of LoRA."""
        backbone = {id(variable) for variable in self.backbone.variables}
        return {
            path: variable
            for path, variable in weights_by_path(self).items()
            if id(variable) not in backbone
            and "seed_generator" not in path
            and not variable.name.startswith("lora_")
        }

    # === Files of Keras ===

    def save_assets(self, folder: str) -> None:
        """Writes the head as a preset has it, into a `.keras` file."""
        head = [row for row in self._weight_rows() if row.head == "task"]
        checkpoint = checkpoint_of(self, head)
        tensors = {**checkpoint.tensors, **self._merged_kernels()}
        checkpoint = dataclasses.replace(checkpoint, tensors=tensors)
        write_head(Path(folder, TASK_WEIGHTS), checkpoint)

    def _merged_kernels(self):
        """Kernels of the head with their LoRA added, by tensor name."""
        kernels = {}
        for path, layer in layers_by_path(self).items():
            is_head = f"{path}/kernel" in self._head_weights()
            if not (is_head and getattr(layer, "lora_enabled", False)):
                continue
            if layer.quantization_mode is not None:
                raise ConfigurationError(
                    f"the kernel of {path} is quantized and has LoRA: enable LoRA "
                    "before quantization"
                )
            kernel = keras.ops.convert_to_numpy(layer.kernel)
            kernels[f"{TASK_PREFIX}{path}/kernel"] = Tensor(
                kernel.shape, str(kernel.dtype), lambda kernel=kernel: kernel
            )
        return kernels

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        options = dict(config)
        backbone = take_backbone(cls, options)
        vocabulary, fields = take_tokenizer(options, cls.__name__) or ((), {})
        tokenizer = RoFormerTokenizer(vocabulary, **fields)
        return restored_model(cls, options, backbone, tokenizer)


def _plain(value):
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))

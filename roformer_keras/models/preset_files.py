"""The weights and the tokenizer of a model, from and to checkpoints."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import keras

from roformer_keras.base import quirks
from roformer_keras.base.checks import check_instance, check_names
from roformer_keras.base.config import ConfigSource, RoFormerConfig
from roformer_keras.base.errors import ConfigurationError, errors_at, refuse
from roformer_keras.conversion.checkpoint import (
    Checkpoint,
    weights_to_read,
    with_own_output,
)
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint, read_tokenizer
from roformer_keras.conversion.tokenizer_files import checked_tokenizer_fields
from roformer_keras.conversion.weights import (
    OUTPUT_BIAS,
    OUTPUT_EMBEDDINGS,
    WORD_EMBEDDINGS,
    Weight,
    model_heads,
    weight_table,
)
from roformer_keras.hub.catalog import resolve
from roformer_keras.inference.fast_model import (
    FastModel,
    refuse_changed,
    refuse_quantized,
    remember_layers,
)
from roformer_keras.io.hdf5 import hdf5_errors
from roformer_keras.io.tensor import Tensor
from roformer_keras.models.initializers import weights_to_be_loaded
from roformer_keras.models.kept_tokens import KeptTokens
from roformer_keras.models.lora import set_trainable_state, trainable_state
from roformer_keras.models.weight_paths import (
    argument_names,
    backbone_of,
    is_stored,
    stored_name,
    weights_by_path,
)
from roformer_keras.text.tokenizer import RoFormerTokenizer

# Classes in the settings of `compile`, and modules of Keras that have no others.
_COMPILED = (
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.losses.Loss,
    keras.metrics.Metric,
)
_COMPILED_MODULES = (
    "builtins",
    "keras.losses",
    "keras.metrics",
    "keras.optimizers",
    "keras.optimizers.schedules",
)
# Fields that change the outputs of a model and not the shapes of its weights.
_NOT_IN_SHAPES = ("num_heads", "activation")
# Those that a source states only where it differs from the default.
_STATED = ("attention", "attention_type", "rotary", "rotary_base", "performer_seed")
_Model = TypeVar("_Model", bound=FastModel)
# Rows of these are kept and added by `keep_tokens` and `compound_tokens`.
_BY_TOKEN = (WORD_EMBEDDINGS, OUTPUT_EMBEDDINGS, OUTPUT_BIAS)


def opened_checkpoint(
    source: str | os.PathLike | Checkpoint, config: ConfigSource | None = None
) -> contextlib.AbstractContextManager[Checkpoint]:
    """A context with the checkpoint of a source, which may be open already."""
    if isinstance(source, Checkpoint):
        return contextlib.nullcontext(source)
    return open_checkpoint(resolve(source), config)


class Presets:
    """The weights, the tokenizer and the configuration of a model in files.

    Args:
        model: a `PresetModel`.
    """

    def __init__(self, model: FastModel):
        self.model = model

    @staticmethod
    def load(
        kind: type[_Model],
        source: str | os.PathLike | Checkpoint,
        *,
        config: ConfigSource | None,
        keep_tokens: Sequence[int] | None,
        compound_tokens: Sequence | None,
        initialize_heads: bool,
        ignore: Sequence[str],
        dtype: Any,
        gradient_checkpointing: bool,
        name: str | None,
        changes: dict[str, Any],
    ) -> _Model:
        """A new model of this class; arguments as in `PresetModel.from_preset`."""
        names = changes.keys() & set(argument_names(kind))
        options = {
            name: changes.pop(name)
            for name in names & {"output_activation", "max_length"}
        }
        stored_class = stored_name(kind)
        with opened_checkpoint(source, config) as checkpoint:
            if checkpoint.model == stored_class:
                check_options(kind, checkpoint.model_options, checkpoint.label)
                options = {**checkpoint.model_options, **options}
                dtype = saved_dtype(checkpoint) if dtype is None else dtype
            if name is not None:
                options["name"] = name
            if isinstance(config, RoFormerConfig):
                stored = checkpoint.config.replace(**changes)
            else:
                stored = checkpoint.config_for(stored_class, **changes)
            checkpoint = with_own_output(checkpoint, stored)
            heads = model_heads(stored_class, stored)
            if "num_layers" in changes:
                ignore = _with_dropped_layers(ignore, checkpoint, stored)
            rows = weights_to_read(checkpoint, stored, heads, ignore, initialize_heads)
            tokens = KeptTokens(stored.vocabulary_size, keep_tokens, compound_tokens)
            model_config = stored.replace(vocabulary_size=tokens.count)
            complete = len(rows) == len(weight_table(stored, heads))
            with weights_to_be_loaded() if complete else contextlib.nullcontext():
                model = kind.from_roformer_config(model_config, dtype, **options)
            remember_layers(model)
            variables = weights_by_path(model)
            for row in rows:
                value = checkpoint.weight(row.name)
                if row.name in _BY_TOKEN:
                    value = tokens.rows_of(value)
                variables[row.path].assign(value.T if row.transposed else value)
            if gradient_checkpointing:
                backbone_of(model).gradient_checkpointing = True
            if checkpoint.vocabulary is not None and not tokens.compounds:
                model.set_vocabulary(
                    checkpoint.vocabulary, checkpoint.tokenizer, tokens.keep_tokens
                )
            if keep_tokens is None and not tokens.compounds:
                model.presets.restore_training(checkpoint, name)
        return model

    def read(
        self,
        source: str | os.PathLike | Checkpoint,
        initialize_heads: bool,
        ignore: Sequence[str],
    ) -> None:
        """Reads weights into the model; arguments as in `PresetModel.load_preset`."""
        refuse_quantized(self.model)
        with opened_checkpoint(source) as checkpoint:
            checkpoint = with_own_output(checkpoint, self.model.config)
            pairs = self.matched(checkpoint, initialize_heads, ignore)
            # A tensor that is corrupt changes nothing.
            values = [checkpoint.weight(row.name) for _, row in pairs]
        for (variable, row), value in zip(pairs, values, strict=True):
            variable.assign(value.T if row.transposed else value)

    def matched(
        self, checkpoint: Checkpoint, initialize_heads: bool, ignore: Sequence[str]
    ) -> list[tuple[keras.Variable, Weight]]:
        """Pairs of a variable and its row of the weight table."""
        stored_class = stored_name(type(self.model))
        config, stored = self.model.config, checkpoint.config_for(stored_class)
        heads = model_heads(stored_class, config)
        ignore = _with_dropped_layers(ignore, checkpoint, config)
        rows = weights_to_read(checkpoint, config, heads, ignore, initialize_heads)
        own_fields = config.to_dict()
        for field in dataclasses.fields(stored):
            value = getattr(stored, field.name)
            is_compared = field.name in _NOT_IN_SHAPES or (
                field.name in _STATED and value != field.default
            )
            refuse(
                is_compared and own_fields[field.name] != value,
                f"{checkpoint.label} has {field.name}={value!r}, and this model "
                f"{field.name}={own_fields[field.name]!r}: build one by from_preset",
            )
        variables = weights_by_path(self.model)
        return [(variables[row.path], row) for row in rows]

    def rows(self) -> tuple[Weight, ...]:
        """Rows of the weight table, one for each weight that a preset stores."""
        config = self.model.config
        return weight_table(config, model_heads(stored_name(type(self.model)), config))

    def write(
        self,
        folder: str | os.PathLike,
        tokenizer: RoFormerTokenizer | None,
        overwrite: bool,
    ) -> None:
        """Writes a folder; arguments as in `PresetModel.save_to_preset`."""
        model = self.model
        refuse_quantized(model)
        refuse_changed(model)
        for part in (model, backbone_of(model)):
            refuse(
                not is_stored(type(part)),
                "a preset holds classes of this package, and a class of yours may "
                f"compute something else, got {type(part).__name__}",
                hint="write the model by model.save('name.keras'), and read it by "
                "keras.models.load_model with the class in custom_objects",
            )
        # A folder in which only a tokenizer was saved waits for its model.
        waits = not (Path(folder) / "config.json").exists()
        saved = (Path(folder) / "tokenizer.json").is_file()
        vocabulary, fields = None, {}
        if tokenizer is None and not (saved and waits):
            tokenizer = model.tokenizer
        if tokenizer is not None:
            check_instance("tokenizer", tokenizer, RoFormerTokenizer)
            vocabulary, fields = tuple(tokenizer.vocabulary), tokenizer.to_dict()
        elif saved:
            vocabulary, fields = read_tokenizer(folder)
        if vocabulary and len(vocabulary) != model.config.vocabulary_size:
            raise ConfigurationError(
                f"the tokenizer has {len(vocabulary)} tokens but the model "
                f"{model.config.vocabulary_size}"
            )
        rows = self.rows()
        others = weights_by_path(model).keys() - {row.path for row in rows}
        unmapped = sorted(path for path in others if "seed_generator" not in path)
        if unmapped:
            raise ConfigurationError(
                f"a preset has no place for {unmapped[0]} and {len(unmapped) - 1} more "
                "weights: merge LoRA weights into their kernels by model.merge_lora(), "
                "save other layers with model.save(path)"
            )
        checkpoint = self.checkpoint(rows, vocabulary=vocabulary, tokenizer=fields)
        save(checkpoint, folder, "preset", overwrite=overwrite or waits)

    def checkpoint(self, rows: Iterable[Weight], **fields: Any) -> Checkpoint:
        """The weights of some rows of the weight table, as a file would hold them."""
        variables = weights_by_path(self.model)
        return Checkpoint(
            label=self.model.name,
            format="model",
            config=self.model.config,
            tensors={row.name: _tensor(row, variables[row.path]) for row in rows},
            model=stored_name(type(self.model)),
            model_options=self.model.preset_options(),
            **fields,
        )

    # === Files of Keras ===

    def restore_training(self, checkpoint: Checkpoint, name: str | None) -> None:
        """Restores what a `.keras` file stores besides the weights of its model.

        It stores names, which weights are trained, and the optimizer with the other
        settings of `compile`. A model with other weights stays a new one.
        """
        model = self.model
        file = checkpoint.keras_file
        if file is None or checkpoint.model != stored_name(type(model)):
            return
        saved, built = (
            (weight_table(config), model_heads("RoFormerBackbone", config))
            for config in (checkpoint.config, model.config)
        )
        if saved != built:
            return
        with hdf5_errors(checkpoint.label):
            parts = {
                backbone_of(model): file.backbone,
                model: file.serialized["config"],
            }
            for part, fields in parts.items():
                part.name = str(fields.get("name", part.name))
                set_trainable_state(part, fields.get("trainable", True))
            model.name = name or model.name
            _compile(model, file.serialized.get("compile_config"), checkpoint.label)
            quirks.load_state(model, file.weights)

    def tokenizer_fields(self) -> dict[str, Any]:
        """The fields of a configuration that hold the tokenizer."""
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            return {}
        return {
            "vocabulary": list(tokenizer.vocabulary),
            "tokenizer": tokenizer.to_dict(),
        }

    def configuration(self) -> dict[str, Any]:
        """`get_config` of a model on a backbone."""
        model = self.model
        refuse_quantized(model)
        refuse_changed(model)
        backbone = keras.saving.serialize_keras_object(model.backbone)
        if model.tokenizer is not None:
            for name in ("vocabulary", "tokenizer"):
                # Those of this model, below.
                backbone["config"].pop(name, None)
        return {
            "name": model.name,
            "trainable": trainable_state(model),
            "backbone": backbone,
            **model.preset_options(),
            **self.tokenizer_fields(),
        }


def take_tokenizer(config: dict, label: str) -> tuple[Sequence[str], dict] | None:
    """Takes the vocabulary and the fields of a tokenizer out of a configuration."""
    vocabulary, fields = config.pop("vocabulary", None), config.pop("tokenizer", None)
    if vocabulary is None:
        return None
    return vocabulary, checked_tokenizer_fields(fields, label)


def check_options(cls: type, saved: Mapping, label: str) -> None:
    """Raises ConfigurationError unless a class has these saved arguments."""
    others = ("backbone", "tokenizer", "config")
    names = [name for name in argument_names(cls) if name not in others]
    with errors_at(label):
        check_names(cls.__name__, "option", saved, names)


def _with_dropped_layers(
    ignore: str | Sequence[str], checkpoint: Checkpoint, config: Any
) -> list[str]:
    """Patterns to ignore, with the layers that a smaller model does without."""
    patterns = [ignore] if isinstance(ignore, str) else ignore
    # No more than the tensors can have, whatever a configuration says.
    count = min(checkpoint.config.num_layers, len(checkpoint.tensors))
    numbers = range(config.num_layers, count)
    return [*patterns, *(f"bert/encoder/layer_{number}/*" for number in numbers)]


def _tensor(row, variable) -> Tensor:
    def read():
        value = keras.ops.convert_to_numpy(variable)
        return value.T if row.transposed else value

    return Tensor(row.checkpoint_shape, str(variable.dtype), read)


def saved_dtype(checkpoint: Checkpoint) -> Any:
    """The name of the dtype policy that a `.keras` file stores, or None."""
    if checkpoint.keras_file is None:
        return None
    policy = checkpoint.keras_file.backbone.get("dtype")
    with hdf5_errors(checkpoint.label):
        return policy["config"]["name"] if isinstance(policy, dict) else policy


def _compile(model, config, label):
    """Compiles a model as a file says, or warns that it is not compiled."""
    if not config:
        return
    try:
        _check_compiled(config)
        model.compile_from_config(config)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error)
        warnings.warn(
            f"{label}: the model is not compiled, because its settings cannot be read: "
            f"{reason}; register your own classes and functions by "
            "keras.saving.register_keras_serializable, or call compile",
            stacklevel=2,
        )


def _check_compiled(value):
    """Raises ConfigurationError if settings of `compile` name other kinds of class."""
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_compiled(item)
    if isinstance(value, dict) and "class_name" in value:
        kind = keras.saving.get_registered_object(value.get("registered_name"))
        is_known = kind is not None or value.get("module") in _COMPILED_MODULES
        if isinstance(kind, type):
            is_known = issubclass(kind, _COMPILED)
        refuse(
            not is_known,
            "compile takes registered optimizers, schedules, losses and metrics, "
            f"got {value['class_name']!r:.60}",
        )


def take_backbone(cls: type, options: dict[str, Any]) -> Any:
    """Takes the backbone out of a configuration, and builds it."""
    backbone = options.pop("backbone", None)
    if isinstance(backbone, dict):
        backbone = keras.saving.deserialize_keras_object(backbone)
    refuse(
        not isinstance(getattr(backbone, "config", None), RoFormerConfig),
        f"backbone of a {cls.__name__} must be a RoFormerBackbone, got "
        f"{backbone!r:.80}",
    )
    return backbone

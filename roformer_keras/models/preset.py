"""Loading and saving of presets, which every model of this package shares."""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np

from roformer_keras.checks import check_instance, check_names, check_path
from roformer_keras.config import ConfigSource, RoFormerConfig, Seq2SeqConfig
from roformer_keras.conversion.checkpoint import Checkpoint, weights_to_read
from roformer_keras.conversion.convert import save
from roformer_keras.conversion.reader import open_checkpoint, read_tokenizer
from roformer_keras.conversion.tokenizer_files import check_tokenizer
from roformer_keras.conversion.weights import (
    OUTPUT_BIAS,
    WORD_EMBEDDINGS,
    model_heads,
    weight_table,
)
from roformer_keras.errors import ConfigurationError, VocabularyError, errors_at
from roformer_keras.fast_model import FastInference
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.tensor import Tensor
from roformer_keras.models.initializers import weights_to_be_loaded
from roformer_keras.models.kept_tokens import KeptTokens
from roformer_keras.models.lora import PartialTraining, backbone_of
from roformer_keras.models.paths import weights_by_path
from roformer_keras.models.quantization import (
    quantized_layers,
    quiet_quantization,
    restore_quantized,
)
from roformer_keras.processes import refuse_forked_process
from roformer_keras.text.matching import check_vocabulary
from roformer_keras.text.tokenizer import RoFormerTokenizer

# Fields that change the outputs of a model and not the shapes of its weights.
_NOT_IN_SHAPES = ("num_heads", "activation", "position_embedding", "norm_first")
# Those that a source states only where it differs from the default.
_STATED = ("attention", "attention_type", "rotary", "rotary_base", "performer_seed")
# Rows of these are kept and added by `keep_tokens` and `compound_tokens`.
_BY_TOKEN = (WORD_EMBEDDINGS, OUTPUT_BIAS, "token_embedding/embeddings")


def opened_checkpoint(
    source: str | os.PathLike | Checkpoint, config: ConfigSource | None = None
) -> contextlib.AbstractContextManager[Checkpoint]:
    """A context with the checkpoint of a source; one that is open is not opened again.

    Args:
        source, config: as in `PresetModel.from_preset`.
    """
    if isinstance(source, Checkpoint):
        return contextlib.nullcontext(source)
    return open_checkpoint(resolve(source), config)


class PresetModel(FastInference, PartialTraining, keras.Model):
    """A model that is loaded from a checkpoint and saved as a preset folder.

    Subclasses have a `config`, and are built from one by `from_roformer_config`.

    Args:
        args, kwargs: as in `keras.Model`.
    """

    # The tokenizer of the source, or None if it has no vocabulary. Assign one to
    # replace it.
    tokenizer: RoFormerTokenizer | None = None
    # Why that vocabulary gave no tokenizer.
    _tokenizer_error: VocabularyError | None = None

    if TYPE_CHECKING:

        @property
        def config(self) -> RoFormerConfig | Seq2SeqConfig: ...

    def __init__(self, *args: Any, **kwargs: Any):
        refuse_forked_process()
        super().__init__(*args, **kwargs)
        if keras.backend.backend() == "tensorflow":
            # Also for a model that predicts without being compiled; see `compile`.
            self.jit_compile = False

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras. On TensorFlow `jit_compile` is False if not given.

        XLA takes long to compile, for each width of a batch.

        Args:
            args, kwargs: as in `keras.Model.compile`.
        """
        if keras.backend.backend() == "tensorflow":
            kwargs.setdefault("jit_compile", False)
        super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does this itself only if `compile` is not overridden.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Keras; arrays of ids are checked first.

        Args:
            x: dict of arrays `(rows, length)`, or what Keras's `predict` takes.
            args, kwargs: as in `keras.Model.predict`.

        Raises:
            ConfigurationError: there is no row, or an id is not in the vocabulary.
        """
        if isinstance(x, dict):
            check_ids(x, self.config)
        return super().predict(x, *args, **kwargs)

    def quantize(
        self, mode: str | None = None, config: Any = None, **options: Any
    ) -> None:
        """As in Keras, without a warning for each layer that stays float.

        Args:
            mode: `"int8"` or `"int4"`.
            config: `keras.quantizers.QuantizationConfig`, instead of a mode.
            options: `filters`, as in Keras: which layers are quantized.

        Example:
            >>> model = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
            >>> model.quantize("int8")
            >>> model.get_layer("transformer_layer_0").attention.query.dtype_policy.name
            'int8_from_float32'
        """
        with quiet_quantization():
            super().quantize(mode, config=config, **options)

    def export(
        self, filepath: Any, format: str = "tf_saved_model", **kwargs: Any
    ) -> None:
        """As in Keras, also of a model that was not called yet.

        Args:
            filepath, format, kwargs: as in `keras.Model.export`.
        """
        # Rows that some tasks compare come in pairs or in threes.
        self(
            {
                name: keras.ops.zeros([size or 6 for size in x.shape], x.dtype)
                for name, x in self.input.items()
            }
        )
        super().export(filepath, format=format, **kwargs)

    def __setattr__(self, name, value):
        if keras.backend.backend() == "torch" and "_modules" not in vars(self):
            # Layers are set before `super().__init__`, which PyTorch refuses.
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def text_tokenizer(self) -> RoFormerTokenizer:
        """The tokenizer, or an error that says how to give the model one.

        Raises:
            VocabularyError: it has none.
            ConfigurationError: it has one of another vocabulary.
        """
        if self.tokenizer is None:
            error = self._tokenizer_error
            reason = f" ({error})" if error else ""
            raise VocabularyError(
                f"this model has no vocabulary to read and write texts with{reason}: "
                "set model.tokenizer to the RoFormerTokenizer of its vocabulary"
            ) from error
        check_vocabulary(self, self.tokenizer)
        return self.tokenizer

    def _set_tokenizer(self, vocabulary, fields, keep_tokens=None):
        # A vocabulary without a level is enough for users who work with ids.
        try:
            tokenizer = RoFormerTokenizer(
                vocabulary, fields.get("level"), fields.get("lower_case", True)
            )
            smaller = (
                tokenizer if keep_tokens is None else tokenizer.subset(keep_tokens)
            )
            self.tokenizer = smaller
        except VocabularyError as error:
            # Its traceback would keep the checkpoint in memory.
            self._tokenizer_error = error.with_traceback(None)

    def _tokenizer_config(self) -> dict[str, Any]:
        """The fields of a configuration that hold the tokenizer."""
        if self.tokenizer is None:
            return {}
        tokens = list(self.tokenizer.vocabulary)
        return {"vocabulary": tokens, "tokenizer": self.tokenizer.to_dict()}

    @classmethod
    def from_roformer_config(
        cls, config: Any, dtype: Any = None, **options: Any
    ) -> Self:
        """Builds the model with fresh weights."""
        raise NotImplementedError

    @classmethod
    def from_preset(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        config: ConfigSource | None = None,
        keep_tokens: Sequence[int] | None = None,
        compound_tokens: Sequence | None = None,
        initialize_heads: bool = False,
        ignore: Sequence[str] = (),
        dtype: Any = None,
        gradient_checkpointing: bool = False,
        **changes: Any,
    ) -> Self:
        """Builds the model with the weights of a checkpoint; strictly.

        Args:
            source: a zip, folder or checkpoint prefix as released; HDF5 weights, whole
                models or object checkpoints that bert4keras's users saved; `.keras`,
                `.weights.h5`, safetensors; a preset folder; a folder of Hugging Face,
                or `hf://owner/name`; the name of a downloaded checkpoint of the
                catalogue; or an open `Checkpoint`.
            config: for sources without a configuration, or instead of theirs: the
                path or content of a `bert_config.json`; or a `RoFormerConfig`, which
                is used as it is, attention and pooler included.
            keep_tokens: ids to keep of the vocabulary, in their new order.
            compound_tokens: new tokens after them, each the mean of rows of the kept
                table: a list of ids, or a pair (ids, weights).
            initialize_heads: bool. Whether a head that the source lacks gets new
                weights instead of being an error.
            ignore: patterns of unexpected tensors to pass over, such as `"dense_*"`.
            dtype: Keras dtype policy.
            gradient_checkpointing: bool. See `RoFormerBackbone`.
            changes: configuration fields to set, such as `layer_norm_epsilon=1e-7`,
                `dropout=0.2`, `pooler_activation="tanh"`; and `output_activation` of
                a model with an MLM head. With a smaller `num_layers` the first layers
                are read.

        Returns:
            The model, its weights those of the source bit for bit if it is float32,
            with the source's tokenizer unless there are compound tokens.

        Raises:
            CheckpointError: a tensor is missing, unexpected, mis-shaped or corrupt.
            ConfigurationError: a configuration is missing or breaks a rule.
            SourceError: there is no such source, or it cannot be used.
            VocabularyError: vocabulary and embedding do not go together.

        Example:
            >>> model = roformer_keras.RoFormerBackbone.from_preset(
            ...     "roformer-char", num_layers=2, dropout=0.2
            ... )
            >>> model.config.num_layers, model.config.hidden_dim
            (2, 192)
        """
        options = {}
        arguments = inspect.signature(cls.__init__).parameters
        if "output_activation" in changes.keys() & arguments.keys():
            options["output_activation"] = changes.pop("output_activation")
        with opened_checkpoint(source, config) as checkpoint:
            if checkpoint.model == cls.__name__:
                check_options(cls, checkpoint.model_options, checkpoint.label)
                options = {**checkpoint.model_options, **options}
            if isinstance(config, RoFormerConfig):
                stored = checkpoint.config.replace(**changes)
            else:
                stored = checkpoint.config_for(cls.__name__, **changes)
            heads = model_heads(cls.__name__, stored)
            if "num_layers" in changes:
                ignore = _with_dropped_layers(ignore, checkpoint, stored)
            rows = weights_to_read(checkpoint, stored, heads, ignore, initialize_heads)
            kept_tokens = KeptTokens(
                stored.vocabulary_size, keep_tokens, compound_tokens
            )
            model_config = stored.replace(vocabulary_size=kept_tokens.count)
            complete = len(rows) == len(weight_table(stored, heads))
            with weights_to_be_loaded() if complete else contextlib.nullcontext():
                model = cls.from_roformer_config(model_config, dtype, **options)
            _assign(model, checkpoint, rows, kept_tokens)
            is_whole = keep_tokens is None and not kept_tokens.compounds
            restore_quantized(model, checkpoint.quantized, by_row=is_whole)
            if gradient_checkpointing:
                backbone_of(model).gradient_checkpointing = True
            if checkpoint.vocabulary is not None and not kept_tokens.compounds:
                model._set_tokenizer(
                    checkpoint.vocabulary, checkpoint.tokenizer, kept_tokens.keep_tokens
                )
        return model

    def load_preset(
        self,
        source: str | os.PathLike | Checkpoint,
        *,
        initialize_heads: bool = False,
        ignore: Sequence[str] = (),
    ) -> None:
        """Reads the weights of a checkpoint into this model: all of them, or none.

        Everything else stays: configuration, dtype, tokenizer and optimizer. A model
        with fewer layers than the checkpoint reads the first ones. A task reads its
        backbone, and its head if the source holds the same task.

        Args:
            source: as in `from_preset`.
            initialize_heads: bool. Whether a head that the source lacks keeps its
                weights instead of being an error.
            ignore: patterns of unexpected tensors to pass over, such as `"dense_*"`.

        Raises:
            CheckpointError: a tensor is missing, unexpected, mis-shaped or corrupt.
            ConfigurationError: the source has other heads of attention, another
                activation, attention pattern, rotation or other labels; or this model
                is quantized.
            SourceError: there is no such source, or it cannot be used.

        Example:
            >>> model = roformer_keras.load_model("roformer-char", num_layers=2)
            >>> model.load_preset("roformer-char")  # the first two layers again
        """
        if quantized_layers(self):
            raise ConfigurationError(
                "weights are read into floats, and this model is quantized: load the "
                f"source by {type(self).__name__}.from_preset"
            )
        with opened_checkpoint(source) as checkpoint:
            pairs = self._matched(checkpoint, initialize_heads, ignore)
            # A tensor that is corrupt changes nothing.
            values = [checkpoint.weight(row.name) for _, row in pairs]
        for (variable, row), value in zip(pairs, values, strict=True):
            variable.assign(value.T if row.transposed else value)

    def _matched(self, checkpoint, initialize_heads, ignore):
        """Pairs of a variable and its row of the weight table."""
        config, stored = self.config, checkpoint.config_for(type(self).__name__)
        heads = model_heads(type(self).__name__, config)
        ignore = _with_dropped_layers(ignore, checkpoint, config)
        rows = weights_to_read(checkpoint, config, heads, ignore, initialize_heads)
        own_fields = config.to_dict()
        for field in dataclasses.fields(stored):
            value = getattr(stored, field.name)
            is_compared = field.name in _NOT_IN_SHAPES or (
                field.name in _STATED and value != field.default
            )
            if is_compared and own_fields[field.name] != value:
                raise ConfigurationError(
                    f"{checkpoint.label} has {field.name}={value!r}, and this model "
                    f"{field.name}={own_fields[field.name]!r}: build one by from_preset"
                )
        variables = weights_by_path(self)
        return [(variables[row.path], row) for row in rows]

    def save_to_preset(
        self,
        folder: str | os.PathLike,
        tokenizer: RoFormerTokenizer | None = None,
        overwrite: bool = False,
    ) -> None:
        """Writes a preset folder in Keras-Hub's layout, whole or not at all.

        Args:
            folder: path of the folder.
            tokenizer: `RoFormerTokenizer` to save with the model; if not given, the
                model's own, or that of the folder where only a tokenizer was saved.
            overwrite: bool. Whether an existing preset is replaced.

        Raises:
            OutputError: the folder exists or cannot be written.
            ConfigurationError: the tokenizer is of another size than the model, or a
                weight has no place in a preset, such as those of LoRA.

        Example:
            >>> model = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
            >>> model.save_to_preset("encoder-preset")
            >>> model = roformer_keras.RoFormerBackbone.from_preset("encoder-preset")
        """
        check_path("folder", folder)
        # A folder in which only a tokenizer was saved waits for its model.
        waits = not (Path(folder) / "config.json").exists()
        saved = (Path(folder) / "tokenizer.json").is_file()
        vocabulary, fields = None, {}
        if tokenizer is None and not (saved and waits):
            tokenizer = self.tokenizer
        if tokenizer is not None:
            check_instance("tokenizer", tokenizer, RoFormerTokenizer)
            vocabulary, fields = tuple(tokenizer.vocabulary), tokenizer.to_dict()
        elif saved:
            vocabulary, fields = read_tokenizer(folder)
        if vocabulary and len(vocabulary) != self.config.vocabulary_size:
            raise ConfigurationError(
                f"the tokenizer has {len(vocabulary)} tokens but the model "
                f"{self.config.vocabulary_size}"
            )
        overwrite = overwrite or waits
        rows = self._weight_rows()
        added = {
            f"{path}/{name}"
            for path, layer in quantized_layers(self).items()
            for name in layer.added
        }
        others = weights_by_path(self).keys() - {row.path for row in rows} - added
        unmapped = sorted(path for path in others if "seed_generator" not in path)
        if unmapped:
            raise ConfigurationError(
                f"a preset has no place for {unmapped[0]} and {len(unmapped) - 1} more "
                "weights: merge LoRA weights into their kernels by model.merge_lora(), "
                "save other layers with model.save(path)"
            )
        checkpoint = self._checkpoint(rows, vocabulary=vocabulary, tokenizer=fields)
        save(checkpoint, folder, "preset", overwrite=overwrite)

    def _checkpoint(self, rows, **fields) -> Checkpoint:
        """The weights of some rows of the weight table, as a file would hold them."""
        variables, quantized = weights_by_path(self), quantized_layers(self)
        return Checkpoint(
            label=self.name,
            format="model",
            config=self.config,
            tensors={
                row.name: _tensor(row, variables[row.path], quantized) for row in rows
            },
            quantized=quantized,
            model=type(self).__name__,
            model_options=self.preset_options(),
            **fields,
        )

    def check_saved_options(self, saved: Mapping, label: str) -> None:
        """Raises ConfigurationError if a head was saved with other arguments."""

    def preset_options(self) -> dict:
        """Arguments of the constructor besides backbone and tokenizer; plain types."""
        return {}

    def _weight_rows(self):
        """Rows of the weight table, one for each weight that a preset stores."""
        return weight_table(self.config, model_heads(type(self).__name__, self.config))


def take_tokenizer(config: dict, label: str) -> tuple[Sequence[str], dict] | None:
    """Takes the vocabulary and the fields of a tokenizer out of a configuration."""
    vocabulary, fields = config.pop("vocabulary", None), config.pop("tokenizer", None)
    if vocabulary is None:
        return None
    return vocabulary, check_tokenizer(fields, label)


def check_options(cls: type, saved: Mapping, label: str) -> None:
    """Raises ConfigurationError unless a class has these saved arguments."""
    names = [
        name
        for name, one in inspect.signature(cls).parameters.items()
        if name not in ("self", "backbone", "tokenizer", "config")
        and one.kind is not one.VAR_KEYWORD
    ]
    with errors_at(label):
        check_names(cls.__name__, "option", saved, names)


def check_ids(inputs: dict, config: RoFormerConfig | Seq2SeqConfig) -> None:
    """Raises ConfigurationError unless NumPy arrays hold ids that a model has."""
    segments = getattr(config, "num_segments", 0)
    if getattr(config, "shared_segment_embeddings", False):
        segments = config.vocabulary_size
    for name, array in inputs.items():
        is_ids = name.endswith(("token_ids", "segment_ids"))
        if not is_ids or not isinstance(array, np.ndarray):
            continue
        if not len(array):
            raise ConfigurationError(f"{name} must have at least one row, got none")
        is_segment = name.endswith("segment_ids")
        highest = (segments if is_segment else config.vocabulary_size) - 1
        is_wrong = (array < 0) | (array > highest) | (array != np.floor(array))
        if is_wrong.any():
            raise ConfigurationError(
                f"{name} must be integers from 0 to {highest}, got {array[is_wrong][0]}"
            )


def _with_dropped_layers(ignore, checkpoint, config):
    """Patterns to ignore, with the layers that a smaller model does without."""
    patterns = [ignore] if isinstance(ignore, str) else ignore
    # No more than the tensors can have, whatever a configuration says.
    count = min(checkpoint.config.num_layers, len(checkpoint.tensors))
    numbers = range(config.num_layers, count)
    return [*patterns, *(f"bert/encoder/layer_{number}/*" for number in numbers)]


def _tensor(row, variable, quantized) -> Tensor:
    path, _, name = row.path.rpartition("/")
    if path in quantized and name == quantized[path].weight_name:
        return quantized[path].weight(row.path, row.shape)

    def read():
        value = keras.ops.convert_to_numpy(variable)
        return value.T if row.transposed else value

    return Tensor(row.checkpoint_shape, str(variable.dtype), read)


def _assign(model, checkpoint, rows, kept):
    variables = weights_by_path(model)
    for row in rows:
        value = checkpoint.weight(row.name)
        if row.name in _BY_TOKEN:
            value = kept.rows_of(value)
        variables[row.path].assign(value.T if row.transposed else value)

"""The base of every model of this package: presets in and out, and `fit` on texts."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import keras
import numpy as np

from roformer_keras.base.checks import check_path
from roformer_keras.base.config import ConfigSource, RoFormerConfig
from roformer_keras.base.errors import ConfigurationError, VocabularyError
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.base.processes import refuse_forked_process
from roformer_keras.base.types import Texts
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.inference.fast_model import FastModel, MadeLayers, remember_layers
from roformer_keras.models import lora
from roformer_keras.models.loop_arguments import checks_arguments
from roformer_keras.models.preset_files import (
    Presets,
    check_options,
    take_backbone,
    take_tokenizer,
)
from roformer_keras.models.text_data import TextData
from roformer_keras.models.training_loop import Trainer
from roformer_keras.models.weight_paths import is_stored
from roformer_keras.text.matching import check_ids, check_vocabulary
from roformer_keras.text.tokenizer import RoFormerTokenizer


class PresetModel(FastModel):
    """A model that is loaded from a checkpoint, saved as a preset folder, and fitted.

    Subclasses have a `config`. Those that checkpoints hold are built from one by
    `from_roformer_config`, tasks on a backbone. Those that learn from labels define
    `labelled(x, y, sample_weight, class_weight)`, which returns `TextData`; language
    models have another `trainer_class`. Both define `default_optimizer()`,
    `default_loss()` and `default_metrics()`. All but the encoder stand on a `backbone`,
    with its configuration and dtype policy.

    Args:
        args, kwargs: as in `keras.Model`.
    """

    # The tokenizer of the source, or None if it has no vocabulary. Assign one to
    # replace it.
    tokenizer: RoFormerTokenizer | None = None
    # Why that vocabulary gave no tokenizer.
    _tokenizer_error: VocabularyError | None = None
    backbone: "PresetModel"
    default_batch_size = 32
    labelled: Callable[..., TextData]
    trainer_class: type[Trainer] = Trainer
    # Keyword arguments of `fit` and `evaluate` that `labelled` takes.
    row_options: tuple[str, ...] = ()
    # Columns of the texts that `fit` has read.
    trained_columns: tuple = ()

    freeze = lora.freeze
    unfreeze = lora.unfreeze
    enable_lora = lora.enable_lora
    merge_lora = lora.merge_lora
    save_lora = lora.save_lora
    load_lora = lora.load_lora

    def __init__(self, *args: Any, **kwargs: Any):
        refuse_forked_process()
        super().__init__(*args, **kwargs)
        if is_stored(type(self)):
            # The constructor of a subclass may still change them.
            self._made_layers = MadeLayers(self)
        if keras.backend.backend() == "tensorflow":
            # A model can predict before `compile`, which sets it too.
            self.jit_compile = False

    @checks_arguments
    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts as Keras does; arrays of ids are checked first.

        Args:
            x: dict of arrays `(rows, length)`, or what Keras's `predict` takes.
            args, kwargs: as in `keras.Model.predict`.

        Raises:
            ConfigurationError: there is no row, or an id is not in the vocabulary.
        """
        if isinstance(x, dict):
            check_ids(x, self.config)
        return super().predict(x, *args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: presets and engines hold floats.

        Raises:
            ConfigurationError: always; says what to do instead.
        """
        raise ConfigurationError(explain_withdrawn("quantize"))

    def export(
        self, filepath: Any, format: str = "tf_saved_model", **kwargs: Any
    ) -> None:
        """Exports as Keras does; the model need not have been called.

        Args:
            filepath, format, kwargs: as in `keras.Model.export`.
        """
        # Rows that some tasks compare come in pairs or in threes.
        shapes = {k: [size or 6 for size in x.shape] for k, x in self.input.items()}
        self({k: keras.ops.zeros(shapes[k], x.dtype) for k, x in self.input.items()})
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

    def set_vocabulary(
        self,
        vocabulary: Sequence[str],
        fields: Mapping[str, Any],
        keep_tokens: Sequence[int] | None = None,
    ) -> None:
        """Makes the tokenizer of a vocabulary, if its tokens make one.

        Args:
            vocabulary: the tokens, in the order of their ids.
            fields: `level` and `lower_case` of `RoFormerTokenizer`.
            keep_tokens: ids of the tokens that the model keeps; all if not given.
        """
        # A vocabulary without a level is enough for users who work with ids.
        try:
            tokenizer = RoFormerTokenizer(
                vocabulary, fields.get("level"), fields.get("lower_case", True)
            )
            self.tokenizer = (
                tokenizer if keep_tokens is None else tokenizer.subset(keep_tokens)
            )
        except VocabularyError as error:
            # Its traceback would keep the checkpoint in memory.
            self._tokenizer_error = error.with_traceback(None)

    @property
    def presets(self) -> Presets:
        """Reads and writes the weights and the configuration of this model."""
        return Presets(self)

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
        name: str | None = None,
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
            dtype: Keras dtype policy; that of a `.keras` file, or the global one.
            gradient_checkpointing: bool. See `RoFormerBackbone`.
            name: str. Name of the model; that of a `.keras` file, or a new one.
            changes: configuration fields to set, such as `layer_norm_epsilon=1e-7`,
                `dropout=0.2`, `pooler_activation="tanh"`; and `output_activation` of
                a model with an MLM head, `max_length` of a `RoFormerSim`. With a
                smaller `num_layers` the first layers are read.

        Returns:
            The model, its weights those of the source bit for bit if it is float32,
            with the source's tokenizer unless there are compound tokens. A `.keras`
            file of this class is also frozen and compiled as it was saved, with the
            state of the optimizer, unless arguments change its weights.

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
        return Presets.load(
            cls,
            source,
            config=config,
            keep_tokens=keep_tokens,
            compound_tokens=compound_tokens,
            initialize_heads=initialize_heads,
            ignore=ignore,
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            name=name,
            changes=changes,
        )

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
            ConfigurationError: the source has other heads of attention, activation,
                attention pattern, rotation or labels.
            SourceError: there is no such source, or it cannot be used.

        Example:
            >>> model = roformer_keras.load_model("roformer-char", num_layers=2)
            >>> model.load_preset("roformer-char")  # the first two layers again
        """
        self.presets.read(source, initialize_heads, ignore)

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
        self.presets.write(folder, tokenizer, overwrite)

    def check_saved_options(self, saved: Mapping, label: str) -> None:
        """Raises ConfigurationError if a head was saved with other arguments."""

    def preset_options(self) -> dict:
        """Arguments of the constructor besides backbone and tokenizer; plain types."""
        return {}

    # === Training ===

    @property
    def row_copies(self) -> int:
        """Number of times that each row comes in a batch of `fit`."""
        return 1

    def default_optimizer(self) -> Any:
        return "rmsprop"

    def default_loss(self) -> Any:
        return None

    def default_metrics(self) -> Any:
        return None

    @checks_arguments
    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Compiles as Keras does, with defaults for optimizer, loss and metrics.

        On TensorFlow `jit_compile` is False if not given: XLA takes long to compile,
        for each width of a batch.

        Args:
            optimizer, loss, metrics: as in Keras; the model's own if not given.
            kwargs: as in `keras.Model.compile`.
        """
        if keras.backend.backend() == "tensorflow":
            kwargs.setdefault("jit_compile", False)
        super().compile(
            optimizer=self.default_optimizer() if optimizer is None else optimizer,
            loss=self.default_loss() if loss is None else loss,
            metrics=self.default_metrics() if metrics is None else metrics,
            **kwargs,
        )

    def get_compile_config(self) -> dict[str, Any] | None:
        config = super().get_compile_config()
        if config and inspect.ismethod(self.loss) and self.loss == self.default_loss():
            # A method of a layer is not saved: `compile` finds it again.
            config["loss"] = None
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does this itself only if `compile` is not overridden.
        self.compile(**keras.saving.deserialize_keras_object(dict(config)))
        self.optimizer.build(self.trainable_variables)

    @checks_arguments
    def fit(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_batch_size: int | None = None,
        shuffle: bool = True,
        class_weight: Mapping | None = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        callbacks: Any = None,
        seed: int = 0,
        initial_epoch: int = 0,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains on texts or ids; a model that is not compiled is compiled by default.

        Language models learn texts by their objective, as `pretrain` does, which is for
        corpora: it resumes, logs and needs little memory. The loss and the metrics are
        then the objective's.

        Args:
            x: texts in any container that `labelled` takes; a table of texts and their
                labels; a finite `tf.data.Dataset` of texts and labels; a generator or a
                `PyDataset` of batches of texts and labels; or what Keras's own `fit`
                takes, with dicts of ids. Of language models texts without labels; for
                RoFormer-Sim pairs of texts with one meaning, or their first texts.
            y: labels of the rows of `x`, or the texts to write, or the second texts of
                pairs.
            batch_size: int. Rows of a batch; the class's own number if not given. A
                pair of RoFormer-Sim is two rows.
            validation_data: pair of texts and labels, or triple with weights; or a
                dataset like `x`; of language models texts, or a tuple for `x` and `y`.
            validation_split: float in [0, 1). Share of the rows, drawn by the seed, for
                validation instead of training, where class_weight does not count.
            validation_batch_size: int. That of training if not given.
            shuffle: bool. Whether each epoch has its own order.
            class_weight: dict of label, by name or number, to weight.
            sample_weight: float `(rows,)`; not with datasets and generators, whose
                triples have weights.
            callbacks: as in Keras; they see this model.
            seed: int. Determines the order, and what a language model hides.
            initial_epoch, kwargs: as in `keras.Model.fit`; `fields` of a task, the
                columns of texts and label in a table (`text` or `first`, `second`, and
                `label` if not given); `max_length` of a language model (128); `options`
                of a language model, a dict of options of its objective, such as
                `{"whole_word": True}`.

        Raises:
            ConfigurationError: texts, labels or an option break a rule; names the row.
            VocabularyError: the model has no tokenizer.
        """
        return self.trainer_class(self, kwargs, class_weight).fit(
            x,
            y,
            sample_weight,
            batch_size or self.default_batch_size,
            validation_data=validation_data,
            validation_split=validation_split,
            validation_batch_size=validation_batch_size,
            shuffle=shuffle,
            seed=seed,
            callbacks=callbacks,
            initial_epoch=initial_epoch,
            **kwargs,
        )

    @checks_arguments
    def evaluate(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        **kwargs: Any,
    ) -> float | list[float] | dict[str, float]:
        """Computes the loss and the metrics of texts or ids; see `fit`.

        A language model hides the same tokens each time.

        Args:
            x, y, batch_size, sample_weight: as in `fit`.
            kwargs: as in `keras.Model.evaluate`, with those of `fit` for rows.
        """
        return self.trainer_class(self, kwargs).evaluate(
            x, y, sample_weight, batch_size or self.default_batch_size, **kwargs
        )

    @checks_arguments
    def train_on_batch(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Any = None,
        class_weight: Mapping | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains on one batch of texts or ids; compiles as `fit` does.

        Args:
            x, y: texts and labels as in `fit`; or dicts of ids, and targets.
            sample_weight: float `(rows,)`.
            class_weight: dict of label to weight.
            kwargs: as in `keras.Model.train_on_batch`, with those of `fit` for rows.
        """
        return self.trainer_class(self, kwargs, class_weight).train_on_batch(
            x, y, sample_weight, **kwargs
        )

    @checks_arguments
    def test_on_batch(
        self, x: Texts, y: Texts = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Computes loss and metrics of one batch; compiles as `fit` does.

        Args:
            x, y: texts and labels as in `fit`; or dicts of ids, and targets.
            sample_weight: float `(rows,)`.
            kwargs: as in `keras.Model.test_on_batch`, with those of `fit` for rows.
        """
        return self.trainer_class(self, kwargs).test_on_batch(
            x, y, sample_weight, **kwargs
        )

    def class_weights(self, class_weight: Mapping) -> np.ndarray:
        """The weight of each class, 1 if none is given: float32 `(num_classes,)`.

        Args:
            class_weight: dict of a class, by name or number, to its weight.

        Raises:
            ConfigurationError: rows of this model have no class, or a key is none.
        """
        raise ConfigurationError(
            f"{type(self).__name__} has no classes of rows: give sample_weight instead "
            "of class_weight"
        )

    # === On a backbone ===

    @property
    def config(self) -> RoFormerConfig:
        return self.backbone.config

    def get_config(self) -> dict[str, Any]:
        return self.presets.configuration()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        options = dict(config)
        return cls._restored(options, take_backbone(cls, options))

    @classmethod
    def _restored(cls, options: dict[str, Any], *arguments: Any) -> Self:
        """The model of a configuration, frozen if it was."""
        trainable = options.pop("trainable", True)
        tokenizer = take_tokenizer(options, cls.__name__)
        saved = {name: options[name] for name in options.keys() - {"name", "dtype"}}
        check_options(cls, saved, "the configuration of the model")
        model = cls(*arguments, **options)
        remember_layers(model)
        if tokenizer:
            model.set_vocabulary(*tokenizer)
        if model.backbone.tokenizer is None:
            model.backbone.tokenizer = model.tokenizer
        lora.set_trainable_state(model, trainable)
        return model

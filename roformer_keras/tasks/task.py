"""The base of models that are fine-tuned: texts in, answers out."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, overload

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_integer, check_number
from roformer_keras.base.config import ConfigSource
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Engine, TensorLike, Texts, Verbose
from roformer_keras.conversion.checkpoint import Checkpoint
from roformer_keras.data.datasets import is_ready, texts_of
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.loop_arguments import checks_arguments
from roformer_keras.models.preset import PresetModel
from roformer_keras.models.preset_files import take_backbone, take_tokenizer
from roformer_keras.models.text_data import TextData, TextTrainer
from roformer_keras.models.weight_paths import argument_names
from roformer_keras.optimizers import finetuning_rate, make_optimizer
from roformer_keras.tables.files import text_names
from roformer_keras.tables.memory import (
    TextRows,
    column_names,
    is_table,
    plain_labels,
    split_labels,
    text_columns,
)
from roformer_keras.tables.tagged import row_tokens, token_tags
from roformer_keras.tables.texts import (
    SizedRows,
    as_texts,
    check_list,
    checked_rows,
    raw_rows,
)
from roformer_keras.tasks import adversarial
from roformer_keras.tasks.answering import one_or_many
from roformer_keras.tasks.keras_measures import (
    adapt_measures,
    explained,
    named_metrics,
)
from roformer_keras.tasks.labels import table_labels
from roformer_keras.tasks.saved_task import TaskPresets, TaskSettings, plain
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.text.matching import check_inputs
from roformer_keras.text.rows import (
    TOKENS_PER_BATCH,
    GroupRows,
    Rows,
    as_weights,
    map_rows,
)
from roformer_keras.text.tokenizer import RoFormerTokenizer

# Tokens of a row: attention of so many needs more memory than there is.
MAX_LENGTH = 2**20


class TextTask(PresetModel):
    """A backbone and a head, which takes texts where a Keras model takes arrays.

    Subclasses define:

    - `text_counts`: how many texts a row may have; and `has_choices`, if the last of
      them is a list of choices.
    - `make_targets(y, rows)`: targets of all rows, checked.
    - `batch_targets(targets, numbers, inputs)`: targets of a batch, unless they are
      rows of an array.
    - `default_loss()`, `default_metrics()`, if they are not those of classes.
    - one verb for answers: `classify`, `regress`, `rank`, `encode`, `extract`,
      `answer` or `choose`.
    - `files_class`: `TaskFiles` of the task, for `finetune`, `evaluate` and `predict`.

    Args:
        backbone: `RoFormerBackbone` with bidirectional attention, which takes the ids
            of texts alone: no `custom_position_ids`, no `layer_norm_cond_size`.
        tokenizer: `RoFormerTokenizer` of its vocabulary.
        outputs: of the head.
        max_length: int, at least 4. Tokens to which longer rows are cut.
        inputs: dict of the model's symbolic inputs; the backbone's if not given.
        kwargs: as in `keras.Model`, such as `name`.
    """

    backbone: RoFormerBackbone
    tokenizer: RoFormerTokenizer
    text_counts: tuple[int, ...] = (1, 2)
    has_choices = False
    # Whether a text may be a list of tokens.
    has_tokens = False
    # Whether a row may have no label.
    or_none = False
    trainer_class = TextTrainer
    row_options = ("fields",)
    files_class: type[TaskFiles]

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        outputs: TensorLike,
        max_length: int,
        inputs: dict | None = None,
        **kwargs: Any,
    ):
        check_integer("max_length", max_length, minimum=4, maximum=MAX_LENGTH)
        check_inputs(backbone)
        inputs = backbone.input if inputs is None else inputs
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone
        self.tokenizer, self.max_length = tokenizer, max_length
        self.adversarial_epsilon = self.r_drop = 0.0

    # === Training ===

    @checks_arguments
    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        *,
        adversarial_epsilon: float = 0.0,
        r_drop: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Compiles as Keras does, with defaults for optimizer, loss and metrics.

        Args:
            optimizer, loss, metrics: as in Keras; if not given those of the task, with
                AdamW at a rate that fits the width of the model, see `finetuning_rate`.
            adversarial_epsilon: float, 0 for none. Length of the step by which the
                token embeddings are moved against the loss before each update (FGM).
            r_drop: float, 0 for none. Weight of the divergence between two passes of
                the same rows under different dropout; rows are computed twice.
            kwargs: as in `PresetModel.compile`.

        Raises:
            ConfigurationError: an argument breaks its rule, or the loss expects
                probabilities.

        Example:
            >>> model = roformer_keras.RoFormerTextClassifier.from_preset(
            ...     "roformer-char", num_classes=2
            ... )
            >>> model.compile(optimizers.make_optimizer(1e-4), r_drop=1.0)
        """
        self._check_loss(loss)
        check_number("adversarial_epsilon", adversarial_epsilon, minimum=0)
        check_number("r_drop", r_drop, minimum=0)
        measures = {"loss": loss, "metrics": metrics, **kwargs}
        self.adversarial_epsilon, self.r_drop = adversarial_epsilon, r_drop
        if self.probabilities is not None:
            for name in {"metrics", "weighted_metrics"} & measures.keys():
                measures[name] = named_metrics(measures[name])
                adapt_measures(measures[name], self.probabilities)
            adapt_measures(loss, self.probabilities)
        super().compile(optimizer, **measures)

    @property
    def probabilities(self) -> Callable | None:
        """Function from logits to probabilities of classes, if labels are classes."""
        return None

    def default_loss(self) -> keras.losses.Loss | Callable:
        """The loss of classes, whose outputs are logits."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """The share of right classes."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        return make_optimizer(finetuning_rate(self.config.hidden_dim))

    @property
    def row_copies(self) -> int:
        return 2 if self.r_drop else 1

    def _check_loss(self, loss):
        """Refuses a loss that expects probabilities: outputs are logits."""
        is_name = isinstance(loss, str) and "crossentropy" in loss
        if is_name or getattr(loss, "from_logits", True) is False:
            name = loss if is_name else type(loss).__name__
            raise ConfigurationError(
                f"the outputs of {type(self).__name__} are logits, and the loss {name} "
                "expects probabilities: leave loss out, or give it as "
                "keras.losses....(from_logits=True)"
            )

    def get_compile_config(self) -> dict[str, Any] | None:
        config = super().get_compile_config()
        aids = {"adversarial_epsilon": self.adversarial_epsilon, "r_drop": self.r_drop}
        used = {name: value for name, value in aids.items() if value}
        return TaskSettings({**config, **used}) if config and used else config

    def train_step(self, *arguments: Any) -> Any:
        if not self.adversarial_epsilon:
            return super().train_step(*arguments)
        return adversarial.train_step(
            self,
            super().train_step,
            self.backbone.token_embedding.embeddings,
            self.adversarial_epsilon,
            *arguments,
        )

    def compute_loss(
        self,
        x: TensorLike = None,
        y: TensorLike = None,
        y_pred: TensorLike = None,
        sample_weight: TensorLike = None,
        training: bool = True,
    ) -> TensorLike:
        with explained(self, y, y_pred):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training and self.r_drop:
            divergence = self.divergence(y_pred[::2], y_pred[1::2])
            if sample_weight is not None:
                # A row and its copy have one weight.
                weights = ops.reshape(sample_weight, (-1,))[::2]
                divergence = ops.cast(weights, divergence.dtype) * divergence
            loss += self.r_drop * ops.mean(divergence)
        return loss

    def compute_metrics(
        self,
        x: TensorLike,
        y: TensorLike,
        y_pred: TensorLike,
        sample_weight: TensorLike = None,
    ) -> dict[str, Any]:
        with explained(self, y, y_pred):
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def divergence(self, first: TensorLike, second: TensorLike) -> TensorLike:
        """Divergence of two passes of the same rows: `(rows,)`."""
        raise ConfigurationError(f"{type(self).__name__} has no r_drop; set it to 0")

    # === Coming from and going to files ===

    @classmethod
    def from_preset(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        config: ConfigSource | None = None,
        max_length: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Builds the task on the backbone of a checkpoint, or loads a saved task.

        Args:
            source: as in `RoFormerBackbone.from_preset`; the head has new weights then.
                Or what `save_to_preset` or `save` of this class wrote.
            config: as in `RoFormerBackbone.from_preset`.
            max_length: int. Tokens to which longer rows are cut; as saved, or the
                default of the class, if not given.
            name: str. As in `RoFormerBackbone.from_preset`.
            options: arguments of this class, and those of
                `RoFormerBackbone.from_preset`, such as `dropout=0.2` and `dtype`. A
                causal source needs `attention`: `"bidirectional"` to read texts in both
                directions, as tasks do, or `"causal"`. A saved head keeps the names of
                its outputs in their order.

        Raises:
            ConfigurationError: the folder holds another task, or an argument breaks its
                rule.
            RoFormerError: as in `RoFormerBackbone.from_preset`.
        """
        return TaskPresets.load_task(cls, source, config, max_length, name, options)

    @property
    def presets(self) -> TaskPresets:
        """Reads and writes the backbone and the head of this task."""
        return TaskPresets(self)

    def check_saved_options(self, saved: Mapping, label: str) -> None:
        """Raises ConfigurationError if a head was saved with other arguments."""
        for name, own in self.preset_options().items():
            # Lengths are cut as this model cuts them; a file has lists of tuples.
            stored = saved.get(name, own)
            refuse(
                name != "max_length" and plain(own) != plain(stored),
                f"{label} was saved with {name}={stored!r}, and this model has "
                f"{name}={own!r}: load it by from_preset",
            )

    def save_assets(self, folder: str) -> None:
        """Writes the head into a `.keras` file, as Keras asks."""
        self.presets.save_head(folder)

    def preset_options(self) -> dict[str, Any]:
        # An argument of the constructor is an attribute of the same name.
        return {
            name: getattr(self, name)
            for name in argument_names(type(self))
            if name not in ("backbone", "tokenizer")
        }

    @classmethod
    def output_names(cls, options: Mapping) -> Any:
        """The names in arguments of the class, in the order of the head's weights."""
        return options.get("classes", options.get("labels"))

    def head_variables(self) -> list[keras.Variable]:
        """Weights that are not the backbone's."""
        return list(self.presets.head_weights().values())

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        options = dict(config)
        backbone = take_backbone(cls, options)
        vocabulary, fields = take_tokenizer(options, cls.__name__) or ((), {})
        tokenizer = RoFormerTokenizer(vocabulary, **fields)
        return cls._restored(options, backbone, tokenizer)

    @property
    def files(self) -> TaskFiles:
        """The reader of labels and the writer of reports of this task."""
        return self.files_class(self)

    # === Predicting ===

    @overload
    def predict(
        self,
        x: Iterator,
        batch_size: int | None = None,
        *,
        batch_tokens: int = TOKENS_PER_BATCH,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Iterator[np.ndarray]: ...

    @overload
    def predict(
        self,
        x: Texts,
        batch_size: int | None = None,
        *,
        batch_tokens: int = TOKENS_PER_BATCH,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any: ...

    @one_or_many
    @checks_arguments
    def predict(
        self,
        x: Texts,
        batch_size: int | None = None,
        *,
        batch_tokens: int = TOKENS_PER_BATCH,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Results of `call` for texts, in their order.

        Texts are computed in batches of similar length, while the next are tokenized.

        Args:
            x: texts as in `as_texts`, which may be empty, or one str; a finite
                `tf.data.Dataset` or a `PyDataset` of them, with or without labels; an
                iterator of rows, which need not fit into memory: 2,048 are read from it
                at a time; or what Keras's own `predict` takes, with dicts of ids.
            batch_size: int. Maximum rows of a batch; any number that
                `batch_tokens` has room for if not given.
            batch_tokens: int. Maximum tokens, padding included, that are computed
                together; a longer row is computed alone.
            verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal if
                it takes more than a second.
            engine: what computes texts; `model.engine` if not given.
            steps, callbacks: as in `keras.Model.predict`, with dicts of ids only.

        Returns:
            Outputs of the texts: an array `(texts, ...)`; or, if outputs have the
            length of the text, a list of arrays without padding. For one str its
            output, for an iterator an iterator of the outputs.

        Raises:
            ConfigurationError: texts break a rule; names the row. Or `steps` or
                `callbacks` are given with texts.

        Example:
            >>> source = "roformer-char"
            >>> model = roformer_keras.RoFormerTextRegressor.from_preset(source)
            >>> model.predict(["好极了", "太差了"]).shape
            (2, 1)
        """
        if is_ready(x):
            return super().predict(x, batch_size, verbose, steps, callbacks)
        refuse(
            steps is not None or callbacks is not None,
            "only Keras's loop on dicts of ids takes steps and callbacks, and x holds "
            "texts: leave them out",
        )
        return self.map_outputs(
            x,
            self._split_outputs,
            self._collect_outputs,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            verbose=verbose,
            engine=engine,
        )

    def predict_on_batch(self, x: Texts) -> Any:
        """Predicts texts or a dict of ids without a progress bar; see `predict`."""
        if isinstance(x, dict):
            return super().predict_on_batch(x)
        return self.predict(x, verbose=0)

    def map_outputs(
        self,
        x: Texts,
        decode: Callable,
        collect: Callable,
        *,
        model: keras.Model | None = None,
        make_rows: Callable | None = None,
        text_counts: Sequence[int] | None = None,
        batch_size: int | None = None,
        batch_tokens: int = TOKENS_PER_BATCH,
        verbose: Verbose = "auto",
        engine: Engine | None = None,
    ) -> Any:
        """Results of functions of the outputs for texts; see `predict`.

        Args:
            x: texts, a dataset or an iterator, as in `predict`.
            decode: called with the outputs of a batch, the rows, and which of them are
                in the batch; returns a result for each of them.
            collect: called with the results of all rows, and the rows; returns the
                results of the texts.
            model, make_rows, text_counts: those of the task if not given.
            batch_size, batch_tokens, verbose, engine: as in `predict`.
        """
        chosen: str = engine or self._engine
        model, make_rows = model or self, make_rows or self.make_rows
        counts = text_counts or self.text_counts
        has_choices, has_tokens = self.has_choices, self.has_tokens
        if hasattr(x, "as_numpy_iterator") or isinstance(x, keras.utils.PyDataset):
            x = texts_of(x, counts, has_choices, has_tokens)
        check: Callable = checked_rows if isinstance(x, Iterator) else as_texts
        if is_table(x):
            rows = self._text_rows(x, counts)
            # A dataset without a length is a stream.
            if hasattr(x, "__len__"):
                x, check = (rows, len(x)), SizedRows
            else:
                x, check = iter(rows), checked_rows
        return map_rows(
            check(x, counts, has_choices, has_tokens, True),
            make_rows,
            lambda rows, numbers: decode(
                run_model(model, self._batch(rows, numbers), chosen), rows, numbers
            ),
            collect,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            verbose=verbose,
        )

    def _split_outputs(self, outputs, rows, numbers):
        """An output for each row, without padding."""
        for output, length in zip(outputs, rows.lengths[numbers], strict=True):
            sizes = self.output.shape[1:]
            yield output[tuple(slice(length if n is None else None) for n in sizes)]

    def _collect_outputs(self, found, rows):
        return found if None in self.output.shape[1:] else np.stack(found)

    # === Rows and targets, of which subclasses have their own ===

    def make_rows(self, texts: list[tuple[str, ...]]) -> Rows | GroupRows:
        """Tokenized rows of what `as_texts` gives."""
        return Rows(self.text_tokenizer(), texts, self.max_length)

    def _batch(self, rows, numbers):
        """`rows.batch`, with the one segment that a model without types has."""
        inputs = rows.batch(numbers)
        config = self.config
        if config.num_segments == 1 and not config.shared_segment_embeddings:
            inputs["segment_ids"] = np.zeros_like(inputs["segment_ids"])
        return inputs

    def batch_targets(
        self, targets: Any, numbers: Sequence[int] | np.ndarray, inputs: dict[str, Any]
    ) -> np.ndarray:
        """Targets of a batch of these rows, of which `inputs` are the ids."""
        return targets[numbers]

    def labelled(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        class_weight: Mapping | None = None,
        *,
        fields: Sequence[str] = (),
    ) -> TextData:
        """Texts and labels, checked and tokenized; arguments as in `fit`.

        `fields` are the columns of the texts and of the label in a table `x`; see
        `split_labels`.
        """
        refuse(
            fields and (y is not None or not is_table(x)),
            f"fields are columns of a table of texts and labels, got {fields!r} "
            f"with {type(x).__name__}{'' if y is None else ' and y'}: leave it out",
        )
        if y is None and is_table(x):
            options = fields, self.or_none, self.has_choices, self.trained_columns
            x, y = split_labels(x, self.text_counts, *options)
        elif is_table(x):
            x = self._text_rows(x, self.text_counts)
        if is_table(y):
            classes = (getattr(self, name, None) for name in ("num_classes", "classes"))
            y = table_labels(y, *classes)
        y = plain_labels(y)
        check_list(x)
        columns = x.names if isinstance(x, TextRows) else ()
        refuse(y is None, "texts to learn from need labels: give y")
        if not hasattr(y, "__len__"):
            raise ConfigurationError(
                f"labels must be a list or another container, got {y!r:.60}"
            )
        if self.has_tokens:
            x = list(raw_rows(x, self.text_counts))
            if len(x) == len(y):
                pairs = zip(x, y, strict=True)
                y = [token_tags(row_tokens(row), label) for row, label in pairs]
        texts = as_texts(x, self.text_counts, self.has_choices, self.has_tokens)
        refuse(
            len(y) != len(texts),
            f"there must be a label for each row, got {len(texts)} rows and "
            f"{len(y)} labels",
        )
        rows = self.make_rows(texts)
        targets = self.make_targets(y, rows)
        weights = None
        if sample_weight is not None:
            weights = as_weights(sample_weight, len(texts))[rows.owners]
        by_class = None
        if class_weight is not None:
            table = self.class_weights(class_weight)
            by_class = table[np.asarray(targets, "int64")]

        def make_batch(numbers):
            inputs = self._batch(rows, numbers)
            return inputs, self.batch_targets(targets, numbers, inputs)

        return TextData(
            self,
            rows.lengths,
            rows.owners,
            make_batch,
            np.arange(len(rows.lengths)),
            weights,
            by_class,
            self.batch_weights,
            columns=columns or text_names(len(texts[0]), self.has_choices),
        )

    def _text_rows(self, table, counts):
        names = column_names(table)
        columns = text_columns(names, counts, self.has_choices, self.trained_columns)
        return TextRows(table, columns)

    def batch_weights(self, weights: np.ndarray, targets: Any) -> np.ndarray:
        """Weights of rows, as the loss of this task takes them.

        Args:
            weights: float32 `(rows,)`.
            targets: of `batch_targets`.
        """
        return weights

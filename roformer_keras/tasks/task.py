"""What all models that are fine-tuned share: texts in, answers out."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np
from keras import ops
from tqdm import tqdm

from roformer_keras import tasks
from roformer_keras.checks import check_integer
from roformer_keras.conversion.checkpoint import weights_to_read
from roformer_keras.conversion.reader import open_checkpoint
from roformer_keras.conversion.weights import model_heads, task_rows, weight_table
from roformer_keras.data.batches import TextBatches
from roformer_keras.data.rows import TOKENS_PER_BATCH, by_length, windows
from roformer_keras.data.texts import Rows, as_texts
from roformer_keras.errors import ConfigurationError
from roformer_keras.hub.catalog import resolve
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.forward import run_model
from roformer_keras.models.preset import BackboneModel
from roformer_keras.optimizers import finetuning_rate, make_optimizer
from roformer_keras.tasks import adversarial
from roformer_keras.text.tokenizer import RoFormerTokenizer

__all__ = ["LabelledRows", "TextTask"]

_SECONDS_BEFORE_BAR = 1


class TextTask(BackboneModel):
    """A backbone and a head, which takes texts where a Keras model takes arrays.

    Subclasses define:

    - `text_counts`: how many texts a row may have.
    - `make_targets(y, rows)`: targets of all rows, checked.
    - `batch_targets(targets, numbers, inputs)`: targets of a batch, unless they are
      rows of an array.
    - `default_loss()`, `default_metrics()`.
    - one verb for answers: `classify`, `regress`, `rank`, `encode`, `extract` or
      `answer`.
    - for `finetune`, `evaluate` and `predict` of the command line: `parse_label`,
      `find_names`, `name_options`, `figures`, `report` and `to_json`.

    Args:
        backbone: `RoFormerBackbone`.
        tokenizer: `RoFormerTokenizer` of its vocabulary.
        outputs: of the head.
        max_length: int, at least 4. Tokens to which longer rows are cut.
    """

    text_counts = (1, 2)
    # How many names labels must have.
    min_names = 2

    def __init__(self, backbone, tokenizer, outputs, max_length, **kwargs):
        check_integer("max_length", max_length, minimum=4)
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone
        self.tokenizer, self.max_length = tokenizer, max_length
        self.adversarial_epsilon = self.r_drop = 0.0
        if keras.backend.backend() == "tensorflow":
            # Nor where it answers without having been compiled; see `compile`.
            self.jit_compile = False

    # === Presets ===

    @classmethod
    def from_preset(cls, source, *, config=None, max_length=None, **options):
        """Builds the task on the backbone of a checkpoint, or loads a saved task.

        Args:
            source: as in `RoFormerBackbone.from_preset`; the head has new weights then.
                Or a folder that `save_to_preset` of this class wrote; for `TextTask`
                itself, of any class, which is returned.
            config: as in `RoFormerBackbone.from_preset`.
            max_length: int. Tokens to which longer rows are cut; as saved, or the
                default of the class, if not given.
            options: arguments of this class, and those of
                `RoFormerBackbone.from_preset`, such as `dropout=0.2` and `dtype`.

        Raises:
            ConfigurationError: the folder holds another task, or an argument breaks its
                rule.
            RoFormerError: as in `RoFormerBackbone.from_preset`.
        """
        with open_checkpoint(resolve(source), config) as checkpoint:
            if cls is TextTask:
                cls = _class_of(checkpoint)
            if max_length is not None:
                options["max_length"] = max_length
            names = inspect.signature(cls.__init__).parameters
            own = {name: options.pop(name) for name in names if name in options}
            is_saved = checkpoint.model == cls.__name__
            if is_saved:
                own = {**checkpoint.model_options, **own}
            backbone = RoFormerBackbone.from_preset(
                checkpoint, config=config, **options
            )
            tokenizer = own.pop("tokenizer", None) or backbone.text_tokenizer()
            model = cls(backbone, tokenizer, **own)
            if is_saved:
                model._read_head(checkpoint)
        return model

    def _read_head(self, checkpoint):
        head = {variable.path: variable for variable in self.head_variables()}
        shapes = {path: tuple(variable.shape) for path, variable in head.items()}
        config = checkpoint.config_for("RoFormerBackbone")
        heads = model_heads("RoFormerBackbone", config)
        for row in weights_to_read(checkpoint, config, heads, task_shapes=shapes):
            if row.head == "task":
                head[row.path].assign(checkpoint.weight(row.name))

    def _weight_rows(self):
        heads = model_heads("RoFormerBackbone", self.config)
        shapes = {v.path: tuple(v.shape) for v in self.head_variables()}
        return weight_table(self.config, heads) + task_rows(shapes)

    def preset_options(self):
        return {"max_length": self.max_length}

    def head_variables(self) -> list:
        """Weights that are not the backbone's."""
        backbone = {id(variable) for variable in self.backbone.variables}
        return [
            variable
            for variable in self.weights
            if id(variable) not in backbone and "seed_generator" not in variable.path
        ]

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary": list(self.tokenizer.vocabulary),
            "tokenizer": self.tokenizer.to_dict(),
        }

    @classmethod
    def from_config(cls, config):
        options = dict(config)
        backbone = keras.saving.deserialize_keras_object(options.pop("backbone"))
        vocabulary, fields = options.pop("vocabulary"), options.pop("tokenizer")
        return cls._restore(options, backbone, RoFormerTokenizer(vocabulary, **fields))

    # === Training ===

    def compile(
        self,
        optimizer=None,
        loss=None,
        metrics=None,
        *,
        adversarial_epsilon: float = 0.0,
        r_drop: float = 0.0,
        **kwargs,
    ):
        """As of Keras, with this task's own optimizer, loss and metrics by default.

        Args:
            optimizer: Keras optimizer or its name; AdamW if not given, at a rate that
                suits the width of the model, see `finetuning_rate`.
            loss, metrics: of the task if not given.
            adversarial_epsilon: float, 0 for none. Length of the step by which the
                token embeddings are moved against the loss before each update (FGM).
            r_drop: float, 0 for none. Weight of the divergence between two passes of
                the same rows under different dropout; rows are computed twice.
            kwargs: as of `keras.Model.compile`; but TensorFlow is not to compile by XLA
                unless `jit_compile` says so, which takes long for each width of batch.
        """
        if keras.backend.backend() == "tensorflow":
            kwargs.setdefault("jit_compile", False)
        self._check_loss(loss)
        for name, value in (
            ("adversarial_epsilon", adversarial_epsilon),
            ("r_drop", r_drop),
        ):
            if not value >= 0:
                raise ConfigurationError(f"{name} must be at least 0, got {value!r}")
        self.adversarial_epsilon, self.r_drop = adversarial_epsilon, r_drop
        self._by_default = [
            name
            for name, value in (("loss", loss), ("metrics", metrics))
            if value is None
        ]
        if optimizer is None:
            optimizer = make_optimizer(finetuning_rate(self.config.hidden_dim))
        super().compile(
            optimizer=optimizer,
            loss=self.default_loss() if loss is None else loss,
            metrics=self.default_metrics() if metrics is None else metrics,
            **kwargs,
        )

    def _check_loss(self, loss):
        """Outputs are scores, and a loss that takes them for probabilities is wrong."""
        is_name = isinstance(loss, str) and "crossentropy" in loss
        if is_name or getattr(loss, "from_logits", True) is False:
            name = loss if is_name else type(loss).__name__
            raise ConfigurationError(
                f"the outputs of {type(self).__name__} are logits, and the loss {name} "
                "is told that they are probabilities: leave loss out, or give it as "
                "keras.losses....(from_logits=True)"
            )

    def get_compile_config(self):
        config = super().get_compile_config()
        if not config:
            return config
        # The task makes its own again; a loss with weights of a layer is never saved.
        config.update(dict.fromkeys(self._by_default))
        return {
            **config,
            "adversarial_epsilon": self.adversarial_epsilon,
            "r_drop": self.r_drop,
        }

    def compile_from_config(self, config):
        # Keras does this itself only where `compile` is its own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(
        self,
        x=None,
        y=None,
        batch_size: int = 32,
        *,
        validation_data=None,
        validation_split: float = 0.0,
        shuffle: bool = True,
        class_weight=None,
        sample_weight=None,
        seed: int = 0,
        initial_epoch: int = 0,
        **kwargs,
    ):
        """As of Keras, on texts.

        Args:
            x: texts as of `as_texts`, a finite `tf.data.Dataset` of texts and labels,
                or what Keras's own `fit` takes, with dicts of ids; not with `r_drop`.
            y: labels of the rows of `x`.
            batch_size: int. Rows a batch.
            validation_data: pair of texts and labels, or triple with weights; or a
                dataset as `x`.
            validation_split: float in [0, 1). The share of the rows, drawn from the
                seed, that is validated on instead of trained on.
            shuffle: bool. Whether rows come in another order in each epoch.
            class_weight: dict of label to weight.
            sample_weight: float `(rows,)`.
            seed: int. Of the order of the rows.
            initial_epoch, kwargs: as of `keras.Model.fit`.
        """
        if not self.compiled:
            self.compile()
        if is_ready(x):
            # In batches of this package each row stands beside its copy.
            if self.r_drop and not isinstance(x, TextBatches):
                raise ConfigurationError(
                    "r_drop computes each row twice, which takes texts: give texts "
                    "instead of ids, or set r_drop to 0"
                )
            return super().fit(
                x,
                y,
                **({} if y is None else {"batch_size": batch_size}),
                validation_data=validation_data,
                validation_split=validation_split,
                # A dataset comes in its own order.
                shuffle=shuffle and y is not None,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                **kwargs,
            )
        data = self.labelled(x, y, sample_weight, class_weight)
        held_out = None
        if validation_data is not None:
            is_dataset = hasattr(validation_data, "as_numpy_iterator")
            parts = (validation_data,) if is_dataset else validation_data
            held_out = self.labelled(*parts)
        elif validation_split:
            data, held_out = data.split(validation_split, seed)
        batches = data.batches(
            batch_size,
            # Under R-Drop each row comes twice, side by side.
            copies=2 if self.r_drop else 1,
            shuffle=shuffle,
            seed=seed,
            epoch=initial_epoch,
        )
        return super().fit(
            batches,
            # TextBatches shuffle by themselves, and by a seed.
            shuffle=False,
            validation_data=held_out and held_out.batches(batch_size),
            initial_epoch=initial_epoch,
            **kwargs,
        )

    def evaluate(self, x=None, y=None, batch_size=32, sample_weight=None, **kwargs):
        """As of Keras, on texts; see `fit`."""
        if is_ready(x):
            size = {} if y is None else {"batch_size": batch_size}
            return super().evaluate(x, y, **size, sample_weight=sample_weight, **kwargs)
        data = self.labelled(x, y, sample_weight)
        return super().evaluate(data.batches(batch_size), **kwargs)

    def train_step(self, *arguments):
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
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training and self.r_drop:
            loss += self.r_drop * ops.mean(self.divergence(y_pred[::2], y_pred[1::2]))
        return loss

    def divergence(self, first, second):
        """How far two passes of the same rows are from each other: `(rows,)`."""
        raise ConfigurationError(f"{type(self).__name__} has no r_drop; set it to 0")

    # === Files: labels in, reports and JSON out ===

    @classmethod
    def parse_label(cls, value, texts: tuple[str, ...], options: Mapping):
        """A label of a file, as `fit` takes it.

        Args:
            value: as the file has it: str, or any JSON type.
            texts: of its row.
            options: arguments of the class.

        Raises:
            ConfigurationError: it is no label.
        """
        return value

    @classmethod
    def find_names(cls, labels: list, options: Mapping) -> list[str] | None:
        """The names in parsed labels; None if labels are no names."""
        return None

    @classmethod
    def name_options(cls, names: Sequence[str], options: Mapping) -> dict:
        """Arguments of the class for the names that were found."""
        return {}

    @classmethod
    def figures(cls, options: Mapping) -> tuple[str, ...]:
        """Names of the figures of `report`, the one to monitor first."""
        raise NotImplementedError

    @property
    def answer_counts(self) -> tuple[int, ...]:
        """How many texts a row may have that is answered."""
        return self.text_counts

    def report(self, texts: list, labels: list, verbose=0) -> dict:
        """How good the answers to texts are, compared with parsed labels."""
        raise NotImplementedError

    def to_json(self, texts: list) -> list[dict]:
        """The answers to texts, as plain JSON types."""
        raise NotImplementedError

    # === Predicting ===

    def predict(
        self,
        x,
        batch_size: int | None = None,
        *,
        batch_tokens: int = TOKENS_PER_BATCH,
        verbose="auto",
    ):
        """What `call` computes, for texts in their order.

        Texts are computed in batches of similar length, while the next are tokenized.

        Args:
            x: texts as in `as_texts`; a finite `tf.data.Dataset` of them, with or
                without labels; an iterator of rows, which need not fit into memory:
                2,048 are taken from it at a time; or what Keras's own `predict` takes,
                with dicts of ids.
            batch_size: int. Most rows that are computed together; any number that
                `batch_tokens` has room for if not given.
            batch_tokens: int. Most tokens, padding included, that are computed
                together; a longer row is computed alone.
            verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal if
                it takes more than a second.

        Returns:
            Outputs of the texts: an array `(texts, ...)`; or, if outputs have the
            length of the text, a list of arrays without padding. For an iterator an
            iterator of the outputs.
        """
        if is_ready(x):
            return super().predict(x, batch_size=batch_size, verbose=verbose)
        return self.map_outputs(
            x,
            self._split_outputs,
            self._collect_outputs,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            verbose=verbose,
        )

    def map_outputs(
        self,
        x,
        decode,
        collect,
        *,
        model=None,
        make_rows=None,
        text_counts=None,
        batch_size=None,
        batch_tokens=TOKENS_PER_BATCH,
        verbose="auto",
    ):
        """What functions make of the outputs for texts; see `predict`.

        Args:
            x: texts, a dataset or an iterator, as in `predict`.
            decode: called with the outputs of a batch, the rows, and which of them are
                in the batch; returns a result for each of them.
            collect: called with the results of all rows, and the rows; returns the
                results of the texts.
            model, make_rows, text_counts: those of the task if not given.
            batch_size, batch_tokens, verbose: as in `predict`.
        """
        model, make_rows = model or self, make_rows or self.make_rows
        if hasattr(x, "as_numpy_iterator"):
            x = _texts_of(x)
        is_stream = isinstance(x, Iterator)
        texts = (_checked if is_stream else as_texts)(
            x, text_counts or self.text_counts
        )

        def each_window():
            with _bar(None if is_stream else len(texts), verbose) as bar:
                for rows in windows(texts, make_rows):
                    # A text of several rows counts once.
                    is_first = np.diff(rows.owners, prepend=-1) > 0
                    found = [None] * len(rows)
                    for numbers in by_length(rows.lengths, batch_tokens, batch_size):
                        outputs = run_model(model, rows.batch(numbers))
                        decoded = decode(outputs, rows, numbers)
                        for number, one in zip(numbers, decoded, strict=True):
                            found[number] = one
                        bar.update(int(is_first[numbers].sum()))
                    yield collect(found, rows)

        if is_stream:
            return (one for found in each_window() for one in found)
        found = list(each_window())
        if isinstance(found[0], np.ndarray):
            return np.concatenate(found)
        return [one for results in found for one in results]

    def _split_outputs(self, outputs, rows, numbers):
        """An output for each row, without padding."""
        for output, length in zip(outputs, rows.lengths[numbers], strict=True):
            sizes = self.output.shape[1:]
            yield output[tuple(slice(length if n is None else None) for n in sizes)]

    def _collect_outputs(self, found, rows):
        return found if None in self.output.shape[1:] else np.stack(found)

    # === Rows and targets, of which subclasses have their own ===

    def make_rows(self, texts):
        """Tokenized rows of what `as_texts` gives."""
        return Rows(self.text_tokenizer(), texts, self.max_length)

    def batch_targets(self, targets, numbers, inputs):
        """Targets of a batch of these rows, of which `inputs` are the ids."""
        return targets[numbers]

    def labelled(self, x, y=None, sample_weight=None, class_weight=None):
        """Texts and labels, checked and tokenized, as `batches` of them are made.

        Args:
            x, y, sample_weight, class_weight: as of `fit`.
        """
        if hasattr(x, "as_numpy_iterator"):
            x, y, sample_weight = _materialised(x, y)
        if y is None:
            raise ConfigurationError("texts to learn from need labels: give y")
        texts = as_texts(x, self.text_counts)
        if len(y) != len(texts):
            raise ConfigurationError(
                f"there must be a label for each row, got {len(texts)} rows and "
                f"{len(y)} labels"
            )
        rows = self.make_rows(texts)
        targets = self.make_targets(y, rows)
        if sample_weight is not None:
            if len(sample_weight) != len(texts):
                raise ConfigurationError(
                    f"there must be a weight for each row, got {len(texts)} rows and "
                    f"{len(sample_weight)} weights"
                )
            sample_weight = np.asarray(sample_weight, "float32")[rows.owners]
        weights = self._weights(targets, sample_weight, class_weight)
        return LabelledRows(self, rows, targets, weights, np.arange(len(rows)))

    def _weights(self, targets, sample_weight, class_weight):
        if sample_weight is None and class_weight is None:
            return None
        weights = np.ones(len(targets), "float32")
        if sample_weight is not None:
            weights *= sample_weight
        if class_weight is not None:
            weights *= self.weights_of_classes(targets, class_weight)
        return weights

    def weights_of_classes(self, targets, class_weight):
        """float `(rows,)`."""
        raise ConfigurationError(
            f"{type(self).__name__} has no classes of rows: give sample_weight instead "
            "of class_weight"
        )


@dataclasses.dataclass
class LabelledRows:
    """Rows of a task that have labels; some of them, by number."""

    task: TextTask
    rows: Rows
    targets: object
    weights: np.ndarray | None
    numbers: np.ndarray

    def split(self, share, seed):
        """Two parts, the second of that share, drawn from the seed."""
        owners = np.unique(self.rows.owners)
        order = np.random.default_rng([seed, 0]).permutation(owners)
        count = round(share * len(order))
        if not 0 < share < 1 or count in (0, len(order)):
            raise ConfigurationError(
                f"validation_split must leave texts on both sides, got {share!r} of "
                f"{len(order)}"
            )
        # All that is made of one text goes to one side.
        is_held_out = np.isin(self.rows.owners, order[:count])
        return tuple(
            dataclasses.replace(self, numbers=np.flatnonzero(mask))
            for mask in (~is_held_out, is_held_out)
        )

    def batches(self, batch_size, copies=1, **options):
        """`TextBatches`, which `fit` and `evaluate` take.

        Args:
            batch_size: int. Rows a batch.
            copies: int. How often each row comes, side by side.
            options: of `TextBatches`.
        """
        check_integer("batch_size", batch_size, minimum=1)

        def make(places, more):
            numbers = np.repeat(self.numbers[places], copies)
            inputs = self.rows.batch(numbers, more)
            batch = (inputs, self.task.batch_targets(self.targets, numbers, inputs))
            return batch if self.weights is None else (*batch, self.weights[numbers])

        return TextBatches(self.rows.lengths[self.numbers], make, batch_size, **options)


def _bar(total, verbose):
    shown = {"disable": not verbose}
    if verbose == "auto":
        # None is for tqdm to look whether a terminal is there.
        shown = {"disable": None, "delay": _SECONDS_BEFORE_BAR}
    return tqdm(total=total, unit="row", **shown)


def _checked(stream, counts):
    """Rows of an iterator, each checked when it is taken."""
    for number, row in enumerate(stream):
        try:
            yield as_texts([row], counts)[0]
        except ConfigurationError as error:
            raise ConfigurationError(f"row {number} of the stream: {error}") from error


def is_ready(x) -> bool:
    """Whether `x` is for Keras as it is, and no texts."""
    if isinstance(x, keras.utils.PyDataset):
        return True
    if isinstance(x, dict):
        return "token_ids" in x
    spec = getattr(x, "element_spec", None)
    first = spec[0] if isinstance(spec, tuple) else spec
    return isinstance(first, dict) and "token_ids" in first


def _materialised(dataset, y):
    """Texts, labels and weights of a `tf.data.Dataset`, batched or not."""
    if y is not None:
        raise ConfigurationError("a dataset holds its labels: leave y out")
    records = []
    for element in _elements(dataset):
        if not isinstance(element, tuple) or len(element) not in (2, 3):
            raise ConfigurationError(
                "a dataset must give pairs of texts and labels, or triples with "
                f"weights, got {type(element).__name__}"
            )
        texts, *rest = element
        parts = texts if isinstance(texts, tuple) else (texts,)
        records += _rows_of((*parts, *rest))
    if not records:
        raise ConfigurationError("a dataset must have an element, got none")
    columns, count = list(map(list, zip(*records, strict=True))), len(parts)
    texts = tuple(columns[:count]) if count > 1 else columns[0]
    return texts, columns[count], (columns[count + 1 :] or [None])[0]


def _texts_of(dataset):
    """Texts of a `tf.data.Dataset` of texts, with or without labels."""
    found = []
    for element in _elements(dataset):
        # As Keras takes them: a tuple is of what goes in, and of labels and weights.
        texts = element[0] if isinstance(element, tuple) else element
        found += _rows_of(texts if isinstance(texts, tuple) else (texts,))
    return found


def _rows_of(columns):
    """Rows of an element of a dataset, which is one row, or a batch of them."""
    is_batch = np.ndim(columns[0]) == 1
    rows = zip(*columns, strict=True) if is_batch else [columns]
    return [
        tuple(v.decode("utf-8") if isinstance(v, bytes) else v for v in row)
        for row in rows
    ]


def _elements(dataset):
    """Those of a dataset that ends, as NumPy arrays and bytes."""
    if int(dataset.cardinality()) == -1:
        raise ConfigurationError(
            "a dataset must end, and this one repeats for ever: leave repeat() out, "
            "epochs do it"
        )
    return dataset.as_numpy_iterator()


def _class_of(checkpoint):
    """The class of a saved task."""
    if not checkpoint.is_task or checkpoint.model not in tasks.__all__:
        raise ConfigurationError(
            f"{checkpoint.label} must be a preset folder that a task was saved to, got "
            f"{checkpoint.model or 'no saved model'}: name the class, as in "
            "RoFormerTextClassifier.from_preset(...)"
        )
    return getattr(tasks, checkpoint.model)

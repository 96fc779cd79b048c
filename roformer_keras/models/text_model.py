"""`compile`, `fit` and `evaluate` of Keras models, on texts."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.config import RoFormerConfig
from roformer_keras.data.batches import MappedDataset, NumberedBatches, TextBatches
from roformer_keras.data.datasets import check_container, is_ready, labelled_texts
from roformer_keras.data.rows import draw_validation
from roformer_keras.data.tables import is_table
from roformer_keras.errors import ConfigurationError
from roformer_keras.models.distribution import refuse_strategy
from roformer_keras.models.preset import PresetModel, check_options, take_tokenizer
from roformer_keras.models.quantization import (
    quantization_state,
    set_quantization_state,
)
from roformer_keras.models.training_loop import (
    ForModel,
    choose_blocks,
    with_order,
)
from roformer_keras.types import Texts

if TYPE_CHECKING:
    from roformer_keras.models.backbone import RoFormerBackbone


@dataclasses.dataclass(frozen=True)
class TextData:
    """Tokenized rows and a way to batch them; `split` returns subsets.

    Args:
        lengths: int `(rows,)` or `(rows, texts)`. Tokens, as in `TextBatches`.
        owners: int `(rows,)`. Index of the text that each row comes from.
        make_batch: called with numbers of rows and columns of additional padding;
            returns inputs and targets as `fit` takes them.
        weights: float `(rows,)` or None. Weights of samples.
        class_weights: float `(rows,)` or None. Weights by the classes of the rows,
            which count in training only, as in Keras.
        batch_weights: called with weights of the rows of a batch and its targets;
            returns the weights as the loss takes them. None: a weight for each row.
        numbers: int. Indices of the rows to use; all if not given.
    """

    # The model whose texts these are trains on them itself.
    trainer: ClassVar[None] = None

    lengths: np.ndarray
    owners: np.ndarray
    make_batch: Callable
    weights: np.ndarray | None = None
    class_weights: np.ndarray | None = None
    batch_weights: Callable | None = None
    numbers: np.ndarray | None = None

    @property
    def max_length(self) -> int:
        """Tokens of the longest row."""
        lengths = self.lengths if self.numbers is None else self.lengths[self.numbers]
        return int(np.max(lengths, initial=0))

    def split(self, share: float, seed: int) -> tuple["TextData", "TextData"]:
        """Two parts; the second has that share of the texts, drawn by the seed."""
        owners = np.unique(self.owners)
        held_out = draw_validation(len(owners), share, seed)
        # All rows of one text are on one side.
        is_held_out = np.isin(self.owners, owners[held_out])
        first, second = (
            dataclasses.replace(self, numbers=np.flatnonzero(mask))
            for mask in (~is_held_out, is_held_out)
        )
        return first, dataclasses.replace(second, class_weights=None)

    def batch(
        self, numbers: np.ndarray | None = None, more: Any = 0, copies: int = 1
    ) -> tuple:
        """Inputs, targets and, if rows have them, weights of a batch.

        Args:
            numbers: int `(rows,)`. Rows of the batch; all if not given.
            more: columns of additional padding.
            copies: int. How often each row comes, one copy after the other.
        """
        if numbers is None:
            numbers = np.arange(len(self.lengths))
        numbers = np.repeat(numbers, copies)
        inputs, targets, *_ = batch = self.make_batch(numbers, more)
        parts = [w for w in (self.weights, self.class_weights) if w is not None]
        if not parts:
            return batch
        weights = np.prod([part[numbers] for part in parts], axis=0, dtype="float32")
        if self.batch_weights is not None:
            weights = self.batch_weights(weights, targets)
        return inputs, targets, weights

    def batches(self, batch_size: int, copies: int = 1, **options) -> TextBatches:
        """Batches for `fit` and `evaluate`.

        Args:
            batch_size: int. Rows of a batch.
            copies: int. How often each row comes, one copy after the other.
            options: of `TextBatches`.
        """
        check_integer("batch_size", batch_size, minimum=1)
        numbers = self.numbers
        if numbers is None:
            numbers = np.arange(len(self.lengths))

        def make(places, more):
            return self.batch(numbers[places], more, copies)

        return TextBatches(self.lengths[numbers], make, batch_size, **options)


class TextModel(PresetModel):
    """A model that is compiled, fitted and evaluated on texts.

    Subclasses define `labelled(x, y, sample_weight, class_weight)`, which returns
    `TextData`, `default_optimizer()`, `default_loss()` and `default_metrics()`. All but
    the encoder-decoder stand on a `backbone`, with its configuration and dtype policy.
    """

    backbone: "RoFormerBackbone"
    default_batch_size = 32
    labelled: Callable[..., TextData]
    # Keyword arguments of `fit` and `evaluate` that `labelled` takes.
    row_options: tuple[str, ...] = ()

    @property
    def row_copies(self) -> int:
        """Number of times that each row comes in a batch of `fit`."""
        return 1

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        raise NotImplementedError

    def default_loss(self) -> Any:
        return None

    def default_metrics(self) -> Any:
        return []

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """As in Keras, with the model's own optimizer, loss and metrics by default.

        Args:
            optimizer, loss, metrics: as in Keras; the model's own if not given.
            kwargs: as in `PresetModel.compile`.
        """
        self._default_names = [
            name
            for name, value in (("loss", loss), ("metrics", metrics))
            if value is None
        ]
        super().compile(
            optimizer=self.default_optimizer() if optimizer is None else optimizer,
            loss=self.default_loss() if loss is None else loss,
            metrics=self.default_metrics() if metrics is None else metrics,
            **kwargs,
        )

    def get_compile_config(self) -> dict[str, Any] | None:
        config = super().get_compile_config()
        # A loss may have weights of a layer: defaults are made again, not saved.
        return {**config, **dict.fromkeys(self._default_names)} if config else config

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
        """As in Keras, on texts; a model that is not compiled is compiled by default.

        Language models learn texts by their objective, as `pretrain` does, which is for
        corpora: it resumes, logs and needs little memory. The loss and the metrics are
        then the objective's.

        Args:
            x: texts in any container that `labelled` takes; a table of texts and their
                labels; a finite `tf.data.Dataset`
                of texts and labels; a generator or a `PyDataset` of batches of texts
                and labels; or what Keras's own `fit` takes, with dicts of ids. Of
                language models texts without labels; for RoFormer-Sim pairs of texts
                with one meaning, or their first texts.
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
                `label` if not given); `max_length` of a language model (128), and of
                an encoder-decoder; `options` of a language model, a dict of options of
                its objective, such as `{"whole_word": True}`.

        Raises:
            ConfigurationError: texts, labels or an option break a rule; names the row.
            VocabularyError: the model has no tokenizer.
        """
        if not self.compiled:
            self.compile()
        options = self._pop_row_options(kwargs)
        batch_size = self.default_batch_size if batch_size is None else batch_size
        held_out_size = validation_batch_size or batch_size
        check_container(x, y, sample_weight, validation_split)
        if validation_data is not None:
            validation_data = self._held_out(validation_data, held_out_size, options)
        x = self._tokenized_batches(x, options, self.row_copies, class_weight)
        if isinstance(x, Iterator) or is_ready(x):
            # In batches of this package each row is next to its copy.
            if not isinstance(x, TextBatches | MappedDataset | Iterator):
                self._check_copies(self.row_copies)
            is_weighted = isinstance(x, MappedDataset | Iterator)
            return super().fit(
                x,
                y,
                **self._size_of_ready(y, batch_size),
                validation_data=validation_data,
                validation_split=validation_split,
                validation_batch_size=validation_batch_size,
                # A dataset has its own order.
                shuffle=shuffle and y is not None,
                class_weight=None if is_weighted else self._by_number(class_weight),
                sample_weight=sample_weight,
                callbacks=callbacks,
                initial_epoch=initial_epoch,
                **kwargs,
            )
        data = self._read(x, y, sample_weight, class_weight, **options)
        if validation_data is None and validation_split:
            data, held_out = data.split(validation_split, seed)
            validation_data = held_out.batches(held_out_size)
        batches = data.batches(
            batch_size,
            copies=self.row_copies,
            shuffle=shuffle,
            seed=seed,
            epoch=initial_epoch,
        )
        choose_blocks(self, batch_size * self.row_copies, data.max_length)
        callbacks, fit = with_order(callbacks, batches), super().fit
        if data.trainer is not None:
            callbacks = [ForModel(callbacks, self, data.trainer)]
            fit = data.trainer.fit
        self.history = fit(
            batches,
            # They shuffle by themselves, by a seed.
            shuffle=False,
            validation_data=validation_data,
            initial_epoch=initial_epoch,
            callbacks=callbacks,
            **kwargs,
        )
        return self.history

    def evaluate(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        **kwargs: Any,
    ) -> float | list[float] | dict[str, float]:
        """As in Keras, on texts; see `fit`.

        A language model hides the same tokens each time.

        Args:
            x, y, batch_size, sample_weight: as in `fit`.
            kwargs: as in `keras.Model.evaluate`, with those of `fit` for rows.
        """
        options = self._pop_row_options(kwargs)
        check_container(x, y, sample_weight)
        x = self._tokenized_batches(x, options)
        if isinstance(x, Iterator) or is_ready(x):
            size = self._size_of_ready(y, batch_size)
            return super().evaluate(x, y, **size, sample_weight=sample_weight, **kwargs)
        batch_size = self.default_batch_size if batch_size is None else batch_size
        data = self._read(x, y, sample_weight, **options)
        evaluate = super().evaluate if data.trainer is None else data.trainer.evaluate
        return evaluate(data.batches(batch_size), **kwargs)

    def train_on_batch(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Any = None,
        class_weight: Mapping | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in Keras, on texts or on a dict of ids; compiles as `fit` does.

        Args:
            x, y: texts and labels as in `fit`; or dicts of ids, and targets.
            sample_weight: float `(rows,)`.
            class_weight: dict of label to weight.
            kwargs: as in `keras.Model.train_on_batch`, with those of `fit` for rows.
        """
        if not self.compiled:
            self.compile()
        options = self._pop_row_options(kwargs)
        if isinstance(x, dict):
            class_weight = self._by_number(class_weight)
            return super().train_on_batch(x, y, sample_weight, class_weight, **kwargs)
        data = self._read(x, y, sample_weight, class_weight, **options)
        batch = data.batch(copies=self.row_copies)
        rows = len(next(iter(batch[0].values())))
        choose_blocks(self, rows, data.max_length)
        train = super().train_on_batch
        if data.trainer is not None:
            train = data.trainer.train_on_batch
        return train(*batch, **kwargs)

    def test_on_batch(
        self, x: Texts, y: Texts = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """As in Keras, on texts or on a dict of ids; compiles as `fit` does.

        Args:
            x, y: texts and labels as in `fit`; or dicts of ids, and targets.
            sample_weight: float `(rows,)`.
            kwargs: as in `keras.Model.test_on_batch`, with those of `fit` for rows.
        """
        if not self.compiled:
            self.compile()
        options = self._pop_row_options(kwargs)
        if isinstance(x, dict):
            return super().test_on_batch(x, y, sample_weight, **kwargs)
        data = self._read(x, y, sample_weight, **options)
        test = super().test_on_batch
        if data.trainer is not None:
            test = data.trainer.test_on_batch
        return test(*data.batch(), **kwargs)

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

    def _by_number(self, class_weight):
        """Weights of classes as Keras takes them."""
        if class_weight is None:
            return None
        return dict(enumerate(self.class_weights(class_weight).tolist()))

    def _tokenized_batches(self, data, options, copies=1, class_weight=None):
        """A generator or `PyDataset` with texts as ids; other data unchanged.

        Weights of classes become weights of rows.
        """

        def tokenized(batch):
            if not isinstance(batch, tuple) or len(batch) not in (2, 3):
                raise ConfigurationError(
                    "a generator must give pairs of texts and labels, or triples with "
                    f"weights, got {type(batch).__name__}"
                )
            x, y, *weights = batch
            if not isinstance(x, dict):
                weight = weights[0] if weights else None
                data = self._read(x, y, weight, class_weight, **options)
                return data.batch(copies=copies)
            self._check_copies(copies)
            if class_weight is None:
                return batch
            numbers = np.asarray(y).reshape(-1).astype("int64")
            by_class = self.class_weights(class_weight)[numbers]
            return x, y, np.prod([by_class, *weights], axis=0, dtype="float32")

        if isinstance(data, Iterator):
            return (tokenized(batch) for batch in data)
        if isinstance(data, keras.utils.PyDataset) and not isinstance(
            data, TextBatches | NumberedBatches
        ):
            return MappedDataset(data, tokenized)
        return data

    def _check_copies(self, copies):
        if copies > 1:
            raise ConfigurationError(
                "r_drop computes each row twice, which needs texts: give texts instead "
                "of ids, or set r_drop to 0"
            )

    def _held_out(self, data, batch_size, options):
        """Batches of `validation_data`, as Keras evaluates on them."""
        data = self._tokenized_batches(data, options)
        is_pair = isinstance(data, tuple) and isinstance(data[0], dict)
        if isinstance(data, Iterator) or is_pair or is_ready(data):
            return data
        parts = self._validation_parts(data)
        return self._read(*parts, **options).batches(batch_size)

    def _validation_parts(self, data):
        """Texts, labels and weights of `validation_data`."""
        if hasattr(data, "as_numpy_iterator") or is_table(data):
            return (data,)
        parts = tuple(data)
        if len(parts) not in (2, 3):
            raise ConfigurationError(
                "validation_data must be a pair of texts and labels, or a triple with "
                f"weights, got {len(parts)} of them"
            )
        return parts

    def _read(self, x, y=None, sample_weight=None, class_weight=None, **options):
        refuse_strategy(self)
        check_container(x, y, sample_weight)
        return self._data(x, y, sample_weight, class_weight, **options)

    def _data(self, x, y, sample_weight, class_weight, **options):
        """Texts as `TextData`, or what has its methods."""
        if hasattr(x, "as_numpy_iterator"):
            x, y, sample_weight = labelled_texts(x)
        return self.labelled(x, y, sample_weight, class_weight, **options)

    def _pop_row_options(self, kwargs):
        return {name: kwargs.pop(name) for name in self.row_options if name in kwargs}

    def _size_of_ready(self, y, batch_size):
        if y is None:
            return {}
        return {"batch_size": batch_size or self.default_batch_size}

    # === On a backbone ===

    @property
    def config(self) -> RoFormerConfig:
        return self.backbone.config

    def get_config(self) -> dict[str, Any]:
        backbone = keras.saving.serialize_keras_object(self.backbone)
        if self.tokenizer is not None:
            for name in ("vocabulary", "tokenizer"):
                # Those of this model, below.
                backbone["config"].pop(name, None)
        return {
            "name": self.name,
            "trainable": self.trainable,
            "backbone": backbone,
            **quantization_state(self, without=self.backbone),
            **self.preset_options(),
            **self._tokenizer_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        options = dict(config)
        return cls._restore(options, cls._restore_backbone(options))

    @classmethod
    def _restore_backbone(cls, options):
        """Takes the backbone out of a configuration, and builds it."""
        backbone = options.pop("backbone", None)
        if isinstance(backbone, dict):
            backbone = keras.saving.deserialize_keras_object(backbone)
        if not isinstance(getattr(backbone, "config", None), RoFormerConfig):
            raise ConfigurationError(
                f"backbone of a {cls.__name__} must be a RoFormerBackbone, got "
                f"{backbone!r:.80}"
            )
        return backbone

    @classmethod
    def _restore(cls, options, *arguments):
        """The model of a configuration, frozen if it was."""
        trainable = options.pop("trainable", True)
        quantization = options.pop("quantization", {})
        tokenizer = take_tokenizer(options, cls.__name__)
        of_keras = ("name", "dtype")
        saved = {name: one for name, one in options.items() if name not in of_keras}
        check_options(cls, saved, "the configuration of the model")
        model = cls(*arguments, **options)
        set_quantization_state(model, quantization)
        if tokenizer:
            model._set_tokenizer(*tokenizer)
        if model.backbone.tokenizer is None:
            model.backbone.tokenizer = model.tokenizer
        if not trainable:
            # Setting True would unfreeze a backbone that was frozen by itself.
            model.trainable = False
        return model

"""`compile`, `fit` and `evaluate` of Keras models, on texts."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.data.adapters import is_adapter
from roformer_keras.data.batches import NumberedBatches, TextBatches
from roformer_keras.data.rows import draw_held_out
from roformer_keras.data.tables import is_table
from roformer_keras.errors import ConfigurationError
from roformer_keras.types import Texts

# A mixin calls what a Keras model has.
if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object


@dataclasses.dataclass(frozen=True)
class TextData:
    """Tokenized rows and a way to batch them; `split` returns subsets.

    Args:
        lengths: int `(rows,)` or `(rows, texts)`. Tokens, as in `TextBatches`.
        owners: int `(rows,)`. Index of the text that each row comes from.
        make_batch: called with numbers of rows and columns of additional padding;
            returns what `fit` takes as a batch.
        weights: float `(rows,)` or None.
        numbers: int. Indices of the rows to use; all if not given.
    """

    lengths: np.ndarray
    owners: np.ndarray
    make_batch: Callable
    weights: np.ndarray | None = None
    numbers: np.ndarray | None = None

    def split(self, share: float, seed: int) -> tuple["TextData", "TextData"]:
        """Two parts; the second has that share of the texts, drawn by the seed."""
        owners = np.unique(self.owners)
        held_out = draw_held_out(len(owners), share, seed)
        if not 0 < share < 1 or held_out.all() or not held_out.any():
            raise ConfigurationError(
                f"validation_split must leave texts on both sides, got {share!r} of "
                f"{len(owners)}"
            )
        # All rows of one text are on one side.
        is_held_out = np.isin(self.owners, owners[held_out])
        first, second = (
            dataclasses.replace(self, numbers=np.flatnonzero(mask))
            for mask in (~is_held_out, is_held_out)
        )
        return first, second

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
            return self.make_batch(np.repeat(numbers[places], copies), more)

        return TextBatches(self.lengths[numbers], make, batch_size, **options)


class TextTrainer(_Model):
    """A base of Keras models that are compiled, fitted and evaluated on texts.

    Subclasses define `labelled(x, y, sample_weight, class_weight)`, which returns
    `TextData`, `default_optimizer()`, `default_loss()` and `default_metrics()`.
    """

    default_batch_size = 32
    # Keyword arguments of `fit` and `evaluate` that `labelled` takes.
    row_options: tuple[str, ...] = ()

    @property
    def row_copies(self) -> int:
        """How often each row comes in a batch of `fit`."""
        return 1

    def default_metrics(self) -> list[keras.metrics.Metric]:
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

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does this itself only if `compile` is not overridden.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        shuffle: bool = True,
        class_weight: Mapping | None = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        seed: int = 0,
        initial_epoch: int = 0,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """As in Keras, on texts; a model that is not compiled is compiled by default.

        Args:
            x: texts in any container that `labelled` takes; a table of texts and their
                labels; a finite `tf.data.Dataset`
                of texts and labels; a generator or a `PyDataset` of batches of texts
                and labels; or what Keras's own `fit` takes, with dicts of ids.
            y: labels of the rows of `x`, or the texts to write.
            batch_size: int. Rows of a batch; the class's own number if not given.
            validation_data: pair of texts and labels, or triple with weights; or a
                dataset like `x`.
            validation_split: float in [0, 1). Share of the rows, drawn by the seed, for
                validation instead of training.
            shuffle: bool. Whether each epoch has its own order.
            class_weight: dict of label to weight.
            sample_weight: float `(rows,)`.
            seed: int. Determines the order.
            initial_epoch, kwargs: as in `keras.Model.fit`; `max_length` of an
                encoder-decoder; `fields` of a task, the columns of texts and label in
                a table (`text` or `first`, `second`, and `label` if not given).

        Raises:
            ConfigurationError: texts or labels break a rule; names the row.
            VocabularyError: the model has no tokenizer.
        """
        if not self.compiled:
            self.compile()
        options = self._pop_row_options(kwargs)
        batch_size = self.default_batch_size if batch_size is None else batch_size
        if validation_data is not None:
            validation_data = self._held_out(validation_data, batch_size, options)
        x = self._tokenized_batches(x, options, self.row_copies)
        if isinstance(x, Iterator) or is_ready(x):
            # In batches of this package each row is next to its copy.
            if not isinstance(x, TextBatches | MappedDataset | Iterator):
                self._check_copies(self.row_copies)
            return super().fit(
                x,
                y,
                **self._size_of_ready(y, batch_size),
                validation_data=validation_data,
                validation_split=validation_split,
                # A dataset has its own order.
                shuffle=shuffle and y is not None,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                **kwargs,
            )
        data = self._read(x, y, sample_weight, class_weight, **options)
        if validation_data is None and validation_split:
            data, held_out = data.split(validation_split, seed)
            validation_data = held_out.batches(batch_size)
        batches = data.batches(
            batch_size,
            copies=self.row_copies,
            shuffle=shuffle,
            seed=seed,
            epoch=initial_epoch,
        )
        return super().fit(
            batches,
            # TextBatches shuffle by themselves, by a seed.
            shuffle=False,
            validation_data=validation_data,
            initial_epoch=initial_epoch,
            **kwargs,
        )

    def evaluate(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        **kwargs: Any,
    ) -> float | list[float] | dict[str, float]:
        """As in Keras, on texts; see `fit`.

        Args:
            x, y, batch_size, sample_weight: as in `fit`.
            kwargs: as in `keras.Model.evaluate`, with those of `fit` for rows.
        """
        options = self._pop_row_options(kwargs)
        x = self._tokenized_batches(x, options)
        if isinstance(x, Iterator) or is_ready(x):
            size = self._size_of_ready(y, batch_size)
            return super().evaluate(x, y, **size, sample_weight=sample_weight, **kwargs)
        batch_size = self.default_batch_size if batch_size is None else batch_size
        data = self._read(x, y, sample_weight, **options)
        return super().evaluate(data.batches(batch_size), **kwargs)

    def train_on_batch(
        self, x: Texts, y: Texts = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """As in Keras, on texts or on a dict of ids; compiles as `fit` does.

        Args:
            x, y: texts and labels as in `fit`; or dicts of ids, and targets.
            sample_weight: float `(rows,)`.
            kwargs: as in `keras.Model.train_on_batch`.
        """
        if not self.compiled:
            self.compile()
        if not isinstance(x, dict):
            x, y, *rest = self._tokenize(x, y, sample_weight, copies=self.row_copies)
            sample_weight = rest[0] if rest else None
        return super().train_on_batch(x, y, sample_weight, **kwargs)

    def test_on_batch(
        self, x: Texts, y: Texts = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """As in Keras, on texts or on a dict of ids; compiles as `fit` does.

        Args:
            x, y: texts and labels as in `fit`; or dicts of ids, and targets.
            sample_weight: float `(rows,)`.
            kwargs: as in `keras.Model.test_on_batch`.
        """
        if not self.compiled:
            self.compile()
        if not isinstance(x, dict):
            x, y, *rest = self._tokenize(x, y, sample_weight)
            sample_weight = rest[0] if rest else None
        return super().test_on_batch(x, y, sample_weight, **kwargs)

    def _tokenize(self, x, y=None, *weights, copies=1, **options):
        """One batch of texts and labels as Keras takes it."""
        data = self.labelled(x, y, *weights, **options)
        return data.make_batch(np.repeat(np.arange(len(data.lengths)), copies), 0)

    def _tokenized_batches(self, data, options, copies=1):
        """A generator or `PyDataset` with texts as ids; other data unchanged."""

        def tokenized(batch):
            if not isinstance(batch, tuple) or len(batch) not in (2, 3):
                raise ConfigurationError(
                    "a generator must give pairs of texts and labels, or triples with "
                    f"weights, got {type(batch).__name__}"
                )
            if not isinstance(batch[0], dict):
                return self._tokenize(*batch, copies=copies, **options)
            self._check_copies(copies)
            return batch

        if isinstance(data, Iterator):
            return (tokenized(batch) for batch in data)
        if isinstance(data, keras.utils.PyDataset) and not isinstance(
            data, TextBatches
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
        """What Keras evaluates on: batches of `validation_data`."""
        data = self._tokenized_batches(data, options)
        is_pair = isinstance(data, tuple) and isinstance(data[0], dict)
        if isinstance(data, Iterator) or is_pair or is_ready(data):
            return data
        is_dataset = hasattr(data, "as_numpy_iterator") or is_table(data)
        parts = (data,) if is_dataset else tuple(data)
        if not is_dataset and len(parts) not in (2, 3):
            raise ConfigurationError(
                "validation_data must be a pair of texts and labels, or a triple with "
                f"weights, got {len(parts)} of them"
            )
        return self._read(*parts, **options).batches(batch_size)

    def _read(self, x, y=None, *weights, **options):
        if hasattr(x, "as_numpy_iterator"):
            x, y, *weights = _labelled_texts(x, y)
        return self.labelled(x, y, *weights, **options)

    def _pop_row_options(self, kwargs):
        return {name: kwargs.pop(name) for name in self.row_options if name in kwargs}

    def _size_of_ready(self, y, batch_size):
        if y is None:
            return {}
        return {"batch_size": batch_size or self.default_batch_size}


class MappedDataset(keras.utils.PyDataset):
    """A dataset with a function of each batch."""

    def __init__(self, dataset, function):
        super().__init__()
        self._dataset, self._function = dataset, function

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, number):
        return self._function(self._dataset[number])

    def on_epoch_end(self):
        self._dataset.on_epoch_end()


def is_ready(x) -> bool:
    """Whether `x` is input for Keras itself: batches, or dicts of ids."""
    is_own = isinstance(x, TextBatches | NumberedBatches | MappedDataset)
    if is_own or is_adapter(x):
        return True
    if isinstance(x, keras.utils.PyDataset):
        spec = x[0]
    else:
        spec = x if isinstance(x, dict) else getattr(x, "element_spec", None)
    first = spec[0] if isinstance(spec, tuple) else spec
    return isinstance(first, dict) and any("token_ids" in name for name in first)


# === tf.data ===


def texts_of(dataset) -> list:
    """Rows of a `tf.data.Dataset` or `PyDataset` of texts, with or without labels."""
    found = []
    for element in _elements(dataset):
        # As in Keras, a tuple holds inputs, and then labels and weights.
        texts = element[0] if isinstance(element, tuple) else element
        found += _rows_of(texts if isinstance(texts, tuple) else (texts,))
    return found


def _labelled_texts(dataset, y):
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


def _rows_of(columns):
    """Rows of an element of a dataset, which is one row or a batch."""
    is_batch = np.ndim(columns[0]) == 1
    rows = zip(*columns, strict=True) if is_batch else [columns]
    return [
        tuple(v.decode("utf-8") if isinstance(v, bytes) else v for v in row)
        for row in rows
    ]


def _elements(dataset):
    """The elements of a dataset that ends; those of TensorFlow as NumPy arrays."""
    if isinstance(dataset, keras.utils.PyDataset):
        return (dataset[number] for number in range(len(dataset)))
    if int(dataset.cardinality()) == -1:
        raise ConfigurationError(
            "a dataset must end, and this one repeats for ever: leave repeat() out and "
            "set epochs"
        )
    return dataset.as_numpy_iterator()

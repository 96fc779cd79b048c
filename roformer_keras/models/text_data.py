"""Texts and labels as Keras's loops take them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Texts
from roformer_keras.data.adapters import refuse_strategy
from roformer_keras.data.batches import MappedDataset, NumberedBatches, TextBatches
from roformer_keras.data.datasets import check_container, is_ready, labelled_texts
from roformer_keras.inference.fast_model import FastModel
from roformer_keras.models.training_loop import RowWeights, Trainer
from roformer_keras.tables.memory import is_table
from roformer_keras.tables.texts import refuse_loader
from roformer_keras.text.rows import draw_validation


@dataclasses.dataclass(frozen=True)
class TextData:
    """Tokenized rows and a way to batch them; `split` returns subsets."""

    # The model whose loops run on the batches.
    learner: keras.Model
    lengths: np.ndarray
    owners: np.ndarray
    make_batch: Callable
    # Rows of this part of the data.
    numbers: np.ndarray
    weights: np.ndarray | None = None
    class_weights: np.ndarray | None = None
    batch_weights: Callable | None = None
    columns: tuple = ()

    @property
    def max_length(self) -> int:
        """Tokens of the longest row."""
        return int(np.max(self.lengths[self.numbers], initial=0))

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

    def batch(self, numbers: np.ndarray | None = None, copies: int = 1) -> tuple:
        """Inputs, targets and, if rows have them, weights of a batch.

        Args:
            numbers: int `(rows,)`. Rows of the batch; all if not given.
            copies: int. How often each row comes, one copy after the other.
        """
        numbers = np.repeat(self.numbers if numbers is None else numbers, copies)
        inputs, targets, *_ = batch = self.make_batch(numbers)
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
        return TextBatches(
            self.lengths[self.numbers],
            lambda places: self.batch(self.numbers[places], copies),
            batch_size,
            **options,
        )


class TextTrainer(Trainer):
    """Trains and evaluates a model on texts and labels, or on ids."""

    def __init__(
        self,
        model: FastModel,
        options: dict[str, Any],
        class_weight: Mapping | None = None,
    ):
        super().__init__(model, options, class_weight)
        if not model.compiled:
            model.compile()

    def takes_texts(self, x: Texts) -> bool:
        return not (isinstance(x, Iterator) or is_ready(x))

    def read(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: RowWeights = None,
        is_training: bool = False,
    ) -> Any:
        refuse_strategy(self.model)
        check_container(x, y, sample_weight)
        if not is_training:
            return self._data(x, y, sample_weight, None)
        data = self._data(x, y, sample_weight, self.class_weight)
        self.model.trained_columns = getattr(data, "columns", ())
        return data

    def _data(self, x, y, sample_weight, class_weight):
        if hasattr(x, "as_numpy_iterator"):
            x, y, sample_weight = labelled_texts(x)
        return self.model.labelled(x, y, sample_weight, class_weight, **self.options)

    def prepared(self, x: Texts, is_training: bool = False) -> Texts:
        """A generator or `PyDataset` with texts as ids; other data unchanged.

        Weights of classes become weights of rows.
        """
        if isinstance(x, Iterator):
            return (self._tokenized(batch, is_training) for batch in x)
        if isinstance(x, keras.utils.PyDataset) and not isinstance(
            x, TextBatches | NumberedBatches
        ):
            return MappedDataset(x, lambda batch: self._tokenized(batch, is_training))
        return x

    def _tokenized(self, batch, is_training):
        refuse(
            not isinstance(batch, tuple) or len(batch) not in (2, 3),
            "a generator must give pairs of texts and labels, or triples with "
            f"weights, got {type(batch).__name__}",
        )
        x, y, *weights = batch
        if not isinstance(x, dict):
            data = self.read(x, y, weights[0] if weights else None, is_training)
            return data.batch(copies=self.model.row_copies if is_training else 1)
        if is_training:
            self._refuse_copies()
        if self.class_weight is None or not is_training:
            return batch
        numbers = np.asarray(y).reshape(-1).astype("int64")
        by_class = self.model.class_weights(self.class_weight)[numbers]
        return x, y, np.prod([by_class, *weights], axis=0, dtype="float32")

    def held_out(self, data: Texts, batch_size: int) -> Texts:
        data = self.prepared(data)
        is_pair = isinstance(data, tuple) and isinstance(data[0], dict)
        if is_pair or not self.takes_texts(data):
            return data
        return self.read(*self._parts(data)).batches(batch_size)

    def _parts(self, data):
        """Texts, labels and weights of `validation_data`."""
        if hasattr(data, "as_numpy_iterator") or is_table(data):
            return (data,)
        refuse_loader(data)
        parts = tuple(data) if hasattr(data, "__iter__") else ()
        if len(parts) not in (2, 3):
            shown = f"{len(parts)} of them" if parts else repr(data)[:60]
            raise ConfigurationError(
                "validation_data must be a pair of texts and labels, or a triple with "
                f"weights, got {shown}"
            )
        return parts

    def _refuse_copies(self):
        """Raises ConfigurationError if rows of ids would have to come twice."""
        refuse(
            self.model.row_copies > 1,
            "r_drop computes each row twice, which needs texts: give texts instead "
            "of ids, or set r_drop to 0",
        )

    def keras_weights(self, x: Texts = None) -> dict[int, float] | None:
        if isinstance(x, MappedDataset | Iterator):
            # Its rows have them.
            return None
        # In batches of this package each row is next to its copy.
        if x is not None and not isinstance(x, TextBatches):
            self._refuse_copies()
        if self.class_weight is None:
            return None
        return dict(enumerate(self.model.class_weights(self.class_weight).tolist()))

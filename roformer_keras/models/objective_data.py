"""Texts that a language model learns by an objective, as `fit` takes them."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any, Self

import keras

from roformer_keras.base.checks import check_instance, check_integer, check_names
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Texts
from roformer_keras.data.batches import NumberedBatches
from roformer_keras.data.datasets import labelled_texts, texts_of
from roformer_keras.data.loader import batch_maker, items_of
from roformer_keras.inference.fast_model import FastModel
from roformer_keras.models.text_data import TextTrainer
from roformer_keras.objectives import OBJECTIVES, Objective
from roformer_keras.tables.texts import as_texts
from roformer_keras.text.examples import EpochItems, ItemList
from roformer_keras.text.rows import draw_validation


@dataclasses.dataclass(frozen=True)
class ObjectiveData:
    """Items of an objective; `fit` calls it as it calls `TextData`."""

    model: FastModel
    objective: Objective
    items: Any

    @property
    def max_length(self) -> int:
        """Tokens of the longest row."""
        return self.objective.rows.length

    @functools.cached_property
    def learner(self) -> keras.Model:
        """The model that trains the layers of the language model."""
        learner = self.objective.training_model(self.model)
        learner.compile(
            self.model.optimizer,
            **self.objective.compile_options(),
            jit_compile=self.model.jit_compile,
            run_eagerly=self.model.run_eagerly,
        )
        return learner

    def split(self, share: float, seed: int) -> tuple[Self, Self]:
        """Two parts; the second has that share of the items, drawn by the seed."""
        held_out = draw_validation(len(self.items), share, seed)
        parts = ItemList(), ItemList()
        for item, is_held_out in zip(self.items, held_out, strict=True):
            parts[is_held_out].append(item)
        first, second = (dataclasses.replace(self, items=items) for items in parts)
        return first, second

    def batch(self, copies: int = 1) -> tuple:
        """All items as one batch."""
        return self.batches(len(self.items) * self.objective.rows_per_item)[0]

    def batches(
        self,
        batch_size: int,
        copies: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int | None = None,
    ) -> NumberedBatches:
        """Batches for `fit` and `evaluate`.

        Args:
            batch_size: int. Rows of a batch.
            copies: must be 1.
            shuffle, seed: as in `fit`.
            epoch: int. The first epoch; if not given, each epoch has the same batches.
        """
        check_integer("batch_size", batch_size, minimum=1)
        check_integer("seed", seed, minimum=0)
        order = [seed] if shuffle else None
        examples = EpochItems(self.items, order, whole_epochs=True)
        make = batch_maker(examples, self.objective, batch_size, [seed])
        count = math.ceil(len(examples) / items_of(self.objective, batch_size))
        return NumberedBatches(make, count, epoch or 0, advances=epoch is not None)


class ObjectiveTrainer(TextTrainer):
    """Trains and evaluates a language model on texts, by its objective, or on ids."""

    def prepared(self, x: Texts, is_training: bool = False) -> Texts:
        _refuse_iterator(x)
        return x

    def _data(self, x, y, sample_weight, class_weight):
        refuse(
            sample_weight is not None or class_weight is not None,
            "texts without labels have no weights and no classes: leave "
            "sample_weight and class_weight out",
        )
        max_length = self.options.get("max_length", 128)
        check_integer("max_length", max_length, minimum=4)
        kind = OBJECTIVES[self.model.objective_name]
        options = self.options.get("options")
        options = {} if options is None else options
        check_instance("options", options, dict)
        names = inspect.signature(kind).parameters.keys() - {"tokenizer", "length"}
        check_names(kind.__name__, "option", options, sorted(names))
        objective = kind(self.model.text_tokenizer(), max_length, **options)
        return ObjectiveData(self.model, objective, _items(objective, x, y))

    def _parts(self, data):
        return data if isinstance(data, tuple) else (data,)


def _items(objective, x, y):
    """The items of an objective that texts make."""
    fields = (objective.fields or 1,)
    if hasattr(x, "as_numpy_iterator") or isinstance(x, keras.utils.PyDataset):
        x, y = _texts_of_dataset(x, fields)
    _refuse_iterator(x)
    encode = objective.encoder(objective.rows.tokenizer, objective.rows.length)
    if y is not None:
        x = tuple(list(one) if isinstance(one, tuple) else one for one in (x, y))
    records = as_texts(x, fields)
    items = ItemList(item for record in records for item in encode(record))
    refuse(not items, "texts must have tokens, got none")
    return items


def _texts_of_dataset(dataset, fields):
    """Texts of a dataset, and the second texts of pairs."""
    is_dataset = hasattr(dataset, "as_numpy_iterator")
    spec = dataset.element_spec if is_dataset else dataset[0]
    if not isinstance(spec, tuple) or len(spec) == 1:
        return texts_of(dataset, fields), None
    if fields == (2,) and len(spec) == 2:
        return labelled_texts(dataset)[:2]
    raise ConfigurationError(
        "texts must come without labels and weights, got a "
        f"{type(dataset).__name__} of {len(spec)} parts: leave out all but the texts"
    )


def _refuse_iterator(x):
    """Raises ConfigurationError for an iterator of texts."""
    refuse(
        isinstance(x, Iterator),
        f"texts must be a list or another container, got a {type(x).__name__}, "
        "which ends after one epoch: give list(...) of it",
    )

"""`fit` and `evaluate` of language models, on texts."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras

from roformer_keras.checks import check_integer
from roformer_keras.data.batches import NumberedBatches
from roformer_keras.data.datasets import (
    check_container,
    is_ready,
    labelled_texts,
    texts_of,
)
from roformer_keras.data.examples import EpochItems, ItemList
from roformer_keras.data.loader import batch_maker, items_of
from roformer_keras.data.rows import draw_validation
from roformer_keras.data.texts import as_texts
from roformer_keras.errors import ConfigurationError
from roformer_keras.models.distribution import refuse_strategy
from roformer_keras.models.training_loop import ForModel, with_order
from roformer_keras.objectives import OBJECTIVES
from roformer_keras.optimizers import make_optimizer
from roformer_keras.types import Texts

# A mixin calls what a Keras model has.
if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object

# Of AdamW, if the model is not compiled.
_RATE = 1e-4
_BATCH_SIZE = 32


class ObjectiveTrainer(_Model):
    """A base of models that learn texts by an objective, as `pretrain` does.

    `pretrain` is for corpora: it resumes, logs and needs little memory. Subclasses set
    `objective_name`, a key of `OBJECTIVES`.
    """

    def fit(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        *,
        max_length: int = 128,
        options: Mapping[str, Any] | None = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_batch_size: int | None = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        class_weight: Any = None,
        callbacks: Any = None,
        seed: int = 0,
        initial_epoch: int = 0,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """As in Keras, on texts; a model that is not compiled is compiled with AdamW.

        A compiled optimizer is used; the loss and the metrics are the objective's.

        Args:
            x: texts, as a list of str or another container, such as a finite
                `tf.data.Dataset` or a `PyDataset`; for RoFormer-Sim pairs of texts with
                one meaning, or their first texts. Or what Keras's own `fit` takes, with
                dicts of ids.
            y: the second texts of such pairs.
            batch_size: int. Rows of a batch, 32 if not given; a pair is two rows. The
                last batch of an epoch may be smaller.
            max_length: int. Tokens of a text, with `[CLS]` and `[SEP]`. Longer ones are
                cut at the ends of sentences, those of pairs after so many tokens.
            options: dict of options of the objective, such as `{"whole_word": True}`.
            validation_data: texts, or a tuple of lists for `x` and `y`.
            validation_split: float in [0, 1). Share of the texts, drawn by the seed,
                for validation instead of training.
            validation_batch_size: int. That of training if not given.
            shuffle: bool. Whether each epoch has its own order.
            sample_weight, class_weight: as in Keras, with dicts of ids only.
            callbacks: as in Keras; they see this model.
            seed: int. Determines the order and what is hidden.
            initial_epoch, kwargs: as in `keras.Model.fit`.

        Raises:
            ConfigurationError: a text or an option breaks a rule.
            VocabularyError: the model has no tokenizer.
        """
        if x is None or is_ready(x):
            sizes = {} if y is None else {"batch_size": batch_size}
            return super().fit(
                x,
                y,
                **sizes,
                validation_data=validation_data,
                validation_split=validation_split,
                validation_batch_size=validation_batch_size,
                shuffle=shuffle,
                sample_weight=sample_weight,
                class_weight=class_weight,
                callbacks=callbacks,
                initial_epoch=initial_epoch,
                **kwargs,
            )
        _check_no_weights(sample_weight, class_weight)
        trainer, objective = self._training_model(max_length, options)
        batch_size = _BATCH_SIZE if batch_size is None else batch_size
        held_out_size = validation_batch_size or batch_size
        items = _items(objective, x, y)
        held_out = None
        if validation_data is not None:
            is_pair = isinstance(validation_data, tuple)
            parts = validation_data if is_pair else (validation_data,)
            held_out = _items(objective, *parts)
        elif validation_split:
            items, held_out = _split(items, validation_split, seed)
        batches = _batches(
            objective, items, batch_size, seed, initial_epoch, shuffle, advances=True
        )
        found = ForModel(with_order(callbacks, batches), self, trainer)
        history = trainer.fit(
            batches,
            validation_data=held_out and _batches(objective, held_out, held_out_size),
            # The examples are shuffled, not the batches.
            shuffle=False,
            callbacks=[found],
            initial_epoch=initial_epoch,
            **kwargs,
        )
        self.history = history
        return history

    def evaluate(
        self,
        x: Texts = None,
        y: Texts = None,
        batch_size: int | None = None,
        *,
        max_length: int = 128,
        options: Mapping[str, Any] | None = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> float | list[float] | dict[str, float]:
        """As in Keras, on texts; see `fit`. The same tokens are hidden each time.

        Args:
            x, y, batch_size, max_length, options, sample_weight: as in `fit`.
            kwargs: as in `keras.Model.evaluate`.
        """
        if x is None or is_ready(x):
            sizes = {} if y is None else {"batch_size": batch_size}
            return super().evaluate(
                x, y, **sizes, sample_weight=sample_weight, **kwargs
            )
        _check_no_weights(sample_weight)
        trainer, objective = self._training_model(max_length, options)
        batch_size = _BATCH_SIZE if batch_size is None else batch_size
        batches = _batches(objective, _items(objective, x, y), batch_size)
        return trainer.evaluate(batches, **kwargs)

    def train_on_batch(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        *,
        max_length: int = 128,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in Keras, on texts or on a dict of ids; see `fit`.

        Args:
            x, y, max_length, options, sample_weight, class_weight: as in `fit`.
            kwargs: as in `keras.Model.train_on_batch`.
        """
        if isinstance(x, dict):
            weights = sample_weight, class_weight
            return super().train_on_batch(x, y, *weights, **kwargs)
        _check_no_weights(sample_weight, class_weight)
        trainer, batch = self._batch(x, y, max_length, options)
        return trainer.train_on_batch(*batch, **kwargs)

    def test_on_batch(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Any = None,
        *,
        max_length: int = 128,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in Keras, on texts or on a dict of ids; see `fit`.

        Args:
            x, y, max_length, options, sample_weight: as in `fit`.
            kwargs: as in `keras.Model.test_on_batch`.
        """
        if isinstance(x, dict):
            return super().test_on_batch(x, y, sample_weight, **kwargs)
        _check_no_weights(sample_weight)
        trainer, batch = self._batch(x, y, max_length, options)
        return trainer.test_on_batch(*batch, **kwargs)

    def _batch(self, x, y, max_length, options):
        """A training model, and all of some texts as one batch."""
        trainer, objective = self._training_model(max_length, options)
        items = _items(objective, x, y)
        rows = len(items) * objective.rows_per_item
        return trainer, _batches(objective, items, rows)[0]

    def _training_model(self, max_length, options):
        refuse_strategy(self)
        kind = OBJECTIVES[self.objective_name]
        objective = kind(self.text_tokenizer(), max_length, **(options or {}))
        trainer = objective.training_model(self)
        if not self.compiled:
            self.compile(make_optimizer(_RATE))
        trainer.compile(
            self.optimizer,
            **objective.compile_options(),
            jit_compile=self.jit_compile,
            run_eagerly=self.run_eagerly,
        )
        return trainer, objective


def _check_no_weights(*weights):
    if any(weight is not None for weight in weights):
        raise ConfigurationError(
            "texts without labels have no weights and no classes: leave sample_weight "
            "and class_weight out"
        )


def _items(objective, x, y=None):
    """The items of an objective that texts make."""
    check_container(x, y)
    fields = (objective.fields or 1,)
    if hasattr(x, "as_numpy_iterator") or isinstance(x, keras.utils.PyDataset):
        x, y = _texts_of_dataset(x, fields)
    if isinstance(x, Iterator):
        raise ConfigurationError(
            f"texts must be a list or another container, got a {type(x).__name__}, "
            "which ends after one epoch: give list(...) of it"
        )
    encode = objective.encoder(objective.rows.tokenizer, objective.rows.length)
    records = as_texts(x if y is None else (x, y), fields)
    items = ItemList(item for record in records for item in encode(record))
    if not items:
        raise ConfigurationError("texts must have tokens, got none")
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


def _split(items, share, seed):
    """Items for training and for validation, drawn by the seed."""
    held_out = draw_validation(len(items), share, seed)
    parts: tuple = ItemList(), ItemList()
    for item, is_held_out in zip(items, held_out, strict=True):
        parts[is_held_out].append(item)
    return parts


def _batches(
    objective, items, batch_size, seed=0, epoch=0, shuffle=False, advances=False
):
    """Batches of items; unless they advance, the same in each epoch."""
    check_integer("batch_size", batch_size, minimum=1)
    check_integer("seed", seed, minimum=0)
    examples = EpochItems(items, [seed] if shuffle else None, whole_epochs=True)
    make = batch_maker(examples, objective, batch_size, [seed])
    count = math.ceil(len(examples) / items_of(objective, batch_size))
    return NumberedBatches(make, count, epoch, advances=advances)

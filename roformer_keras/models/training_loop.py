"""Keras's `fit` and its kin on the data and the models of this package."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks
from roformer_keras.base.types import Texts
from roformer_keras.data.batches import NumberedBatches, TextBatches
from roformer_keras.data.datasets import check_container
from roformer_keras.inference.fast_model import FastModel
from roformer_keras.layers import RoPEAttention
from roformer_keras.layers.long_attention import is_long

# Weights of rows: float `(rows,)`.
RowWeights = Sequence[float] | np.ndarray | None


def choose_blocks(model: keras.Model, rows: int, length: int) -> None:
    """Has attention compute scores in blocks if those of a batch are too many.

    For TensorFlow's graphs of training, where no size is known.
    """
    for layer in quirks.nested_layers(model):
        if isinstance(layer, RoPEAttention):
            # A graph is traced again if it changes.
            layer.in_blocks = is_long(rows, layer.num_heads, length)


class EpochOrder(keras.callbacks.Callback):
    """Sets the order of the rows, and what dropout draws, by the number of the epoch.

    A training that `keras.callbacks.BackupAndRestore` resumes then goes on as if it had
    not stopped.
    """

    def __init__(self, batches: TextBatches | NumberedBatches):
        super().__init__()
        self._batches = batches

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._batches.start_epoch(epoch)
        # Draws of the first epoch are Keras's own.
        if epoch == 0:
            return
        (count,) = np.random.default_rng(epoch).integers(2**32, size=1, dtype="uint32")
        for layer in quirks.nested_layers(self.model):
            generator = getattr(layer, "seed_generator", None)
            if generator is not None:
                # A seed, and how often it was drawn with.
                seed = keras.ops.convert_to_numpy(generator.state)[0]
                generator.state.assign(np.array([seed, count], "uint32"))


def with_order(callbacks: Any, batches: TextBatches | NumberedBatches) -> Any:
    """Callbacks of `fit`, before which the batches go to the epoch."""
    order = EpochOrder(batches)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.insert(0, order)
        order.set_model(callbacks.model)
        return callbacks
    return [order, *keras.tree.flatten(callbacks or [])]


class ForModel(keras.callbacks.Callback):
    """Callbacks of one model, called while another model trains its layers."""

    def __init__(self, callbacks: Any, model: keras.Model, trainer: keras.Model):
        super().__init__()
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(callbacks, model=model)
        self.callbacks, self.outer, self.trainer = callbacks, model, trainer
        model.stop_training = False
        quirks.set_first_epoch(model, None)

    def set_params(self, params: dict[str, Any]) -> None:
        self.callbacks.set_params(params)

    def forward(self, event: str, *arguments: Any, **options: Any) -> None:
        """Calls a method of the callbacks."""
        # On JAX, variables have old values until the trainer writes them.
        if hasattr(self.trainer, "jax_state_sync"):
            self.trainer.jax_state_sync()
        getattr(self.callbacks, event)(*arguments, **options)
        self.trainer.stop_training |= self.outer.stop_training
        quirks.set_first_epoch(self.trainer, quirks.first_epoch(self.outer))

    on_train_begin = functools.partialmethod(forward, "on_train_begin")
    on_train_end = functools.partialmethod(forward, "on_train_end")
    on_epoch_begin = functools.partialmethod(forward, "on_epoch_begin")
    on_epoch_end = functools.partialmethod(forward, "on_epoch_end")
    on_train_batch_begin = functools.partialmethod(forward, "on_train_batch_begin")
    on_train_batch_end = functools.partialmethod(forward, "on_train_batch_end")
    on_test_begin = functools.partialmethod(forward, "on_test_begin")
    on_test_end = functools.partialmethod(forward, "on_test_end")
    on_test_batch_begin = functools.partialmethod(forward, "on_test_batch_begin")
    on_test_batch_end = functools.partialmethod(forward, "on_test_batch_end")


class Trainer:
    """Trains and evaluates a model by Keras's loops, on ids.

    Subclasses also make batches of texts.

    Args:
        model: a `PresetModel`.
        options: keyword arguments of `fit` or its kin; those of rows are taken out.
        class_weight: as in `fit`.
    """

    def __init__(
        self,
        model: FastModel,
        options: dict[str, Any],
        class_weight: Mapping | None = None,
    ):
        self.model, self.class_weight = model, class_weight
        self.options = {
            name: options.pop(name) for name in model.row_options if name in options
        }

    def takes_texts(self, x: Texts) -> bool:
        """True for data that `read` takes; Keras's loops take other data."""
        return False

    def read(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: RowWeights = None,
        is_training: bool = False,
    ) -> Any:
        """Texts and labels as `TextData`, or what has its methods."""
        raise NotImplementedError

    def prepared(self, x: Texts, is_training: bool = False) -> Texts:
        """Data whose batches are ids, if Keras takes it; else the data unchanged."""
        return x

    def held_out(self, data: Texts, batch_size: int) -> Texts:
        """Batches of `validation_data`, as Keras evaluates on them."""
        return data

    def keras_weights(self, x: Texts = None) -> Mapping | None:
        """Weights of classes for Keras's loops on ids."""
        return self.class_weight

    def fit(
        self,
        x: Texts,
        y: Texts,
        sample_weight: RowWeights,
        batch_size: int,
        *,
        validation_data: Any,
        validation_split: float,
        validation_batch_size: int | None,
        shuffle: bool,
        seed: int,
        callbacks: Any,
        initial_epoch: int,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model; see `PresetModel.fit`."""
        model = self.model
        model.trained_columns = ()
        held_out_size = validation_batch_size or batch_size
        check_container(x, y, sample_weight, validation_split)
        if validation_data is not None:
            validation_data = self.held_out(validation_data, held_out_size)
        x = self.prepared(x, is_training=True)
        if not self.takes_texts(x):
            return FastModel.fit(
                model,
                x,
                y,
                batch_size,
                validation_data=validation_data,
                validation_split=validation_split,
                validation_batch_size=validation_batch_size,
                # A dataset has its own order.
                shuffle=shuffle and (y is not None or isinstance(x, dict)),
                class_weight=self.keras_weights(x),
                sample_weight=sample_weight,
                callbacks=callbacks,
                initial_epoch=initial_epoch,
                **options,
            )
        data = self.read(x, y, sample_weight, is_training=True)
        if validation_data is None and validation_split:
            data, held_out = data.split(validation_split, seed)
            validation_data = held_out.batches(held_out_size)
        batches = data.batches(
            batch_size,
            copies=model.row_copies,
            shuffle=shuffle,
            seed=seed,
            epoch=initial_epoch,
        )
        choose_blocks(model, batch_size * model.row_copies, data.max_length)
        callbacks = with_order(callbacks, batches)
        if data.learner is not model:
            callbacks = [ForModel(callbacks, model, data.learner)]
        model.history = FastModel.fit(
            data.learner,
            batches,
            shuffle=False,  # They shuffle by themselves, by a seed.
            validation_data=validation_data,
            initial_epoch=initial_epoch,
            callbacks=callbacks,
            **options,
        )
        return model.history

    def evaluate(
        self,
        x: Texts,
        y: Texts,
        sample_weight: RowWeights,
        batch_size: int,
        **options: Any,
    ) -> Any:
        """Computes loss and metrics; see `PresetModel.evaluate`."""
        check_container(x, y, sample_weight)
        x = self.prepared(x)
        if self.takes_texts(x):
            data = self.read(x, y, sample_weight)
            return FastModel.evaluate(data.learner, data.batches(batch_size), **options)
        options["sample_weight"] = sample_weight
        return FastModel.evaluate(self.model, x, y, batch_size, **options)

    def train_on_batch(
        self, x: Texts, y: Texts, sample_weight: RowWeights, **options: Any
    ) -> Any:
        """Trains on one batch; see `PresetModel.train_on_batch`."""
        if not self.takes_texts(x):
            return FastModel.train_on_batch(
                self.model, x, y, sample_weight, self.keras_weights(), **options
            )
        data = self.read(x, y, sample_weight, is_training=True)
        batch = data.batch(copies=self.model.row_copies)
        choose_blocks(self.model, len(next(iter(batch[0].values()))), data.max_length)
        return FastModel.train_on_batch(data.learner, *batch, **options)

    def test_on_batch(
        self, x: Texts, y: Texts, sample_weight: RowWeights, **options: Any
    ) -> Any:
        """Computes the loss of one batch; see `PresetModel.test_on_batch`."""
        if not self.takes_texts(x):
            return FastModel.test_on_batch(self.model, x, y, sample_weight, **options)
        data = self.read(x, y, sample_weight)
        return FastModel.test_on_batch(data.learner, *data.batch(), **options)

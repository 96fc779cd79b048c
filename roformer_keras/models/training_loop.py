"""Callbacks that join Keras's `fit` with the data and the models of this package."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks
from roformer_keras.layers import RoPEAttention
from roformer_keras.layers.long_attention import is_long


def choose_blocks(model: keras.Model, rows: int, length: int) -> None:
    """Has attention compute scores in blocks if those of a batch are too many.

    For TensorFlow's graphs of training, where no size is known.
    """
    for layer in quirks.nested_layers(model):
        if isinstance(layer, RoPEAttention):
            is_needed = is_long(rows, layer.num_heads, length)
            # A graph is traced again if it changes.
            layer.in_blocks = is_needed


class EpochOrder(keras.callbacks.Callback):
    """Sets the order of the rows, and what dropout draws, by the number of the epoch.

    A training that `keras.callbacks.BackupAndRestore` resumes then goes on as if it had
    not stopped.
    """

    def __init__(self, batches: Any):
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


def with_order(callbacks: Any, batches: Any) -> Any:
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
        if not self.callbacks.callbacks:
            return
        # On JAX, variables have old values until the trainer writes them.
        if hasattr(self.trainer, "jax_state_sync"):
            self.trainer.jax_state_sync()
        getattr(self.callbacks, event)(*arguments, **options)
        self.trainer.stop_training |= self.outer.stop_training
        quirks.set_first_epoch(self.trainer, quirks.first_epoch(self.outer))


def _forwarded(event: str) -> Callable:
    def method(self, *arguments, **options):
        self.forward(event, *arguments, **options)

    return method


for _event in dir(keras.callbacks.Callback):
    if _event.startswith("on_"):
        setattr(ForModel, _event, _forwarded(_event))

"""Keras's layers with the habits of Keras 2, see `keras2`."""

import functools

import keras

from roformer_keras.base.types import Unchecked
from roformer_keras.bert4keras.basic_layers import MASKED
from roformer_keras.bert4keras.node_tensors import NodeTensors, subclass_as_keras


def _initialize_lambda(
    self: keras.layers.Lambda, *arguments: Unchecked, **options: Unchecked
) -> None:
    keras.layers.Lambda.__init__(self, *arguments, **options)
    # Keras warns of layers that drop a mask and do not say so.
    self.supports_masking = True


@functools.cache
def layer_class(base: type[keras.Layer]) -> type[keras.Layer]:
    """The class of Keras's layer that scripts of Keras 2 get."""
    if base.__name__ in MASKED:
        return MASKED[base.__name__]
    is_lambda = base is keras.layers.Lambda
    methods = {"__init__": _initialize_lambda} if is_lambda else {}
    return subclass_as_keras(base, (NodeTensors,), methods)

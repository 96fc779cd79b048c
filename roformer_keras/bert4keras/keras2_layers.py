"""Keras's layers with the habits of Keras 2, see `keras2`."""

import functools
from collections.abc import Callable

import keras

from roformer_keras.bert4keras.basic_layers import MASKED
from roformer_keras.bert4keras.layer_functions import (
    MERGES,
    PLAIN,
    hide_positions,
    mask_of_branches,
)
from roformer_keras.bert4keras.node_tensors import NodeTensors, as_keras


def _mask_of_branches(self, inputs, mask=None):
    """Returns `mask_of_branches`, and notes where it differs from Keras 3.

    A layer whose numbers differ from those of Keras 3 becomes one of this package, so
    that a model of it is loaded with this package only, and gives the same numbers.
    """
    masks = mask or [None]
    is_other = any(one is not masks[0] for one in masks)
    if is_other or (masks[0] is not None and type(self).__name__ in PLAIN):
        object.__setattr__(self, "__class__", MASKED[type(self).__name__])
    return mask_of_branches(self, inputs, mask)


def _pool_visible(self, inputs, **mask):
    # A mask is no named argument of Keras's, which would be saved with the model.
    pool = keras.layers.GlobalMaxPooling1D.call
    return pool(self, hide_positions(self, inputs, **mask))


def _drop_mask(self, inputs, mask=None):
    if mask is not None:
        object.__setattr__(self, "__class__", MASKED["GlobalMaxPooling1D"])


def _initialize_lambda(self, *arguments, **options):
    keras.layers.Lambda.__init__(self, *arguments, **options)
    # Keras warns of layers that drop a mask and do not say so.
    self.supports_masking = True


# Layer -> its methods that differ.
DIFFERENT: dict[str, dict[str, Callable]] = {
    **{
        name: {"compute_mask": _mask_of_branches, **PLAIN.get(name, {})}
        for name in MERGES
    },
    "GlobalMaxPooling1D": {"call": _pool_visible, "compute_mask": _drop_mask},
    "Lambda": {"__init__": _initialize_lambda},
}


@functools.cache
def layer_class(base: type) -> type:
    """The class of Keras's layer that scripts of Keras 2 get."""
    methods = dict(DIFFERENT.get(base.__name__, {}))
    return as_keras(type(base.__name__, (NodeTensors, base), methods), base)

"""Keras's layers with the habits of Keras 2, see `keras2`."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from roformer_keras import quirks

# A mixin calls what a Keras layer has.
if TYPE_CHECKING:
    from keras import Layer as _Layer
else:
    _Layer = object


def as_keras(cls: type, base: type) -> type:
    """A class that is saved under the name of Keras's own, which then loads it."""
    cls.__name__, cls.__qualname__ = base.__name__, base.__qualname__
    cls.__module__, cls.__doc__ = base.__module__, base.__doc__
    return cls


_OLD_ORDER = ("name", "shape", "dtype", "initializer", "regularizer", "trainable")


def _shapes(tensors):
    if isinstance(tensors, list):
        return [tuple(tensor.shape) for tensor in tensors]
    return tuple(tensors.shape)


class NodeTensors(_Layer):
    """A mixin of layers that tell the tensors of their calls."""

    def __init__(self, *args: Any, **options: Any):
        from roformer_keras.bert4keras import backend

        names = ("gelu_erf", "gelu_tanh")
        args = tuple(
            getattr(backend, x) if isinstance(x, str) and x in names else x
            for x in args
        )
        if options.get("activation") in names:
            options["activation"] = getattr(backend, options["activation"])
        super().__init__(*args, **options)

    def get_input_at(self, node_index: int) -> Any:
        """The symbolic input of the layer's call of a number."""
        return self._tensors_at(node_index, "input_tensors")

    def get_output_at(self, node_index: int) -> Any:
        """The symbolic output of the layer's call of a number."""
        return self._tensors_at(node_index, "output_tensors")

    @property
    def input_shape(self) -> Any:
        """The shape of the layer's input, or a list of shapes."""
        return _shapes(self.get_input_at(0))

    @property
    def output_shape(self) -> Any:
        """The shape of the layer's output, or a list of shapes."""
        return _shapes(self.get_output_at(0))

    def add_weight(self, *args: Any, **options: Any) -> Any:
        """As in Keras, also with the name first."""
        if args and isinstance(args[0], str):
            options |= zip(_OLD_ORDER, args, strict=False)
            args = ()
        return super().add_weight(*args, **options)

    def _tensors_at(self, node_index, name):
        nodes = quirks.calls_of(self)
        if not -len(nodes) <= node_index < len(nodes):
            raise ValueError(
                f"node_index must be that of a call of the layer {self.name}, which "
                f"was called {len(nodes)} times, got {node_index}"
            )
        tensors = getattr(nodes[node_index], name)
        return tensors[0] if len(tensors) == 1 else list(tensors)


def join_masks(masks: Any) -> Any:
    """The mask of a sum: True where all branches that have a mask are visible.

    Keras 3 drops the mask if one branch has none, and else is True where any is.
    """
    given_masks = [mask for mask in masks or () if mask is not None]
    joined = given_masks[0] if given_masks else None
    for mask in given_masks[1:]:
        joined = ops.logical_and(joined, mask)
    return joined


def concatenate_masks(layer: Any, inputs: Any, mask: Any = None) -> Any:
    """The mask of a concatenation, in which a branch without a mask is visible.

    A position of joined features is visible if all branches are. Keras 3 asks for any.
    """
    if mask is None or all(one is None for one in mask):
        return None
    visible = [ops.ones_like(x, "bool") for x in inputs]
    visible = [
        ones if one is None else ops.logical_and(ones, ops.expand_dims(one, -1))
        for ones, one in zip(visible, mask, strict=True)
    ]
    return ops.all(ops.concatenate(visible, axis=layer.axis), axis=-1)


def hide_positions(pooling: keras.layers.Layer, inputs: Any, mask: Any = None) -> Any:
    """The inputs of a maximum over positions, with -inf where the mask is False.

    Args:
        pooling: the layer.
        inputs: its inputs.
        mask: of the inputs; if not given, the one that Keras has put on them.
    """
    mask = quirks.mask_of(inputs) if mask is None else mask
    if mask is None:
        return inputs
    axis = -1 if pooling.data_format == "channels_last" else 1
    visible = ops.expand_dims(ops.cast(mask, "bool"), axis)
    return ops.where(visible, inputs, ops.cast(-np.inf, inputs.dtype))


def _become(layer, name):
    """Makes a layer one that is saved as a layer of this package."""
    from roformer_keras.bert4keras import basic_layers

    object.__setattr__(layer, "__class__", basic_layers.MASKED[name])


def _joins_masks(self, inputs, mask=None):
    """`compute_mask` of a layer that adds up.

    A layer whose mask differs from that of Keras 3 becomes one of this package, so that
    a model of it is loaded with this package only, and gives the same numbers.
    """
    masks = list(mask or ())
    if any(one is not masks[0] for one in masks):
        _become(self, type(self).__name__)
    return join_masks(masks)


def _concatenates_masks(self, inputs, mask=None):
    masks = list(mask or ())
    if any(one is not masks[0] for one in masks):
        _become(self, "Concatenate")
    return concatenate_masks(self, inputs, mask)


def _pool_visible(self, inputs, **mask):
    # A mask is no named argument of Keras's, which would be saved with the model.
    pool = keras.layers.GlobalMaxPooling1D.call
    return pool(self, hide_positions(self, inputs, **mask))


def _drop_mask(self, inputs, mask=None):
    if mask is not None:
        _become(self, "GlobalMaxPooling1D")


def _initialize_lambda(self, *arguments, **options):
    keras.layers.Lambda.__init__(self, *arguments, **options)
    # Keras warns of layers that drop a mask and do not say so.
    self.supports_masking = True


MERGES = ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract")
# Layer -> its methods that differ.
DIFFERENT: dict[str, dict[str, Callable]] = {
    **{name: {"compute_mask": _joins_masks} for name in MERGES},
    "Concatenate": {"compute_mask": _concatenates_masks},
    "GlobalMaxPooling1D": {"call": _pool_visible, "compute_mask": _drop_mask},
    "Lambda": {"__init__": _initialize_lambda},
}


@functools.cache
def layer_class(base: type) -> type:
    """The class of Keras's layer that scripts of Keras 2 get."""
    methods = dict(DIFFERENT.get(base.__name__, {}))
    return as_keras(type(base.__name__, (NodeTensors, base), methods), base)

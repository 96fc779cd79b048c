"""Keras's layers with the habits of Keras 2, see `keras2`."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base import quirks

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


def named_activation(name: Any) -> Any:
    """The GELU of bert4keras that a name means; anything else as it is."""
    from roformer_keras.bert4keras import backend

    is_gelu = isinstance(name, str) and name in ("gelu_erf", "gelu_tanh")
    return getattr(backend, name) if is_gelu else name


def _is_empty(mask):
    is_several = isinstance(mask, list | tuple) and mask
    return is_several and all(one is None for one in mask)


def _without_empty_masks(method):
    @functools.wraps(method)
    def call(*args, **options):
        args = [None if _is_empty(x) else x for x in args]
        if _is_empty(options.get("mask")):
            options["mask"] = None
        return method(*args, **options)

    return call


class NodeTensors(_Layer):
    """A mixin of layers that tell the tensors of their calls.

    Subclasses get None for the mask of a list of which no tensor has a mask.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name in {"call", "compute_mask"} & vars(cls).keys():
            setattr(cls, name, _without_empty_masks(vars(cls)[name]))

    def __init__(self, *args: Any, **options: Any):
        options = {
            key: named_activation(x) if key.endswith("activation") else x
            for key, x in options.items()
        }
        super().__init__(*map(named_activation, args), **options)

    def add_metric(
        self, value: Any, aggregation: str | None = "mean", name: str | None = None
    ) -> None:
        """Shows the mean of a value over the training batches of an epoch.

        Args:
            value: float, of any shape.
            aggregation: `"mean"`, or None, which is the same.
            name: of the metric.
        """
        name = name or "metric"
        attribute = f"metric_{name}"
        if not hasattr(self, attribute):
            # Keras takes no new state once a layer is built, and only the call knows.
            with quirks.adding_state(self):
                setattr(self, attribute, keras.metrics.Mean(name=name))
        if quirks.called_in_training():
            getattr(self, attribute).update_state(ops.mean(value))

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
        """Adds a weight as Keras does; the name may come first."""
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


def join_sequences(inputs: Any, mask: Any = None) -> Any:
    """The mask of sequences one after another; one without a mask is visible."""
    if mask is None:
        return None
    masks = [
        ops.ones_like(x[..., 0], "bool") if one is None else one
        for x, one in zip(inputs, mask, strict=True)
    ]
    return ops.concatenate(masks, axis=1)


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


def mask_of_branches(layer: Any, inputs: Any, mask: Any = None) -> Any:
    """`compute_mask` of a layer that merges branches."""
    if getattr(layer, "axis", -1) in (-1, len(inputs[0].shape) - 1):
        return join_masks(mask)
    return join_sequences(inputs, mask)


def _mask_of_branches(self, inputs, mask=None):
    """Returns `mask_of_branches`, and notes where it differs from Keras 3.

    A layer whose numbers differ from those of Keras 3 becomes one of this package, so
    that a model of it is loaded with this package only, and gives the same numbers.
    """
    masks = mask or [None]
    is_other = any(one is not masks[0] for one in masks)
    if is_other or (masks[0] is not None and type(self).__name__ in PLAIN):
        _become(self, type(self).__name__)
    return mask_of_branches(self, inputs, mask)


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


MERGES = (
    *("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract"),
)
# Layers for which Keras 3 replaces numbers that a mask hides, which Keras 2 merges.
PLAIN = {
    "Maximum": quirks.merging(ops.maximum),
    "Minimum": quirks.merging(ops.minimum),
    "Multiply": quirks.merging(ops.multiply),
}
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

"""Functions that layers and `backend` share: activations, masks and rotations."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.errors import refuse
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras import keras_functions as K
from roformer_keras.layers import apply_rotary, erf_gelu
from roformer_keras.layers.norms import activation_from_name
from roformer_keras.layers.position import sinusoidal_table

MERGES = (
    "Add",
    "Average",
    "Concatenate",
    "Maximum",
    "Minimum",
    "Multiply",
    "Subtract",
)
# Layers for which Keras 3 replaces numbers that a mask hides, which Keras 2 merges.
PLAIN = {
    "Maximum": quirks.merging(ops.maximum),
    "Minimum": quirks.merging(ops.minimum),
    "Multiply": quirks.merging(ops.multiply),
}


gelu_erf = erf_gelu


@keras.saving.register_keras_serializable("roformer_keras")
def gelu_tanh(x: TensorLike) -> TensorLike:
    """The approximate GELU, with a tanh."""
    return keras.activations.gelu(x, approximate=True)


_gelu = gelu_erf


def set_gelu(version: str) -> None:
    """Chooses the GELU of models that are built from now on.

    Args:
        version: `"erf"`, the exact one and the default, or `"tanh"`.
    """
    global _gelu
    versions = {"erf": gelu_erf, "tanh": gelu_tanh}
    refuse(
        version.lower() not in versions,
        f"gelu version must be one of {', '.join(versions)}, got {version!r}",
    )
    _gelu = versions[version.lower()]


def find_activation(activation: str | Callable) -> Callable:
    """An activation by name; `"gelu"` is the one of `set_gelu`."""
    return _gelu if activation == "gelu" else activation_from_name(activation)


def named_activation(name: Unchecked) -> Unchecked:
    """The GELU of bert4keras that a name means; anything else as it is."""
    names = {"gelu_erf": gelu_erf, "gelu_tanh": gelu_tanh}
    return names.get(name, name) if isinstance(name, str) else name


# === Masks ===


def join_masks(masks: TensorLike) -> TensorLike:
    """The mask of a sum: True where all branches that have a mask are visible.

    Keras 3 drops the mask if one branch has none, and else is True where any is.
    """
    given_masks = [mask for mask in masks or () if mask is not None]
    joined = given_masks[0] if given_masks else None
    for mask in given_masks[1:]:
        joined = ops.logical_and(joined, mask)
    return joined


def join_sequences(inputs: TensorLike, mask: TensorLike = None) -> TensorLike:
    """The mask of sequences one after another; one without a mask is visible."""
    if mask is None:
        return None
    masks = [
        ops.ones_like(x[..., 0], "bool") if one is None else one
        for x, one in zip(inputs, mask, strict=True)
    ]
    return ops.concatenate(masks, axis=1)


def hide_positions(
    pooling: keras.layers.Layer, inputs: TensorLike, mask: TensorLike = None
) -> TensorLike:
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


def mask_of_branches(
    layer: keras.Layer, inputs: TensorLike, mask: TensorLike = None
) -> TensorLike:
    """`compute_mask` of a layer that merges branches."""
    if getattr(layer, "axis", -1) in (-1, len(inputs[0].shape) - 1):
        return join_masks(mask)
    return join_sequences(inputs, mask)


def align(tensor: TensorLike, axes: list[int], ndim: int | None = None) -> TensorLike:
    """`tensor` with new axes of size 1, so that axis `i` becomes axis `axes[i]`.

    Args:
        axes: ascending, one for each axis of the tensor.
        ndim: number of axes of the result; by default as many as `axes` needs.
    """
    ndim = ndim or max(axes) + 1
    target_axes = [axis % ndim for axis in axes]
    return ops.expand_dims(tensor, [i for i in range(ndim) if i not in target_axes])


def sequence_masking(
    x: TensorLike,
    mask: TensorLike = None,
    value: TensorLike = 0,
    axis: int | list[int] | None = None,
    bias: TensorLike = None,
    return_mask: bool = False,
) -> TensorLike:
    """`x` with a value in place of the positions that a mask hides.

    Args:
        x: `(batch, ..., length, ...)`.
        mask: None, or `(batch, length)`; 0 or False hides.
        value: number, or `"-inf"` or `"inf"`.
        axis: int or list of int, where positions are; 1 by default.
        bias: None; or bool, a mask more; or float, which is added to `x` first. It is
            broadcast to `x`.
        return_mask: bool. Whether to return the mask too, as it was applied.
    """
    value = float(value) if isinstance(value, str) else value
    masks = []
    if mask is not None:
        ndim = len(x.shape)
        mask = ops.cast(mask, "bool")
        for place in axis if isinstance(axis, list) else [1 if axis is None else axis]:
            masks.append(align(mask, [0, place % ndim], ndim))
    if bias is not None and K.dtype(bias) == "bool":
        masks.append(bias)
    elif bias is not None:
        x = x + bias
    visible = join_masks(masks)
    if visible is not None:
        x = ops.where(visible, x, ops.cast(value, x.dtype))
    return (x, visible) if return_mask else x


# === Positions ===


sinusoidal_embeddings = sinusoidal_table


def sines_and_cosines(sinusoidal: TensorLike) -> tuple:
    """Result of `layers.rotary_table`, from `sinusoidal_embeddings`."""
    return tuple(ops.repeat(sinusoidal[..., first::2], 2, axis=-1) for first in (0, 1))


def apply_rotary_position_embeddings(
    sinusoidal: TensorLike, *tensors: TensorLike
) -> TensorLike:
    """Turns each pair of features by the angle of its position.

    Args:
        sinusoidal: `(batch or 1, length, dim)`, from `sinusoidal_embeddings`.
        tensors: `(batch, length, ..., dim)`.

    Returns:
        The tensors, turned; one alone if one was given.
    """
    sin, cos = sines_and_cosines(sinusoidal)
    turned = []
    for tensor in tensors:
        sizes = ops.shape(tensor)
        heads = ops.reshape(tensor, (*sizes[:2], -1, tensor.shape[-1]))
        turned.append(ops.reshape(apply_rotary(heads, sin, cos), sizes))
    return turned[0] if len(turned) == 1 else turned

"""`bert4keras.backend`: Keras, its functions as `K`, and what models are made with."""

from collections.abc import Callable, Sequence

import keras as _keras3
import numpy as np
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.keras_backend import name_error
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras import keras_functions as K
from roformer_keras.bert4keras.keras2 import keras
from roformer_keras.bert4keras.keras2_models import model_of_loss
from roformer_keras.bert4keras.keras_functions import flatten, reshape, symbolic
from roformer_keras.bert4keras.layer_functions import (
    align,
    apply_rotary_position_embeddings,
    gelu_erf,
    gelu_tanh,
    sequence_masking,
    set_gelu,
    sinusoidal_embeddings,
)
from roformer_keras.layers import multilabel_categorical_crossentropy
from roformer_keras.optimizers import PiecewiseLinear

__all__ = [
    "K",
    "Sinusoidal",
    "align",
    "apply_rotary_position_embeddings",
    "batch_gather",
    "flatten",
    "gelu_erf",
    "gelu_tanh",
    "get_available_gpus",
    "is_tf_keras",
    "keras",
    "leaky_relu",
    "multilabel_categorical_crossentropy",
    "piecewise_linear",
    "recompute_grad",
    "reshape",
    "root_mean_square",
    "search_layer",
    "sequence_masking",
    "set_gelu",
    "sinusoidal_embeddings",
    "sparse_multilabel_categorical_crossentropy",
    "swish",
    "symbolic",
]


def __getattr__(name: str) -> Unchecked:
    raise name_error(__name__, name, __all__)


# Scripts ask whether Keras comes from TensorFlow; that of Keras 3 does as well.
is_tf_keras = True
swish = ops.silu


def leaky_relu(x: TensorLike, alpha: float = 0.2) -> TensorLike:
    """`x`, or `alpha * x` below 0."""
    return ops.leaky_relu(x, alpha)


def root_mean_square(
    x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> TensorLike:
    """The root of the mean square."""
    return ops.sqrt(ops.mean(ops.square(x), axis=axis, keepdims=keepdims))


def get_available_gpus() -> list[str]:
    """The names of the GPUs that Keras's backend has."""
    return list(keras.distribution.list_devices("gpu"))


def search_layer(
    inputs: TensorLike, name: str, exclude_from: set | None = None
) -> keras.layers.Layer | None:
    """The layer of a name that a tensor, or a layer, was computed by or after.

    Args:
        inputs: symbolic tensor, or layer. In a loss, where tensors have values, the
            layer is looked for in the model that is trained.
        name: of the layer.
        exclude_from: layers that are not searched; those that are are added.

    Returns:
        The layer, or None. Layers of models on the way are searched too.

    Raises:
        ConfigurationError: the tensor is not symbolic, and no loss is computed.
    """
    seen = set() if exclude_from is None else exclude_from
    if isinstance(inputs, _keras3.Operation):
        waiting = [inputs]
    elif K.is_keras_tensor(inputs):
        waiting = [quirks.maker_of(inputs)]
    elif (trained := model_of_loss()) is not None:
        waiting = [trained]
    else:
        raise ConfigurationError(
            "search_layer needs a layer, a symbolic tensor such as model.output, or a "
            f"tensor in the loss of a model, got {type(inputs).__name__}"
        )
    while waiting:
        layer = waiting.pop(0)
        if layer.name == name:
            return layer
        if layer in seen:
            continue
        seen.add(layer)
        if isinstance(layer, _keras3.Model):
            for own in layer.layers:
                if own.name == name:
                    return own
        for node in quirks.calls_of(layer)[:1]:
            waiting += [parent.operation for parent in node.parent_nodes]
    return None


# === Shapes ===


def batch_gather(params: TensorLike, indices: TensorLike) -> TensorLike:
    """Elements of `params` by indices, row by row.

    Args:
        params: `(..., n)` or `(..., n, dim)`.
        indices: `(..., m)`, of any number type.

    Returns:
        `(..., m)` or `(..., m, dim)`.
    """
    indices = ops.cast(indices, "int32")
    axis = len(indices.shape) - 1
    for _ in range(len(params.shape) - len(indices.shape)):
        indices = ops.expand_dims(indices, -1)
    return ops.take_along_axis(params, indices, axis=axis)


class Sinusoidal(keras.initializers.Initializer):
    """Initializes a table of positions with `sinusoidal_embeddings`."""

    def __call__(self, shape: tuple[int, int], dtype: str | None = None) -> TensorLike:
        size, dim = shape
        return sinusoidal_embeddings(ops.arange(size, dtype="float32"), dim)


# === Losses and schedules ===


def sparse_multilabel_categorical_crossentropy(
    y_true: TensorLike, y_pred: TensorLike, mask_zero: bool = False
) -> TensorLike:
    """The cross-entropy of several classes at once, given as class numbers.

    It computes what bert4keras does: a class that comes twice counts twice. The
    package's own `roformer_keras.layers.sparse_multilabel_categorical_crossentropy`
    does not, and is exact where targets score well.

    Args:
        y_true: `(..., max_targets)`, of any number type.
        y_pred: float `(..., classes)`, without activation.
        mask_zero: bool. Whether class 0 is padding.

    Returns:
        float `(...)`.

    Source: https://kexue.fm/archives/7359
    """
    zeros = ops.zeros_like(y_pred[..., :1])
    scores = ops.concatenate([y_pred, zeros], axis=-1)
    in_favour = scores
    if mask_zero:
        # Class 0 adds exp(-inf) on either side.
        in_favour = ops.concatenate([zeros + np.inf, scores[..., 1:]], axis=-1)
        scores = ops.concatenate([zeros - np.inf, scores[..., 1:]], axis=-1)
    positives = ops.concatenate([batch_gather(in_favour, y_true), zeros], axis=-1)
    positive = ops.logsumexp(-positives, axis=-1)
    total = ops.logsumexp(scores, axis=-1)
    share = ops.logsumexp(batch_gather(scores, y_true), axis=-1) - total
    remainder = ops.clip(1 - ops.exp(share), keras.config.epsilon(), 1)
    return positive + total + ops.log(remainder)


def piecewise_linear(
    t: TensorLike, schedule: dict[int, float], from_zero: bool = True
) -> TensorLike:
    """A factor that moves linearly between given steps.

    Args:
        t: number, or scalar tensor: the step.
        schedule: dict of step to factor; after its last step the factor stays.
        from_zero: bool. Whether step 0, unless given, has the factor 0.
    """
    points = sorted(schedule.items())
    if points[0][0] > 0 and not from_zero:
        points.insert(0, (0, points[0][1]))
    return PiecewiseLinear(1.0, points)(t)


# === What changes nothing on Keras 3 ===


def recompute_grad(call: Callable) -> Callable:
    """`call`. Backbones of this package have `gradient_checkpointing` instead."""
    return call

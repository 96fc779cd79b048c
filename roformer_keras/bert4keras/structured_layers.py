"""bert4keras's layers that predict tags and spans."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras.node_tensors import NodeTensors
from roformer_keras.layers import ConditionalRandomField as _ConditionalRandomField
from roformer_keras.layers import EfficientGlobalPointer as _EfficientGlobalPointer
from roformer_keras.layers import GlobalPointer as _GlobalPointer

_serializable = keras.saving.register_keras_serializable("bert4keras")


def _tags(y_true: TensorLike, scores: TensorLike) -> TensorLike:
    """int `(batch, length)` of tags in any number type, whose sizes may be unknown."""
    return ops.reshape(ops.cast(y_true, "int32"), ops.shape(scores)[:-1])


@_serializable
class ConditionalRandomField(NodeTensors, _ConditionalRandomField):
    """A conditional random field, whose loss is given to `compile`.

    Args:
        lr_multiplier: number above 0, which multiplies the rate of the transitions.

    Attributes:
        trans: float `(num_tags, num_tags)`, the scores of transitions.
    """

    original_parts: ClassVar[dict[str, str]] = {"kernel": "_trans"}

    def __init__(self, lr_multiplier: float = 1, **kwargs: Unchecked):
        super().__init__(learning_rate_multiplier=lr_multiplier, **kwargs)
        self.lr_multiplier = lr_multiplier

    @property
    def trans(self) -> TensorLike:
        return self.transitions

    def sparse_loss(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """The loss of tags `(batch, length)`: float `(batch,)`."""
        return self.loss(_tags(y_true, y_pred), y_pred)

    def sparse_accuracy(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """The share of visible positions where the tag scores best."""
        visible = ops.all(ops.not_equal(y_pred, -np.inf), axis=2)
        visible = ops.cast(visible, "float32")
        best = ops.cast(ops.argmax(y_pred, axis=2), "int32")
        is_right = ops.cast(ops.equal(_tags(y_true, y_pred), best), "float32")
        return ops.sum(is_right * visible) / ops.sum(visible)

    def dense_loss(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """`sparse_loss` of one-hot tags `(batch, length, num_tags)`."""
        return self.sparse_loss(ops.argmax(y_true, axis=2), y_pred)

    def dense_accuracy(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        """`sparse_accuracy` of one-hot tags."""
        return self.sparse_accuracy(ops.argmax(y_true, axis=2), y_pred)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["lr_multiplier"] = config.pop("learning_rate_multiplier")
        return config


class _Pointer(NodeTensors):
    """Arguments and configuration of both pointers in bert4keras's words."""

    def __init__(
        self,
        heads: int,
        head_size: int,
        RoPE: bool = True,
        use_bias: bool = True,
        tril_mask: bool = True,
        kernel_initializer: str | keras.Initializer = "lecun_normal",
        **kwargs: Unchecked,
    ):
        super().__init__(
            num_heads=heads,
            head_dim=head_size,
            use_rotary=RoPE,
            use_bias=use_bias,
            upper_triangular=tril_mask,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        self.supports_masking = True
        self.heads = heads
        self.head_size = head_size
        self.RoPE = RoPE
        self.tril_mask = tril_mask

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for theirs, ours in (
            ("heads", "num_heads"),
            ("head_size", "head_dim"),
            ("RoPE", "use_rotary"),
            ("tril_mask", "upper_triangular"),
        ):
            config[theirs] = config.pop(ours)
        return config


@_serializable
class GlobalPointer(_Pointer, _GlobalPointer):
    """A score for each span and type, see `roformer_keras.layers.GlobalPointer`.

    Args:
        heads, head_size, RoPE, use_bias, tril_mask: as `num_heads`, `head_dim`,
            `use_rotary`, `use_bias` and `upper_triangular` there.
    """


@_serializable
class EfficientGlobalPointer(_Pointer, _EfficientGlobalPointer):
    """`roformer_keras.layers.EfficientGlobalPointer`.

    Args:
        heads, head_size, RoPE, use_bias, tril_mask: as in `GlobalPointer`.
    """

    original_parts: ClassVar[dict[str, str]] = {
        "dense": "p_dense",
        "type_dense": "q_dense",
    }

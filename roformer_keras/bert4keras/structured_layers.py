"""bert4keras's layers that predict tags and spans."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from roformer_keras.bert4keras import keras_functions as K
from roformer_keras.bert4keras.keras2_layers import NodeTensors
from roformer_keras.layers import ConditionalRandomField as _ConditionalRandomField
from roformer_keras.layers import EfficientGlobalPointer as _EfficientGlobalPointer
from roformer_keras.layers import GlobalPointer as _GlobalPointer

_serializable = keras.saving.register_keras_serializable("bert4keras")


def _visible(scores):
    """bool `(batch, length)`: positions whose scores are not -inf."""
    return ops.all(ops.not_equal(scores, -np.inf), axis=2)


def _tags(y_true, scores):
    """int `(batch, length)` of tags in any number type, whose sizes may be unknown."""
    return ops.reshape(ops.cast(y_true, "int32"), ops.shape(scores)[:-1])


class _OneHotTags(NodeTensors):
    """A base of layers whose loss and accuracy take one-hot tags as well."""

    sparse_loss: Any
    sparse_accuracy: Any

    def dense_loss(self, y_true: Any, y_pred: Any) -> Any:
        """`sparse_loss` of one-hot tags `(batch, length, num_tags)`."""
        return self.sparse_loss(ops.argmax(y_true, axis=2), y_pred)

    def dense_accuracy(self, y_true: Any, y_pred: Any) -> Any:
        """`sparse_accuracy` of one-hot tags."""
        return self.sparse_accuracy(ops.argmax(y_true, axis=2), y_pred)


@_serializable
class ConditionalRandomField(_OneHotTags, _ConditionalRandomField):
    """A conditional random field, whose loss is given to `compile`.

    Args:
        lr_multiplier: number above 0, which multiplies the rate of the transitions.

    Attributes:
        trans: float `(num_tags, num_tags)`, the scores of transitions.
    """

    original_parts: ClassVar[dict[str, str]] = {"kernel": "_trans"}

    def __init__(self, lr_multiplier: float = 1, **kwargs: Any):
        super().__init__(learning_rate_multiplier=lr_multiplier, **kwargs)
        self.lr_multiplier = lr_multiplier

    @property
    def trans(self) -> Any:
        return self.transitions

    def sparse_loss(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of tags `(batch, length)`: float `(batch,)`."""
        return self.loss(_tags(y_true, y_pred), y_pred)

    def sparse_accuracy(self, y_true: Any, y_pred: Any) -> Any:
        """The share of visible positions where the tag scores best."""
        visible = ops.cast(_visible(y_pred), "float32")
        best = ops.cast(ops.argmax(y_pred, axis=2), "int32")
        is_right = ops.cast(ops.equal(_tags(y_true, y_pred), best), "float32")
        return ops.sum(is_right * visible) / ops.sum(visible)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["lr_multiplier"] = config.pop("learning_rate_multiplier")
        return config


@_serializable
class MaximumEntropyMarkovModel(_OneHotTags, keras.layers.Layer):
    """Tags that depend on the one before, and in the other direction on the one after.

    Args:
        lr_multiplier: number above 0, which multiplies the rate of the transitions.
        hidden_dim: int or None. Rank of the transitions, as a product of two tables.

    Attributes:
        trans: float `(num_tags, num_tags)`; `l_trans` and `r_trans` `(num_tags,
            hidden_dim)` in its place with `hidden_dim`.

    Source: https://kexue.fm/archives/7213
    """

    original_parts: ClassVar[dict[str, str]] = {
        "trans": "_trans",
        "l_trans": "_l_trans",
        "r_trans": "_r_trans",
    }

    def __init__(
        self, lr_multiplier: float = 1, hidden_dim: int | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.lr_multiplier = lr_multiplier
        self.hidden_dim = hidden_dim

    def build(self, input_shape: Any) -> None:
        num_tags = input_shape[-1]
        initializer = keras.initializers.GlorotUniform()

        def divided(shape, dtype=None):
            return initializer(shape, dtype=dtype) / self.lr_multiplier

        names = ["trans"] if self.hidden_dim is None else ["l_trans", "r_trans"]
        for name in names:
            shape = (num_tags, self.hidden_dim or num_tags)
            weight = self.add_weight(name=name, shape=shape, initializer=divided)
            setattr(self, f"_{name}", weight)

    @property
    def trans(self) -> Any:
        return self.lr_multiplier * self._trans

    @property
    def l_trans(self) -> Any:
        return self.lr_multiplier * self._l_trans

    @property
    def r_trans(self) -> Any:
        return self.lr_multiplier * self._r_trans

    def call(self, inputs: Any, mask: Any = None) -> Any:
        if mask is None:
            return inputs
        return ops.where(mask[..., None], inputs, -np.inf)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return None

    def _scores(self, y_true, y_pred, go_backwards):
        """Tags, scores with those of transitions, and visible positions."""
        visible = _visible(y_pred)
        y_true = _tags(y_true, y_pred)
        if self.hidden_dim is None:
            table = ops.transpose(self.trans) if go_backwards else self.trans
        else:
            left, right = self.l_trans, self.r_trans
            left, right = (right, left) if go_backwards else (left, right)
            table = ops.matmul(left, ops.transpose(right))
        if go_backwards:
            y_true, y_pred = _reversed(y_true, visible), _reversed(y_pred, visible)
        history = ops.take(table, y_true, axis=0)
        history = ops.concatenate([y_pred[:, :1], history[:, :-1]], axis=1)
        return y_true, (y_pred + history) / 2, visible

    def basic_loss(self, y_true: Any, y_pred: Any, go_backwards: bool = False) -> Any:
        """The loss of tags `(batch, length)` in one direction: a scalar."""
        y_true, scores, visible = self._scores(y_true, y_pred, go_backwards)
        scores = ops.where(visible[..., None], scores, 0.0)
        loss = K.sparse_categorical_crossentropy(y_true, scores, from_logits=True)
        weights = ops.cast(visible, loss.dtype)
        return ops.sum(loss * weights) / ops.sum(weights)

    def sparse_loss(self, y_true: Any, y_pred: Any) -> Any:
        """The mean loss of both directions, of tags `(batch, length)`: a scalar."""
        both = (self.basic_loss(y_true, y_pred, back) for back in (False, True))
        return sum(both) / 2

    def basic_accuracy(
        self, y_true: Any, y_pred: Any, go_backwards: bool = False
    ) -> Any:
        """The share of right tags in one direction, given the one before."""
        y_true, scores, visible = self._scores(y_true, y_pred, go_backwards)
        best = ops.cast(ops.argmax(scores, axis=2), "int32")
        weights = ops.cast(visible, "float32")
        is_right = ops.cast(ops.equal(y_true, best), "float32")
        return ops.sum(is_right * weights) / ops.sum(weights)

    def sparse_accuracy(self, y_true: Any, y_pred: Any) -> Any:
        """The mean share of right tags of both directions."""
        both = (self.basic_accuracy(y_true, y_pred, back) for back in (False, True))
        return sum(both) / 2

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.update(lr_multiplier=self.lr_multiplier, hidden_dim=self.hidden_dim)
        return config


def _reversed(x, visible):
    """The visible positions of each row in reverse order; the others stay."""
    count = ops.sum(ops.cast(visible, "int32"), axis=1, keepdims=True)
    positions = ops.arange(ops.shape(visible)[1], dtype="int32")[None]
    positions = ops.where(positions < count, count - 1 - positions, positions)
    if len(x.shape) == 3:
        positions = positions[..., None]
    return ops.take_along_axis(x, positions, axis=1)


class _Pointer(NodeTensors):
    """Arguments and configuration of both pointers in bert4keras's words."""

    def __init__(
        self,
        heads: int,
        head_size: int,
        RoPE: bool = True,
        use_bias: bool = True,
        tril_mask: bool = True,
        kernel_initializer: Any = "lecun_normal",
        **kwargs: Any,
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

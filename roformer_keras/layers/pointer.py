"""Scores of spans, by their first and last tokens, for each type of span.

Spans are rows `(head, start, end)`, both ends inclusive. A row with a number below 0 or
beyond the scores is no span, so batches can be padded with -1 and texts can be cut.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.position import apply_rotary, rotary_table

# === Layers ===


class _SpanScores(ConfiguredLayer):
    """Base of both pointers: rotation, product and masks; a subclass projects."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        use_rotary: bool = True,
        use_bias: bool = True,
        upper_triangular: bool = True,
        kernel_initializer: Any = "lecun_normal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        for name, value in (("num_heads", num_heads), ("head_dim", head_dim)):
            refuse(
                value < 1,
                f"{name} must be at least 1, got {value!r}",
            )
        refuse(
            use_rotary and head_dim % 2,
            "head_dim must be even with use_rotary, because RoPE turns features "
            f"in pairs; got {head_dim!r}",
        )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.use_rotary = use_rotary
        self.use_bias = use_bias
        self.upper_triangular = upper_triangular
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _dense(self, units, name):
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            # In some backends, a shared initializer object would give equal weights.
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _project(self, x):
        """Starts and ends `(batch, length, heads or 1, head_dim)`, and a bias."""
        raise NotImplementedError

    def call(self, x: TensorLike, mask: TensorLike = None) -> TensorLike:
        length = ops.shape(x)[1]
        starts, ends, bias = self._project(x)
        scale = self.head_dim**-0.5
        if self.use_rotary:
            sin, cos = rotary_table(ops.arange(length)[None], self.head_dim)
            # Scaling the small rotation table scales the scores.
            starts = apply_rotary(starts, sin * scale, cos * scale)
            ends = apply_rotary(ends, sin, cos)
        else:
            starts = starts * scale
        scores = ops.einsum("bshd,behd->bhse", starts, ends) + bias
        visible = self._visible(length, x.shape, mask)
        return scores if visible is None else ops.where(visible, scores, -np.inf)

    def _visible(self, length, x_shape, mask):
        """bool, broadcastable to the scores; None if all spans are visible."""
        visible = None
        if self.upper_triangular:
            positions = ops.arange(length)
            visible = ops.less_equal(positions[:, None], positions[None, :])[None, None]
        if mask is not None:
            mask = _checked_mask(mask, x_shape)
            both = ops.logical_and(mask[:, None, :, None], mask[:, None, None, :])
            visible = both if visible is None else ops.logical_and(visible, both)
        return visible

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike = None
    ) -> TensorLike:
        # The scores carry the mask.
        return None


@keras.saving.register_keras_serializable("roformer_keras")
class GlobalPointer(_SpanScores):
    """A score for each span and type: the product of its start and its end.

    Each type of span is a head. Its starts are queries and its ends are keys. RoPE
    rotates both, so a score depends on the length of the span.

    Args:
        num_heads: int, at least 1. Types of spans.
        head_dim: int, even with `use_rotary`. Features per head.
        use_rotary: bool. Whether starts and ends are rotated by position.
        use_bias: bool. Whether the projection has a bias.
        upper_triangular: bool. Whether no span ends before it starts.
        kernel_initializer: initializer of the projection.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`; True where a token may start or end a span.

    Returns:
        float `(batch, num_heads, length, length)`, over starts and ends. A span is
        predicted where its score is above 0; impossible spans have -inf, as in
        bert4keras.

    Raises:
        ConfigurationError: an argument breaks its rule.
        ValueError: `x` or `mask` has a wrong shape.

    Example:
        >>> pointer = layers.GlobalPointer(num_heads=3, head_dim=8)
        >>> ops.shape(pointer(np.ones((1, 5, 16))))
        (1, 3, 5, 5)

    Source: Su et al. 2022, arXiv:2208.03054; https://kexue.fm/archives/8373
    """

    def build(self, input_shape: Shape) -> None:
        _check_input(input_shape)
        self.dense = self._dense(2 * self.num_heads * self.head_dim, "dense")
        self.dense.build(input_shape)

    def _project(self, x):
        batch, length = ops.shape(x)[:2]
        # A head's features for starts precede those for ends.
        projected = ops.reshape(
            self.dense(x), (batch, length, self.num_heads, 2, self.head_dim)
        )
        return projected[..., 0, :], projected[..., 1, :], 0.0


@keras.saving.register_keras_serializable("roformer_keras")
class EfficientGlobalPointer(_SpanScores):
    """`GlobalPointer` with one product for all types, and two biases per type.

    The product, of one head, scores the presence of a span. Two biases, for its start
    and for its end, score its type from the features of both.

    Args:
        num_heads: int, at least 1. Types of spans.
        head_dim: int, even with `use_rotary`. Features of a start, and of an end.
        use_rotary: as for `GlobalPointer`.
        use_bias: bool. Whether both projections have a bias.
        upper_triangular: as for `GlobalPointer`.
        kernel_initializer: initializer of both projections.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        x: float `(batch, length, hidden_dim)`.
        mask: bool `(batch, length)`; True where a token may start or end a span.

    Returns:
        As in `GlobalPointer`.

    Raises:
        ConfigurationError: an argument breaks its rule.
        ValueError: `x` or `mask` has a wrong shape.

    Example:
        >>> pointer = layers.EfficientGlobalPointer(num_heads=3, head_dim=8)
        >>> ops.shape(pointer(np.ones((1, 5, 16))))
        (1, 3, 5, 5)

    Source: Su et al. 2022, arXiv:2208.03054; https://kexue.fm/archives/8877
    """

    def build(self, input_shape: Shape) -> None:
        _check_input(input_shape)
        self.dense = self._dense(2 * self.head_dim, "dense")
        self.dense.build(input_shape)
        self.type_dense = self._dense(2 * self.num_heads, "type_dense")
        self.type_dense.build((*input_shape[:-1], 2 * self.head_dim))

    def _project(self, x):
        batch, length = ops.shape(x)[:2]
        projected = self.dense(x)
        # The features of starts and ends alternate.
        pairs = ops.reshape(projected, (batch, length, 1, self.head_dim, 2))
        # A type's biases for ends and for starts alternate, too.
        added = ops.reshape(
            self.type_dense(projected) / 2, (batch, length, self.num_heads, 2)
        )
        # (batch, length, heads, 2) -> (batch, heads, length, 2)
        added = ops.transpose(added, (0, 2, 1, 3))
        bias = added[:, :, None, :, 0] + added[:, :, :, None, 1]
        return pairs[..., 0], pairs[..., 1], bias


def _check_input(shape):
    if len(shape) != 3:
        raise ValueError(
            f"x must be of shape (batch, length, hidden_dim), got {tuple(shape)}"
        )


def _checked_mask(mask, x_shape):
    mask = ops.cast(mask, "bool")
    sizes = (mask.shape[-1], x_shape[1])
    if len(mask.shape) != 2 or (None not in sizes and sizes[0] != sizes[1]):
        raise ValueError(
            "mask must be bool (batch, length), True where a token counts; x is "
            f"{tuple(x_shape)}, got {tuple(mask.shape)}"
        )
    return mask


# === Losses ===


def multilabel_categorical_crossentropy(
    targets: TensorLike, scores: TensorLike
) -> TensorLike:
    """A loss that moves target classes above 0, and all others below.

    `log(1 + sum of exp(s))` over classes that are no targets, plus
    `log(1 + sum of exp(-s))` over targets. Classes with score -inf are left out.

    Args:
        targets: bool, or float probabilities, of the shape of `scores`.
        scores: float `(..., classes)`, with no activation.

    Returns:
        float32 `(...)`.

    Example:
        >>> scores, targets = np.array([[3.0, -3.0, -3.0]]), np.array([[1, 0, 0]])
        >>> loss = layers.multilabel_categorical_crossentropy(targets, scores)
        >>> round(float(loss[0]), 3)
        0.144

    Source: Su et al. 2022, arXiv:2208.02955; https://kexue.fm/archives/7359
    """
    targets = ops.cast(targets, "float32")
    scores = ops.cast(scores, "float32")
    visible = ops.not_equal(scores, -np.inf)
    against = ops.where(visible, scores + ops.log(1.0 - targets), -np.inf)
    in_favour = ops.where(visible, ops.log(targets) - scores, -np.inf)
    # The 1 in each logarithm is one more term, exp(0).
    zero = ops.zeros_like(scores[..., :1])
    return ops.logsumexp(
        ops.concatenate([against, zero], axis=-1), axis=-1
    ) + ops.logsumexp(ops.concatenate([in_favour, zero], axis=-1), axis=-1)


def sparse_multilabel_categorical_crossentropy(
    targets: TensorLike, scores: TensorLike
) -> TensorLike:
    """`multilabel_categorical_crossentropy` for targets given as class numbers.

    bert4keras subtracts the targets' sum from the sum over all classes, which cancels
    in float32 for targets with high scores: its loss is 3.9 too high for a target that
    scores 20. This loss is exact. bert4keras also counts a repeated class twice, and
    may take class 0 for padding.

    Args:
        targets: int `(..., max_targets)`; numbers that are not classes, such as -1, are
            ignored.
        scores: float `(..., classes)`, with no activation.

    Returns:
        float32 `(...)`.

    Example:
        >>> scores, targets = np.array([[3.0, -3.0, -3.0]]), np.array([[0, -1]])
        >>> loss = layers.sparse_multilabel_categorical_crossentropy(targets, scores)
        >>> round(float(loss[0]), 3)
        0.144

    Source: https://kexue.fm/archives/7359
    """
    scores = ops.convert_to_tensor(scores)
    targets = ops.cast(targets, "int32")
    classes = ops.shape(scores)[-1]
    rows = ops.size(scores) // classes
    # The number of rows is given, because there may be no target.
    flat = ops.reshape(targets, (rows, ops.shape(targets)[-1]))
    is_target = ops.reshape(_marked(flat, rows, classes), ops.shape(scores))
    return multilabel_categorical_crossentropy(is_target, scores)


def _marked(numbers, rows, size):
    """bool `(rows, size)`: True at the numbers `(rows, most)` that are in range."""
    row = ops.arange(rows, dtype="int32")[:, None]
    is_any = ops.logical_and(numbers >= 0, numbers < size)
    # An additional column collects all numbers out of range.
    index = ops.where(is_any, row * size + numbers, rows * size)
    index = ops.reshape(index, (-1, 1))
    marks = ops.scatter_update(
        ops.zeros((rows * size + 1,), "int32"),
        index,
        ops.ones_like(index[:, 0]),
    )
    return ops.reshape(ops.cast(marks[:-1], "bool"), (rows, size))


def _is_span(spans, scores):
    """bool `(batch, heads, length, length)` from targets in either form."""
    if len(scores.shape) != 4:
        raise ValueError(
            "scores must be of shape (batch, heads, length, length), got "
            f"{tuple(scores.shape)}"
        )
    if len(spans.shape) == 4:
        return ops.cast(spans, "bool")
    if len(spans.shape) != 3 or spans.shape[-1] not in (3, None):
        raise ValueError(
            "spans must be rows (head, start, end) of shape (batch, spans, 3), padded "
            "with -1, or bool (batch, heads, length, length); got "
            f"{tuple(spans.shape)}"
        )
    spans = ops.cast(spans, "int32")
    batch, heads, length = ops.shape(scores)[:3]
    number = (spans[..., 0] * length + spans[..., 1]) * length + spans[..., 2]
    in_range = ops.logical_and(spans >= 0, spans < ops.stack([heads, length, length]))
    number = ops.where(ops.all(in_range, axis=-1), number, -1)
    marked = _marked(number, batch, heads * length * length)
    return ops.reshape(marked, (batch, heads, length, length))


@keras.saving.register_keras_serializable("roformer_keras")
class SpanCrossentropy(keras.losses.Loss):
    """`multilabel_categorical_crossentropy` over all spans of a type, for a pointer.

    Targets are int `(batch, spans, 3)`, rows `(head, start, end)` padded with -1, or
    bool `(batch, heads, length, length)`. Outputs are the scores of a pointer. The loss
    is the mean over heads and the weighted mean over rows.

    Args:
        name: str. Name of the loss.
        reduction: as in `keras.losses.Loss`.

    Raises:
        ValueError: targets or outputs have a wrong shape.

    Example:
        >>> loss = layers.SpanCrossentropy()
        >>> targets = np.array([[[0, 1, 2], [-1, -1, -1]]])  # one span, and padding
        >>> round(float(loss(targets, np.zeros((1, 1, 4, 4)))), 3)
        3.466

    Source: Su et al. 2022, arXiv:2208.03054; https://kexue.fm/archives/7359
    """

    def __init__(
        self,
        name: str = "span_crossentropy",
        reduction: str | None = "mean_with_sample_weight",
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        is_span = _is_span(y_true, y_pred)
        batch, heads = ops.shape(y_pred)[:2]
        each = multilabel_categorical_crossentropy(
            ops.reshape(is_span, (batch, heads, -1)),
            ops.reshape(y_pred, (batch, heads, -1)),
        )
        return ops.mean(each, axis=-1)


# === Predicted spans ===


def find_spans(scores: TensorLike, threshold: float = 0.0) -> list[np.ndarray]:
    """The spans that score above a threshold.

    Args:
        scores: float array `(batch, heads, length, length)`.
        threshold: float. The loss trains for 0.

    Returns:
        list of int arrays `(spans, 3)`, one per row of the batch: head, start, end.

    Example:
        >>> scores = np.full((1, 2, 4, 4), -1.0)
        >>> scores[0, 1, 0, 2] = 3.0
        >>> layers.find_spans(scores)
        [array([[1, 0, 2]])]
    """
    return [np.argwhere(row > threshold) for row in ops.convert_to_numpy(scores)]


@keras.saving.register_keras_serializable("roformer_keras")
class SpanF1(keras.metrics.Metric):
    """The F1 of exact spans, over all batches and types together.

    Targets and outputs are as in `SpanCrossentropy`. A span is predicted if its score
    is above the threshold, and correct if type, start and end match a target. The F1 is
    0 without targets and predicted spans.

    Args:
        threshold: float. Spans with a higher score are predicted.
        name: str. Name of the metric.
        dtype: type of the counts, as in `keras.metrics.Metric`.

    Example:
        >>> metric = metrics.SpanF1()
        >>> scores = np.full((1, 1, 4, 4), -1.0)
        >>> scores[0, 0, 1, 2] = scores[0, 0, 3, 3] = 5.0
        >>> metric.update_state(np.array([[[0, 1, 2]]]), scores)
        >>> round(float(metric.result()), 3)
        0.667

    Source: Su et al. 2022, arXiv:2208.03054.
    """

    def __init__(
        self, threshold: float = 0.0, name: str = "span_f1", dtype: Any = None
    ):
        super().__init__(name=name, dtype=dtype)
        self.threshold = threshold
        self.right = self.add_variable((), "zeros", name="right")
        self.found = self.add_variable((), "zeros", name="found")
        self.expected = self.add_variable((), "zeros", name="expected")

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        y_pred = ops.convert_to_tensor(y_pred)
        is_span = _is_span(ops.convert_to_tensor(y_true), y_pred)
        is_found = y_pred > self.threshold

        def count(spans):
            each = ops.sum(ops.cast(spans, self.dtype), axis=(1, 2, 3))
            if sample_weight is not None:
                each = each * ops.cast(sample_weight, self.dtype)
            return ops.sum(each)

        self.right.assign_add(count(ops.logical_and(is_span, is_found)))
        self.found.assign_add(count(is_found))
        self.expected.assign_add(count(is_span))

    def result(self) -> TensorLike:
        both = self.found + self.expected
        return ops.divide_no_nan(2 * self.right, both)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}

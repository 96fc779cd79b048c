"""A conditional random field over the tags of a sequence, and the accuracy of tags.

A tag below 0 means no tag: targets omit its position, and predictions have it at
omitted positions. All computation is in float32, whatever the dtype policy.
"""

import itertools
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.layers.configured import ConfiguredLayer

_NO_TAG = -1


@keras.saving.register_keras_serializable("roformer_keras")
class ConditionalRandomField(ConfiguredLayer):
    """Scores of tags, extended by scores of their transitions.

    The score of a sequence of tags is the sum of each tag's score at its position and
    of `transitions[i, j]` for each tag `i` that is followed by `j`. The layer itself
    only marks omitted positions; `loss` and `decode` do the computation.

    An omitted position, wherever it stands, makes the tags on either side of it
    neighbours. bert4keras computes the same for omitted positions at the end. Elsewhere
    its loss is not that of a probability: it omits a transition of the target, but not
    of the sequences that compete with the target.

    Args:
        learning_rate_multiplier: float above 0. Transitions are stored divided by it,
            so that an optimizer such as Adam, whose steps do not depend on the size of
            gradients, moves them this many times faster than other weights. The rate of
            a pre-trained encoder is too low for them; a multiplier of some hundreds
            helps. With plain SGD, the steps grow by its square, and so do gradients: if
            gradients are clipped by their norm, a multiplier of 1000 nearly erases
            those of the encoder.
        kernel_initializer: initializer of the transitions, before the division.
        kwargs: as in `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        scores: float `(batch, length, num_tags)`.
        mask: bool `(batch, length)`; False omits a position.

    Returns:
        float32, of the shape of `scores`: the scores, with -inf for every tag of an
        omitted position. So the mask reaches a loss that Keras calls.

    Raises:
        ConfigurationError: `learning_rate_multiplier` is not above 0.
        ValueError: `scores` or `mask` has a wrong shape.

    Example:
        >>> field = layers.ConditionalRandomField()
        >>> mask = np.array([[True, True, True, False]])
        >>> scores = field(np.zeros((1, 4, 3)), mask=mask)
        >>> ops.shape(field.loss(np.array([[0, 1, 2, 0]]), scores))
        (1,)
        >>> int(field.decode(scores)[0, 3])  # omitted
        -1

    Source: Lafferty et al. 2001, "Conditional Random Fields".
    """

    def __init__(
        self,
        learning_rate_multiplier: float = 1.0,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        # Scores that arrive in float32 keep their type.
        super().__init__(autocast=False, **kwargs)
        refuse(
            not learning_rate_multiplier > 0,
            "learning_rate_multiplier must be above 0, got "
            f"{learning_rate_multiplier!r}",
        )
        self.learning_rate_multiplier = learning_rate_multiplier
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape: Shape) -> None:
        _check_scores(input_shape)
        num_tags = input_shape[-1]

        def divided(shape, dtype=None):
            initial = self.kernel_initializer(shape, dtype=dtype)
            return initial / self.learning_rate_multiplier

        self.kernel = self.add_weight(
            shape=(num_tags, num_tags),
            initializer=divided,
            name="kernel",
            autocast=False,
        )

    @property
    def transitions(self) -> TensorLike:
        """float32 `(num_tags, num_tags)`: `[i, j]` is the score of `j` after `i`."""
        if not self.built:
            raise ValueError(
                f"the layer {self.name!r} has no transitions yet: call it on scores, "
                "or build it with their shape"
            )
        return ops.cast(self.kernel, "float32") * self.learning_rate_multiplier

    def call(self, scores: TensorLike, mask: TensorLike = None) -> TensorLike:
        scores = ops.cast(scores, "float32")
        if mask is None:
            return scores
        mask = _checked_mask(mask, scores.shape)
        return ops.where(mask[..., None], scores, -np.inf)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike = None
    ) -> TensorLike:
        # The scores carry the mask: Keras would apply it to losses a second time.
        return None

    def loss(
        self, tags: TensorLike, scores: TensorLike, mask: TensorLike = None
    ) -> TensorLike:
        """The negative log-likelihood of tags, also usable as the loss of `compile`.

        Keras saves no method with a compiled model: load the model with
            `compile=False`, and
        compile it again.

        Args:
            tags: int `(batch, length)`, below `num_tags`, which is not checked; a
                negative tag omits its position.
            scores: float `(batch, length, num_tags)`. Positions where all scores are
                -inf, the layer's mark, are omitted.
            mask: bool `(batch, length)`; False omits a position.

        Returns:
            float32 `(batch,)`; 0 for a row without positions.
        """
        scores, visible = _scores_and_mask(scores, mask)
        _check_tags(tags.shape, scores.shape)
        tags = ops.cast(tags, "int32")
        visible = ops.logical_and(visible, ops.greater_equal(tags, 0))
        scores = ops.where(visible[..., None], scores, 0.0)
        transitions = self.transitions
        total = _log_total(scores, transitions, visible)
        return total - _path_score(tags, scores, transitions, visible)

    def decode(self, scores: TensorLike, mask: TensorLike = None) -> TensorLike:
        """The sequence of tags with the best score, by the Viterbi algorithm.

        Arrays, such as the results of `predict`, are decoded in NumPy, without
        compiling; tensors are decoded by the backend, also in a graph.

        Args:
            scores: as for `loss`.
            mask: as for `loss`.

        Returns:
            int32 `(batch, length)`, an array for an array and a tensor for a tensor; -1
            at omitted positions.
        """
        is_array = isinstance(scores, np.ndarray)
        scores, visible = _scores_and_mask(scores, mask)
        scores = ops.where(visible[..., None], scores, 0.0)
        transitions = self.transitions
        if not is_array:
            return ops.cast(_viterbi(scores, transitions, visible), "int32")
        scores, transitions, visible = map(
            ops.convert_to_numpy, (scores, transitions, visible)
        )
        tags = _viterbi(scores, transitions, visible, library=np, scan=_scan_arrays)
        return tags.astype("int32")


# === Dynamic programming ===


def _log_total(scores, transitions, visible):
    """The logarithm of the sum of `exp(score)` over all paths: float32 `(batch,)`.

    Its gradients, the probabilities of tags and transitions, follow from sums that
    start at both ends. They are inserted by hand: backends differentiate loops slowly,
    and TensorFlow's XLA does not compile the result.
    """
    fixed, fixed_transitions = map(ops.stop_gradient, (scores, transitions))
    forth, total = _from_the_left(fixed, fixed_transitions, visible, ops.logsumexp)
    back, _ = _from_the_left(
        ops.flip(fixed, axis=1),
        ops.transpose(fixed_transitions),
        ops.flip(visible, axis=1),
        ops.logsumexp,
    )
    back = ops.flip(back, axis=0)
    # (length, batch, from, to): probabilities of the previous tag and this one
    before = ops.concatenate([ops.zeros_like(forth[:1]), forth[:-1]], axis=0)
    pairs = before[..., :, None] + fixed_transitions + back[..., None, :]
    pairs = ops.exp(pairs - ops.logsumexp(pairs, axis=(-2, -1), keepdims=True))
    is_first = ops.transpose(_is_first(visible))[..., None]
    has_pair = ops.logical_and(
        ops.transpose(visible)[..., None], ops.logical_not(is_first)
    )
    pairs = ops.where(has_pair[..., None], pairs, 0.0)
    # (length, batch, tag)
    singles = ops.where(is_first, ops.softmax(back), ops.sum(pairs, axis=-2))
    singles = ops.transpose(singles, (1, 0, 2))
    # Zeros whose gradients are the probabilities.
    change = ops.where(ops.not_equal(scores, -np.inf), scores - fixed, 0.0)
    total = total + ops.sum(singles * change, axis=(1, 2))
    change = transitions - fixed_transitions
    return total + ops.sum(ops.sum(pairs, axis=0) * change, axis=(1, 2))


def _from_the_left(scores, transitions, visible, reduce, library=ops, scan=None):
    """The sum, or the maximum, of all paths that end in a tag."""

    def step(carry, inputs):
        before, total = carry
        here, is_visible, is_first = inputs
        # (batch, from, to) -> (batch, to)
        ways = reduce(before[:, :, None] + transitions, axis=1)
        after = library.where(is_first[:, None], here, ways + here)
        amount = reduce(after, axis=1)
        after = library.where(is_visible[:, None], after - amount[:, None], before)
        carry = after, library.where(is_visible, total + amount, total)
        return carry, carry

    inputs = (
        library.transpose(scores, (1, 0, 2)),
        library.transpose(visible),
        library.transpose(_is_first(visible, library)),
    )
    start = library.zeros_like(scores[:, 0])
    (_, total), (after, _) = (scan or _scan)(step, (start, start[:, 0]), inputs)
    return after, total


def _is_first(visible, library=ops):
    """bool `(batch, length)`: True at the first visible position of each row."""
    return library.logical_and(visible, library.cumsum(visible, axis=1) == 1)


def _viterbi(scores, transitions, visible, library=ops, scan=None):
    """int `(batch, length)`; arguments as in `_from_the_left`.

    The backward pass computes the best predecessor of one tag per position, so the
    forward pass need not store it for all tags.
    """
    best, _ = _from_the_left(
        scores, transitions, visible, library.max, library=library, scan=scan
    )
    into = library.transpose(transitions)
    # True if the next position is visible.
    is_continuation = library.concatenate(
        [visible[:, 1:], library.zeros_like(visible[:, :1])], axis=1
    )

    def step(carry, inputs):
        (after,) = carry
        before, is_continuation = inputs
        way = library.argmax(before + library.take(into, after, axis=0), axis=-1)
        carry = (library.where(is_continuation, way, after),)
        return carry, carry

    last_tag = library.argmax(best[-1], axis=-1)
    inputs = best, library.transpose(is_continuation)
    _, (tags,) = (scan or _scan)(step, (last_tag,), inputs, reverse=True)
    return library.where(visible, library.transpose(tags), _NO_TAG)


def _scan(step, carry, inputs, reverse=False):
    """`ops.scan` for inputs `(length, batch, dim)` or bool `(length, batch)`.

    The inputs are packed into one tensor: with an unknown length, Keras's TensorFlow
    backend accepts only one.
    """
    is_mark = [len(array.shape) == 2 for array in inputs]
    arrays = [
        ops.cast(array, "float32")[..., None] if mark else array
        for array, mark in zip(inputs, is_mark, strict=True)
    ]
    ends = list(itertools.accumulate(array.shape[-1] for array in arrays))

    def unpacked(carry, packed):
        parts = [
            packed[:, start] > 0 if mark else packed[:, start:end]
            for start, end, mark in zip([0, *ends], ends, is_mark, strict=False)
        ]
        return step(carry, tuple(parts))

    return ops.scan(unpacked, carry, ops.concatenate(arrays, axis=-1), reverse=reverse)


def _scan_arrays(step, carry, inputs, reverse=False):
    """`ops.scan` for tuples of arrays."""
    outputs = [None] * len(inputs[0])
    order = range(len(outputs))
    for at in reversed(order) if reverse else order:
        carry, outputs[at] = step(carry, tuple(array[at] for array in inputs))
    return carry, tuple(map(np.stack, zip(*outputs, strict=True)))


def _path_score(tags, scores, transitions, visible):
    """The sum of the scores of tags and of their transitions: float `(batch,)`."""
    num_tags = scores.shape[-1]
    tags = ops.where(visible, tags, _NO_TAG)
    is_tag = ops.one_hot(tags, num_tags, dtype="bool")
    tag_scores = ops.sum(ops.where(is_tag, scores, 0.0), axis=(1, 2))
    # Sort omitted positions to the end, where no tag follows.
    length = ops.shape(tags)[1]
    positions = ops.arange(length, dtype="int32")
    positions = ops.where(visible, positions, positions + length)
    tags = ops.take_along_axis(tags, ops.argsort(positions, axis=1), axis=1)
    # (batch, length, num_tags): all zeros for no tag
    chosen = ops.one_hot(tags, num_tags, dtype="float32")
    ways = ops.matmul(chosen[:, :-1], transitions)
    return tag_scores + ops.sum(ways * chosen[:, 1:], axis=(1, 2))


# === Checks ===


def _scores_and_mask(scores, mask):
    """Scores in float32, and a mask without the positions whose scores are -inf."""
    _check_scores(scores.shape)
    scores = ops.cast(scores, "float32")
    # A NaN is not omitted: it must become visible.
    visible = ops.any(ops.not_equal(scores, -np.inf), axis=-1)
    if mask is not None:
        visible = ops.logical_and(visible, _checked_mask(mask, scores.shape))
    return scores, visible


def _check_scores(shape):
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            f"scores must be of shape (batch, length, num_tags), got {tuple(shape)}"
        )


def _check_tags(shape, scores_shape):
    if len(shape) != 2 or _differ(shape[1], scores_shape[1]):
        raise ValueError(
            f"tags must be of shape (batch, length), {tuple(scores_shape[:2])} as the "
            f"scores are, got {tuple(shape)}"
        )


def _checked_mask(mask, scores_shape):
    mask = ops.cast(mask, "bool")
    if len(mask.shape) != 2 or _differ(mask.shape[1], scores_shape[1]):
        raise ValueError(
            "mask must be bool (batch, length), True where a position counts; the "
            f"scores are {tuple(scores_shape)}, got {tuple(mask.shape)}"
        )
    return mask


def _differ(size, other_size):
    """True if two sizes are both known and differ."""
    return None not in (size, other_size) and size != other_size


# === Metric ===


@keras.saving.register_keras_serializable("roformer_keras")
class TagAccuracy(keras.metrics.Mean):
    """The share of correct tags, over all batches.

    Targets are int `(batch, length)`; negative targets are omitted. Outputs are tags of
    that shape from `decode`, or scores `(batch, length, num_tags)`, whose best tag at
    each position is compared, without transitions, as in bert4keras; positions where
    all scores are -inf are omitted.

    Args:
        name: str. Name of the metric.
        dtype: type of the counts, as in `keras.metrics.Metric`.

    Example:
        >>> metric = metrics.TagAccuracy()
        >>> metric.update_state(np.array([[0, 1, -1]]), np.array([[0, 2, 2]]))
        >>> float(metric.result())
        0.5

    Source: bert4keras 0.11.5, `sparse_accuracy` of its CRF layer.
    """

    def __init__(self, name: str = "tag_accuracy", dtype: Any = None):
        super().__init__(name=name, dtype=dtype)

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike = None
    ) -> None:
        y_pred = ops.convert_to_tensor(y_pred)
        tags = ops.cast(y_true, "int32")
        visible = ops.greater_equal(tags, 0)
        if len(y_pred.shape) == 3:
            _, seen = _scores_and_mask(y_pred, None)
            visible = ops.logical_and(visible, seen)
            y_pred = ops.argmax(y_pred, axis=-1)
        is_right = ops.equal(tags, ops.cast(y_pred, "int32"))
        weights = ops.cast(visible, self.dtype)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
            weights = weights * sample_weight
        # Flattened: Keras would first take the mean of each row.
        super().update_state(ops.reshape(is_right, (-1,)), ops.reshape(weights, (-1,)))

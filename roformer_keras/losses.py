"""Losses that Keras lacks: functions give one loss per row, classes are for `compile`.

All compute in float32, whatever the dtype policy. A function that takes `(rows,)` also
takes `(rows, 1)`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import TensorLike

__all__ = [
    "CoSENT",
    "Contrastive",
    "MaskedLabelCrossentropy",
    "SimilarityRegression",
    "SupervisedContrastive",
    "contrastive",
    "cosent",
    "cosines",
    "label_is_best",
    "masked_label_crossentropy",
    "neighbour_is_nearest",
    "pair_cosines",
    "similarity_regression",
    "supervised_contrastive",
]

# Larger than every exponent of a cosine or a logit, and finite in float32.
_EXCLUDED = -1e9
_PACKAGE = "roformer_keras"


# === Cosines ===


def cosines(vectors: TensorLike) -> TensorLike:
    """Cosines of all pairs of vectors.

    Args:
        vectors: float `(rows, dim)`.

    Returns:
        float32 `(rows, rows)`.

    Example:
        >>> ops.convert_to_numpy(losses.cosines(np.array([[1.0, 0.0], [0.0, 2.0]])))
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    unit = _unit(vectors)
    return ops.matmul(unit, ops.transpose(unit))


def pair_cosines(first: TensorLike, second: TensorLike) -> TensorLike:
    """Cosines of the vectors of the same row.

    Args:
        first, second: float `(rows, dim)`.

    Returns:
        float32 `(rows,)`.

    Example:
        >>> first, second = np.array([[1.0, 0.0]]), np.array([[3.0, 4.0]])
        >>> ops.convert_to_numpy(losses.pair_cosines(first, second)).round(3)
        array([0.6], dtype=float32)
    """
    return ops.sum(_unit(first) * _unit(second), axis=-1)


def _unit(vectors):
    vectors = ops.cast(vectors, "float32")
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, 1e-12))


# === SimBERT ===


def contrastive(
    neighbours: TensorLike, vectors: TensorLike, scale: float = 20.0
) -> TensorLike:
    """Cross-entropy of finding each row's neighbour among all other rows.

    Args:
        neighbours: int `(rows,)`. The row with the same meaning.
        vectors: float `(rows, dim)`.
        scale: float above 0. It multiplies cosines: the inverse temperature.

    Returns:
        float32 `(rows,)`.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> loss = losses.contrastive([1, 0, 3, 2], vectors, scale=1.0)
        >>> [round(float(row), 2) for row in loss]
        [0.58, 0.63, 0.58, 0.63]

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage1.py`.
    """
    scores = scale * _cosines_with_others(vectors)
    # (rows, rows): True at the neighbour
    is_neighbour = ops.equal(
        ops.cast(_column(neighbours), "int32")[:, None], _numbers(vectors)[None]
    )
    return _crossentropy(is_neighbour, scores)


def neighbour_is_nearest(neighbours: TensorLike, vectors: TensorLike) -> TensorLike:
    """1 for each row whose nearest row is its neighbour, else 0.

    Args:
        neighbours: int `(rows,)`. The row with the same meaning.
        vectors: float `(rows, dim)`.

    Returns:
        float32 `(rows,)`.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> ops.convert_to_numpy(losses.neighbour_is_nearest([1, 0, 3, 0], vectors))
        array([1., 1., 1., 0.], dtype=float32)
    """
    nearest = ops.argmax(_cosines_with_others(vectors), axis=-1)
    return _equal(_column(neighbours), nearest)


def _cosines_with_others(vectors):
    numbers = _numbers(vectors)
    is_self = ops.equal(numbers[:, None], numbers[None])
    return ops.where(is_self, _EXCLUDED, cosines(vectors))


def _numbers(vectors):
    return ops.arange(ops.shape(vectors)[0], dtype="int32")


def supervised_contrastive(
    labels: TensorLike, vectors: TensorLike, scale: float = 20.0
) -> TensorLike:
    """Cross-entropy of finding the rows of the same class among all other rows.

    It is the mean over the other rows of the class, or 0 without such rows.

    Args:
        labels: `(rows,)`. Equal for rows of the same class.
        vectors: float `(rows, dim)`.
        scale: float above 0. It multiplies cosines: the inverse temperature.

    Returns:
        float32 `(rows,)`.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> loss = losses.supervised_contrastive([7, 7, 9, 9], vectors, scale=1.0)
        >>> [round(float(row), 2) for row in loss]
        [0.58, 0.63, 0.58, 0.63]

    Source: Khosla et al. 2020, arXiv:2004.11362, equation 2.
    """
    scores = scale * _cosines_with_others(vectors)
    labels, numbers = _column(labels), _numbers(vectors)
    is_same = ops.logical_and(
        ops.equal(labels[:, None], labels[None]),
        ops.not_equal(numbers[:, None], numbers[None]),
    )
    each = ops.logsumexp(scores, axis=-1, keepdims=True) - scores
    count = ops.sum(ops.cast(is_same, "float32"), axis=-1)
    return ops.sum(ops.where(is_same, each, 0.0), axis=-1) / ops.maximum(count, 1.0)


def similarity_regression(
    expected: TensorLike, similarities: TensorLike, factor: float = 100.0
) -> TensorLike:
    """The mean squared error of a row's cosines with all rows, times `factor`.

    Args:
        expected: float `(rows, rows)`. The teacher's cosines.
        similarities: float `(rows, rows)`. The student's.
        factor: float above 0. Errors of cosines are small next to a cross-entropy.

    Returns:
        float32 `(rows,)`.

    Example:
        >>> teacher, student = np.eye(2), np.array([[1.0, 0.2], [0.2, 1.0]])
        >>> loss = losses.similarity_regression(teacher, student)
        >>> [round(float(row), 2) for row in loss]
        [2.0, 2.0]

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage2.py`.
    """
    difference = ops.cast(similarities, "float32") - ops.cast(expected, "float32")
    return factor * ops.mean(ops.square(difference), axis=-1)


# === Labelled pairs ===


def masked_label_crossentropy(
    labels: TensorLike, logits: TensorLike, label_sets: Sequence[Sequence[int]]
) -> TensorLike:
    """Cross-entropy of a label among the labels of its set.

    Args:
        labels: int `(pairs,)`.
        logits: float `(pairs, labels)`.
        label_sets: tuples of int, which together hold each label once; a label competes
            only with the labels of its set.

    Returns:
        float32 `(pairs,)`.

    Example:
        >>> logits = np.zeros((1, 5))
        >>> loss = losses.masked_label_crossentropy([0], logits, ((0, 1), (2, 3, 4)))
        >>> round(float(loss[0]), 3)  # log(2): of five labels, two compete
        0.693

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/supervised.py`.
    """
    labels = _column(labels)
    scores = _within_set(labels, logits, label_sets)
    is_label = ops.one_hot(ops.cast(labels, "int32"), scores.shape[-1])
    return _crossentropy(ops.cast(is_label, "bool"), scores)


def label_is_best(
    labels: TensorLike, logits: TensorLike, label_sets: Sequence[Sequence[int]]
) -> TensorLike:
    """1 for each pair whose label scores best among those of its set, else 0.

    Args:
        labels, logits, label_sets: as in `masked_label_crossentropy`.

    Returns:
        float32 `(pairs,)`.

    Example:
        >>> logits = np.array([[0.0, 1.0, 5.0, 0.0, 0.0]])
        >>> float(losses.label_is_best([1], logits, ((0, 1), (2, 3, 4)))[0])
        1.0
    """
    labels = _column(labels)
    best = ops.argmax(_within_set(labels, logits, label_sets), axis=-1)
    return _equal(labels, best)


def _within_set(labels, logits, label_sets):
    """Logits in float32; those of other sets are excluded."""
    set_of = {
        label: number for number, members in enumerate(label_sets) for label in members
    }
    table = [
        [set_of[row] == set_of[column] for column in sorted(set_of)]
        for row in sorted(set_of)
    ]
    table = ops.convert_to_tensor(table, "bool")
    visible = ops.take(table, ops.cast(labels, "int32"), axis=0)
    return ops.where(visible, ops.cast(logits, "float32"), _EXCLUDED)


def cosent(
    labels: TensorLike, similarities: TensorLike, scale: float = 20.0
) -> TensorLike:
    """Ranks pairs: the higher the label, the higher the cosine.

    It is `log(1 + sum of exp(scale * (cos_j - cos_i)))` over all i, j with label i
    above label j. Labels are only compared, so any scale of degrees works.

    Args:
        labels: float `(pairs,)`.
        similarities: float `(pairs,)`. Cosines of the two texts of a pair.
        scale: float above 0.

    Returns:
        float32 scalar for the whole batch; 0 if all labels are equal.

    Example:
        >>> degrees, cosines = [5.0, 1.0], [0.9, 0.1]
        >>> round(float(losses.cosent(degrees, cosines)), 3)
        0.0
        >>> round(float(losses.cosent(degrees, cosines[::-1])), 3)  # the wrong order
        16.0

    Source: https://kexue.fm/archives/8847
    """
    similarities = scale * ops.cast(_column(similarities), "float32")
    labels = _column(labels)
    wrong_by = similarities[None, :] - similarities[:, None]
    counts = ops.greater(labels[:, None], labels[None, :])
    terms = ops.reshape(ops.where(counts, wrong_by, _EXCLUDED), (-1,))
    # The 1 in the logarithm is one more term, exp(0).
    return ops.logsumexp(ops.concatenate([ops.zeros((1,), "float32"), terms]))


def _crossentropy(is_target, scores):
    """Cross-entropy of each row's target: two `(rows, choices)` to `(rows,)`."""
    target_scores = ops.sum(ops.where(is_target, scores, 0.0), axis=-1)
    return ops.logsumexp(scores, axis=-1) - target_scores


def _column(values):
    """An array `(rows, 1)`, such as the output of `Dense(1)`, as `(rows,)`."""
    values = ops.convert_to_tensor(values)
    is_column = len(values.shape) == 2 and values.shape[-1] == 1
    return ops.squeeze(values, axis=-1) if is_column else values


def _equal(labels, predicted):
    predicted = ops.cast(predicted, "int32")
    return ops.cast(ops.equal(ops.cast(labels, "int32"), predicted), "float32")


# === For compile ===


class _MeanLoss(keras.losses.Loss):
    """The mean of a function over rows, in float32, weighted if rows have weights."""

    function: Callable
    # True if rows may have weights.
    takes_weights = True

    def __init__(
        self,
        name: str,
        reduction: str | None = "mean_with_sample_weight",
        **options: Any,
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.options = options

    def __call__(
        self,
        y_true: TensorLike,
        y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
    ) -> TensorLike:
        refuse(
            sample_weight is not None and not self.takes_weights,
            f"{type(self).__name__} is one number a batch, in which rows have no "
            "weights: leave sample_weight and class_weight out",
        )
        return super().__call__(self.exact(y_true), y_pred, sample_weight)

    def exact(self, y_true: TensorLike) -> TensorLike:
        """Equivalent targets in float32, to which Keras casts them."""
        return y_true

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> TensorLike:
        return self.function(y_true, y_pred, **self.options)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.options}


@keras.saving.register_keras_serializable(_PACKAGE)
class Contrastive(_MeanLoss):
    """`contrastive` as a loss: targets are neighbours, outputs vectors.

    Args:
        scale: float above 0. It multiplies cosines: the inverse temperature.
        name: str. Name of the loss.
        kwargs: as in `keras.losses.Loss`: `reduction`.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> loss = losses.Contrastive(scale=1.0)
        >>> round(float(loss(np.array([1, 0, 3, 2]), vectors)), 2)
        0.6

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage1.py`.
    """

    function = staticmethod(contrastive)

    def __init__(self, scale: float = 20.0, name: str = "contrastive", **kwargs: Any):
        super().__init__(name, scale=scale, **kwargs)


@keras.saving.register_keras_serializable(_PACKAGE)
class SupervisedContrastive(_MeanLoss):
    """`supervised_contrastive` as a loss: targets are classes, outputs vectors.

    Args:
        scale: float above 0. It multiplies cosines: the inverse temperature.
        name: str. Name of the loss.
        kwargs: as in `keras.losses.Loss`: `reduction`.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> loss = losses.SupervisedContrastive(scale=1.0)
        >>> round(float(loss(np.array([7, 7, 9, 9]), vectors)), 2)
        0.6

    Source: Khosla et al. 2020, arXiv:2004.11362, equation 2.
    """

    function = staticmethod(supervised_contrastive)

    def __init__(
        self, scale: float = 20.0, name: str = "supervised_contrastive", **kwargs: Any
    ):
        super().__init__(name, scale=scale, **kwargs)

    def exact(self, y_true: TensorLike) -> TensorLike:
        # In float32, integers above 2**24 are equal: use the first row of each class.
        labels = _column(y_true)
        is_same = ops.equal(labels[:, None], labels[None])
        return ops.argmax(ops.cast(is_same, "int32"), axis=1)


@keras.saving.register_keras_serializable(_PACKAGE)
class SimilarityRegression(_MeanLoss):
    """`similarity_regression` as a loss: targets and outputs are cosines.

    Args:
        factor: float above 0. Errors of cosines are small next to a cross-entropy.
        name: str. Name of the loss.
        kwargs: as in `keras.losses.Loss`: `reduction`.

    Example:
        >>> teacher, student = np.eye(2), np.array([[1.0, 0.2], [0.2, 1.0]])
        >>> round(float(losses.SimilarityRegression(factor=10.0)(teacher, student)), 2)
        0.2

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage2.py`.
    """

    function = staticmethod(similarity_regression)

    def __init__(
        self, factor: float = 100.0, name: str = "similarity_regression", **kwargs: Any
    ):
        super().__init__(name, factor=factor, **kwargs)


@keras.saving.register_keras_serializable(_PACKAGE)
class MaskedLabelCrossentropy(_MeanLoss):
    """`masked_label_crossentropy` as a loss: targets are labels, outputs logits.

    Args:
        label_sets: tuples of int, which together hold each label once.
        name: str. Name of the loss.
        kwargs: as in `keras.losses.Loss`: `reduction`.

    Example:
        >>> loss = losses.MaskedLabelCrossentropy(((0, 1), (2, 3, 4)))
        >>> round(float(loss(np.array([0, 2]), np.zeros((2, 5)))), 3)
        0.896

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/supervised.py`.
    """

    function = staticmethod(masked_label_crossentropy)

    def __init__(
        self,
        label_sets: Sequence[Sequence[int]],
        name: str = "masked_label_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(name, label_sets=label_sets, **kwargs)


@keras.saving.register_keras_serializable(_PACKAGE)
class CoSENT(_MeanLoss):
    """`cosent` as a loss: targets are labels, outputs the cosines of pairs.

    Args:
        scale: float above 0. It multiplies cosines.
        name: str. Name of the loss.
        kwargs: as in `keras.losses.Loss`: `reduction`.

    Raises:
        ConfigurationError: raised by a call with weights of rows.

    Example:
        >>> loss = losses.CoSENT()
        >>> round(float(loss(np.array([5.0, 1.0]), np.array([0.1, 0.9]))), 3)
        16.0

    Source: https://kexue.fm/archives/8847
    """

    function = staticmethod(cosent)
    takes_weights = False

    def __init__(self, scale: float = 20.0, name: str = "cosent", **kwargs: Any):
        super().__init__(name, scale=scale, **kwargs)

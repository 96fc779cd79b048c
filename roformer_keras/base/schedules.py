"""Schedules of the learning rate."""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import TensorLike


@keras.saving.register_keras_serializable("roformer_keras")
class PiecewiseLinear(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate times a factor that is linear between given steps.

    Args:
        learning_rate: float.
        points: pairs (step, factor), ascending. Before the first point, the factor
            rises from 0 at step 0, so the first update has the rate 0; after the last
            point it is constant. Without points, it is always 1.

    Call arguments:
        step: int. Updates so far.

    Returns:
        float32 scalar.

    Raises:
        ConfigurationError: steps are negative or not ascending.

    Example:
        >>> rate = optimizers.PiecewiseLinear(1e-3, [(100, 1.0), (1000, 0.1)])
        >>> [round(float(rate(step)), 6) for step in (0, 50, 100, 1000, 2000)]
        [0.0, 0.0005, 0.001, 0.0001, 0.0001]

    Source: bert4keras 0.11.5, `piecewise_linear`.
    """

    def __init__(self, learning_rate: float, points: Sequence[tuple[int, float]] = ()):
        self.learning_rate = float(learning_rate)
        try:
            self.points = [(int(step), float(factor)) for step, factor in points]
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                "a schedule must be a list of pairs of a step and a factor, got "
                f"{points!r:.80}"
            ) from error
        steps = [step for step, _ in self.points]
        refuse(
            steps != sorted(set(steps)) or min(steps, default=0) < 0,
            "each point of a schedule must have a later step than the one before, "
            f"from 0, got the steps {steps}",
        )

    def __call__(self, step: TensorLike) -> TensorLike:
        points = self.points or [(0, 1.0)]
        if points[0][0] > 0:
            points = [(0, 0.0), *points]
        step = ops.cast(step, "float32")
        factor = ops.full_like(step, points[0][1])
        for (start, before), (end, after) in itertools.pairwise(points):
            share = ops.clip((step - start) / (end - start), 0.0, 1.0)
            factor += share * (after - before)
        return factor * self.learning_rate

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "points": self.points}


@keras.saving.register_keras_serializable("roformer_keras")
class UpdatesLinear(PiecewiseLinear):
    """`PiecewiseLinear` under gradient accumulation.

    Divides the optimizer's step count by the batches per update.

    Args:
        learning_rate, points: as in `PiecewiseLinear`, in updates.
        parts: int. Batches per update.
    """

    def __init__(
        self,
        learning_rate: float,
        points: Sequence[tuple[int, float]] = (),
        parts: int = 1,
    ):
        super().__init__(learning_rate, points)
        self.parts = parts

    def __call__(self, step: TensorLike) -> TensorLike:
        return super().__call__(ops.floor_divide(step, self.parts))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "parts": self.parts}

"""bert4keras's AdaFactor."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.bert4keras.optimizer_base import (
    ExtendableOptimizer,
    Update,
    current_value,
    matches,
    register,
)
from roformer_keras.types import TensorLike

__all__ = ["AdaFactor", "RelativeStepRate"]


@register
class RelativeStepRate(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of an `AdaFactor` that is given none: `min(1 / sqrt(step), 0.01)`.

    Args:
        factor: float. What multiplies it.
    """

    def __init__(self, factor: float = 1.0):
        self.factor = factor

    def __call__(self, step: TensorLike) -> TensorLike:
        root = ops.sqrt(ops.cast(step + 1, "float32"))
        return ops.minimum(1.0 / root, 0.01) * self.factor

    def get_config(self) -> dict[str, Any]:
        return {"factor": self.factor}


@register
class AdaFactor(ExtendableOptimizer):
    """Adam with a second moment that is the product of means of rows and of columns.

    Args:
        learning_rate: float, a `LearningRateSchedule`, or None for the one of
            `RelativeStepRate`, times 0.05 unless variables scale their updates.
        beta1: float. Momentum of the updates; 0 for none.
        beta2: float. Momentum of the square; None for `1 - step**-0.8`.
        epsilon1: float. Added to the square.
        epsilon2: float. Smallest scale of a variable.
        multiply_by_parameter_scale: whether updates are multiplied by the root mean
            square of their variable.
        clipping_threshold: float or None. Largest root mean square of an update.
        min_dim_size_to_factor: int. Variables whose second longest axis is shorter
            keep the whole second moment.
        exclude_from_parameter_scale: patterns of names of variables whose updates are
            not multiplied.
        name: str.
        kwargs: as in `ExtendableOptimizer`; bert4keras ignores `decay` here.

    Source: Shazeer and Stern 2018, arXiv:1804.04235.
    """

    settings = (
        "beta1",
        "beta2",
        "epsilon1",
        "epsilon2",
        "multiply_by_parameter_scale",
        "clipping_threshold",
        "min_dim_size_to_factor",
        "exclude_from_parameter_scale",
    )

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta1: float = 0.0,
        beta2: float | None = None,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        multiply_by_parameter_scale: bool = True,
        clipping_threshold: float | None = 1.0,
        min_dim_size_to_factor: int = 128,
        exclude_from_parameter_scale: Iterable[str] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ):
        if learning_rate is None:
            learning_rate = RelativeStepRate(
                1.0 if multiply_by_parameter_scale else 0.05
            )
        super().__init__(learning_rate, name=name or "AdaFactor", **kwargs)
        self.beta1, self.beta2 = beta1, beta2
        self.epsilon1, self.epsilon2 = epsilon1, epsilon2
        self.multiply_by_parameter_scale = multiply_by_parameter_scale
        self.clipping_threshold = clipping_threshold
        self.min_dim_size_to_factor = min_dim_size_to_factor
        self.exclude_from_parameter_scale = list(exclude_from_parameter_scale or ())

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        axes = [self._factored_axes(variable.shape) for variable in variables]
        shapes = [variable.shape for variable in variables]
        self._means = self.add_state(variables, "mean") if self.beta1 > 0 else []
        whole = [s if a is None else None for s, a in zip(shapes, axes, strict=True)]
        self._squares = self.add_state(variables, "square", whole)
        # Each is a mean over one axis, and has length 1 there.
        self._rows, self._columns = (
            self.add_state(
                variables,
                name,
                [
                    a and [1 if axis == a[number] else n for axis, n in enumerate(s)]
                    for s, a in zip(shapes, axes, strict=True)
                ],
            )
            for number, name in enumerate(("rows", "columns"))
        )

    def _factored_axes(self, shape):
        """The longest axis and the second longest; None if that one is too short."""
        shape = tuple(shape)
        if len(shape) < 2:
            return None
        # Of equal ones, those that bert4keras takes.
        *_, second, longest = np.argpartition(shape, -2)
        if shape[second] < self.min_dim_size_to_factor:
            return None
        return int(longest), int(second)

    def scheduled_rate(self, learning_rate: TensorLike) -> TensorLike:
        return learning_rate

    def apply_update(self, update: Update) -> None:
        square = self._second_moment(update)
        move = update.gradient / ops.sqrt(square + self.epsilon1)
        if self.clipping_threshold is not None:
            excess = _root_mean_square(move) / self.clipping_threshold
            move = move / ops.maximum(1.0, excess)
        if self.beta1 > 0:
            mean = self._means[update.index]
            move = self.beta1 * current_value(mean) + (1.0 - self.beta1) * move
            update.write(mean, move)
        old = current_value(update.variable)
        if self.multiply_by_parameter_scale and not matches(
            update.name, self.exclude_from_parameter_scale
        ):
            move = move * ops.maximum(_root_mean_square(old), self.epsilon2)
        update.write(update.variable, old - update.rate * move)

    def _second_moment(self, update):
        beta2 = self.beta2
        if beta2 is None:
            step = ops.cast(self.iterations + 1, update.dtype)
            beta2 = 1.0 - ops.power(step, -0.8)
        square = ops.square(update.gradient) + self.epsilon1

        def averaged(state, value):
            new = beta2 * current_value(state) + (1.0 - beta2) * value
            update.write(state, new)
            return new

        axes = self._factored_axes(update.variable.shape)
        if axes is None:
            return averaged(self._squares[update.index], square)
        rows, columns = (
            averaged(states[update.index], ops.mean(square, axis, keepdims=True))
            for states, axis in zip((self._rows, self._columns), axes, strict=True)
        )
        return rows * columns / ops.mean(rows, axes[1], keepdims=True)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        rate = config["learning_rate"]
        # Of a schedule, Keras has the configuration.
        if isinstance(rate, dict) and rate["class_name"] == RelativeStepRate.__name__:
            config["learning_rate"] = None
        return config


def _root_mean_square(x):
    return ops.sqrt(ops.mean(ops.square(x)))

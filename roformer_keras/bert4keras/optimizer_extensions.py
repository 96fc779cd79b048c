"""Extensions of bert4keras's optimizers.

Each class changes what the optimizer below it does; `optimizers.extend_with_...` puts
them together. As in bert4keras the outer extension has the last word, the rate is that
of all of them, and steps are batches, also under gradient accumulation.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from roformer_keras import quirks
from roformer_keras.bert4keras.optimizer_base import (
    ExtendableOptimizer,
    Update,
    current_value,
    matches,
)
from roformer_keras.checks import check_integer, check_number
from roformer_keras.errors import ConfigurationError
from roformer_keras.optimizers import PiecewiseLinear, has_rows
from roformer_keras.types import TensorLike


class WeightDecay(ExtendableOptimizer):
    """Decoupled weight decay, of all variables but those that are excluded.

    Args:
        weight_decay_rate: float. Times the learning rate, the part of a variable that
            each batch takes off.
        exclude_from_weight_decay: patterns of names, such as `["Norm", "bias"]`.
    """

    settings = ("weight_decay_rate",)

    def __init__(
        self,
        *args: Any,
        weight_decay_rate: float = 0.01,
        exclude_from_weight_decay: Iterable[str] = (),
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        # A method of Keras has the name of the option.
        self.not_decayed = tuple(exclude_from_weight_decay)

    def apply_update(self, update: Update) -> None:
        def decayed(old, new):
            return new - update.rate * self.weight_decay_rate * old

        is_excluded = matches(update.name, self.not_decayed)
        super().apply_update(update if is_excluded else update.changed(decayed))

    def get_config(self) -> dict[str, Any]:
        names = list(self.not_decayed)
        return {**super().get_config(), "exclude_from_weight_decay": names}


class LayerAdaptation(ExtendableOptimizer):
    """Moves each variable by as much as its norm is, as LAMB does.

    Args:
        exclude_from_layer_adaptation: patterns of names.

    Source: You et al. 2019, arXiv:1904.00962.
    """

    settings = ("exclude_from_layer_adaptation",)

    def __init__(
        self,
        *args: Any,
        exclude_from_layer_adaptation: Iterable[str] = (),
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.exclude_from_layer_adaptation = list(exclude_from_layer_adaptation)

    def apply_update(self, update: Update) -> None:
        def adapted(old, new):
            move = new - old
            rate = ops.maximum(update.rate, keras.config.epsilon())
            size = ops.sqrt(ops.sum(ops.square(old)))
            direction = ops.sqrt(ops.sum(ops.square(move / rate)))
            is_usable = ops.logical_and(size > 0, direction > 0)
            unit = ops.ones_like(size)
            ratio = size / ops.where(is_usable, direction, unit)
            return old + move * ops.where(is_usable, ratio, unit)

        is_excluded = matches(update.name, self.exclude_from_layer_adaptation)
        super().apply_update(update if is_excluded else update.changed(adapted))


class PiecewiseLinearRate(ExtendableOptimizer):
    """A learning rate that is linear between given batches.

    Args:
        lr_schedule: dict of batch to factor of the learning rate. Before the first the
            factor rises from 0 at batch 0; after the last it stays.
    """

    settings = ("lr_schedule",)

    def __init__(
        self, *args: Any, lr_schedule: Mapping[Any, float] | None = None, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        schedule = {0: 1.0} if lr_schedule is None else lr_schedule
        # A configuration that was saved as JSON has strings as keys.
        points = sorted((int(batch), factor) for batch, factor in schedule.items())
        self._factor = PiecewiseLinear(1.0, points)

    @property
    def lr_schedule(self) -> dict[int, float]:
        """The argument."""
        return dict(self._factor.points)

    def scheduled_rate(self, learning_rate: TensorLike) -> TensorLike:
        factor = ops.cast(self._factor(self.iterations), learning_rate.dtype)
        return super().scheduled_rate(learning_rate) * factor


class GradientAccumulation(ExtendableOptimizer):
    """An update by the mean gradient of several batches.

    Batches 0, `grad_accum_steps`, twice that, ... update by the gradients before them,
    and so the first update is one of zero gradients.

    Args:
        grad_accum_steps: int, at least 1. Batches per update.
    """

    settings = ("grad_accum_steps",)
    states: ClassVar = {"sums": "gradient_sum"}

    def __init__(self, *args: Any, grad_accum_steps: int = 2, **kwargs: Any):
        check_integer("grad_accum_steps", grad_accum_steps, minimum=1)
        super().__init__(*args, **kwargs)
        self.grad_accum_steps = grad_accum_steps

    def apply_update(self, update: Update) -> None:
        has_all = ops.equal(ops.mod(self.iterations, self.grad_accum_steps), 0)

        def write(target, value):
            update.write(target, ops.where(has_all, value, current_value(target)))

        total = self.sums[update.index]
        gathered = current_value(total)
        gradient = gathered / self.grad_accum_steps
        super().apply_update(
            dataclasses.replace(update, gradient=gradient, write=write)
        )
        remaining = ops.where(has_all, ops.zeros_like(gathered), gathered)
        update.write(total, remaining + update.gradient)


class Lookahead(ExtendableOptimizer):
    """Slow weights, which every few batches go a part of the way, and replace the fast.

    As in bert4keras they start as zeros: the first batch multiplies the weights of the
    model by `slow_step_size`.

    Args:
        steps_per_slow_update: int, at least 1. Batches.
        slow_step_size: float. Part of the way to the fast weights.

    Source: Zhang et al. 2019, arXiv:1907.08610.
    """

    settings = ("steps_per_slow_update", "slow_step_size")
    states: ClassVar = {"slow_weights": "slow"}

    def __init__(
        self,
        *args: Any,
        steps_per_slow_update: int = 5,
        slow_step_size: float = 0.5,
        **kwargs: Any,
    ):
        check_integer("steps_per_slow_update", steps_per_slow_update, minimum=1)
        super().__init__(*args, **kwargs)
        self.steps_per_slow_update = steps_per_slow_update
        self.slow_step_size = slow_step_size

    def apply_update(self, update: Update) -> None:
        super().apply_update(update)
        is_slow = ops.equal(ops.mod(self.iterations, self.steps_per_slow_update), 0)
        slow = self.slow_weights[update.index]
        old, fast = current_value(slow), current_value(update.variable)
        new = ops.where(is_slow, old + self.slow_step_size * (fast - old), old)
        update.write(slow, new)
        update.write(update.variable, ops.where(is_slow, current_value(slow), fast))


class LazyOptimization(ExtendableOptimizer):
    """Leaves rows as they are whose gradient is zero: of tokens that a batch has not.

    Args:
        include_in_lazy_optimization: patterns of names; of none by default.
    """

    settings = ("include_in_lazy_optimization",)

    def __init__(
        self,
        *args: Any,
        include_in_lazy_optimization: Iterable[str] = (),
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.include_in_lazy_optimization = list(include_in_lazy_optimization)

    def apply_update(self, update: Update) -> None:
        def lazy(old, new):
            is_used = ops.any(ops.not_equal(update.gradient, 0), -1, keepdims=True)
            return old + (new - old) * ops.cast(is_used, update.dtype)

        is_included = matches(update.name, self.include_in_lazy_optimization)
        super().apply_update(update.changed(lazy) if is_included else update)


class ExponentialMovingAverage(ExtendableOptimizer):
    """Keeps a running mean of the weights.

    The mean starts as zeros, and `apply_ema_weights` corrects that bias.

    Args:
        ema_momentum: float in [0, 1). How much of the mean a batch keeps.
    """

    settings = ("ema_momentum",)
    states: ClassVar = {"ema_weights": "ema"}

    def __init__(self, *args: Any, ema_momentum: float = 0.999, **kwargs: Any):
        check_number("ema_momentum", ema_momentum, minimum=0, below=1)
        super().__init__(*args, **kwargs)
        self.ema_momentum = ema_momentum
        self.old_weights: list[np.ndarray] = []

    @property
    def model_weights(self) -> list[keras.Variable]:
        """The variables whose mean is kept."""
        return self.trained.variables

    def update_step(
        self, gradient: TensorLike, variable: TensorLike, learning_rate: TensorLike
    ) -> None:
        super().update_step(gradient, variable, learning_rate)
        if has_rows(gradient):
            # bert4keras counts a batch twice where a gradient is a list of rows, and
            # the second time no extension changes what it writes.
            self._count(variable, quirks.place_of(self, variable), self.assign)

    def apply_update(self, update: Update) -> None:
        super().apply_update(update)
        self._count(update.variable, update.index, update.write)

    def _count(self, variable, index, write):
        mean, momentum = self.ema_weights[index], self.ema_momentum
        decayed = current_value(mean) * momentum
        write(mean, decayed + current_value(variable) * (1.0 - momentum))

    def apply_ema_weights(self, bias_correction: bool = True) -> None:
        """Gives the model the mean of its weights, and keeps those it has.

        Args:
            bias_correction: whether to divide by what zeros have in the mean.

        Raises:
            ConfigurationError: no batch was trained.
        """
        batches = int(ops.convert_to_numpy(self.iterations))
        if not batches:
            raise ConfigurationError(
                "apply_ema_weights needs the weights of at least one batch, got none",
                hint="train first",
            )
        # On PyTorch an array may be the memory of the variable itself.
        self.old_weights = [
            np.array(ops.convert_to_numpy(variable)) for variable in self.model_weights
        ]
        scale = 1.0 - self.ema_momentum**batches if bias_correction else 1.0
        for variable, mean in zip(self.model_weights, self.ema_weights, strict=True):
            variable.assign(current_value(mean) / scale)

    def reset_old_weights(self) -> None:
        """Gives the model back what it had before `apply_ema_weights`."""
        for variable, old in zip(self.model_weights, self.old_weights, strict=False):
            variable.assign(old)


class ParameterWiseRate(ExtendableOptimizer):
    """Other learning rates for some variables.

    Args:
        paramwise_lr_schedule: dict of part of a name to factor. A variable whose name
            contains several parts has the product of their factors.
    """

    settings = ("paramwise_lr_schedule",)

    def __init__(
        self,
        *args: Any,
        paramwise_lr_schedule: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.paramwise_lr_schedule = dict(paramwise_lr_schedule or {})

    def apply_update(self, update: Update) -> None:
        factors = self.paramwise_lr_schedule.items()
        matching = [factor for part, factor in factors if part in update.name]
        factor = math.prod(matching)

        def scaled(old, new):
            return old + (new - old) * factor

        super().apply_update(update if factor == 1 else update.changed(scaled))

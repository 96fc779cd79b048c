"""`bert4keras.optimizers`: its optimizers, and what extends them.

    AdamW = extend_with_weight_decay(Adam, name="AdamW")
    AdamWLR = extend_with_piecewise_linear_lr(AdamW, name="AdamWLR")
    optimizer = AdamWLR(learning_rate=2e-5, weight_decay_rate=0.01, lr_schedule={...})

The numbers are those of the optimizers that bert4keras has under tf.keras, whose names
end in `_v2` there; both names are the same here. They are those of eager execution:
without it bert4keras's gradient accumulation and lookahead read weights while they are
written. On TensorFlow an embedding counts twice in a moving average, as in bert4keras.

Source: bert4keras 0.11.5, `optimizers.py`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from roformer_keras.bert4keras import optimizer_extensions as extensions
from roformer_keras.bert4keras.adafactor import AdaFactor
from roformer_keras.bert4keras.optimizer_base import (
    ExtendableOptimizer,
    Update,
    current_value,
    register,
)
from roformer_keras.errors import ConfigurationError

# === Optimizers ===


@register
class Adam(ExtendableOptimizer):
    """Adam, with epsilon outside of the root of the corrected second moment.

    Args:
        learning_rate: float, or a `LearningRateSchedule`.
        beta_1, beta_2: floats. Momenta of the gradients' mean and square.
        epsilon: float.
        bias_correction: whether the moments are corrected for their start at zero.
        name: str.
        kwargs: as in `ExtendableOptimizer`.

    Source: Kingma and Ba 2014, arXiv:1412.6980.
    """

    settings = ("beta_1", "beta_2", "epsilon", "bias_correction")
    states: ClassVar = {"means": "mean", "squares": "square"}

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, name=name or "Adam", **kwargs)
        self.beta_1, self.beta_2 = beta_1, beta_2
        self.epsilon = epsilon or keras.config.epsilon()
        self.bias_correction = bias_correction

    def apply_update(self, update: Update) -> None:
        dtype, gradient = update.dtype, update.gradient
        # Subtracted from 1 in float32, as bert4keras does: 1 - 0.999 differs by 1e-5.
        beta_1, beta_2 = (ops.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        mean, square = self.means[update.index], self.squares[update.index]
        new_mean = beta_1 * current_value(mean) + (1 - beta_1) * gradient
        new_square = beta_2 * current_value(square) + (1 - beta_2) * gradient**2
        update.write(mean, new_mean)
        update.write(square, new_square)
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, dtype)
            new_mean = new_mean / (1.0 - ops.power(beta_1, step))
            new_square = new_square / (1.0 - ops.power(beta_2, step))
        move = update.rate * new_mean / (ops.sqrt(new_square) + self.epsilon)
        update.write(update.variable, current_value(update.variable) - move)


@register
class Lion(ExtendableOptimizer):
    """Moves by the sign of a running mean of gradients.

    Args:
        learning_rate: float, or a `LearningRateSchedule`.
        beta_1: float. Momentum of the mean that an update goes by.
        beta_2: float. Momentum of the mean that is kept.
        name: str.
        kwargs: as in `ExtendableOptimizer`.

    Source: Chen et al. 2023, arXiv:2302.06675.
    """

    settings = ("beta_1", "beta_2")
    states: ClassVar = {"means": "mean"}

    def __init__(
        self,
        learning_rate: Any = 3e-4,
        beta_1: float = 0.95,
        beta_2: float = 0.98,
        name: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, name=name or "Lion", **kwargs)
        self.beta_1, self.beta_2 = beta_1, beta_2

    def apply_update(self, update: Update) -> None:
        mean, gradient = self.means[update.index], update.gradient
        betas = (self.beta_1, self.beta_2)
        beta_1, beta_2 = (ops.cast(beta, update.dtype) for beta in betas)
        old = current_value(mean)
        move = update.rate * ops.sign(beta_1 * old + (1 - beta_1) * gradient)
        update.write(update.variable, current_value(update.variable) - move)
        update.write(mean, beta_2 * old + (1 - beta_2) * gradient)


# Names of the same classes under tf.keras and under Keras 2.
LionV2 = Lion
AdaFactorBase = AdaFactorV1 = AdaFactorV2 = AdaFactor

custom_objects: dict[str, type[ExtendableOptimizer]] = {
    "Adam": Adam,
    "AdaFactor": AdaFactor,
}

# === Extensions ===


def export_to_custom_objects(
    base_extend_with: Callable[[type], type],
) -> Callable[..., type]:
    """Has a function that makes an optimizer class take its name, and registers it.

    Args:
        base_extend_with: function of an optimizer class; returns a subclass.

    Returns:
        Function of an optimizer class and a name, None for the one that the subclass
        has. Models that are compiled with the subclass can be saved, and loaded where
        it was made again under the same name.
    """

    def extend_with(BaseOptimizer: type, name: str | None = None) -> type:
        extended = base_extend_with(BaseOptimizer)
        if name is not None:
            extended.__name__ = extended.__qualname__ = name
        return register(extended)

    return extend_with


def _extension(extension):
    """A function from an optimizer class to one with an extension."""

    def extend_with(BaseOptimizer: type, name: str | None = None) -> type:
        base: Any = BaseOptimizer
        if not (isinstance(base, type) and issubclass(base, ExtendableOptimizer)):
            raise ConfigurationError(
                "only the optimizers of this module can be extended (Adam, AdaFactor, "
                f"Lion, and extended ones), got {base!r}"
            )
        if issubclass(base, extension):
            raise ConfigurationError(
                f"an optimizer has each extension once, and {base.__name__} has "
                f"{extension.__name__} already"
            )
        content = {"__doc__": extension.__doc__, "__module__": __name__}
        return register(type(name or "NewOptimizer", (extension, base), content))

    extend_with.__doc__ = f"An optimizer class with `{extension.__name__}`."
    return extend_with


extend_with_weight_decay = _extension(extensions.WeightDecay)
extend_with_layer_adaptation = _extension(extensions.LayerAdaptation)
extend_with_piecewise_linear_lr = _extension(extensions.PiecewiseLinearRate)
extend_with_gradient_accumulation = _extension(extensions.GradientAccumulation)
extend_with_lookahead = _extension(extensions.Lookahead)
extend_with_lazy_optimization = _extension(extensions.LazyOptimization)
extend_with_exponential_moving_average = _extension(extensions.ExponentialMovingAverage)
extend_with_parameter_wise_lr = _extension(extensions.ParameterWiseRate)
extend_with_weight_decay_v2 = extend_with_weight_decay
extend_with_layer_adaptation_v2 = extend_with_layer_adaptation
extend_with_piecewise_linear_lr_v2 = extend_with_piecewise_linear_lr
extend_with_gradient_accumulation_v2 = extend_with_gradient_accumulation
extend_with_lookahead_v2 = extend_with_lookahead
extend_with_lazy_optimization_v2 = extend_with_lazy_optimization
extend_with_exponential_moving_average_v2 = extend_with_exponential_moving_average
extend_with_parameter_wise_lr_v2 = extend_with_parameter_wise_lr

__all__ = [
    "AdaFactor",
    "AdaFactorBase",
    "AdaFactorV1",
    "AdaFactorV2",
    "Adam",
    "Lion",
    "LionV2",
    "custom_objects",
    "export_to_custom_objects",
]
__all__ += [name for name in globals() if name.startswith("extend_with")]

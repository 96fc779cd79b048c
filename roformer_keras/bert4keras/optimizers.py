"""`bert4keras.optimizers`: its optimizers, and what extends them.

    AdamW = extend_with_weight_decay(Adam, name="AdamW")
    AdamWLR = extend_with_piecewise_linear_lr(AdamW, name="AdamWLR")
    optimizer = AdamWLR(learning_rate=2e-5, weight_decay_rate=0.01, lr_schedule={...})

The numbers equal bert4keras's under tf.keras with eager execution. On TensorFlow a
moving average counts an embedding twice, as bert4keras does. The outer extension has
the last word, all share one rate, and steps are batches, also under accumulation.

Source: bert4keras 0.11.5, `optimizers.py`.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.checks import check_integer, check_names, check_number
from roformer_keras.base.errors import refuse
from roformer_keras.base.keras_backend import name_error
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.optimizers import PiecewiseLinear, dense_gradient, has_rows

# Classes are saved under this name, so that none is taken for one of Keras.
register = keras.saving.register_keras_serializable("bert4keras")
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def __getattr__(name: str) -> Any:
    raise name_error(__name__, name.removesuffix("_v2"), __all__)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """True if `re.search` finds one of the patterns in the name of a variable."""
    return any(re.search(pattern, name) for pattern in patterns)


def _current_value(variable: TensorLike) -> TensorLike:
    """Value of a variable, in at least float32."""
    return ops.cast(variable, _computed_type(variable))


def _computed_type(variable: TensorLike) -> str:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return keras.backend.result_type(dtype, "float32")


def _root_mean_square(x: TensorLike) -> TensorLike:
    return ops.sqrt(ops.mean(ops.square(x)))


@dataclasses.dataclass(frozen=True)
class Update:
    """The update of one variable by one batch.

    The gradient and new values are in at least float32. `name` is the path of the
    variable, as in `"dense/kernel:0"`. `write` assigns to the variable or to a state.
    """

    variable: TensorLike
    index: int
    name: str
    gradient: TensorLike
    rate: TensorLike
    write: Callable[[TensorLike, TensorLike], None]

    def changed(self, change: Callable) -> "Update":
        """This update, where `change(old, new)` is the new value of the variable."""

        def write(target: TensorLike, value: TensorLike) -> None:
            if target is self.variable:
                value = change(_current_value(target), value)
            self.write(target, value)

        return dataclasses.replace(self, write=write)


class ExtendableOptimizer(keras.optimizers.Optimizer):
    """An optimizer with bert4keras's options, which `extend_with_...` can extend.

    In `apply_update` it passes each new value to `Update.write`. An extension hands on
    an update with another gradient, or with a `write` that changes the values.

    Args:
        learning_rate: float, or a `LearningRateSchedule`.
        name: str.
        clipnorm, clipvalue, global_clipnorm: floats or None, as in Keras.
        lr: float or None. Another name of `learning_rate`. bert4keras under tf.keras
            takes it and ignores it.
        decay: float, at least 0. The rate is divided by `1 + decay * batches`.

    Raises:
        ConfigurationError: an option that the optimizer does not have.
    """

    # Options of a class and their defaults. They are arguments, attributes and the
    # configuration; a default of () takes patterns of names.
    options: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys((*_CLIPPING, "lr")),
        "decay": 0.0,
    }
    # Attributes that hold a state of each variable, and the ends of the states' names.
    states: ClassVar[Mapping[str, str]] = {}
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **kwargs: Unchecked) -> None:
        super().__init_subclass__(**kwargs)
        options: dict[str, Any] = {}
        for base in reversed(cls.__mro__[: cls.__mro__.index(ExtendableOptimizer)]):
            options |= vars(base).get("options", {})
        options |= ExtendableOptimizer.options
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(n, kind, default=options[n]) for n in options]
        cls.__signature__ = inspect.Signature(parameters)

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        signature = type(self).__signature__
        check_names(type(self).__name__, "option", kwargs, signature.parameters)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        check_number("decay", values["decay"], minimum=0)
        rate = values["learning_rate"] if values["lr"] is None else values.pop("lr")
        super().__init__(
            float(rate) if isinstance(rate, Real) else rate,
            name=values["name"] or signature.parameters["name"].default,
            **{name: values[name] for name in _CLIPPING},
        )
        for name, value in values.items():
            if name not in ("learning_rate", "lr", "name", *_CLIPPING):
                is_patterns = signature.parameters[name].default == ()
                setattr(self, name, list(value or ()) if is_patterns else value)

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # Keras takes the variables of a list in an attribute for the optimizer's.
        self.trained = types.SimpleNamespace(variables=list(variables))
        for kind in reversed(type(self).__mro__):
            for attribute, name in vars(kind).get("states", {}).items():
                setattr(self, attribute, self.add_optimizer_variables(variables, name))

    @property
    def lr(self) -> TensorLike:
        """Another name of `learning_rate`."""
        return self.learning_rate

    @lr.setter
    def lr(self, learning_rate: TensorLike) -> None:
        self.learning_rate = learning_rate

    def update_step(
        self, gradient: TensorLike, variable: TensorLike, learning_rate: TensorLike
    ) -> None:
        index, dtype = quirks.place_of(self, variable), _computed_type(variable)
        update = Update(
            variable=variable,
            index=index,
            # TensorFlow hands on its own variables; the one of Keras knows its path.
            name=f"{self.trained.variables[index].path}:0",
            gradient=ops.cast(dense_gradient(gradient, variable), dtype),
            rate=self.scheduled_rate(ops.cast(learning_rate, dtype)),
            write=self.assign,
        )
        self.apply_update(update)

    def scheduled_rate(self, learning_rate: TensorLike) -> TensorLike:
        """The rate of this batch."""
        if self.decay:
            batches = ops.cast(self.iterations, learning_rate.dtype)
            learning_rate = learning_rate / (1.0 + self.decay * batches)
        return learning_rate

    def apply_update(self, update: Update) -> None:
        """Writes the new values of the variable and of its slots."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        names = [name for name in type(self).__signature__.parameters if name != "lr"]
        config = {name: getattr(self, name) for name in names}
        return config | {"learning_rate": super().get_config()["learning_rate"]}


# === Optimizers ===


@register
class Adam(ExtendableOptimizer):
    """Adam, with epsilon outside of the root of the corrected second moment.

    Args:
        learning_rate: float, or a `LearningRateSchedule`.
        beta_1, beta_2: floats. Momenta of the gradients' mean and square.
        epsilon: float.
        bias_correction: whether the moments are corrected for their start at zero.

    Source: Kingma and Ba 2014, arXiv:1412.6980.
    """

    options: ClassVar = dict(learning_rate=0.001, beta_1=0.9, beta_2=0.999)
    options |= dict(epsilon=1e-6, bias_correction=True, name="Adam")
    states: ClassVar = {"means": "mean", "squares": "square"}

    def apply_update(self, update: Update) -> None:
        gradient, dtype = update.gradient, update.gradient.dtype
        # Subtracted from 1 in float32, as bert4keras does: 1 - 0.999 differs by 1e-5.
        beta_1, beta_2 = (ops.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        mean, square = self.means[update.index], self.squares[update.index]
        new_mean = beta_1 * _current_value(mean) + (1 - beta_1) * gradient
        new_square = beta_2 * _current_value(square) + (1 - beta_2) * gradient**2
        update.write(mean, new_mean)
        update.write(square, new_square)
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, dtype)
            new_mean = new_mean / (1.0 - ops.power(beta_1, step))
            new_square = new_square / (1.0 - ops.power(beta_2, step))
        epsilon = self.epsilon or keras.config.epsilon()
        move = update.rate * new_mean / (ops.sqrt(new_square) + epsilon)
        update.write(update.variable, _current_value(update.variable) - move)


@register
class RelativeStepRate(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of an `AdaFactor` without one: `min(1 / sqrt(step), 0.01)`.

    Args:
        factor: float. It multiplies the rate.
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
        decay: ignored, as in bert4keras.

    Source: Shazeer and Stern 2018, arXiv:1804.04235.
    """

    options: ClassVar = dict(learning_rate=1e-3, beta1=0.0, beta2=None)
    options |= dict(epsilon1=1e-30, epsilon2=1e-3, multiply_by_parameter_scale=True)
    options |= dict(clipping_threshold=1.0, min_dim_size_to_factor=128)
    options |= dict(exclude_from_parameter_scale=(), name="AdaFactor")

    def __init__(
        self, learning_rate: Any = 1e-3, *args: Unchecked, **kwargs: Unchecked
    ):
        if learning_rate is None:
            is_scaled = kwargs.get("multiply_by_parameter_scale", True)
            learning_rate = RelativeStepRate(1.0 if is_scaled else 0.05)
        super().__init__(learning_rate, *args, **kwargs)

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        names = ["mean"] * (self.beta1 > 0) + ["square", "rows", "columns"]
        self.slots = {name: [self._slot(name, x) for x in variables] for name in names}

    def _slot(self, name: str, variable: keras.Variable) -> keras.Variable:
        """A state of a variable, or None where another one takes its place."""
        shape, axes = variable.shape, self._factored_axes(variable.shape)
        if name == ("square" if axes else "rows") or (name == "columns" and not axes):
            return None
        if name in ("rows", "columns"):
            # A mean over one axis has length 1 there.
            axis = axes[name == "columns"]
            shape = tuple(1 if i == axis else size for i, size in enumerate(shape))
        name = f"{variable.path.replace('/', '_')}_{name}"
        return self.add_variable(shape, dtype=variable.dtype, name=name)

    def _factored_axes(self, shape):
        """The longest axis and the second longest; None if that one is too short."""
        shape = tuple(shape)
        if len(shape) < 2:
            return None
        # bert4keras chooses so among axes of one length.
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
            mean = self.slots["mean"][update.index]
            move = self.beta1 * _current_value(mean) + (1.0 - self.beta1) * move
            update.write(mean, move)
        old = _current_value(update.variable)
        if self.multiply_by_parameter_scale and not _matches(
            update.name, self.exclude_from_parameter_scale
        ):
            move = move * ops.maximum(_root_mean_square(old), self.epsilon2)
        update.write(update.variable, old - update.rate * move)

    def _second_moment(self, update: Update) -> TensorLike:
        square, beta2 = ops.square(update.gradient) + self.epsilon1, self.beta2
        if beta2 is None:
            step = ops.cast(self.iterations + 1, square.dtype)
            beta2 = 1.0 - ops.power(step, -0.8)

        def averaged(name: str, value: TensorLike) -> TensorLike:
            state = self.slots[name][update.index]
            new = beta2 * _current_value(state) + (1.0 - beta2) * value
            update.write(state, new)
            return new

        axes = self._factored_axes(update.variable.shape)
        if axes is None:
            return averaged("square", square)
        rows, columns = (
            averaged(name, ops.mean(square, axis, keepdims=True))
            for name, axis in zip(("rows", "columns"), axes, strict=True)
        )
        return rows * columns / ops.mean(rows, axes[1], keepdims=True)


# Names of the same classes under tf.keras and under Keras 2.
AdaFactorBase = AdaFactorV1 = AdaFactorV2 = AdaFactor

custom_objects: dict[str, type] = {"Adam": Adam, "AdaFactor": AdaFactor}

# === Extensions ===


class WeightDecay(ExtendableOptimizer):
    """Decoupled weight decay, of all variables but those that are excluded.

    Args:
        weight_decay_rate: float. Times the learning rate, the part of a variable that
            each batch takes off.
        exclude_from_weight_decay: patterns of names, such as `["Norm", "bias"]`.
    """

    options: ClassVar = {"weight_decay_rate": 0.01, "exclude_from_weight_decay": ()}

    def apply_update(self, update: Update) -> None:
        def decayed(old: TensorLike, new: TensorLike) -> TensorLike:
            return new - update.rate * self.weight_decay_rate * old

        is_excluded = _matches(update.name, self.exclude_from_weight_decay)
        super().apply_update(update if is_excluded else update.changed(decayed))


class LayerAdaptation(ExtendableOptimizer):
    """Moves each variable by as much as its norm is, as LAMB does.

    Args:
        exclude_from_layer_adaptation: patterns of names.

    Source: You et al. 2019, arXiv:1904.00962.
    """

    options: ClassVar = {"exclude_from_layer_adaptation": ()}

    def apply_update(self, update: Update) -> None:
        def adapted(old: TensorLike, new: TensorLike) -> TensorLike:
            move = new - old
            rate = ops.maximum(update.rate, keras.config.epsilon())
            size = ops.sqrt(ops.sum(ops.square(old)))
            direction = ops.sqrt(ops.sum(ops.square(move / rate)))
            is_usable = ops.logical_and(size > 0, direction > 0)
            unit = ops.ones_like(size)
            ratio = size / ops.where(is_usable, direction, unit)
            return old + move * ops.where(is_usable, ratio, unit)

        is_excluded = _matches(update.name, self.exclude_from_layer_adaptation)
        super().apply_update(update if is_excluded else update.changed(adapted))


class PiecewiseLinearRate(ExtendableOptimizer):
    """A learning rate that is linear between given batches.

    Args:
        lr_schedule: dict of batch to factor of the learning rate. Before the first the
            factor rises from 0 at batch 0; after the last it stays.
    """

    options: ClassVar = {"lr_schedule": {0: 1.0}}
    lr_schedule: dict[int, float]

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        super().__init__(*args, **kwargs)
        # A configuration that was saved as JSON has strings as keys.
        points = (self.lr_schedule or {0: 1.0}).items()
        self.lr_schedule = {int(batch): factor for batch, factor in points}

    def scheduled_rate(self, learning_rate: TensorLike) -> TensorLike:
        schedule = PiecewiseLinear(1.0, sorted(self.lr_schedule.items()))
        factor = ops.cast(schedule(self.iterations), learning_rate.dtype)
        return super().scheduled_rate(learning_rate) * factor


class GradientAccumulation(ExtendableOptimizer):
    """An update by the mean gradient of several batches.

    Batches 0, `grad_accum_steps`, twice that, ... update by the gradients before them.
    The first update therefore has zero gradients.

    Args:
        grad_accum_steps: int, at least 1. Batches per update.
    """

    options: ClassVar = {"grad_accum_steps": 2}
    states: ClassVar = {"sums": "gradient_sum"}

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        super().__init__(*args, **kwargs)
        check_integer("grad_accum_steps", self.grad_accum_steps, minimum=1)

    def apply_update(self, update: Update) -> None:
        has_all = ops.equal(ops.mod(self.iterations, self.grad_accum_steps), 0)

        def write(target: TensorLike, value: TensorLike) -> None:
            update.write(target, ops.where(has_all, value, _current_value(target)))

        total = self.sums[update.index]
        gathered = _current_value(total)
        mean = gathered / self.grad_accum_steps
        super().apply_update(dataclasses.replace(update, gradient=mean, write=write))
        remaining = ops.where(has_all, ops.zeros_like(gathered), gathered)
        update.write(total, remaining + update.gradient)


class ExponentialMovingAverage(ExtendableOptimizer):
    """Keeps a running mean of the weights.

    The mean starts as zeros, and `apply_ema_weights` corrects that bias, which the mean
    of Keras (`use_ema`) does not have.

    Args:
        ema_momentum: float in [0, 1). How much of the mean a batch keeps.
    """

    options: ClassVar = {"ema_momentum": 0.999}
    states: ClassVar = {"ema_weights": "ema"}

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        super().__init__(*args, **kwargs)
        check_number("ema_momentum", self.ema_momentum, minimum=0, below=1)
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

    def _count(self, variable: TensorLike, index: int, write: Callable) -> None:
        mean, momentum = self.ema_weights[index], self.ema_momentum
        decayed = _current_value(mean) * momentum
        write(mean, decayed + _current_value(variable) * (1.0 - momentum))

    def apply_ema_weights(self, bias_correction: bool = True) -> None:
        """Gives the model the mean of its weights, corrected for its start as zeros."""
        batches = int(ops.convert_to_numpy(self.iterations))
        refuse(
            not batches,
            "apply_ema_weights needs the weights of at least one batch, got none",
            hint="train first",
        )
        # On PyTorch an array may be the memory of the variable itself.
        self.old_weights = [
            np.array(ops.convert_to_numpy(variable)) for variable in self.model_weights
        ]
        scale = 1.0 - self.ema_momentum**batches if bias_correction else 1.0
        for variable, mean in zip(self.model_weights, self.ema_weights, strict=True):
            variable.assign(_current_value(mean) / scale)

    def reset_old_weights(self) -> None:
        """Gives the model back what it had before `apply_ema_weights`."""
        for variable, old in zip(self.model_weights, self.old_weights, strict=False):
            variable.assign(old)


def export_to_custom_objects(
    base_extend_with: Callable[[type], type],
) -> Callable[..., type]:
    """A function from an optimizer class and a name to a registered subclass."""

    def extend_with(BaseOptimizer: type, name: str | None = None) -> type:
        extended = base_extend_with(BaseOptimizer)
        if name is not None:
            extended.__name__ = extended.__qualname__ = name
        return register(extended)

    return extend_with


def _extension(extension):
    """A function from an optimizer class to one with an extension."""

    def extend_with(base: type) -> type:
        refuse(
            not (isinstance(base, type) and issubclass(base, ExtendableOptimizer)),
            "only the optimizers of this module can be extended (Adam, AdaFactor, "
            f"and extended ones), got {base!r}",
            hint="get_updates of a script does not run on Keras 3: use Adam of "
            "this module in its place",
        )
        refuse(
            issubclass(base, extension),
            f"an optimizer has each extension once, and {base.__name__} has "
            f"{extension.__name__} already",
        )
        content = {"__doc__": extension.__doc__, "__module__": __name__}
        return type("NewOptimizer", (extension, base), content)

    return export_to_custom_objects(extend_with)


extend_with_weight_decay = _extension(WeightDecay)
extend_with_layer_adaptation = _extension(LayerAdaptation)
extend_with_piecewise_linear_lr = _extension(PiecewiseLinearRate)
extend_with_gradient_accumulation = _extension(GradientAccumulation)
extend_with_exponential_moving_average = _extension(ExponentialMovingAverage)
__all__ = ["AdaFactor", "AdaFactorBase", "AdaFactorV1", "AdaFactorV2", "Adam"]
__all__ += ["custom_objects", "export_to_custom_objects"]
_EXTENDING = [name for name in globals() if name.startswith("extend_with")]
globals().update({f"{name}_v2": globals()[name] for name in _EXTENDING})
__all__ += [name for extending in _EXTENDING for name in (extending, f"{extending}_v2")]

"""Arguments of Keras's loops, checked before anything is computed."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from roformer_keras.base.checks import (
    check_flag,
    check_instance,
    check_integer,
    check_names,
    is_integer,
)
from roformer_keras.base.errors import ConfigurationError, refuse

_Method = TypeVar("_Method", bound=Callable)
# Keras chooses a function for these names by the shapes of labels and outputs.
BY_SHAPE = ("acc", "accuracy", "ce", "crossentropy")


def checks_arguments(method: _Method) -> _Method:
    """Makes a method refuse arguments of a wrong type, and those that Keras has not."""
    signature = inspect.signature(method)
    parameters = inspect.signature(getattr(keras.Model, method.__name__)).parameters
    known = {*parameters, *signature.parameters} - {"self", "args", "kwargs"}

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        options = getattr(self, "row_options", ())
        # Keras's own `fit` marks the data of `evaluate` by a private name.
        names = [name for name in kwargs if name[0] != "_"]
        check_names(method.__name__, "argument", names, sorted({*known, *options}))
        arguments = signature.bind(self, *args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        # Those after `self` and `x`.
        arguments |= zip([*parameters][2:], arguments.pop("args", ()), strict=False)
        for name in arguments.keys() & _CHECKS.keys():
            value = arguments[name]
            if value is not None or name not in _MAY_BE_NONE:
                _CHECKS[name](name, value)
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def _check_verbose(name, value):
    is_known = is_integer(value) or isinstance(value, bool | str)
    refuse(
        not is_known or value not in ("auto", 0, 1, 2),
        f"{name} must be 'auto', 0, 1 or 2, got {value!r:.80}",
    )


def _check_callbacks(name, value):
    if not isinstance(value, keras.callbacks.CallbackList):
        for callback in keras.tree.flatten(value):
            check_instance(f"each of {name}", callback, keras.callbacks.Callback)


def _check_frequency(name, value):
    epochs = value if isinstance(value, list | tuple | set) else [value]
    for epoch in epochs:
        check_integer(name, epoch, minimum=1)


def _check_jit(name, value):
    if value != "auto":
        check_flag(name, value)


def _check_functions(get, name, value):
    """Raises ConfigurationError unless a loss or metrics are names or functions."""
    for measure in keras.tree.flatten(value):
        if isinstance(measure, str):
            if measure.lower() not in BY_SHAPE:
                _check_identifier(get, name, measure)
        elif measure is not None and not callable(measure):
            raise ConfigurationError(
                f"{name} must be objects, functions or names of Keras, got "
                f"{measure!r:.80}"
            )


def _check_identifier(get, name, value):
    try:
        get(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name} must be an object or a name of Keras, got {value!r:.80}"
        ) from error


_check_count = functools.partial(check_integer, minimum=1)
_check_number_of_epochs = functools.partial(check_integer, minimum=0)
_check_metrics = functools.partial(_check_functions, keras.metrics.get)

_MAY_BE_NONE = {
    "batch_size",
    "callbacks",
    "loss",
    "metrics",
    "optimizer",
    "steps",
    "steps_per_epoch",
    "validation_batch_size",
    "validation_steps",
    "weighted_metrics",
}
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "auto_scale_loss": check_flag,
    "batch_size": _check_count,
    "callbacks": _check_callbacks,
    "epochs": _check_number_of_epochs,
    "initial_epoch": _check_number_of_epochs,
    "jit_compile": _check_jit,
    "loss": functools.partial(_check_functions, keras.losses.get),
    "metrics": _check_metrics,
    "optimizer": functools.partial(_check_identifier, keras.optimizers.get),
    "return_dict": check_flag,
    "run_eagerly": check_flag,
    "shuffle": check_flag,
    "steps": _check_count,
    "steps_per_epoch": _check_count,
    "steps_per_execution": _check_count,
    "validation_batch_size": _check_count,
    "validation_freq": _check_frequency,
    "validation_steps": _check_count,
    "verbose": _check_verbose,
    "weighted_metrics": _check_metrics,
}

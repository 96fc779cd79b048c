"""Base of bert4keras's optimizers: an update that extensions can change.

An optimizer says in `apply_update` which values its variables get, and passes each to
`Update.write`. An extension is a subclass that hands on another update: it has another
gradient, or its `write` changes the values before they are written.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar

import keras
from keras import ops

from roformer_keras import quirks
from roformer_keras.checks import check_names, check_number
from roformer_keras.optimizers import dense_gradient
from roformer_keras.types import TensorLike

__all__ = ["ExtendableOptimizer", "Update", "current_value", "matches", "register"]

# Classes are saved under this name, so that none is taken for one of Keras.
register = keras.saving.register_keras_serializable("bert4keras")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if `re.search` finds one of the patterns in the name of a variable."""
    return any(re.search(pattern, name) for pattern in patterns)


def current_value(variable: TensorLike) -> TensorLike:
    """Value of a variable, in at least float32."""
    return ops.cast(variable, _computed_type(variable))


def _computed_type(variable):
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return keras.backend.result_type(dtype, "float32")


def _path(variable):
    return getattr(variable, "path", variable.name)


@dataclasses.dataclass(frozen=True)
class Update:
    """The update of one variable by one batch.

    Attributes:
        variable: what is updated.
        index: int. Its place among the variables of the optimizer.
        name: str. Its path, as bert4keras's users match it: `"dense/kernel:0"`.
        gradient: tensor of the shape of the variable, in at least float32.
        rate: scalar. The learning rate.
        write: function of a variable and its new value. Writes to the variable and to
            the state of the optimizer.
    """

    variable: TensorLike
    index: int
    name: str
    gradient: TensorLike
    rate: TensorLike
    write: Callable[[TensorLike, TensorLike], None]

    @property
    def dtype(self) -> str:
        """The type in which the update is computed."""
        return _computed_type(self.variable)

    def changed(
        self, change: Callable[[TensorLike, TensorLike], TensorLike]
    ) -> "Update":
        """This update, where `change(old, new)` is the new value of the variable."""

        def write(target, value):
            if target is self.variable:
                value = change(current_value(target), value)
            self.write(target, value)

        return dataclasses.replace(self, write=write)


class ExtendableOptimizer(keras.optimizers.Optimizer):
    """An optimizer with bert4keras's options, that `extend_with_...` can extend.

    Args:
        learning_rate: float, or a `LearningRateSchedule`.
        name: str.
        clipnorm, clipvalue, global_clipnorm: floats or None. As in Keras, which takes
            one of them.
        lr: float or None. Another name of `learning_rate`. bert4keras under tf.keras
            takes it and ignores it.
        decay: float, at least 0. The rate is divided by `1 + decay * batches`.

    Attributes:
        settings: names of the attributes that each class adds to the configuration.
        states: for each attribute of a class that holds a variable for each one of the
            model, the end of their names.

    Raises:
        ConfigurationError: an option that the optimizer does not have.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    states: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        learning_rate: Any,
        name: str | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        lr: float | None = None,
        decay: float = 0.0,
        **unknown: Any,
    ):
        check_names(type(self).__name__, "option", unknown, _options(type(self)))
        check_number("decay", decay, minimum=0)
        if lr is not None:
            learning_rate = lr
        if isinstance(learning_rate, Real):
            learning_rate = float(learning_rate)
        super().__init__(
            learning_rate,
            name=name,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
        )
        self.decay = decay

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # Of a list in an attribute, Keras takes the variables for the optimizer's.
        self.trained = types.SimpleNamespace(variables=list(variables))
        for kind in reversed(type(self).__mro__):
            for attribute, name in vars(kind).get("states", {}).items():
                setattr(self, attribute, self.add_state(variables, name))

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
            name=f"{_path(self.trained.variables[index])}:0",
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

    def add_state(
        self,
        variables: Sequence[keras.Variable],
        name: str,
        shapes: Sequence[Sequence[int] | None] | None = None,
    ) -> list[keras.Variable | None]:
        """Variables of the optimizer, one for each of the model, filled with zeros.

        Args:
            variables: those of the model.
            name: str. Ends their names.
            shapes: where they differ from those of the variables. None: no variable.
        """
        if shapes is None:
            return self.add_optimizer_variables(variables, name)
        return [
            None
            if shape is None
            else self.add_variable(
                shape=tuple(map(int, shape)),
                dtype=variable.dtype,
                name=f"{_path(variable).replace('/', '_')}_{name}",
            )
            for variable, shape in zip(variables, shapes, strict=True)
        ]

    def get_config(self) -> dict[str, Any]:
        base = super().get_config()
        config = {name: base[name] for name in ("name", "learning_rate")}
        for name in ("clipnorm", "clipvalue", "global_clipnorm"):
            if base[name] is not None:
                config[name] = base[name]
        if self.decay:
            config["decay"] = self.decay
        for kind in type(self).__mro__:
            for name in vars(kind).get("settings", ()):
                config[name] = getattr(self, name)
        return config


def _options(optimizer):
    """Names of the arguments of a class and its bases, in their order."""
    names: dict[str, None] = {}
    for base in optimizer.__mro__[: optimizer.__mro__.index(ExtendableOptimizer) + 1]:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
            kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            names |= dict.fromkeys(p.name for p in parameters if p.kind not in kinds)
    return tuple(names)

"""The training function of a model, as scripts of Keras 2 replace it.

There it takes a list of arrays: inputs, targets and their weights. A script keeps it,
makes a function of the gradients of `model.total_loss`, and puts its own in its place,
which moves a table, calls the one that it kept, and moves the table back.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import TensorLike, Unchecked


class Feed:
    """Stands for the targets of an output of a model, or for their weights."""


class TotalLoss(NamedTuple):
    """Stands for the loss of a model, in `K.gradients`."""

    model: keras.Model


class Gradient:
    """Stands for the gradient of a model's loss by a variable, in `K.function`."""

    # `K.zeros_like(variable) + gradient` makes a dense one, which it is.
    __array_priority__ = 1000

    def __init__(self, model: keras.Model, variable: keras.Variable):
        self.model, self.variable = model, variable

    def __add__(self, other: TensorLike) -> "Gradient":
        refuse(
            np.any(keras.ops.convert_to_numpy(other)),
            "only zeros can be added to a gradient of model.total_loss: add to "
            "what the function of it returns",
        )
        return self

    __radd__ = __add__


def make_list_function(model: keras.Model) -> None:
    """Gives a model a training function that takes a list, as Keras 2 does."""
    refuse(
        keras.config.backend() != "tensorflow",
        "a script can replace train_function on the TensorFlow backend only, and "
        f"Keras runs on {keras.config.backend()}: set KERAS_BACKEND=tensorflow, or "
        "use roformer_keras.bert4keras.snippets.adversarial_training",
    )
    refuse(
        model.steps_per_execution != 1,
        "a train_function of Keras 2 takes one batch: compile the model without "
        f"steps_per_execution, got {model.steps_per_execution}",
    )
    model.make_train_function(force=True)
    function = model.train_function
    model.train_function = lambda arrays: function(iter([_batch_of(model, arrays)]))
    model._trains_on_lists = True


def of_batches(model: keras.Model, make: Callable, force: bool = False) -> Callable:
    """The training function of a model, which Keras calls with an iterator of batches.

    `make` is `make_train_function` of Keras.
    """
    if force or model.train_function is None:
        model._trains_on_lists = False
        return make(force)
    function = model.train_function
    if model._trains_on_lists and not hasattr(function, "takes_batches"):

        @functools.wraps(function)
        def of_iterator(iterator: Iterator) -> TensorLike:
            return function(_arrays_of(model, next(iterator)))

        of_iterator.takes_batches = True  # type: ignore[attr-defined]
        model.train_function = of_iterator
    return model.train_function


def total_loss(model: keras.Model) -> TotalLoss:
    """Stand-in for the loss of a model whose training function takes a list."""
    refuse(
        not model._trains_on_lists,
        "model.total_loss is for scripts that replace a train_function of Keras 2, "
        "and this model has one of Keras 3: call model.compile() and "
        "model._make_train_function() before",
    )
    return TotalLoss(model)


def feeds(model: keras.Model) -> list[Feed]:
    """Stand for the targets of a compiled model, or for their weights: one an output.

    Without a loss of `compile` there are none.
    """
    if model.loss is None:
        return []
    return [Feed() for _ in model.outputs]


def gradients_function(gradients: Sequence[Gradient]) -> Callable:
    """A function from the list of a training function to gradients, without dropout."""
    import tensorflow as tf

    model = gradients[0].model
    variables = [gradient.variable.value for gradient in gradients]
    # Scripts override `compute_loss` with the arguments of Keras 2.
    takes_phase = "training" in inspect.signature(model.compute_loss).parameters
    phase = {"training": False} if takes_phase else {}

    @tf.function(reduce_retracing=True)
    def compute(x: TensorLike, y: TensorLike, sample_weight: TensorLike) -> list:
        with tf.GradientTape() as tape:
            y_pred = model(x, training=False)
            loss = model.compute_loss(x, y, y_pred, sample_weight, **phase)
        return [tf.convert_to_tensor(x) for x in tape.gradient(loss, variables)]

    def call(arrays: Sequence) -> list[np.ndarray]:
        return [x.numpy() for x in compute(*_batch_of(model, arrays))]

    return call


def _arrays_of(model: keras.Model, batch: tuple) -> list[np.ndarray]:
    """The list of Keras 2 of a batch of Keras 3."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if isinstance(x, dict):
        x = [x[tensor.name] for tensor in model.inputs]
    if isinstance(y, dict):
        y = [y[name] for name in model.output_names]
    if isinstance(weights, dict):
        weights = [weights.get(name) for name in model.output_names]
    arrays = _flat(x)
    targets = _flat(y)
    ones = np.ones(len(arrays[0]), keras.config.floatx())
    weights_by_target = (
        weights if isinstance(weights, list | tuple) else [weights] * len(targets)
    )
    weight_arrays = [next(iter(_flat(one)), ones) for one in weights_by_target]
    return [*arrays, *targets, *weight_arrays]


def _flat(values: TensorLike) -> list[np.ndarray]:
    """Arrays of a structure, of which TensorFlow's empty optionals are left out."""
    return [
        keras.ops.convert_to_numpy(value)
        for value in keras.tree.flatten(values)
        if value is not None and hasattr(value, "shape")
    ]


def _batch_of(model: keras.Model, arrays: Sequence) -> tuple:
    """The batch of Keras 3 of a list of Keras 2."""
    inputs, outputs = len(model.inputs), len(model.outputs)

    def part(first: int, count: int) -> TensorLike:
        slices = list(arrays[first : first + count])
        return slices[0] if len(slices) == 1 else tuple(slices) or None

    weights = part(inputs + outputs, outputs)
    if all(np.all(array == 1) for array in keras.tree.flatten(weights)):
        # Keras 3 computes the same without.
        weights = None
    return part(0, inputs), part(inputs, outputs), weights


# === Functions of `K` ===


def gradients(
    loss: TensorLike, variables: keras.Variable | Sequence[keras.Variable]
) -> list:
    """The gradients of a loss inside a graph of TensorFlow, as in a loss function.

    Those of a table that rows are taken of have `values` and `indices`. Those of
    `model.total_loss` are for `function`.

    Raises:
        ConfigurationError: Keras runs on another backend, where a gradient is of a
            function; or TensorFlow executes eagerly, and keeps no graph.
    """
    refuse(
        keras.config.backend() != "tensorflow",
        "K.gradients works on the TensorFlow backend only, and Keras runs on "
        f"{keras.config.backend()}: set KERAS_BACKEND=tensorflow",
    )
    import tensorflow as tf

    flat = variables if isinstance(variables, list | tuple) else [variables]
    if isinstance(loss, TotalLoss):
        return [Gradient(loss.model, variable) for variable in flat]
    refuse(
        tf.executing_eagerly(),
        "K.gradients needs a graph, such as that of a loss in fit, and TensorFlow "
        "executes eagerly: compile the model without run_eagerly, or use "
        "tf.GradientTape",
    )
    flat = [x.value if isinstance(x, keras.Variable) else x for x in flat]
    return tf.gradients(loss, flat)


def function(
    inputs: Sequence,
    outputs: TensorLike,
    updates: Unchecked = None,
    name: str | None = None,
) -> Callable:
    """A function from arrays to arrays, of symbolic inputs and outputs of a model.

    Args:
        inputs: list of symbolic tensors; after those may be targets and weights.
        outputs: symbolic tensor, or list of them, or of gradients of a model's loss.
        updates: not covered.
        name: not used.

    Returns:
        A function of a list of arrays that returns an array, or a list of them.

    Raises:
        ConfigurationError: `updates` is given.
    """
    refuse(
        updates,
        "K.function takes no updates on Keras 3: assign in a layer's call",
    )
    flat = outputs if isinstance(outputs, list | tuple) else [outputs]
    if all(isinstance(output, Gradient) for output in flat):
        return gradients_function(flat)
    inputs = [tensor for tensor in inputs if not isinstance(tensor, Feed)]
    model = keras.Model(inputs, outputs)

    def call(arrays: Sequence) -> TensorLike:
        predicted = model.predict_on_batch(list(arrays[: len(inputs)]))
        if not isinstance(outputs, list | tuple):
            return predicted
        return list(predicted) if isinstance(predicted, list | tuple) else [predicted]

    return call

"""The functions of `keras.backend` in Keras 2, over the operations of Keras 3.

Scripts import this module as `K`. Functions take tensors, arrays, and symbolic tensors;
names and arguments follow Keras 2.
"""

# Functions here hide those of Python.
import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras import quirks
from roformer_keras.bert4keras import train_functions as _training
from roformer_keras.errors import ConfigurationError

# Functions that are one operation of Keras 3: those of the same name, and others.
_SAME = (
    *("abs", "argmax", "argmin", "categorical_crossentropy", "clip", "cos", "elu"),
    *("equal", "exp", "greater", "greater_equal", "hard_sigmoid", "less", "less_equal"),
    *("log", "maximum", "minimum", "not_equal", "ones_like", "relu", "round"),
    *("sigmoid", "sign", "sin", "softmax", "softplus", "softsign", "sqrt", "square"),
    *("squeeze", "stack", "stop_gradient", "tan", "tanh", "tile", "transpose"),
    "zeros_like",
)
_RENAMED = {
    "bias_add": "add",
    "identity": "copy",
    "permute_dimensions": "transpose",
    "pow": "power",
    "repeat_elements": "repeat",
    "reverse": "flip",
}
_WITH_AXIS = {"cumprod": 0, "cumsum": 0, "expand_dims": -1}
# Arguments of these functions -> those of the operation.
_ARGUMENTS = {
    "a": "x2",
    "axes": "axis",
    "bias": "x2",
    "max_value": "x_max",
    "min_value": "x_min",
    "n": "repeats",
    "pattern": "axes",
    "rep": "repeats",
    "y": "x2",
}
_REDUCTIONS = ("all", "any", "logsumexp", "max", "mean", "min", "prod", "std", "sum")


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"K.{name} is not covered by roformer_keras.bert4keras: use keras.ops, whose "
        "functions take the same tensors (https://keras.io/api/ops)"
    )


class Shape(tuple):
    """The sizes of a tensor, some of which may be tensors; a slice is a `Shape`."""

    def __getitem__(self, index):
        item = super().__getitem__(index)
        return Shape(item) if isinstance(index, builtins.slice) else item


def _tensor(x):
    """A tensor of a number, an array, a shape or a tensor."""
    if isinstance(x, Shape | tuple | list) and not isinstance(x, np.ndarray):
        if builtins.all(isinstance(one, int | float) for one in x):
            return ops.convert_to_tensor(x)
        return ops.stack([ops.cast(one, "int32") for one in x])
    return x


def _operation(name, operation):
    function = getattr(ops, operation)

    def call(*arguments: Any, **options: Any) -> Any:
        if "x" in options:
            arguments = (options.pop("x"), *arguments)
        options.pop("name", None)
        if name in _WITH_AXIS and len(arguments) < 2:
            options.setdefault("axis", _WITH_AXIS[name])
        options = {_ARGUMENTS.get(key, key): value for key, value in options.items()}
        return function(*arguments, **options)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`keras.ops.{operation}`."
    return call


def _reduction(name):
    function = getattr(ops, name)

    def call(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        if name == "prod" and isinstance(x, tuple):
            # Of sizes, which may be tensors.
            return math.prod(x)
        axis = tuple(axis) if isinstance(axis, list) else axis
        x = _tensor(x)
        if name in ("mean", "std") and dtype(x) == "bool":
            x = ops.cast(x, keras.config.floatx())
        return function(x, axis=axis, keepdims=keepdims)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`keras.ops.{name}`."
    return call


for _name in (*_SAME, *_RENAMED, *_WITH_AXIS):
    globals()[_name] = _operation(_name, _RENAMED.get(_name, _name))
globals().update({name: _reduction(name) for name in _REDUCTIONS})

# === Types and settings ===

floatx = keras.config.floatx
set_floatx = keras.config.set_floatx
epsilon = keras.config.epsilon
set_epsilon = keras.config.set_epsilon
image_data_format = keras.config.image_data_format
clear_session = keras.utils.clear_session


def backend() -> str:
    """The name of the backend, as in Keras 2."""
    return keras.config.backend()


def dtype(x: Any) -> str:
    """The name of a tensor's type."""
    return keras.backend.standardize_dtype(x.dtype)


def cast(x: Any, dtype: str) -> Any:
    """`x` in another type."""
    return ops.cast(_tensor(x), dtype)


def cast_to_floatx(x: Any) -> Any:
    """`x` in the default float type."""
    return cast(x, keras.config.floatx())


def is_keras_tensor(x: Any) -> bool:
    """True if `x` is symbolic."""
    return keras.utils.is_keras_tensor(x)


def is_tensor(x: Any) -> bool:
    """True if `x` is a tensor of the backend, or symbolic."""
    return ops.is_tensor(x) or keras.utils.is_keras_tensor(x)


# === Sizes and places ===


def shape(x: Any) -> Shape:
    """The sizes of a tensor: ints, and tensors where only the run knows them."""
    return Shape(ops.shape(x))


def int_shape(x: Any) -> tuple:
    """The sizes that are known, and None for the others."""
    return tuple(x.shape)


def ndim(x: Any) -> int:
    """The number of axes."""
    return len(x.shape)


def count_params(x: Any) -> int:
    """The number of elements of a variable."""
    return int(np.prod(x.shape))


def reshape(x: Any, shape: Any) -> Any:
    """`x` in another shape; a size may be a tensor or -1."""
    return ops.reshape(x, _sizes(shape))


def _sizes(shape):
    if isinstance(shape, tuple | list):
        return tuple(shape)
    return tuple(shape[i] for i in range(shape.shape[0]))


def flatten(x: Any, start: int | None = None, end: int | None = None) -> Any:
    """`x` with the axes from `start` to `end` as one; by default with one axis."""
    start, end = start or 0, end or ndim(x)
    if end < 0:
        end += ndim(x)
    if start < 0:
        start += ndim(x)
    sizes = ops.shape(x)
    return ops.reshape(x, (*sizes[:start], -1, *sizes[end:]))


def batch_flatten(x: Any) -> Any:
    """`x` with two axes, the first as it is."""
    return ops.reshape(x, (ops.shape(x)[0], -1))


def concatenate(tensors: Sequence, axis: int = -1) -> Any:
    """Tensors, or shapes, one after another along an axis."""
    return ops.concatenate([_tensor(x) for x in tensors], axis=axis)


def repeat(x: Any, n: int) -> Any:
    """`(batch, dim)` as `(batch, n, dim)`."""
    return ops.repeat(ops.expand_dims(x, 1), n, axis=1)


def slice(x: Any, start: Any, size: Any) -> Any:  # Keras's name.
    """A block of `x` from `start`, of a size."""
    return ops.slice(x, start, _sizes(size))


def temporal_padding(x: Any, padding: tuple = (1, 1)) -> Any:
    """`(batch, length, dim)` with zeros before and after the length."""
    return ops.pad(x, [(0, 0), tuple(padding), (0, 0)])


def gather(reference: Any, indices: Any) -> Any:
    """Rows of `reference`."""
    return ops.take(reference, ops.cast(indices, "int32"), axis=0)


def one_hot(indices: Any, num_classes: int) -> Any:
    """1 at a class number, 0 at the others, along a new last axis."""
    return ops.one_hot(ops.cast(indices, "int32"), num_classes)


def where(cond: Any, x: Any, y: Any) -> Any:
    """`x` where `cond` is true, else `y`; all are broadcast."""
    return ops.where(ops.cast(cond, "bool"), x, y)


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two tensors, or of the results of two functions."""
    if callable(then_expression):
        return ops.cond(condition, then_expression, else_expression)
    return ops.where(condition, then_expression, else_expression)


# === New tensors and variables ===


def constant(
    value: Any, dtype: str | None = None, shape: Any = None, name: str | None = None
) -> Any:
    """A tensor of numbers, in the default float type unless given."""
    array = np.asarray(value, dtype=dtype or keras.config.floatx())
    return ops.convert_to_tensor(array if shape is None else np.full(shape, array))


def zeros(shape: Any, dtype: str | None = None, name: str | None = None) -> Any:
    """A tensor of zeros."""
    return ops.zeros(_sizes(shape), dtype or keras.config.floatx())


def ones(shape: Any, dtype: str | None = None, name: str | None = None) -> Any:
    """A tensor of ones."""
    return ops.ones(_sizes(shape), dtype or keras.config.floatx())


def eye(size: Any, dtype: str | None = None, name: str | None = None) -> Any:
    """The unit matrix; its size may be a tensor."""
    numbers = ops.arange(size)
    return cast(
        ops.equal(numbers[:, None], numbers[None, :]), dtype or keras.config.floatx()
    )


def arange(start: Any, stop: Any = None, step: int = 1, dtype: str = "int32") -> Any:
    """Numbers from `start`, before `stop`."""
    if stop is None:
        start, stop = 0, start
    return ops.cast(ops.arange(start, stop, step), dtype)


def _random(name, **defaults):
    """A function of random numbers, with two parameters of these names and defaults.

    NumPy draws a seed that is not given, as in Keras 2. On TensorFlow the numbers
    follow Keras 2 without eager execution.
    """
    defaults |= {"dtype": None, "seed": None}

    def draw(shape: Any, *arguments: Any, **options: Any) -> Any:
        positional = dict(zip(defaults, arguments, strict=False))
        first, second, dtype, seed = {**defaults, **positional, **options}.values()
        seed = np.random.randint(10_000_000) if seed is None else seed
        dtype = dtype or keras.config.floatx()
        if keras.config.backend() != "tensorflow":
            function = getattr(keras.random, name)
            return function(_sizes(shape), first, second, dtype, seed)
        import tensorflow as tf

        # An operation that TensorFlow has kept would return the next numbers.
        function = tf.function(getattr(tf.random, name), autograph=False)
        return function(_sizes(shape), first, second, dtype, seed)

    draw.__doc__ = f"`keras.random.{name}`."
    return draw


random_uniform = _random("uniform", minval=0.0, maxval=1.0)
random_normal = _random("normal", mean=0.0, stddev=1.0)
truncated_normal = _random("truncated_normal", mean=0.0, stddev=1.0)


def random_binomial(
    shape: Any, p: float = 0.0, dtype: str | None = None, seed: int | None = None
) -> Any:
    """1 with probability `p`, and else 0."""
    dtype = dtype or keras.config.floatx()
    return ops.cast(random_uniform(shape, dtype=dtype, seed=seed) <= p, dtype)


def variable(value: Any, dtype: str | None = None, name: str | None = None) -> Any:
    """A `keras.Variable`."""
    return keras.Variable(value, dtype=dtype or keras.config.floatx(), name=name)


def get_value(x: Any) -> np.ndarray:
    """The number or numbers that a tensor or a variable holds."""
    return ops.convert_to_numpy(x)


eval = get_value  # Keras's name.


def set_value(x: Any, value: Any) -> None:
    """Assigns to a variable."""
    x.assign(value)


def batch_get_value(variables: Sequence) -> list[np.ndarray]:
    """Values of variables."""
    return [get_value(variable) for variable in variables]


def batch_set_value(pairs: Sequence) -> None:
    """Assigns to many variables, given as pairs of a variable and its value."""
    for variable, value in pairs:
        variable.assign(value)


def update(x: Any, new_x: Any) -> Any:
    """Assigns to a variable inside a computation."""
    return x.assign(new_x)


def update_add(x: Any, increment: Any) -> Any:
    """Adds to a variable inside a computation."""
    return x.assign(x + increment)


def update_sub(x: Any, decrement: Any) -> Any:
    """Subtracts from a variable inside a computation."""
    return x.assign(x - decrement)


# === Computation ===


def l2_normalize(x: Any, axis: int | None = None) -> Any:
    """`x` divided by its length along an axis."""
    square = ops.sum(ops.square(x), axis=axis, keepdims=True)
    return x * ops.rsqrt(ops.maximum(square, 1e-12))


def dot(x: Any, y: Any) -> Any:
    """The product of the last axis of `x` with the last but one of `y`."""
    if ndim(y) == 1:
        return ops.tensordot(x, y, axes=[[ndim(x) - 1], [0]])
    if ndim(y) == 2:
        return ops.matmul(x, y)
    return ops.tensordot(x, y, axes=[[ndim(x) - 1], [ndim(y) - 2]])


def batch_dot(x: Any, y: Any, axes: Any = None) -> Any:
    """The product of two batches, row by row, as `keras.layers.Dot` computes it."""
    if axes is None:
        axes = (ndim(x) - 1, builtins.max(ndim(y) - 2, 1))
    return keras.layers.Dot(axes=axes)([x, y])


def dropout(x: Any, level: float, seed: int | None = None) -> Any:
    """`x` with a share of its elements set to 0, and the others scaled."""
    return keras.random.dropout(x, level, seed=seed)


def in_train_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """`x` or its result in training, else `alt`.

    Args:
        training: bool. By default what the model around the layer is called with.

    Raises:
        ConfigurationError: it is not given, and no layer is being called.
    """
    if training is None:
        training = quirks.called_in_training()
        if training is None:
            raise ConfigurationError(
                "in_train_phase must be called in a layer's call or with training=, "
                "got neither: Keras 3 has no phase of learning elsewhere"
            )
    chosen = x if training else alt
    return chosen() if callable(chosen) else chosen


def sparse_categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Any:
    """The cross-entropy of class numbers.

    Args:
        target: `(...)` or `(..., 1)`, of any number type.
        output: float `(..., classes)`: probabilities, or logits.

    Returns:
        float `(...)`.
    """
    target = ops.reshape(ops.cast(target, "int32"), ops.shape(output)[:-1])
    return ops.sparse_categorical_crossentropy(target, output, from_logits, axis)


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """The cross-entropy of one class for each element."""
    return ops.binary_crossentropy(ops.cast(target, output.dtype), output, from_logits)


def gradients(loss: Any, variables: Any) -> list:
    """The gradients of a loss inside a graph of TensorFlow, as in a loss function.

    Those of a table that rows are taken of have `values` and `indices`. Those of
    `model.total_loss` are for `function`.

    Raises:
        ConfigurationError: Keras runs on another backend, where a gradient is of a
            function; or TensorFlow executes eagerly, and keeps no graph.
    """
    if keras.config.backend() != "tensorflow":
        raise ConfigurationError(
            "K.gradients works on the TensorFlow backend only, and Keras runs on "
            f"{keras.config.backend()}: set KERAS_BACKEND=tensorflow"
        )
    import tensorflow as tf

    flat = variables if isinstance(variables, list | tuple) else [variables]
    if isinstance(loss, _training.TotalLoss):
        return [_training.Gradient(loss.model, variable) for variable in flat]
    if tf.executing_eagerly():
        raise ConfigurationError(
            "K.gradients needs a graph, such as that of a loss in fit, and TensorFlow "
            "executes eagerly: compile the model without run_eagerly, or use "
            "tf.GradientTape"
        )
    flat = [x.value if isinstance(x, keras.Variable) else x for x in flat]
    return tf.gradients(loss, flat)


def function(
    inputs: Sequence, outputs: Any, updates: Any = None, name: str | None = None
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
    if updates:
        raise ConfigurationError(
            "K.function takes no updates on Keras 3: assign in a layer's call"
        )
    flat = outputs if isinstance(outputs, list | tuple) else [outputs]
    if builtins.all(isinstance(output, _training.Gradient) for output in flat):
        return _training.gradients_function(flat)
    inputs = [tensor for tensor in inputs if not isinstance(tensor, _training.Feed)]
    model = keras.Model(inputs, outputs)

    def call(arrays: Sequence) -> Any:
        predicted = model.predict_on_batch(list(arrays[: len(inputs)]))
        if not isinstance(outputs, list | tuple):
            return predicted
        return list(predicted) if isinstance(predicted, list | tuple) else [predicted]

    return call

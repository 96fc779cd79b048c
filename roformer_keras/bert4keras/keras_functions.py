"""The functions of `keras.backend` in Keras 2, over the operations of Keras 3.

Scripts import this module as `K`. Functions take tensors, arrays, and symbolic tensors;
names and arguments follow Keras 2.
"""

# Functions here hide those of Python.
import builtins
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.bert4keras.train_functions import function, gradients  # noqa: F401


def _same(names, arguments, **defaults):
    """Rows of `_OPERATIONS` for functions that Keras 3 calls the same."""
    return {name: (name, arguments, defaults) for name in names.split()}


# K.name -> the operation of Keras 3, the arguments that Keras 2 requires, and the
# defaults of the others. The operation takes them in this order; `name` is dropped.
_OPERATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **_same("abs cos exp log round sigmoid sign sin softplus softsign square", "x"),
    **_same("tanh transpose", "x"),
    **_same("equal greater greater_equal less less_equal not_equal", "x y"),
    **_same("maximum minimum", "x y"),
    **_same("all any max min std sum var", "x", axis=None, keepdims=False),
    **_same("argmax argmin softmax", "x", axis=-1),
    **_same("cumprod cumsum", "x", axis=0),
    **_same("categorical_crossentropy", "target output", from_logits=False, axis=-1),
    **_same("elu", "x", alpha=1.0),
    **_same("expand_dims", "x", axis=-1),
    **_same("logsumexp", "input_tensor", axis=None, keepdims=False, name=None),
    **_same("ones_like zeros_like", "x", dtype=None, name=None),
    **_same("squeeze", "x axis"),
    **_same("tile", "x n"),
    "identity": ("copy", "x", {"name": None}),
    "permute_dimensions": ("transpose", "x pattern", {}),
    "pow": ("power", "x a", {}),
    "repeat_elements": ("repeat", "x rep axis", {}),
    "reverse": ("flip", "x axes", {}),
}
# What replaces the functions of Keras 2 that are not here, where keras.ops has no
# operation of the same name.
_OTHER_WAYS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "keras.ops.conv"),
    "conv2d_transpose": "keras.ops.conv_transpose",
    "ctc_batch_cost": "keras.ops.ctc_loss",
    "depthwise_conv2d": "keras.ops.depthwise_conv",
    **dict.fromkeys(("foldl", "foldr"), "keras.ops.scan"),
    "get_session": "K.function, or model.predict",
    "in_test_phase": "K.in_train_phase with x and alt exchanged",
    **dict.fromkeys(
        ("learning_phase", "learning_phase_scope", "set_learning_phase"),
        "the argument training of a layer's call, or K.in_train_phase",
    ),
    "moving_average_update": "K.update",
    "name_scope": "keras.name_scope",
    "normalize_batch_in_training": "keras.ops.moments and batch_normalization",
    "placeholder": "keras.Input",
    **dict.fromkeys(("pool2d", "pool3d"), "keras.ops.max_pool or average_pool"),
    "print_tensor": "print, in a model compiled with run_eagerly=True",
    "random_bernoulli": "K.random_binomial",
    "resize_images": "keras.ops.image.resize",
    "rnn": "keras.layers.RNN, or keras.ops.scan",
    "separable_conv2d": "keras.ops.separable_conv",
    **dict.fromkeys(("spatial_2d_padding", "spatial_3d_padding"), "keras.ops.pad"),
}


def __getattr__(name: str) -> Any:
    same = f"keras.ops.{name}" if hasattr(ops, name) else "https://keras.io/api/ops"
    raise AttributeError(
        f"K.{name} is not covered by roformer_keras.bert4keras: use "
        f"{_OTHER_WAYS.get(name, same)}; operations of Keras 3 take the same tensors"
    )


class Shape(tuple):
    """The sizes of a tensor, some of which may be tensors; a slice is a `Shape`."""

    def __getitem__(self, index):
        item = super().__getitem__(index)
        return Shape(item) if isinstance(index, builtins.slice) else item


def _tensor(x):
    """A tensor of a number, an array, a shape, a list of tensors or a tensor."""
    if isinstance(x, tuple | list) and (tensors := [t for t in x if is_tensor(t)]):
        return ops.stack([ops.cast(item, dtype(tensors[0])) for item in x])
    if hasattr(x, "dtype"):
        return x
    return ops.convert_to_tensor(list(x) if isinstance(x, tuple) else x)


def _operation(name, operation, required, defaults):
    """The function `K.name`, with Keras 2's arguments."""
    compute = getattr(ops, operation)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            *(inspect.Parameter(argument, kind) for argument in required.split()),
            *(inspect.Parameter(key, kind, default=defaults[key]) for key in defaults),
        ]
    )

    def call(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        bound.arguments.pop("name", None)
        first, *others = bound.arguments.values()
        others = [tuple(x) if isinstance(x, list) else x for x in others]
        return compute(_tensor(first), *others)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`keras.ops.{operation}`, with the arguments of Keras 2."
    vars(call)["__signature__"] = signature
    return call


globals().update({name: _operation(name, *row) for name, row in _OPERATIONS.items()})

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


def reshape(tensor: Any, *args: Any) -> Any:
    """`tensor` in another shape.

    Args:
        args: a shape, whose sizes may be tensors or -1; or pairs of a shape and the
            axis that it replaces, as in `reshape(x, (heads, -1), 2)`.
    """
    if len(args) == 1:
        return _reshaped(tensor, _sizes(args[0]))
    parts = [[size] for size in ops.shape(tensor)]
    for shape, axis in zip(args[::2], args[1::2], strict=True):
        sizes = list(shape)
        if -1 in sizes and parts[axis][0] is not None:
            others = math.prod(size for size in sizes if size != -1)
            sizes[sizes.index(-1)] = parts[axis][0] // others
        parts[axis] = sizes
    return _reshaped(tensor, [size for part in parts for size in part])


def _reshaped(x, sizes):
    """`x` in another shape, where None is the unknown size of a symbolic tensor."""
    sizes = list(sizes)
    if None in sizes and -1 in sizes:
        known = [size for size in x.shape if size is not None]
        others = [size for size in sizes if size not in (None, -1)]
        sizes[sizes.index(-1)] = math.prod(known) // math.prod(others)
    return ops.reshape(x, tuple(-1 if size is None else size for size in sizes))


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
    return _reshaped(x, (*sizes[:start], -1, *sizes[end:]))


def batch_flatten(x: Any) -> Any:
    """`x` with two axes, the first as it is."""
    return flatten(x, 1)


def stack(x: Sequence, axis: int = 0) -> Any:
    """Tensors or numbers along a new axis."""
    return ops.stack([_tensor(item) for item in x], axis)


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
    """`x` where `cond` is true, else `y`; all are broadcast. Two numbers are floats."""
    if not (hasattr(x, "dtype") or hasattr(y, "dtype")):
        x = cast_to_floatx(x)
    return ops.where(ops.cast(cond, "bool"), x, y)


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two tensors, or of the results of two functions.

    Args:
        condition: one number, or a tensor whose axes are the first of the results.
    """
    condition = ops.cast(condition, "bool")
    if ndim(condition) == 0 and callable(then_expression) and callable(else_expression):
        return ops.cond(condition, then_expression, else_expression)
    results = [x() if callable(x) else x for x in (then_expression, else_expression)]
    if ndim(condition) > 1:
        new_axes = (1,) * (ndim(results[0]) - ndim(condition))
        condition = _reshaped(condition, (*ops.shape(condition), *new_axes))
    return ops.where(condition, *results)


def map_fn(fn: Callable, elems: Any, name: str | None = None, dtype: Any = None) -> Any:
    """The results of a function of each element of the first axis."""
    results = ops.map(fn, elems)
    return results if dtype is None else ops.cast(results, dtype)


# === New tensors and variables ===


def constant(
    value: Any, dtype: str | None = None, shape: Any = None, name: str | None = None
) -> Any:
    """A tensor of numbers, in the default float type unless given."""
    array = np.asarray(value, dtype=dtype or keras.config.floatx())
    if shape is not None:
        array = np.full(shape, array) if array.size == 1 else array.reshape(shape)
    return ops.convert_to_tensor(array)


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
    """Numbers from `start`, before `stop`; floats if one of them is a float."""
    if stop is None:
        start, stop = 0, start if ops.is_tensor(start) else builtins.max(start, 0)
    numbers = ops.arange(start, stop, step)
    return numbers if dtype == "int32" else ops.cast(numbers, dtype)


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
    """A `keras.Variable` with a copy of the value."""
    dtype = dtype or keras.config.floatx()
    value = ops.copy(value) if ops.is_tensor(value) else value
    # PyTorch trains no integers.
    return keras.Variable(value, dtype=dtype, trainable="int" not in dtype, name=name)


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


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean; that of integers is an integer."""
    x = _tensor(x)
    averaged = ops.mean(x, tuple(axis) if isinstance(axis, list) else axis, keepdims)
    return ops.cast(averaged, dtype(x)) if "int" in dtype(x) else averaged


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The product; that of a tuple of sizes is an int, if they are."""
    if isinstance(x, tuple):
        return math.prod(x)
    axis = tuple(axis) if isinstance(axis, list) else axis
    return ops.prod(_tensor(x), axis, keepdims)


def clip(x: Any, min_value: Any, max_value: Any) -> Any:
    """`x` between two values, each of which may be None."""
    if min_value is None:
        return ops.minimum(x, max_value)
    x = ops.maximum(x, min_value)
    return x if max_value is None else ops.minimum(x, ops.maximum(min_value, max_value))


def sqrt(x: Any) -> Any:
    """The square root; 0 of a negative number."""
    return ops.sqrt(ops.maximum(x, 0))


def relu(
    x: Any, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> Any:
    """`keras.activations.relu`, with the names of Keras 2."""
    return keras.activations.relu(_tensor(x), alpha, max_value, threshold)


def hard_sigmoid(x: Any) -> Any:
    """`0.2 * x + 0.5`, between 0 and 1."""
    return ops.clip(0.2 * _tensor(x) + 0.5, 0.0, 1.0)


def stop_gradient(variables: Any) -> Any:
    """A tensor that is a constant to gradients, or a list of them."""
    if isinstance(variables, list | tuple):
        return [ops.stop_gradient(x) for x in variables]
    return ops.stop_gradient(variables)


def bias_add(x: Any, bias: Any, data_format: str | None = None) -> Any:
    """`x` with a bias of its channels, or one of its shape without the batch."""
    if data_format == "channels_first":
        *others, channels = ops.shape(bias)
        # Keras 2 does not transpose the bias of a shape.
        bias = _reshaped(bias, (channels, *(others or (1,) * (ndim(x) - 2))))
    return ops.add(x, bias)


def in_top_k(predictions: Any, targets: Any, k: int) -> Any:
    """True where the score of a row's target is among its `k` greatest."""
    return ops.in_top_k(targets, predictions, k)


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
    # A name, so that automatic names of other layers do not change.
    return keras.layers.Dot(axes=axes, name="batch_dot")([x, y])


def dropout(
    x: Any, level: float, noise_shape: Any = None, seed: int | None = None
) -> Any:
    """`x` with a share of its elements set to 0, and the others scaled."""
    return keras.random.dropout(x, level, noise_shape, seed)


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
    target: Any,
    output: Any,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
) -> Any:
    """The cross-entropy of class numbers.

    Args:
        target: `(...)` or `(..., 1)`, of any number type.
        output: float `(..., classes)`: probabilities, or logits.
        from_logits: whether they are logits.
        axis: of the classes in `output`.
        ignore_class: class number whose cross-entropy is 0.

    Returns:
        float `(...)`.
    """
    if axis not in (-1, ndim(output) - 1):
        output = ops.moveaxis(output, axis, -1)
    target = _reshaped(ops.cast(target, "int32"), ops.shape(output)[:-1])
    if not from_logits and keras.config.backend() != "tensorflow":
        # Keras divides by the sum on other backends, before it clips.
        smallest = keras.config.epsilon()
        output = ops.log(ops.clip(output, smallest, 1 - smallest))
        from_logits = True
    if ignore_class is None:
        return ops.sparse_categorical_crossentropy(target, output, from_logits)
    counts = ops.not_equal(target, ignore_class)
    target = ops.where(counts, target, 0)
    losses = ops.sparse_categorical_crossentropy(target, output, from_logits)
    return ops.where(counts, losses, 0)


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """The cross-entropy of one class for each element."""
    target = ops.cast(target, output.dtype)
    if from_logits or quirks.is_sigmoid(output):
        return ops.binary_crossentropy(target, output, from_logits)
    smallest = keras.config.epsilon()
    output = ops.clip(output, smallest, 1 - smallest)
    # Keras 2 adds epsilon once more.
    missed = target * ops.log(output + smallest)
    return -(missed + (1 - target) * ops.log(1 - output + smallest))


def symbolic(f: Callable) -> Callable:
    """`f`: Keras 3 has no graph to enter."""
    return f

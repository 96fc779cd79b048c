"""The functions of `keras.backend` in Keras 2, over the operations of Keras 3.

Scripts import this module as `K`. Functions take tensors, arrays, and symbolic tensors;
names and arguments follow Keras 2.
"""

# Functions here hide those of Python.
import builtins
import inspect
import math
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from roformer_keras.base import errors, quirks
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras.train_functions import function, gradients  # noqa: F401


def _same(
    names: str, arguments: str, **defaults: Unchecked
) -> dict[str, tuple[str, str, dict[str, Unchecked]]]:
    """Rows of `_OPERATIONS` for functions that Keras 3 calls the same."""
    return {name: (name, arguments, defaults) for name in names.split()}


# K.name -> the operation of Keras 3, the arguments that Keras 2 requires, and the
# defaults of the others. The operation takes them in this order; `name` is dropped.
_OPERATIONS: dict[str, tuple[str, str, dict[str, Unchecked]]] = {
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


def __getattr__(name: str) -> TensorLike:
    same = f"keras.ops.{name}" if hasattr(ops, name) else "https://keras.io/api/ops"
    raise AttributeError(
        f"K.{name} is not covered by roformer_keras.bert4keras: use "
        f"{_OTHER_WAYS.get(name, same)}; operations of Keras 3 take the same tensors"
    )


def _tensor(x: TensorLike) -> TensorLike:
    """A tensor of a number, an array, a shape, a list of tensors or a tensor."""
    if isinstance(x, tuple | list) and (tensors := [t for t in x if is_tensor(t)]):
        return ops.stack([ops.cast(item, dtype(tensors[0])) for item in x])
    if hasattr(x, "dtype"):
        return x
    return ops.convert_to_tensor(list(x) if isinstance(x, tuple) else x)


def _operation(
    name: str, operation: str, required: str, defaults: dict[str, Unchecked]
) -> Callable[..., TensorLike]:
    """The function `K.name`, with Keras 2's arguments."""
    compute = getattr(ops, operation)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            *(inspect.Parameter(argument, kind) for argument in required.split()),
            *(inspect.Parameter(key, kind, default=defaults[key]) for key in defaults),
        ]
    )

    def call(*arguments: Unchecked, **options: Unchecked) -> TensorLike:
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


# === Types and settings ===


def dtype(x: TensorLike) -> str:
    """The name of a tensor's type."""
    return keras.backend.standardize_dtype(x.dtype)


def cast(x: TensorLike, dtype: str) -> TensorLike:
    """`x` in another type."""
    return ops.cast(_tensor(x), dtype)


def is_tensor(x: TensorLike) -> bool:
    """True if `x` is a tensor of the backend, or symbolic."""
    return ops.is_tensor(x) or keras.utils.is_keras_tensor(x)


# === Sizes and places ===


def ndim(x: TensorLike) -> int:
    """The number of axes."""
    return len(x.shape)


def reshape(tensor: TensorLike, *args: TensorLike) -> TensorLike:
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


def _reshaped(x: TensorLike, sizes: Sequence) -> TensorLike:
    """`x` in another shape, where None is the unknown size of a symbolic tensor."""
    sizes = list(sizes)
    if None in sizes and -1 in sizes:
        known = [size for size in x.shape if size is not None]
        others = [size for size in sizes if size not in (None, -1)]
        sizes[sizes.index(-1)] = math.prod(known) // math.prod(others)
    return ops.reshape(x, tuple(-1 if size is None else size for size in sizes))


def _sizes(shape: TensorLike) -> tuple:
    count = len(shape) if isinstance(shape, tuple | list) else shape.shape[0]
    return tuple(shape[i] for i in range(count))


def flatten(
    x: TensorLike, start: int | None = None, end: int | None = None
) -> TensorLike:
    """`x` with the axes from `start` to `end` as one; by default with one axis."""
    sizes = ops.shape(x)
    return _reshaped(x, (*sizes[: start or 0], -1, *sizes[end or ndim(x) :]))


def switch(
    condition: TensorLike, then_expression: TensorLike, else_expression: TensorLike
) -> TensorLike:
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


# === New tensors and variables ===


def constant(
    value: TensorLike,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    name: str | None = None,
) -> TensorLike:
    """A tensor of numbers, in the default float type unless given."""
    array = np.asarray(value, dtype=dtype or keras.config.floatx())
    if shape is not None:
        array = np.full(shape, array) if array.size == 1 else array.reshape(shape)
    return ops.convert_to_tensor(array)


def arange(
    start: TensorLike, stop: TensorLike = None, step: int = 1, dtype: str = "int32"
) -> TensorLike:
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

    def draw(
        shape: TensorLike, *arguments: Unchecked, **options: Unchecked
    ) -> TensorLike:
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


def variable(
    value: TensorLike, dtype: str | None = None, name: str | None = None
) -> TensorLike:
    """A `keras.Variable` with a copy of the value."""
    dtype = dtype or keras.config.floatx()
    value = ops.copy(value) if ops.is_tensor(value) else value
    # PyTorch trains no integers.
    return keras.Variable(value, dtype=dtype, trainable="int" not in dtype, name=name)


# === Computation ===


def mean(
    x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> TensorLike:
    """The mean; that of integers is an integer."""
    x = _tensor(x)
    averaged = ops.mean(x, tuple(axis) if isinstance(axis, list) else axis, keepdims)
    return ops.cast(averaged, dtype(x)) if "int" in dtype(x) else averaged


def prod(
    x: TensorLike, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> TensorLike:
    """The product; that of a tuple of sizes is an int, if they are."""
    if isinstance(x, tuple):
        return math.prod(x)
    axis = tuple(axis) if isinstance(axis, list) else axis
    return ops.prod(_tensor(x), axis, keepdims)


def clip(x: TensorLike, min_value: TensorLike, max_value: TensorLike) -> TensorLike:
    """`x` between two values, each of which may be None."""
    if min_value is None:
        return ops.minimum(x, max_value)
    x = ops.maximum(x, min_value)
    return x if max_value is None else ops.minimum(x, ops.maximum(min_value, max_value))


def bias_add(
    x: TensorLike, bias: TensorLike, data_format: str | None = None
) -> TensorLike:
    """`x` with a bias of its channels, or one of its shape without the batch."""
    if data_format == "channels_first":
        *others, channels = ops.shape(bias)
        # Keras 2 does not transpose the bias of a shape.
        bias = _reshaped(bias, (channels, *(others or (1,) * (ndim(x) - 2))))
    return ops.add(x, bias)


def dot(x: TensorLike, y: TensorLike) -> TensorLike:
    """The product of the last axis of `x` with the last but one of `y`."""
    if ndim(y) == 2:
        return ops.matmul(x, y)
    axis = builtins.max(ndim(y) - 2, 0)
    return ops.tensordot(x, y, axes=[[ndim(x) - 1], [axis]])


def batch_dot(
    x: TensorLike, y: TensorLike, axes: int | Sequence[int] | None = None
) -> TensorLike:
    """The product of two batches, row by row, as `keras.layers.Dot` computes it."""
    if axes is None:
        axes = (ndim(x) - 1, builtins.max(ndim(y) - 2, 1))
    # A name, so that automatic names of other layers do not change.
    return keras.layers.Dot(axes=axes, name="batch_dot")([x, y])


def in_train_phase(
    x: TensorLike, alt: TensorLike, training: bool | None = None
) -> TensorLike:
    """`x` or its result in training, else `alt`.

    Args:
        training: bool. By default what the model around the layer is called with.

    Raises:
        ConfigurationError: it is not given, and no layer is being called.
    """
    training = quirks.called_in_training() if training is None else training
    errors.refuse(
        training is None,
        "in_train_phase must be called in a layer's call or with training=, got "
        "neither: Keras 3 has no phase of learning elsewhere",
    )
    chosen = x if training else alt
    return chosen() if callable(chosen) else chosen


def sparse_categorical_crossentropy(
    target: TensorLike,
    output: TensorLike,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
) -> TensorLike:
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


def binary_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False
) -> TensorLike:
    """The cross-entropy of one class for each element."""
    target = ops.cast(target, output.dtype)
    if from_logits or quirks.is_sigmoid(output):
        return ops.binary_crossentropy(target, output, from_logits)
    smallest = keras.config.epsilon()
    output = ops.clip(output, smallest, 1 - smallest)
    # Keras 2 adds epsilon once more.
    missed = target * ops.log(output + smallest)
    return -(missed + (1 - target) * ops.log(1 - output + smallest))


# === Short functions ===

# K.name -> its function, whose arguments have the names and defaults of Keras 2.
_FUNCTIONS: dict[str, Callable[..., TensorLike]] = {
    # Types and settings
    "backend": keras.config.backend,
    "cast_to_floatx": lambda x: cast(x, keras.config.floatx()),
    "clear_session": keras.utils.clear_session,
    "epsilon": keras.config.epsilon,
    "floatx": keras.config.floatx,
    "image_data_format": keras.config.image_data_format,
    "is_keras_tensor": keras.utils.is_keras_tensor,
    "set_epsilon": keras.config.set_epsilon,
    "set_floatx": keras.config.set_floatx,
    # Keras 3 has no graph to enter.
    "symbolic": lambda f: f,
    # Sizes and places
    "batch_flatten": lambda x: flatten(x, 1),
    "concatenate": lambda tensors, axis=-1: ops.concatenate(
        [_tensor(x) for x in tensors], axis=axis
    ),
    "count_params": lambda x: int(np.prod(x.shape)),
    "gather": lambda reference, indices: ops.take(
        reference, ops.cast(indices, "int32"), axis=0
    ),
    "int_shape": lambda x: tuple(x.shape),
    "map_fn": lambda fn, elems, name=None, dtype=None: (
        ops.map(fn, elems) if dtype is None else ops.cast(ops.map(fn, elems), dtype)
    ),
    "one_hot": lambda indices, num_classes: ops.one_hot(
        ops.cast(indices, "int32"), num_classes
    ),
    # (batch, dim) becomes (batch, n, dim).
    "repeat": lambda x, n: ops.repeat(ops.expand_dims(x, 1), n, axis=1),
    "shape": lambda x: tuple(ops.shape(x)),
    "slice": lambda x, start, size: ops.slice(x, start, _sizes(size)),
    "stack": lambda x, axis=0: ops.stack([_tensor(item) for item in x], axis),
    "temporal_padding": lambda x, padding=(1, 1): ops.pad(
        x, [(0, 0), tuple(padding), (0, 0)]
    ),
    "where": lambda cond, x, y: ops.where(
        ops.cast(cond, "bool"),
        # Two numbers are floats.
        x
        if hasattr(x, "dtype") or hasattr(y, "dtype")
        else cast(x, keras.config.floatx()),
        y,
    ),
    # New tensors
    "eye": lambda size, dtype=None, name=None: ops.cast(
        ops.equal(ops.arange(size)[:, None], ops.arange(size)[None, :]),
        dtype or keras.config.floatx(),
    ),
    "ones": lambda shape, dtype=None, name=None: ops.ones(
        _sizes(shape), dtype or keras.config.floatx()
    ),
    "random_binomial": lambda shape, p=0.0, dtype=None, seed=None: ops.cast(
        random_uniform(shape, dtype=dtype, seed=seed) <= p,
        dtype or keras.config.floatx(),
    ),
    "zeros": lambda shape, dtype=None, name=None: ops.zeros(
        _sizes(shape), dtype or keras.config.floatx()
    ),
    # Variables
    "batch_get_value": lambda variables: list(map(ops.convert_to_numpy, variables)),
    "batch_set_value": lambda pairs: [x.assign(value) for x, value in pairs],
    "eval": ops.convert_to_numpy,
    "get_value": ops.convert_to_numpy,
    "set_value": lambda x, value: x.assign(value),
    "update": lambda x, new_x: x.assign(new_x),
    "update_add": lambda x, increment: x.assign(x + increment),
    "update_sub": lambda x, decrement: x.assign(x - decrement),
    # Computation
    "dropout": lambda x, level, noise_shape=None, seed=None: keras.random.dropout(
        x, level, noise_shape, seed
    ),
    "hard_sigmoid": lambda x: ops.clip(0.2 * _tensor(x) + 0.5, 0.0, 1.0),
    "in_top_k": lambda predictions, targets, k: ops.in_top_k(targets, predictions, k),
    "l2_normalize": lambda x, axis=None: (
        x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis, keepdims=True), 1e-12))
    ),
    "relu": lambda x, alpha=0.0, max_value=None, threshold=0.0: keras.activations.relu(
        _tensor(x), alpha, max_value, threshold
    ),
    # 0 of a negative number.
    "sqrt": lambda x: ops.sqrt(ops.maximum(x, 0)),
    "stop_gradient": lambda variables: keras.tree.map_structure(
        ops.stop_gradient, variables
    ),
}

globals().update(_FUNCTIONS)
globals().update({name: _operation(name, *row) for name, row in _OPERATIONS.items()})

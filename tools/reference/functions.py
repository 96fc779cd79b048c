"""tests/data/bert4keras/functions.json: the functions of `K`, call by call.

Each call is an expression of `K` and of the tensors of `TENSORS`. The file has its type
and its values, or a list of them, under the expression.
"""

import importlib
from typing import Any

import numpy as np

from tools.reference.bert4keras import save_json

_RANDOM = np.random.RandomState(0)
# Name of a tensor -> its values: floats, and what ends in int or bool.
TENSORS = {
    "x": [[-2.7, -1.0, -0.5, 0.0], [0.3, 1.0, 2.4, 7.5], [0.5, -1e-9, 1.5, -7.0]],
    "y": [[-2.7, 1.0, 0.5, 0.0], [1.3, 1.0, -2.4, 0.5], [2.5, 0.0, 1.5, 0.1]],
    "positive": [[0.1, 0.7, 1.0, 4.0], [1.3, 0.0, 2.4, 0.5], [1e-9, 9.0, 1.5, 0.1]],
    "cube": _RANDOM.randn(2, 3, 4).tolist(),
    "cubes": _RANDOM.randn(2, 4, 5).tolist(),
    "images": _RANDOM.randn(2, 2, 3, 2).tolist(),
    "vector": [0.5, -1.5, 2.0, 0.25],
    "number": 0.75,
    "minus_inf": [[-np.inf, -np.inf], [0.5, -np.inf]],
    "labels": [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0]],
    "one_hot": [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]],
    # Rows whose sums are not 1.
    "probas": [[0.2, 0.9, 0.0, 1.0], [1.0, 0.5, 0.25, 0.0], [0.0, 0.3, 0.3, 0.3]],
    "classes": [1.0, 3.0, 0.0],
    "columns": [[1.0], [3.0], [0.0]],
    "tags": [[1.0, 3.0, 0.0], [2.0, 2.0, 1.0]],
    "down": [[1.0, 0.0, 2.0, 2.0], [0.0, 0.0, 1.0, 2.0]],
    "rows_int": [[2, 0], [1, 1]],
    "classes_int": [1, 3, 0],
    "numbers_int": [[-3, 2, 2], [5, -1, 3]],
    "mask_bool": [[True, False, True, True], [False] * 4, [True] * 4],
    "rows_bool": [[True], [False], [True]],
    "true_bool": True,
}
_UNARY = "abs cos elu exp hard_sigmoid log relu round sigmoid sign sin softmax"
_UNARY += " softplus softsign sqrt square stop_gradient tanh transpose zeros_like"
_UNARY += " ones_like argmax argmin cumsum cumprod expand_dims flatten batch_flatten"
_UNARY += " l2_normalize logsumexp max mean min prod std sum var int_shape ndim shape"
_UNARY += " dtype get_value eval is_keras_tensor cast_to_floatx"
_COMPARED = "equal greater greater_equal less less_equal maximum minimum not_equal"
_REDUCED = "logsumexp max mean min prod std sum var"
# Expressions, one a line.
CALLS = [
    *(f"K.{name}(x)" for name in _UNARY.split()),
    *(f"K.{name}(x, y)" for name in _COMPARED.split()),
    *(f"K.{name}(cube, 1)" for name in _REDUCED.split()),
    *(f"K.{name}(cube, [0, 2], True)" for name in _REDUCED.split()),
    *(f"K.{name}(cube, axis=-1, keepdims=True)" for name in _REDUCED.split()),
    *(f"K.{name}(mask_bool, axis=1)" for name in ("all", "any", "mean", "std", "var")),
    *(f"K.{name}(x, axis=-1, keepdims=True)" for name in ("all", "any")),
    *(f"K.{name}(numbers_int, 0)" for name in ("max", "mean", "min", "prod", "sum")),
    *(f"K.{name}(cube, 1)" for name in ("argmax", "argmin", "cumsum", "cumprod")),
    *"""
K.all(mask_bool)
K.any(mask_bool)
K.mean(numbers_int)
K.mean(numbers_int, axis=1, keepdims=True)
K.log(positive)
K.sqrt(positive)
K.elu(x, 0.5)
K.elu(x=x, alpha=2.0)
K.logsumexp(minus_inf, axis=-1)
K.softmax(cube, 1)
K.softmax(cube, axis=0)
K.relu(x, 0.2)
K.relu(x, alpha=0.2)
K.relu(x, max_value=1.0)
K.relu(x, max_value=6)
K.relu(x, threshold=0.4)
K.relu(x, 0.1, 2.0, 0.5)
K.relu(x, alpha=0.1, max_value=2)
K.clip(x, -1, 1)
K.clip(x, 0, None)
K.clip(x, None, 0.5)
K.clip(x, 2, 1)
K.clip(x=x, min_value=y, max_value=1.5)
K.clip(numbers_int, 0, 3)
K.pow(x, 2)
K.pow(positive, a=0.5)
K.maximum(x, 0.5)
K.minimum(x=x, y=0.5)
K.l2_normalize(cube, 1)
K.l2_normalize(cube, axis=-1)
K.l2_normalize(cube, axis=[1, 2])
K.dot(x, K.transpose(y))
K.dot(cube, K.transpose(y))
K.dot(cube, cubes)
K.dot(x=y, y=K.transpose(x))
K.batch_dot(x, y)
K.batch_dot(x, y, axes=1)
K.batch_dot(cube, cubes)
K.batch_dot(cube, cube, axes=2)
K.batch_dot(cube, cubes, axes=(2, 1))
K.batch_dot(cube, K.permute_dimensions(cubes, (0, 2, 1)), axes=[2, 2])
K.batch_dot(cube, x[:2])
K.batch_dot(x[:2], cubes, axes=[1, 1])
K.batch_dot(images, images, axes=(3, 3))
K.permute_dimensions(cube, (2, 0, 1))
K.permute_dimensions(cube, pattern=[0, 2, 1])
K.transpose(cube)
K.reverse(cube, 1)
K.reverse(cube, axes=[0, 2])
K.repeat(x, 2)
K.repeat_elements(cube, 2, 1)
K.repeat_elements(x, rep=3, axis=0)
K.tile(vector, 2)
K.tile(x, [1, 2])
K.tile(x, n=(2, 1))
K.expand_dims(x, 1)
K.expand_dims(x, axis=0)
K.squeeze(columns, 1)
K.squeeze(columns, axis=-1)
K.stack([x, y])
K.stack([x, y], axis=-1)
K.stack([1.0, 2.0])
K.concatenate([x, y])
K.concatenate([x, y], 0)
K.concatenate([K.shape(x)[:1], [2]], 0)
K.reshape(x, (2, -1))
K.reshape(x, K.shape(y))
K.reshape(x, (-1, K.shape(x)[1], 1))
K.reshape(cube, (2, -1), 2)
K.reshape(cube, (2, -1), 2, (-1, 1), 0)
K.flatten(cube, 1)
K.flatten(cube, 0, 2)
K.flatten(cube, 1, -1)
K.flatten(cube, start=-2)
K.batch_flatten(cube)
K.temporal_padding(cube)
K.temporal_padding(cube, (0, 2))
K.cast(x, 'int32')
K.cast(mask_bool, 'float32')
K.cast(x, 'bool')
K.cast(K.shape(x), 'float32')
K.cast_to_floatx(numbers_int)
K.gather(x, classes_int[:1])
K.gather(x, rows_int)
K.gather(reference=vector, indices=classes_int)
K.one_hot(rows_int, 3)
K.one_hot(classes_int, num_classes=4)
K.one_hot(rows_int, 2)
K.where(mask_bool, x, y)
K.where(rows_bool, x, vector)
K.where(labels, 1, 0)
K.where(mask_bool, x, 0)
K.where(labels, 0.5, y)
K.where(mask_bool, numbers_int[0, 0], numbers_int[1, 0])
K.switch(number > 0.5, x, y)
K.switch(number, lambda: x, lambda: y)
K.switch(number - number, lambda: x, y)
K.switch(mask_bool, x, y)
K.switch(x > 0, lambda: x, lambda: y * 2)
K.switch(rows_int - 1, cubes[:, :2], cubes[:, 2:])
K.switch(classes_int[:2], lambda: y[0, :2], lambda: x[0, :2])
K.constant(3)
K.constant([1, 2, 3])
K.constant([1, 2, 3], 'int32')
K.constant([[1, 2], [3, 4]], dtype='int64', name='values')
K.constant(2, shape=(2, 3))
K.constant([1, 2, 3, 4], shape=(2, 2))
K.constant(5, 'int32', [3])
K.zeros((2, 3))
K.zeros(shape=[2], dtype='int32', name='zeros')
K.ones((3,))
K.ones([2, 2], 'float32')
K.ones_like(x, 'int32')
K.zeros_like(numbers_int)
K.zeros_like(x, dtype='int64', name='zeros')
K.ones_like(numbers_int)
K.eye(3)
K.eye(2, 'int32')
K.arange(5)
K.arange(2, 7)
K.arange(2, 9, 3)
K.arange(7, 2, -2)
K.arange(-3)
K.arange(0.0, 2.0, 0.5)
K.arange(0, 3, dtype='float32')
K.arange(0.5, 3.5, dtype='int64')
K.arange(start=0, stop=K.shape(x)[1])
K.cumsum(vector)
K.cumsum(x, axis=-1)
K.cumprod(x, -1)
K.bias_add(x, vector)
K.bias_add(cube, vector)
K.bias_add(cube, bias=y[:3])
K.bias_add(cube, vector[:3], 'channels_first')
K.bias_add(cube, K.transpose(y)[:, :3], data_format='channels_first')
K.bias_add(images, vector[:2], data_format='channels_last')
K.in_top_k(probas, classes_int, 1)
K.in_top_k(predictions=x, targets=classes_int, k=2)
K.map_fn(lambda row: K.sum(row * 2), x)
K.map_fn(lambda row: row[:2], elems=x)
K.map_fn(lambda row: K.argmax(row), x, dtype='int64')
K.map_fn(lambda rows: rows[0] - rows[1], (x, y), dtype='float32')
K.categorical_crossentropy(one_hot, probas)
K.categorical_crossentropy(one_hot, K.softmax(x * 9))
K.categorical_crossentropy(one_hot, x, True)
K.categorical_crossentropy(labels, probas, axis=0)
K.categorical_crossentropy(target=one_hot, output=y, from_logits=True, axis=0)
K.sparse_categorical_crossentropy(classes, probas)
K.sparse_categorical_crossentropy(columns, probas)
K.sparse_categorical_crossentropy(classes_int, K.softmax(x * 9))
K.sparse_categorical_crossentropy(classes, x, True)
K.sparse_categorical_crossentropy(tags, cube, from_logits=True)
K.sparse_categorical_crossentropy(down, cube, from_logits=True, axis=1)
K.sparse_categorical_crossentropy(down, K.softmax(cube, 1), axis=1)
K.sparse_categorical_crossentropy(tags, cube, True, ignore_class=2)
K.sparse_categorical_crossentropy(columns, probas, ignore_class=3)
K.binary_crossentropy(labels, probas)
K.binary_crossentropy(labels, K.sigmoid(x * 9))
K.binary_crossentropy(labels, x, True)
K.binary_crossentropy(target=labels, output=x, from_logits=True)
list(K.stop_gradient([x, y]))
K.random_uniform((2, 3), 0.5, 0.5 + 1e-9)
K.random_normal((2, 3), 2.0, 0.0)
K.truncated_normal((2,), mean=2.0, stddev=0.0)
K.random_binomial((3,), 1.0)
K.random_binomial((3,), p=-1.0, dtype='float64')
K.dropout(x, 0.0)
K.in_train_phase(x, y, training=True)
K.in_train_phase(lambda: x, lambda: y, training=0)
K.update(K.variable([1, 2]), vector[:2])
K.update_add(K.variable(5, dtype='int64'), 1)
K.update_sub(K.variable(vector), vector)
K.variable([[1, 2]], 'float64', name='numbers') + 0
K.batch_get_value([K.variable(vector), K.variable(0.5)])
K.symbolic(K.abs)(x)
int(K.count_params(x))
K.backend()
K.floatx()
K.epsilon()
K.image_data_format()
""".strip().splitlines(),
]


def write(output):
    path = output / "data" / "bert4keras" / "functions.json"
    save_json(path, answers("bert4keras"))


def answers(package: str, calls=CALLS) -> dict[str, Any]:
    """The results of a package's `K`, as plain JSON."""
    K = importlib.import_module(f"{package}.backend").K
    names = {"K": K, **tensors(K)}
    return {call: plain(K, eval(call, dict(names))) for call in calls}


def tensors(K):
    """The tensors of `TENSORS`, of a `K`."""
    return {name: K.constant(TENSORS[name], type_of(name)) for name in TENSORS}


def type_of(name):
    kind = name.rpartition("_")[2]
    return {"int": "int32", "bool": "bool"}.get(kind, "float32")


def plain(K, value):
    """Type and values as JSON has them."""
    if isinstance(value, list):
        return [plain(K, one) for one in value]
    if isinstance(value, str | bool | int | float | None):
        return value
    array = np.asarray(value if isinstance(value, tuple) else K.eval(value))
    if array.dtype.kind == "f":
        return [array.dtype.name, array.astype("float64").round(6).tolist()]
    return [array.dtype.name, array.tolist()]

"""The operations of a network, as OpenVINO's.

`network.py` writes networks of them.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from roformer_keras.base.extras import import_extra
from roformer_keras.engines.weight_file import WeightFile


def _operation(name):
    """A method: one operation of OpenVINO on its arguments."""
    return lambda graph, *inputs: getattr(graph.op, name)(*inputs)


class OpenVINOGraph:
    """Writes one model."""

    # By their names in Keras: functions of the graph and a tensor.
    activations: ClassVar = {
        "linear": lambda graph, x: x,
        "gelu": lambda graph, x: graph.op.gelu(x, "erf"),
        "gelu_tanh": lambda graph, x: graph.op.gelu(x, "tanh"),
        "elu": lambda graph, x: graph.op.elu(x, 1.0),
        "hard_swish": lambda graph, x: graph.op.hswish(x),
        "hard_silu": lambda graph, x: graph.op.hswish(x),
        "mish": lambda graph, x: graph.op.mish(x),
        "relu": lambda graph, x: graph.op.relu(x),
        "relu6": lambda graph, x: graph.op.clamp(x, 0.0, 6.0),
        "sigmoid": lambda graph, x: graph.op.sigmoid(x),
        "silu": lambda graph, x: graph.op.swish(x),
        "swish": lambda graph, x: graph.op.swish(x),
        "softmax": lambda graph, x: graph.softmax(x),
        "softplus": lambda graph, x: graph.op.softplus(x),
        "tanh": lambda graph, x: graph.op.tanh(x),
    }

    def __init__(self, int8: bool = False, weights: WeightFile | None = None):
        import_extra("openvino", "the engine 'openvino'")
        import openvino
        from openvino import opset13

        self._ov, self.op, self._int8 = openvino, opset13, int8
        # The types of tensors.
        self.tensors = openvino.Node, openvino.Output
        self._weights = weights
        self._inputs: dict[str, Any] = {}
        self._results: list = []
        self._assigned: list = []

    def finish(self) -> Any:
        """The `openvino.Model`."""
        return self._ov.Model(
            self._results, self._assigned, list(self._inputs.values())
        )

    def save(self, path: Path) -> None:
        """Writes the file, with weights in float32 or 8 bits next to it."""
        self._ov.save_model(self.finish(), path, compress_to_fp16=False)

    # === Inputs and outputs ===

    def input(self, name: str, dtype: str, shape: tuple) -> Any:
        """An input; None is an axis of any size."""
        sizes = [-1 if size is None else size for size in shape]
        node = self.op.parameter(sizes, np.dtype(dtype), name=name)
        node.output(0).set_names({name})
        self._inputs[name] = node
        return node

    def output(self, name: str, x: Any, shape: tuple) -> None:
        """An output of such a shape, which OpenVINO finds by itself."""
        result = self.op.result(x)
        result.output(0).set_names({name})
        self._results.append(result)

    # === Operations ===

    add = _operation("add")
    multiply = _operation("multiply")
    divide = _operation("divide")
    subtract = _operation("subtract")
    absolute = _operation("abs")
    maximum = _operation("maximum")
    root = _operation("sqrt")
    equal = _operation("equal")
    less_or_equal = _operation("less_equal")
    both = _operation("logical_and")
    either = _operation("logical_or")
    inverted = _operation("logical_not")
    where = _operation("select")

    def table(self, embeddings: np.ndarray) -> Any:
        """Embeddings `(tokens, features)`, for `take` and `score`."""
        return self._stored(embeddings)

    def take(self, table: Any, ids: Any) -> Any:
        """Rows of a `table` by their numbers."""
        zero = np.int64(0)
        if not self._int8:
            return self.op.gather(table, ids, zero)
        integers, scale = table
        rows = self.op.convert(self.op.gather(integers, ids, zero), "f32")
        return self.multiply(rows, self.op.gather(scale, ids, zero))

    def score(self, x: Any, table: Any) -> Any:
        """`x` times the transposed `table`."""
        return self._product(x, table)

    def linear(self, x: Any, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        """`x` times a kernel `(features, outputs)`, plus a bias."""
        y = self._product(x, self._stored(np.ascontiguousarray(kernel.T)))
        return y if bias is None else self.add(y, bias)

    def layer_norm(
        self, x: Any, gamma: np.ndarray, beta: np.ndarray, epsilon: float
    ) -> Any:
        y = self.op.mvn(x, np.array([-1]), True, epsilon, "INSIDE_SQRT")
        return self.add(self.multiply(y, gamma), beta)

    def rms_norm(self, x: Any, epsilon: float) -> Any:
        square = self.op.reduce_mean(self.multiply(x, x), np.array([-1]), True)
        root = self.op.sqrt(self.add(square, np.float32(epsilon)))
        return self.op.divide(x, root)

    def angles(self, positions: Any, frequencies: np.ndarray) -> tuple:
        """Cosines and sines of `(rows, length)` times frequencies, on a last axis."""
        positions = self.op.unsqueeze(positions, np.array([2]))
        angles = self.multiply(positions, frequencies)
        return self.op.cos(angles), self.op.sin(angles)

    def positions(self, x: Any) -> Any:
        """0, 1, 2, ... along the second axis: float32 `(1, length)`."""
        length = self.op.gather(self.op.shape_of(x, "i64"), np.int64(1), np.int64(0))
        numbers = self.op.range(np.int64(0), length, np.int64(1), "f32")
        return self.expanded(numbers, 0)

    def total(self, x: Any, axis: int) -> Any:
        """The sum over an axis, which stays with the size 1."""
        return self.op.reduce_sum(x, np.array([axis]), True)

    def largest(self, x: Any, axis: int) -> Any:
        """The maximum over an axis, which stays with the size 1."""
        return self.op.reduce_max(x, np.array([axis]), True)

    def counted(self, x: Any) -> Any:
        """The sum up to each element of the second axis."""
        return self.op.cum_sum(x, np.int64(1))

    def softmax(self, x: Any) -> Any:
        """Over the last axis."""
        return self.op.softmax(x, -1)

    def product(self, x: Any, y: Any, transposed: bool = False) -> Any:
        """The product of two computed tensors; of `y` transposed, if asked for."""
        return self.op.matmul(x, y, False, transposed)

    def as_float(self, x: Any) -> Any:
        return self.op.convert(x, "f32")

    def expanded(self, x: Any, *axes: int) -> Any:
        """With new axes of size 1, where they are in the result."""
        return self.op.unsqueeze(x, np.array(axes))

    def reshaped(self, x: Any, *sizes: int) -> Any:
        """Sizes of 0 stay, one of -1 is what is left."""
        return self.op.reshape(x, np.array(sizes), True)

    def concatenated(self, *xs: Any, axis: int = -1) -> Any:
        """One after the other, along an axis."""
        return self.op.concat(list(xs), axis)

    def neighbours(self, x: Any) -> tuple[Any, Any]:
        """Every second row of `(rows, features)`: from the first; from the second."""
        end, two, first = np.array([2**31 - 1]), np.array([2]), np.array([0])
        even, odd = (
            self.op.slice(x, np.array([start]), end, two, first) for start in (0, 1)
        )
        return even, odd

    def joined_axes(self, x: Any) -> Any:
        """`(groups, rows, length)` to `(groups * rows, length)`."""
        length = self.op.gather(self.op.shape_of(x, "i64"), np.array([2]), np.int64(0))
        return self.op.reshape(x, self.op.concat([np.array([-1]), length], 0), False)

    def split_axis(self, x: Any, groups: Any) -> Any:
        """`(groups * rows, 1)` to the first two sizes of `groups`."""
        shape = self.op.shape_of(groups, "i64")
        sizes = self.op.gather(shape, np.array([0, 1]), np.int64(0))
        return self.op.reshape(x, sizes, False)

    def moved(self, x: Any, *axes: int) -> Any:
        """With the axes in another order."""
        return self.op.transpose(x, np.array(axes))

    def item(self, x: Any, number: int, axis: int) -> Any:
        """One element of an axis, which is gone."""
        return self.op.gather(x, np.int64(number), np.int64(axis))

    def reordered(self, x: Any, order: np.ndarray, axis: int) -> Any:
        """The elements of an axis in another order."""
        return self.op.gather(x, order, np.int64(axis))

    def shifted(self, x: Any) -> Any:
        """The elements of the second axis one place earlier, and 0 at the end."""
        second, end = np.array([1]), np.array([2**31 - 1])
        later = self.op.slice(x, second, end, second, second)
        first = self.op.slice(x, np.array([0]), second, second, second)
        return self.op.concat([later, self.multiply(first, np.float32(0))], 1)

    def heads(self, x: Any, heads: int) -> Any:
        """`(rows, length, heads * dim)` to `(rows, heads, length, dim)`."""
        x = self.op.reshape(x, np.array([0, 0, heads, -1]), True)
        return self.op.transpose(x, np.array([0, 2, 1, 3]))

    def joined(self, x: Any, width: int) -> Any:
        """`(rows, heads, length, dim)` to `(rows, length, width)`."""
        x = self.op.transpose(x, np.array([0, 2, 1, 3]))
        return self.op.reshape(x, np.array([0, 0, width]), True)

    def rotated(self, x: Any, angles: tuple, dim: int) -> Any:
        """Rotates pairs of features (i, i + dim / 2): `(rows, heads, length, dim)`."""
        # In this form OpenVINO computes it as one operation.
        op, unit, last = self.op, np.array([1]), np.array([3])
        half, end = np.array([dim // 2]), np.array([2**31 - 1])
        first = op.slice(x, np.array([0]), half, unit, last)
        second = op.slice(x, half, end, unit, last)
        minus = np.full((1, 1, 1, 1), -1, "float32")
        turned = op.concat([self.multiply(second, minus), first], -1)
        cos, sin = (op.unsqueeze(table, unit) for table in angles)
        return self.add(self.multiply(x, cos), self.multiply(turned, sin))

    def cached(self, name: str, new: Any, heads: int, dim: int, rows: Any) -> Any:
        """Keys or values of all tokens so far: those of before, and the new ones."""
        op = self.op
        info = self._ov.op.util.VariableInfo()
        info.data_shape = self._ov.PartialShape([-1, heads, -1, dim])
        info.data_type, info.variable_id = self._ov.Type.f32, name
        variable = self._ov.op.util.Variable(info)
        shape = op.concat([op.shape_of(rows, "i64"), np.array([heads, 0, dim])], 0)
        before = op.read_value(op.broadcast(np.float32(0), shape), variable)
        before = op.gather(before, rows, np.int64(0))
        both = op.concat([before, new], 2)
        self._assigned.append(op.assign(both, variable))
        return both

    def attention(self, query: Any, keys: Any, values: Any, mask: Any) -> Any:
        """Softmax attention to keys and values that are kept.

        The mask is added to the scores. The query is already divided.
        """
        return self.op.scaled_dot_product_attention(
            query, keys, values, mask, np.float32(1), causal=False
        )

    def token(self, x: Any, at: int) -> Any:
        """One token of each row, `(rows, features)`: the first is 0, the last -1."""
        return self.op.gather(x, np.int64(at), np.int64(1))

    # === Constants ===

    def _stored(self, matrix):
        """A matrix `(outputs, features)`; with `int8` integers and their scales."""
        if not self._int8:
            return self._constant(matrix)
        integers, scale = _round_to_8_bits(matrix)
        return self._constant(integers), self.op.constant(scale)

    def _constant(self, matrix):
        if self._weights is None:
            return self.op.constant(matrix)
        mapped = self._weights.mapped(matrix)
        return self.op.constant(mapped, shared_memory=mapped is not matrix)

    def _product(self, x, stored):
        if self._int8:
            integers, scale = stored
            stored = self.op.multiply(self.op.convert(integers, "f32"), scale)
        return self.op.matmul(x, stored, False, True)


def _round_to_8_bits(matrix):
    """The nearest integers of `(outputs, features)`, with one scale for each row."""
    scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
    scale = np.where(scale > 0, scale, 1).astype("float32")
    return np.round(matrix / scale).astype("int8"), scale

"""The operations of a network, as OpenVINO's.

`network.py` writes networks of them.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from roformer_keras.base.extras import import_extra
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.engines.graph import Constant, Graph
from roformer_keras.engines.weight_file import WeightFile


class OpenVINOGraph(Graph[TensorLike]):
    """Writes one model, which may keep keys and values. Tensors are nodes."""

    names: ClassVar = {
        "add": "add",
        "multiply": "multiply",
        "divide": "divide",
        "subtract": "subtract",
        "absolute": "abs",
        "maximum": "maximum",
        "root": "sqrt",
        "cosine": "cos",
        "sine": "sin",
        "equal": "equal",
        "less_equal": "less_equal",
        "logical_and": "logical_and",
        "logical_or": "logical_or",
        "logical_not": "logical_not",
        "where": "select",
    }
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
        openvino = import_extra("openvino", "the engine 'openvino'")
        self._ov, self.op, self._int8 = openvino, openvino.opset13, int8
        # The types of tensors.
        self.tensors = openvino.Node, openvino.Output
        self._weights = weights
        self._inputs: dict[str, TensorLike] = {}
        self._results: list[TensorLike] = []
        self._assigned: list[TensorLike] = []

    def finish(self) -> TensorLike:
        """The `openvino.Model`."""
        return self._ov.Model(
            self._results, self._assigned, list(self._inputs.values())
        )

    def save(self, path: Path) -> None:
        """Writes the file, with weights in float32 or 8 bits next to it."""
        self._ov.save_model(self.finish(), path, compress_to_fp16=False)

    # === Inputs and outputs ===

    def input(self, name: str, dtype: str, shape: Shape) -> TensorLike:
        sizes = [-1 if size is None else size for size in shape]
        node = self.op.parameter(sizes, np.dtype(dtype), name=name)
        node.output(0).set_names({name})
        self._inputs[name] = node
        return node

    def output(self, name: str, x: TensorLike, shape: Shape) -> None:
        """An output of such a shape, which OpenVINO finds by itself."""
        result = self.op.result(x)
        result.output(0).set_names({name})
        self._results.append(result)

    # === Operations ===

    def node(self, kind: str, *inputs: TensorLike) -> TensorLike:
        return getattr(self.op, kind)(*inputs)

    def table(self, embeddings: np.ndarray) -> TensorLike:
        return self._stored(embeddings)

    def take(self, table: TensorLike, ids: TensorLike) -> TensorLike:
        zero = np.int64(0)
        if not self._int8:
            return self.op.gather(table, ids, zero)
        integers, scale = table
        rows = self.op.convert(self.op.gather(integers, ids, zero), "f32")
        return self.multiply(rows, self.op.gather(scale, ids, zero))

    def score(self, x: TensorLike, table: TensorLike) -> TensorLike:
        return self._product(x, table)

    def linear(
        self, x: TensorLike, kernel: np.ndarray, bias: np.ndarray | None = None
    ) -> TensorLike:
        y = self._product(x, self._stored(np.ascontiguousarray(kernel.T)))
        return y if bias is None else self.add(y, bias)

    def layer_norm(
        self, x: TensorLike, gamma: np.ndarray, beta: np.ndarray, epsilon: float
    ) -> TensorLike:
        y = self.op.mvn(x, np.array([-1]), True, epsilon, "INSIDE_SQRT")
        return self.add(self.multiply(y, gamma), beta)

    def positions(self, x: TensorLike) -> TensorLike:
        length = self.op.gather(self.op.shape_of(x, "i64"), np.int64(1), np.int64(0))
        numbers = self.op.range(np.int64(0), length, np.int64(1), "f32")
        return self.expand_dims(numbers, 0)

    def reduced(self, kind: str, x: TensorLike, axis: int) -> TensorLike:
        return getattr(self.op, f"reduce_{kind}")(x, np.array([axis]), True)

    def cumsum(self, x: TensorLike, axis: int) -> TensorLike:
        return self.op.cum_sum(x, np.int64(axis))

    def softmax(self, x: TensorLike) -> TensorLike:
        return self.op.softmax(x, -1)

    def product(
        self, x: TensorLike, y: TensorLike, transposed: bool = False
    ) -> TensorLike:
        return self.op.matmul(x, y, False, transposed)

    def as_float(self, x: TensorLike) -> TensorLike:
        return self.op.convert(x, "f32")

    def expand_dims(self, x: TensorLike, axis: int | tuple[int, ...]) -> TensorLike:
        return self.op.unsqueeze(x, np.array(axis, ndmin=1))

    def reshaped(self, x: TensorLike, *sizes: int) -> TensorLike:
        return self.op.reshape(x, np.array(sizes), True)

    def concatenated(self, *xs: TensorLike, axis: int = -1) -> TensorLike:
        return self.op.concat(list(xs), axis)

    def joined_axes(self, x: TensorLike) -> TensorLike:
        length = self.op.gather(self.op.shape_of(x, "i64"), np.array([2]), np.int64(0))
        return self.op.reshape(x, self.op.concat([np.array([-1]), length], 0), False)

    def split_axis(self, x: TensorLike, groups: TensorLike) -> TensorLike:
        shape = self.op.shape_of(groups, "i64")
        sizes = self.op.gather(shape, np.array([0, 1]), np.int64(0))
        return self.op.reshape(x, sizes, False)

    def moved(self, x: TensorLike, *axes: int) -> TensorLike:
        return self.op.transpose(x, np.array(axes))

    def reordered(self, x: TensorLike, order: Constant, axis: int) -> TensorLike:
        """The elements of an axis in another order."""
        return self.op.gather(x, order, np.int64(axis))

    def sliced(
        self, x: TensorLike, start: int, end: int, axis: int, step: int = 1
    ) -> TensorLike:
        numbers = (np.array([number]) for number in (start, end, step, axis))
        return self.op.slice(x, *numbers)

    def cached(
        self, name: str, new: TensorLike, heads: int, dim: int, rows: TensorLike
    ) -> TensorLike:
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

    def attention(
        self, query: TensorLike, keys: TensorLike, values: TensorLike, mask: TensorLike
    ) -> TensorLike:
        return self.op.scaled_dot_product_attention(
            query, keys, values, mask, np.float32(1), causal=False
        )

    # === Constants ===

    def _stored(self, matrix: np.ndarray) -> TensorLike:
        """A matrix `(outputs, features)`; with `int8` integers and their scales."""
        if not self._int8:
            return self._constant(matrix)
        integers, scale = _round_to_8_bits(matrix)
        return self._constant(integers), self.op.constant(scale)

    def _constant(self, matrix: np.ndarray) -> TensorLike:
        if self._weights is None:
            return self.op.constant(matrix)
        mapped = self._weights.mapped(matrix)
        return self.op.constant(mapped, shared_memory=mapped is not matrix)

    def _product(self, x: TensorLike, stored: TensorLike) -> TensorLike:
        if self._int8:
            integers, scale = stored
            stored = self.op.multiply(self.op.convert(integers, "f32"), scale)
        return self.op.matmul(x, stored, False, True)


def _round_to_8_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest integers of `(outputs, features)`, with one scale for each row."""
    scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
    scale = np.where(scale > 0, scale, 1).astype("float32")
    return np.round(matrix / scale).astype("int8"), scale

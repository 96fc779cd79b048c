"""The operations of a network, as ONNX's.

`network.py` writes networks of them.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from roformer_keras.base.errors import refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.base.types import Shape, TensorLike
from roformer_keras.engines.graph import Constant, Graph

# In earlier opsets ONNX Runtime does not multiply with the integers of a table, and its
# floats are made in each step. The second is the version of the format of the file.
_OPSET, _IR_VERSION = 21, 10
# Bytes of one file, a limit of its format.
_MAX_BYTES = 2**31 - 2**20


class OnnxGraph(Graph[str]):
    """Writes one model that keeps no keys and values. Tensors are names."""

    tensors = (str,)
    names: ClassVar = {
        "add": "Add",
        "multiply": "Mul",
        "divide": "Div",
        "subtract": "Sub",
        "absolute": "Abs",
        "maximum": "Max",
        "root": "Sqrt",
        "cosine": "Cos",
        "sine": "Sin",
        "equal": "Equal",
        "less_equal": "LessOrEqual",
        "logical_and": "And",
        "logical_or": "Or",
        "logical_not": "Not",
        "where": "Where",
    }
    activations: ClassVar = {
        "linear": lambda graph, x: x,
        "gelu": lambda graph, x: graph.node("Gelu", x),
        "gelu_tanh": lambda graph, x: graph.node("Gelu", x, approximate="tanh"),
        "elu": lambda graph, x: graph.node("Elu", x),
        "hard_swish": lambda graph, x: graph.node("HardSwish", x),
        "hard_silu": lambda graph, x: graph.node("HardSwish", x),
        "mish": lambda graph, x: graph.node("Mish", x),
        "relu": lambda graph, x: graph.node("Relu", x),
        "relu6": lambda graph, x: graph.node("Clip", x, np.float32(0), np.float32(6)),
        "sigmoid": lambda graph, x: graph.node("Sigmoid", x),
        "silu": lambda graph, x: graph.multiply(x, graph.node("Sigmoid", x)),
        "swish": lambda graph, x: graph.multiply(x, graph.node("Sigmoid", x)),
        "softmax": lambda graph, x: graph.softmax(x),
        "softplus": lambda graph, x: graph.node("Softplus", x),
        "tanh": lambda graph, x: graph.node("Tanh", x),
    }

    def __init__(self) -> None:
        self._onnx = import_extra("onnx", "the format 'onnx'")
        self._bytes = self._count = 0
        self._model = self._onnx.ModelProto(ir_version=_IR_VERSION)
        self._model.opset_import.add(domain="", version=_OPSET)
        self._model.graph.name = "network"

    def finish(self) -> bytes:
        """The content of an ONNX file."""
        return bytes(self._model.SerializeToString())

    def save(self, path: Path) -> None:
        """Writes the file, with its weights in it."""
        path.write_bytes(self.finish())

    # === Inputs and outputs ===

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        self._declare(self._model.graph.input, name, dtype, shape)
        return name

    def output(self, name: str, x: str, shape: Shape) -> None:
        node = self._onnx.helper.make_node("Identity", [x], [name])
        self._model.graph.node.append(node)
        self._declare(self._model.graph.output, name, "float32", shape)

    # === Operations ===

    def table(self, embeddings: np.ndarray) -> str:
        return self._constant(embeddings)

    def take(self, table: str, ids: str) -> str:
        return self.node("Gather", table, ids)

    def score(self, x: str, table: str) -> str:
        return self.node("MatMul", x, self.moved(table, 1, 0))

    def linear(self, x: str, kernel: np.ndarray, bias: np.ndarray | None = None) -> str:
        y = self.node("MatMul", x, kernel)
        return y if bias is None else self.add(y, bias)

    def layer_norm(
        self, x: str, gamma: np.ndarray, beta: np.ndarray, epsilon: float
    ) -> str:
        return self.node("LayerNormalization", x, gamma, beta, epsilon=epsilon)

    def positions(self, x: str) -> str:
        length = self.node("Shape", x, start=1, end=2)
        length = self.node("Squeeze", length, np.array([0]))
        numbers = self.node("Range", np.int64(0), length, np.int64(1))
        return self.expand_dims(self.as_float(numbers), 0)

    def reduced(self, kind: str, x: str, axis: int) -> str:
        return self.node(f"Reduce{kind.title()}", x, np.array([axis]))

    def cumsum(self, x: str, axis: int) -> str:
        return self.node("CumSum", x, np.int64(axis))

    def softmax(self, x: str) -> str:
        return self.node("Softmax", x, axis=-1)

    def product(self, x: str, y: str, transposed: bool = False) -> str:
        # ONNX Runtime joins the transposition and the product.
        y = self.moved(y, 0, 1, 3, 2) if transposed else y
        return self.node("MatMul", x, y)

    def as_float(self, x: str) -> str:
        return self.node("Cast", x, to=self._onnx.TensorProto.FLOAT)

    def expand_dims(self, x: str, axis: int | tuple[int, ...]) -> str:
        return self.node("Unsqueeze", x, np.array(axis, ndmin=1))

    def reshaped(self, x: str, *sizes: int) -> str:
        return self.node("Reshape", x, np.array(sizes))

    def concatenated(self, *xs: str, axis: int = -1) -> str:
        return self.node("Concat", *xs, axis=axis)

    def joined_axes(self, x: str) -> str:
        length = self.node("Shape", x, start=2)
        shape = self.node("Concat", np.array([-1]), length, axis=0)
        return self.node("Reshape", x, shape)

    def split_axis(self, x: str, groups: str) -> str:
        return self.node("Reshape", x, self.node("Shape", groups, start=0, end=2))

    def moved(self, x: str, *axes: int) -> str:
        return self.node("Transpose", x, perm=list(axes))

    def reordered(self, x: str, order: Constant, axis: int) -> str:
        return self.node("Gather", x, order, axis=axis)

    def sliced(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        numbers = (np.array([number]) for number in (start, end, axis, step))
        return self.node("Slice", x, *numbers)

    def node(
        self, kind: str, *inputs: str | Constant, **attributes: float | str | list[int]
    ) -> str:
        """The output of an ONNX operation."""
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        output = self._new_name()
        node = self._onnx.helper.make_node(kind, names, [output], **attributes)
        self._model.graph.node.append(node)
        return output

    # === Helpers ===

    def _constant(self, array: Constant) -> str:
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        self._bytes += array.nbytes
        refuse(
            self._bytes > _MAX_BYTES,
            "an ONNX file holds up to 2 GiB, and the weights of this model take more",
            hint="use OpenVINO",
        )
        tensor = self._onnx.numpy_helper.from_array(array, self._new_name())
        self._model.graph.initializer.append(tensor)
        return str(tensor.name)

    def _new_name(self) -> str:
        self._count += 1
        return f"tensor_{self._count}"

    def _declare(
        self, where: list[TensorLike], name: str, dtype: str, shape: Shape
    ) -> None:
        helper = self._onnx.helper
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        names = ["batch", *["length"] * len(shape)]
        sizes = [size or name for size, name in zip(shape, names, strict=False)]
        where.append(helper.make_tensor_value_info(name, kind, sizes))

"""Fusion of ONNX operations: `LayerNormalization`, `Gelu` and `Where`.

tf2onnx writes a norm and a GELU as the TensorFlow operations that they consist of, each
of which reads and writes its whole tensor. Runtimes fuse such patterns, but not in this
form. OpenVINO takes a mask made by arithmetic for the rounding of an int8 model, and
removes it.
"""

from collections import defaultdict

import numpy as np

# The opset that tf2onnx writes, and the first one with `Gelu`.
OPSET, _GELU_OPSET = 18, 20
# Operations that return booleans, and those that only move values.
_LOGICAL = {
    *("And", "Not", "Or", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
}
_RESHAPING = {"Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


def join_operations(model) -> None:
    """Replaces patterns by one operation each, in place.

    Args:
        model: `onnx.ModelProto` of opset `OPSET`. Patterns in another form stay.
    """
    graph = _Graph(model.graph)
    for kind, find in (("Reciprocal", _layer_norm), ("Erf", _gelu), ("Sub", _mask)):
        for node in graph.nodes(kind):
            graph.join(node, find)
    graph.drop_unused()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = _GELU_OPSET


def exact_products(model) -> list[str]:
    """Names of the products with matrices of 0, 1 and -1 alone, such as rotations.

    In integers they would save no time and lose precision.
    """
    graph = _Graph(model.graph)
    return [
        node.name
        for node in graph.nodes("MatMul")
        if (matrix := graph.constant(node.input[1])) is not None
        and np.isin(matrix, (-1, 0, 1)).all()
    ]


class _OtherForm(Exception):
    """The nodes around one are not the pattern."""


class _Graph:
    """A graph with the producer and the users of each tensor."""

    def __init__(self, graph):
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._producers = {name: node for node in graph.node for name in node.output}
        self._users = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._users[name].append(node)

    def nodes(self, kind):
        return [node for node in self._graph.node if node.op_type == kind]

    def constant(self, name):
        """The array of a constant, or None for a computed tensor."""
        from onnx import numpy_helper

        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def number(self, name):
        """The value of a constant of one number."""
        value = self.constant(name)
        if value is None or value.size != 1:
            raise _OtherForm
        return float(value.item())

    def add_number(self, value):
        """The name of a new float32 constant."""
        from onnx import helper

        tensor = helper.make_tensor(f"number_{len(self._constants)}", 1, [], [value])
        self._graph.initializer.append(tensor)
        self._constants[tensor.name] = tensor
        return tensor.name

    def producer(self, name, kind):
        """The node that computes a tensor."""
        node = self._producers.get(name)
        if node is None or node.op_type != kind:
            raise _OtherForm
        return node

    def user(self, node, kind):
        """The only node that takes the output of another."""
        users = self._users[node.output[0]]
        if len(users) != 1 or users[0].op_type != kind:
            raise _OtherForm
        return users[0]

    def is_boolean(self, name):
        """Whether a tensor certainly holds booleans."""
        node = self._producers.get(name)
        while node is not None and node.op_type in _RESHAPING:
            node = self._producers.get(node.input[0])
        return node is not None and node.op_type in _LOGICAL

    def operands(self, node):
        """The names of a node's computed input and of its constant one."""
        computed = [name for name in node.input if name not in self._constants]
        if len(node.input) != 2 or len(computed) != 1:
            raise _OtherForm
        (constant,) = set(node.input) - set(computed)
        return computed[0], constant

    def join(self, node, find):
        """Replaces the last node of a pattern, if `find` finds the pattern."""
        from onnx import helper

        try:
            last, kind, inputs, attributes = find(self, node)
        except _OtherForm:
            return
        outputs = list(last.output)
        last.CopyFrom(
            helper.make_node(kind, inputs, outputs, name=last.name, **attributes)
        )

    def drop_unused(self):
        """Removes nodes and constants that no output depends on."""
        needed = {output.name for output in self._graph.output}
        nodes = []
        # Nodes are in the order of computation.
        for node in reversed(self._graph.node):
            if needed.intersection(node.output):
                needed.update(_inputs(node))
                nodes.insert(0, node)
        constants = [t for t in self._graph.initializer if t.name in needed]
        for field, values in (("node", nodes), ("initializer", constants)):
            self._graph.ClearField(field)
            getattr(self._graph, field).extend(values)


def _inputs(node):
    """Names that a node takes, also in its inner graphs."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _inputs(inner)


def _mean_of(graph, name):
    """The tensor that another is the mean of, over the last axis."""
    node = graph.producer(name, "ReduceMean")
    axes = graph.constant(node.input[1]) if len(node.input) > 1 else None
    if axes is None or axes.tolist() != [-1]:
        raise _OtherForm
    return node.input[0]


def _layer_norm(graph, reciprocal):
    """`(x - mean) * (1 / sqrt(variance + epsilon) * gamma) + beta`."""
    root = graph.producer(reciprocal.input[0], "Sqrt")
    variance, epsilon = graph.operands(graph.producer(root.input[0], "Add"))
    square = graph.producer(_mean_of(graph, variance), "Mul")
    centred = graph.producer(square.input[0], "Sub")
    x, mean = centred.input
    scale = graph.user(reciprocal, "Mul")
    scaled = graph.user(scale, "Mul")
    shifted = graph.user(scaled, "Add")
    (_, gamma), (_, beta) = graph.operands(scale), graph.operands(shifted)
    if (
        square.input[1] != square.input[0]
        or _mean_of(graph, mean) != x
        or any(graph.constant(name).ndim != 1 for name in (gamma, beta))
        or set(scaled.input) != {centred.output[0], scale.output[0]}
    ):
        raise _OtherForm
    attributes = {"axis": -1, "epsilon": graph.number(epsilon)}
    return shifted, "LayerNormalization", [x, gamma, beta], attributes


def _gelu(graph, erf):
    """`(0.5 * x) * (1 + erf(x * sqrt(0.5)))`."""
    x, root = graph.operands(graph.producer(erf.input[0], "Mul"))
    total = graph.user(erf, "Add")
    _, one = graph.operands(total)
    product = graph.user(total, "Mul")
    factors = set(product.input) - set(total.output)
    if len(factors) != 1:
        raise _OtherForm
    halved, half = graph.operands(graph.producer(factors.pop(), "Mul"))
    numbers = [graph.number(name) for name in (root, one, half)]
    if halved != x or not np.allclose(numbers, [0.5**0.5, 1, 0.5]):
        raise _OtherForm
    return product, "Gelu", [x], {}


def _mask(graph, difference):
    """`(1 - visible) * lowest`, as it is added to scores."""
    visible, one = graph.operands(difference)
    cast = graph.producer(visible, "Cast")
    product = graph.user(difference, "Mul")
    _, lowest = graph.operands(product)
    if (
        difference.input[0] != one
        or graph.number(one) != 1
        or graph.number(lowest) > -1e4
        or not graph.is_boolean(cast.input[0])
    ):
        raise _OtherForm
    zero = graph.add_number(0.0)
    return product, "Where", [cast.input[0], zero, lowest], {}

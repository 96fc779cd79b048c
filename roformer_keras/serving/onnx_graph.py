"""Operations of an ONNX graph joined, where ONNX has one for what stands in several.

tf2onnx writes out a norm and a GELU as the operations of TensorFlow that they are made
of, each of which reads and writes its whole tensor. Runtimes find such patterns too,
but not in this form. A mask that is made by arithmetic is what OpenVINO, once a model
has integers, takes for the rounding of some, and leaves out.
"""

from collections import defaultdict

import numpy as np

__all__ = ["OPSET", "exact_products", "join_operations"]

# tf2onnx writes the one; `Gelu` is in the other, in which all else is as it was.
OPSET, _GELU_OPSET = 18, 20
# What gives True and False, and what changes no value.
_COMPARING = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LOGICAL = {"And", "Not", "Or", *_COMPARING}
_RESHAPING = {"Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


def join_operations(model) -> None:
    """Makes `LayerNormalization`, `Gelu` and `Where` of their parts, in place.

    Args:
        model: `onnx.ModelProto` of opset `OPSET`. What is found in another form stays.
    """
    graph = _Graph(model.graph)
    for node in graph.nodes("Reciprocal"):
        graph.join(node, _layer_norm)
    for node in graph.nodes("Erf"):
        graph.join(node, _gelu)
    for node in graph.nodes("Sub"):
        graph.join(node, _mask)
    graph.drop_unused()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = _GELU_OPSET


def exact_products(model) -> list[str]:
    """Names of the products with matrices of 0, 1 and -1 alone, as of rotations.

    They take no time worth saving, and rounding what they multiply costs precision.
    """
    graph = _Graph(model.graph)
    return [
        node.name
        for node in graph.nodes("MatMul")
        if (matrix := graph.constant(node.input[1])) is not None
        and np.isin(matrix, (-1, 0, 1)).all()
    ]


class _OtherForm(Exception):
    """The nodes around one are not what is looked for."""


class _Graph:
    """A graph in which one goes from node to node."""

    def __init__(self, graph):
        self._graph = graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._users = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._users[name].append(node)

    def nodes(self, kind):
        return [node for node in self._graph.node if node.op_type == kind]

    def constant(self, name):
        """Its array, or None of what is computed."""
        from onnx import numpy_helper

        tensor = self._tensors.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def maker(self, name, kind):
        """The node that computes a tensor."""
        node = self._makers.get(name)
        if node is None or node.op_type != kind:
            raise _OtherForm
        return node

    def user(self, node, kind):
        """The only node that takes the output of one."""
        users = self._users[node.output[0]]
        if len(users) != 1 or users[0].op_type != kind:
            raise _OtherForm
        return users[0]

    def is_truth(self, name):
        """Whether a tensor is surely one of True and False."""
        node = self._makers.get(name)
        while node is not None and node.op_type in _RESHAPING:
            node = self._makers.get(node.input[0])
        return node is not None and node.op_type in _LOGICAL

    def halves(self, node):
        """Of two inputs the one that is computed, and the constant's name."""
        one, other = node.input
        if other in self._tensors:
            return one, other
        if one in self._tensors:
            return other, one
        raise _OtherForm

    def add_number(self, value):
        """The name of a new constant float32."""
        from onnx import helper

        tensor = helper.make_tensor(f"number_{len(self._tensors)}", 1, [], [value])
        self._graph.initializer.append(tensor)
        self._tensors[tensor.name] = self._graph.initializer[-1]
        return tensor.name

    def number(self, name):
        """The value of a constant of one number."""
        value = self.constant(name)
        if value is None or value.size != 1:
            raise _OtherForm
        return float(value.item())

    def join(self, node, find):
        """Puts one node for the last of several, where `find` finds them."""
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
        """Nodes and constants that no output depends on any more."""
        needed = {output.name for output in self._graph.output}
        kept = []
        # They stand in the order in which they are computed.
        for node in reversed(self._graph.node):
            if needed.intersection(node.output):
                needed.update(_inputs(node))
                kept.append(node)
        constants = [t for t in self._graph.initializer if t.name in needed]
        for field, values in (("node", kept[::-1]), ("initializer", constants)):
            self._graph.ClearField(field)
            getattr(self._graph, field).extend(values)


def _inputs(node):
    """Names that a node takes, those in graphs of its own among them."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _inputs(inner)


def _mean_of(graph, name):
    """What a tensor is the mean of, over the last axis."""
    node = graph.maker(name, "ReduceMean")
    axes = graph.constant(node.input[1]) if len(node.input) > 1 else None
    if axes is None or axes.tolist() != [-1]:
        raise _OtherForm
    return node.input[0]


def _layer_norm(graph, reciprocal):
    """`(x - mean) * (1 / sqrt(variance + epsilon) * gamma) + beta`."""
    root = graph.maker(reciprocal.input[0], "Sqrt")
    variance, epsilon = graph.halves(graph.maker(root.input[0], "Add"))
    square = graph.maker(_mean_of(graph, variance), "Mul")
    centred = graph.maker(square.input[0], "Sub")
    x, mean = centred.input
    scale = graph.user(reciprocal, "Mul")
    scaled = graph.user(scale, "Mul")
    shifted = graph.user(scaled, "Add")
    (_, gamma), (_, beta) = graph.halves(scale), graph.halves(shifted)
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
    x, root = graph.halves(graph.maker(erf.input[0], "Mul"))
    total = graph.user(erf, "Add")
    _, one = graph.halves(total)
    product = graph.user(total, "Mul")
    factors = set(product.input) - set(total.output)
    if len(factors) != 1:
        raise _OtherForm
    halved, half = graph.halves(graph.maker(factors.pop(), "Mul"))
    numbers = [graph.number(name) for name in (root, one, half)]
    if halved != x or not np.allclose(numbers, [0.5**0.5, 1, 0.5]):
        raise _OtherForm
    return product, "Gelu", [x], {}


def _mask(graph, difference):
    """`(1 - visible) * lowest`, as it is added to scores."""
    visible, one = graph.halves(difference)
    cast = graph.maker(visible, "Cast")
    product = graph.user(difference, "Mul")
    _, lowest = graph.halves(product)
    if difference.input[0] != one or graph.number(one) != 1:
        raise _OtherForm
    if graph.number(lowest) > -1e4:
        raise _OtherForm
    if not graph.is_truth(cast.input[0]):
        raise _OtherForm
    zero = graph.add_number(0.0)
    return product, "Where", [cast.input[0], zero, lowest], {}

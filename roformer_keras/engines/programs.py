"""Compiled networks of runtimes other than Keras."""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import numpy as np

from roformer_keras.base.extras import import_extra
from roformer_keras.base.processes import (
    available_cores,
    has_amx,
    refuse_forked_process,
)
from roformer_keras.base.types import TensorLike
from roformer_keras.engines.weight_file import WeightFile

Arrays: TypeAlias = Mapping[str, np.ndarray]


class Program(Protocol):
    """A network with a memory of keys and values."""

    def start(self, arrays: Arrays | None = None) -> TensorLike:
        """A new memory, with no row or with what `read` has read."""

    def read(self, memory: TensorLike) -> dict[str, np.ndarray]:
        """Keys and values by name, float32 `(rows, heads, keys, dim)`."""

    def run(self, memory: TensorLike, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name, valid until the next call with this memory."""


class OpenVINOProgram:
    """A network of `OpenVINOGraph`."""

    def __init__(
        self,
        model: TensorLike,
        bfloat16: bool = False,
        multiplies_integers: bool = False,
        weights: WeightFile | None = None,
    ):
        openvino = import_extra("openvino", "the engine 'openvino'")
        refuse_forked_process()
        bfloat16 = bfloat16 or (multiplies_integers and has_amx())
        dtype = "bf16" if bfloat16 else "f32"
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": available_cores(),
            "INFERENCE_PRECISION_HINT": dtype,
            # A thread that is bound to a core waits for other work there, and all
            # others wait for it.
            "ENABLE_CPU_PINNING": False,
            # By default they are rounded to 8 bits.
            "KV_CACHE_PRECISION": dtype,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128 if multiplies_integers else 0,
        }
        self._tensor, core = openvino.Tensor, openvino.Core()
        if bfloat16:
            if not isinstance(model, openvino.Model):
                model = core.read_model(model)
            _end_in_products(model)
        self._compiled = core.compile_model(model, "CPU", options)
        self._weights, self._is_used = weights, False
        self._release()
        self._names = [output.any_name for output in self._compiled.outputs]
        self._requests = threading.local()

    def start(self, arrays: Arrays | None = None) -> TensorLike:
        memory = self._compiled.create_infer_request()
        if arrays is not None:
            for part in memory.query_state():
                part.state = self._tensor(arrays[part.name])
        return memory

    def read(self, memory: TensorLike) -> dict[str, np.ndarray]:
        return {part.name: part.state.data.copy() for part in memory.query_state()}

    def run(self, memory: TensorLike, inputs: Arrays) -> dict[str, np.ndarray]:
        refuse_forked_process()
        memory.infer(inputs, share_inputs=True, share_outputs=True)
        return self._results(memory)

    def _results(self, memory: TensorLike) -> dict[str, np.ndarray]:
        if not self._is_used:
            self._is_used = True
            self._release()
        return {
            name: memory.get_output_tensor(number).data
            for number, name in enumerate(self._names)
        }

    def _release(self) -> None:
        if self._weights is not None:
            self._weights.release()

    def begin(self, inputs: Arrays) -> Callable[[], dict[str, np.ndarray]]:
        """Begins to compute a network without memory; threads may share it."""
        refuse_forked_process()
        if not hasattr(self._requests, "request"):
            self._requests.request = self.start()
        request = self._requests.request
        request.start_async(inputs, share_inputs=True)

        def finish() -> dict[str, np.ndarray]:
            request.wait()
            results = self._results(request)
            # The next call writes where they are in memory.
            return {name: array.copy() for name, array in results.items()}

        return finish

    def outputs(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name, as `begin` computes them."""
        return self.begin(inputs)()


def _end_in_products(model: TensorLike) -> None:
    """Multiplies outputs that come from sums and norms with the identity.

    In bfloat16 OpenVINO computes what follows the last products of a network in
    float32. From an output that is no product, sums and norms lead back through all
    blocks: all of them would be float32, and their inputs and outputs converted.
    """
    from openvino import opset13

    for result in model.get_results():
        output = result.input(0).get_source_output()
        width = output.get_partial_shape()[-1]
        if width.is_dynamic or _norms_after_products(output) < 2:
            continue
        identity = np.eye(width.get_length(), dtype="float32")
        names = output.get_names()
        output.set_names(set())
        product = opset13.matmul(output, identity, False, False).output(0)
        product.set_names(names)
        result.input(0).replace_source_output(product)
    model.validate_nodes_and_infer_types()


def _norms_after_products(output: TensorLike) -> int:
    """Number of norms on the ways from an output back to products."""
    nodes, seen, norms = [output.get_node()], set(), 0
    while nodes:
        node = nodes.pop()
        name, kind = node.get_friendly_name(), node.get_type_name()
        if name in seen or kind in ("MatMul", "ScaledDotProductAttention"):
            continue
        seen.add(name)
        norms += kind in ("MVN", "ReduceMean")
        nodes += [x.get_source_output().get_node() for x in node.inputs()]
    return norms

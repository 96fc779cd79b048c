"""A decoding network that ONNX Runtime computes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from roformer_keras.extras import import_extra
from roformer_keras.generation.onnx_network import PAST, PRESENT
from roformer_keras.processes import available_cores, refuse_forked_process

_ERRORS_ONLY = 3


class OnnxProgram:
    """A network of `OnnxGraph`, as a `Program`.

    A memory is a dict of keys and values by name, which stay with ONNX Runtime.

    Args:
        model: the content of an ONNX file, or its path.
    """

    def __init__(self, model: bytes | str):
        runtime = import_extra("onnxruntime", "the engine 'onnx'")
        refuse_forked_process()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = available_cores()
        options.log_severity_level = _ERRORS_ONLY
        self._session = runtime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self._value = runtime.OrtValue.ortvalue_from_numpy
        self._names = [output.name for output in self._session.get_outputs()]
        inputs = self._session.get_inputs()
        self._inputs = {node.name for node in inputs}
        # Name of a cache -> heads and features.
        self._sizes = {
            node.name.removeprefix(PAST): (node.shape[1], node.shape[3])
            for node in inputs
            if node.name.startswith(PAST)
        }

    def start(self, arrays: Mapping[str, np.ndarray] | None = None) -> Any:
        return {name: self._value(array) for name, array in (arrays or {}).items()}

    def read(self, memory: Any) -> dict[str, np.ndarray]:
        return {name: value.numpy() for name, value in memory.items()}

    def run(self, memory: Any, inputs: Mapping[str, np.ndarray]) -> dict:
        refuse_forked_process()
        values = {
            name: self._value(np.ascontiguousarray(array))
            for name, array in inputs.items()
            if name in self._inputs
        }
        for name in self._sizes:
            values[PAST + name] = self._past(memory, name, inputs["rows"])
        found = dict(
            zip(
                self._names,
                self._session.run_with_ort_values(self._names, values),
                strict=True,
            )
        )
        for name in self._sizes:
            memory[name] = found.pop(PRESENT + name)
        return {name: value.numpy() for name, value in found.items()}

    def _past(self, memory, name, rows):
        """A cache in the order of `rows`, which mostly is its own."""
        if name not in memory:
            heads, dim = self._sizes[name]
            return self._value(np.zeros((len(rows), heads, 0, dim), "float32"))
        value = memory[name]
        if np.array_equal(rows, np.arange(value.shape()[0])):
            return value
        return self._value(value.numpy()[rows])

"""A functional model, compiled by a runtime other than Keras."""

from collections.abc import Callable

import keras
import numpy as np

from roformer_keras.base.types import TensorLike
from roformer_keras.engines.network import NetworkWriter
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import Arrays, OpenVINOProgram
from roformer_keras.engines.weight_file import WeightFile


class ModelProgram:
    """The outputs of a functional model, by OpenVINO; threads may share it.

    It holds the weights as they are when it is made.
    """

    def __init__(self, model: keras.Model, int8: bool, bfloat16: bool):
        weights = WeightFile()
        graph = OpenVINOGraph(int8=int8, weights=weights)
        inputs = {
            name: graph.input(name, x.dtype, x.shape) for name, x in model.input.items()
        }
        outputs = NetworkWriter(graph).functional(model, inputs)
        keras.tree.assert_same_structure(outputs, model.output)
        self._structure = model.output
        self._names = []
        for number, output in enumerate(keras.tree.flatten(outputs)):
            self._names.append(f"output_{number}")
            graph.output(self._names[-1], output, ())
        self._dtypes = {name: x.dtype for name, x in model.input.items()}
        self._program = OpenVINOProgram(
            graph.finish(), bfloat16, multiplies_integers=int8, weights=weights
        )

    def begin(self, inputs: Arrays) -> Callable[[], TensorLike]:
        """Begins to compute, as `OpenVINOProgram.begin`."""
        finish = self._program.begin(
            {
                name: np.ascontiguousarray(inputs[name], dtype)
                for name, dtype in self._dtypes.items()
            }
        )

        def finish_nested() -> TensorLike:
            outputs = finish()
            flat = [outputs[name] for name in self._names]
            return keras.tree.pack_sequence_as(self._structure, flat)

        return finish_nested

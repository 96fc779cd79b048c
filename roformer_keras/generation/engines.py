"""Runtimes that compute the steps of a generation: Keras's backend or another."""

import logging
from collections.abc import Callable
from typing import Any

from roformer_keras.base.checks import check_choice
from roformer_keras.base.types import ENGINES
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import OpenVINOProgram
from roformer_keras.engines.weight_file import WeightFile
from roformer_keras.generation.stateful import Reading, StatefulDecoder

_LOGGER = logging.getLogger(__name__)
# The format of exported generators, and the ending of their networks' files.
FORMAT, SUFFIX = "openvino", ".xml"


def make_decoder(
    write: Callable[[Any], None], reading: Reading, engine: str, bfloat16: bool
) -> StatefulDecoder:
    """The decoder of a model's network, with its weights as they are now."""
    weights = WeightFile()
    graph = OpenVINOGraph(int8=engine.endswith("int8"), weights=weights)
    write(graph)
    program = OpenVINOProgram(graph.finish(), bfloat16, weights=weights)
    return StatefulDecoder(program, reading)


def kept_decoder(model: Any, engine: Any = None) -> Any:
    """The decoder of a model, kept as long as the model computes with the same."""
    # With Keras, which the functions of this module do without.
    from roformer_keras.inference.compiled_forward import inference_of

    def compile_networks(name, is_bfloat16):
        _LOGGER.info(f"compiling for the engine {name!r}")
        return make_decoder(model._network(), model._reading(), name, is_bfloat16)

    name = engine or model._engine
    check_choice("engine", name, ENGINES)
    inference = inference_of(model)
    version = [model.config]
    decoder = inference.program(name, "decoder", compile_networks, version)
    if decoder is not None:
        return decoder
    return inference.keep("decoder of keras", model._make_decoder, version)

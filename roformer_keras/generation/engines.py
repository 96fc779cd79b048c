"""Which runtime computes the steps of a generation: Keras's backend or another."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from roformer_keras.checks import check_choice
from roformer_keras.errors import ConfigurationError
from roformer_keras.generation.onnx_network import OnnxGraph
from roformer_keras.generation.onnx_program import OnnxProgram
from roformer_keras.generation.openvino_graph import OpenVINOGraph
from roformer_keras.generation.stateful import (
    OpenVINOProgram,
    Program,
    Reading,
    StatefulDecoder,
)
from roformer_keras.generation.stateful_encoder_decoder import StatefulEncoderDecoder
from roformer_keras.io.checksums import checksum
from roformer_keras.types import Engine

ENGINES = get_args(Engine)
# The runtimes, which also are formats of exports -> what writes their networks, and the
# end of a file's name.
RUNTIMES: dict[str, tuple[type, str]] = {
    "openvino": (OpenVINOGraph, ".xml"),
    "onnx": (OnnxGraph, ".onnx"),
}

# Name of a network -> function that writes it to a graph.
Networks = Mapping[str, Callable[[Any], None]]


def choose_engine(engine: str) -> str:
    """The engine that computes: where Keras runs on OpenVINO, that is OpenVINO.

    Raises:
        ConfigurationError: there is no such engine.
    """
    check_choice("engine", engine, ENGINES)
    # Exported models need no Keras.
    import keras

    runs_on_openvino = keras.backend.backend() == "openvino"
    return "openvino" if engine == "keras" and runs_on_openvino else engine


def make_decoder(
    networks: Networks, reading: Reading, engine: str, bfloat16: bool
) -> StatefulDecoder:
    """The decoder of a model's networks, with its weights as they are now.

    Args:
        networks: `decoder`, and `encoder` of an encoder-decoder.
        engine: one of `ENGINES` but `"keras"`.
        bfloat16: bool. Whether it computes in bfloat16.

    Raises:
        ConfigurationError: the engine is not installed, or does not know the network or
            bfloat16.
    """
    runtime = engine.removesuffix("-int8")
    check_precision(runtime, bfloat16)
    programs: dict[str, Program] = {}
    for name, write in networks.items():
        graph = RUNTIMES[runtime][0](int8=engine.endswith("int8"))
        write(graph)
        programs[name] = load_program(runtime, graph.finish(), bfloat16)
    return decoder_of(programs, reading)


def check_precision(runtime: str, bfloat16: bool) -> None:
    """Raises ConfigurationError where a runtime does not compute in bfloat16."""
    if runtime == "onnx" and bfloat16:
        raise ConfigurationError(
            "ONNX Runtime computes in float32 on a CPU, got a model in bfloat16",
            hint="use dtype='float32', or OpenVINO",
        )


def load_program(runtime: str, model: Any, bfloat16: bool) -> Program:
    """The program of a network that a graph of `RUNTIMES` has finished or saved.

    Args:
        model: what `finish` returned, or the path of a file.

    Raises:
        ConfigurationError: as `check_precision`, or the runtime is not installed.
    """
    check_precision(runtime, bfloat16)
    if runtime == "onnx":
        return OnnxProgram(model)
    return OpenVINOProgram(model, bfloat16)


def decoder_of(programs: Mapping[str, Program], reading: Reading) -> StatefulDecoder:
    """The decoder of compiled networks."""
    if "encoder" in programs:
        return StatefulEncoderDecoder(programs["encoder"], programs["decoder"], reading)
    return StatefulDecoder(programs["decoder"], reading)


def weight_sums(weights: Sequence[Any]) -> list[str]:
    """A checksum for each Keras variable; some 0.05 s for a model of the base size."""
    # Exported models need no Keras.
    import keras

    # Keras copies TensorFlow's values, and NumPy does not know PyTorch's gradients.
    is_torch = keras.backend.backend() == "torch"
    read = keras.ops.convert_to_numpy if is_torch else np.asarray
    return [checksum(read(weight.value)) for weight in weights]

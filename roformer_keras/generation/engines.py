"""Runtimes that compute the steps of a generation: Keras's backend or another."""

from collections.abc import Callable, Mapping
from typing import Any

from roformer_keras.checks import check_choice
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import OpenVINOProgram, Program
from roformer_keras.generation.stateful import Reading, StatefulDecoder
from roformer_keras.generation.stateful_encoder_decoder import StatefulEncoderDecoder
from roformer_keras.types import ENGINES

# The format of exported generators, and the ending of their networks' files.
FORMAT, SUFFIX = "openvino", ".xml"

# Name of a network -> function that writes it to a graph.
Networks = Mapping[str, Callable[[Any], None]]


def choose_engine(engine: str) -> str:
    """The engine for the steps of texts; `"openvino"` where Keras runs on that.

    Raises:
        ConfigurationError: there is no such engine.
    """
    check_choice("engine", engine, ENGINES)
    # Exported models need no Keras.
    import keras

    runs_on_openvino = keras.backend.backend() == "openvino"
    return "openvino" if engine in ("auto", "keras") and runs_on_openvino else engine


def make_decoder(
    networks: Networks, reading: Reading, engine: str, bfloat16: bool
) -> StatefulDecoder:
    """The decoder of a model's networks, with its weights as they are now.

    Args:
        networks: `decoder`, and `encoder` of an encoder-decoder.
        engine: one of `ENGINES` but `"keras"`.
        bfloat16: bool. True computes in bfloat16, if the processor does.

    Raises:
        ConfigurationError: OpenVINO is not installed, or the engine does not know the
            network.
    """
    programs: dict[str, Program] = {}
    for name, write in networks.items():
        graph = OpenVINOGraph(int8=engine.endswith("int8"))
        write(graph)
        programs[name] = OpenVINOProgram(graph.finish(), bfloat16)
    return decoder_of(programs, reading)


def decoder_of(programs: Mapping[str, Program], reading: Reading) -> StatefulDecoder:
    """The decoder of compiled networks."""
    if "encoder" in programs:
        return StatefulEncoderDecoder(programs["encoder"], programs["decoder"], reading)
    return StatefulDecoder(programs["decoder"], reading)

"""Runtimes that compute the steps of a generation: Keras's backend or another."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from roformer_keras.checks import check_choice
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import OpenVINOProgram, Program
from roformer_keras.engines.weight_file import WeightFile
from roformer_keras.generation.stateful import Reading, StatefulDecoder
from roformer_keras.generation.stateful_encoder_decoder import StatefulEncoderDecoder
from roformer_keras.types import ENGINES

_LOGGER = logging.getLogger(__name__)
# The format of exported generators, and the ending of their networks' files.
FORMAT, SUFFIX = "openvino", ".xml"

# Name of a network -> function that writes it to a graph.
Networks = Mapping[str, Callable[[Any], None]]


def engine_of_writing(engine: str) -> str:
    """The engine for the steps of texts.

    Raises:
        ConfigurationError: there is no such engine.
    """
    check_choice("engine", engine, ENGINES)
    return engine


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
        weights = WeightFile()
        graph = OpenVINOGraph(int8=engine.endswith("int8"), weights=weights)
        write(graph)
        programs[name] = OpenVINOProgram(graph.finish(), bfloat16, weights=weights)
    return decoder_of(programs, reading)


def decoder_of(programs: Mapping[str, Program], reading: Reading) -> StatefulDecoder:
    """The decoder of compiled networks."""
    if "encoder" in programs:
        return StatefulEncoderDecoder(programs["encoder"], programs["decoder"], reading)
    return StatefulDecoder(programs["decoder"], reading)


def kept_decoder(model: Any, engine: Any = None) -> Any:
    """The decoder of a model, kept as long as the model computes with the same.

    Args:
        model: which has `_make_decoder` for Keras, and `_networks` and `_reading` for
            other engines.
        engine: one of `ENGINES`, or None for that of the model.
    """
    # With Keras, which the functions of this module do without.
    from roformer_keras.inference import inference_of

    def compile_networks(name, is_bfloat16):
        _LOGGER.info(f"compiling for the engine {name!r}")
        return make_decoder(model._networks(), model._reading(), name, is_bfloat16)

    inference = inference_of(model)
    version = [model.config, getattr(model.tokenizer, "cls_id", None)]
    decoder = inference.program(
        engine_of_writing(engine or model._engine), "decoder", compile_networks, version
    )
    if decoder is not None:
        return decoder
    return inference.keep("decoder of keras", model._make_decoder, version)

"""Exports models that write text, with their keys and values, for serving."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_flag, check_path
from roformer_keras.base.errors import ConfigurationError, OutputError
from roformer_keras.base.extras import import_extra
from roformer_keras.engines.network import write_model
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.export.model import check_backend, served_model
from roformer_keras.generation.engines import SUFFIX
from roformer_keras.generation.generation_config import Prompt
from roformer_keras.generation.served import FIELD, ServedGenerator
from roformer_keras.io.atomic import replacing
from roformer_keras.io.export_file import check_options
from roformer_keras.io.json_file import json_bytes
from roformer_keras.io.sources import EXPORT
from roformer_keras.models import RoFormerSim

# Largest difference from Keras in float32, as a share of the largest logit (at least
# 1).
_TOLERANCE = 1e-4
# Number of tokens of the compared prompts.
_CHECKED = (24, 12, 5, 1)


def check_generator_export(format: str, calibration_texts: Any = ()) -> None:
    """Checks the arguments of `export_generator`.

    It needs no model, so errors come before a model is loaded.

    Args:
        format: as in `export_generator`.
        calibration_texts: must be empty: the 8-bit weights of a model that writes need
            no calibration.

    Raises:
        ConfigurationError: the format is unknown, a library is missing for it, or there
            are calibration texts.
        BackendError: Keras runs on OpenVINO, which cannot compute the comparison.

    Example:
        >>> export.check_generator_export("openvino")
        >>> export.check_generator_export("saved_model")
        Traceback (most recent call last):
        ...
        roformer_keras...ConfigurationError: a model that writes is exported ...
    """
    check_options(format, False, calibration_texts, generator=True)
    check_backend(format)
    import_extra("openvino", f"the format {format!r}")


def export_generator(
    model: Any,
    folder: str | os.PathLike,
    *,
    format: str = "openvino",
    int8: bool = False,
    overwrite: bool = False,
) -> dict:
    """Exports a model that writes text, and checks it against Keras.

    `ServedGenerator` loads it, and so do the commands `generate` and `paraphrase`. The
    model is stateful: it keeps keys and values itself. `engines.network` defines its
    other inputs.

    Args:
        model: `RoFormerCausalLM` or `RoFormerSim`, with its tokenizer.
        folder: the folder to write: `decoder.xml` and `decoder.bin`; for a RoFormerSim
            also `vectors.xml` and `vectors.bin`; the tokenizer's files; and
            `export.json`.
        format: `"openvino"`.
        int8: bool. True stores kernels and embeddings in 8 bits, with a scale for each
            output and token. Products are computed in floats.
        overwrite: bool. Whether an existing folder is replaced.

    Returns:
        The content of `export.json`: `model`, its class; `dim`, its width; `format`,
        `int8`; `generator`, the settings of generation; and `differences` of the logits
        from Keras, `largest` and `mean`, on random prompts.

    Raises:
        ConfigurationError: the format is unknown or a library is missing for it; or the
            model has another class, or an option that the export does not support.
        BackendError: Keras runs on OpenVINO, which cannot compute the comparison.
        CheckpointError: the weights are not finite numbers.
        OutputError: the folder exists or cannot be written, or the export differs from
            Keras by more than 1e-4 in float32.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> metadata = export.export_generator(model, "poems-openvino")
        >>> metadata["model"], metadata["format"]
        ('RoFormerCausalLM', 'openvino')
    """
    check_path("folder", folder)
    check_flag("int8", int8)
    check_flag("overwrite", overwrite)
    check_generator_export(format)
    if isinstance(model, ServedGenerator):
        raise ConfigurationError(
            f"{model.folder} is an export already: export the model that it was made of"
        )
    if not hasattr(model, "generate"):
        raise ConfigurationError(
            f"only models that write text have a generator, got {type(model).__name__}"
        )
    tokenizer = model.text_tokenizer()
    networks: dict[str, Callable[[Any], None]] = {"decoder": model._network()}
    options = {}
    if isinstance(model, RoFormerSim):
        options["max_length"] = model.max_length
        networks["vectors"] = lambda graph: write_model(graph, served_model(model))
    reading = model._reading()
    metadata = {
        "model": type(model).__name__,
        "dim": model.config.hidden_dim,
        "format": format,
        "int8": int8,
        "options": options,
        FIELD: {
            "networks": list(networks),
            "reading": reading.to_dict(),
            "new_tokens": {"fixed": model.default_lengths.new_tokens},
        },
    }
    with replacing(folder, overwrite, folder=EXPORT) as partial:
        tokenizer.save_to_preset(partial)
        for name, write in networks.items():
            graph = OpenVINOGraph(int8=int8)
            write(graph)
            graph.save(partial / (name + SUFFIX))
        (partial / EXPORT).write_bytes(json_bytes(metadata))
        served = ServedGenerator(partial)
        metadata["differences"] = _compare(model, served, reading, int8)
        # It maps the weights into memory.
        del served
        (partial / EXPORT).write_bytes(json_bytes(metadata))
    return metadata


def _compare(model, served, reading, int8):
    """Differences of the logits after prompts; raises OutputError if too large."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(1, reading.vocabulary_size, n) for n in _CHECKED]
    prompts = [Prompt(tuple(ids.tolist()), (0,) * len(ids), 1) for ids in rows]
    expected, exported = (
        decoder.start(prompts, 1, 1)[0]
        for decoder in (model._decoder("keras"), served._decoder())
    )
    gap = np.abs(exported - expected)
    largest = float(gap.max())
    limit = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
    is_exact = model.dtype_policy.compute_dtype == "float32" and not int8
    if is_exact and not largest <= limit:
        raise OutputError(
            f"logits of the export must be within {limit:.1g} of Keras's, "
            f"got {largest:.2g}: nothing was written"
        )
    return {"largest": largest, "mean": float(gap.mean())}

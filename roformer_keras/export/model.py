"""Exports models for serving."""

import contextlib
import logging
import os
import random
import sys
from collections.abc import Sequence

import keras
import numpy as np

from roformer_keras.base.checks import (
    check_choice,
    check_flag,
    check_instance,
    check_path,
)
from roformer_keras.base.errors import (
    BackendError,
    ConfigurationError,
    Hint,
    OutputError,
)
from roformer_keras.base.extras import import_extra
from roformer_keras.engines.known import check_model
from roformer_keras.engines.network import write_model
from roformer_keras.engines.onnx_graph import OnnxGraph
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.export.runtime import FORMATS, MAX_LENGTH, load_exported
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.io.atomic import replacing
from roformer_keras.io.export_file import check_options
from roformer_keras.io.json_file import json_bytes
from roformer_keras.io.sources import EXPORT
from roformer_keras.models import RoFormerSim
from roformer_keras.tasks.multiple_choice import RoFormerMultipleChoice
from roformer_keras.text.rows import padded

# Largest difference from Keras in float32, as a share of the largest output (at least
# 1).
_TOLERANCE = 1e-4
# Smallest cosine between vectors in int8 and Keras's.
_MIN_COSINE = 0.9
# Heads exclude positions, such as padding, by -1e9 or -inf. Other outputs are smaller.
_LARGEST_OUTPUT = 1e8
_CHECKED_SHAPE = 4, 24
# Maximal texts for calibration, and maximal held-back texts for the comparison.
_MAX_TEXTS, _MAX_COMPARED = 300, 32


def export_model(
    model,
    folder: str | os.PathLike,
    format: str = "saved_model",
    *,
    int8: bool = False,
    calibration_texts: Sequence[str] = (),
    overwrite: bool = False,
) -> dict:
    """Exports a model with its tokenizer, and checks it against Keras.

    Inputs are int32 `token_ids` and `segment_ids`, `(batch, length)` of any size.
    Outputs are float32: `vectors` of length 1 for a sentence encoder or `RoFormerSim`,
    the named outputs of a model that has several, or else `outputs`. A
    `RoFormerMultipleChoice` scores each row of context and choice: `(batch, 1)`.

    Args:
        model: any model of this package with its tokenizer.
        folder: the folder to write: `saved_model/`, `model.onnx`, or `model.xml` and
            `model.bin`; the tokenizer's files; and `export.json`.
        format: `"saved_model"`, `"onnx"` or `"openvino"`.
        int8: bool, for `"onnx"` and `"openvino"`. Whether matrix products are computed
            in integers. Weights have a scale for each column. Activations have a scale
            for each batch in ONNX, and constant scales, from `calibration_texts`, in
            OpenVINO.
        calibration_texts: for `"openvino"` with `int8`, about 100 texts like those to
            serve, also in length; at least 20 different ones. A fifth is held back to
            measure differences. From more than 300 texts, 300 are drawn at random.
        overwrite: bool. Whether an existing folder is replaced.

    Returns:
        The content of `export.json`: `model`, its class; `options` of a fine-tuned
        model, such as the names of its classes, and with `crf` the `transitions` that
        decode its scores; `dim`, its width; `format`, `int8`, `inputs`, `outputs`; and
        `differences` from Keras by output: `largest`, `mean` and `min_cosine` over the
        last axis, on random ids or on the held-back texts.

    Raises:
        ConfigurationError: the format is unknown, a library is missing for it, or there
            are too few calibration texts.
        OutputError: the folder exists or cannot be written, or the export differs from
            Keras by more than 1e-4 in float32, or has a cosine below 0.9 in integers.
        BackendError: as in `check_backend`.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> found = export.export_model(model, "sentences")
        >>> found["outputs"]
        {'vectors': 'float32 (batch, 192)'}
    """
    check_instance("model", model, keras.Model)
    check_path("folder", folder)
    check_flag("overwrite", overwrite)
    check_export(format, int8, calibration_texts)
    exported, inputs = served_model(model), _checked_batch(model)
    tokenizer, rows = model.text_tokenizer(), []
    if calibration_texts:
        rows = _calibration_rows(model, tokenizer, calibration_texts)
        held_back = -(-len(rows) // 5)
        inputs = padded(rows[-held_back:][:_MAX_COMPARED])
        rows = rows[:-held_back]
    expected = run_model(exported, inputs, "keras")
    metadata = {
        "model": type(model).__name__,
        "options": _served_options(model),
        "dim": getattr(model, "vector_dim", model.config.hidden_dim),
        "format": format,
        "int8": int8,
        "inputs": {name: "int32 (batch, length)" for name in inputs},
        "outputs": {
            name: f"float32 ({', '.join(_axes(output))})"
            for name, output in exported.output.items()
        },
    }
    with replacing(folder, overwrite, folder=EXPORT) as partial:
        tokenizer.save_to_preset(partial)
        path = partial / FORMATS[format][0]
        _write(exported, format, path)
        if int8:
            _QUANTIZERS[format](path, rows)
        run = load_exported(partial, format, bfloat16=int8, trust=True)
        outputs = run(inputs)
        metadata["differences"] = {
            name: _compare(name, outputs[name], expected[name], format, int8)
            for name in expected
        }
        (partial / EXPORT).write_bytes(json_bytes(metadata))
    return metadata


def check_export(format: str, int8: bool, calibration_texts: Sequence[str]) -> None:
    """Checks the arguments of `export_model`.

    It needs no model, so errors come before a model is loaded.

    Args:
        format, int8, calibration_texts: as in `export_model`.

    Raises:
        ConfigurationError: the format is unknown, a library is missing for it, or the
            arguments contradict each other.
        BackendError: as in `check_backend`.

    Example:
        >>> export.check_export("saved_model", int8=False, calibration_texts=())
        >>> export.check_export("saved_model", int8=True, calibration_texts=())
        Traceback (most recent call last):
        ...
        roformer_keras.base.errors.ConfigurationError: int8 is for the formats ...
    """
    check_choice("format", format, FORMATS)
    check_flag("int8", int8)
    check_options(format, int8, calibration_texts)
    check_backend(format)
    modules = FORMATS[format][1]
    if int8 and format == "openvino":
        # This switches its telemetry off.
        os.environ.setdefault("NNCF_CI", "1")
        modules = (*modules, "nncf")
    for name in modules:
        import_extra(name, f"the format {format!r}")


def check_backend(format: str) -> None:
    """Raises BackendError if Keras's backend cannot write a format."""
    backend = keras.backend.backend()
    if format == "saved_model" and backend != "tensorflow":
        raise BackendError(
            "a SavedModel is written on the TensorFlow backend, and Keras runs on "
            f"{backend}",
            hint=Hint(
                "set KERAS_BACKEND=tensorflow, or give {format:'openvino'} or 'onnx'"
            ),
        )


# === The exported model ===


def served_model(model):
    """A functional model whose outputs are a dict in float32."""
    is_sim = isinstance(model, RoFormerSim)
    source = model.backbone if is_sim else getattr(model, "vectors", model)
    check_model(source)
    if source is not model:
        vectors = source.output["pooled_output"] if is_sim else source.output
        unit_length = keras.layers.UnitNormalization(dtype="float32")
        return keras.Model(model.input, {"vectors": unit_length(vectors)})
    # Groups of choices are served as rows, each with its score.
    inputs, outputs = model.input, model.output
    if isinstance(model, RoFormerMultipleChoice):
        inputs, outputs = model.scores_of_rows()
    if not isinstance(outputs, dict):
        outputs = {"outputs": outputs}
    as_float = {
        name: keras.layers.Identity(dtype="float32")(output)
        for name, output in outputs.items()
    }
    return keras.Model(inputs, as_float)


def _served_options(model):
    """The options of a model, and the transitions that decode its scores."""
    options = model.preset_options()
    field = getattr(model, "crf", None)
    if field is not None:
        transitions = keras.ops.convert_to_numpy(field.transitions)
        options = {**options, "transitions": transitions.tolist()}
    return options


def _axes(output):
    return ["batch", *(str(size or "length") for size in output.shape[1:])]


def _checked_batch(model):
    """Random ids in rows of several lengths, the shorter ones padded.

    The second half of each row is a second text if the model has segments: some heads
    score only that text.
    """
    others = sorted(set(model.input) - {"token_ids", "segment_ids"})
    if others:
        raise ConfigurationError(
            "an exported model takes token_ids and segment_ids, and this one takes "
            f"{' and '.join(others)} too"
        )
    rows, width = _CHECKED_SHAPE
    generator = np.random.default_rng(0)
    size = model.config.vocabulary_size
    lengths = [width // (row + 1) for row in range(rows)]
    inputs = padded([generator.integers(1, size, length) for length in lengths])
    if model.config.num_segments > 1:
        for segments, length in zip(inputs["segment_ids"], lengths, strict=True):
            segments[length // 2 : length] = 1
    return inputs


def _calibration_rows(model, tokenizer, texts):
    """Ids of different texts in random order, cut to the model's length."""
    max_length = getattr(model, "max_length", None) or MAX_LENGTH
    texts = sorted(set(filter(str.strip, texts)))
    texts = random.Random(0).sample(texts, min(len(texts), _MAX_TEXTS))
    return [tokenizer.encode(text, max_length=max_length)[0] for text in texts]


# === Writers ===


_GRAPHS = {"onnx": OnnxGraph, "openvino": OpenVINOGraph}


def _write(exported, format, path):
    if format == "saved_model":
        exported.export(path, format="tf_saved_model", verbose=False)
        return
    graph = _GRAPHS[format]()
    write_model(graph, exported)
    graph.save(path)


def _quantize_onnx(path, rows):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    float_path = path.with_name("float32.onnx")
    path.rename(float_path)
    # It recommends to prepare the graph, which needs no preparation.
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            float_path,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.disable(disabled)
    float_path.unlink()


def _quantize_openvino(path, rows):
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    network = openvino.Core().read_model(path)
    # NNCF draws progress bars on standard output, from which a program may read JSON.
    with open(os.devnull, "w") as nowhere:
        shown = sys.stderr if sys.stderr.isatty() else nowhere
        with contextlib.redirect_stdout(shown):
            quantized = nncf.quantize(
                network,
                nncf.Dataset([padded([row]) for row in rows]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(rows),
            )
    partial = path.with_name("integers.xml")
    openvino.save_model(quantized, partial, compress_to_fp16=False)
    # Both models map the weights of the old file into memory.
    del network, quantized
    for suffix in (".xml", ".bin"):
        partial.with_suffix(suffix).replace(path.with_suffix(suffix))


_QUANTIZERS = {"onnx": _quantize_onnx, "openvino": _quantize_openvino}


# === Checking ===


def _compare(name, computed, expected, format, int8):
    """The differences of one output; raises OutputError if they are too large."""
    computed, expected = computed.astype("float64"), expected.astype("float64")
    is_number, expected_number = (
        np.abs(values) < _LARGEST_OUTPUT for values in (computed, expected)
    )
    if not np.array_equal(is_number, expected_number):
        raise OutputError(
            f"{name} of the export must exclude the same positions as Keras, got "
            f"{np.sum(is_number != expected_number)} of {is_number.size} positions "
            f"that differ: {format} was not written"
        )
    computed, expected = (np.where(is_number, x, 0.0) for x in (computed, expected))
    gap = np.abs(computed - expected)
    norms = np.linalg.norm(computed, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosines = np.sum(computed * expected, axis=-1) / np.maximum(norms, 1e-30)
    largest = float(gap.max())
    min_cosine = float(cosines[is_number.any(axis=-1)].min())
    limit = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if int8 and name == "vectors" and not min_cosine >= _MIN_COSINE:
        raise OutputError(
            f"int8 vectors must have a cosine of at least {_MIN_COSINE} to Keras's "
            f"vectors, got {min_cosine:.3f}: calibrate with more texts, like those to "
            "serve"
        )
    if not int8 and not largest <= limit:
        raise OutputError(
            f"{name} of the export must be within {limit:.1g} of Keras's, "
            f"got {largest:.2g}: {format} was not written"
        )
    mean = float(gap[is_number].mean())
    return {"largest": largest, "mean": mean, "min_cosine": min_cosine}

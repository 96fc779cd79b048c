"""Writing models for serving."""

import contextlib
import importlib
import json
import logging
import os
import random
import sys
import warnings
from collections.abc import Sequence

import keras
import numpy as np

from roformer_keras.data.rows import padded
from roformer_keras.errors import ConfigurationError, OutputError
from roformer_keras.io.atomic import replacing
from roformer_keras.models import RoFormerSim
from roformer_keras.models.forward import run_model
from roformer_keras.serving.onnx_graph import OPSET, exact_products, join_operations
from roformer_keras.serving.runtime import FORMATS, MAX_LENGTH, load_exported

__all__ = ["check_export", "export_model"]

# Of an export in float32, to what Keras computes; as a share of the largest number.
_TOLERANCE = 1e-4
_CHECKED_SHAPE = 4, 24
# Different texts that the scales of integers are taken from, and those that are then
# compared.
_LEAST_TEXTS, _MOST_TEXTS, _HELD_BACK = 20, 300, 32
# Of vectors of integers, to those of Keras.
_LEAST_COSINE = 0.9


def export_model(
    model,
    folder: str | os.PathLike,
    format: str = "saved_model",
    *,
    int8: bool = False,
    calibration_texts: Sequence[str] = (),
    overwrite: bool = False,
) -> dict:
    """Writes a model, its tokenizer and what it takes and gives into a folder.

    Inputs are int32 `token_ids` and `segment_ids`, `(batch, length)` of any size.
    Outputs are float32: `vectors` of length 1 of a sentence encoder or `RoFormerSim`,
    the named outputs of a model that has several, else `outputs`. What was written is
    run on a padded batch, and held against what Keras computes.

    Args:
        model: any model of this package with its tokenizer, on the TensorFlow backend.
        folder: where to. It gets `saved_model/`, `model.onnx`, or `model.xml` and
            `model.bin`; the tokenizer's files; and `export.json`.
        format: `"saved_model"`, `"onnx"` or `"openvino"`.
        int8: bool, for `"onnx"` and `"openvino"`. Whether weights of matrix products
            are integers, each column on a scale of its own, and so is what they are
            multiplied by: in ONNX on a scale for each batch, in OpenVINO on scales for
            good, of what is seen with `calibration_texts`.
        calibration_texts: for `"openvino"` with `int8`, some 100 texts like those that
            are to come, in length too; at least 20 different ones, of which a fifth is
            held back to measure differences on. Of more than 300 as many are looked
            at, spread over all.
        overwrite: bool. Whether an existing folder is replaced.

    Returns:
        What `export.json` says: `model`, its class; `options` of a fine-tuned one, such
        as names of classes; `dim`, its width; `format`, `int8`, `inputs`, `outputs`;
        and `differences` to Keras, by output: largest and mean, and the least cosine of
        the last axis; on random ids, or on the texts that were held back.

    Raises:
        ConfigurationError: an unknown format, or a library is missing for it; too few
            texts to calibrate with.
        OutputError: the folder exists or cannot be written, or what was written does
            not compute what Keras does: vectors of integers with a cosine of 0.9.
    """
    check_export(format, int8, calibration_texts)
    exported, inputs = _named(model), _batch(model)
    tokenizer, rows = model.text_tokenizer(), []
    if calibration_texts:
        rows = _calibration_rows(model, tokenizer, calibration_texts)
        rows, held_back = rows[: -len(rows) // 5], rows[-len(rows) // 5 :]
        inputs = padded(held_back[:_HELD_BACK])
    expected = run_model(exported, inputs)
    facts = {
        "model": type(model).__name__,
        # Names of classes among them.
        "options": model.options() if hasattr(model, "options") else {},
        "dim": model.config.hidden_dim,
        "format": format,
        "int8": int8,
        "inputs": {name: "int32 (batch, length)" for name in inputs},
        "outputs": {
            name: f"float32 (batch, {_axes(output)})"
            for name, output in exported.output.items()
        },
    }
    with replacing(folder, overwrite, folder=True) as partial:
        tokenizer.save_to_preset(partial)
        _WRITERS[format](exported, partial)
        if int8:
            _QUANTIZERS[format](partial / FORMATS[format][0], rows)
        found = load_exported(partial, format, bfloat16=int8)(inputs)
        facts["differences"] = {
            name: _differences(found[name], expected[name]) for name in expected
        }
        if int8:
            _check_cosine(facts["differences"])
        else:
            _check_differences(facts["differences"], expected, format)
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (partial / "export.json").write_text(text, encoding="utf-8")
    return facts


# === What is exported ===


def check_export(format: str, int8: bool, calibration_texts: Sequence[str]) -> None:
    """Raises ConfigurationError unless it can be, as far as no model has to be known.

    Args: as of `export_model`.
    """
    if format not in FORMATS:
        raise ConfigurationError(
            f"format must be one of {', '.join(map(repr, FORMATS))}, got {format!r}"
        )
    if int8 and format not in _QUANTIZERS:
        raise ConfigurationError(
            f"int8 is for the formats {' and '.join(map(repr, _QUANTIZERS))}, got "
            f"{format!r}"
        )
    if isinstance(calibration_texts, str) or not isinstance(
        calibration_texts, Sequence
    ):
        raise ConfigurationError(
            f"calibration_texts must be a list of str, got {calibration_texts!r:.80}"
        )
    calibrates = int8 and format == "openvino"
    if calibration_texts and not calibrates:
        raise ConfigurationError(
            "texts to calibrate with go with int8 and the format 'openvino' alone, got "
            f"{format!r} with int8={int8}",
            hint="leave out calibration_texts=",
        )
    found = len(set(filter(str.strip, calibration_texts)))
    if calibrates and found < _LEAST_TEXTS:
        raise ConfigurationError(
            "the scales of OpenVINO's integers are taken from texts like those that "
            f"are to come, at least {_LEAST_TEXTS} different ones; got {found}",
            hint="give some 100 with calibration_texts=",
        )
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError(
            "models are exported on TensorFlow, and Keras runs on "
            f"{keras.backend.backend()}: set KERAS_BACKEND=tensorflow"
        )
    if calibrates:
        # It would tell its makers of each use.
        os.environ.setdefault("NNCF_CI", "1")
    for name in (*FORMATS[format][1], *(["nncf"] if calibrates else [])):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigurationError(
                f"the format {format!r} needs {name}, which cannot be imported "
                f"({error}); run: pip install 'roformer-keras[export]'"
            ) from error


def _calibration_rows(model, tokenizer, texts):
    """Ids of different texts, cut as they will be, in an order by lot."""
    max_length = getattr(model, "max_length", None) or MAX_LENGTH
    texts = sorted(set(filter(str.strip, texts)))
    texts = random.Random(0).sample(texts, min(len(texts), _MOST_TEXTS))
    return [tokenizer.encode(text, max_length=max_length)[0] for text in texts]


def _named(model):
    """A functional model of what is served, whose outputs are a dict in float32."""
    inputs = model.input
    if isinstance(model, RoFormerSim):
        outputs = {"vectors": _unit(model.backbone.output["pooled_output"])}
    elif hasattr(model, "vectors"):
        outputs = {"vectors": _unit(model.vectors.output)}
    elif isinstance(model.output, dict):
        outputs = {name: _as_float(output) for name, output in model.output.items()}
    else:
        outputs = {"outputs": _as_float(model.output)}
    return keras.Model(inputs, outputs, name="served")


def _unit(vectors):
    return keras.layers.UnitNormalization(dtype="float32")(vectors)


def _as_float(outputs):
    return keras.layers.Identity(dtype="float32")(outputs)


def _axes(output):
    """Of all but the first."""
    return ", ".join(str(size or "length") for size in output.shape[1:])


def _batch(model):
    """Rows of ids of several lengths, the shorter ones padded."""
    rows, width = _CHECKED_SHAPE
    random = np.random.default_rng(0)
    token_ids = random.integers(1, model.config.vocabulary_size, (rows, width), "int32")
    for row in range(1, rows):
        token_ids[row, width // (row + 1) :] = 0
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    others = sorted(set(model.input) - set(inputs))
    if others:
        raise ConfigurationError(
            "a model is served ids of tokens and segments, and this one takes "
            f"{' and '.join(others)} too"
        )
    return inputs


# === Writing ===


def _write_saved_model(exported, folder):
    path = folder / FORMATS["saved_model"][0]
    exported.export(path, format="tf_saved_model", verbose=False)


def _write_onnx(exported, folder):
    import onnx

    path = folder / FORMATS["onnx"][0]
    with warnings.catch_warnings():
        # Keras asks NumPy whether it has a name that tf2onnx wants.
        warnings.filterwarnings("ignore", message=".*np.object")
        exported.export(str(path), format="onnx", verbose=False, opset_version=OPSET)
    model = onnx.load(path)
    join_operations(model)
    # tf2onnx has names of its own for outputs, in the order of their names here.
    _rename_outputs(model.graph, sorted(exported.output))
    _name_axes(model.graph)
    onnx.save(model, path)


def _rename_outputs(graph, names):
    new = {output.name: name for output, name in zip(graph.output, names, strict=True)}
    for node in graph.node:
        for own in (node.input, node.output):
            own[:] = [new.get(name, name) for name in own]
    for output in graph.output:
        output.name = new[output.name]


def _name_axes(graph):
    for value in (*graph.input, *graph.output):
        axes = value.type.tensor_type.shape.dim
        for axis, name in zip(axes, ("batch", "length"), strict=False):
            if not axis.dim_value:
                axis.dim_param = name


def _write_openvino(exported, folder):
    import openvino

    # From TensorFlow's graph, lengths of axes would be among the outputs.
    _write_onnx(exported, folder)
    source = folder / FORMATS["onnx"][0]
    path = folder / FORMATS["openvino"][0]
    # Not `convert_model`, which tells its makers of each use.
    model = openvino.Core().read_model(source)
    openvino.save_model(model, path, compress_to_fp16=False)
    # Its weights are mapped into memory as long as it is there.
    del model
    source.unlink()


# === Integers ===


def _quantize_onnx(path, rows):
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_name("float32.onnx")
    path.rename(whole)
    # It recommends what tf2onnx has done already.
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            whole,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=exact_products(onnx.load(whole)),
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.disable(disabled)
    whole.unlink()


def _quantize_openvino(path, rows):
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    whole = openvino.Core().read_model(path)
    # Its bars go to standard output, which may be for a program to read.
    with open(os.devnull, "w") as nowhere:
        shown = sys.stderr if sys.stderr.isatty() else nowhere
        with contextlib.redirect_stdout(shown):
            quantized = nncf.quantize(
                whole,
                nncf.Dataset([padded([row]) for row in rows]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(rows),
            )
    partial = path.with_name("integers.xml")
    openvino.save_model(quantized, partial, compress_to_fp16=False)
    # The weights of the whole one are mapped into memory as long as it is there.
    del whole, quantized
    for suffix in (".xml", ".bin"):
        partial.with_suffix(suffix).replace(path.with_suffix(suffix))


_WRITERS = {
    "saved_model": _write_saved_model,
    "onnx": _write_onnx,
    "openvino": _write_openvino,
}
_QUANTIZERS = {"onnx": _quantize_onnx, "openvino": _quantize_openvino}


# === Checking ===


def _differences(found, expected):
    found, expected = found.astype("float64"), expected.astype("float64")
    gap = np.abs(found - expected)
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosines = np.sum(found * expected, axis=-1) / np.maximum(lengths, 1e-30)
    return {
        "largest": float(gap.max()),
        "mean": float(gap.mean()),
        "least_cosine": float(cosines.min()),
    }


def _check_cosine(differences):
    found = differences.get("vectors", {}).get("least_cosine", 1.0)
    if found < _LEAST_COSINE:
        raise OutputError(
            f"vectors of integers must have a cosine of at least {_LEAST_COSINE} to "
            f"those of Keras, got {found:.3f}: calibrate with more texts, and with "
            "such as are to come"
        )


def _check_differences(differences, expected, format):
    for name, difference in differences.items():
        bar = _TOLERANCE * max(1.0, float(np.abs(expected[name]).max()))
        if not difference["largest"] <= bar:
            raise OutputError(
                f"{name} of the export must be within {bar:.1g} of what Keras "
                f"computes, got {difference['largest']:.2g}: {format} was not written"
            )

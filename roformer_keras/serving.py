"""Models for serving, where neither this package nor Keras need be installed."""

import importlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np

from roformer_keras.conversion.outputs import replacing
from roformer_keras.errors import ConfigurationError, OutputError, SourceError
from roformer_keras.inference.batches import TOKENS_PER_BATCH, padded
from roformer_keras.inference.forward import outputs_of
from roformer_keras.inference.vectors import vectors_by
from roformer_keras.models import RoFormerSim
from roformer_keras.tokenizer import RoFormerTokenizer

__all__ = ["FORMATS", "ServedEncoder", "export_model", "load_exported"]

# Format -> where the model lies in the folder, and the modules that it takes.
FORMATS = {
    "saved_model": ("saved_model", ("tensorflow",)),
    "onnx": ("model.onnx", ("onnx", "onnxruntime", "tf2onnx")),
    "openvino": ("model.xml", ("onnx", "onnxruntime", "tf2onnx", "openvino")),
}
# Of an export in float32, to what Keras computes; as a share of the largest number.
_TOLERANCE = 1e-4
_CHECKED_SHAPE = 4, 24


def export_model(
    model,
    folder: str | os.PathLike,
    format: str = "saved_model",
    *,
    int8: bool = False,
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
        int8: bool, for `"onnx"`. Whether weights of matrix products are integers, each
            column on a scale of its own; what they are multiplied by is rounded on the
            way, on a scale for each batch.
        overwrite: bool. Whether an existing folder is replaced.

    Returns:
        What `export.json` says: `model`, its class; `options` of a fine-tuned one, such
        as names of classes; `dim`, its width; `format`, `int8`, `inputs`, `outputs`;
        and `differences` to Keras, by output: largest and mean, and the least cosine of
        the last axis.

    Raises:
        ConfigurationError: an unknown format, or a library is missing for it.
        OutputError: the folder exists or cannot be written, or what was written does
            not compute what Keras does.
    """
    _check(format, int8)
    exported, inputs = _named(model), _batch(model)
    expected = outputs_of(exported, inputs)
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
        model.text_tokenizer().save_to_preset(partial)
        _WRITERS[format](exported, partial, int8)
        found = load_exported(partial, format)(inputs)
        facts["differences"] = {
            name: _differences(found[name], expected[name]) for name in expected
        }
        if not int8:
            _check_differences(facts["differences"], expected, format)
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        (partial / "export.json").write_text(text, encoding="utf-8")
    return facts


def load_exported(
    folder: str | os.PathLike, format: str, bfloat16: bool = False
) -> Callable[[dict], dict]:
    """A function from arrays to named arrays, on the runtime of the format.

    Args:
        folder: as `export_model` wrote it.
        format: of it.
        bfloat16: bool, for `"openvino"`. Whether it computes in that.
    """
    path = str(Path(folder) / FORMATS[format][0])
    if format == "saved_model":
        import tensorflow as tf

        served = tf.saved_model.load(path).signatures["serving_default"]

        def run(inputs):
            outputs = served(**{k: tf.constant(v) for k, v in inputs.items()})
            return {name: output.numpy() for name, output in outputs.items()}

    elif format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(inputs):
            return dict(zip(names, session.run(names, inputs), strict=True))

    else:
        import openvino

        options = {"INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32"}
        compiled = openvino.Core().compile_model(path, "CPU", options)

        def run(inputs):
            outputs = compiled(inputs)
            return {output.any_name: outputs[output] for output in compiled.outputs}

    return run


class ServedEncoder:
    """Vectors of texts by an exported model, on the runtime of its format.

    Args:
        folder: as `export_model` wrote it of a model whose output is `vectors`.
        bfloat16: bool. As of `load_exported`.

    Raises:
        SourceError: there is no export in the folder.
        ConfigurationError: it gives no vectors.

    Example:
    ```python
    export_model(sim, "integers", "onnx", int8=True)
    ServedEncoder("integers").encode(["今天天气不错", "你好"])
    ```
    """

    def __init__(self, folder: str | os.PathLike, bfloat16: bool = False):
        path = Path(folder) / "export.json"
        if not path.is_file():
            raise SourceError(f"an export has an export.json, and there is no {path}")
        self.facts = json.loads(path.read_text(encoding="utf-8"))
        if "vectors" not in self.facts["outputs"]:
            raise ConfigurationError(
                f"the model in {folder} must give vectors, as RoFormerSim and sentence "
                f"encoders do; it gives {', '.join(self.facts['outputs'])}"
            )
        self.tokenizer = RoFormerTokenizer.from_preset(folder)
        self._run = load_exported(folder, self.facts["format"], bfloat16)

    def encode(
        self,
        texts: str | Sequence[str] | Iterable[str],
        *,
        max_length: int = 512,
        progress: bool = True,
        batch_tokens: int = TOKENS_PER_BATCH,
    ) -> np.ndarray | Iterator[np.ndarray]:
        """As `RoFormerSim.encode`."""
        return vectors_by(
            lambda rows: self._run(padded(rows))["vectors"],
            self.tokenizer,
            texts,
            dim=self.facts["dim"],
            max_length=max_length,
            progress=progress,
            batch_tokens=batch_tokens,
        )


# === What is exported ===


def _check(format, int8):
    if format not in FORMATS:
        raise ConfigurationError(
            f"format must be one of {', '.join(map(repr, FORMATS))}, got {format!r}"
        )
    if int8 and format != "onnx":
        raise ConfigurationError(f"int8 is for the format 'onnx', got {format!r}")
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError(
            "models are exported on TensorFlow, and Keras runs on "
            f"{keras.backend.backend()}: set KERAS_BACKEND=tensorflow"
        )
    for name in FORMATS[format][1]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigurationError(
                f"the format {format!r} needs {name}, which cannot be imported "
                f"({error}); run: pip install 'roformer-keras[export]'"
            ) from error


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


def _write_saved_model(exported, folder, int8):
    path = folder / FORMATS["saved_model"][0]
    exported.export(path, format="tf_saved_model", verbose=False)


def _write_onnx(exported, folder, int8):
    import onnx

    path = folder / FORMATS["onnx"][0]
    with warnings.catch_warnings():
        # Keras asks NumPy whether it has a name that tf2onnx wants.
        warnings.filterwarnings("ignore", message=".*np.object")
        exported.export(str(path), format="onnx", verbose=False)
    graph = onnx.load(path)
    # tf2onnx has names of its own for outputs, in the order of their names here.
    _rename_outputs(graph.graph, sorted(exported.output))
    _name_axes(graph.graph)
    onnx.save(graph, path)
    if int8:
        _quantize(path)


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


def _quantize(path):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_name("float32.onnx")
    path.rename(whole)
    # It recommends what tf2onnx has done already.
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            whole,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.disable(logging.NOTSET)
    whole.unlink()


def _write_openvino(exported, folder, int8):
    import openvino

    # From TensorFlow's graph, lengths of axes would be among the outputs.
    _write_onnx(exported, folder, int8)
    source = folder / FORMATS["onnx"][0]
    path = folder / FORMATS["openvino"][0]
    openvino.save_model(openvino.convert_model(source), path, compress_to_fp16=False)
    source.unlink()


_WRITERS = {
    "saved_model": _write_saved_model,
    "onnx": _write_onnx,
    "openvino": _write_openvino,
}


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


def _check_differences(differences, expected, format):
    for name, difference in differences.items():
        bar = _TOLERANCE * max(1.0, float(np.abs(expected[name]).max()))
        if not difference["largest"] <= bar:
            raise OutputError(
                f"{name} of the export must be within {bar:.1g} of what Keras "
                f"computes, got {difference['largest']:.2g}: {format} was not written"
            )

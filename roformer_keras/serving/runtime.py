"""Exported models, run on the runtimes of their formats."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from roformer_keras.data.rows import TOKENS_PER_BATCH, padded
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.models.embedding import embed_rows
from roformer_keras.text.tokenizer import RoFormerTokenizer

__all__ = ["FORMATS", "MAX_LENGTH", "ServedEncoder", "load_exported"]

# Most tokens of a text, of models that have no such number of their own.
MAX_LENGTH = 512
# Format -> where the model lies in the folder, and the modules that writing it takes.
FORMATS = {
    "saved_model": ("saved_model", ("tensorflow",)),
    "onnx": ("model.onnx", ("onnx", "onnxruntime", "tf2onnx")),
    "openvino": ("model.xml", ("onnx", "onnxruntime", "tf2onnx", "openvino")),
}


def load_exported(
    folder: str | os.PathLike, format: str, bfloat16: bool = False
) -> Callable[[dict], dict]:
    """A function from arrays to named arrays, on the runtime of the format.

    Args:
        folder: as `export_model` wrote it.
        format: of it.
        bfloat16: bool, for `"openvino"`. Whether it computes in that; in integers, what
            is left.
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
        bfloat16: bool. As of `load_exported`; if not given, for integers.

    Raises:
        SourceError: there is no export in the folder.
        ConfigurationError: it gives no vectors.

    Example:
    ```python
    export_model(sim, "integers", "onnx", int8=True)
    ServedEncoder("integers").encode(["今天天气不错", "你好"])
    ```
    """

    def __init__(self, folder: str | os.PathLike, bfloat16: bool | None = None):
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
        bfloat16 = self.facts["int8"] if bfloat16 is None else bfloat16
        self._run = load_exported(folder, self.facts["format"], bfloat16)

    def encode(
        self,
        texts: str | Sequence[str] | Iterable[str],
        *,
        max_length: int | None = None,
        progress: bool = True,
        batch_tokens: int = TOKENS_PER_BATCH,
    ) -> np.ndarray | Iterator[np.ndarray]:
        """As of `RoFormerSim`, or of the sentence encoder that was exported.

        Args:
            texts, progress, batch_tokens: as of `RoFormerSim.encode`.
            max_length: int. Longer texts are cut to as many tokens; that of the
                encoder's training if not given, or 512.
        """
        if max_length is None:
            max_length = self.facts["options"].get("max_length", MAX_LENGTH)
        return embed_rows(
            lambda rows: self._run(padded(rows))["vectors"],
            self.tokenizer,
            texts,
            dim=self.facts["dim"],
            max_length=max_length,
            progress=progress,
            batch_tokens=batch_tokens,
        )

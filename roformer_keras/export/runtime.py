"""Runs exported models."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from roformer_keras.base.argument_names import takes_other_names
from roformer_keras.base.checks import (
    check_choice,
    check_flag,
    check_integer,
    check_path,
)
from roformer_keras.base.errors import ConfigurationError, Hint, errors_at, refuse
from roformer_keras.base.extras import import_extra
from roformer_keras.base.processes import refuse_forked_process
from roformer_keras.engines.programs import OpenVINOProgram
from roformer_keras.io.export_file import (
    check_types,
    has_export,
    parse_export,
    read_export,
    readable_network,
)
from roformer_keras.io.sources import EXPORT
from roformer_keras.text.rows import TOKENS_PER_BATCH
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.vectors import embed_rows

_FIRST_ONNXRUNTIME = 1, 24, 1
# Maximal tokens of a text, for models without a limit.
MAX_LENGTH = 512
FORMATS = {
    "saved_model": ("saved_model", ("tensorflow",)),
    "onnx": ("model.onnx", ("onnx", "onnxruntime")),
    "openvino": ("model.xml", ("openvino",)),
}
"""By format, the model's path in the folder and the modules that write it.

Example:
    >>> sorted(export.FORMATS)
    ['onnx', 'openvino', 'saved_model']
"""


def load_exported(
    folder: str | os.PathLike, format: str, bfloat16: bool = False, trust: bool = False
) -> Callable[[dict], dict]:
    """Loads an exported model: a function from named arrays to named arrays.

    Args:
        folder: the folder that `export_model` wrote.
        format: its format.
        bfloat16: bool, for `"openvino"`. Whether float operations (in an int8 model,
            the remaining ones) are computed in bfloat16.
        trust: bool. True for a `"saved_model"` that you trust. TensorFlow runs it as a
            program, which can read and write any file; the other formats cannot.

    Returns:
        A function from a dict of int32 arrays `(batch, length)`, by the names of the
        inputs, to a dict of arrays by the names of the outputs.

    Raises:
        SourceError: its file is missing or damaged.
        ConfigurationError: the runtime is not installed, the export has another
            format, or it is a SavedModel without `trust`.

    Example:
        >>> model = roformer_keras.RoFormerBackbone.from_preset("roformer-char")
        >>> metadata = export.export_model(model, "encoder")
        >>> run = export.load_exported("encoder", "saved_model", trust=True)
        >>> run(model.tokenizer(["今天天气不错"]))["outputs"].shape
        (1, 8, 192)
    """
    refuse_forked_process()
    check_choice("format", format, FORMATS)
    check_path("folder", folder)
    check_flag("bfloat16", bfloat16)
    check_trust(folder, format, trust)
    path = Path(folder) / FORMATS[format][0]
    if not path.exists() and has_export(folder):
        other = parse_export(folder).get("format")
        refuse(
            isinstance(other, str) and other != format,
            f"{folder} is an export of the format {other!r}, got {format!r}",
            hint=Hint("load it with {format}", format=other),
        )
    with readable_network(path):
        run = _load(str(path), format, bfloat16)

    def run_here(inputs):
        refuse_forked_process()
        return run(inputs)

    return run_here


def check_trust(folder: str | os.PathLike, format: str, trust: bool) -> None:
    """Raises ConfigurationError for an untrusted program."""
    check_flag("trust", trust)
    if format == "saved_model" and not trust:
        raise ConfigurationError(
            f"a SavedModel is a program, which can read and write any file: "
            f"{os.fspath(folder)!r:.200} is run only if you trust who wrote it",
            hint=Hint(
                "pass {trust:True} if you did, or export to {format}", format="onnx"
            ),
        )


def check_runtime(version: str) -> None:
    """Raises ConfigurationError for an ONNX Runtime that reads foreign files."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    refuse(
        numbers < _FIRST_ONNXRUNTIME,
        "ONNX Runtime must be 1.24.1 or later, which reads no files outside of the "
        f"folder, got {version}; run: pip install 'onnxruntime>=1.24.1'",
    )


def _load(path, format, bfloat16):
    if format == "saved_model":
        import tensorflow as tf

        served = tf.saved_model.load(path).signatures["serving_default"]

        def run(inputs):
            outputs = served(**{k: tf.constant(v) for k, v in inputs.items()})
            return {name: output.numpy() for name, output in outputs.items()}

    elif format == "onnx":
        onnxruntime = import_extra("onnxruntime", "the format 'onnx'")
        check_runtime(onnxruntime.__version__)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(inputs):
            return dict(zip(names, session.run(names, inputs), strict=True))

    else:
        run = OpenVINOProgram(path, bfloat16).outputs

    return run


class ServedEncoder:
    """Vectors of texts by an exported model.

    Args:
        folder: the folder that `export_model` wrote for a model with output `vectors`.
        bfloat16: bool. As in `load_exported`; by default True for an int8 model.
        trust: bool. As in `load_exported`.

    Attributes:
        metadata: dict, the content of `export.json`.
        tokenizer: `RoFormerTokenizer`.

    Raises:
        SourceError: the folder holds no export, or its file is missing or damaged.
        ConfigurationError: its model computes no vectors, its `export.json` is damaged,
            or it is a SavedModel without `trust`.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> metadata = export.export_model(model, "integers", "onnx", int8=True)
        >>> export.ServedEncoder("integers").encode(["今天天气不错", "你好"]).shape
        (2, 192)
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        bfloat16: bool | None = None,
        trust: bool = False,
    ):
        check_path("folder", folder)
        self.metadata = read_export(folder, FORMATS)
        check_trust(folder, self.metadata["format"], trust)
        if "outputs" in self.metadata:
            fields = {"outputs": dict, "options": dict}
            check_types(self.metadata, fields, Path(folder) / EXPORT)
        # A generator has no outputs.
        outputs = self.metadata.get("outputs", {"texts": None})
        if "vectors" not in outputs:
            raise ConfigurationError(
                f"the model in {folder} must give vectors, as RoFormerSim and sentence "
                f"encoders do; it gives {', '.join(outputs)}"
            )
        self._max_length = self.metadata["options"].get("max_length", MAX_LENGTH)
        with errors_at(Path(folder) / EXPORT):
            check_integer("max_length", self._max_length, minimum=2)
        self.tokenizer = RoFormerTokenizer.from_preset(folder)
        bfloat16 = self.metadata["int8"] if bfloat16 is None else bfloat16
        self._run = load_exported(folder, self.metadata["format"], bfloat16, trust)

    @takes_other_names
    def encode(
        self,
        texts: str | Sequence[str] | Iterable[str],
        *,
        max_length: int | None = None,
        verbose: int | str = "auto",
        batch_tokens: int = TOKENS_PER_BATCH,
    ) -> np.ndarray | Iterator[np.ndarray]:
        """Encodes texts by the exported model.

        Args:
            texts, verbose, batch_tokens: as in `RoFormerSim.encode`.
            max_length: int. Maximal tokens of a text; longer texts are cut. By default
                the sentence encoder's own limit, or 512.
        """
        if max_length is None:
            max_length = self._max_length
        return embed_rows(
            lambda inputs: self._run(inputs)["vectors"],
            self.tokenizer,
            texts,
            dim=self.metadata["dim"],
            max_length=max_length,
            verbose=verbose,
            batch_tokens=batch_tokens,
        )

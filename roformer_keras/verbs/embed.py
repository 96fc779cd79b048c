"""Vectors of texts."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from roformer_keras.base.checks import choice
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts, only_texts
from roformer_keras.verbs.surfaces import Float32, Inputs, Output, Route, single_samples
from roformer_keras.verbs.vectors import VectorVerb


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(VectorVerb):
    """Turn lines of text into vectors.

    Args:
        engine: what computes; auto is openvino where it is installed and can, else
            keras; openvino-int8 has weights in 8 bits; ray computes in many processes:
            files, a folder or a pattern of .jsonl, .csv, .tsv, .txt or .parquet on any
            file system in, a folder of parts out.
        encoding: of a text file; auto looks for a byte-order mark, or tries UTF-8 and
            GB18030.
        normalize: keep the length of the vectors, instead of 1.
        dtype: bfloat16 is faster for many texts where the processor has it, and less
            exact (default: float32).
    """

    normalize: bool = True
    dtype: str | None = choice(None, choices=(None, "float32", "bfloat16"))

    name = "embed"
    inputs = Inputs(
        file="texts, one a line; or a table as finetune --train takes it, by its name, "
        "such as .csv, or with --fields, --format or --header; - is standard input",
        needs_file=True,
        flag="",
        columns="column or key of the texts (default: text)",
        may_be_blank=True,
    )
    output = Output(
        {"vector": [Float32]},
        ".npy, .jsonl or .parquet, or - for JSON lines on standard output",
        (".npy", ".jsonl", ".parquet"),
    )
    route = Route(
        "/v1/embeddings",
        "input",
        style="embeddings",
        left_out=("max_length", "normalize", "dtype"),
    )
    examples = ("embed sentences.txt -o vectors.npy",)
    loading: ClassVar[Mapping[str, str]] = {**VectorVerb.loading, "dtype": "dtype"}

    @property
    def window(self) -> int:
        return 4096

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        encode = self.encoder(loaded, normalize=self.normalize)
        return {"vector": encode(only_texts(rows))}

    def samples(self, loaded: LoadedSource, text: str) -> list[list[Texts]]:
        return [[(text,), (text * 4,)], *single_samples(text)]

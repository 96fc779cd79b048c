"""`roformer-keras embed`."""

import io
import itertools
from typing import Any, Literal

from roformer_keras.cli import ray_jobs
from roformer_keras.cli.flags import Count
from roformer_keras.cli.jobs import run_job
from roformer_keras.cli.texts import (
    check_ending,
    check_inputs,
    json_line,
    number_lines,
    read_lines,
)
from roformer_keras.tasks.sources import (
    load_encoder,
    load_sentence_encoder,
    load_tokenizer,
)
from roformer_keras.types import FileEncoding, FileFormat, FileHeader, RunsOn

EXAMPLES = ("embed sentences.txt -o vectors.npy",)
TABLES = ray_jobs.TABLES

_ENDINGS = (".npy", ".jsonl")
# Texts that are computed, and written, together.
_WINDOW = 4096


def run(
    file: str,
    *,
    source: str = "roformer-sim-char",
    config: str | None = None,
    vocabulary: str | None = None,
    fields: tuple[str, ...] = (),
    format: FileFormat | None = None,
    header: FileHeader | None = None,
    encoding: FileEncoding = "utf-8",
    output: str = "-",
    max_length: Count | None = None,
    normalize: bool = True,
    dtype: Literal["float32", "bfloat16"] | None = None,
    engine: RunsOn = "keras",
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Turn lines of text into vectors.

    Args:
        file: texts, one a line; or a table as `finetune --train` takes it, with
            --fields, --format or --header, or if it is .json, .xlsx, .parquet or
            .arrow; - is standard input.
        fields: column or key of the texts (default: text).
        format: of the file, if its extension does not say it.
        header: first if the first row of a table names its columns, none if it does
            not (default: it does if it has the names of the fields).
        encoding: of a text file; auto looks for a byte-order mark, or tries UTF-8 and
            GB18030.
        output: .npy or .jsonl, or - for JSON lines on standard output.
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned
            encoder, as in its training).
        normalize: keep the length of the vectors, instead of 1.
        dtype: bfloat16 is faster for many texts where the processor has it, and less
            exact (default: float32).
        engine: ray computes in many processes: files, a folder or a pattern of .jsonl,
            .csv, .tsv, .txt or .parquet on any file system in, a folder of parts out.

    If it is interrupted, the same command resumes.
    """
    options = ray_jobs.take_options(flags)
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    if engine == "ray":
        from roformer_keras.distributed.verbs import Embed

        verb = Embed(
            source=source,
            config=config,
            vocabulary=vocabulary,
            max_length=max_length,
            normalize=normalize,
            dtype=dtype,
        )
        ray_jobs.run_on_ray(
            *(verb, file, output, options),
            fields=fields,
            **layout,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    ray_jobs.check_no_options(options)
    check_ending(output, *_ENDINGS)
    texts = read_lines(file, fields, **layout)
    inputs = number_lines(file, texts, itertools.count(1))
    is_array = output.endswith(".npy")

    def load():
        from roformer_keras.data.texts import as_texts

        encoder = load_sentence_encoder(source, max_length, config, vocabulary, dtype)
        if encoder is not None:
            check_inputs(inputs, lambda text: as_texts([text], (1,)))
            return lambda texts: encoder.encode(texts, normalize=normalize, verbose=0)
        from roformer_keras.models.embedding import embed

        tokenizer = load_tokenizer(source, vocabulary)
        model = load_encoder(source, config, dtype)
        length = 512 if max_length is None else max_length
        return lambda texts: embed(
            *(model, tokenizer, texts, length, normalize), verbose=0
        )

    def write(encode, window, job):
        vectors = encode(window)
        if is_array:
            return _array_bytes(vectors, len(texts), job.done == 0)
        return [
            json_line({"text": text, "vector": vector.tolist()})
            for text, vector in zip(window, vectors, strict=True)
        ]

    run_job(
        *(load, write, inputs, _WINDOW, output),
        {
            "command": "embed",
            "max_length": max_length,
            "normalize": normalize,
            "dtype": dtype,
        },
        source,
        config=config,
        vocabulary=vocabulary,
        overwrite=overwrite,
        quiet=quiet,
        endings=_ENDINGS,
    )


def _array_bytes(vectors, count, is_first):
    """The next rows of an `.npy` file of `count` rows, after its header."""
    import numpy as np

    stream = io.BytesIO()
    if is_first:
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (count, vectors.shape[1]),
        }
        np.lib.format.write_array_header_1_0(stream, header)
    stream.write(np.ascontiguousarray(vectors, "<f4").tobytes())
    return stream.getvalue()

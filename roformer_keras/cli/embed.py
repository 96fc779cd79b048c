"""`roformer-keras embed`."""

import io
import itertools

from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import answer_lines, check_ending, number_rows, read_lines
from roformer_keras.types import EngineOrRay

EXAMPLES = ("embed sentences.txt -o vectors.npy",)
VERB = "roformer_keras.verbs.embed.Embed"
OPTIONS, TABLES = (VERB, layouts.TABLE, layouts.JOB), verbs.TABLES
_ENDINGS = (".npy", ".jsonl")


def run(file: str, *, output: str = "-", engine: EngineOrRay = "auto", **flags) -> None:
    """Turn lines of text into vectors.

    Args:
        file: texts, one a line; or a table as `finetune --train` takes it, with
            --fields, --format or --header, or if it is .json, .xlsx, .parquet or
            .arrow; - is standard input.
        output: .npy or .jsonl, or - for JSON lines on standard output.
        engine: what computes; auto is openvino where it is installed and can, else
            keras; openvino-int8 has weights in 8 bits; ray computes in many processes:
            files, a folder or a pattern of .jsonl, .csv, .tsv, .txt or .parquet on any
            file system in, a folder of parts out.

    If it is interrupted, the same command resumes.
    """
    command = verbs.VerbCommand(VERB, {**flags, "output": output, "engine": engine})
    if command.runs_on_ray(file):
        return
    check_ending(output, *_ENDINGS)
    texts = read_lines(file, **command.layout)

    def lines(rows, answers, job):
        if output.endswith(".npy"):
            return array_bytes(answers["vector"], len(texts), job.done == 0)
        return answer_lines(rows, answers)

    inputs = number_rows(file, zip(texts, strict=True), itertools.count(1))
    command.run(inputs, lines=lines, endings=_ENDINGS)


def array_bytes(vectors, count, is_first):
    """The next rows of an `.npy` file of `count` rows, after its header."""
    import numpy as np

    stream = io.BytesIO()
    if is_first:
        shape = (count, vectors.shape[1])
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
    stream.write(np.ascontiguousarray(vectors, "<f4").tobytes())
    return stream.getvalue()

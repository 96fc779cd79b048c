"""`roformer-keras embed`."""

from roformer_keras.base.types import EngineOrRay
from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.texts import answer_lines, check_ending, read_rows

EXAMPLES = ("embed sentences.txt -o vectors.npy",)
VERB = "roformer_keras.verbs.embed.Embed"
OPTIONS, SETTINGS = (VERB, layouts.TABLE, layouts.JOB), verbs.SETTINGS
_ENDINGS = (".npy", ".jsonl", ".parquet")


def run(file: str, *, output: str = "-", engine: EngineOrRay = "auto", **flags) -> None:
    """Turn lines of text into vectors.

    Args:
        file: texts, one a line; or a table as `finetune --train` takes it, by its
            name, such as .csv, or with --fields, --format or --header; - is standard
            input.
        output: .npy, .jsonl or .parquet, or - for JSON lines on standard output.
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
    from roformer_keras.io import vector_files

    is_parquet = output.endswith(".parquet")
    # A vector a line, of a blank one too.
    inputs = read_rows(file, 1, command.layout, keeps_blank=True)

    def lines(rows, answers, job):
        vectors, is_first = answers["vector"], job.done == 0
        if output.endswith(".npy"):
            return vector_files.npy_bytes(vectors, len(inputs), is_first)
        if is_parquet:
            return vector_files.arrow_bytes([one for (one,) in rows], vectors, is_first)
        return answer_lines(rows, answers)

    convert = vector_files.write_parquet if is_parquet else None
    command.run(inputs, lines=lines, endings=_ENDINGS, convert=convert)

"""`roformer-keras predict`."""

from pathlib import Path
from typing import Any

from roformer_keras.cli import ray_jobs
from roformer_keras.cli.jobs import run_job
from roformer_keras.cli.terminal import start_backend
from roformer_keras.cli.texts import check_ending, check_one_input, json_line
from roformer_keras.types import FileEncoding, FileFormat, FileHeader, RunsOn

EXAMPLES = (
    "predict reviews --text 今天天气不错",
    "predict reviews texts.txt -o answers.jsonl",
)
TABLES = ray_jobs.TABLES
_WINDOW = 256


def run(
    source: str,
    file: str | None = None,
    *,
    text: list[list[str]] | None = None,
    fields: tuple[str, ...] = (),
    format: FileFormat | None = None,
    header: FileHeader | None = None,
    encoding: FileEncoding | None = None,
    output: str = "-",
    engine: RunsOn = "keras",
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Answer with a fine-tuned model, a line of JSON for each row.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        source: folder of `finetune`, or a preset folder or .keras file of a task, or
            its hf://OWNER/NAME.
        file: texts, one a line, with tabs between several of a row; or a file as
            `finetune --train` takes it, whose labels are ignored; - is standard input.
        text: row to take instead of a file, of as many texts as the task has, with
            choices as a JSON list; may be repeated.
        fields: columns or keys of the texts (default: as in training; the first columns
            of standard input, and of a .txt that lacks those).
        format: of the file, if its extension does not say it.
        header: first if the first row of a table names its columns, none if it does
            not (default: as in training).
        encoding: of a text file, as in `embed` (default: as in training).
        output: .jsonl, or - for standard output.
        engine: ray computes in many processes, see `embed`.
    """
    options = ray_jobs.take_options(flags)
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    if engine == "ray":
        from roformer_keras.distributed.verbs import Predict

        ray_jobs.run_on_ray(
            *(Predict(source=source), file, output, options),
            texts=text,
            fields=fields,
            **layout,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    ray_jobs.check_no_options(options)
    from roformer_keras.io.atomic import check_target

    check_one_input(file, text, "a file of texts", "--text TEXT")
    check_ending(output, ".jsonl")
    if output != "-":
        check_target(Path(output), overwrite, folder=False)
    start_backend()
    from roformer_keras.training.results import load_finetuned

    tuned = load_finetuned(source)
    rows: list[tuple[str, tuple, dict[str, str]]]
    if text is not None:
        rows = [
            (f"text {at}", tuned.read_row(row), {})
            for at, row in enumerate(text, start=1)
        ]
    else:
        assert file is not None
        rows = tuned.read_rows(file, fields, **layout)
    tuned.check_rows([row for _, row, _ in rows])
    run_job(
        lambda: tuned,
        _answer,
        [(place, (row, named)) for place, row, named in rows],
        *(_WINDOW, output, {"command": "predict"}, tuned.preset),
        overwrite=overwrite,
        quiet=quiet,
    )


def _answer(tuned, batch, job):
    rows, named = map(list, zip(*batch, strict=True))
    return [json_line(line) for line in tuned.answer(rows, named)]

"""`roformer-keras similarity`."""

from typing import Any

from roformer_keras.cli import ray_jobs
from roformer_keras.cli.flags import Count
from roformer_keras.cli.jobs import run_job
from roformer_keras.cli.texts import (
    check_inputs,
    check_one_input,
    json_line,
    number_lines,
    output_style,
    tsv_line,
)
from roformer_keras.data.files import read_table
from roformer_keras.tasks.labels import rounded
from roformer_keras.tasks.sources import load_sentence_encoder, load_sim
from roformer_keras.types import FileEncoding, FileFormat, FileHeader, RunsOn

EXAMPLES = ("similarity --pair 学而时习之，不亦说乎？ 学了又时常温习，不是很愉快吗？",)
TABLES = ray_jobs.TABLES
_WINDOW = 256


def run(
    file: str | None = None,
    *,
    pair: list[tuple[str, str]] | None = None,
    source: str = "roformer-sim-char",
    config: str | None = None,
    vocabulary: str | None = None,
    fields: tuple[str, ...] = (),
    format: FileFormat | None = None,
    header: FileHeader | None = None,
    encoding: FileEncoding = "utf-8",
    output: str = "-",
    max_length: Count | None = None,
    engine: RunsOn = "keras",
    overwrite: bool = False,
    quiet: bool = False,
    **flags,
) -> None:
    """Compare pairs of texts.

    A command that is interrupted keeps what it has written in FILE.partial; the same
    command resumes it.

    Args:
        file: pairs, one a line: .txt or .tsv with a tab between, .csv, or .jsonl with
            objects; - is standard input, as .txt.
        pair: two texts to compare, instead of a file; may be repeated.
        fields: keys or columns of the two texts (default: first,second, or the first
            two columns).
        format: of the file, if its extension does not say it.
        header: first if the first row of a table names its columns, none if it does
            not (default: it does if it has the names of the fields).
        encoding: of a text file, as in `embed`.
        output: .jsonl, or .tsv with rows of first text, second text and cosine, in
            which tabs and line ends are escaped; - for JSON lines on standard
            output.
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned
            encoder, as in its training).
        engine: ray computes in many processes, see `embed`.
    """
    options = ray_jobs.take_options(flags)
    layout: dict[str, Any] = {"format": format, "header": header, "encoding": encoding}
    if engine == "ray":
        from roformer_keras.distributed.verbs import Similarity

        ray_jobs.run_on_ray(
            Similarity(
                source=source,
                config=config,
                vocabulary=vocabulary,
                max_length=max_length,
            ),
            *(file, output, options),
            texts=pair,
            fields=fields,
            **layout,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    ray_jobs.check_no_options(options)
    check_one_input(file, pair, "a file of pairs", "--pair TEXT TEXT")
    if pair is not None:
        pairs = [(f"pair {at}", tuple(texts)) for at, texts in enumerate(pair, start=1)]
    else:
        assert file is not None
        table = read_table(file, 2, fields, labelled=False, **layout)
        pairs = number_lines(file, table.texts, table.lines, format)

    def load():
        """A function from pairs to cosines."""
        from roformer_keras.data.texts import as_texts

        encoder = load_sentence_encoder(source, max_length, config, vocabulary)
        if encoder is not None:
            check_inputs(pairs, lambda texts: as_texts([texts], (2,)))
            return lambda batch: encoder.similarity(
                *zip(*batch, strict=True), verbose=0
            )
        model = load_sim(source, config, vocabulary)
        check_inputs(pairs, lambda texts: [model.check_text(text) for text in texts])
        options = {"max_length": max_length or 512, "verbose": 0}
        return lambda batch: model.similarity(*zip(*batch, strict=True), **options)

    def write(cosines_of, batch, job):
        rows = [
            {"first": first, "second": second, "similarity": rounded(cosine)}
            for (first, second), cosine in zip(batch, cosines_of(batch), strict=True)
        ]
        if output_style(output) == "tsv":
            return [tsv_line(*row.values()) for row in rows]
        return [json_line(row) for row in rows]

    run_job(
        *(load, write, pairs, _WINDOW, output),
        {"command": "similarity", "max_length": max_length},
        source,
        config=config,
        vocabulary=vocabulary,
        overwrite=overwrite,
        quiet=quiet,
    )

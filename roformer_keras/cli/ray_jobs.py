"""Commands with `--engine ray`: many processes, a folder of parts, any file system."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from roformer_keras.cli import interrupts
from roformer_keras.cli.terminal import remark, shows_progress
from roformer_keras.errors import ConfigurationError

# The table of flags of these commands, see `cli.main`.
TABLES = {"ray": "roformer_keras.distributed.options.RayOptions"}
# Rows without an answer that are shown at the end.
_SHOWN = 3


def take_options(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags of `RayOptions` by name, which are removed from others."""
    names = [name for name in flags if name.startswith("ray.")]
    return {name.removeprefix("ray."): flags.pop(name) for name in names}


def check_no_options(options: Mapping[str, Any], worker_engine: str = "keras") -> None:
    """Raises ConfigurationError if flags are given that are for `--engine ray`."""
    names = [*options, *(["worker_engine"] if worker_engine != "keras" else [])]
    if names:
        raise ConfigurationError(
            f"--{names[0].replace('_', '-')} needs --engine ray, which starts several "
            "processes"
        )


def run_on_ray(
    verb: Any,
    file: str | None,
    output: str,
    options: Mapping[str, Any],
    *,
    texts: Any = None,
    fields: Sequence[str] = (),
    format: str | None = None,
    header: str | None = None,
    encoding: str | None = None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Answers the rows of files, and prints the name of the output at the end.

    Args:
        verb: `distributed.verbs.Verb`.
        file: path, folder, pattern or URI of the files.
        output: path or URI of a folder.
        options: fields of `RayOptions`.
        texts: what was given instead of a file, which is an error here.
        fields: names of the texts of a row, if the command has this flag itself.
        format, header, encoding: of the files.
        overwrite, quiet: flags of the command.
    """
    from roformer_keras.distributed.job import FolderJob
    from roformer_keras.distributed.options import RayOptions
    from roformer_keras.distributed.verbs import Writing
    from roformer_keras.progress import progress_bar

    layout = {"fields": fields, "header": header, "encoding": encoding}
    stated = {name: value for name, value in layout.items() if value}
    settings = RayOptions(**{**stated, **options})
    if file is None or file == "-" or texts is not None or output == "-":
        raise ConfigurationError(
            "--engine ray reads files and writes a folder: give both, as in "
            "FILES --output FOLDER"
        )
    if settings.fields and verb.fields and len(settings.fields) != len(verb.fields):
        raise ConfigurationError(
            f"--fields must name {len(verb.fields)} columns, got "
            f"{', '.join(settings.fields)}"
        )
    if settings.batch_tokens is not None and isinstance(verb, Writing):
        raise ConfigurationError(
            "batches of texts that are written have a number of rows: use --batch-size "
            "in place of --batch-tokens"
        )
    verb = dataclasses.replace(verb, batch_tokens=settings.batch_tokens)
    job = FolderJob(verb, file, output, settings, format=format, overwrite=overwrite)
    with job:
        if job.done and not quiet:
            remark(f"resuming after {job.rows_done} of {job.rows}")
        show = shows_progress(quiet)
        try:
            with progress_bar(show, total=job.rows, initial=job.rows_done) as bar:
                for result in job.run():
                    bar.update(result["rows"])
                    interrupts.check()
            interrupts.check()
            bad = job.bad_rows()
            job.finish(len(bad))
        except BaseException:
            if job.done:
                remark(
                    f"{job.rows_done} of {job.rows} are kept in {output}; run the same "
                    "command again to resume"
                )
            raise
    if bad and not quiet:
        remark(f"{len(bad)} of {job.rows} have no answer; {output} lists them:")
        for one in bad[:_SHOWN]:
            remark(f"  {one['place']}: {one['error']}")
        if len(bad) > _SHOWN:
            remark("  ...")
    print(output)

"""Files of texts that are answered on Ray: our reader, Ray's workers, Ray's writers."""

import dataclasses
import functools
import glob
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roformer_keras.base.checks import Settings, choice, integer, number
from roformer_keras.base.errors import (
    OutputError,
    ProcessError,
    RoFormerError,
    SourceError,
    refuse,
)
from roformer_keras.base.extras import import_extra
from roformer_keras.distributed.cluster import ray_of
from roformer_keras.distributed.dataset import map_texts
from roformer_keras.distributed.worker import ERROR, ON_BAD_ROW
from roformer_keras.hub.catalog import resolve
from roformer_keras.io.atomic import replacing
from roformer_keras.tables.files import read_texts
from roformer_keras.verbs.verb import Verb

# The column of the number of a row, on which the texts that are written depend.
_NUMBER = "number"
# Numbers of the rows of a file, which begin at a multiple of this.
_ROWS_OF_FILE = 2**32
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayOptions(Settings):
    """Processes of a job on Ray, and what it writes.

    Args:
        num_workers: processes, each with its own model.
        cpus_per_worker: cores, and threads, of each.
        gpus_per_worker: GPUs of each, such as 0.5 for two workers on one.
        address: of a running Ray, such as auto or ray://HOST:10001; without it, one
            starts on this machine and ends with the command.
        output_format: of the files in the output folder.
        on_bad_row: report keeps a row that cannot be answered, without an answer and
            with the reason in error; error ends the command.
    """

    num_workers: int = integer(1, minimum=1)
    cpus_per_worker: int = integer(1, minimum=1)
    gpus_per_worker: float = number(0.0, minimum=0)
    address: str | None = None
    output_format: str = choice("jsonl", choices=("jsonl", "parquet"))
    on_bad_row: str = choice("report", choices=ON_BAD_ROW)

    def _check_together(self):
        refuse(
            self.gpus_per_worker > 1 and self.gpus_per_worker % 1,
            "gpus_per_worker must be a whole number, or a part of one GPU, got "
            f"{self.gpus_per_worker:g}",
        )


def answer_files(
    verb: Verb,
    place: str,
    output: str,
    options: RayOptions,
    layout: Mapping[str, Any],
    *,
    overwrite: bool = False,
    show_progress: bool = False,
) -> int:
    """Answers the rows of files by a verb, in workers of Ray, into a folder.

    Each row has the columns `file`, `line`, its texts, the answers, and `error`.

    Args:
        verb: what is computed; every worker can read its source.
        place: path of a file or of a folder, or a pattern, which every worker can read.
        output: path of the folder, which appears when all is written.
        options: `RayOptions`.
        layout: arguments of `read_table` by name.
        overwrite: bool. Whether a folder of an earlier job may be replaced.
        show_progress: bool. Whether Ray shows its progress.

    Returns:
        How many rows have no answer.

    Raises:
        SourceError, ConfigurationError: the files or the source cannot be used.
        OutputError: the folder exists, or cannot be written.
        ProcessError: the workers ended for another reason.
    """
    data = import_extra("ray.data", "--engine ray")
    paths = find_files(place)
    _check_output(Path(output), overwrite)
    # Workers may have another working folder.
    source = resolve(verb.source)
    verb = dataclasses.replace(
        verb, source=os.path.abspath(source) if os.path.exists(source) else source
    )
    # How many texts a row of a fine-tuned model has is known from its files alone.
    fields = verb.inputs.fields or verb.fields(verb.load())
    if "seed" in verb.option_names() and getattr(verb, "seed", None) is None:
        seed = int.from_bytes(os.urandom(7), "big")
        verb = dataclasses.replace(verb, seed=seed)  # type: ignore[call-arg]
    read = functools.partial(
        _rows_of, fields=fields, layout=dict(layout), on_bad_row=options.on_bad_row
    )
    cores = options.num_workers, options.cpus_per_worker, options.gpus_per_worker
    with (
        ray_of(options.address, *cores, spare=1),
        replacing(output, overwrite, folder=True) as partial,
    ):
        context = data.DataContext.get_current()
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context.enable_progress_bars = show_progress
        context.print_on_execution_start = False
        context.execution_options.preserve_order = True
        files = [{"file": path, "at": at} for at, path in enumerate(paths)]
        dataset = (
            data.from_items(files, override_num_blocks=len(files))
            .flat_map(read)
            .repartition(target_num_rows_per_block=verb.piece_rows)
        )
        dataset = map_texts(
            dataset,
            verb,
            fields,
            num_workers=options.num_workers,
            cpus_per_worker=options.cpus_per_worker,
            gpus_per_worker=options.gpus_per_worker,
            on_bad_row=options.on_bad_row,
            number_field=_NUMBER,
            error_field=ERROR,
        )
        try:
            dataset = dataset.drop_columns([_NUMBER])
            if options.output_format == "parquet":
                dataset.write_parquet(str(partial))
            else:
                dataset.write_json(str(partial), force_ascii=False)
        except Exception as error:
            raise _error_of(error) from error
        arrow = import_extra("pyarrow.dataset", "--engine ray")
        format = options.output_format.removesuffix("l")
        written = arrow.dataset(str(partial), format=format)
        return written.count_rows(filter=arrow.field(ERROR).is_valid())


def find_files(place: str) -> list[str]:
    """The full paths of a file, of the files of a folder, or of a pattern.

    Raises:
        SourceError: there is none.
    """
    if os.path.isdir(place):
        paths = sorted(filter(os.path.isfile, glob.glob(f"{glob.escape(place)}/*")))
    else:
        paths = [place] if os.path.exists(place) else sorted(glob.glob(place))
    if not paths:
        raise SourceError(f"there is no file {place}")
    return [os.path.abspath(path) for path in paths]


def _rows_of(item, fields, layout, on_bad_row) -> Iterator[dict]:
    """The rows of one file, for `flat_map`; those that cannot be read say why."""
    rows = read_texts(item["file"], len(fields), **layout)
    for at, (texts, place, error) in enumerate(rows):
        if error is not None and on_bad_row == "error":
            raise error
        yield {
            "file": item["file"],
            "line": place.number,
            **dict(zip(fields, texts or [None] * len(fields), strict=True)),
            ERROR: error and error.message,
            _NUMBER: item["at"] * _ROWS_OF_FILE + at,
        }


def _check_output(folder, overwrite):
    """Raises OutputError if a folder holds what no job on Ray has written."""
    others = [
        path.name
        for path in (folder.iterdir() if overwrite and folder.is_dir() else ())
        if path.suffix not in (".json", ".parquet")
    ]
    if others:
        raise OutputError(
            f"{folder} holds {others[0]}, which no job on Ray has written, and would "
            "be replaced whole: give another folder"
        )


def _error_of(error):
    """The error of a worker, or one that says its last line without escape codes."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, RoFormerError):
        return cause
    lines = [line.strip() for line in _ESCAPES.sub("", str(error)).splitlines()]
    last = next((line for line in reversed(lines) if line), type(error).__name__)
    return ProcessError(
        f"the workers of Ray have ended: {last[:300]}",
        hint="the same command starts again; start fewer workers if memory is short",
    )

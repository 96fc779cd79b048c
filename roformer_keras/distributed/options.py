"""Options of spreading a job over processes and machines."""

import dataclasses
from typing import get_args

from roformer_keras.checks import Settings, choice, columns, integer, number
from roformer_keras.distributed.worker import ON_BAD_ROW
from roformer_keras.errors import ConfigurationError
from roformer_keras.types import FileEncoding, FileHeader


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayOptions(Settings):
    """Processes of a job, and how it reads and writes.

    Args:
        num_workers: processes, each with its own model.
        cpus_per_worker: cores, and threads, of each.
        gpus_per_worker: GPUs of each, such as 0.5 for two workers on one.
        address: of a running Ray, such as auto or ray://HOST:10001; without it, one
            starts on this machine and ends with the command.
        fields: columns or keys of the texts (default: text; of pairs first,second; of a
            fine-tuned model the names of its training).
        header: none if the first row of .csv and .tsv is no header; fields are numbers
            of columns then.
        encoding: of text files.
        output_format: of the parts (default: parquet for Parquet, else jsonl).
        on_bad_row: report keeps a row that cannot be answered, without an answer and
            with the reason in error; error ends the command.
        piece_rows: rows that a worker answers, and writes, together (default: 2048; of
            generate 256, of paraphrase 16; fewer where each worker would not have two).
    """

    num_workers: int = integer(1, minimum=1)
    cpus_per_worker: int = integer(1, minimum=1)
    gpus_per_worker: float = number(0.0, minimum=0)
    address: str | None = None
    fields: tuple[str, ...] = columns(())
    header: str | None = choice(None, choices=(None, *get_args(FileHeader)))
    encoding: str = choice("utf-8", choices=get_args(FileEncoding))
    output_format: str | None = choice(None, choices=("jsonl", "parquet"))
    on_bad_row: str = choice("report", choices=ON_BAD_ROW)
    piece_rows: int | None = integer(None, minimum=1)

    def _check_together(self):
        if self.gpus_per_worker > 1 and self.gpus_per_worker % 1:
            raise ConfigurationError(
                "gpus_per_worker must be a whole number, or a part of one GPU, got "
                f"{self.gpus_per_worker:g}"
            )

"""Flags that several commands share: layouts of files, and how a job runs."""

import dataclasses

from roformer_keras.base.checks import choice
from roformer_keras.base.types import (
    Engine,
    EngineOrRay,
    FileEncoding,
    FileHeader,
)
from roformer_keras.tables.formats import FORMAT_CHOICES
from roformer_keras.verbs.surfaces import Inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineLayout:
    """Layout of a file of lines.

    Args:
        encoding: of the file, as in `embed`.
    """

    encoding: FileEncoding = "utf-8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Layout of a file of texts; arguments of `tables.files.read_table`.

    Args:
        fields: column or key of the texts (default: text).
        format: of the file, if its extension does not say it.
        header: first if the first row of a table names its columns, none if it does
            not (default: it does if it has the names of the fields).
        encoding: of a text file, as in `embed`.
    """

    fields: tuple[str, ...] = ()
    format: str | None = choice(None, choices=FORMAT_CHOICES)
    header: FileHeader | None = None
    encoding: FileEncoding = "utf-8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalFlags:
    """Options of a job in this process.

    Args:
        engine: what computes; auto is openvino where it is installed and can, else
            keras; openvino-int8 has weights in 8 bits.
        overwrite: replace the output.
        quiet: show no progress and no remarks.
    """

    engine: EngineOrRay = "auto"
    overwrite: bool = False
    quiet: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFlags(LocalFlags):
    """Options of a job.

    Args:
        engine: what computes; auto is openvino where it is installed and can, else
            keras; openvino-int8 has weights in 8 bits; ray computes in many processes,
            see `embed`.
        worker_engine: the engine of each process of a Ray.
    """

    worker_engine: Engine = "auto"


def layout_of(inputs: Inputs) -> type:
    """The layout of the files of a verb."""
    return TableLayout if inputs.columns else LineLayout

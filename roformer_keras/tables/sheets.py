"""Rows of workbooks of Excel, whose parts are zipped XML."""

import contextlib
import datetime
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from roformer_keras.base.errors import ConfigurationError, SourceError, name_list
from roformer_keras.base.extras import import_extra
from roformer_keras.tables.opening import File

if TYPE_CHECKING:
    import openpyxl

_Cells = tuple[int, list[str]]


def read_sheet(file: File, keys: Sequence[str]) -> Iterator[_Cells]:
    """Numbers and cells of the rows of a workbook that are not empty.

    As in CSV, cells at the end of a row may be empty.
    """
    library = import_extra("openpyxl", "an .xlsx file")
    try:
        with file.open(seeks=True) as stream:
            with _quiet():
                book = library.load_workbook(stream, read_only=True, data_only=True)
            rows = _sheet_rows(book, file.name)
            while True:
                with _quiet():
                    row = next(rows, None)
                if row is None:
                    return
                yield row
    except (SourceError, ConfigurationError, GeneratorExit):
        raise
    # Errors of the parsers of ZIP and XML are of many types.
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SourceError(
            f"cannot read {file.name} as Excel: {' '.join(reason.split()):.200}",
            hint="if it is damaged, write or fetch it again",
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what openpyxl says of styles, and of dates that are none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="openpyxl")
        yield


def _sheet_rows(book: "openpyxl.Workbook", name: str) -> Iterator[_Cells]:
    names: list[str] = []
    width = 0
    for sheet in book.worksheets:
        # The size that a file states can be wrong.
        sheet.reset_dimensions()
        for number, values in enumerate(sheet.iter_rows(values_only=True), start=1):
            cells = [_cell_text(value) for value in values]
            while cells and not cells[-1]:
                cells.pop()
            if not cells:
                continue
            if sheet.title not in names:
                names.append(sheet.title)
            if len(names) > 1:
                raise SourceError(
                    f"{name} must have one sheet with rows, got {name_list(names)}",
                    hint="save the sheet as a separate file",
                )
            width = width or len(cells)
            yield number, cells + [""] * (width - len(cells))


def _cell_text(value: object) -> str:
    """A cell as CSV has it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return str(value)

"""Rows of workbooks of Excel, whose parts are zipped XML."""

import contextlib
import datetime
import io
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.parsers import expat

from roformer_keras.data.lines import budget_of
from roformer_keras.errors import ConfigurationError, SourceError, name_list
from roformer_keras.extras import import_extra
from roformer_keras.io.budget import Budget

# Bytes of memory for which openpyxl takes as long as for an element of a cell or text,
# for another one such as a style, for a cell that is left out of a row, and for a row
# that is left out.
_ELEMENT, _SETTING, _NO_CELL, _NO_ROW = 160, 640, 24, 128
# Elements of cells and texts.
_TEXT_TAGS = frozenset(
    [
        *("row", "c", "v", "f", "is", "t", "r", "rPr", "rPh", "phoneticPr", "b", "i"),
        *("u", "strike", "sz", "color", "rFont", "family", "charset", "scheme"),
    ]
)
# How often the parts of a file are read.
_MAX_READS = 8
_BLOCK = 2**16
_COLUMN = re.compile("[A-Za-z]+")


def read_sheet(path: str) -> Iterator[tuple[int, list[str]]]:
    """Numbers and cells of the rows of a workbook that are not empty.

    As in CSV, cells at the end of a row may be empty.

    Raises:
        SourceError: it is damaged, becomes more than it may, or several sheets have
            rows.
    """
    openpyxl = import_extra("openpyxl", "an .xlsx file")
    try:
        with open(path, "rb") as file:
            _check_size(file, budget_of(path))
        with _CountedFile(path) as file:
            with _quiet():
                book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            rows = _sheet_rows(book, path)
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
            f"cannot read {path} as Excel: {' '.join(reason.split()):.200}",
            hint="if it is damaged, write or fetch it again",
        ) from error


@contextlib.contextmanager
def _quiet():
    """Leaves out what openpyxl says of styles, and of dates that are none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="openpyxl")
        yield


class _CountedFile(io.FileIO):
    """A file that is read a few times: sheets may be many, and all of one part."""

    def __init__(self, path: str):
        super().__init__(path)
        self._path, self._left = path, _MAX_READS * max(2**20, os.path.getsize(path))

    def read(self, size=-1, /):
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SourceError(f"{self._path} must have a part for each of its sheets")
        return data


def _check_size(file: BinaryIO, budget: Budget) -> None:
    """Counts what openpyxl will make of a workbook, which it makes of any size."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        # No member is longer than it declares.
        budget.spend(sum(member.file_size for member in members))
        for member in members:
            with archive.open(member) as part:
                _Part(budget).read(part)


class _Part:
    """Counts the elements of a part, and the cells and rows that it leaves out."""

    def __init__(self, budget: Budget):
        self._spend = budget.spend
        self._row, self._column, self._width = 0, 0, 0

    def read(self, part: Any) -> None:
        """Reads a part to its end; one that is no XML, such as a picture, to its begin.

        Raises:
            SourceError: it is too large, or has a document type, which may define names
                that become long texts.
        """
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse
        try:
            while block := part.read(_BLOCK):
                parser.Parse(block)
        except expat.ExpatError:
            return

    def _start(self, name, attributes):
        tag = name.rpartition(":")[2]
        self._spend(_ELEMENT if tag in _TEXT_TAGS else _SETTING)
        if tag == "row":
            # openpyxl takes 1e9 too.
            number = float(attributes.get("r", self._row + 1))
            self._spend(_NO_ROW * max(0, number - self._row - 1))
            self._row, self._column, self._width = number, 0, 0
        elif tag == "c":
            match = _COLUMN.match(attributes.get("r", ""))
            self._column = _number(match[0]) if match else self._column + 1
            self._width = max(self._width, self._column)

    def _end(self, name):
        if name.rpartition(":")[2] == "row":
            self._spend(_NO_CELL * self._width)

    def _refuse(self, *_):
        raise SourceError(
            "a workbook must have no document type in its parts, and has one: save it "
            "again with Excel or LibreOffice"
        )


def _number(letters):
    """The number of a column: 1 of A, 27 of AA."""
    number = 0
    for letter in letters[:4].upper():
        number = 26 * number + ord(letter) - 64
    return number


def _sheet_rows(book, path):
    names, width = [], 0
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
                    f"{path} must have one sheet with rows, got {name_list(names)}",
                    hint="save the sheet as a separate file",
                )
            width = width or len(cells)
            yield number, cells + [""] * (width - len(cells))


def _cell_text(value):
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

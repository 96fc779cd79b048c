"""Multiple choice: choices of a row, and the files of CLUE's C3 and CHID.

format "c3"     a JSON list of `[sentences, questions, id]`; a question has `question`,
                `choice` and `answer`, the text of the right choice
format "chid"   a JSON object a line, with `content`, passages with blanks such as
                `#idiom000123#`, and `candidates`; the number of the right one of each
                blank is in the file `NAME_answer.json` next to `NAME.json`

Layouts: https://github.com/CLUEbenchmark/CLUE; Sun et al. 2020, arXiv:1904.09679 (C3);
Zheng et al. 2019, arXiv:1906.01265 (CHID).
"""

import glob
import itertools
import os
import re
from collections import ChainMap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from roformer_keras.checks import is_integer
from roformer_keras.data.lines import (
    UTF_8,
    file_name,
    place_line,
    read_lines,
    read_text,
)
from roformer_keras.errors import ConfigurationError, SourceError, name_list
from roformer_keras.io.json_file import check_unicode, parse_json, strict_json
from roformer_keras.io.vocabulary import MASK

MIN_CHOICES, MAX_CHOICES = 2, 256
# The fields of a row of each format, unless others are given.
FIELDS = {
    ".c3": ("context", "question", "choices", "label"),
    ".chid": ("context", "choices", "label"),
}
# An idiom has four characters. Other blanks of the passage are no question of the row.
BLANK, OTHER_BLANK = 4 * MASK, "____"
# The field with the name of the blank of a row.
BLANK_NAME = "blank"
_BLANK = re.compile(r"#idiom\d+#")
_C3_LAYOUT = (
    "a file of C3 is a list of [sentences, questions, id]; a file with an object a "
    "line is of the format jsonl"
)


# === Choices of a row ===


def check_choices(value: Any, row: int | None = None) -> tuple[str, ...]:
    """The choices of a row: at least 2 texts, in a list or the like.

    Args:
        value: as a user gives it.
        row: int or None. How errors name the row.

    Raises:
        ConfigurationError: it is no such list.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise ConfigurationError(
            f"choices must be a list of texts, got {value!r:.80}", row=row
        )
    if not MIN_CHOICES <= len(value) <= MAX_CHOICES:
        raise ConfigurationError(
            f"a row must have from {MIN_CHOICES} to {MAX_CHOICES} choices, got "
            f"{len(value)}",
            row=row,
        )
    for choice in value:
        if not isinstance(choice, str) or not choice.strip():
            raise ConfigurationError(
                f"a choice must be a str that is not empty, got {choice!r:.60}",
                row=row,
            )
    return tuple(value)


def parse_choices(value: Any) -> tuple[str, ...]:
    """The choices in a cell of a table, which is a JSON list; or in a list.

    Raises:
        ConfigurationError: it is neither, or as in `check_choices`.
    """
    if isinstance(value, str):
        try:
            value, text = strict_json(value), value
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"choices in one cell must be a JSON list, got {value!r:.60}",
                hint='write them as ["A", "B"], or in a table as the columns '
                "choice1,choice2",
            ) from error
        check_unicode(value, "choices", text=text)
    return check_choices(value)


def choice_columns(names: Sequence[str], field: str) -> list[int]:
    """The places of numbered columns of choices, in the order of their numbers.

    For a field `choices`, these are `choice1`, `choice2`, ..., or `Choices_0`,
    `Choices_1`, ...; none of a table that has the field itself.

    Args:
        names: of all columns.
        field: str. What the choices are called; not a number.
    """
    lower_names = [name.strip().lower() for name in names]
    wanted = field.lower()
    pattern = re.compile(rf"{re.escape(wanted.removesuffix('s'))}s?_?(\d{{1,3}})")
    matches = [pattern.fullmatch(name) for name in lower_names]
    numbered = {place: int(one[1]) for place, one in enumerate(matches) if one}
    columns = sorted(numbered, key=numbered.__getitem__)
    return [] if len(columns) < MIN_CHOICES or wanted in lower_names else columns


def gather_choices(cells: Sequence, places: Sequence[int]) -> list:
    """Cells with those of some places as a list at the end.

    Empty cells at the end of the list are no choices.
    """
    choices = [cells[place] for place in places]
    while choices and not choices[-1].strip():
        choices.pop()
    taken = set(places)
    return [*(x for place, x in enumerate(cells) if place not in taken), choices]


# === C3 ===


def c3_files(path: str) -> list[str]:
    """The files that a path of C3 stands for.

    C3 is published in two parts, `d-train.json` and `m-train.json`; the path
    `?-train.json` stands for both.
    """
    if os.path.exists(path) or path == "-":
        return [path]
    # A folder may have brackets in its name.
    folder, name = os.path.split(path)
    return sorted(glob.glob(os.path.join(glob.escape(folder), name))) or [path]


def read_c3(
    path: str, fields: Sequence[str], encoding: str = UTF_8
) -> Iterator[tuple[int, Any]]:
    """Numbers of the questions, from 1, and the values of some fields.

    In place of the values of a question that lacks some, its SourceError.

    Args:
        path: as `c3_files` takes it.
        fields: `context`, `question`, `choices`, `label`, or other keys of a question.
            The label is the number of the right choice, or what `answer` holds if it is
            no choice.
        encoding: as in `read_lines`.

    Raises:
        SourceError: a file is not of this layout.
    """
    numbers = itertools.count(1)
    for file in c3_files(path):
        for place, context, question in _questions(file, encoding):
            number, record = next(numbers), {**question, "context": context}
            if "choice" in question:
                record["choices"] = choices = question["choice"]
                if "answer" in question:
                    record["label"] = answer = question["answer"]
                    if isinstance(choices, list) and answer in choices:
                        record["label"] = choices.index(answer)
            missing = [
                _C3_KEYS.get(name, name) for name in fields if name not in record
            ]
            if missing:
                yield (
                    number,
                    SourceError(
                        f"{place} must have {name_list(missing)}, got "
                        f"{name_list(question)}"
                    ),
                )
            else:
                yield number, [record[name] for name in fields]


_C3_KEYS = {"choices": "choice", "label": "answer"}


def _questions(path, encoding):
    """The place, the context and the fields of each question of a file."""
    name = file_name(path)
    try:
        text = read_text(path, encoding)
        content = parse_json(text, name, kind=list, trusted=True)
    except ConfigurationError as error:
        raise SourceError(error.message, hint=_C3_LAYOUT) from error
    for at, document in enumerate(content):
        article_place = f"[{at}] of {name}"
        is_document = isinstance(document, list) and len(document) >= 2
        if not is_document or not _are_texts(document[0]):
            raise SourceError(
                f"{article_place} must be [sentences, questions, id], got "
                f"{document!r:.60}",
                hint=_C3_LAYOUT,
            )
        sentences, questions = document[:2]
        if not isinstance(questions, list):
            raise SourceError(
                f"questions of {article_place} must be a list", hint=_C3_LAYOUT
            )
        # One text for all questions.
        context = "\n".join(sentences)
        for number, question in enumerate(questions):
            question_place = f"questions[{number}] of {article_place}"
            if not isinstance(question, dict):
                raise SourceError(
                    f"{question_place} must be an object, got {question!r:.60}"
                )
            yield question_place, context, question


def _are_texts(value):
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


# === CHID ===


def chid_answers(path: str) -> str:
    """The path of the answers to the blanks of a file."""
    folder, name = os.path.split(path)
    stem, dot, ending = name.partition(".json")
    return os.path.join(folder, f"{stem}_answer{dot}{ending}")


def read_chid(
    path: str, fields: Sequence[str], encoding: str = UTF_8
) -> Iterator[tuple[int, Any]]:
    """Numbers of lines and the values of some fields, of each blank.

    In place of the values of a blank without an answer, its SourceError.

    Args:
        path: of the file.
        fields: `context`, the passage with `[MASK]` at the blank of the row and `____`
            at others, and in place of a `[MASK]` that the file has; `choices`; `label`,
            the number of the right choice; `blank`, its name; `passage`, as the file
            has it; or other keys of the line. The file of answers is read if `label` is
            among them.
        encoding: as in `read_lines`.

    Raises:
        SourceError: a file is not of this layout.
    """
    answers = _read_answers(path, encoding) if "label" in fields else {}
    for line, text in read_lines(path, encoding):
        if text.isspace():
            continue
        line_place = place_line(line, path)
        content = _chid_object(text, line_place)
        for passage in content["content"]:
            blanks = [(one[0], *one.span()) for one in _BLANK.finditer(passage)]
            for blank, start, end in blanks:
                before, after = (
                    _BLANK.sub(OTHER_BLANK, part).replace(MASK, OTHER_BLANK)
                    for part in (passage[:start], passage[end:])
                )
                own: dict[str, Any] = {
                    "context": f"{before}{BLANK}{after}",
                    "choices": content["candidates"],
                    BLANK_NAME: blank,
                    "passage": passage,
                }
                if blank in answers:
                    own["label"] = answers[blank]
                candidates = ChainMap(own, content)
                missing = [name for name in fields if name not in candidates]
                if missing == ["label"]:
                    yield (
                        line,
                        SourceError(
                            f"{line_place}: the blank {blank} must have an answer in "
                            f"{chid_answers(path)}"
                        ),
                    )
                elif missing:
                    yield (
                        line,
                        SourceError(
                            f"{line_place} must have "
                            f"{name_list(missing)}, got "
                            f"{name_list(content)}"
                        ),
                    )
                else:
                    yield line, [candidates[name] for name in fields]


def _chid_object(text, place):
    try:
        content = parse_json(text, place, trusted=True)
    except ConfigurationError as error:
        raise SourceError(error.message) from error
    for key in ("content", "candidates"):
        if not _are_texts(content.get(key)):
            raise SourceError(
                f"{place} must have {key!r}, a list of texts, got "
                f"{content.get(key)!r:.60}"
            )
    return content


def _read_answers(path, encoding):
    """Numbers of choices by the name of a blank."""
    if path == "-":
        raise SourceError(
            "CHID on standard input has no answers, which are in a file next to its own"
        )
    name = chid_answers(path)
    try:
        answers = parse_json(read_text(name, encoding), name, trusted=True)
    except ConfigurationError as error:
        raise SourceError(error.message) from error
    for blank, number in answers.items():
        if not is_integer(number):
            raise SourceError(
                f"{name}: the answer of {blank[:40]} must be the number of a choice, "
                f"got {number!r:.60}"
            )
    return answers

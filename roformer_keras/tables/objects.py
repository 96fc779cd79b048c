"""Objects of JSON: one a line, a list of them, or the questions of SQuAD."""

import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from roformer_keras.base.errors import ConfigurationError, Hint, SourceError
from roformer_keras.io.json_file import check_unicode, parse_json, strict_json
from roformer_keras.tables.opening import File
from roformer_keras.tables.table import Value

_LAYOUT = Hint(
    "a .json file is a list of objects; {format:'jsonl'} reads an object a line, and "
    "'squad' SQuAD's files"
)
_QUESTIONS = (
    "a file of questions has data, a list of articles with paragraphs, and these have "
    "a context and qas; a file with an object a line is of the format jsonl"
)
_Content = TypeVar("_Content", list[Value], dict[str, Value])
_Rows = Iterator[tuple[int, Mapping[str, Value] | SourceError]]


def read_lines(file: File, keys: Sequence[str]) -> _Rows:
    """Numbers and objects of the lines that are not blank."""
    for line, text in file.lines():
        if text.isspace():
            continue
        try:
            yield line, parse_object(text, str(file.place(line)))
        except SourceError as error:
            yield line, error


def parse_object(text: str, place: str) -> dict[str, Value]:
    """The object that a JSON text holds."""
    try:
        content = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{place} must be a JSON object: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{place} must be a JSON object, got {content!r:.60}")
    check_unicode(content, place, SourceError, text)
    return content


def read_list(file: File, keys: Sequence[str]) -> _Rows:
    """Numbers, from 1, and objects of a list."""
    text = file.text()
    content = _parse(text, file, _LAYOUT, list) if text.strip() else []
    for number, item in enumerate(content, start=1):
        if isinstance(item, dict):
            yield number, item
        else:
            message = f"{file.place(number)} must be an object, got {item!r:.60}"
            yield number, SourceError(message, hint=_LAYOUT)


def read_squad(file: File, keys: Sequence[str]) -> _Rows:
    """Numbers of the questions of SQuAD and CMRC, from 1, and these as objects.

    `data` is a list of articles with `paragraphs`; of these each has a `context` and
    `qas`, its questions. A row has the keys of its question, paragraph and article.
    """
    content = _parse(file.text(), file, _QUESTIONS, dict)
    numbers = itertools.count(1)
    for article_place, article in _children(content, "data", file.name):
        for place, paragraph in _children(article, "paragraphs", article_place):
            for _, question in _children(paragraph, "qas", place):
                yield next(numbers), ChainMap(question, paragraph, article)


def _children(
    parent: Mapping[str, Value], key: str, place: str
) -> Iterator[tuple[str, dict[str, Value]]]:
    """The places of the objects in a list of an object, and these."""
    children = parent.get(key)
    if not isinstance(children, list):
        raise SourceError(
            f"{place} must have {key!r}, a list, got {children!r:.60}", hint=_QUESTIONS
        )
    for number, child in enumerate(children):
        item_place = f"{key}[{number}] of {place}"
        if not isinstance(child, dict):
            raise SourceError(f"{item_place} must be an object, got {child!r:.60}")
        yield item_place, child


def _parse(text: str, file: File, hint: str, kind: type[_Content]) -> _Content:
    try:
        content: _Content = parse_json(text, file.name, kind=kind, trusted=True)
    except ConfigurationError as error:
        raise SourceError(error.message, hint=hint) from error
    return content

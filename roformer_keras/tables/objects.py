"""Objects of JSON: one a line, or a list of them."""

from collections.abc import Iterator, Sequence

from roformer_keras.base.errors import ConfigurationError, Hint, SourceError, name_list
from roformer_keras.io.json_file import check_unicode, parse_json, strict_json
from roformer_keras.tables.lines import (
    UTF_8,
    file_name,
    place_line,
    read_lines,
    read_text,
)

_LAYOUT = Hint(
    "a .json file is a list of objects; {format:'jsonl'} reads an object a line, and "
    "'squad' SQuAD's files"
)


def read_objects(
    path: str, kind: str, keys: Sequence[str], encoding: str = UTF_8
) -> Iterator[tuple[int, list | SourceError]]:
    """Numbers of lines, or of objects from 1, and the values of some keys.

    In place of the values of an object that lacks some, its SourceError.
    """
    if kind == ".json":
        yield from _read_list(path, keys, encoding)
        return
    for line, text in read_lines(path, encoding):
        if text.isspace():
            continue
        line_place = place_line(line, path)
        try:
            yield line, _values_of(parse_object(text, line_place), keys, line_place)
        except SourceError as error:
            yield line, error


def parse_object(text: str, place: str) -> dict:
    """The object that a JSON text holds."""
    try:
        content = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{place} must be a JSON object: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{place} must be a JSON object, got {content!r:.60}")
    check_unicode(content, place, SourceError, text)
    return content


def _read_list(path, keys, encoding):
    name = file_name(path)
    text = read_text(path, encoding)
    if not text.strip():
        return
    try:
        content = parse_json(text, name, kind=list, trusted=True)
    except ConfigurationError as error:
        raise SourceError(error.message, hint=_LAYOUT) from error
    for number, found in enumerate(content, start=1):
        row_place = f"row {number} of {name}"
        try:
            if not isinstance(found, dict):
                raise SourceError(
                    f"{row_place} must be an object, got {found!r:.60}", hint=_LAYOUT
                )
            yield number, _values_of(found, keys, row_place)
        except SourceError as error:
            yield number, error


def _values_of(found, keys, place):
    if not found.keys() >= set(keys):
        raise SourceError(
            f"{place} must have {name_list(keys)}, got {name_list(found)}",
            hint=Hint("name others with {fields}"),
        )
    return [found[key] for key in keys]

"""JSON files that hold one object or list."""

import json
from typing import Any

from roformer_keras.errors import ConfigurationError, RoFormerError
from roformer_keras.io.blob import Blob


def read_json(blob: Blob) -> dict:
    """The object of a JSON file; raises as `parse_json` does."""
    return parse_json(blob.read(), blob.label)


def json_bytes(content: Any) -> bytes:
    """A JSON file for people to read: indented, with characters as they are."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def check_unicode(
    content: Any, label: str, error: type[RoFormerError] = ConfigurationError
) -> None:
    """Checks that JSON holds no lone surrogate, which no file can be written with.

    Args:
        content: what was read.
        label: str. What the error calls it.
        error: the class of the error.

    Raises:
        error: JSON escapes one half of a surrogate pair without the other.
    """
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise error(
            f"{label} must hold whole characters, got half of a surrogate pair"
        ) from cause


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text, in which no key of an object comes twice.

    Raises:
        ValueError: it is no JSON, to which NaN and Infinity do not belong.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)


def _unique_keys(pairs):
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} is there twice")
    return content


def _no_constant(name):
    raise ValueError(f"{name} is no JSON, and a missing value is null")


def parse_json(
    text: str | bytes, label: str, kind: type = dict, strict: bool = False
) -> Any:
    """The object of a JSON text, or its list.

    Args:
        text: str or bytes.
        label: str. What errors call it.
        kind: dict or list.
        strict: bool. Whether it is read by `strict_json`.

    Raises:
        ConfigurationError: it is not valid JSON, or holds something else.
    """
    try:
        content = strict_json(text) if strict else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{label} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        name = "object" if kind is dict else "list"
        raise ConfigurationError(
            f"{label} must hold one JSON {name}, got {type(content).__name__}"
        )
    return content

"""JSON of files: one set of rules for data, models and settings.

No key of an object comes twice; numbers are finite, and NaN is no number of JSON; texts
hold no half of a surrogate pair; values are nested at most `MAX_DEPTH` deep.
"""

import json
import math
from typing import Any

from roformer_keras.base.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.io.blob import Blob

# Deeper values end Python's own functions, such as `repr`, by a RecursionError.
MAX_DEPTH = 100
# Bytes of memory that JSON may take: in all, or for each byte of its text. Lists of
# tokens with numbers of tags become 17 times their size.
_EXEMPT, _MAX_RATIO = 2**26, 24


def read_json(blob: Blob, kind: type = dict, strict: bool = True) -> Any:
    """The object of a JSON file, or its list; the rest as `parse_json` has it."""
    return parse_json(blob.read_small(), blob.label, kind, strict)


def json_bytes(content: Any) -> bytes:
    """A JSON file for people to read: indented, with characters as they are."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def check_unicode(
    content: Any,
    label: str,
    error: type[RoFormerError] = ConfigurationError,
    text: str | None = None,
) -> None:
    """Checks that JSON holds no lone surrogate, which no file can be written with."""
    if text is not None and "\\u" not in text:
        return
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise error(
            f"{label} must hold whole characters, got half of a surrogate pair"
        ) from cause


def strict_json(text: str | bytes, strict: bool = True) -> Any:
    """The value of a JSON text that keeps the rules of all JSON here."""
    decoded = _decoded(text)
    value = _STRICT.decode(decoded) if strict else json.loads(decoded)
    _check_depth(decoded, value)
    return value


def _decoded(text):
    # json itself lets half of a surrogate pair pass.
    return text if isinstance(text, str) else text.decode(json.detect_encoding(text))


def _unique_keys(pairs):
    content = dict(pairs)
    if len(content) < len(pairs):
        names: set[str] = set()
        # Adds each, and ends at the one that is there already.
        twice = next(name for name, _ in pairs if name in names or names.add(name))
        raise ValueError(f"the key {twice!r:.60} is there twice")
    return content


def _no_constant(name):
    raise ValueError(f"{name} is no JSON, and a missing value is null")


def _finite(text):
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is more than a float can be")
    return number


# Made once: json makes a decoder for each call with hooks.
_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite
)


def _check_depth(text, value):
    # No value is deeper than it has brackets.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level, depth = [value], 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        level = [
            child
            for part in level
            for child in (part.values() if isinstance(part, dict) else part)
        ]


def _check_memory(text, label):
    """Raises SourceError if JSON becomes far larger than its text, before parsing."""
    # An empty list is two characters; a dict begins with 200 bytes and some work.
    lists, dicts, others = map(text.count, "[{,")
    size = len(text) + 64 * (lists + others) + 256 * dicts
    if size > max(_EXEMPT, _MAX_RATIO * len(text)):
        raise SourceError(
            f"{label} must take at most {_MAX_RATIO} times its size in memory, as it "
            f"is one JSON value, and takes {size:,} bytes or more"
        )


def parse_json(
    text: str | bytes,
    label: str,
    kind: type = dict,
    strict: bool = True,
    trusted: bool = False,
) -> Any:
    """The object of a JSON text, or its list."""
    try:
        decoded = _decoded(text)
        if not trusted:
            _check_memory(decoded, label)
        content = strict_json(decoded, strict)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{label} is not valid JSON: {error}") from error
    check_unicode(content, label, text=decoded)
    if not isinstance(content, kind):
        name = "object" if kind is dict else "list"
        raise ConfigurationError(
            f"{label} must hold one JSON {name}, got {type(content).__name__}"
        )
    return content

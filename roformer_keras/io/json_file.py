"""JSON of files: one set of rules for data, models and settings.

An object has no key twice; numbers are finite, and NaN is not allowed; texts hold no
half of a surrogate pair; values are nested at most `MAX_DEPTH` deep.
"""

import json
import math
from typing import Any

from roformer_keras.base.errors import ConfigurationError, RoFormerError, SourceError
from roformer_keras.io.blob import Blob

# Deeper values cause a RecursionError in Python's own functions, such as `repr`.
MAX_DEPTH = 100
# Maximal memory of JSON: in bytes, or for each byte of its text. Lists of tokens with
# numbers of tags take 17 times the size of their text.
_EXEMPT, _MAX_RATIO = 2**26, 24


def read_json(blob: Blob, kind: type = dict, strict: bool = True) -> Any:
    """The object or list of a JSON file, by the rules of `parse_json`."""
    return parse_json(blob.read_small(), blob.label, kind, strict)


def json_bytes(content: Any) -> bytes:
    """A readable JSON file: indented, with unescaped characters."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def check_unicode(
    content: Any,
    label: str,
    error: type[RoFormerError] = ConfigurationError,
    text: str | None = None,
) -> None:
    """Checks that JSON holds no lone surrogate, which no file can store."""
    if text is not None and "\\u" not in text:
        return
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise error(
            f"{label} must hold whole characters, got half of a surrogate pair"
        ) from cause


def strict_json(text: str | bytes, strict: bool = True) -> Any:
    """The value of a JSON text that keeps the rules of this module."""
    decoded = _decoded(text)
    value = _STRICT.decode(decoded) if strict else json.loads(decoded)
    _check_depth(decoded, value)
    return value


def _decoded(text):
    # The json module accepts half of a surrogate pair.
    return text if isinstance(text, str) else text.decode(json.detect_encoding(text))


def _unique_keys(pairs):
    content = dict(pairs)
    if len(content) < len(pairs):
        names: set[str] = set()
        # It adds each key, and stops at the first key that is already there.
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


# One decoder for all calls: json makes a new one for each call with hooks.
_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite
)


def _check_depth(text, value):
    # The depth is at most the number of brackets.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level, depth = [value], 0
    while level := [
        container for container in level if isinstance(container, dict | list)
    ]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        level = [
            child
            for container in level
            for child in (
                container.values() if isinstance(container, dict) else container
            )
        ]


def _check_memory(text, label):
    """Raises SourceError, before parsing, if JSON would outgrow its text by far."""
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

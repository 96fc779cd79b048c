"""JSON files that hold one object."""

import json

from roformer_keras.errors import ConfigurationError
from roformer_keras.io.blob import Blob


def read_json(blob: Blob) -> dict:
    """The object of a JSON file; raises as `parse_json` does."""
    return parse_json(blob.read(), blob.label)


def parse_json(text: str | bytes, label: str) -> dict:
    """The object of a JSON text.

    Args:
        text: str or bytes.
        label: str. What errors call it.

    Raises:
        ConfigurationError: it is not valid JSON, or holds no object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{label} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{label} must hold one JSON object, got {type(content).__name__}"
        )
    return content

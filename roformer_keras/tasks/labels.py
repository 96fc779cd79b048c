"""Labels as a file has them, and numbers as JSON has them."""

import json
from collections.abc import Iterable

import numpy as np

from roformer_keras.errors import ConfigurationError

__all__ = ["parse_name", "parse_number", "parse_spans", "rounded", "sorted_names"]


def parse_name(value) -> str:
    """A class; a JSON file may have an integer for its name."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ConfigurationError(f"a label must be a name, or an integer, got {value!r}")


def parse_number(value) -> float:
    """A finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number) or isinstance(value, bool):
        raise ConfigurationError(f"a label must be a finite number, got {value!r}")
    return number


def parse_spans(value) -> list:
    """Spans, or tags; in a cell of a table a JSON list, or tags with spaces between."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = value.split()
    elif isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(
                f"spans in a cell must be a JSON list: {error}"
            ) from error
    if not isinstance(value, list):
        raise ConfigurationError(f"a label must be a list of spans, got {value!r}")
    return value


def sorted_names(names: Iterable[str]) -> list[str]:
    """Each name once, in order; integers in the order of their values."""
    names = set(names)
    are_numbers = all(name.isdecimal() for name in names)
    return sorted(names, key=int if are_numbers else None)


def rounded(number) -> float:
    """A float with as many digits as float32 is good for."""
    return round(float(number), 6)

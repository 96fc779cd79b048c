"""Fields of options that several verbs have."""

from typing import Any

from roformer_keras.base.checks import integer


def count(default: int | None) -> Any:
    """A field of an integer of at least 1, with which arrays can be made."""
    return integer(default, minimum=1, maximum=2**31 - 1)

"""All verbs; those of this package are registered when `roformer_keras.verbs` is."""

from typing import TypeVar

from roformer_keras.verbs.verb import Verb

VERBS: dict[str, type[Verb]] = {}
_Kind = TypeVar("_Kind", bound=type[Verb])


def register(kind: _Kind) -> _Kind:
    """Makes a verb known to all surfaces, by its name."""
    VERBS[kind.name] = kind
    return kind

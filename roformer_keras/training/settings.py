"""What the settings of trainings share: their checks, their files, the optimizer."""

import dataclasses
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from roformer_keras.errors import ConfigurationError, SourceError

__all__ = [
    "DTYPES",
    "OptimizerSettings",
    "beside",
    "build",
    "check_choice",
    "check_integer",
    "check_number",
    "check_tables",
    "check_types",
    "column_names",
    "errors_of",
    "existing_beside",
    "read_toml",
]

OPTIMIZERS = ("adamw", "lamb")
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How weights are updated.

    Args:
        name: `"adamw"` or `"lamb"`.
        beta_1, beta_2: float in [0, 1). Momenta of the gradients' mean and square.
        epsilon: float. What is added to the root of the square.
        weight_decay: float. Decoupled; never on biases, gamma and beta.
        clip_norm: float, 0 for none. Most that the norm of all gradients may be.
        ema: float in [0, 1), 0 for none. Momentum of a running mean of the weights,
            which becomes the weights at the end.
    """

    name: str = "adamw"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    ema: float = 0.0

    def __post_init__(self):
        check_types(self)
        check_choice("optimizer name", self.name, OPTIMIZERS)
        for name in ("epsilon", "weight_decay", "clip_norm"):
            check_number(name, getattr(self, name), 0, float("inf"))
        for name in ("beta_1", "beta_2", "ema"):
            check_number(name, getattr(self, name), 0, 1, below=True)


def read_toml(path: str | os.PathLike) -> dict:
    """The content of a TOML file.

    Raises:
        SourceError: the file cannot be read.
        ConfigurationError: it is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} must be a TOML file: {error}") from error


@contextmanager
def errors_of(path: str | os.PathLike) -> Iterator[None]:
    """Errors of settings name the file that they are of."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def beside(path: str | os.PathLike, name):
    """The path that a name in a file means: relative to the folder of that file.

    What is no name is left as it is, for the checks of types.
    """
    return str(Path(path).parent / name) if isinstance(name, str) else name


def existing_beside(path: str | os.PathLike, name):
    """The same if something lies there, else the name.

    A source may also be the name of a checkpoint that was downloaded.
    """
    found = beside(path, name)
    return found if isinstance(found, str) and os.path.exists(found) else name


def build(kind, fields: Mapping, name: str):
    """A dataclass of plain fields, of which none is unknown and none is missing.

    Args:
        kind: the dataclass.
        fields: by name.
        name: str. What errors call it.
    """
    known = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ConfigurationError(
            f"{name} has no {', '.join(unknown)}; it has {', '.join(known)}"
        )
    missing = [
        field.name
        for field in known.values()
        if field.default is field.default_factory is dataclasses.MISSING
        and field.name not in fields
    ]
    if missing:
        raise ConfigurationError(f"{name} must have {', '.join(missing)}")
    return kind(**fields)


def column_names(value):
    """Names of columns, which may be written as numbers.

    What is no list is left as it is, for the checks of types.
    """
    if not isinstance(value, list | tuple):
        return value
    return tuple(str(name) if isinstance(name, int) else name for name in value)


_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    Mapping: "a table",
    types.NoneType: "none",
}


def check_types(settings) -> None:
    """Raises unless every field is of the type that it is declared with."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not _is_of(value, field.type):
            raise ConfigurationError(
                f"{field.name} must be {_words(field.type)}, got {value!r}"
            )


def _is_of(value, kind):
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(_is_of(value, one) for one in arguments)
    if arguments:
        is_sequence = isinstance(value, list | tuple)
        if arguments[-1] is ...:
            return is_sequence and all(_is_of(one, arguments[0]) for one in value)
        return (
            is_sequence
            and len(value) == len(arguments)
            and all(map(_is_of, value, arguments))
        )
    if kind in (int, float):
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        return is_number and (isinstance(value, int) or math.isfinite(value))
    return isinstance(value, kind)


def _words(kind):
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return " or ".join(map(_words, arguments))
    if arguments and arguments[-1] is ...:
        return f"a list of {_words(arguments[0])}"
    if arguments:
        return f"pairs of {' and '.join(map(_words, arguments))}"
    return _WORDS.get(kind, kind.__name__)


def check_tables(content: Mapping, names: Iterable[str]) -> None:
    """Raises ConfigurationError unless what must be a table is one."""
    for name in names:
        table = content.get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigurationError(f"{name} must be a table [{name}], got {table!r}")


def check_integer(name: str, value, least: int) -> None:
    """Raises ConfigurationError unless it is an int, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(
            f"{name} must be an integer of at least {least}, got {value!r}"
        )


def check_number(name: str, value, least, most, below: bool = False) -> None:
    """Raises ConfigurationError unless it is from `least` to `most`, or below that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (
        least <= value < most if below else least <= value <= most
    ):
        bounds = f"[{least}, {most})" if below else f"from {least}"
        raise ConfigurationError(f"{name} must be a number {bounds}, got {value!r}")


def check_choice(name: str, value, choices) -> None:
    """Raises ConfigurationError unless it is one of some."""
    if value not in choices:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}"
        )

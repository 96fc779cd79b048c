"""Checks of arguments, and settings: dataclasses that declare a rule at each field.

@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Settings):
    epochs: int = integer(3, minimum=1)
    dropout: float = number(0.1, minimum=0, below=1)
    schedule: str = choice("linear", choices=("linear", "constant"))

Training(dropout=2)
# ConfigurationError: dropout must be a number in [0, 1), got 2
"""

import dataclasses
import difflib
import functools
import json
import math
import operator
import os
import stat
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING
from numbers import Integral, Real
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Self,
    TypeAlias,
    TypeGuard,
    TypeVar,
)

from roformer_keras.base.errors import (
    ConfigurationError,
    Hint,
    SourceError,
    errors_at,
)
from roformer_keras.base.other_names import NAMES, explain_withdrawn
from roformer_keras.base.types import Unchecked

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Value = TypeVar("_Value")
_Dataclass = TypeVar("_Dataclass", bound="DataclassInstance")

# === Arguments ===


def is_integer(value: Unchecked) -> TypeGuard[int]:
    """True for an integer of any library, but not for True and False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(
    name: str, value: Unchecked, minimum: int | None = None, maximum: int | None = None
) -> None:
    """Raises ConfigurationError unless the value is an integer within the bounds."""
    if (
        not is_integer(value)
        or (minimum is not None and value < minimum)
        or (maximum is not None and value > maximum)
    ):
        bounds = _bounds(minimum, maximum)
        raise ConfigurationError(f"{name} must be an integer{bounds}, got {value!r}")


def check_number(
    name: str,
    value: Unchecked,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raises ConfigurationError unless the value is a finite number within the bounds.

    Args:
        name: str. The value's name in the error.
        value: the value.
        minimum, maximum: numbers or None. Inclusive bounds.
        above, below: numbers or None. Exclusive bounds.
    """
    if (
        not _is_finite(value)
        or (minimum is not None and value < minimum)
        or (maximum is not None and value > maximum)
        or (above is not None and value <= above)
        or (below is not None and value >= below)
    ):
        kind = "finite number" if maximum is below is None else "number"
        bounds = _bounds(minimum, maximum, above, below)
        raise ConfigurationError(f"{name} must be a {kind}{bounds}, got {value!r}")


def check_flag(name: str, value: Unchecked) -> None:
    """Raises ConfigurationError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: Unchecked, choices: Iterable[str | None]) -> None:
    """Raises ConfigurationError if the value is not among the choices."""
    choices = tuple(choices)
    # An array would compare element by element.
    if not isinstance(value, str | None) or value not in choices:
        raise ConfigurationError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got "
            f"{value!r:.200}",
            hint=(isinstance(value, str) and explain_withdrawn(value)) or None,
        )


def check_path(name: str, value: Unchecked) -> None:
    """Raises ConfigurationError unless the value is a str or a path."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigurationError(f"{name} must be a path or a name, got {value!r:.80}")


def check_iterable(name: str, value: Unchecked, description: str) -> None:
    """Raises ConfigurationError unless the value is a plain iterable of items.

    A str, a dict and a table do not count.

    Args:
        name: str. The value's name in the error.
        value: the value.
        description: str. The rule, such as `"a list of ids"`.
    """
    # A loop over a dict or a pandas table would yield the names of its columns.
    is_named = isinstance(value, Mapping) or hasattr(value, "columns")
    if is_named or isinstance(value, str | bytes) or not isinstance(value, Iterable):
        shown = f"a {type(value).__name__}" if is_named else f"{value!r:.80}"
        raise ConfigurationError(
            f"{name} must be {description}, got {shown}",
            hint="give one column of it" if is_named else None,
        )


def as_names(name: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """A str, or an iterable of str, as a tuple; else raises ConfigurationError."""
    if isinstance(value, str):
        return (value,)
    check_iterable(name, value, "a name or a list of names")
    names = tuple(value)
    for item in names:
        check_instance(f"each of {name}", item, str)
    return names


def check_instance(
    name: str, value: Unchecked, kind: type, hint: str | None = None
) -> None:
    """Raises ConfigurationError unless the value is an instance of the class."""
    if not isinstance(value, kind):
        raise ConfigurationError(
            f"{name} must be {_describe(kind)}, got {value!r:.80}", hint=hint
        )


def check_names(
    owner: str, noun: str, names: Iterable[str], known: Collection[str]
) -> None:
    """Raises ConfigurationError unless the owner knows all names.

    The hint translates names of other libraries, and suggests similar names.
    """
    unknown = sorted(set(map(str, names)) - set(known))
    if not unknown:
        return
    hints, unexplained = [], []
    for name in reversed(unknown):
        library = next((title for title in NAMES if name in NAMES[title]), None)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        if withdrawn := explain_withdrawn(f"{name}="):
            hints.append(withdrawn)
        elif library is not None:
            hints.append(f"{name}= of {library} is {NAMES[library][name]} here")
        elif near:
            hints.append(f"did you mean {near[0]}= for {name}=?")
        else:
            unexplained.append(name)
    shown = ""
    if unexplained:
        shown = f"; it has {', '.join(known) or 'none'}"
        hints.append(f"leave out {', '.join(f'{name}=' for name in unknown)}")
    raise ConfigurationError(
        f"{owner} has no {noun} {', '.join(unknown)}{shown}", hint="; ".join(hints)
    )


def _is_finite(value: Unchecked) -> TypeGuard[float]:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _bounds(
    minimum: float | None,
    maximum: float | None,
    above: float | None = None,
    below: float | None = None,
) -> str:
    """Describes the allowed range, in words or as an interval."""
    low = minimum if above is None else above
    high = maximum if below is None else below
    if low is None and high is None:
        return ""
    if high is None:
        return f" of at least {low}" if above is None else f" above {low}"
    if low is None:
        return f" of at most {high}" if below is None else f" below {high}"
    if above is below is None:
        return f" from {low} to {high}"
    left, right = "[" if above is None else "(", "]" if below is None else ")"
    return f" in {left}{low}, {high}{right}"


# === Fields of settings ===

# A type annotation, such as `int | None`.
_Annotation: TypeAlias = type | Any
# Default of a required field.
_REQUIRED: Any = MISSING


class Only:
    """The settings under which a field may differ from its default.

    Args:
        words: a description of these settings, for errors.
        holds: function from the values of `others` to bool.
        others: fields that decide, with dots for fields of tables.
    """

    def __init__(self, words: str, holds: Callable[..., bool], *others: str):
        self.words, self.holds, self.others = words, holds, others

    def check(self, settings: "Settings", name: str, value: Unchecked) -> None:
        """Raises ConfigurationError if a field does not count in settings."""
        others = {other: operator.attrgetter(other)(settings) for other in self.others}
        if not self.holds(*others.values()):
            shown = [f"{other}={setting!r:.80}" for other, setting in others.items()]
            raise ConfigurationError(
                f"{name} counts only with {self.words}, got "
                f"{', '.join([f'{name}={value!r}', *shown])}",
                hint=Hint(f"leave out {{{name}}}"),
            )


def integer(
    default: _Value = _REQUIRED,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    only: Only | None = None,
) -> _Value:
    """A field that `check_integer` checks."""
    return _field(default, check_integer, only, minimum=minimum, maximum=maximum)


def number(
    default: _Value = _REQUIRED,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    only: Only | None = None,
) -> _Value:
    """A field that `check_number` checks."""
    return _field(
        default,
        check_number,
        only,
        minimum=minimum,
        maximum=maximum,
        above=above,
        below=below,
    )


def choice(
    default: _Value = _REQUIRED,
    *,
    choices: Iterable[str | None],
    only: Only | None = None,
) -> _Value:
    """A field that `check_choice` checks; choices may be added later."""
    return _field(default, check_choice, only, choices=choices)


def option(default: _Value, only: Only) -> _Value:
    """A field that is checked by its type alone."""
    return dataclasses.field(default=default, metadata={"only": only})


def columns(default: _Value = _REQUIRED, *, only: Only | None = None) -> _Value:
    """A field of one column or several; numbers of columns become names."""
    return dataclasses.field(
        default=default, metadata={"convert": _column_names, "only": only}
    )


def file_paths(default: _Value = _REQUIRED) -> _Value:
    """A field of one path or several; in a TOML file, they start at its folder."""
    return dataclasses.field(default=default, metadata={"path": _beside})


def source_path(default: _Value = _REQUIRED) -> _Value:
    """A field of a path or a name; in a TOML file, an existing path comes first."""
    return dataclasses.field(default=default, metadata={"path": _existing_beside})


def _field(
    default: _Value,
    check: Callable[..., None],
    only: Only | None,
    **rule: float | Iterable[str | None] | None,
) -> _Value:
    return dataclasses.field(
        default=default,
        metadata={"check": functools.partial(check, **rule), "only": only, **rule},
    )


def _column_names(value: Unchecked) -> Unchecked:
    if isinstance(value, list | tuple):
        return tuple(map(_column_names, value))
    return str(value) if is_integer(value) else value


def _beside(folder: Path, value: Unchecked) -> Unchecked:
    if isinstance(value, list | tuple):
        return [_beside(folder, item) for item in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return str(folder / value)


def _existing_beside(folder: Path, value: Unchecked) -> Unchecked:
    path = _beside(folder, value)
    return path if isinstance(path, str) and os.path.exists(path) else value


class Settings:
    """Base of dataclasses that check their fields and can be read from files."""

    # Subclasses are dataclasses.
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_together()
        for field in dataclasses.fields(self):
            only, value = field.metadata.get("only"), getattr(self, field.name)
            if only and value != field.default:
                only.check(self, field.name, value)

    def _check_together(self) -> None:
        """Raises ConfigurationError if fields contradict each other."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; an unknown field is an error.

        Args:
            changes: fields and their new values.

        Raises:
                ConfigurationError: a field is unknown, or a value breaks its rule.
        """
        return type(self).from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, from which `from_dict` builds equal settings."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Unchecked]) -> Self:
        """Builds from the result of `to_dict`, or from nested plain types.

        Args:
            fields: dict of the fields.

        Raises:
            ConfigurationError: a field is unknown or missing, or breaks its rule.
        """
        return from_fields(cls, fields, cls.__name__)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Builds from a TOML file, whose relative paths start at its folder.

        Raises:
            SourceError, ConfigurationError: as in `read_fields` and `from_dict`.
        """
        content = read_fields(cls, path)
        with errors_at(path):
            return cls.from_dict(content)


def check_fields(settings: "DataclassInstance") -> None:
    """Checks a dataclass by the types and the rules of its fields.

    Values are converted to the type of their field: lists to tuples, integers to
    floats, tables to dataclasses.

    Raises:
        ConfigurationError: a field breaks its rule; names the field and the value.
    """
    for field in dataclasses.fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if convert := field.metadata.get("convert"):
            value = convert(value)
        check = field.metadata.get("check")
        is_none = value is None and types.NoneType in typing.get_args(field.type)
        if check and not is_none:
            check(name, value)
        converted = _convert(name, value, field.type)
        if converted is MISSING:
            raise ConfigurationError(
                f"{name} must be {_describe(field.type)}, got {value!r}"
            )
        object.__setattr__(settings, name, converted)


def from_fields(
    cls: type[_Dataclass], mapping: Mapping[str, Any], name: str
) -> _Dataclass:
    """Builds a dataclass from a dict of its fields; errors call the dict `name`.

    Raises:
        ConfigurationError: a field is unknown or missing.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigurationError(f"{name} must be a table, got {mapping!r}")
    fields = dataclasses.fields(cls)
    check_names(name, "field", mapping, [field.name for field in fields])
    missing = [
        field.name
        for field in fields
        if field.default is field.default_factory is MISSING
        and field.name not in mapping
    ]
    if missing:
        raise ConfigurationError(f"{name} must have {', '.join(missing)}")
    return cls(**mapping)


def _convert(name: str, value: Unchecked, kind: _Annotation) -> Unchecked:
    """The value converted to its type, or MISSING if it does not fit."""
    if isinstance(kind, types.UnionType):
        converted = (_convert(name, value, member) for member in typing.get_args(kind))
        return next((member for member in converted if member is not MISSING), MISSING)
    if typing.get_origin(kind) is tuple:
        kinds = typing.get_args(kind)
        if not isinstance(value, list | tuple):
            return MISSING
        if kinds[-1] is ...:
            kinds = kinds[:1] * len(value)
        if len(value) != len(kinds):
            return MISSING
        items = [_convert(name, *pair) for pair in zip(value, kinds, strict=True)]
        return MISSING if any(item is MISSING for item in items) else tuple(items)
    if kind is int:
        return int(value) if is_integer(value) else MISSING
    if kind is float:
        return float(value) if _is_finite(value) else MISSING
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return from_fields(kind, value, name)
    return value if isinstance(value, kind) else MISSING


_NOUNS = {int: "integer", float: "finite number", str: "string", Mapping: "table"}
_PHRASES = {bool: "True or False", types.NoneType: "None"}


def _describe(kind: _Annotation, plural: bool = False) -> str:
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return " or ".join(map(_describe, arguments))
    if arguments and arguments[-1] is ...:
        return f"a list of {_describe(arguments[0], plural=True)}"
    if arguments:
        return f"pairs of {' and '.join(map(_describe, arguments))}"
    if kind in _PHRASES:
        return _PHRASES[kind]
    noun = _NOUNS.get(kind, kind.__name__)
    if plural:
        return f"{noun}s"
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def check_file(path: str | os.PathLike[str], hint: str | None = None) -> None:
    """Raises SourceError for a folder, and for a pipe or a device, which may never end.

    A pipe below /dev or /proc, such as a shell's `<(...)`, has a writer and passes; so
    does a missing path.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    is_open = stat.S_ISFIFO(mode) and os.fspath(path).startswith(("/dev/", "/proc/"))
    if not (stat.S_ISREG(mode) or is_open):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
        kind = kinds.get(stat.S_IFMT(mode), "a device or a socket")
        raise SourceError(f"{path} must be a file, and is {kind}", hint=hint)


# === TOML ===


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        SourceError: the file cannot be read.
        ConfigurationError: it is not TOML, or holds dates or times.
    """
    check_file(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        content = tomllib.loads(text)
        # A run writes its settings as JSON, which has no dates.
        json.dumps(content)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} must be a TOML file: {error}") from error
    except TypeError as error:
        raise ConfigurationError(
            f"{path} must hold no dates and times: write them as strings"
        ) from error
    return content


def read_fields(cls: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of a dataclass in a TOML file; only its tables are checked.

    Relative paths of `file_paths` and `source_path` start at the folder of the file.

    Raises:
        SourceError: the file cannot be read.
        ConfigurationError: the file is not TOML, or a field that must be a table is
            another value.
    """
    content = read_toml(path)
    with errors_at(path):
        return _with_paths(cls, content, Path(path).parent)


def _with_paths(
    cls: _Annotation, content: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    content = dict(content)
    for field in dataclasses.fields(cls):
        if field.name not in content:
            continue
        value, kind = content[field.name], field.type
        if resolve := field.metadata.get("path"):
            content[field.name] = resolve(folder, value)
            continue
        is_list = typing.get_origin(kind) is tuple
        kind = typing.get_args(kind)[0] if is_list else kind
        if kind is not Mapping and not dataclasses.is_dataclass(kind):
            continue
        tables = value if is_list else [value]
        if not isinstance(tables, list) or not all(
            isinstance(table, Mapping) for table in tables
        ):
            head = f"tables [[{field.name}]]" if is_list else f"a table [{field.name}]"
            raise ConfigurationError(f"{field.name} must be {head}, got {value!r}")
        if kind is not Mapping:
            resolved = [_with_paths(kind, table, folder) for table in tables]
            content[field.name] = resolved if is_list else resolved[0]
    return content

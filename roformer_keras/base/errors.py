"""The tree of errors that this package raises on purpose.

    RoFormerError
    ├── ConfigurationError    a field or an option breaks a rule
    │   └── BackendError      Keras has no backend to run on
    ├── VocabularyError       a vocabulary, or a token that is not in it
    ├── SourceError           a path or an archive that cannot be used
    ├── CheckpointError       tensors: missing, unexpected, mis-shaped, corrupt
    ├── OutputError           a result that could not be written
    ├── DownloadError         a file that could not be fetched whole
    ├── ReferenceUnavailable  the real bert4keras cannot be run here
    └── ProcessError          a process of a training ended, or cannot be reached

Each also derives from the built-in exception that callers expect, so that
`except ValueError` keeps its meaning.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from string import Formatter
from typing import Self

__all__ = [
    "BackendError",
    "CheckpointError",
    "ConfigurationError",
    "DownloadError",
    "OutputError",
    "ProcessError",
    "ReferenceUnavailable",
    "RoFormerError",
    "SourceError",
    "VocabularyError",
    "errors_at",
    "printable",
]


class Hint(str):
    """A hint that names arguments, which each interface writes in its own way.

    As a str it names them as Python does: `overwrite=True`, `fields=`.

    Args:
        template: the text, with arguments in braces: `{fields}`, or with a constant
            `{overwrite:True}`.
        values: values of arguments that are not constants.
    """

    _parts: tuple[str, dict[str, object]]

    def __new__(cls, template: str, /, **values: object) -> Self:
        hint = super().__new__(cls, _fill(template, values, _python_argument))
        hint._parts = template, values
        return hint

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        template, values = self._parts
        return (template,), values

    def shown(self, show: Callable[[str, object], str | None]) -> str | None:
        """The text with arguments as `show(name, value)` writes them.

        Semicolons separate clauses. A clause is left out if `show` returns None for one
        of its arguments.
        """
        template, values = self._parts
        clauses = (_fill(clause, values, show) for clause in template.split("; "))
        return "; ".join(filter(None, clauses)) or None


def _python_argument(name: str, value: object) -> str:
    """An argument in Python's syntax, without a value if that is None."""
    return f"{name}=" if value is None else f"{name}={value!r}"


def _fill(
    template: str,
    values: dict[str, object],
    show: Callable[[str, object], str | None],
) -> str | None:
    texts: list[str | None] = []
    for text, name, constant, _ in Formatter().parse(template):
        texts.append(text)
        if name:
            value = ast.literal_eval(constant) if constant else values.get(name)
            texts.append(show(name, value))
    return None if None in texts else "".join(filter(None, texts))


class RoFormerError(Exception):
    """Base of every error that this package raises on purpose.

    `str(error)` is the message, the row and the hint in one sentence.

    Args:
        message: str. The rule and the value that breaks it.
        row: int or None. Index of the wrong row in the caller's data, from 0.
        hint: str or None. The way out; a `Hint` if it names arguments. A hint of
            several lines is shown below the message.

    Attributes:
        message, row, hint: the arguments.
        exit_code: int. The exit code of the command line.

    Example:
        >>> error = roformer_keras.RoFormerError("no such label", row=3, hint="see it")
        >>> str(error), error.exit_code
        ('no such label in row 3: see it', 2)
    """

    exit_code = 2

    def __init__(
        self, message: str, *, row: int | None = None, hint: str | None = None
    ):
        text = message if row is None else f"{message} in row {row}"
        if hint is not None:
            text += f"\n\n{hint}" if "\n" in hint else f": {hint}"
        super().__init__(text)
        self.message, self.row, self.hint = message, row, hint

    def at(self, place: object) -> Self:
        """The same error with a place, such as a file, before the message.

        Args:
            place: the new beginning of the message, shown by `str`.
        """
        return type(self)(f"{place}: {self.message}", row=self.row, hint=self.hint)


class ConfigurationError(RoFormerError, ValueError):
    """A configuration field or an option breaks a rule.

    Example:
        >>> optimizers.layerwise_rates(num_layers=2, decay=2.0)
        Traceback (most recent call last):
        ...
        roformer_keras...ConfigurationError: layer_decay must be a number in ...
    """


def refuse(
    when: object,
    message: str,
    *,
    row: int | None = None,
    hint: str | None = None,
    error: type[RoFormerError] = ConfigurationError,
) -> None:
    """Raises an error if a rule is broken.

    Args:
        when: True if the rule is broken.
        message, row, hint: as in `RoFormerError`.
        error: class of the error.

    Raises:
        RoFormerError: `when` is true.
    """
    if when:
        raise error(message, row=row, hint=hint)


class BackendError(ConfigurationError, ImportError):
    """No backend of Keras is installed, or the chosen one is missing.

    Example:
        >>> from roformer_keras.base.errors import BackendError
        >>> issubclass(BackendError, ImportError)
        True
        >>> BackendError.exit_code
        2
    """


class VocabularyError(RoFormerError, ValueError):
    """A vocabulary cannot be used, or does not fit its use.

    Example:
        >>> roformer_keras.RoFormerTokenizer(["[PAD]", "[UNK]"])
        Traceback (most recent call last):
        ...
        roformer_keras.base.errors.VocabularyError: ...
    """


class SourceError(RoFormerError, OSError):
    """A source is absent, unsafe, or holds no readable weights.

    Example:
        >>> roformer_keras.load_model("nothing.zip")
        Traceback (most recent call last):
        ...
        roformer_keras.base.errors.SourceError: ...
    """


class CheckpointError(RoFormerError, ValueError):
    """A tensor is missing, unexpected, mis-shaped or corrupt.

    Example:
        >>> from roformer_keras.base.errors import CheckpointError
        >>> issubclass(CheckpointError, ValueError)
        True
        >>> CheckpointError.exit_code
        3
    """

    exit_code = 3


class OutputError(RoFormerError, OSError):
    """A result could not be written; nothing is left under its final name.

    Example:
        >>> from roformer_keras.base.errors import OutputError
        >>> issubclass(OutputError, OSError)
        True
        >>> OutputError.exit_code
        4
    """

    exit_code = 4


class DownloadError(RoFormerError, OSError):
    """A file could not be fetched whole.

    Example:
        >>> from roformer_keras.base.errors import DownloadError
        >>> issubclass(DownloadError, OSError)
        True
        >>> DownloadError.exit_code
        5
    """

    exit_code = 5


class ReferenceUnavailable(RoFormerError, RuntimeError):
    """The real bert4keras cannot be run in this environment.

    Example:
        >>> from roformer_keras.base.errors import ReferenceUnavailable
        >>> issubclass(ReferenceUnavailable, RuntimeError)
        True
        >>> ReferenceUnavailable.exit_code
        6
    """

    exit_code = 6


class ProcessError(RoFormerError, RuntimeError):
    """A process that trains together with others has ended, or cannot be reached.

    Example:
        >>> from roformer_keras.base.errors import ProcessError
        >>> issubclass(ProcessError, RuntimeError)
        True
        >>> ProcessError.exit_code
        7
    """

    exit_code = 7


# Maximal number of names in an error, and maximal characters of each.
_MAX_NAMES, _MAX_NAME = 30, 60


def name_list(names: Iterable[object]) -> str:
    """Names as errors show them: quoted and shortened, or "none" without names.

    Args:
        names: names of columns, keys or sheets; a file may have any number.

    Example:
        >>> from roformer_keras.base.errors import name_list
        >>> name_list(["text", "label"]), name_list([])
        ("'text', 'label'", 'none')
    """
    names = list(names)
    shown = [f"{name!r:.{_MAX_NAME}}" for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES:
        shown.append(f"and {len(names) - _MAX_NAMES:,} more")
    return ", ".join(shown) or "none"


def printable(text: str) -> str:
    """The text with escaped control characters, which a terminal would obey.

    Args:
        text: str, such as a name in a file.

    Example:
        >>> from roformer_keras.base.errors import printable
        >>> printable("今天\\x1b[2J")
        '今天\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        # The full-width space, which Chinese texts have, is harmless.
        character
        if character.isprintable() or character == "\u3000"
        else ascii(character)[1:-1]
        for character in text
    )


@contextmanager
def errors_at(place: object) -> Iterator[None]:
    """Puts a place, such as a file, before the configuration errors of a block.

    Args:
        place: the new beginning of the message; any object, shown by `str`.

    Raises:
        ConfigurationError: the block's error, with the place.

    Example:
        >>> from roformer_keras.base.errors import ConfigurationError, errors_at
        >>> with errors_at("a.toml"):
        ...     raise ConfigurationError("epochs must be at least 1")
        Traceback (most recent call last):
        ...
        roformer_keras.base.errors.ConfigurationError: a.toml: epochs must be at least 1
    """
    try:
        yield
    except ConfigurationError as error:
        raise error.at(place) from error

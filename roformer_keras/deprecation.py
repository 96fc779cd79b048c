"""Old names that still work for a while, with a warning that names the new one.

`CONTRIBUTING.md` says for how long.
"""

import functools
import warnings
from collections.abc import Callable
from typing import TypeVar

from roformer_keras.errors import ConfigurationError

_Function = TypeVar("_Function", bound=Callable)


def renamed_arguments(version: str, **names: str) -> Callable[[_Function], _Function]:
    """Lets callers of a function give arguments by their old names.

    Args:
        version: str. The first version without the old names.
        names: the new name of each old one.

    Raises:
        ConfigurationError: when the function is called with both names.

    Example:
        >>> from roformer_keras.deprecation import renamed_arguments
        >>> @renamed_arguments("0.3", maxlen="max_length")
        ... def cut(text, max_length):
        ...     return text[:max_length]
        >>> cut("床前明月光", max_length=2)
        '床前'
    """

    def decorate(function):
        @functools.wraps(function)
        def call(*arguments, **keywords):
            for old in names.keys() & keywords.keys():
                new = names[old]
                if new in keywords:
                    raise ConfigurationError(
                        f"{old} is the old name of {new}, got both: leave {old} out"
                    )
                _warn(f"{old}= of {function.__name__}", f"{new}=", version)
                keywords[new] = keywords.pop(old)
            return function(*arguments, **keywords)

        return call

    return decorate


def renamed(function: _Function, old: str, version: str) -> _Function:
    """A function or class under its old name, which warns when it is called.

    Args:
        function: under its new name.
        old: str. The old name.
        version: str. The first version without it.

    Example:
        >>> from roformer_keras.deprecation import renamed
        >>> old_name = renamed(len, "old_name", "0.3")
    """

    @functools.wraps(function)
    def call(*arguments, **keywords):
        _warn(old, function.__name__, version)
        return function(*arguments, **keywords)

    call.__name__ = old
    return call  # type: ignore[return-value]


def _warn(old, new, version):
    # A FutureWarning is shown to all users. Two calls up is theirs.
    warnings.warn(
        f"{old} is now {new}: the old name is gone in version {version}",
        FutureWarning,
        stacklevel=3,
    )

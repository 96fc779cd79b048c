"""Decorators for functions that users call with other libraries' argument names."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from roformer_keras.base.checks import check_names

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def explains_arguments(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Makes a method explain unknown arguments, as `check_names` does."""
    known_names = [
        name for name in inspect.signature(function).parameters if name != "self"
    ]

    @functools.wraps(function)
    def explained(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        # Texts are tokenized one by one, and checking each call would take too long.
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            wrong = error
        check_names(function.__qualname__, "argument", kwargs, known_names)
        raise wrong

    return explained


def takes_other_names(
    encode: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Makes an `encode` take the arguments of sentence-transformers.

    `show_progress_bar` and `normalize_embeddings` are translated. `batch_size` and
    `convert_to_numpy=True` change no vector; they are ignored if the function has no
    such argument.

    Raises:
        ConfigurationError: raised by the new function for an unknown argument.
    """
    parameters = inspect.signature(encode).parameters
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )

    @functools.wraps(encode)
    def translate(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if "show_progress_bar" in kwargs:
            shown = kwargs.pop("show_progress_bar")
            kwargs.setdefault("verbose", "auto" if shown is None else int(bool(shown)))
        if "normalize_embeddings" in kwargs and "normalize" in parameters:
            kwargs.setdefault("normalize", bool(kwargs.pop("normalize_embeddings")))
        # Vectors of RoFormer-Sim always have length 1.
        for name in ("convert_to_numpy", "normalize_embeddings"):
            if kwargs.get(name) is True:
                del kwargs[name]
        if not takes_any:
            kwargs.pop("batch_size", None)
            known_names = [name for name in parameters if name != "self"]
            check_names(encode.__name__, "argument", kwargs, known_names)
        return encode(*args, **kwargs)

    return translate

"""Decorators of functions that users call with names of other libraries."""

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
    """Makes a method explain arguments that it does not know, as `check_names` does."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def explained(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        # Texts are tokenized one by one, and a check of each takes too long.
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            wrong = error
        check_names(function.__qualname__, "argument", kwargs, known)
        raise wrong

    return explained


def takes_other_names(
    encode: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Makes an `encode` take the arguments of sentence-transformers.

    `show_progress_bar` and `normalize_embeddings` are translated. `batch_size` and
    `convert_to_numpy=True` change no vector, and are passed over where the function
    has no such argument.

    Raises:
        ConfigurationError: of the new function, for an argument that it does not know.
    """
    parameters = inspect.signature(encode).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())

    @functools.wraps(encode)
    def translate(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if "show_progress_bar" in kwargs:
            shown = kwargs.pop("show_progress_bar")
            kwargs.setdefault("verbose", "auto" if shown is None else int(bool(shown)))
        if "normalize_embeddings" in kwargs and "normalize" in parameters:
            kwargs.setdefault("normalize", bool(kwargs.pop("normalize_embeddings")))
        # Vectors of RoFormer-Sim are always of length 1.
        for name, taken in (("convert_to_numpy", True), ("normalize_embeddings", True)):
            if kwargs.get(name) is taken:
                del kwargs[name]
        if not takes_any:
            kwargs.pop("batch_size", None)
            known = [name for name in parameters if name != "self"]
            check_names(encode.__name__, "argument", kwargs, known)
        return encode(*args, **kwargs)

    return translate

"""Methods that answer one text, or several, with their types."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, overload

from roformer_keras.base.types import Texts

_Function = TypeVar("_Function", bound=Callable)
_Answer = TypeVar("_Answer", covariant=True)
_Answers = TypeVar("_Answers", covariant=True)
_Probabilities = TypeVar("_Probabilities", covariant=True)


def one_or_many(answer: _Function) -> _Function:
    """Makes a method that answers texts give the one answer of a single str."""

    @functools.wraps(answer)
    def answer_one(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, str):
            return answer(self, [x], *args, **kwargs)[0]
        return answer(self, x, *args, **kwargs)

    return answer_one  # type: ignore[return-value]


class AnsweringMethod(Protocol[_Answer, _Answers, _Probabilities]):
    """A method that answers texts, by the types of its arguments."""

    @overload
    def __call__(
        self, x: Iterator, *, probabilities: bool = False, **kwargs: Any
    ) -> Iterator[_Answer]: ...

    @overload
    def __call__(
        self, x: Texts, *, probabilities: Literal[False] = False, **kwargs: Any
    ) -> _Answers: ...

    @overload
    def __call__(
        self, x: Texts, *, probabilities: Literal[True], **kwargs: Any
    ) -> _Probabilities: ...

    @overload
    def __call__(
        self, x: Texts, *, probabilities: bool, **kwargs: Any
    ) -> _Answers | _Probabilities: ...


class Answers(Generic[_Answer, _Answers, _Probabilities]):
    """`one_or_many` with the types of one answer, of several, and of probabilities."""

    def __new__(cls, answer: Callable) -> Self:
        return one_or_many(answer)  # type: ignore[return-value]

    def __get__(
        self, model: Any, owner: Any = None
    ) -> AnsweringMethod[_Answer, _Answers, _Probabilities]:
        raise NotImplementedError

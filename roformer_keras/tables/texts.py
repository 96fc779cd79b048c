"""Texts and labels of any container, checked."""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, overload

import numpy as np

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Texts
from roformer_keras.tables.choices import check_choices
from roformer_keras.tables.memory import (
    TextRows,
    column_names,
    is_table,
    plain,
    text_columns,
)
from roformer_keras.tables.tagged import join_row

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


def as_texts(
    x,
    counts: Sequence[int] = (1, 2),
    has_choices: bool = False,
    has_tokens: bool = False,
    may_be_empty: bool = False,
) -> list[tuple[str, ...]]:
    """Texts as a user has them, as a list of tuples, each of what makes one row.

    Args:
        x: a list, NumPy array or pandas Series of str; or for several texts a row a
            list of tuples, an array of as many columns, or a tuple of as many lists.
            Or a table of pandas, polars, Arrow or `datasets` with the columns of
            `text_columns`, of which no copy is made but the texts.
        counts: how many texts a row may have, choices counted as one.
        has_choices: bool. Whether the last text of a row is a list of choices, which
            becomes a tuple.
        has_tokens: bool. Whether a row that is a list is one of tokens, which
            `join_tokens` joins.
        may_be_empty: bool. Whether a text may be empty or blank, as in inference.

    Raises:
        ConfigurationError: there is no text, one is no str or must not be empty, or
            rows have different or wrong numbers of texts.
    """
    x = raw_rows(x, counts, has_choices)
    rows = [
        (row,) if isinstance(row, str) else _tuple(row, number)
        for number, row in enumerate(map(join_row, x) if has_tokens else x)
    ]
    if not rows:
        raise ConfigurationError("there must be at least one text, got none")
    expected = len(rows[0])
    if expected not in counts:
        what = "text" if tuple(counts) == (1,) else "texts"
        what += ", choices counted as one" * has_choices
        raise ConfigurationError(
            f"a row must have {' or '.join(map(str, sorted(counts)))} {what}, got "
            f"{expected}"
        )
    for number, row in enumerate(rows):
        if len(row) != expected:
            raise ConfigurationError(
                f"all rows must have as many texts as the first, {expected}; row "
                f"{number} has {len(row)}"
            )
        texts = row[:-1] if has_choices else row
        for text in texts:
            if not isinstance(text, str):
                raise _no_text(text, number)
            if not (may_be_empty or text.strip()):
                raise ConfigurationError(
                    f"a text must not be empty, got {text!r}",
                    row=number,
                    hint="leave it out",
                )
        if has_choices:
            rows[number] = (*texts, check_choices(row[-1], number))
    return rows


class SizedRows:
    """The rows of a table, each checked when it is read."""

    def __init__(self, table, *options):
        self._rows, self._size = table
        self._options = options
        if not self._size:
            as_texts([], options[0])

    def __iter__(self):
        return checked_rows(self._rows, *self._options)

    def __len__(self):
        return self._size


def checked_rows(stream, *options):
    """Rows of an iterator, each checked when it is read."""
    for number, row in enumerate(stream):
        try:
            yield as_texts([row], *options)[0]
        except ConfigurationError as error:
            raise ConfigurationError(
                error.message, row=number, hint=error.hint
            ) from error


def raw_rows(x, counts: Sequence[int], has_choices: bool = False) -> Iterable:
    """The rows of any container, not yet checked; arguments as in `as_texts`."""
    check_list(x)
    has_columns = is_table(x)
    check_no_mapping(x)
    if isinstance(x, tuple) and x and not any(isinstance(part, str) for part in x):
        for part in x:
            check_no_mapping(part)
            if not hasattr(part, "__len__"):
                raise ConfigurationError(
                    "a tuple of texts must be of str, or of lists of one length, got "
                    f"{part!r:.60} in it"
                )
        lengths = [len(part) for part in x]
        refuse(
            all(isinstance(part, tuple) for part in x)
            and len(x) in counts
            and lengths[0] in counts,
            f"a tuple of {len(x)} tuples may hold rows or columns of texts",
            hint="give rows as a list of tuples, and columns as a tuple of lists",
        )
        if len(set(lengths)) != 1:
            raise ConfigurationError(
                "a tuple of lists of texts must have lists of one length, got "
                f"{', '.join(map(str, lengths))}"
            )
        x = list(zip(*x, strict=True))
    elif has_columns:
        x = TextRows(x, text_columns(column_names(x), counts, has_choices))
    elif hasattr(x, "to_pylist"):
        x = plain(x)
    elif hasattr(x, "to_numpy"):
        x = x.to_numpy()
    return x


def check_no_mapping(x) -> None:
    """Raises ConfigurationError for a dict, whose loop would give its keys."""
    if isinstance(x, Mapping):
        raise ConfigurationError(
            f"texts must be lists, got a dict of {', '.join(map(repr, x))}; give its "
            "values as a tuple of lists, or of one column the list"
        )


def _tuple(row, number):
    if isinstance(row, list | tuple | np.ndarray):
        return tuple(row)
    raise _no_text(row, number)


def _no_text(value, number):
    return ConfigurationError(f"a text must be a str, got {value!r}", row=number)


def check_list(texts: Any) -> None:
    """Raises ConfigurationError unless it may hold texts."""
    if isinstance(texts, str | os.PathLike) and os.path.isfile(texts):
        raise ConfigurationError(
            f"texts must be a list of str, got the file {os.fspath(texts)!r:.80}",
            hint="read it first, as by pandas.read_csv; `roformer-keras finetune` and "
            "`roformer-keras pretrain` train on files",
        )
    if isinstance(texts, str):
        raise ConfigurationError(
            f"texts must be a list of str, got one: [{texts!r:.40}]"
        )
    ways = ("__iter__", "__getitem__", "to_numpy")
    if not any(hasattr(texts, way) for way in ways):
        raise ConfigurationError(
            f"texts must be a list or another container, got {texts!r:.60}"
        )
    refuse_loader(texts)
    # A loop over a `PyDataset` need not end. There is none before Keras is imported.
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(texts, keras.utils.PyDataset):
        raise ConfigurationError(
            f"texts must be a list or another container, got {type(texts).__name__}: "
            "give the texts of its batches as a list"
        )


def is_loader(x: Any) -> bool:
    """True for a `DataLoader` of PyTorch, which is not imported for it."""
    return any(
        kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.utils.data")
        for kind in type(x).__mro__
    )


def refuse_loader(texts: Any) -> None:
    """Raises ConfigurationError for a `DataLoader`.

    It gives several texts of a row as columns or as rows, and one batch does not tell.
    """
    if is_loader(texts):
        raise ConfigurationError(
            "texts must be a list or another container, got a DataLoader of PyTorch",
            hint="give its texts and labels as lists, or a generator of batches of "
            "texts and labels",
        )


def as_numbers(labels) -> np.ndarray:
    """Labels that are numbers, or str of them, as float32 `(rows,)`."""
    labels = list(labels)
    try:
        with np.errstate(over="ignore"):
            numbers = np.array([float(label) for label in labels], "float32")
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigurationError(f"a label must be a number: {error}") from error
    is_wrong = ~np.isfinite(numbers)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise ConfigurationError(
            f"a label must be a finite number, got {labels[row]!r}", row=row
        )
    return numbers

"""Texts and labels of any container, checked."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Texts, Unchecked
from roformer_keras.tables.choices import check_choices, wrong_text
from roformer_keras.tables.memory import (
    TextRows,
    column_names,
    is_table,
    plain,
    text_columns,
)
from roformer_keras.tables.tagged import join_row

# The texts of a row, of which the last may be a tuple of choices.
_Texts = tuple[Any, ...]


def as_texts(
    x: Texts,
    counts: Sequence[int] = (1, 2),
    has_choices: bool = False,
    has_tokens: bool = False,
    may_be_empty: bool = False,
) -> list[_Texts]:
    """Texts as a user has them, as a list of tuples, each of what makes one row.

    Args:
        x: a list, NumPy array or pandas Series of str; or for several texts a row a
            list of tuples, an array of as many columns, or a tuple of as many lists.
            Or a table of pandas, polars, Arrow or `datasets` with the columns of
            `text_columns`, of which no copy is made but the texts.
        counts: how many texts a row may have, choices counted as one.
        has_choices: bool. Whether the last text of a row is a list of choices, which
            becomes a tuple.
        has_tokens: bool. True if a row that is a list holds tokens, which
            `join_tokens` joins.
        may_be_empty: bool. Whether a text may be empty or blank, as in inference.

    Raises:
        ConfigurationError: there is no text, one is no str or must not be empty, or
            rows have different or wrong numbers of texts.
    """
    stream = raw_rows(x, counts, has_choices)
    rows: list[_Texts] = []
    for row in checked_rows(stream, counts, has_choices, has_tokens, may_be_empty):
        rows.append(row)
        refuse(
            len(row) != len(rows[0]),
            f"all rows must have as many texts as the first, {len(rows[0])}; row "
            f"{len(rows) - 1} has {len(row)}",
        )
    refuse(not rows, "there must be at least one text, got none")
    return rows


def checked_rows(
    rows: Iterable[Unchecked],
    counts: Sequence[int],
    has_choices: bool = False,
    has_tokens: bool = False,
    may_be_empty: bool = False,
) -> Iterator[_Texts]:
    """Rows, each checked when it is read; other arguments as in `as_texts`."""
    for number, row in enumerate(rows):
        row = join_row(row) if has_tokens else row
        if isinstance(row, list | tuple | np.ndarray):
            texts: _Texts = tuple(row)
        elif isinstance(row, str):
            texts = (row,)
        else:
            raise ConfigurationError(wrong_text(row, may_be_empty), row=number)
        if len(texts) not in counts:
            what = "text" if tuple(counts) == (1,) else "texts"
            what += ", choices counted as one" * has_choices
            expected = " or ".join(map(str, sorted(counts)))
            raise ConfigurationError(
                f"a row must have {expected} {what}, got {len(texts)}", row=number
            )
        for text in texts[: len(texts) - has_choices]:
            if problem := wrong_text(text, may_be_empty):
                hint = "leave it out" if isinstance(text, str) else None
                raise ConfigurationError(problem, row=number, hint=hint)
        if has_choices:
            texts = (*texts[:-1], check_choices(texts[-1], number))
        yield texts


class SizedRows:
    """The rows of a table, each checked when it is read."""

    def __init__(self, table: tuple[TextRows, int], *options: Any):
        self._rows, self._size = table
        self._options = options
        refuse(not self._size, "there must be at least one text, got none")

    def __iter__(self) -> Iterator[_Texts]:
        return checked_rows(self._rows, *self._options)

    def __len__(self) -> int:
        return self._size


def raw_rows(
    x: Texts, counts: Sequence[int], has_choices: bool = False
) -> Iterable[Unchecked]:
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
        return list(zip(*x, strict=True))
    if has_columns:
        return TextRows(x, text_columns(column_names(x), counts, has_choices))
    rows: Iterable[Unchecked] = plain(x)
    return rows.to_numpy() if hasattr(rows, "to_numpy") else rows


def check_no_mapping(x: Unchecked) -> None:
    """Raises ConfigurationError for a dict, whose loop would give its keys."""
    if isinstance(x, Mapping):
        raise ConfigurationError(
            f"texts must be lists, got a dict of {', '.join(map(repr, x))}; give its "
            "values as a tuple of lists, or of one column the list"
        )


def check_list(texts: Texts) -> None:
    """Raises ConfigurationError unless it may hold texts."""
    refuse(
        isinstance(texts, str | os.PathLike) and os.path.isfile(texts),
        f"texts must be a list of str, got the file {str(texts)!r:.80}",
        hint="read it first, as by pandas.read_csv; `roformer-keras finetune` and "
        "`roformer-keras pretrain` train on files",
    )
    refuse(
        isinstance(texts, str),
        f"texts must be a list of str, got one: [{str(texts)!r:.40}]",
    )
    ways = ("__iter__", "__getitem__", "to_numpy")
    refuse(
        not any(hasattr(texts, way) for way in ways),
        f"texts must be a list or another container, got {texts!r:.60}",
    )
    refuse_loader(texts)
    # A loop over a `PyDataset` need not end. There is none before Keras is imported.
    keras = sys.modules.get("keras")
    refuse(
        keras is not None and isinstance(texts, keras.utils.PyDataset),
        f"texts must be a list or another container, got {type(texts).__name__}: "
        "give the texts of its batches as a list",
    )


def is_loader(x: Unchecked) -> bool:
    """True for a `DataLoader` of PyTorch, which is not imported for it."""
    return any(
        kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.utils.data")
        for kind in type(x).__mro__
    )


def refuse_loader(texts: Unchecked) -> None:
    """Raises ConfigurationError for a `DataLoader`.

    It gives several texts of a row as columns or as rows, and one batch does not tell.
    """
    if is_loader(texts):
        raise ConfigurationError(
            "texts must be a list or another container, got a DataLoader of PyTorch",
            hint="give its texts and labels as lists, or a generator of batches of "
            "texts and labels",
        )


def as_numbers(labels: Iterable[Any]) -> "npt.NDArray[np.float32]":
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

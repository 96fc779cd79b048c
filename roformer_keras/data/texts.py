"""Texts of any container to rows of ids."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from roformer_keras.data.rows import padded_width
from roformer_keras.errors import ConfigurationError

__all__ = ["Rows", "as_numbers", "as_texts"]


def as_texts(x, counts: Sequence[int] = (1, 2)) -> list[tuple[str, ...]]:
    """Texts as a user has them, as a list of tuples, each of what makes one row.

    Args:
        x: a list, NumPy array or pandas Series of str; or for several texts a row a
            list of tuples, an array or DataFrame of as many columns, or a tuple of as
            many lists.
        counts: how many texts a row may have.

    Raises:
        ConfigurationError: there is no text, one is no str or blank, or rows have
            different or wrong numbers of texts.
    """
    if isinstance(x, str):
        raise ConfigurationError(f"texts must be a list of str, got one: [{x!r:.40}]")
    if isinstance(x, Mapping):
        raise ConfigurationError(
            f"texts must be lists, got a dict of {', '.join(map(repr, x))}; give its "
            "values as a tuple of lists"
        )
    if isinstance(x, tuple) and x and not any(isinstance(part, str) for part in x):
        lengths = [len(part) for part in x]
        if len(set(lengths)) != 1:
            raise ConfigurationError(
                "a tuple of lists of texts must have lists of one length, got "
                f"{', '.join(map(str, lengths))}"
            )
        x = list(zip(*x, strict=True))
    elif hasattr(x, "to_numpy"):
        x = x.to_numpy()
    rows = [
        (row,) if isinstance(row, str) else _tuple(row, number)
        for number, row in enumerate(x)
    ]
    if not rows:
        raise ConfigurationError("there must be at least one text, got none")
    expected = len(rows[0])
    if expected not in counts:
        raise ConfigurationError(
            f"a row must have {' or '.join(map(str, counts))} "
            f"{'text' if tuple(counts) == (1,) else 'texts'}, got {expected}"
        )
    for number, row in enumerate(rows):
        if len(row) != expected:
            raise ConfigurationError(
                f"all rows must have as many texts as the first, {expected}; row "
                f"{number} has {len(row)}"
            )
        for text in row:
            if not isinstance(text, str):
                raise ConfigurationError(
                    f"a text must be a str, got {text!r}", row=number
                )
            if not text.strip():
                raise ConfigurationError(
                    f"a text must not be empty, got {text!r}",
                    row=number,
                    hint="leave such rows out",
                )
    return rows


def as_numbers(labels) -> np.ndarray:
    """Labels that are numbers: float32 `(rows,)`.

    Args:
        labels: numbers, or str of them.

    Raises:
        ConfigurationError: one is not.
    """
    labels = list(labels)
    try:
        numbers = np.array([float(label) for label in labels], "float32")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a label must be a number: {error}") from error
    is_wrong = ~np.isfinite(numbers)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise ConfigurationError(
            f"a label must be a finite number, got {labels[row]!r}", row=row
        )
    return numbers


def _tuple(row, number):
    if isinstance(row, list | tuple | np.ndarray):
        return tuple(row)
    raise ConfigurationError(f"a text must be a str, got {row!r}", row=number)


class Rows:
    """Tokenized texts in one piece of memory.

    Args:
        tokenizer: `RoFormerTokenizer`.
        texts: as `as_texts` gives them, of one or two texts a row.
        max_length: int. Longer rows are cut, from the end of the longer text.

    Attributes:
        lengths: int64 `(rows,)`. Tokens of each.
        owners: int64 `(rows,)`. Which of the texts each is made of: here one each.
    """

    def __init__(self, tokenizer, texts: Iterable[tuple[str, ...]], max_length: int):
        rows, firsts = [], []
        for row in texts:
            token_ids, segment_ids = tokenizer.encode(*row, max_length=max_length)
            rows.append(np.array(token_ids, "int32"))
            firsts.append(len(segment_ids) - sum(segment_ids))
        self._keep(rows, firsts)
        self.owners = np.arange(len(rows))

    def _keep(self, rows, firsts):
        """Takes arrays of ids, and how many of each are of the first text."""
        self.lengths = np.array([len(row) for row in rows], "int64")
        self._ends = np.cumsum(self.lengths)
        self._firsts = np.array(firsts, "int64")
        self._token_ids = np.concatenate(rows) if rows else np.zeros(0, "int32")

    def __len__(self):
        return len(self.lengths)

    def ids(self, number: int) -> np.ndarray:
        """Token ids of one row: int32 `(lengths[number],)`."""
        end = self._ends[number]
        return self._token_ids[end - self.lengths[number] : end]

    def batch(self, numbers: Sequence[int], more: int = 0) -> dict:
        """Some rows, padded with 0 to `padded_width` the longest, as a backbone takes
        them.

        Args:
            numbers: which.
            more: int. Columns of padding besides.
        """
        lengths = self.lengths[numbers]
        width = padded_width(int(lengths.max()) + more)
        token_ids = np.zeros((len(numbers), width), "int32")
        for place, number in enumerate(numbers):
            token_ids[place, : lengths[place]] = self.ids(number)
        columns = np.arange(width)
        segment_ids = (columns >= self._firsts[numbers][:, None]) & (
            columns < lengths[:, None]
        )
        return {"token_ids": token_ids, "segment_ids": segment_ids.astype("int32")}

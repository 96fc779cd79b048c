"""Texts that are computed side by side, and told of together."""

from collections.abc import Sequence

import numpy as np

from roformer_keras.data.texts import Rows

__all__ = ["GroupRows"]


class GroupRows:
    """Groups of rows of ids, whose rows stand behind each other in a batch.

    Args:
        tokenizer: `RoFormerTokenizer`.
        groups: lists of equally many rows, each a tuple of one or two texts.
        max_length: int. Longer rows are cut.

    Attributes:
        lengths: int64 `(groups,)`. Tokens of the longest row of each.
        owners: int64 `(groups,)`. Which of the groups each is.
    """

    def __init__(self, tokenizer, groups: Sequence[Sequence[tuple]], max_length: int):
        self._size = len(groups[0])
        rows = [row for group in groups for row in group]
        self._rows = Rows(tokenizer, rows, max_length)
        self.lengths = self._rows.lengths.reshape(-1, self._size).max(axis=1)
        self.owners = np.arange(len(groups))

    def __len__(self):
        return len(self.lengths)

    def batch(self, numbers: Sequence[int], more: int = 0) -> dict:
        """As `Rows.batch`, of `len(numbers) * rows of a group` rows."""
        numbers = np.asarray(numbers)[:, None] * self._size + np.arange(self._size)
        return self._rows.batch(numbers.ravel(), more)

"""Sizes to which numbers of rows are padded, and the padding; NumPy alone."""

from collections.abc import Sequence

import numpy as np

# Numbers of rows that programs are compiled for.
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 100, 128)


def round_up_to_bucket(number: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds a number; after the last each is the double."""
    for bucket in buckets:
        if number <= bucket:
            return bucket
    last = buckets[-1]
    while last < number:
        last *= 2
    return last


def padded_origins(rows: np.ndarray, all_rows: int | None = None) -> np.ndarray:
    """Numbers of rows, padded to a bucket with the first of them."""
    origins = np.full(all_rows or round_up_to_bucket(len(rows), ROWS), rows[0])
    origins[: len(rows)] = rows
    return origins


def pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    """The array with rows of zeros after its own."""
    return np.pad(array, ((0, rows - len(array)), *([(0, 0)] * (array.ndim - 1))))

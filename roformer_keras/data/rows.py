"""Rows of similar length in batches, and windows of rows that never end."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np

__all__ = [
    "TOKENS_PER_BATCH",
    "WINDOW",
    "by_length",
    "padded",
    "padded_width",
    "windows",
]

# Rows times width of a batch: more do not compute faster on the CPUs that were
# measured, and less is padding.
TOKENS_PER_BATCH = 4096
# Texts that are sorted by length together: enough for little padding, and few enough
# that the first answers of a stream are not long in coming.
WINDOW = 2048
# Of the widths of batches, where each takes seconds to compile.
_WIDTH_STEP = 32


def padded_width(length: int) -> int:
    """Columns of a batch whose longest row has so many tokens.

    A graph of TensorFlow takes any width. The other backends compile each one anew,
    so that there must not be many.
    """
    step = 1 if keras.backend.backend() == "tensorflow" else _WIDTH_STEP
    return -(-length // step) * step


def by_length(
    lengths: Sequence[int],
    batch_tokens: int = TOKENS_PER_BATCH,
    batch_size: int | None = None,
) -> Iterator[np.ndarray]:
    """Numbers of rows of similar length, the longest first, as they make a batch.

    Args:
        lengths: tokens of each row.
        batch_tokens: int. Most tokens of a batch, padding included; a longer row comes
            alone.
        batch_size: int. Most rows of a batch, if there is such a limit.
    """
    lengths = np.asarray(lengths)
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        width = padded_width(max(1, int(lengths[order[start]])))
        size = max(1, batch_tokens // width)
        numbers = order[start : start + min(size, batch_size or size)]
        yield numbers
        start += len(numbers)


def padded(rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Rows of ids of one segment each, as a backbone takes them."""
    width = padded_width(max(1, *map(len, rows)))
    token_ids = np.zeros((len(rows), width), "int32")
    for at, row in enumerate(rows):
        token_ids[at, : len(row)] = row
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}


def windows(items: Iterable, prepare: Callable, size: int = WINDOW) -> Iterator:
    """What `prepare` makes of each `size` items, in their order.

    While the caller works on one window the next is prepared in a thread. Items are
    taken in the caller's own.

    Args:
        items: iterable, of any length; it may never end.
        prepare: of a list of at most `size` items.
        size: int.
    """
    items, waiting = iter(items), None
    with ThreadPoolExecutor(max_workers=1) as pool:
        while window := list(itertools.islice(items, size)):
            prepared = pool.submit(prepare, window)
            if waiting is not None:
                yield waiting.result()
            waiting = prepared
        if waiting is not None:
            yield waiting.result()

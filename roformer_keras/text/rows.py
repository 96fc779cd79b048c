"""Rows of ids: padding, batches of similar length, and the rows of tokenized texts."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from roformer_keras.base.checks import check_integer, check_number
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.progress import progress_bar
from roformer_keras.base.types import Verbose

# Maximal rows times width of a batch. Larger batches were not faster on the measured
# CPUs and need more padding.
TOKENS_PER_BATCH = 4096
# Number of texts that are sorted by length together: enough for little padding, and few
# enough that a stream's first answers come soon.
WINDOW = 2048
# Widths of batches are multiples of it where compiling a width takes seconds.
_WIDTH_STEP = 32


def draw_held_out(count: int, share: float, seed: int) -> np.ndarray:
    """Mask of the rows to hold out, drawn by the seed: bool `(count,)`."""
    held_out = np.zeros(count, bool)
    order = np.random.default_rng([seed, 0]).permutation(count)
    held_out[order[: round(share * count)]] = True
    return held_out


def draw_validation(count: int, share: float, seed: int) -> np.ndarray:
    """`draw_held_out` for the argument `validation_split`."""
    check_number("validation_split", share, minimum=0, below=1)
    check_integer("seed", seed, minimum=0)
    held_out = draw_held_out(count, share, seed)
    if held_out.all() or not held_out.any():
        raise ConfigurationError(
            f"validation_split must leave texts on both sides, got {share!r} of {count}"
        )
    return held_out


def as_weights(weights: Any, count: int) -> np.ndarray:
    """One weight for each row: float32 `(count,)`."""
    try:
        array = np.asarray(weights, "float32")
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != (count,):
        shape = f"{weights!r:.60}" if array is None else f"the shape {array.shape}"
        raise ConfigurationError(
            f"sample_weight must be a number for each of {count} rows, got {shape}"
        )
    return array


# === Padding ===


def padded_width(length: int) -> int:
    """Columns of a batch whose longest row has `length` tokens.

    A TensorFlow graph takes any width. Other backends compile each width, so there must
    be few.
    """
    step = 1 if keras.backend.backend() == "tensorflow" else _WIDTH_STEP
    return -(-length // step) * step


def padded_count(count: int) -> int:
    """Choices of a batch whose questions have at most `count`; see `padded_width`."""
    if keras.backend.backend() == "tensorflow":
        return int(count)
    return 1 << (int(count) - 1).bit_length()


def padded(rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Rows of ids of one segment, as inputs of a backbone."""
    token_ids = pad(rows, padded_width(max(1, *map(len, rows))))
    return {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}


def pad(rows: Sequence[Sequence[int] | np.ndarray], width: int) -> np.ndarray:
    """Ids as int32 `(rows, width)`, with 0 after each row."""
    token_ids = np.zeros((len(rows), width), "int32")
    for number, row in enumerate(rows):
        token_ids[number, : len(row)] = row
    return token_ids


# === Batches of similar length ===


def by_length(
    lengths: Sequence[int] | np.ndarray,
    batch_tokens: int = TOKENS_PER_BATCH,
    batch_size: int | None = None,
    group_size: int | np.ndarray = 1,
) -> Iterator[np.ndarray]:
    """The row numbers of batches of similar length, the longest batch first."""
    sizes = np.asarray(lengths)
    order, start = np.argsort(-sizes, kind="stable"), 0
    groups = np.broadcast_to(group_size, len(order))[order]
    while start < len(order):
        width = padded_width(max(1, int(sizes[order[start]])))
        size = max(1, batch_tokens // width)
        size = min(size, batch_size or size)
        # Numbers of tokens in a batch of the next row, of the next two rows, and so on.
        largest = np.maximum.accumulate(groups[start : start + size])
        tokens = np.arange(1, len(largest) + 1) * largest * width
        size = int(np.searchsorted(tokens, batch_tokens, side="right"))
        numbers = order[start : start + max(1, size)]
        yield numbers
        start += len(numbers)


def windows(items: Iterable, prepare: Callable, size: int = WINDOW) -> Iterator:
    """Yields `prepare` of each `size` items, in their order.

    While the caller works on one window, a thread prepares the next one. Fewer than
    `size` items in all are prepared in the caller's thread, which also reads all items.
    """
    items, waiting = iter(items), None
    with ThreadPoolExecutor(max_workers=1) as pool:
        while window := list(itertools.islice(items, size)):
            if waiting is None and len(window) < size:
                yield prepare(window)
                return
            prepared = pool.submit(prepare, window)
            if waiting is not None:
                yield waiting.result()
            waiting = prepared
        if waiting is not None:
            yield waiting.result()


def map_rows(
    texts: Iterable,
    make_rows: Callable,
    compute: Callable,
    collect: Callable,
    *,
    batch_tokens: int = TOKENS_PER_BATCH,
    batch_size: int | None = None,
    verbose: Verbose = "auto",
) -> Any:
    """Results of functions of texts, in batches of rows of similar length.

    While one window of texts is computed, the next one is tokenized.
    """

    check_integer("batch_tokens", batch_tokens, minimum=1)
    if batch_size is not None:
        check_integer("batch_size", batch_size, minimum=1)

    def each_window():
        total = len(texts) if isinstance(texts, Sized) else None
        with progress_bar(verbose, total=total, unit="text") as bar:
            for rows in windows(texts, make_rows):
                # A text of several rows counts once.
                is_first = np.diff(rows.owners, prepend=-1) > 0
                results_by_row = [None] * len(rows)
                for numbers in by_length(
                    rows.lengths, batch_tokens, batch_size, rows.group_size
                ):
                    results = compute(rows, numbers)
                    for number, result in zip(numbers, results, strict=True):
                        results_by_row[number] = result
                    bar.update(int(is_first[numbers].sum()))
                yield collect(results_by_row, rows)

    if isinstance(texts, Iterator):
        return (result for results in each_window() for result in results)
    all_results = list(each_window())
    if all_results and isinstance(all_results[0], np.ndarray):
        return np.concatenate(all_results)
    return [result for results in all_results for result in results]


# === Tokenized texts ===


class Rows:
    """Tokenized texts in one block of memory."""

    group_size = 1

    def __init__(self, tokenizer, texts: Iterable[tuple[str, ...]], max_length: int):
        rows, firsts = [], []
        for row in texts:
            token_ids, segment_ids = tokenizer.encode(*row, max_length=max_length)
            rows.append(np.array(token_ids, "int32"))
            firsts.append(len(segment_ids) - sum(segment_ids))
        self._keep(rows, firsts)
        self.owners = np.arange(len(rows))

    def _keep(self, rows, firsts):
        """Stores arrays of ids, and how many of each are of the first text."""
        self.lengths = np.array(list(map(len, rows)), "int64")
        self._ends = np.cumsum(self.lengths)
        self._firsts = np.array(firsts, "int64")
        self._token_ids = np.concatenate(rows) if rows else np.zeros(0, "int32")

    def __len__(self):
        return len(self.lengths)

    def ids(self, number: int) -> np.ndarray:
        """Token ids of one row: int32 `(lengths[number],)`."""
        end = self._ends[number]
        return self._token_ids[end - self.lengths[number] : end]

    def batch(self, numbers: Sequence[int] | np.ndarray) -> dict:
        """Some rows as inputs of a backbone."""
        lengths = self.lengths[numbers]
        width = padded_width(int(lengths.max()))
        token_ids = pad([self.ids(number) for number in numbers], width)
        columns = np.arange(width)
        segment_ids = (columns >= self._firsts[numbers][:, None]) & (
            columns < lengths[:, None]
        )
        return {"token_ids": token_ids, "segment_ids": segment_ids.astype("int32")}


class GroupRows:
    """Groups of texts; the rows of a group are adjacent in a batch."""

    group_size: Any

    def __init__(self, tokenizer, groups: Sequence[Sequence[tuple]], max_length: int):
        self.group_size = len(groups[0])
        rows = [row for group in groups for row in group]
        self._rows = Rows(tokenizer, rows, max_length)
        self.lengths = self._rows.lengths.reshape(-1, self.group_size).max(axis=1)
        self.owners = np.arange(len(groups))

    def __len__(self):
        return len(self.lengths)

    def batch(self, numbers: Sequence[int] | np.ndarray) -> dict:
        """The batch of these groups, with `group_size` rows for each."""
        first = np.asarray(numbers)[:, None] * self.group_size
        rows = first + np.arange(self.group_size)
        return self._rows.batch(rows.ravel())

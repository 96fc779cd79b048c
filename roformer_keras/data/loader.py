"""Batches that a thread makes during the training."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

# Maximal waiting batches: enough to bridge a slow one, few enough to save memory.
_DEPTH = 4

# Number of batches whose rows are sorted by length together, and the random shift of a
# row, as a share of its length and two tokens more: enough for little padding, and the
# rows of a small set still meet others in each epoch.
_WINDOW, _JITTER = 64, 0.05


def items_of(objective, rows: int) -> int:
    """Number of items in a batch of `rows` rows; at least one."""
    return max(1, rows // objective.rows_per_item)


def batch_maker(examples, objective, rows: int, seed: Sequence[int]) -> Callable:
    """A function from a batch's number to the batch, `(inputs, targets, weights)`."""
    count = items_of(objective, rows)

    def make(number):
        items = examples.batch(number, count)
        return objective.batch(items, np.random.default_rng([*seed, number]), number)

    return make


class Loader:
    """Makes batches in a thread."""

    def __init__(self, make: Callable, first: int = 0, tokens: int = 0):
        self.waited = 0.0
        self.error: BaseException | None = None
        self._make, self._first = make, first
        self._ready: queue.Queue = queue.Queue(_DEPTH)
        # Key: number of the next batch.
        self._tokens = {first: tokens}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple]:
        """Batches `(inputs, targets, weights)`, without end."""
        while True:
            start = time.perf_counter()
            batch = self._ready.get()
            self.waited += time.perf_counter() - start
            if isinstance(batch, BaseException):
                self.error = batch
                raise batch
            yield batch

    def tokens_before(self, number: int) -> int:
        """Tokens of all batches before this number."""
        for earlier in [key for key in list(self._tokens) if key < number]:
            del self._tokens[earlier]
        return self._tokens[number]

    def close(self) -> None:
        """Ends the thread."""
        self._ends.set()
        while self._thread.is_alive():
            # It may be waiting for room.
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)

    def _work(self):
        number = self._first
        try:
            while not self._ends.is_set():
                batch = self._make(number)
                # The tokens of a teacher do not count.
                count = int(np.count_nonzero(batch[0]["token_ids"]))
                self._tokens[number + 1] = self._tokens[number] + count
                self._ready.put(batch)
                number += 1
        except BaseException as error:
            self._ready.put(error)


def sorted_batches(
    lengths: np.ndarray, size: int, random: np.random.Generator
) -> list[np.ndarray]:
    """Batches of row numbers of similar length, each row once, in random order.

    The rows are shuffled. Then every 64 batches of them are sorted by length, with a
    random shift of a twentieth of it, and cut into batches; at last the batches are
    shuffled.
    """
    rows, batches = random.permutation(len(lengths)), []
    shifts = random.uniform(-1, 1, len(lengths)) * (2 + _JITTER * lengths)
    keys = lengths + shifts
    for start in range(0, len(rows), size * _WINDOW):
        window = rows[start : start + size * _WINDOW]
        window = window[np.argsort(keys[window], kind="stable")]
        batches += [window[n : n + size] for n in range(0, len(window), size)]
    return [batches[number] for number in random.permutation(len(batches))]

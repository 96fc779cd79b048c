"""Batches that are made while the last one is trained on."""

import queue
import threading
import time
from collections.abc import Iterator

import numpy as np

__all__ = ["Loader", "items_of"]

# Batches that wait: enough to bridge a slow record, few enough to keep small.
_DEPTH = 4
# Inputs that hold the tokens of a model in training; not those of its teacher.
_TOKEN_IDS = ("token_ids", "encoder_token_ids", "decoder_token_ids")


class Loader:
    """Makes batches in a thread, and knows where in the data each of them ends.

    Args:
        examples: `Examples`, which this takes items and states from.
        objective: `Objective`. Makes batches of items.
        rows: int. Rows of a batch.
        seed: sequence of ints. With the number of a batch it seeds what is drawn for
            it, so that a batch is the same whenever it is made.
        first: int. Number of the first batch.
        tokens: int. Tokens of the batches before it.

    Attributes:
        first_tokens: int. As given.
        waited: float. Seconds in which nothing was ready for who asked.
        error: Exception or None. Because of which there are no more batches; what
            asks for them may wrap it in one of its own.
    """

    def __init__(
        self, examples, objective, rows: int, seed, first: int = 0, tokens: int = 0
    ):
        self.waited = 0.0
        self.error = None
        self.first_tokens = tokens
        self._examples, self._objective = examples, objective
        self._items = items_of(objective, rows)
        self._seed, self._first = list(seed), first
        self._ready = queue.Queue(_DEPTH)
        self._states = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple]:
        """Batches `(inputs, targets, weights)`, for ever."""
        while True:
            start = time.perf_counter()
            batch = self._ready.get()
            self.waited += time.perf_counter() - start
            if isinstance(batch, BaseException):
                self.error = batch
                raise batch
            yield batch

    def state_after(self, number: int) -> dict:
        """Of the examples when the batch of this number had been made, and all tokens.

        States of earlier batches are forgotten.
        """
        state = self._states[number]
        # The thread adds to them at the same time.
        for earlier in [key for key in list(self._states) if key < number]:
            del self._states[earlier]
        return state

    def close(self) -> None:
        """Ends the thread, and the examples with it."""
        self._ends.set()
        while self._thread.is_alive():
            # It may wait for room.
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)
        self._examples.close()

    def _work(self):
        number, tokens = self._first, self.first_tokens
        try:
            while not self._ends.is_set():
                items = [next(self._examples) for _ in range(self._items)]
                generator = np.random.default_rng([*self._seed, number])
                by_length = self._objective.by_length
                more = {"number": number} if by_length else {}
                batch = self._objective.batch(items, generator, **more)
                tokens += _count(batch[0])
                self._states[number] = {
                    "examples": self._examples.state(),
                    "tokens": tokens,
                }
                self._ready.put(batch)
                number += 1
        except BaseException as error:
            self._ready.put(error)


def _count(inputs):
    """Tokens of a batch, of all that is trained on."""
    return sum(
        int(np.count_nonzero(inputs[name])) for name in _TOKEN_IDS if name in inputs
    )


def items_of(objective, rows: int) -> int:
    """How many items a batch of so many rows is made of; one at least."""
    return max(1, rows // objective.rows_per_item)

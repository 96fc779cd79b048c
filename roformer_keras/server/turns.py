"""Threads that compute with one model in turn."""

import collections
import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """Lets one thread at a time compute; the others wait in the order they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[threading.Event] = collections.deque()
        self._is_taken = False

    @contextlib.contextmanager
    def turn(self, is_first: bool = False) -> Iterator[None]:
        """Waits for the turn of this thread, and ends it."""
        self._begin(is_first)
        try:
            yield
        finally:
            self._end()

    def give_way(self) -> None:
        """Lets all that wait have their turn before this thread goes on."""
        self._end()
        self._begin(False)

    def _begin(self, is_first):
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            add = self._waiting.appendleft if is_first else self._waiting.append
            add(mine)
        mine.wait()

    def _end(self):
        with self._lock:
            if self._waiting:
                # It is passed on, so that nobody takes it in between.
                self._waiting.popleft().set()
            else:
                self._is_taken = False

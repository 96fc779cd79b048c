"""The way to the model: texts of several requests together, and texts as written.

A model computes one thing at a time, in one thread. Texts that arrive meanwhile are its
next batch. A text that is streamed takes a turn for each of its tokens.
"""

import asyncio
import collections
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from roformer_keras.server.errors import Refusal


@dataclasses.dataclass(eq=False)
class _Entry:
    """Items of one request, which wait for their answers."""

    key: Hashable
    items: Sequence
    answer: Callable[[list], Sequence]
    found: asyncio.Future
    arrived: float


class ModelQueue:
    """What waits for the model; made and used in one event loop.

    Args:
        size: int. Items that may wait or be computed; further ones are refused.
        max_batch: int. Items of a batch. Those of one request stay together.
        wait: float. Seconds for which an item waits for others.
        observe: function that is called with the size of each batch.
    """

    def __init__(
        self,
        size: int,
        max_batch: int,
        wait: float,
        observe: Callable[[int], Any] = lambda count: None,
    ):
        self._size, self._max_batch, self._wait = size, max_batch, wait
        self._observe = observe
        self._entries: collections.deque[_Entry] = collections.deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task = asyncio.create_task(self._work())
        # Seconds of an item, for the time after which to try again.
        self._pace = 0.0
        self.waiting = 0

    async def answer(
        self, items: Sequence, answer: Callable[[list], Sequence], key: Hashable
    ) -> list:
        """The answers to items, which are computed with others of the same key.

        Args:
            items: at least one.
            answer: function from a list of items to as many answers; runs in the thread
                of the model.
            key: what must be equal for items to be computed together.

        Raises:
            Refusal: too many wait. Whatever `answer` raises.
        """
        loop = asyncio.get_running_loop()
        with _Room(self, len(items)):
            entry = _Entry(key, items, answer, loop.create_future(), time.monotonic())
            self._entries.append(entry)
            self._arrived.set()
            # If the request is cancelled, so is the future, and nobody computes it.
            return await entry.found

    async def stream(self, start: Callable[[], Iterator]) -> AsyncIterator:
        """What an iterator gives, each piece in its turn.

        Args:
            start: makes the iterator; runs in the thread of the model, as it does.
        """
        end = object()
        with _Room(self, 1):
            pieces = await self._run(start)
            while (piece := await self._run(next, pieces, end)) is not end:
                yield piece

    async def close(self) -> None:
        """Ends the work; what waits is cancelled."""
        self._task.cancel()
        for entry in self._entries:
            entry.found.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def retry_after(self) -> int:
        """Seconds after which what waits now should be done, at least 1."""
        return max(1, min(60, round(self.waiting * self._pace)))

    def check_room(self, count: int) -> None:
        """Raises Refusal unless so many items more may wait."""
        if self.waiting + count > self._size:
            raise Refusal(
                503,
                f"the server is busy: {self.waiting} texts wait, and at most "
                f"{self._size} may; try again after the seconds in Retry-After",
                headers={"Retry-After": str(self.retry_after())},
            )

    async def _run(self, function, *arguments):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def _work(self):
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._entries:
                await self._gather()
                batch = self._take()
                if batch:
                    await self._compute(batch)

    async def _gather(self):
        """Waits for others, unless there are enough or the first has waited already."""
        if sum(len(entry.items) for entry in self._entries) < self._max_batch:
            left = self._entries[0].arrived + self._wait - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)

    def _take(self):
        """The next entries of one key that somebody still waits for."""
        batch: list[_Entry] = []
        others: collections.deque[_Entry] = collections.deque()
        count = 0
        for entry in self._entries:
            if entry.found.done():
                continue
            fits = count + len(entry.items) <= self._max_batch
            if not batch or (entry.key == batch[0].key and fits):
                batch.append(entry)
                count += len(entry.items)
            else:
                others.append(entry)
        self._entries = others
        return batch

    async def _compute(self, batch):
        items = [item for entry in batch for item in entry.items]
        self._observe(len(items))
        start = time.monotonic()
        try:
            answers = list(await self._run(batch[0].answer, items))
        except Exception as error:
            for entry in batch:
                if not entry.found.done():
                    entry.found.set_exception(error)
            return
        self._pace = (time.monotonic() - start) / len(items)
        for entry in batch:
            own, answers = answers[: len(entry.items)], answers[len(entry.items) :]
            if not entry.found.done():
                entry.found.set_result(own)


class _Room:
    """Counts items of a request as long as it lasts."""

    def __init__(self, queue, count):
        self._queue, self._count = queue, count

    def __enter__(self):
        self._queue.check_room(self._count)
        self._queue.waiting += self._count

    def __exit__(self, *error):
        self._queue.waiting -= self._count

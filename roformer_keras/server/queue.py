"""The way to the model: texts of several requests together, and texts as written.

A model computes one thing at a time, in one thread. Texts that arrive meanwhile are its
next batch. A text that is streamed takes a turn for each of its tokens. Each text is in
the queue for itself, so that a request of many texts leaves room for others between its
turns, and none is computed that nobody waits for any more. A batch that nobody waits
for any more is broken off between its steps, if it has any. If a batch of several
requests fails, each of them is computed alone.
"""

import asyncio
import collections
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from roformer_keras.server.errors import Refusal

# Texts that are streamed by turns; further ones wait. Each has its keys and values in
# memory until its end.
MAX_STREAMS = 16


class Kind(collections.namedtuple("Kind", "key answer rows", defaults=(1,))):
    """Work to do for a text.

    Attributes:
        key: what must be equal for texts to be computed together.
        answer: function from a list of texts to as many answers; runs in the thread of
            the model.
        rows: int. Rows that a text takes: as many texts may be written for it.
    """


class Abandoned(Exception):
    """Nobody waits any more for what is computed."""


@dataclasses.dataclass(eq=False)
class _Entry:
    """A text that waits for its answer."""

    kind: Kind
    text: Any
    tokens: int
    found: asyncio.Future
    arrived: float
    request: object


class ModelQueue:
    """Queue of requests for the model; made and used in one event loop.

    Args:
        size: int. Texts that may wait or be computed; further ones are refused.
        max_batch: int. Rows that are computed together.
        max_tokens: int. Tokens that are computed together, unless a text alone has
            more. Both bound the time for which others wait.
        wait: float. Seconds for which a text waits for others, if the last batch had
            texts of several requests.
        observe: function that is called with the number of texts of each batch.
    """

    def __init__(
        self,
        size: int,
        max_batch: int,
        max_tokens: int,
        wait: float,
        observe: Callable[[int], Any] = lambda count: None,
    ):
        self._size, self._max_batch, self._wait = size, max_batch, wait
        self._max_tokens, self._observe = max_tokens, observe
        self._entries: collections.deque[_Entry] = collections.deque()
        self._batch: list[_Entry] = []
        self._has_others = False
        self._arrived = asyncio.Event()
        self._streams = asyncio.Semaphore(MAX_STREAMS)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task = asyncio.create_task(self._work())
        # Seconds of a text, for the time after which to try again.
        self._pace = 0.0
        self.waiting = 0

    async def answer(
        self, texts: Sequence, kind: Kind, tokens: Sequence[int] = ()
    ) -> list:
        """The answers to texts, which are computed with others of the same kind.

        Args:
            texts: at least one.
            kind: `Kind`.
            tokens: how many each of them computes; 1 if none are given.

        Raises:
            Refusal: too many wait. Whatever the function of `kind` raises.
        """
        loop, arrived = asyncio.get_running_loop(), time.monotonic()
        request = object()
        with self._room(len(texts)):
            entries = [
                _Entry(kind, text, count, loop.create_future(), arrived, request)
                for text, count in zip(texts, tokens or [1] * len(texts), strict=True)
            ]
            self._entries += entries
            self._arrived.set()
            try:
                return [await entry.found for entry in entries]
            finally:
                # If one fails or the request is cancelled, nobody waits for the others.
                for entry in entries:
                    entry.found.cancel()

    async def stream(self, start: Callable[[], Iterator]) -> AsyncIterator:
        """Pieces of an iterator, each in its turn, of at most `MAX_STREAMS` streams.

        Args:
            start: makes the iterator; runs in the thread of the model, as it does.
        """
        end = object()
        with self._room(1):
            async with self._streams:
                pieces = await self._run(start)
                while (piece := await self._run(next, pieces, end)) is not end:
                    yield piece

    def check_wanted(self) -> None:
        """Raises Abandoned if nobody waits any more for the batch that is computed.

        For the function of a `Kind`, between its steps.
        """
        if all(entry.found.done() for entry in self._batch):
            raise Abandoned

    async def close(self) -> None:
        """Ends the work; what waits is cancelled."""
        self._task.cancel()
        for entry in (*self._entries, *self._batch):
            entry.found.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def retry_after(self) -> int:
        """Seconds after which what waits now should be done, at least 1."""
        return max(1, min(60, round(self.waiting * self._pace)))

    def check_room(self, count: int) -> None:
        """Raises Refusal unless so many texts more may wait."""
        if self.waiting + count > self._size:
            raise Refusal(
                503,
                f"the server is busy: {self.waiting} texts wait, and at most "
                f"{self._size} may; try again after the seconds in Retry-After",
                headers={"Retry-After": str(self.retry_after())},
            )

    @contextlib.contextmanager
    def _room(self, count):
        """Counts texts of a request as long as it lasts."""
        self.check_room(count)
        self.waiting += count
        try:
            yield
        finally:
            self.waiting -= count

    async def _run(self, function, *arguments):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def _work(self):
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._entries:
                await self._gather()
                await self._compute(self._take())

    async def _gather(self):
        """Waits for others, unless there are enough or the first has waited already.

        A client that is alone need not wait. When there are others, they arrive while a
        text is computed, and are a batch of several requests.
        """
        if self._has_others and len(self._entries) < self._max_batch:
            left = self._entries[0].arrived + self._wait - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)

    def _take(self):
        """The next texts of one kind that somebody still waits for."""
        batch: list[_Entry] = []
        others: collections.deque[_Entry] = collections.deque()
        rows = tokens = 0
        for entry in self._entries:
            if entry.found.done():
                continue
            kind = entry.kind
            fits = (
                rows + kind.rows <= self._max_batch
                and tokens + entry.tokens <= self._max_tokens
            )
            if not batch or (kind.key == batch[0].kind.key and fits):
                batch.append(entry)
                rows, tokens = rows + kind.rows, tokens + entry.tokens
            else:
                others.append(entry)
        self._entries = others
        return batch

    async def _compute(self, batch):
        if not batch:
            return
        self._observe(len(batch))
        self._batch = batch
        self._has_others = batch[0].request is not batch[-1].request
        start = time.monotonic()
        try:
            for entry, answer in await self._run(_answered, batch):
                if not entry.found.done():
                    entry.found.set_result(answer)
            self._pace = (time.monotonic() - start) / len(batch)
        except Exception as error:
            if self._has_others:
                # What one client sends must not fail others: next, each is alone.
                for entry in batch:
                    entry.kind = entry.kind._replace(key=entry.request)
                self._entries.extendleft(reversed(batch))
                return
            for entry in batch:
                if not entry.found.done():
                    entry.found.set_exception(error)
        finally:
            self._batch = []


def _answered(batch):
    """Each text of a batch with its answer; runs in the thread of the model."""
    try:
        answers = batch[0].kind.answer([entry.text for entry in batch])
        return list(zip(batch, answers, strict=True))
    except StopIteration as error:
        # No future takes this one.
        raise RuntimeError("a model's function raised StopIteration") from error

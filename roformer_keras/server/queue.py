"""The way to the model: texts of several requests together, and texts as written.

A model computes one thing at a time. Texts that arrive meanwhile are its next batch:
one of each request, and then the next of each, so that many texts of a request leave
room for others. A short request is not computed together with texts of a long one, and
while there are such, the long one has less in a batch. What takes long is done in
steps, in a separate thread which gives way to others after each: a batch of texts that
are written, and each token of a text that is streamed. Batches of texts that are only
read come between those steps.

No text is computed that nobody waits for any more, and a batch that is written ends at
its next step. If a batch of several requests fails, each of them is computed alone.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, NamedTuple

from roformer_keras.server.errors import Refusal

# Texts that are streamed by turns; further ones wait. Each has its keys and values in
# memory until its end.
MAX_STREAMS = 16
# Batches that are written by turns, and those among them of long texts: what is short
# need not wait until those have ended.
MAX_WRITERS, MAX_LONG_WRITERS = 4, 2
# New tokens for one text of a batch, of which it is long.
LONG = 512
# While short requests come, and for so many seconds after, a batch of the texts of
# long ones has one of so many parts of the tokens that it could have.
FEW_FOR, FEW = 1.0, 8


class Kind(NamedTuple):
    """Work to do for a text.

    Attributes:
        key: texts of equal keys are computed together.
        answer: function from texts to their answers; if tokens are written, also from a
            function to call between the steps.
        rows: that a text takes of a batch.
        written: new tokens for a text.
        is_apart: bool. True if texts of different requests are not computed together.
    """

    key: Any
    answer: Callable[..., Sequence]
    rows: int = 1
    written: int = 0
    is_apart: bool = False


class Abandoned(Exception):
    """Nobody waits any more for what is computed."""


class _Request:
    """A client's texts; `is_long` once one batch did not end them."""

    is_long = False


@dataclasses.dataclass(eq=False)
class _Entry:
    """A text that waits for its answer."""

    kind: Kind
    text: Any
    tokens: int
    found: asyncio.Future
    arrived: float
    request: _Request


class ModelQueue:
    """Queue of requests for the model; made and used in one event loop."""

    def __init__(
        self,
        size: int,
        max_batch: int,
        max_tokens: int,
        wait: float,
        observe: Callable[[int], Any] = lambda count: None,
        observe_step: Callable[[], Any] = lambda: None,
    ):
        self._size, self._max_batch, self._wait = size, max_batch, wait
        self._max_tokens = max_tokens
        self._observe, self._observe_step = observe, observe_step
        self._entries: collections.deque[_Entry] = collections.deque()
        self._batches: list[list[_Entry]] = []
        self._has_others = False
        # Whether the last batch was of short requests, next to which long ones waited,
        # and when there was the last of these.
        self._is_short, self._short_came = False, -math.inf
        self._arrived = asyncio.Event()
        self._streams = asyncio.Semaphore(MAX_STREAMS)
        self._turns = Turns()
        self._readers, self._streamers, self._writers = self._threads = [
            ThreadPoolExecutor(count, thread_name_prefix=name)
            for name, count in (("read", 1), ("stream", 1), ("write", MAX_WRITERS))
        ]
        self._tasks = {asyncio.create_task(self._work())}
        # Seconds of a text, for the time after which to try again.
        self._pace = 0.0
        self.waiting = 0

    async def answer(
        self, texts: Sequence, kind: Kind, tokens: Sequence[int] = ()
    ) -> list:
        """The answers to texts, which are computed with others of the same kind."""
        loop, arrived = asyncio.get_running_loop(), time.monotonic()
        request = _Request()
        if kind.is_apart:
            kind = kind._replace(key=request)
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
        """Pieces of an iterator, each in its turn, of at most `MAX_STREAMS` streams."""
        end, run = object(), functools.partial(self._run, self._streamers)
        with self._room(1):
            async with self._streams:
                pieces = await run(start)
                while (piece := await run(next, pieces, end)) is not end:
                    yield piece

    async def close(self) -> None:
        """Ends the work; what waits is cancelled."""
        for task in self._tasks:
            task.cancel()
        for entry in itertools.chain(self._entries, *self._batches):
            entry.found.cancel()
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)

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

    async def _run(self, threads, function, *arguments):
        """Runs a function in its turn; what only reads comes before all others."""

        def run():
            with self._turns.turn(is_first=threads is self._readers):
                return function(*arguments)

        return await asyncio.get_running_loop().run_in_executor(threads, run)

    async def _work(self):
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self._gather()
            while batch := self._take():
                self._batches.append(batch)
                if batch[0].kind.written:
                    task = asyncio.create_task(self._compute(batch, self._writers))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    await self._compute(batch, self._readers)
                await self._gather()

    async def _gather(self):
        """Waits for others, unless there are enough or the first has waited already.

        A client that is alone need not wait. When there are others, they arrive while a
        text is computed, and are a batch of several requests.
        """
        if self._has_others and 0 < len(self._entries) < self._max_batch:
            left = self._entries[0].arrived + self._wait - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)

    def _take(self):
        """The next texts of one kind that somebody still waits for; none if none may.

        They are one of each request, in the order in which requests came, then the next
        of each.
        """
        numbers: collections.Counter = collections.Counter()
        entries = []
        for entry in self._entries:
            if not entry.found.done():
                entries.append((numbers[entry.request], entry))
                numbers[entry.request] += 1
        in_turn = [entry for _, entry in sorted(entries, key=itemgetter(0))]
        batch = self._first_of(in_turn, self._max_tokens)
        if batch and not batch[0].kind.written:
            batch = self._apart(batch, in_turn, numbers)
        taken = set(map(id, batch))
        self._entries = collections.deque(
            entry for _, entry in entries if id(entry) not in taken
        )
        return batch

    def _first_of(self, entries, max_tokens):
        """The first texts of one kind, up to the number that is computed together."""
        batch: list[_Entry] = []
        rows = tokens = 0
        for entry in entries:
            kind = entry.kind
            if batch:
                fits = (
                    kind.key == batch[0].kind.key
                    and rows + kind.rows <= self._max_batch
                    and tokens + entry.tokens <= max_tokens
                )
            else:
                fits = self._may_begin(kind)
            if fits:
                batch.append(entry)
                rows, tokens = rows + kind.rows, tokens + entry.tokens
        return batch

    def _apart(self, batch, entries, numbers):
        """The short requests of a batch, alternating with the long ones.

        A short request is not computed together with the many texts of another, and
        waits for few of them: while short ones come, there are fewer in a batch.
        """
        for request, count in collections.Counter(one.request for one in batch).items():
            request.is_long |= count < numbers[request]
        short = [entry for entry in batch if not entry.request.is_long]
        if len(short) == len(batch):
            return batch
        if short:
            self._short_came = time.monotonic()
        self._is_short = bool(short) and not self._is_short
        if self._is_short:
            return short
        if time.monotonic() > self._short_came + FEW_FOR:
            return batch
        others = [entry for entry in entries if entry.request.is_long]
        return self._first_of(others, self._max_tokens // FEW)

    def _may_begin(self, kind):
        """True unless texts of a kind wait until others have been written.

        Those of the same kind do, because they are written faster together.
        """
        if not kind.written:
            return True
        others = [batch[0].kind for batch in self._batches if batch[0].kind.written]
        long_ones = sum(other.written > LONG for other in others)
        return (
            len(others) < MAX_WRITERS
            and all(other.key != kind.key for other in others)
            and (kind.written <= LONG or long_ones < MAX_LONG_WRITERS)
        )

    async def _compute(self, batch, threads):
        self._observe(len(batch))
        has_others = any(entry.request is not batch[0].request for entry in batch)
        self._has_others = has_others
        steps = [functools.partial(self._step, batch)] if batch[0].kind.written else []
        start = time.monotonic()
        try:
            for entry, answer in await self._run(threads, _answered, batch, *steps):
                if not entry.found.done():
                    entry.found.set_result(answer)
            self._pace = (time.monotonic() - start) / len(batch)
        except Exception as error:
            if has_others:
                # What one client sends must not fail others: next, each is alone.
                for entry in batch:
                    entry.kind = entry.kind._replace(key=entry.request)
                self._entries.extendleft(reversed(batch))
                return
            for entry in batch:
                if not entry.found.done():
                    entry.found.set_exception(error)
        finally:
            self._batches.remove(batch)
            self._arrived.set()

    def _step(self, batch):
        """Between the steps of a batch, in its thread: lets others have their turn.

        Raises Abandoned if nobody waits any more for the batch.
        """
        self._observe_step()
        self._turns.give_way()
        if all(entry.found.done() for entry in batch):
            raise Abandoned


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


def _answered(batch, *steps):
    """Each text of a batch with its answer; runs in a thread that computes."""
    try:
        answers = batch[0].kind.answer([entry.text for entry in batch], *steps)
        return list(zip(batch, answers, strict=True))
    except StopIteration as error:
        # No future takes this one.
        raise RuntimeError("a model's function raised StopIteration") from error

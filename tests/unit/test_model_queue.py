"""The queue before a model: what is computed together, refused and left out."""

import asyncio
import threading

import pytest

from roformer_keras.server.errors import Refusal
from roformer_keras.server.queue import (
    LONG,
    MAX_STREAMS,
    MAX_WRITERS,
    Abandoned,
    Kind,
    ModelQueue,
)

SIZES = {"size": 10, "max_batch": 4, "max_tokens": 100, "wait": 0.02}


def run(test, **options):
    """Runs a test with a queue, in an event loop."""

    async def main():
        queue = ModelQueue(**{**SIZES, **options})
        try:
            async with asyncio.timeout(10):
                return await test(queue)
        finally:
            await queue.close()

    return asyncio.run(main())


def same(items):
    return items


SAME = Kind("same", same)


class Reader:
    """Notes the batches that it reads; the first lasts until it may go on."""

    def __init__(self, key="read"):
        self.batches, self.go_on = [], threading.Event()
        self.kind = Kind(key, self.read)

    def read(self, items):
        self.batches.append(items)
        assert self.go_on.wait(5)
        return items


async def waiting(queue, *works):
    """Tasks of answers, which all wait in the queue."""
    tasks = [asyncio.create_task(queue.answer(*work)) for work in works]
    await asyncio.sleep(0.05)
    return tasks


def test_texts_of_several_requests_are_computed_together():
    sizes = []

    def upper(items):
        return [item.upper() for item in items]

    async def test(queue):
        return await asyncio.gather(
            queue.answer(["a", "b"], Kind("upper", upper)),
            queue.answer(["c"], Kind("upper", upper)),
            queue.answer(["d"], SAME),
            queue.answer(["e", "f"], Kind("upper", upper)),
        )

    answered = run(test, observe=sizes.append)
    assert answered == [["A", "B"], ["C"], ["d"], ["E", "F"]]
    # Four would fit; one of these has another text, and waits for it.
    assert sizes == [3, 1, 2]


def test_texts_that_are_apart_are_computed_with_those_of_their_request():
    sizes = []

    async def test(queue):
        kind = Kind("same", same, is_apart=True)
        works = [["a", "b"], ["c"], ["d"]]
        return await asyncio.gather(*(queue.answer(texts, kind) for texts in works))

    assert run(test, observe=sizes.append) == [["a", "b"], ["c"], ["d"]]
    assert sizes == [2, 1, 1]


def test_texts_wait_for_others_if_there_were_others():
    async def test(queue):
        for texts in ([1], [2, 3]):
            assert await queue.answer(texts, SAME) == texts
        await asyncio.gather(*(queue.answer([text], SAME) for text in (4, 5)))
        (last,) = await waiting(queue, ([6], SAME))
        assert not last.done()

    run(test, wait=60)


def test_rows_and_tokens_bound_a_batch():
    sizes = []

    async def test(queue):
        await queue.answer([1] * 5, Kind("rows", same, rows=2))
        await queue.answer([1] * 5, SAME, [30, 30, 30, 30, 900])

    run(test, observe=sizes.append)
    assert sizes == [2, 2, 1, 3, 1, 1]


def test_a_short_request_waits_for_few_of_many_texts():
    reader = Reader()

    async def test(queue):
        tasks = await waiting(queue, (["m"] * 12, reader.kind, [20] * 12))
        tasks += await waiting(queue, *((text, reader.kind, [20]) for text in "ab"))
        reader.go_on.set()
        await tasks[1]
        await queue.answer(["c"], reader.kind, [20])
        await asyncio.gather(*tasks)

    run(test, max_batch=8, size=20)
    # Five have 100 tokens; one or less has an eighth of them, and those that come
    # alone have their turn after each.
    assert reader.batches[:2] == [["m"] * 5, ["a", "b"]]
    assert reader.batches[2:] in (
        [["m"], ["c"], *[["m"]] * 6],
        [["c"], ["m"], *[["m"]] * 6],
        [["m"], ["m"], ["c"], *[["m"]] * 5],
    ), reader.batches


def test_many_texts_of_a_request_leave_room_for_others():
    reader, works = Reader(), [[0], list(range(1, 7)), [8], [9]]

    async def test(queue):
        tasks = await waiting(queue, *((texts, reader.kind) for texts in works))
        reader.go_on.set()
        assert await asyncio.gather(*tasks) == works

    run(test, wait=0)
    # Those that are alone do not wait for the many.
    assert reader.batches == [[0, 8, 9], [1, 2, 3, 4], [5, 6]]


def test_nobody_computes_for_a_request_that_was_cancelled():
    first, second = Reader("first"), Reader("second")
    second.go_on.set()

    async def test(queue):
        works = ([1], first.kind), ([2, 3], second.kind), ([4], second.kind)
        blocked, gone, stays = await waiting(queue, *works)
        assert queue.waiting == 4
        gone.cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 2
        first.go_on.set()
        assert (await blocked, await stays, queue.waiting) == ([1], [4], 0)

    run(test)
    assert second.batches == [[4]]


@pytest.mark.parametrize("leaving", [1, 2])
def test_a_batch_is_broken_off_when_all_its_requests_are_cancelled(leaving):
    steps, left = [], threading.Event()

    async def test(queue):
        kind = Kind("write", writer(steps, 3, left), written=3)
        tasks = await waiting(queue, (["a"], kind), (["b"], kind))
        for task in tasks[:leaving]:
            task.cancel()
        await asyncio.sleep(0)
        left.set()
        assert await queue.answer([3], SAME) == [3]
        if leaving == 1:
            assert await tasks[1] == ["b"]

    run(test)
    assert "".join(steps) == ("ababab" if leaving == 1 else "ab")


def test_a_full_queue_refuses_and_says_when_to_try_again():
    reader = Reader()

    async def test(queue):
        (first,) = await waiting(queue, ([1] * 8, reader.kind))
        with pytest.raises(Refusal, match="8 texts wait, and at most 10 may") as caught:
            await queue.answer([1] * 3, SAME)
        assert caught.value.status == 503
        assert int(caught.value.headers["Retry-After"]) >= 1
        reader.go_on.set()
        assert await first == [1] * 8
        assert await queue.answer([1] * 3, SAME) == [1] * 3

    run(test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda items: 1 / 0, ZeroDivisionError),
        (lambda items: items[:1], ValueError),
        # No future takes this one.
        (lambda items: next(iter(())), RuntimeError),
    ],
)
def test_an_error_reaches_its_requests_and_the_queue_goes_on(answer, error):
    async def test(queue):
        kind, works = Kind("fail", answer), ([1, 2], [3, 4, 5])
        answers = (queue.answer(texts, kind) for texts in works)
        errors = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(one) for one in errors] == [error] * 2
        assert await queue.answer([3], SAME) == [3]
        assert queue.waiting == 0

    run(test)


def test_a_text_that_fails_does_not_fail_other_requests():
    sizes = []

    def invert(items):
        return [1 / item for item in items]

    async def test(queue):
        return await asyncio.gather(
            *(queue.answer(texts, Kind("a", invert)) for texts in ([1, 2], [0], [4])),
            return_exceptions=True,
        )

    first, failed, last = run(test, observe=sizes.append)
    assert (first, last) == ([1, 0.5], [0.25])
    assert isinstance(failed, ZeroDivisionError)
    assert sizes == [4, 2, 1, 1]


def test_nobody_waits_for_a_queue_that_is_closed():
    begun, closed, broken_off = (threading.Event() for _ in range(3))

    async def test(queue):
        def write(items, on_step):
            begun.set()
            closed.wait(5)
            try:
                on_step()
            except Abandoned:
                broken_off.set()
                raise

        (computed,) = await waiting(queue, ([1], Kind("write", write, written=1)))
        await asyncio.to_thread(begun.wait, 5)
        await queue.close()
        with pytest.raises(asyncio.CancelledError):
            await computed
        closed.set()
        assert await asyncio.to_thread(broken_off.wait, 5)

    run(test)


def test_streams_take_turns_with_others():
    order = []

    def count():
        for number in range(3):
            order.append(number)
            yield number

    async def test(queue):
        async def read():
            return [piece async for piece in queue.stream(count)]

        stream = asyncio.create_task(read())
        await queue.answer(["text"], Kind("a", lambda x: order.append("text") or x))
        assert await stream == [0, 1, 2]
        assert queue.waiting == 0

    run(test, wait=0)
    assert order.index("text") < order.index(2)


def test_streams_beyond_the_most_wait_without_memory():
    started = []

    async def test(queue):
        def start():
            started.append(1)
            return iter(range(2))

        streams = [queue.stream(start) for _ in range(MAX_STREAMS)]
        assert [await anext(stream) for stream in streams] == [0] * MAX_STREAMS
        late = asyncio.create_task(anext(queue.stream(start)))
        await asyncio.sleep(0.05)
        assert (len(started), queue.waiting) == (MAX_STREAMS, MAX_STREAMS + 1)
        # A client has gone.
        await streams[0].aclose()
        assert await late == 0

    run(test, size=2 * MAX_STREAMS)


def writer(order, steps=3, until=None):
    """An answer that notes its steps; the first lasts until an event is set."""

    def write(items, on_step):
        for _ in range(steps):
            order.extend(items)
            if until is not None:
                until.wait(5)
            on_step()
        return items

    return write


def test_what_is_written_gives_way_to_others_after_each_step():
    order, arrived = [], threading.Event()

    async def test(queue):
        kinds = [Kind(name, writer(order, 3, arrived), written=9) for name in "ab"]
        tasks = await waiting(queue, (["a"], kinds[0]), (["b"], kinds[1]))
        # The first step is under way: reading comes at its end, writing in turn.
        tasks += await waiting(
            queue, (["1"], Kind("read", lambda x: order.extend(x) or x))
        )
        arrived.set()
        await asyncio.gather(*tasks)

    run(test, wait=0)
    assert "".join(order) == "a1babab"


def test_short_texts_pass_by_long_ones_and_wait_for_their_like():
    order, arrived = [], threading.Event()

    def kind(name, written):
        return Kind(name, writer(order, 2, arrived), written=written)

    async def test(queue):
        long_ones = [([name], kind(name, LONG + 1)) for name in "abc"]
        short_ones = [([name], kind("same", LONG)) for name in "de"]
        tasks = await waiting(queue, *long_ones, short_ones[0])
        tasks += await waiting(queue, short_ones[1])
        arrived.set()
        await asyncio.gather(*tasks)

    run(test, wait=0)
    text = "".join(order)
    assert sorted(text) == sorted("aabbccddee")
    # The third long one, and the second of a kind, begin when another has ended.
    assert text.index("c") > text.rindex("a") and text.index("e") > text.rindex("d")
    assert text.index("d") < text.rindex("b")


def test_only_a_few_are_written_at_a_time():
    begun, ended = [], threading.Event()

    def write(items, on_step):
        begun.extend(items)
        while not ended.is_set():
            on_step()
        return items

    async def test(queue):
        works = [([name], Kind(name, write, written=1)) for name in range(6)]
        tasks = await waiting(queue, *works)
        while len(begun) < MAX_WRITERS:
            await asyncio.sleep(0.01)
        # No other begins meanwhile.
        await asyncio.sleep(0.05)
        assert len(begun) == MAX_WRITERS
        ended.set()
        await asyncio.gather(*tasks)

    run(test, wait=0)
    assert begun == list(range(6))

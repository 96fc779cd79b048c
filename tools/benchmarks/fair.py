"""Times of short requests next to a long one: a part of `serve`.

One client sends short requests, each when it has the last answer. In every second turn
another client sends long requests all the while.
"""

import contextlib
import http.client
import json
import socket
import statistics
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tools.benchmarks.harness import Run, Side, take_turns

SIM, GPT = "roformer-sim-char", "roformer-gpt-char"
TEXT = "学而时习之，不亦说乎？"


class Request(NamedTuple):
    """A request, and its name in the table."""

    title: str
    path: str
    body: Mapping[str, Any]


EMBED = Request("`/v1/embeddings`, 1 text", "/v1/embeddings", {"input": TEXT})
WRITE = Request(
    "`/v1/completions`, 8 tokens",
    "/v1/completions",
    {"prompt": "床前", "max_tokens": 8},
)
SIMILAR = Request(
    "`/paraphrase`, 2 texts of 8 tokens",
    "/paraphrase",
    {"texts": [TEXT], "n": 2, "k": 1, "max_tokens": 8},
)
SIMILAR_1000 = Request(
    "`/paraphrase`, n=1000",
    "/paraphrase",
    {"texts": [TEXT], "n": 1000, "k": 10, "max_tokens": 64},
)
WRITE_128 = Request(
    "`/v1/completions`, n=128",
    "/v1/completions",
    {"prompt": "床前", "max_tokens": 512, "n": 128},
)
EMBED_256 = Request(
    "`/v1/embeddings`, 256 texts", "/v1/embeddings", {"input": [TEXT * 4] * 256}
)
# Source, short request and long request.
CASES = (
    (SIM, EMBED, SIMILAR_1000),
    (SIM, SIMILAR, SIMILAR_1000),
    (GPT, WRITE, WRITE_128),
    (SIM, EMBED, EMBED_256),
)


def measure(benchmark, running):
    """The figures of each case.

    Args:
        running: context manager of a server of a source, with its process and port.
    """
    figures = {}
    for source in (SIM, GPT):
        with running(source, benchmark.options) as (_, port):
            for model, short, long in CASES:
                if model != source:
                    continue
                runs = {
                    name: Run("asker", "ask", (port, short, other))
                    for name, other in (("alone", None), ("next to it", long))
                }
                title = f"{short.title}; {long.title}"
                figures[title] = take_turns(benchmark, runs, title)
    return figures


class Asker(Side):
    """Clients of a short request, and of a long one."""

    def ask(self, port, short, long):
        """Milliseconds of short requests, next to long ones if there are any."""
        times, is_over = [], threading.Event()
        asking, other = client(port), client(port)
        end = time.perf_counter() + self.seconds

        def go_on():
            # It is left in the middle at the end.
            with contextlib.suppress(OSError, http.client.HTTPException):
                while long and not is_over.is_set():
                    seconds_of(other, long)

        thread = threading.Thread(target=go_on)
        thread.start()
        # The long request has begun.
        time.sleep(0.2)
        while time.perf_counter() < end:
            times.append(1000 * seconds_of(asking, short))
        is_over.set()
        if other.sock is not None:
            other.sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        asking.close()
        other.close()
        times.sort()
        return {
            "p50": statistics.median(times),
            "p99": times[int(len(times) * 0.99)],
            "count": len(times),
        }


def client(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=300)


def seconds_of(connection, request):
    """Seconds of a request, which must succeed."""
    _, path, body = request
    start = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, content[:300]
    return time.perf_counter() - start

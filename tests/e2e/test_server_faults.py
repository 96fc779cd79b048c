"""Servers that are killed under load: clients that retry lose nothing."""

import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from server_process import PATIENCE, Server

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]
CLIENTS = 64


def ask_again(url, body, sent, failures):
    """The answer of `/paraphrase`, which is asked until there is one."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        sent.release()
        try:
            answer = httpx.post(f"{url}/paraphrase", json=body, timeout=PATIENCE)
        except httpx.TransportError as error:
            failures.append(type(error).__name__)
        else:
            if answer.status_code == 200:
                return answer.json()
            # A server that is not there is no reason for another answer.
            assert answer.status_code in (429, 500, 502, 503, 504), answer.text
            failures.append(answer.status_code)
        time.sleep(0.2)
    raise AssertionError(f"no answer to {body}")


def test_a_server_that_is_killed_with_64_requests_under_way(export):
    """It is started again, at the same port."""
    options = {"n": 20, "k": 20, "max_tokens": 64, "seed": 1}
    bodies = [{"texts": [f"今天天气{n}"], **options} for n in range(CLIENTS)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    flags = ("--port", port, "--timeout", str(PATIENCE), "--queue-size", "1000")
    sent, failures = threading.Semaphore(0), []
    with ThreadPoolExecutor(CLIENTS) as pool:
        with Server(export, *flags) as first:
            asking = [
                pool.submit(ask_again, first.url, body, sent, failures)
                for body in bodies
            ]
            for _ in range(CLIENTS):
                sent.acquire()
            time.sleep(0.3)
            before = sum(client.done() for client in asking)
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
        assert before < CLIENTS
        with Server(export, *flags) as second:
            answers = [client.result(PATIENCE) for client in asking]
            # None was lost, and none has the answer of another.
            for answer, body in zip(answers, bodies, strict=True):
                assert answer == second.post("/paraphrase", body).json(), body
    assert len(failures) >= CLIENTS - before

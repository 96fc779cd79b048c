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


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


class Clients:
    """Clients that ask again until they have an answer, each in its own thread.

    Attributes:
        answers: dict of a client's number to its answers, in the order of its bodies.
        failures: statuses of answers and names of errors after which one has retried.
    """

    def __init__(self, url, bodies):
        self._url, self._bodies = url, bodies
        self.answers: dict[int, list] = {number: [] for number in range(len(bodies))}
        self.failures: list = []
        self.sent = threading.Semaphore(0)

    def run(self, number):
        for path, body in self._bodies[number]:
            self.answers[number].append(self._ask(path, body))

    def _ask(self, path, body):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.sent.release()
            try:
                answer = httpx.post(self._url + path, json=body, timeout=PATIENCE)
            except httpx.TransportError as error:
                self.failures.append(type(error).__name__)
            else:
                if answer.status_code == 200:
                    return answer.json()
                # A server that is not there is no reason for another answer.
                assert answer.status_code in (429, 500, 502, 503, 504), answer.text
                self.failures.append(answer.status_code)
            time.sleep(0.2)
        raise AssertionError(f"no answer to {body}")


def test_a_server_that_is_killed_with_64_requests_under_way(export, port):
    """It is started again, at the same port."""
    paraphrase = {"n": 20, "k": 20, "max_tokens": 64, "seed": 1}
    bodies = [
        [("/paraphrase", {"texts": [f"今天天气{n}"], **paraphrase})]
        for n in range(CLIENTS)
    ]
    flags = ("--port", port, "--timeout", str(PATIENCE), "--queue-size", "1000")
    with ThreadPoolExecutor(CLIENTS) as pool:
        with Server(export, *flags) as first:
            clients = Clients(first.url, bodies)
            waiting = [pool.submit(clients.run, number) for number in range(CLIENTS)]
            for _ in range(CLIENTS):
                clients.sent.acquire()
            time.sleep(0.3)
            before = sum(map(len, clients.answers.values()))
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
        assert before < CLIENTS
        with Server(export, *flags) as second:
            for client in waiting:
                client.result(PATIENCE)
            # None was lost, and none has the answer of another.
            for number, ((path, body),) in enumerate(bodies):
                expected = second.post(path, body).json()
                assert clients.answers[number] == [expected], body
    assert len(clients.failures) >= CLIENTS - before

"""The limits in front of a server's application; nothing is loaded."""

import asyncio
import contextlib
import socket
import threading
import time
from unittest.mock import Mock

import pytest
import uvicorn
from common import run_main
from uvicorn.server import ServerState

from roformer_keras.server import protection
from roformer_keras.server.options import ServerOptions
from roformer_keras.server.protection import (
    Guard,
    host_names,
    make_protocol,
    warn_without_key,
)

BODY = b"x" * 3_000_000


async def answer_long(scope, receive, send):
    length = str(len(BODY)).encode()
    headers = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


@contextlib.contextmanager
def serving(app, options):
    """The address of a server in a thread."""
    with socket.socket() as listening:
        # The system would keep all of an answer.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        protocol = make_protocol(options)
        config = uvicorn.Config(
            Guard(app, options), http=protocol, lifespan="off", log_level="critical"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


@pytest.mark.parametrize("stops", [False, True])
def test_a_client_may_read_slowly_but_not_stop(stops):
    options = ServerOptions(read_timeout=0.7)
    with serving(answer_long, options) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50_000)
        client.connect(address)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2.1 * stops)
        received = 0
        with contextlib.suppress(ConnectionError):
            while received < len(BODY) and (part := client.recv(40_000)):
                received += len(part)
                time.sleep(0.015)
    assert (received >= len(BODY)) == (not stops)


def test_head_and_body_of_an_answer_are_one_packet():
    sent = []

    async def answer(scope, receive, send):
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    class Transport(asyncio.Transport):
        write = staticmethod(sent.append)
        close = staticmethod(lambda: None)
        get_write_buffer_size = staticmethod(lambda: 0)
        is_closing = staticmethod(lambda: False)

    async def ask():
        config = uvicorn.Config(answer, log_level="critical", lifespan="off")
        config.load()
        protocol = make_protocol(ServerOptions())(config, ServerState(), {})
        protocol.connection_made(Transport())
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.01)
        protocol.connection_lost(None)

    asyncio.run(ask())
    (packet,) = sent
    assert packet.startswith(b"HTTP/1.1 200") and packet.endswith(b"\r\n\r\nok")


def test_nothing_is_sent_to_a_client_that_has_gone():
    """uvloop raises where asyncio is silent, in a callback that nobody awaits."""
    transport, errors = Mock(), []

    async def ask():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: errors.append(context))
        joined = protection._JoinedWrites(transport, loop)
        for is_gone in (False, True):
            transport.is_closing.return_value = is_gone
            joined.write(b"part")
            await asyncio.sleep(0.01)

    asyncio.run(ask())
    transport.write.assert_called_once_with(b"part")
    assert errors == []


def test_a_server_that_others_reach_without_a_key_is_warned_of():
    for address, key, is_warned in (
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("0.0.0.0", None, True),
        ("192.0.2.1", None, True),
        ("0.0.0.0", "secret", False),
    ):
        remarks = []
        warn_without_key("a.example", address, key, remarks.append)
        assert len(remarks) == is_warned
        assert all("anyone who reaches a.example" in text for text in remarks)


@pytest.mark.parametrize(
    ("host", "address", "allowed", "taken", "refused"),
    [
        ("127.0.0.1", "127.0.0.1", (), ["localhost:80", "[::1]:80"], ["127.0.0.2"]),
        ("box", "127.0.1.1", (), ["BOX", "127.0.1.1:8000", "127.0.0.1"], ["a.box"]),
        ("::1", "::1", ["a.example"], ["A.example", "[::1]"], ["b.example", "[::1"]),
        ("0.0.0.0", "0.0.0.0", ["a.example"], ["a.example:80"], ["b.example"]),
        ("0.0.0.0", "0.0.0.0", (), ["b.example", ""], []),
    ],
)
def test_names_by_which_a_server_is_called(host, address, allowed, taken, refused):
    names = host_names(host, address, allowed)
    assert [status_of(names, name) for name in taken] == [200] * len(taken)
    assert [status_of(names, name) for name in refused] == [421] * len(refused)


@pytest.mark.parametrize("flags", [["--api-key", ""], []])
def test_an_empty_key_opens_no_server(flags, monkeypatch, capsys):
    monkeypatch.setenv("ROFORMER_KERAS_API_KEY", "")
    code, _, error = run_main("serve", *flags, capsys=capsys)
    assert code == 2
    assert "ROFORMER_KERAS_API_KEY must not be empty" in error


def test_more_texts_than_any_request_may_have_are_refused(capsys):
    code, _, error = run_main("serve", "--max-texts", "2049", capsys=capsys)
    assert code == 2
    assert "must be an integer from 1 to 2048, got 2049" in error


def test_keys_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(*texts):
        compared.append(texts)
        return texts[0] == texts[1]

    monkeypatch.setattr(protection.secrets, "compare_digest", compare)
    keys = (b"Bearer right", b"Bearer righ", b"", b"right")
    answers = [
        status_of(None, "x", "/v1/models", (b"authorization", key)) for key in keys
    ]
    assert answers == [200, 401, 401, 401]
    assert compared == [(key, keys[0]) for key in keys]


def status_of(names, host, path="/health", *more):
    """The status of the answer to a request with such headers, `Host` and others."""
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    app = Guard(answer_long, ServerOptions(), "right" if more else None, names)
    headers = [(b"host", host.encode()), *more]
    scope = {"type": "http", "path": path, "method": "GET", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]

"""The limits in front of a server's application; nothing is loaded."""

import asyncio

import pytest

from roformer_keras.server import protection
from roformer_keras.server.options import ServerOptions
from roformer_keras.server.protection import (
    Guard,
    host_names,
    warn_without_key,
)


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


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
    for sent, status in ((taken, 200), (refused, 421)):
        statuses = {status_of(names=names, host=name.encode()) for name in sent}
        assert statuses <= {status}


@pytest.mark.parametrize("flags", [["--api-key", ""], []])
def test_an_empty_key_opens_no_server(flags, monkeypatch, refused):
    monkeypatch.setenv("ROFORMER_KERAS_API_KEY", "")
    assert "ROFORMER_KERAS_API_KEY must not be empty" in refused("serve", *flags)


def test_more_texts_than_any_request_may_have_are_refused(refused):
    error = refused("serve", "--max-texts", "2049")
    assert "must be an integer from 1 to 2048, got 2049" in error


def test_keys_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(*texts):
        compared.append(texts)
        return texts[0] == texts[1]

    monkeypatch.setattr(protection.secrets, "compare_digest", compare)
    keys = (b"Bearer right", b"Bearer righ", b"", b"right")
    answers = [status_of("/v1/models", authorization=key) for key in keys]
    assert answers == [200, 401, 401, 401]
    assert compared == [(key, keys[0]) for key in keys]


def test_no_key_is_needed_for_the_page_and_the_state():
    open_paths = ("/", "/page.css", "/page.js", "/health")
    assert [status_of(path, authorization=b"") for path in open_paths] == [200] * 4
    assert status_of("/metrics", authorization=b"") == 401


def test_bodies_have_a_limit():
    assert status_of(parts=[b"x" * 60, b"x" * 40]) == 200
    assert status_of(parts=[b"x" * 60] * 2) == 413
    assert status_of(**{"content-length": b"101"}) == 413


def status_of(path="/health", names=None, parts=(b"",), **headers):
    """The status of the answer to a request with parts of a body and headers."""
    bodies, sent = list(parts), []

    async def receive():
        return {"type": "http.request", "body": bodies.pop(0), "more_body": bodies}

    async def send(message):
        sent.append(message)

    key = "right" if "authorization" in headers else None
    app = Guard(answer, ServerOptions(max_body=100), key, names)
    pairs = [(name.encode(), value) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "method": "GET", "headers": pairs}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]

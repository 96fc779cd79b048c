"""Middleware: API key, names of the server, and limits of bodies."""

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Callable, Collection
from typing import Any

from roformer_keras.server.errors import JSONAnswer, Refusal
from roformer_keras.server.options import KEY_VARIABLE, ServerOptions

_LOCAL = ("localhost", "127.0.0.1", "::1")
# What a client may see without a key: whether the server lives, and its page, which
# asks for the key.
_OPEN = ("/", "/health", "/page.css", "/page.js")
_PORT = re.compile(r":\d*$")


def is_local(address: str) -> bool:
    """True if only this machine reaches an IP address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def warn_without_key(
    host: str, address: str, api_key: str | None, remark: Callable[[str], Any]
) -> None:
    """Warns of a server without a key that other machines reach."""
    if api_key is None and not is_local(address):
        remark(
            f"warning: anyone who reaches {host} can use the model: give --api-key, or "
            f"set {KEY_VARIABLE}"
        )


def host_names(
    host: str, address: str, allowed: Collection[str] = ()
) -> frozenset[str] | None:
    """The names by which clients may call a server; None for any.

    A server that only this machine reaches has no others, so that no page of another
    host reaches it by a name that has been changed to this machine's address.
    """
    if not allowed and not is_local(address):
        return None
    return frozenset({*_LOCAL, host, address, *allowed})


class Guard:
    """An ASGI application that refuses requests before another one sees them.

    It reads the whole body, within its limits of bytes and seconds.
    """

    def __init__(
        self,
        app: Any,
        options: ServerOptions,
        api_key: str | None = None,
        hosts: Collection[str] | None = None,
    ):
        self._app, self._options = app, options
        self._hosts = None if hosts is None else frozenset(map(_as_sent, hosts))
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            # For a repeated header, use the first value.
            headers = dict(reversed([*scope["headers"]]))
            self._check_host(headers)
            self._check_key(scope["path"], headers)
            body = await self._read(headers, receive)
        except Refusal as refusal:
            # The unread part of the body is dropped: the connection ends.
            sent = {**refusal.headers, "Connection": "close"}
            answer = JSONAnswer(refusal.content, refusal.status, sent)
            await answer(scope, receive, send)
            return
        if body is None:
            return
        message: dict | None = {"type": "http.request", "body": body}

        async def receive_body():
            nonlocal message
            body, message = message, None
            return await receive() if body is None else body

        await self._app(scope, receive_body, send)

    def _check_host(self, headers):
        if self._hosts is None:
            return
        sent = headers.get(b"host", b"").decode("latin-1")
        host = _PORT.sub("", sent).lower()
        if host not in self._hosts:
            raise Refusal(
                421,
                "this server is called by the name localhost, or one that it was "
                f"started with, got {host!r:.80}: start it with --allowed-host for "
                "another name, such as that of a proxy",
            )

    def _check_key(self, path, headers):
        if self._key is None or path in _OPEN:
            return
        if not secrets.compare_digest(headers.get(b"authorization", b""), self._key):
            raise Refusal(
                401,
                "the server wants its key: send the header Authorization: Bearer KEY",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _read(self, headers, receive):
        """The body; None if the client has gone."""
        maximum = self._options.max_body
        too_large = Refusal(413, f"a request may have at most {maximum} bytes")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > maximum:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._options.read_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > maximum:
                        raise too_large
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise Refusal(
                408,
                f"a request must come within {self._options.read_timeout:g} seconds",
            ) from None


def _as_sent(host):
    """A name or an address as a client sends it."""
    return f"[{host}]" if ":" in host and host[0] != "[" else host.lower()

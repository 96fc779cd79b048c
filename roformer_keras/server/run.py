"""A server of one process."""

import contextlib
import math
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.processes import restored_handlers
from roformer_keras.base.types import Engine
from roformer_keras.server.app import create_app
from roformer_keras.server.models import load_to_serve
from roformer_keras.server.options import ServerOptions
from roformer_keras.server.protection import host_names, warn_without_key

# Connections that wait to be accepted.
_BACKLOG = 2048


def serve(
    source: str,
    host: str,
    port: int,
    options: ServerOptions,
    *,
    engine: Engine = "auto",
    max_length: int | None = None,
    api_key: str | None = None,
    allowed_hosts: Sequence[str] = (),
    remark: Callable[[str], Any] = print,
) -> None:
    """Loads a model, and answers requests until SIGINT or SIGTERM comes."""
    # The address is taken first, since loading takes long.
    with listening(host, port) as bound:
        address = bound.getsockname()
        warn_without_key(host, address[0], api_key, remark)
        model = load_to_serve(source, engine, max_length)
        hosts = host_names(host, address[0], allowed_hosts)
        app = create_app(model, options, api_key, hosts)
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        remark(f"{model.name} answers at http://{shown}:{address[1]}")
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            # Requests are counted at /metrics; their texts are nobody's business.
            access_log=False,
            log_level="warning",
            server_header=False,
            # uvicorn counts the connection that asks, too.
            limit_concurrency=options.max_connections + 1,
            timeout_keep_alive=math.ceil(options.read_timeout),
            timeout_graceful_shutdown=math.ceil(options.timeout),
        )
        _Server(config).run(sockets=[bound])


class _Server(uvicorn.Server):
    """Ends with the exit code 0 when a signal asks it to."""

    @contextlib.contextmanager
    def capture_signals(self):
        # uvicorn's own sends the signals once more at the end, which kills the process.
        with restored_handlers(HANDLED_SIGNALS) as handlers:
            for number in handlers:
                signal.signal(number, self.handle_exit)
            yield


def find_address(host: str, port: int) -> tuple:
    """First answer of `socket.getaddrinfo` for a host and a port to listen at."""
    try:
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise _refused(host, port, error) from None


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at a host and a port."""
    family, kind, protocol, _, address = find_address(host, port)
    try:
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _refused(host, port, error) from None
    return bound


def _refused(host, port, error):
    # A name that breaks the rules of names has no `strerror`.
    reason = getattr(error, "strerror", None) or "no such name"
    return ConfigurationError(
        f"the server cannot listen at {host}, port {port} ({reason}): take another "
        "with --host and --port"
    )

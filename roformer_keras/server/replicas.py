"""A server of several processes, by Ray Serve: each has its own model."""

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from roformer_keras.distributed.cluster import ray_of, worker_resources
from roformer_keras.errors import ConfigurationError
from roformer_keras.extras import import_extra
from roformer_keras.io.atomic import one_line
from roformer_keras.processes import restored_handlers
from roformer_keras.server.app import create_app
from roformer_keras.server.models import load_to_serve
from roformer_keras.server.options import ServerOptions
from roformer_keras.server.protection import host_names, warn_without_key
from roformer_keras.server.run import find_address
from roformer_keras.types import Engine
from roformer_keras.verbs.sources import class_of

_NAME = "roformer-keras"


def serve_replicas(
    source: str,
    host: str,
    port: int,
    options: ServerOptions,
    *,
    num_replicas: int = 1,
    cpus_per_replica: int = 1,
    address: str | None = None,
    engine: Engine = "auto",
    max_length: int | None = None,
    api_key: str | None = None,
    allowed_hosts: Sequence[str] = (),
    remark: Callable[[str], Any] = print,
) -> None:
    """Answers requests by several processes until SIGINT or SIGTERM comes.

    Each has the limits of `options` for itself. Ray's proxy holds the connections.

    Args:
        source: of the model, which every machine can read.
        host, port: to listen at.
        options, engine, max_length, api_key, allowed_hosts, remark: as `serve` takes
            them.
        num_replicas: int. Processes with a model.
        cpus_per_replica: int. Cores, and threads, of each.
        address: of a Ray to join; None starts one on this machine.

    Raises:
        ConfigurationError: Ray is not installed or too small, there is no such host, or
            a process cannot load the model.
        RoFormerError: the source cannot be read.
    """
    # A wrong source or host is known before Ray is started.
    class_of(source)
    ip_address = find_address(host, port)[4][0]
    hosts = host_names(host, ip_address, allowed_hosts)
    warn_without_key(host, ip_address, api_key, remark)
    with ray_of(address, num_replicas, cpus_per_replica):
        ray_serve = import_extra("ray.serve", "serve --engine ray")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)

        def make():
            """Runs in the process of a replica."""
            model = load_to_serve(source, engine, max_length)
            return create_app(model, options, api_key, hosts)

        deployment = ray_serve.deployment(
            ray_serve.ingress(make)(),
            name="model",
            num_replicas=num_replicas,
            ray_actor_options=worker_resources(cpus_per_replica),
            max_ongoing_requests=options.queue_size,
            max_queued_requests=options.queue_size,
            graceful_shutdown_timeout_s=options.timeout,
            logging_config={"log_level": "ERROR", "enable_access_log": False},
        )
        ray_serve.start(
            http_options={
                "host": host,
                "port": port,
                "request_timeout_s": options.timeout + options.read_timeout,
            }
        )
        try:
            ray_serve.run(deployment.bind(), name=_NAME, route_prefix="/")
        except RuntimeError as error:
            raise ConfigurationError(
                f"the processes of the server do not start: {one_line(error)}"
            ) from error
        remark(f"{num_replicas} replicas answer at http://{host}:{port}")
        try:
            _wait_for_signal()
        finally:
            # When the requests under way are answered.
            ray_serve.delete(_NAME)


def _wait_for_signal():
    came = threading.Event()
    with restored_handlers() as handlers:
        for number in handlers:
            signal.signal(number, lambda *_: came.set())
        came.wait()

"""Numbers about a server, in Prometheus's format."""

import functools
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts the requests of one application."""

    def __init__(self, model: str):
        self._registry = registry = CollectorRegistry()
        requests = Counter(
            "roformer_requests", "Requests", ("route", "status"), registry=registry
        )
        seconds = Histogram(
            "roformer_request_seconds",
            "Time of requests",
            ("route",),
            registry=registry,
        )
        # There are few routes and statuses; to look up labels takes a lock.
        self._count = functools.cache(
            lambda route, status: requests.labels(route, status).inc
        )
        self._observe = functools.cache(lambda route: seconds.labels(route).observe)
        self._batches = Histogram(
            "roformer_batch_texts",
            "Texts that are computed together",
            buckets=_SIZES,
            registry=registry,
        )
        self._steps = Counter(
            "roformer_generation_steps",
            "Calls of the decoder, each of a few tokens of a batch of texts",
            registry=registry,
        )
        self._waiting = Gauge(
            "roformer_waiting_texts", "Texts that wait", registry=registry
        )
        Gauge("roformer_model", "The model", ("name",), registry=registry).labels(
            model
        ).set(1)

    def watch(self, waiting: Callable[[], int]) -> None:
        """Sets the function that says how many texts wait."""
        self._waiting.set_function(waiting)

    def observe_batch(self, count: int) -> None:
        """Counts a batch of so many texts."""
        self._batches.observe(count)

    def observe_step(self) -> None:
        """Counts a step of texts that are written together."""
        self._steps.inc()

    def text(self) -> tuple[bytes, int, None, str]:
        """Content, status, headers and type of the answer of `/metrics`."""
        return generate_latest(self._registry), 200, None, CONTENT_TYPE_LATEST

    def middleware(self, app: Any) -> Any:
        """An ASGI application that counts the requests of another one."""

        async def call(scope, receive, send):
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            start, status = time.perf_counter(), 500

            async def counted(message):
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, counted)
            finally:
                # Paths without a route share one name: there are too many.
                route = getattr(scope.get("route"), "path", "other")
                self._count(route, status)()
                self._observe(route)(time.perf_counter() - start)

        return call

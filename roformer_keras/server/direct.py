"""Requests for verbs that break no rule, without FastAPI's layers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import pydantic
import pydantic_core
from starlette.responses import Response

_JSON = b"application/json"


class JSONAnswer(Response):
    """An answer in JSON, which pydantic writes several times faster than Python."""

    media_type = _JSON.decode()

    def render(self, content: Any) -> bytes:
        return pydantic_core.to_json(content)


class DirectRoute(NamedTuple):
    """A route of `POST` requests in JSON.

    Attributes:
        path: str.
        request: model of the requests.
        answer: async function from a request and the `receive` of its client to a
            response.
    """

    path: str
    request: type[pydantic.BaseModel]
    answer: Callable[[Any, Callable], Awaitable[Response]]


class Direct:
    """An ASGI application that answers some routes of another one in its place.

    A request that is no JSON in UTF-8, or that the model of requests refuses, goes to
    the other application, which says what is wrong with it.

    Args:
        app: ASGI application that has all routes.
        routes: those to answer.
        refuse: function from an error to its response, or None if it is a fault.
        fault: function that makes the response to other errors, which the server logs.

    It is called with whole bodies, as `Guard` reads them.
    """

    def __init__(
        self,
        app: Any,
        routes: Mapping[str, DirectRoute],
        refuse: Callable[[Exception], Response | None],
        fault: Callable[[], Response],
    ):
        self._app, self._routes = app, routes
        self._refuse, self._fault = refuse, fault

    async def __call__(self, scope, receive, send):
        route = self._route(scope)
        if route is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        try:
            request = route.request.model_validate_json(message["body"])
        except pydantic.ValidationError:
            await self._app(scope, _with_message(message, receive), send)
            return
        # Its path is a label of the metrics.
        scope["route"] = route
        try:
            answer = await route.answer(request, receive)
        except Exception as error:
            answer = self._refuse(error)
            if answer is None:
                await self._fault()(scope, receive, send)
                raise
        await answer(scope, receive, send)

    def _route(self, scope):
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        route = self._routes.get(scope["path"])
        return route if route is not None and _is_json(scope["headers"]) else None


def _is_json(headers):
    kinds = [value for name, value in headers if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].partition(b";")[0] == _JSON


def _with_message(message, receive):
    """A `receive` that gives a message first."""
    messages = [message]

    async def receive_again():
        return messages.pop() if messages else await receive()

    return receive_again

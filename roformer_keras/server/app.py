"""The application: routes, and what they share."""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from importlib import resources
from typing import Any

import fastapi
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from roformer_keras.base.errors import RoFormerError
from roformer_keras.base.extras import installed_version
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.server.errors import JSONAnswer, Refusal
from roformer_keras.server.metrics import Metrics
from roformer_keras.server.models import ServedModel
from roformer_keras.server.openai import STYLES, models_answer
from roformer_keras.server.options import ServerOptions
from roformer_keras.server.protection import Guard
from roformer_keras.server.queue import Kind, ModelQueue
from roformer_keras.server.requests import Style

_LOGGER = logging.getLogger(__name__)
# Characters of a request that are tokenized in the event loop, where others wait for
# it. Of so few it takes milliseconds; a thread would cost more than it saves.
_MOST_IN_LOOP = 2000
_FAULT = Refusal(500, "the server has failed to answer; its log says why")


def create_app(
    model: ServedModel | str | os.PathLike,
    options: ServerOptions | None = None,
    api_key: str | None = None,
    hosts: Collection[str] | None = None,
) -> Any:
    """The ASGI application of a model, for uvicorn or any other server.

    Args:
        model: `ServedModel`, or a source of one.
        options: `ServerOptions`.
        api_key: str or None. What clients must send as `Authorization: Bearer KEY`.
        hosts: names and addresses that are taken as `Host`; None takes any. With some,
            no page of another host reaches the server by a name that it has changed.

    Returns:
        An ASGI application.

    Raises:
        RoFormerError: the source cannot be loaded.

    Example:
        >>> options = server.ServerOptions(max_batch=16)
        >>> app = server.create_app("roformer-sim-char", options)
        >>> callable(app)
        True
    """
    options = options or ServerOptions()
    served = model if isinstance(model, ServedModel) else ServedModel(model)
    if options.index:
        served.open_index(options.index)
    routes = _Routes(served, options)
    app = fastapi.FastAPI(
        title=f"roformer-keras: {routes.names[0]}",
        version=installed_version(),
        lifespan=routes.lifespan,
        docs_url=None,
        redoc_url=None,
    )
    routes.add(app)
    return routes.recorder.middleware(Guard(app, options, api_key, hosts))


class _Routes:
    """The routes of one model. Those that it cannot answer are absent."""

    def __init__(self, model, options):
        self._model, self._options = model, options
        self.names = options.model_name or (model.name,)
        self.recorder = Metrics(self.names[0])
        self._started = time.time()
        self._queue: Any = None
        self._paths: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(self, app):
        self._queue = ModelQueue(
            self._options.queue_size,
            self._options.max_batch,
            self._options.turn_tokens,
            self._options.batch_wait / 1000,
            self.recorder.observe_batch,
            self.recorder.observe_step,
        )
        self.recorder.watch(lambda: self._queue.waiting)
        yield
        await self._queue.close()

    def add(self, app):
        model = self._model
        for kind in (Refusal, RoFormerError, Exception):
            app.add_exception_handler(kind, _answer_error)
        app.add_exception_handler(HTTPException, self._answer_http)
        # They come first, since the router tries one after another.
        for verb in model.verbs.values():
            self._add_verb(app, STYLES[verb.route.style](verb, model, self.names[0]))
        app.get("/health")(self.health)
        app.get("/metrics")(self.metrics)
        app.get("/v1/models")(self.models)
        app.get("/v1/models/{name:path}")(self.one_model)
        for path, name, kind in (
            ("/", "page.html", "text/html"),
            ("/page.css", "page.css", "text/css"),
            ("/page.js", "page.js", "text/javascript"),
        ):
            app.get(path, include_in_schema=False)(_sender(name, kind))

    # === State ===

    async def health(self) -> dict:
        """That the server lives; 503 if the queue is full."""
        self._queue.check_room(1)
        return {"status": "ok", "waiting": self._queue.waiting}

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        return Response(*self.recorder.text())

    async def models(self) -> dict:
        """The model's name, and what it can answer."""
        verbs = self._model.verbs.values()
        abilities = [verb.route.ability or verb.name for verb in verbs]
        return models_answer(self.names, self._started, abilities)

    async def one_model(self, name: str) -> dict:
        """Entry of one model in `/v1/models`."""
        self._check_model(name)
        return (await self.models())["data"][self.names.index(name)]

    # === Answers ===

    def _add_verb(self, app, style: Style) -> None:
        """Adds the routes of a verb, which FastAPI describes and pydantic reads."""
        route = style.route

        async def answer(scope, receive, send):
            # `Guard` gives the whole body at once.
            content = (await receive())["body"]
            kind = Headers(scope=scope).get("content-type", "")
            response = await self._respond(style, style.read(kind, content), receive)
            await response(scope, receive, send)

        def described(body):
            """Is not called: it has the name, the text and the body of the route."""

        described.__name__ = route.path.rpartition("/")[2].replace("-", "_")
        described.__doc__ = (inspect.getdoc(style.verb) or "").partition("\n")[0]
        described.__annotations__["body"] = style.body
        content = {"application/json": {"schema": style.response_schema}}
        for path in (route.path, *route.others):
            self._paths.append(path)
            app.post(path, responses={200: {"content": content}})(described)
            app.router.routes[-1].app = answer

    async def _respond(self, style: Style, body, receive) -> Response:
        """The response to a request of any verb."""
        self._check_model(getattr(body, "model", None))
        rows = style.rows(body)
        self._check_texts(rows)
        verb = self._model.verb(style.verb.name, style.options(body))
        self._check_cost(verb.cost, len(rows))
        count = functools.partial(self._model.count_tokens, verb, rows)
        is_short = sum(len(text) for row in rows for text in row) <= _MOST_IN_LOOP
        counts = count() if is_short else await asyncio.to_thread(count)
        events = style.events(verb, body, rows[0], sum(counts))
        if events is not None:
            self._queue.check_room(1)
            events = self._events(events)
            return StreamingResponse(events, media_type="text/event-stream")
        answer = functools.partial(style.answer, verb)
        answering = self._answer(answer, verb, rows, counts)
        answers = await _unless_gone(receive, answering, self._options.timeout)
        return JSONAnswer(style.response(body, rows, answers, sum(counts)))

    async def _answer(self, answer, verb, rows, counts) -> Sequence:
        """The answers of a verb to the rows of a request, by the queue."""
        cost = verb.cost
        written = cost.texts * cost.tokens
        if cost.together == "request":

            def answer_request(requests, *steps):
                return [answer(requests[0], *steps)]

            # All rows are one text of the queue.
            kind = Kind(None, answer_request, 1, written * len(rows), is_apart=True)
            return (await self._queue.answer([rows], kind))[0]
        is_alone = cost.together == "row"
        taken = self._options.max_batch if is_alone else cost.texts
        kind = Kind((verb, len(rows[0])), answer, taken, written, is_alone)
        return await self._queue.answer(rows, kind, counts)

    async def _events(self, events) -> AsyncIterator[str]:
        pieces = self._queue.stream(events.start)
        end = asyncio.get_running_loop().time() + self._options.timeout
        try:
            while True:
                # Not around `yield`: sending is no part of the time.
                async with asyncio.timeout_at(end):
                    piece = await anext(pieces, None)
                if piece is None:
                    break
                if piece:
                    yield events.piece(piece)
        except TimeoutError:
            yield events.error(_late(self._options.timeout))
        except Refusal as refusal:
            yield events.error(refusal)
        except Exception:
            _LOGGER.exception("a stream has failed")
            yield events.error(_FAULT)
        else:
            yield events.end()
        finally:
            await pieces.aclose()

    # === What they share ===

    async def _answer_http(self, request, error: HTTPException):
        text = {
            404: explain_withdrawn(request.url.path)
            or "no such route, or this model cannot answer it: it answers POST "
            f"{', '.join(sorted(self._paths))}; see /openapi.json",
            405: "this route does not take this method: see /openapi.json",
        }.get(error.status_code, str(error.detail))
        refusal = Refusal(error.status_code, text, error.headers)
        return await _answer_error(request, refusal)

    def _check_model(self, name):
        if name is not None and name not in self.names:
            names = " or ".join(map(repr, self.names))
            raise Refusal(404, f"this server has the model {names}, not {name!r:.80}")

    def _check_texts(self, rows):
        self._check_count(len(rows))
        limit, count = self._options.max_characters, len(rows[0])
        for number, row in enumerate(rows):
            if len(row) != count:
                raise Refusal(
                    400,
                    f"rows of a request must have as many texts as the first, {count}; "
                    f"row {number} has {len(row)}",
                )
            if (length := max(map(len, row), default=0)) > limit:
                raise Refusal(
                    400, f"a text may have at most {limit} characters, got {length}"
                )

    def _check_count(self, count):
        limit = min(self._options.max_texts, self._options.queue_size)
        if not 0 < count <= limit:
            raise Refusal(400, f"a request must have 1 to {limit} texts, got {count}")

    def _check_cost(self, cost, count):
        limit = self._options.max_tokens
        if cost.tokens > limit:
            raise Refusal(400, f"max_tokens may be at most {limit}, got {cost.tokens}")
        limit = max(limit, self._options.max_written)
        texts = cost.texts * (count if cost.together == "request" else 1)
        if cost.tokens * texts > limit:
            raise Refusal(
                400,
                f"at most {limit} tokens can be written together, got {texts} texts of "
                f"{cost.tokens}: lower n or max_tokens, or send fewer prompts",
            )
        self._check_count(count if cost.together == "row" else count * cost.texts)


async def _unless_gone(receive: Callable, answer: Coroutine, seconds: float) -> Any:
    """Result of a coroutine; ends it if the client leaves or the time is over."""
    answering, gone = asyncio.ensure_future(answer), asyncio.ensure_future(receive())
    try:
        await asyncio.wait(
            (answering, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if answering.done():
            return answering.result()
        if gone.done():
            raise Refusal(499, "the client has closed the connection")
        raise _late(seconds)
    finally:
        answering.cancel()
        gone.cancel()


def _late(seconds):
    return Refusal(504, f"the answer took more than {seconds:g} seconds")


def _sender(name, kind):
    content = (
        resources.files("roformer_keras.server").joinpath("page", name).read_bytes()
    )
    # The page has no scripts but its own, and sends nothing elsewhere.
    headers = {
        "Content-Security-Policy": (
            "default-src 'self'; img-src data:; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
    }

    async def send() -> Response:
        return Response(content, headers=headers, media_type=kind)

    return send


# === Errors ===


async def _answer_error(request, error: Exception):
    if isinstance(error, RoFormerError):
        text = error.message if error.hint is None else f"{error.message}: {error.hint}"
        error = Refusal(400, text)
    elif not isinstance(error, Refusal):
        error = _FAULT
    return JSONAnswer(error.content, error.status, error.headers)

"""The application: routes, and what they share."""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from importlib import resources
from typing import Any

import fastapi
import numpy as np
import pydantic
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from roformer_keras.base.errors import RoFormerError
from roformer_keras.base.extras import installed_version
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.search.cosines import unit_rows
from roformer_keras.server import openai
from roformer_keras.server.errors import JSONAnswer, Refusal
from roformer_keras.server.metrics import Metrics
from roformer_keras.server.models import ServedModel
from roformer_keras.server.options import ServerOptions
from roformer_keras.server.protection import Guard
from roformer_keras.server.queue import Kind, ModelQueue
from roformer_keras.server.requests import (
    NO_OBJECT,
    ROUTES,
    Route,
    explain_invalid,
    request_model,
)
from roformer_keras.verbs.embed import Embed
from roformer_keras.verbs.predict import Predict
from roformer_keras.verbs.search import Rerank
from roformer_keras.verbs.verb import Verb
from roformer_keras.verbs.writing import Generate, Paraphrase

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
    return routes.metrics_of(Guard(app, options, api_key, hosts))


class _Routes:
    """The routes of one model. Those that it cannot answer are absent."""

    def __init__(self, model, options):
        self._model, self._options = model, options
        self.names = options.model_name or (model.name,)
        self._metrics = Metrics(self.names[0])
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
            self._metrics.observe_batch,
            self._metrics.observe_step,
        )
        self._metrics.watch(lambda: self._queue.waiting)
        yield
        await self._queue.close()

    def metrics_of(self, app):
        """An application whose requests are counted."""
        return self._metrics.middleware(app)

    def add(self, app):
        model = self._model
        app.add_exception_handler(Refusal, _answer_refusal)
        app.add_exception_handler(RoFormerError, _answer_refusal)
        app.add_exception_handler(HTTPException, self._answer_http)
        app.add_exception_handler(Exception, _answer_fault)
        # They come first, since the router tries one after another.
        for kind, route in ROUTES.items():
            if kind.name in model.verbs:
                self._add_verb(app, kind, route)
        app.get("/health")(self.health)
        app.get("/metrics")(self.metrics)
        app.get("/v1/models")(self.models)
        app.get("/v1/models/{name:path}")(self.one_model)
        files = resources.files("roformer_keras.server") / "page"
        for path, name, kind in (
            ("/", "page.html", "text/html"),
            ("/page.css", "page.css", "text/css"),
            ("/page.js", "page.js", "text/javascript"),
        ):
            content = (files / name).read_text(encoding="utf-8")
            app.get(path, include_in_schema=False)(_sender(content, kind))

    # === State ===

    async def health(self) -> dict:
        """That the server lives; 503 if the queue is full."""
        self._queue.check_room(1)
        return {"status": "ok", "waiting": self._queue.waiting}

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        return Response(*self._metrics.text())

    async def models(self) -> dict:
        """The model's name, and what it can answer."""
        answer = openai.models_answer(self.names, self._started)
        for entry in answer["data"]:
            entry["abilities"] = self._model.abilities
        return answer

    async def one_model(self, name: str) -> dict:
        """Entry of one model in `/v1/models`."""
        self._check_model(name)
        return (await self.models())["data"][self.names.index(name)]

    # === Answers ===

    def _add_verb(self, app, kind: type[Verb], route: Route) -> None:
        """Adds the route of a verb, which FastAPI describes and pydantic reads."""
        handlers = {
            Embed: self.embeddings,
            Generate: self.completions,
            Rerank: self.ranking,
        }
        handler: Callable = handlers.get(kind, self.answers)
        model = request_model(kind, route)

        async def answer(scope, receive, send):
            # `Guard` gives the whole body at once.
            content = (await receive())["body"]
            request = _read(model, Headers(scope=scope), content)
            response = await handler(kind, route, request, receive)
            await response(scope, receive, send)

        def described(body):
            """Is not called: it has the name, the text and the body of the route."""

        described.__name__ = route.path.rpartition("/")[2].replace("-", "_")
        described.__doc__ = (inspect.getdoc(kind) or "").partition("\n")[0]
        described.__annotations__["body"] = model
        for path in (route.path, *route.others):
            self._paths.append(path)
            app.post(path)(described)
            app.router.routes[-1].app = answer

    async def embeddings(self, kind, route, body, receive) -> Response:
        """Vectors of texts, as in OpenAI's API."""
        self._check_model(body.model)
        texts, dim = self._texts(body.input), self._model.dim
        if body.dimensions is not None and not 1 <= body.dimensions <= dim:
            raise Refusal(400, f"dimensions must be from 1 to {dim}")
        options = route.options(body, kind)
        read = self._model.reader(self._model.verb(kind.name, **options))
        counts = await _tokenized(read, [(text,) for text in texts])
        vectors_of = functools.partial(self._model.vectors, **options)
        queued = Kind((kind.name, *options.items()), vectors_of)
        vectors = await self._answer(receive, texts, queued, counts)
        if body.dimensions not in (None, dim):
            # As OpenAI does: the first ones, of length 1 again.
            vectors = list(unit_rows(np.stack(vectors)[:, : body.dimensions]))
        answer = openai.embeddings_answer(
            vectors, sum(counts), self.names[0], body.encoding_format
        )
        return JSONAnswer(answer)

    async def completions(self, kind, route, body, receive) -> Response:
        """Continuations of prompts, as in OpenAI's API."""
        self._check_model(body.model)
        prompts = self._texts(body.prompt)
        options, rows = body.options() | route.options(body, kind), body.n or 1
        new = options["max_new_tokens"]
        self._check_tokens(new, rows)
        self._check_count(len(prompts) * rows)
        ids = await _tokenized(self._model.prompt_ids, prompts)
        tokens = sum(map(len, ids))
        # Options that are refused end the request before it waits.
        self._model.verb(kind.name, **options)
        self._model.ends_text(0, options)
        if body.stream:
            if len(prompts) > 1:
                raise Refusal(400, "one prompt can be streamed, got several")
            self._queue.check_room(1)
            events = self._events(prompts[0], options, tokens, body.wants_usage)
            return StreamingResponse(events, media_type="text/event-stream")

        def write(prompts, on_step):
            return self._model.write(prompts, on_step=on_step, **options)

        if body.seed is None:
            queued = Kind(("write", *options.items()), write, rows, new * rows)
            counts = list(map(len, ids))
            written = await self._answer(receive, ids, queued, counts)
        else:
            # With a seed, a text depends on its place in the list.
            self._check_tokens(new, rows * len(ids))
            queued = Kind(
                object(),
                lambda lists, on_step: [write(lists[0], on_step)],
                written=new * rows * len(ids),
            )
            (written,) = await self._answer(receive, [ids], queued)
        answer = openai.completion_answer(written, tokens, self.names[0])
        return JSONAnswer(answer)

    async def answers(self, kind, route, body, receive) -> Response:
        """The answers of any other verb."""
        rows = route.rows(body)
        self._check_count(len(rows))
        for number, row in enumerate(rows):
            self._texts(row, may_be_empty=kind is Predict)
            if len(row) != len(rows[0]):
                raise Refusal(
                    400,
                    "rows of a request must have as many texts as the first, "
                    f"{len(rows[0])}; row {number} has {len(row)}",
                )
        options = route.options(body, kind)
        answers, _ = await self._answer_rows(receive, kind, options, rows)
        return JSONAnswer({route.answers: list(map(_shown, answers))})

    async def ranking(self, kind, route, body, receive) -> Response:
        """Scores of texts for a query, as in the API of Cohere and of Jina."""
        self._check_model(body.model)
        texts, (query,) = self._texts(body.texts), self._texts(body.query)
        rows, options = [(query, text) for text in texts], route.options(body, kind)
        answers, tokens = await self._answer_rows(receive, kind, options, rows)
        scores = [one["score"] for one in answers]
        return JSONAnswer(
            openai.ranking_answer(texts, scores, body, tokens, self.names[0])
        )

    # === What they share ===

    async def _answer_rows(self, receive, kind, options, rows):
        """The answers of a verb to rows, and how many tokens these have."""
        verb = self._model.verb(kind.name, **options)
        if isinstance(verb, Paraphrase):
            self._check_tokens(verb.max_new_tokens, verb.n)
        counts = await _tokenized(self._model.reader(verb), rows)
        answer = functools.partial(self._model.answer, verb)
        queued = Kind((kind.name, len(rows[0]), *options.items()), answer)
        if isinstance(verb, Paraphrase):
            assert verb.max_new_tokens is not None
            # Each alone: of so many rows a batch of several is hardly faster.
            queued = Kind(
                object(),
                lambda rows, on_step: answer(rows, on_step=on_step),
                self._options.max_batch,
                verb.max_new_tokens * verb.n,
            )
        answers = await self._answer(receive, rows, queued, counts)
        return answers, sum(counts)

    async def _answer(self, receive, texts, kind, tokens=()):
        """Answers of the model, unless it takes too long or the client has gone."""
        answer = self._queue.answer(texts, kind, tokens)
        return await _unless_gone(receive, answer, self._options.timeout)

    async def _events(self, prompt, options, tokens, usage) -> AsyncIterator[str]:
        ids: list[int] = []
        events = openai.CompletionEvents(self.names[0])

        def start():
            return self._model.stream(prompt, on_token=ids.append, **options)

        pieces = self._queue.stream(start)
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
            return
        except Refusal as refusal:
            yield events.error(refusal)
            return
        except Exception:
            _LOGGER.exception("a stream has failed")
            yield events.error(_FAULT)
            return
        finally:
            await pieces.aclose()
        is_ended = bool(ids) and self._model.ends_text(ids[-1], options)
        yield events.piece("", "stop" if is_ended else "length")
        if usage:
            yield events.usage(tokens, len(ids))
        yield events.end()

    async def _answer_http(self, request, error: HTTPException):
        text = {
            404: explain_withdrawn(request.url.path)
            or "no such route, or this model cannot answer it: it answers POST "
            f"{', '.join(sorted(self._paths))}; see /openapi.json",
            405: "this route does not take this method: see /openapi.json",
        }.get(error.status_code, str(error.detail))
        return await _answer_refusal(
            request, Refusal(error.status_code, text, error.headers)
        )

    def _check_model(self, name):
        if name is not None and name not in self.names:
            names = " or ".join(map(repr, self.names))
            raise Refusal(404, f"this server has the model {names}, not {name!r:.80}")

    def _texts(
        self, texts: str | Sequence[str], may_be_empty: bool = False
    ) -> list[str]:
        texts = [texts] if isinstance(texts, str) else list(texts)
        self._check_count(len(texts))
        limit = self._options.max_characters
        for text in texts:
            if not (may_be_empty or text.strip()):
                raise Refusal(400, "a text must not be empty")
            if len(text) > limit:
                raise Refusal(
                    400, f"a text may have at most {limit} characters, got {len(text)}"
                )
        return texts

    def _check_count(self, count):
        limit = min(self._options.max_texts, self._options.queue_size)
        if not 0 < count <= limit:
            raise Refusal(400, f"a request must have 1 to {limit} texts, got {count}")

    def _check_tokens(self, count, rows):
        limit = self._options.max_tokens
        if count > limit:
            raise Refusal(400, f"max_tokens may be at most {limit}, got {count}")
        limit = max(limit, self._options.max_written)
        if count * rows > limit:
            raise Refusal(
                400,
                f"at most {limit} tokens can be written together, got {rows} texts of "
                f"{count}: lower n or max_tokens, or send fewer prompts",
            )


def _read(model: type[pydantic.BaseModel], headers: Mapping[str, str], content: bytes):
    """A request. Raises Refusal if it breaks a rule of its model."""
    if headers.get("content-type", "").partition(";")[0] != JSONAnswer.media_type:
        raise Refusal(422, NO_OBJECT)
    try:
        return model.model_validate_json(content)
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise Refusal(422, explain_invalid(errors, model.model_fields)) from None


def _shown(answer: Mapping[str, Any]) -> Any:
    """The answer of a verb as clients get it: that of one column alone."""
    if "outputs" in answer:
        outputs = answer["outputs"]
        return [{"text": one["text"], "similarity": one["score"]} for one in outputs]
    alone = ("similarity", "masks", "results")
    return next((answer[name] for name in alone if name in answer), answer)


async def _tokenized(function, rows) -> list:
    """Result of a function that tokenizes, for each text or row of texts."""

    def results():
        return [function(row) for row in rows]

    if sum(len("".join(row)) for row in rows) <= _MOST_IN_LOOP:
        return results()
    return await asyncio.to_thread(results)


async def _unless_gone(receive: Callable, answer: Coroutine, seconds: float) -> Any:
    """Result of a coroutine; ends it if the client leaves or the time is over."""
    task, is_waiting, has_left = asyncio.current_task(), True, False
    assert task is not None

    def end(gone):
        nonlocal has_left
        if is_waiting:
            has_left = True
            task.cancel()

    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(end)
    try:
        async with asyncio.timeout(seconds) as limit:
            return await answer
    except TimeoutError:
        if limit.expired():
            raise _late(seconds) from None
        raise
    except asyncio.CancelledError:
        if has_left and not task.uncancel():
            raise Refusal(499, "the client has closed the connection") from None
        raise
    finally:
        is_waiting = False
        gone.cancel()


def _late(seconds):
    return Refusal(504, f"the answer took more than {seconds:g} seconds")


def _sender(content, kind):
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


async def _answer_refusal(request, error: Refusal | RoFormerError):
    if isinstance(error, RoFormerError):
        text = error.message if error.hint is None else f"{error.message}: {error.hint}"
        error = Refusal(400, text)
    return JSONAnswer(error.content, error.status, error.headers)


async def _answer_fault(request, error: Exception):
    return JSONAnswer(_FAULT.content, _FAULT.status)

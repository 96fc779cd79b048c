"""The application: routes, and what they share."""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from importlib import metadata, resources
from typing import Annotated, Any

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from roformer_keras.errors import RoFormerError
from roformer_keras.io.json_file import check_unicode
from roformer_keras.server import openai
from roformer_keras.server.errors import Refusal
from roformer_keras.server.metrics import Metrics
from roformer_keras.server.models import ServedModel
from roformer_keras.server.options import MOST_TEXTS, ServerOptions
from roformer_keras.server.protection import Guard
from roformer_keras.server.queue import Kind, ModelQueue
from roformer_keras.server.search import PoemSearch

_LOGGER = logging.getLogger(__name__)
# Characters of a request that are tokenized in the event loop, where others wait for
# it. Of so few it takes milliseconds; a thread would cost more than it saves.
_MOST_IN_LOOP = 2000
_FAULT = Refusal(500, "the server has failed to answer; its log says why")


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Pairs(_Request):
    """A request of `/similarity`."""

    pairs: list[tuple[str, str]] = Field(max_length=MOST_TEXTS)


class Sentences(_Request):
    """A request of `/paraphrase`."""

    texts: list[str] = Field(max_length=MOST_TEXTS)
    n: int = Field(20, ge=1, le=1000)
    k: int = Field(10, ge=1, le=1000)
    max_tokens: int = Field(64, ge=1)
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int | None = Field(None, ge=1)
    top_p: float = Field(0.95, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)


class Masked(_Request):
    """A request of `/fill-mask`."""

    texts: list[str] = Field(max_length=MOST_TEXTS)
    top_k: int = Field(5, ge=1, le=100)


class Search(_Request):
    """A request of `/search`, which the page makes."""

    text: str
    k: int = Field(10, ge=1, le=100)


class Rows(_Request):
    """A request of `/predict`: a row has as many texts as the task."""

    rows: list[str | Annotated[list[str], Field(max_length=64)]] = Field(
        max_length=MOST_TEXTS
    )


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
    routes = _Routes(served, options)
    app = fastapi.FastAPI(
        title=f"roformer-keras: {served.name}",
        version=metadata.version("roformer-keras"),
        lifespan=routes.lifespan,
        docs_url=None,
        redoc_url=None,
    )
    routes.add(app)
    guarded = Guard(app, options, api_key, hosts)
    return routes.metrics_of(guarded)


class _Routes:
    """The routes of one model. Those that it cannot answer are absent."""

    def __init__(self, model, options):
        self._model, self._options = model, options
        self._metrics = Metrics(model.name)
        self._started = time.time()
        self._queue: Any = None
        self._search: Any = None

    @contextlib.asynccontextmanager
    async def lifespan(self, app):
        self._queue = ModelQueue(
            self._options.queue_size,
            self._options.max_batch,
            self._options.turn_tokens,
            self._options.batch_wait / 1000,
            self._metrics.observe_batch,
        )
        self._metrics.watch(lambda: self._queue.waiting)
        kind = Kind("embed", self._model.embed)
        self._search = PoemSearch(
            lambda texts: self._queue.answer(texts, kind), self._options.queue_size
        )
        yield
        self._search.close()
        await self._queue.close()

    def metrics_of(self, app):
        """An application whose requests are counted."""
        return self._metrics.middleware(app)

    def add(self, app):
        model = self._model
        app.add_exception_handler(Refusal, _answer_refusal)
        app.add_exception_handler(RoFormerError, _answer_error)
        app.add_exception_handler(RequestValidationError, _answer_invalid)
        app.add_exception_handler(HTTPException, _answer_http)
        app.add_exception_handler(Exception, _answer_fault)
        app.get("/health")(self.health)
        app.get("/ready")(self.ready)
        app.get("/metrics")(self.metrics)
        app.get("/v1/models")(self.models)
        app.get("/v1/models/{name:path}")(self.one_model)
        for path, function, ability in (
            ("/v1/embeddings", self.embeddings, model.embed),
            ("/v1/completions", self.completions, model.write),
            ("/similarity", self.similarity, model.similarity),
            ("/paraphrase", self.paraphrase, model.paraphrase),
            ("/fill-mask", self.fill_mask, model.fill_mask),
            ("/predict", self.predict, model.predict),
            ("/search", self.search, model.embed),
        ):
            if ability is not None:
                app.post(path)(function)
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
        """That the server lives."""
        return {"status": "ok"}

    async def ready(self) -> dict:
        """True if a text would be taken now; 503 if not."""
        self._queue.check_room(1)
        return {"status": "ok", "waiting": self._queue.waiting}

    async def metrics(self) -> Response:
        """Numbers for Prometheus."""
        return Response(*self._metrics.text())

    async def models(self) -> dict:
        """The model's name, and what it can answer."""
        found = openai.models_answer(self._model.name, self._started)
        found["data"][0]["abilities"] = self._model.abilities
        return found

    async def one_model(self, name: str) -> dict:
        """Entry of one model in `/v1/models`."""
        self._check_model(name)
        return (await self.models())["data"][0]

    # === Answers ===

    async def embeddings(
        self, body: openai.Embeddings, request: fastapi.Request
    ) -> JSONResponse:
        """Vectors of texts, as in OpenAI's API."""
        self._check_model(body.model)
        texts, dim = self._texts(body.input), self._model.dim
        if body.dimensions not in (None, dim):
            raise Refusal(400, f"the vectors have {dim} dimensions, no other number")
        counts = await _tokenized(self._model.count_tokens, texts)
        kind = Kind("embed", self._model.embed)
        vectors = await self._answer(request, texts, kind, counts)
        answer = openai.embeddings_answer(
            vectors, sum(counts), self._model.name, body.encoding_format
        )
        # FastAPI would look at each number of a dict.
        return JSONResponse(answer)

    async def completions(
        self, body: openai.Completions, request: fastapi.Request
    ) -> Any:
        """Continuations of prompts, as in OpenAI's API."""
        self._check_model(body.model)
        prompts = self._texts(body.prompt)
        options, rows = body.options(), body.n or 1
        new = options["max_new_tokens"]
        self._check_tokens(new, rows)
        self._check_count(len(prompts) * rows)
        ids = await _tokenized(self._model.prompt_ids, prompts)
        tokens = sum(map(len, ids))
        self._model.ends_text(0, options)
        if body.stream:
            if len(prompts) > 1:
                raise Refusal(400, "one prompt can be streamed, got several")
            self._queue.check_room(1)
            events = self._events(prompts[0], options, tokens, body.wants_usage)
            return StreamingResponse(events, media_type="text/event-stream")

        def write(prompts):
            return self._model.write(prompts, on_step=self._on_step, **options)

        if body.seed is None:
            kind = Kind(("write", *options.items()), write, rows)
            counts = [new * rows] * len(ids)
            written = await self._answer(request, ids, kind, counts)
        else:
            # With a seed, a text depends on its place in the list.
            self._check_tokens(new, rows * len(ids))
            kind = Kind(object(), lambda lists: [write(lists[0])])
            (written,) = await self._answer(request, [ids], kind)
        return openai.completion_answer(written, tokens, self._model.name)

    async def similarity(self, body: Pairs, request: fastapi.Request) -> dict:
        """Cosines of pairs of texts."""
        self._check_count(len(body.pairs))
        pairs = [self._texts(pair) for pair in body.pairs]
        counts = await _tokenized(self._model.count_tokens, pairs)
        kind = Kind("pairs", self._model.similarity)
        return {"similarity": await self._answer(request, body.pairs, kind, counts)}

    async def paraphrase(self, body: Sentences, request: fastapi.Request) -> dict:
        """Similar sentences, the nearest first."""
        texts = self._texts(body.texts)
        self._check_tokens(body.max_tokens, body.n)
        fields = body.model_dump(exclude={"texts", "max_tokens"}, exclude_none=True)
        options = {**fields, "max_new_tokens": body.max_tokens}
        await _tokenized(self._model.prompt_ids, texts)

        def answer(texts):
            return self._model.paraphrase(texts, on_step=self._on_step, **options)

        # Each alone: of so many rows a batch of several is hardly faster.
        kind = Kind(object(), answer, self._options.max_batch)
        found = await self._answer(request, texts, kind)
        return {
            "paraphrases": [
                [{"text": text, "similarity": score} for text, score in own]
                for own in found
            ]
        }

    async def fill_mask(self, body: Masked, request: fastapi.Request) -> dict:
        """The likeliest tokens for each `[MASK]`."""
        texts = self._texts(body.texts)
        for text in texts:
            if "[MASK]" not in text:
                raise Refusal(400, f"a text to fill must hold [MASK], got {text!r:.80}")
        count = functools.partial(self._model.count_tokens, has_masks=True)
        counts = await _tokenized(count, texts)

        def answer(texts):
            return self._model.fill_mask(texts, top_k=body.top_k)

        kind = Kind(("masks", body.top_k), answer)
        found = await self._answer(request, texts, kind, counts)
        return {
            "masks": [
                [[vars(candidate) for candidate in mask] for mask in masks]
                for masks in found
            ]
        }

    async def predict(self, body: Rows, request: fastapi.Request) -> dict:
        """Answers of a fine-tuned model."""
        rows = [(row,) if isinstance(row, str) else tuple(row) for row in body.rows]
        self._check_count(len(rows))
        for row in rows:
            self._texts(row)
        self._model.check_rows(rows)
        counts = await _tokenized(self._model.count_tokens, rows)
        # A model takes rows of one number of texts together.
        kind = Kind(("predict", len(rows[0])), self._model.predict)
        return {"answers": await self._answer(request, rows, kind, counts)}

    async def search(self, body: Search, request: fastapi.Request) -> dict:
        """Lines of poems that are near to a text."""
        (text,) = self._texts(body.text)
        task = asyncio.ensure_future(self._search.search(text, body.k))
        return await _unless_gone(request, task, self._options.timeout)

    # === What they share ===

    async def _answer(self, request, texts, kind, tokens=()):
        """Answers of the model, unless it takes too long or the client has gone."""
        task = asyncio.ensure_future(self._queue.answer(texts, kind, tokens))
        return await _unless_gone(request, task, self._options.timeout)

    def _on_step(self):
        """Runs in the thread of the model: ends a turn that nobody waits for."""
        self._metrics.observe_step()
        self._queue.check_wanted()

    async def _events(self, prompt, options, tokens, usage) -> AsyncIterator[str]:
        ids: list[int] = []
        events = openai.CompletionEvents(self._model.name)

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

    def _check_model(self, name):
        if name not in (None, self._model.name):
            raise Refusal(
                404, f"this server has the model {self._model.name!r}, not {name!r:.80}"
            )

    def _texts(self, texts: str | Sequence[str]) -> list[str]:
        texts = [texts] if isinstance(texts, str) else list(texts)
        self._check_count(len(texts))
        check_unicode(texts, "a request")
        limit = self._options.max_characters
        for text in texts:
            if not text.strip():
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
        limit = max(limit, self._options.turn_tokens)
        if count * rows > limit:
            raise Refusal(
                400,
                f"at most {limit} tokens can be written together, got {rows} texts of "
                f"{count}: lower n or max_tokens, or send fewer prompts",
            )


async def _tokenized(function, rows) -> list:
    """Result of a function that tokenizes, for each text or row of texts."""

    def results():
        return [function(row) for row in rows]

    if sum(len("".join(row)) for row in rows) <= _MOST_IN_LOOP:
        return results()
    return await asyncio.to_thread(results)


async def _unless_gone(request, task: asyncio.Future, seconds: float) -> Any:
    """Result of a task; ends it if the client leaves or the time is over."""
    gone = asyncio.ensure_future(request.receive())
    try:
        done, _ = await asyncio.wait(
            (task, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if task in done:
            return task.result()
        if not done:
            raise _late(seconds)
        raise Refusal(499, "the client has closed the connection")
    finally:
        for one in (task, gone):
            one.cancel()


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


async def _answer_refusal(request, error: Refusal):
    return JSONResponse(error.content, error.status, error.headers)


async def _answer_error(request, error: RoFormerError):
    text = error.message if error.hint is None else f"{error.message}: {error.hint}"
    return await _answer_refusal(request, Refusal(400, text))


async def _answer_http(request, error: HTTPException):
    text = {
        404: "no such route, or this model cannot answer it: see /openapi.json",
        405: "this route does not take this method: see /openapi.json",
        400: "the body must be JSON in UTF-8",
    }.get(error.status_code, str(error.detail))
    return await _answer_refusal(
        request, Refusal(error.status_code, text, error.headers)
    )


async def _answer_invalid(request, error: RequestValidationError):
    """Says which field breaks which rule."""
    first = error.errors()[0]
    if first["type"] == "json_invalid" or first["loc"] == ("body",):
        return await _answer_refusal(
            request,
            Refusal(
                422,
                "the body must be a JSON object, sent with the header Content-Type: "
                "application/json",
            ),
        )
    place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    text = f"{place:.80}: {first['msg']:.200}"
    return await _answer_refusal(request, Refusal(422, text))


async def _answer_fault(request, error: Exception):
    return await _answer_refusal(request, _FAULT)

"""Requests and responses in the formats of OpenAI, and of Cohere and Jina."""

import base64
import json
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from roformer_keras.generation.generate import stream_steps
from roformer_keras.generation.prompts import as_ids, stop_ids_of
from roformer_keras.search.cosines import unit_rows
from roformer_keras.server.errors import Refusal
from roformer_keras.server.options import MOST_TEXTS
from roformer_keras.server.requests import Request, Style


def _check_texts(value: Any) -> Any:
    """Names what came in place of texts, where pydantic says that it is no str."""
    rows = value if isinstance(value, list) else [value]
    if all(isinstance(row, str) for row in rows):
        return value
    shown = "got something else"
    if isinstance(value, list) and isinstance(rows[0], int | list):
        # Those of other models: OpenAI's vocabularies are not Chinese RoFormer's.
        shown = (
            "got token ids: send the texts, as LangChain's OpenAIEmbeddings does with "
            "check_embedding_ctx_length=False"
        )
    raise PydanticCustomError(
        "texts", "must be a text or a list of texts, {shown}", {"shown": shown}
    )


_Texts = Annotated[
    str | Annotated[list[str], Field(max_length=MOST_TEXTS)],
    BeforeValidator(_check_texts),
]


class StreamOptions(Request):
    """Headers of a stream."""

    include_usage: bool | None = None


class Embeddings(Request):
    """A request of `/v1/embeddings`."""

    input: _Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None
    user: str | None = None


class Document(Request):
    """A text in an object, as some clients send it."""

    text: str


class Ranking(Request):
    """A request of `/v1/rerank` and `/v2/rerank`, as in the APIs of Cohere and Jina."""

    query: str
    documents: Annotated[list[str | Document], Field(max_length=MOST_TEXTS)]
    model: str | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None


class Completions(Request):
    """A request of `/v1/completions`."""

    prompt: _Texts
    model: str | None = None
    max_tokens: int | None = Field(16, ge=1)
    temperature: float | None = Field(1.0, ge=0, le=100)
    top_p: float | None = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    n: int | None = Field(1, ge=1, le=128)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    # OpenAI's clients send these; other values than these are not covered.
    echo: Literal[False] | None = None
    logprobs: None = None
    best_of: Literal[1] | None = None
    suffix: None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None

    def options(self) -> dict[str, Any]:
        """The options of `generate`."""
        new_tokens = self.max_tokens or 16
        options: dict[str, Any] = {"max_new_tokens": new_tokens, "top_k": self.top_k}
        is_greedy, n = self.temperature == 0, self.n or 1
        if self.stream_options and not self.stream:
            raise Refusal(400, "stream_options needs stream=true")
        if self.stream and not isinstance(self.prompt, str) and len(self.prompt) > 1:
            raise Refusal(400, "one prompt can be streamed, got several")
        if is_greedy:
            # OpenAI takes the likeliest token at a temperature of 0. Its clients send
            # top_p all the same, and not top_k.
            options["method"] = "greedy"
        else:
            options["temperature"] = self.temperature or 1.0
            options["top_p"] = self.top_p or 1.0
        if n > 1:
            if self.stream or is_greedy:
                raise Refusal(400, "n above 1 needs stream=false and temperature > 0")
            options["num_return_sequences"] = n
        if self.stop:
            stops = [self.stop] if isinstance(self.stop, str) else self.stop
            options["stop_tokens"] = tuple(stops)
        if self.seed is not None:
            options["seed"] = self.seed
        return options


class EmbeddingStyle(Style):
    """Vectors of texts, as in OpenAI's API."""

    base = Embeddings

    def options(self, body):
        if body.dimensions is not None and not 1 <= body.dimensions <= self.model.dim:
            raise Refusal(400, f"dimensions must be from 1 to {self.model.dim}")
        return super().options(body)

    def response(self, body, rows, answers, tokens):
        if body.dimensions not in (None, self.model.dim):
            # As OpenAI does: the first ones, of length 1 again.
            answers = unit_rows(np.stack(answers)[:, : body.dimensions])

        def shown(vector):
            if body.encoding_format != "base64":
                return vector.tolist()
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()

        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": shown(vector)}
                for index, vector in enumerate(answers)
            ],
            "model": self.model_name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }


class RankingStyle(Style):
    """Scores of texts for a query, as in the API of Cohere and of Jina."""

    base = Ranking

    def rows(self, body):
        texts = (one if isinstance(one, str) else one.text for one in body.documents)
        return [(body.query, text) for text in texts]

    def response(self, body, rows, answers, tokens):
        results = []
        for number in np.argsort(-np.asarray(answers), kind="stable")[: body.top_n]:
            score = float(answers[number])
            result: dict = {"index": int(number), "relevance_score": score}
            if body.return_documents:
                result["document"] = {"text": rows[number][1]}
            results.append(result)
        usage = {"total_tokens": tokens}
        return {"model": self.model_name, "results": results, "usage": usage}


class CompletionStyle(Style):
    """Continuations of prompts, as in OpenAI's API."""

    base = Completions

    def options(self, body):
        return body.options() | super().options(body)

    def answer(self, verb, rows, on_step=None):
        model, tokenizer = self.model.loaded.model, self.model.loaded.tokenizer
        stops = stop_ids_of(model, verb.stop_tokens)
        arguments = {**verb.arguments(), "return_scores": False}
        prompts = [as_ids(model, text) for (text,) in rows]

        def written(ids):
            """A text, its number of tokens, and why it ended."""
            shown = ids[:-1] if ids[-1] in stops else ids
            return tokenizer.decode(shown), len(ids), _reason(ids, stops)

        texts = model.generate(prompts, **arguments, on_step=on_step, verbose=0)
        return [list(map(written, copies)) for copies in texts]

    def events(self, verb, body, row, tokens):
        return CompletionEvents(self, verb, body, row, tokens) if body.stream else None

    def response(self, body, rows, answers, tokens):
        texts = [text for copies in answers for text in copies]
        return {
            **_head(self.model_name),
            "choices": [
                _choice(index, text, reason)
                for index, (text, _, reason) in enumerate(texts)
            ],
            "usage": _usage(tokens, sum(count for _, count, _ in texts)),
        }


class CompletionEvents:
    """The lines of a stream of `/v1/completions`."""

    def __init__(self, style, verb, body, row, tokens):
        self._model, self._verb, self._row = style.model.loaded.model, verb, row
        self._options, self._tokens = body.stream_options, tokens
        self._head = _head(style.model_name)
        self._ids: list[int] = []

    def start(self):
        """Pieces of a text, one for each token; "" where it shows nothing yet."""
        arguments = {**self._verb.stream_arguments(), "on_token": self._ids.append}
        return stream_steps(self._model, self._row[0], **arguments, shows_stop=False)

    def piece(self, text: str, reason: str | None = None) -> str:
        """A piece of the text, or with a reason its end."""
        return _event({**self._head, "choices": [_choice(0, text, reason)]})

    def error(self, refusal: Refusal) -> str:
        """An error, after which nothing comes."""
        return _event(refusal.content)

    def end(self) -> str:
        """The reason of the end, and the numbers of tokens if the client wants them."""
        stops = stop_ids_of(self._model, self._verb.stop_tokens)
        end = self.piece("", _reason(self._ids, stops))
        if self._options and self._options.include_usage:
            usage = _usage(self._tokens, len(self._ids))
            end += _event({**self._head, "choices": [], "usage": usage})
        return f"{end}data: [DONE]\n\n"


# The names that `Route.style` has.
STYLES: dict[str, type[Style]] = {
    "": Style,
    "embeddings": EmbeddingStyle,
    "completions": CompletionStyle,
    "ranking": RankingStyle,
}


def models_answer(names: Sequence[str], started: float, abilities: list[str]) -> dict:
    """The answer of `/v1/models`."""
    head = {"object": "model", "created": int(started), "owned_by": "roformer-keras"}
    models = [{"id": name, **head, "abilities": abilities} for name in names]
    return {"object": "list", "data": models}


def _head(model):
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def _event(content):
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _reason(ids, stops):
    return "stop" if ids and ids[-1] in stops else "length"


def _usage(prompt_tokens, new_tokens):
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
    }


def _choice(index, text, reason):
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}

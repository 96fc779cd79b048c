"""Requests and answers in the formats of OpenAI, and of Cohere and Jina."""

import base64
import json
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from roformer_keras.server.errors import Refusal
from roformer_keras.server.models import Written
from roformer_keras.server.options import MOST_TEXTS


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


class Request(BaseModel):
    """The body of a request, or an object in it; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


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

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


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

    @property
    def wants_usage(self) -> bool:
        """True if the numbers of tokens stand at the end of a stream."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def options(self) -> dict[str, Any]:
        """The options of `generate`."""
        options: dict[str, Any] = {"max_new_tokens": self.max_tokens or 16}
        is_greedy, n = self.temperature == 0, self.n or 1
        if self.stream_options and not self.stream:
            raise Refusal(400, "stream_options needs stream=true")
        if is_greedy:
            # OpenAI takes the likeliest token at a temperature of 0. Its clients send
            # top_p all the same, and not top_k.
            options |= {"method": "greedy", "top_k": self.top_k}
        else:
            options |= {"temperature": self.temperature or 1.0, "top_k": self.top_k}
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


def embeddings_answer(
    vectors: Sequence[np.ndarray], tokens: int, model: str, encoding: str | None
) -> dict:
    """The answer of `/v1/embeddings`; base64 is of little-endian float32."""

    def shown(vector):
        if encoding != "base64":
            return vector.tolist()
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()

    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": shown(vector)}
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def completion_answer(
    written: Sequence[Sequence[Written]], prompt_tokens: int, model: str
) -> dict:
    """The answer of `/v1/completions`, of the texts of each prompt."""
    texts = [one for found in written for one in found]
    new = sum(one.tokens for one in texts)
    return {
        **_head(model),
        "choices": [
            _choice(index, one.text, "stop" if one.is_ended else "length")
            for index, one in enumerate(texts)
        ],
        "usage": _usage(prompt_tokens, new),
    }


class CompletionEvents:
    """The lines of a stream of `/v1/completions`."""

    def __init__(self, model: str):
        self._head = _head(model)

    def piece(self, text: str, reason: str | None = None) -> str:
        """A piece of the text, or with a reason its end."""
        event = {**self._head, "choices": [_choice(0, text, reason)]}
        return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"

    def usage(self, prompt_tokens: int, new_tokens: int) -> str:
        """The numbers of tokens."""
        usage = _usage(prompt_tokens, new_tokens)
        return f"data: {json.dumps({**self._head, 'choices': [], 'usage': usage})}\n\n"

    @staticmethod
    def error(refusal: Refusal) -> str:
        """An error, after which nothing comes."""
        return f"data: {json.dumps(refusal.content, ensure_ascii=False)}\n\n"

    @staticmethod
    def end() -> str:
        return "data: [DONE]\n\n"


def ranking_answer(
    texts: Sequence[str], scores: Sequence[float], body: Ranking, tokens: int, name: str
) -> dict:
    """The answer to a `Ranking`, the best text first."""
    results = []
    for number in np.argsort(-np.asarray(scores), kind="stable")[: body.top_n]:
        result: dict = {"index": int(number), "relevance_score": float(scores[number])}
        if body.return_documents:
            result["document"] = {"text": texts[number]}
        results.append(result)
    return {"model": name, "results": results, "usage": {"total_tokens": tokens}}


def models_answer(names: Sequence[str], started: float) -> dict:
    """The answer of `/v1/models`."""
    models = [
        {
            "id": name,
            "object": "model",
            "created": int(started),
            "owned_by": "roformer-keras",
        }
        for name in names
    ]
    return {"object": "list", "data": models}


def _head(model):
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def _usage(prompt_tokens, new_tokens):
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
    }


def _choice(index, text, reason):
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}

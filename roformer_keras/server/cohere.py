"""Requests and answers of ranking, in the format of Cohere and Jina."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from roformer_keras.server.openai import Request
from roformer_keras.server.options import MOST_TEXTS


class Document(Request):
    """A text in an object, as some clients send it."""

    text: str


class Ranking(Request):
    """A request of `/v1/rerank`."""

    query: str
    documents: Annotated[list[str | Document], Field(max_length=MOST_TEXTS)]
    model: str | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


def ranking_answer(
    texts: Sequence[str], scores: Sequence[float], body: Ranking, tokens: int, name: str
) -> dict:
    """The answer of `/v1/rerank`, the best text first."""
    results = []
    for number in np.argsort(-np.asarray(scores), kind="stable")[: body.top_n]:
        result: dict = {"index": int(number), "relevance_score": float(scores[number])}
        if body.return_documents:
            result["document"] = {"text": texts[number]}
        results.append(result)
    return {"model": name, "results": results, "usage": {"total_tokens": tokens}}

"""Requests: pydantic models made from the options of verbs."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
from pydantic import BaseModel, Field

from roformer_keras.server import openai
from roformer_keras.server.options import MOST_TEXTS
from roformer_keras.verbs.embed import Embed, Similarity
from roformer_keras.verbs.fill_mask import FillMask
from roformer_keras.verbs.predict import Predict
from roformer_keras.verbs.search import Rerank, Search
from roformer_keras.verbs.verb import Row, Verb
from roformer_keras.verbs.writing import Generate, Paraphrase

# Bounds of a field of settings, and pydantic's names of them.
_BOUNDS = {"minimum": "ge", "maximum": "le", "above": "gt", "below": "lt"}
NO_OBJECT = (
    "the body must be a JSON object in UTF-8, sent with the header Content-Type: "
    "application/json"
)
# Words of pydantic, and those of JSON.
_WORDS = (
    ("^Field required$", "must be given"),
    (r"a valid (list|tuple)\b", "a list"),
    (r"a valid string\b", "a text"),
    (r"a valid (\w+), unable .*", r"a \1"),
    ("^Input should be a (?=integer)", "must be an "),
    ("^Input should be", "must be"),
)
_SOURCE = ("source", "config", "vocabulary", "batch_tokens", "batch_size", "engine")


class Texts(openai.Request):
    """Texts, and options."""

    texts: list[str] = Field(max_length=MOST_TEXTS)


class Pairs(openai.Request):
    """Pairs of texts."""

    pairs: list[tuple[str, str]] = Field(max_length=MOST_TEXTS)


class Rows(openai.Request):
    """Rows of as many texts as the task takes."""

    rows: list[str | Annotated[list[str], Field(max_length=64)]] = Field(
        max_length=MOST_TEXTS
    )


class Queries(openai.Request):
    """Queries, and options."""

    queries: list[str] = Field(max_length=MOST_TEXTS)


class Route(NamedTuple):
    """A route of a verb, and how its requests differ from the options."""

    path: str
    base: type[BaseModel]
    texts: str
    answers: str = ""
    left_out: Sequence[str] = _SOURCE
    renamed: Mapping[str, str] = {}
    changes: Mapping[str, Mapping[str, Any]] = {}
    others: Sequence[str] = ()

    def rows(self, body: Any) -> list[Row]:
        """The rows of texts of a request."""
        texts = getattr(body, self.texts)
        return [(row,) if isinstance(row, str) else tuple(row) for row in texts]

    def options(self, body: Any, kind: type[Verb]) -> dict[str, Any]:
        """The options that a request has, besides those of its base."""
        return {
            name: getattr(body, self.renamed.get(name, name))
            for name in kind.option_names()
            if name not in self.left_out
            and self.renamed.get(name, name) not in self.base.model_fields
        }


ROUTES: dict[type[Verb], Route] = {
    Embed: Route(
        "/v1/embeddings",
        openai.Embeddings,
        "input",
        left_out=(*_SOURCE, "max_length", "normalize", "dtype"),
    ),
    Generate: Route(
        "/v1/completions",
        openai.Completions,
        "prompt",
        left_out=(
            *_SOURCE,
            "model",
            "unilm",
            "method",
            "num_beams",
            "length_penalty",
            "max_length",
            "min_length",
            "min_new_tokens",
        ),
        renamed={
            "max_new_tokens": "max_tokens",
            "num_return_sequences": "n",
            "stop_tokens": "stop",
        },
    ),
    Similarity: Route(
        "/similarity",
        Pairs,
        "pairs",
        "similarity",
        left_out=(*_SOURCE, "max_length"),
    ),
    Search: Route(
        "/search",
        Queries,
        "queries",
        "results",
        left_out=(*_SOURCE, "max_length", "index"),
        changes={"top_k": {"le": 100}},
    ),
    Rerank: Route(
        "/v1/rerank",
        openai.Ranking,
        "documents",
        "results",
        left_out=(*_SOURCE, "max_length"),
        others=("/v2/rerank",),
    ),
    Paraphrase: Route(
        "/paraphrase",
        Texts,
        "texts",
        "paraphrases",
        left_out=(*_SOURCE, "masked_positions", "max_length"),
        renamed={"max_new_tokens": "max_tokens"},
        changes={
            "n": {"default": 20, "le": 1000},
            "k": {"default": 10, "le": 1000},
            "max_new_tokens": {"default": 64},
            "temperature": {"le": 100},
            "seed": {"le": 2**63 - 1},
        },
    ),
    FillMask: Route(
        "/fill-mask", Texts, "texts", "masks", changes={"top_k": {"le": 100}}
    ),
    Predict: Route("/predict", Rows, "rows", "answers"),
}


def request_model(kind: type[Verb], route: Route) -> type[BaseModel]:
    """The model of the requests of a route: its base, and the options of its verb."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        name = route.renamed.get(field.name, field.name)
        is_own = name in route.base.model_fields or field.name in route.left_out
        if not is_own and field.init:
            rules = {
                _BOUNDS[bound]: value
                for bound, value in field.metadata.items()
                if bound in _BOUNDS and value is not None
            }
            changes = dict(route.changes.get(field.name, {}))
            default = changes.pop("default", field.default)
            fields[name] = (_type(field, default), Field(default, **(rules | changes)))
    return pydantic.create_model(
        f"{kind.__name__}Request", __base__=route.base, **fields
    )


def explain_invalid(errors: Sequence[Mapping], fields: Collection[str]) -> str:
    """Says which field of a request breaks which rule."""
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    error = (unknown or errors)[0]
    if not error["loc"]:
        reason = error.get("ctx", {}).get("error")
        return f"{NO_OBJECT}: {reason}" if reason else NO_OBJECT
    field = ".".join(map(str, error["loc"]))[:80]
    if unknown:
        near = difflib.get_close_matches(field, fields, n=1)
        hint = f"did you mean {near[0]}?" if near else "see /openapi.json"
        return f"{field}: this route has no such field: {hint}"
    text = error["msg"]
    for theirs, ours in _WORDS:
        text = re.sub(theirs, ours, text)
    return f"{field}: {text:.200}"


def _type(field, default):
    """The type of an option, which takes null only if that is its default."""
    if choices := field.metadata.get("choices"):
        return Literal[choices]
    kinds = [one for one in typing.get_args(field.type) if one is not type(None)]
    if len(kinds) == 1 and default is not None:
        return kinds[0]
    return field.type

"""Bodies of requests: what is refused, in which words."""

import json

import pytest

from roformer_keras.server.errors import Refusal
from roformer_keras.server.openai import STYLES
from roformer_keras.server.requests import SERVED
from roformer_keras.verbs.registered import VERBS

NO_FIELD = "this route has no such field: "
TOKEN_IDS = (
    "must be a text or a list of texts, got token ids: send the texts, as LangChain's "
    "OpenAIEmbeddings does with check_embedding_ctx_length=False"
)
OTHER = "must be a text or a list of texts, got something else"
# Verb, body, and what is said of it.
INVALID = [
    ("embed", {}, "input: must be given"),
    ("embed", {"inputs": "今"}, f"inputs: {NO_FIELD}did you mean input?"),
    ("embed", {"input": "今", "qqq": 1}, f"qqq: {NO_FIELD}see /openapi.json"),
    ("embed", {"input": "今", "dimensions": "x"}, "dimensions: must be an integer"),
    ("embed", {"input": "今", "model": 3}, "model: must be a text"),
    ("embed", {"input": "今", "encoding_format": "x"}, "format: must be 'float' or"),
    ("embed", {"input": ["今"] * 2049}, "input."),
    ("similarity", {"pairs": ["今", "天"]}, "pairs.0: must be a list"),
    ("similarity", {"pairs": "今"}, "pairs: must be a list"),
    ("paraphrase", {"texts": "今"}, "texts: must be a list"),
    ("paraphrase", {"texts": ["今"], "n": 0}, "n: must be greater than or equal to 1"),
    ("paraphrase", {"texts": ["今"], "max_new_tokens": 1}, "did you mean max_tokens?"),
    *(
        (verb, {field: texts}, f"{field}: {message}")
        for verb, field in (("embed", "input"), ("generate", "prompt"))
        for texts, message in (
            ([101, 413, 102], TOKEN_IDS),
            ([[101, 413], [102]], TOKEN_IDS),
            (None, OTHER),
            (3, OTHER),
            ({"text": "今"}, OTHER),
            (["今", 3], OTHER),
        )
    ),
]


def style_of(name):
    kind = VERBS[name]
    needed = dict.fromkeys(kind.route.needs, "x")
    return STYLES[kind.route.style](kind(source="x", **needed), None, "x")


def read(name, body, kind="application/json"):
    return style_of(name).read(kind, json.dumps(body).encode())


def test_a_request_is_json_by_its_type():
    read("embed", {"input": "今"}, "application/json; charset=utf-8")
    for kind in ("text/plain", ""):
        with pytest.raises(Refusal, match="the body must be a JSON object"):
            read("embed", {"input": "今"}, kind)


@pytest.mark.parametrize(("name", "body", "message"), INVALID)
def test_an_invalid_field_is_named_in_words_of_json(name, body, message):
    with pytest.raises(Refusal) as caught:
        read(name, body)
    assert caught.value.status == 422
    assert message in caught.value.message
    assert "Input" not in caught.value.message and "valid" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "field"), [("embed", "input"), ("generate", "prompt")]
)
def test_a_text_is_a_row_and_so_is_each_of_a_list(name, field):
    for texts, rows in (
        ("今", [("今",)]),
        (["今", "天"], [("今",), ("天",)]),
        ([], []),
    ):
        assert style_of(name).rows(read(name, {field: texts})) == rows
    schema = style_of(name).body.model_json_schema()["properties"][field]
    assert schema["anyOf"][0] == {"type": "string"}


@pytest.mark.parametrize("name", VERBS)
def test_a_route_has_the_options_of_its_verb(name):
    style = style_of(name)
    options, route = {*style.verb.option_names()}, style.route
    # No name is of an option that is gone.
    assert {*route.left_out, *route.renamed, *route.changes} <= options
    fields = {route.renamed.get(option, option) for option in options}
    hidden = {*SERVED, *route.left_out}
    assert {*style.body.model_fields} >= fields - hidden
    assert {*style.body.model_fields}.isdisjoint(hidden - {"model"})

"""Bodies of requests: what is refused, in which words."""

import json

import pytest
from pydantic import ValidationError

from roformer_keras.server.openai import Completions, Embeddings
from roformer_keras.server.requests import ROUTES, explain_invalid, request_model
from roformer_keras.verbs.embed import Embed, Similarity
from roformer_keras.verbs.writing import Paraphrase

# Route, body, and what is said of it.
INVALID = [
    (Embed, {}, "input: must be given"),
    (
        Embed,
        {"inputs": "今"},
        "inputs: this route has no such field: did you mean input?",
    ),
    (
        Embed,
        {"input": "今", "qqq": 1},
        "qqq: this route has no such field: see /openapi.j",
    ),
    (Embed, {"input": "今", "dimensions": "x"}, "dimensions: must be an integer"),
    (Embed, {"input": "今", "model": 3}, "model: must be a text"),
    (
        Embed,
        {"input": "今", "encoding_format": "x"},
        "encoding_format: must be 'float' or",
    ),
    (Similarity, {"pairs": ["今", "天"]}, "pairs.0: must be a list"),
    (Similarity, {"pairs": "今"}, "pairs: must be a list"),
    (Paraphrase, {"texts": "今"}, "texts: must be a list"),
    (Paraphrase, {"texts": ["今"], "n": 0}, "n: must be greater than or equal to 1"),
    (Paraphrase, {"texts": ["今"], "max_new_tokens": 1}, "did you mean max_tokens?"),
]


@pytest.mark.parametrize(("verb", "content", "message"), INVALID)
def test_an_invalid_field_is_named_in_words_of_json(verb, content, message):
    model = request_model(verb, ROUTES[verb])
    with pytest.raises(ValidationError) as caught:
        model.model_validate(content)
    text = explain_invalid(caught.value.errors(), model.model_fields)
    assert message in text
    assert "Input" not in text and "valid" not in text


TOKEN_IDS = (
    "must be a text or a list of texts, got token ids: send the texts, as LangChain's "
    "OpenAIEmbeddings does with check_embedding_ctx_length=False"
)
OTHER = "must be a text or a list of texts, got something else"


@pytest.mark.parametrize(
    ("kind", "field"), [(Embeddings, "input"), (Completions, "prompt")]
)
def test_what_is_no_text_is_named(kind, field):
    for value, message in (
        ([101, 413, 102], TOKEN_IDS),
        ([[101, 413], [102]], TOKEN_IDS),
        (None, OTHER),
        (3, OTHER),
        ({"text": "今"}, OTHER),
        (["今", 3], OTHER),
    ):
        with pytest.raises(ValidationError) as caught:
            kind.model_validate_json(json.dumps({field: value}))
        (error,) = caught.value.errors()
        assert (error["loc"], error["msg"]) == ((field,), message)
        # The server shows so many characters of it.
        assert len(message) <= 200
    for value in ("今", ["今", "天"], []):
        body = kind.model_validate_json(json.dumps({field: value}))
        assert getattr(body, field) == value
    with pytest.raises(ValidationError, match="at most 2048 items"):
        kind.model_validate({field: ["今"] * 2049})
    assert kind.model_json_schema()["properties"][field]["anyOf"][0] == {
        "type": "string"
    }

"""Bodies of requests: what is refused, in which words."""

import json

import pytest
from pydantic import ValidationError

from roformer_keras.server.openai import Completions, Embeddings

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

"""Errors that answer the words of bert4keras's users with this package's."""

import pytest

from roformer_keras.checks import check_names
from roformer_keras.config import RoFormerConfig
from roformer_keras.errors import ConfigurationError

SIZES = {
    "vocabulary_size": 9,
    "num_layers": 1,
    "num_heads": 1,
    "hidden_dim": 2,
    "intermediate_dim": 4,
}


def test_the_way_out_has_the_name_here():
    config = RoFormerConfig(**SIZES)
    with pytest.raises(ConfigurationError, match="has no field with_pool") as caught:
        config.replace(with_pool=True)
    assert "with_pool= of bert4keras is pooler_activation= here" in caught.value.hint
    with pytest.raises(ConfigurationError, match="no field maxlen, topk") as caught:
        check_names("Generation", "field", ["maxlen", "topk"], ["top_k"])
    assert "max_new_tokens=" in caught.value.hint and "top_k= here" in caught.value.hint


def test_other_names_have_no_such_hint():
    with pytest.raises(ConfigurationError) as caught:
        check_names("Generation", "field", ["colour"], ["top_k"])
    assert caught.value.hint == "leave out colour="

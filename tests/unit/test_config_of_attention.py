"""Fields of a configuration that choose the attention: which of them go together."""

import pytest

from roformer_keras.config import RoFormerConfig
from roformer_keras.errors import ConfigurationError

SIZES = {
    "vocabulary_size": 9,
    "num_layers": 1,
    "num_heads": 1,
    "hidden_dim": 2,
    "intermediate_dim": 4,
}
REFUSED = {
    "attention_type 'sparse'": {"attention_type": "sparse"},
    "unilm softmax": {"attention_type": "linear", "attention": "unilm"},
    "residual_attention_scores softmax": {
        "attention_type": "cosine",
        "residual_attention_scores": True,
    },
    "performer_features 'softmax'": {"performer_features": 8},
    "performer_features even 9": {
        "attention_type": "performer",
        "performer_features": 9,
    },
    "performer_features 0": {"attention_type": "performer", "performer_features": 0},
    "rotary True or False 'false'": {"rotary": "false"},
    "performer_seed -1": {"performer_seed": -1},
    "performer_seed True": {"performer_seed": True},
    "custom_position_ids": {"rotary": False, "custom_position_ids": True},
}


def test_fields_that_do_not_go_together_are_refused():
    wrong = []
    for words, fields in REFUSED.items():
        with pytest.raises(ConfigurationError) as caught:
            RoFormerConfig(**SIZES, **fields)
        if not all(word in str(caught.value) for word in words.split()):
            wrong.append((words, str(caught.value)))
    assert wrong == []

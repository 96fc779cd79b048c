"""RoFormerConfig: its rules, and what it makes of a `bert_config.json`."""

import dataclasses
import json

import pytest
from common import CHARACTER, zipped_json
from hostile.run import unrefused
from weight_cases import SIZES

from roformer_keras.base.checks import check_names
from roformer_keras.base.config import (
    MODEL_FIELDS,
    RoFormerConfig,
    config_for_model,
)
from roformer_keras.base.errors import ConfigurationError

BASE = {**SIZES, "vocabulary_size": 30, "intermediate_dim": 16}
BERT = {
    "vocab_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "hidden_act": "gelu",
}
NAN, INFINITY = float("nan"), float("inf")

WRONG = [
    *((name, (0, -3, 2.5, "8", None, True, [8], {}, NAN, INFINITY)) for name in BASE),
    ("num_segments", (0, -1, 1.5, None)),
    ("performer_seed", (-1, 1.5, "x", None)),
    *(
        (name, (0, -2, 1.5, "4", False))
        for name in (
            "embedding_dim",
            "attention_key_size",
            "layer_norm_cond_size",
            "layer_norm_cond_hidden_size",
        )
    ),
    *(
        (name, (-0.1, 1, 1.5, NAN, INFINITY, 10**400, "0.1", None, True, []))
        for name in ("dropout", "attention_dropout")
    ),
    *(
        (name, (0, -1e-7, NAN, INFINITY, 10**400, "1e-7", None, True))
        for name in ("layer_norm_epsilon", "initializer_range", "rotary_base")
    ),
    ("model_type", ("roformer_v3", "bert", None, [])),
    ("attention", ("lm", "encoder", None, ["unilm"])),
    ("attention_type", ("x", [], {})),
    ("rotary", (1, "False", None)),
    ("activation", ("os.system", "lambda x: x", "", {}, 3, None)),
    ("colour", ("red",)),
]


def test_wrong_field_is_named_with_its_value():
    cases = [
        (({**BASE, name: value},), f"{name}.*{'' if name == 'colour' else repr(value)}")
        for name, values in WRONG
        for value in values
    ]
    assert unrefused(cases, RoFormerConfig.from_dict, ConfigurationError) == []


# Rules between fields, and what their messages must say.
CONTRADICTORY = [
    ({"hidden_dim": 9}, ["hidden_dim=9", "num_heads=2"]),
    ({"hidden_dim": 6}, ["even", "3"]),
    ({"attention_key_size": 5}, ["even", "5"]),
    ({"with_nsp": True}, ["with_nsp", "pooler_activation", "'tanh'"]),
    ({"layer_norm_cond_hidden_size": 4}, ["layer_norm_cond_size"]),
    (
        {"model_type": "roformer_v2", "pooler_activation": "linear"},
        ["roformer_v2", "pooler_activation", "'linear'"],
    ),
    (
        {"model_type": "roformer_v2", "layer_norm_cond_size": 4},
        ["roformer_v2", "layer_norm_cond_size", "4"],
    ),
    ({"attention_type": "sparse"}, ["attention_type", "'sparse'"]),
    ({"attention_type": "linear", "attention": "unilm"}, ["unilm", "softmax"]),
    (
        {"attention_type": "cosine", "residual_attention_scores": True},
        ["residual_attention_scores", "softmax"],
    ),
    ({"performer_features": 8}, ["performer_features", "'softmax'"]),
    *(
        (
            {"attention_type": "performer", "performer_features": count},
            ["performer_features", word],
        )
        for count, word in ((9, "even"), (9, "9"), (0, "0"))
    ),
    ({"rotary": "false"}, ["rotary", "True or False", "'false'"]),
    ({"performer_seed": -1}, ["performer_seed", "-1"]),
    ({"performer_seed": True}, ["performer_seed", "True"]),
    ({"rotary": False, "custom_position_ids": True}, ["custom_position_ids"]),
]


def test_fields_that_contradict():
    cases = [
        (({**BASE, **fields},), part)
        for fields, parts in CONTRADICTORY
        for part in parts
    ]
    assert unrefused(cases, RoFormerConfig.from_dict, ConfigurationError) == []


def test_widths():
    config = RoFormerConfig(**BASE)
    assert (config.head_dim, config.key_dim, config.input_dim) == (4, 4, 8)
    config = config.replace(attention_key_size=6, embedding_dim=5)
    assert (config.head_dim, config.key_dim, config.input_dim) == (4, 6, 5)
    assert config.use_bias
    assert not config.replace(model_type="roformer_v2").use_bias


def test_is_frozen_and_equal_by_value():
    config = RoFormerConfig(**BASE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.dropout = 0.5
    assert config == RoFormerConfig(**BASE)
    assert hash(config) == hash(RoFormerConfig(**BASE))
    assert config != config.replace(dropout=0.5)


def test_dict_and_string_are_json_and_go_back():
    config = RoFormerConfig(
        **BASE, pooler_activation="tanh", embedding_dim=4, layer_norm_epsilon=1e-7
    )
    assert RoFormerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert RoFormerConfig.from_dict(json.loads(str(config))) == config


def test_replace_names_an_unknown_field():
    with pytest.raises(ConfigurationError, match="droput") as caught:
        RoFormerConfig(**BASE).replace(droput=0.1)
    assert "dropout" in str(caught.value)


def test_names_of_bert4keras_have_the_name_here_as_a_hint():
    with pytest.raises(ConfigurationError, match="has no field with_pool") as caught:
        RoFormerConfig(**BASE).replace(with_pool=True)
    assert "with_pool= of bert4keras is pooler_activation= here" in caught.value.hint
    for names, message, hints in (
        (("maxlen", "topk"), "no field maxlen, topk", ("max_new_tokens=", "top_k= he")),
        (("colour",), "no field colour", ()),
    ):
        with pytest.raises(ConfigurationError, match=message) as caught:
            check_names("Generation", "field", names, ["top_k"])
        assert all(hint in caught.value.hint for hint in hints)
    assert caught.value.hint == "leave out colour="


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_labels", "num_labels= of Transformers is num_classes=, or classes= with"),
        ("max_seq_length", "of sentence-transformers is max_length= here"),
        ("labels", "labels= of Keras-Hub is classes= here"),
        ("num_clases", "did you mean num_classes= for num_clases=?"),
    ],
)
def test_names_of_others_and_typing_errors_have_the_right_name_as_a_hint(name, hint):
    with pytest.raises(ConfigurationError, match=f"no argument {name}") as caught:
        check_names("Task", "argument", [name], ["num_classes", "dropout"])
    assert hint in caught.value.hint
    # A name that is here needs no list of all.
    assert "it has" not in caught.value.message


def test_from_dict_names_a_missing_field():
    fields = {name: value for name, value in BASE.items() if name != "num_heads"}
    with pytest.raises(ConfigurationError, match="num_heads"):
        RoFormerConfig.from_dict(fields)


def test_from_bert_config_takes_bert4keras_defaults():
    """Fields that the file lacks: no dropout, two segments, a deviation of 0.02."""
    config = RoFormerConfig.from_bert_config(BERT)
    assert config == RoFormerConfig(**BASE, dropout=0.0, attention_dropout=0.0)
    assert config.num_segments == 2
    assert config.initializer_range == 0.02
    assert config.activation == "gelu"


def test_from_bert_config_takes_every_field():
    fields = {"activation": "relu", "embedding_dim": 6, "attention_key_size": 10}
    fields |= {"num_segments": 3, "dropout": 0.1, "attention_dropout": 0.2}
    arguments = {"model_type": "roformer_v2", "layer_norm_epsilon": 1e-7}
    content = {"hidden_act": "relu", "embedding_size": 6, "attention_key_size": 10}
    content |= {"type_vocab_size": 3, "hidden_dropout_prob": 0.1}
    content |= {"attention_probs_dropout_prob": 0.2, "initializer_range": 0.01}
    # bert4keras passes over these.
    content |= {"directionality": "bidi", "pooler_fc_size": 768}
    config = RoFormerConfig.from_bert_config({**BERT, **content}, **arguments)
    assert config == RoFormerConfig(
        **BASE, **fields, **arguments, initializer_range=0.01
    )


def test_from_bert_config_names_what_is_missing():
    cases = [(({k: v for k, v in BERT.items() if k != name},), name) for name in BERT]
    cases += [((value,), type(value).__name__) for value in ([], "roformer", 12, None)]
    hidden_acts = (
        ("hidden_act .*null", None),
        *(("activation must", value) for value in (NAN, [], "os.system", "glu", 3)),
    )
    cases += [(({**BERT, "hidden_act": value},), text) for text, value in hidden_acts]
    wrong = unrefused(cases, RoFormerConfig.from_bert_config, ConfigurationError)
    assert wrong == []


def test_bert_config_round_trip():
    config = RoFormerConfig(
        **BASE, embedding_dim=4, attention_key_size=6, num_segments=3, activation="relu"
    )
    written = json.loads(json.dumps(config.to_bert_config()))
    assert RoFormerConfig.from_bert_config(written) == config
    # A field that is not set is not written: bert4keras would take None for a width.
    assert "embedding_size" not in RoFormerConfig(**BASE).to_bert_config()


def test_no_bert_config_says_another_rotary_base():
    with pytest.raises(ConfigurationError, match=r"rotary_base=8000\.0"):
        RoFormerConfig(**BASE, rotary_base=8000.0).to_bert_config()


def test_bert_config_of_a_reference_checkpoint():
    theirs = zipped_json(CHARACTER)
    ours = RoFormerConfig.from_bert_config(theirs).to_bert_config()
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }


@pytest.mark.parametrize("model", sorted(MODEL_FIELDS))
def test_config_for_model(model):
    stored = RoFormerConfig(
        **BASE, attention="unilm", pooler_activation="tanh", with_nsp=True
    )
    config = config_for_model(model, stored)
    assert config.attention == MODEL_FIELDS[model]["attention"]
    assert config.pooler_activation == MODEL_FIELDS[model].get("pooler_activation")
    assert not config.with_nsp
    # What the same class stored is used as it is; the caller's fields win in any case.
    assert config_for_model(model, stored, stored_as=model) == stored
    assert config_for_model(model, stored, dropout=0.3).dropout == 0.3
    assert config_for_model(model, stored, attention="causal").attention == "causal"


def test_config_for_an_unknown_model():
    with pytest.raises(ConfigurationError, match="'RoFormer'") as caught:
        config_for_model("RoFormer", RoFormerConfig(**BASE))
    assert "RoFormerMaskedLM" in str(caught.value)

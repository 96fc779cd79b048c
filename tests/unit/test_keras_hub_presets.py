"""Refusals of presets of Keras-Hub's own RoFormerV2."""

import pytest

from roformer_keras.conversion.keras_hub_preset import (
    open_keras_hub,
    own_classifier,
    tokenizer_of_keras_hub,
)
from roformer_keras.errors import ConfigurationError

FIELDS = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "head_size": 8,
    "use_bias": False,
    "activation": "relu",
    "max_wavelength": 5000,
}


def test_fields_are_mapped():
    saved, tensors = open_keras_hub({"config": FIELDS}, {}, "preset")
    config = saved["config"]
    assert (config.model_type, config.activation, config.rotary_base) == (
        "roformer_v2",
        "relu",
        5000,
    )
    assert (config.layer_norm_epsilon, tensors) == (1e-7, {})


REFUSED = [
    ({"head_size": 4}, "preset: head_size must be 8 for RoFormerV2, got 4"),
    ({"use_bias": True}, "preset: use_bias must be False for RoFormerV2, got True"),
    ({"num_layers": 0}, "num_layers must be"),
    ({"num_heads": "2"}, "num_heads must be"),
    ({"activation": "os.system"}, "activation must be"),
    ({"max_wavelength": 10**400}, "rotary_base must be"),
    ({"vocabulary_size": None}, "vocabulary_size must be"),
]


def test_other_fields_are_refused():
    rows = [({"config": {**FIELDS, **fields}}, message) for fields, message in REFUSED]
    rows += [({}, "must be an object"), ({"config": []}, "must be an object")]
    rows += [({"config": {}}, "must have vocab")]
    for content, message in rows:
        with pytest.raises(ConfigurationError, match=message):
            open_keras_hub(content, {}, "preset")


def test_other_tokenizers_are_refused():
    assert tokenizer_of_keras_hub({"lowercase": True}, "x") == {
        "level": "character",
        "lower_case": True,
    }
    for fields in ({"split": False}, {"suffix_indicator": "@@"}):
        with pytest.raises(ConfigurationError, match="give the vocabulary by"):
            tokenizer_of_keras_hub(fields, "x")


HEAD = {f"layers/dense/vars/{number}": object() for number in (0, 1)}
TASK = {
    "class_name": "KerasHubTextClassifier",
    "config": {"backbone": 1, "num_classes": 3, "activation": "linear", "dropout": 0.2},
}


def test_a_classifier_is_ours():
    seeds = {"layers/dropout/seed_generator/vars/0": object()}
    preprocessor = {"preprocessor": {"config": {"sequence_length": 64}}}
    content = {**TASK, "config": {**TASK["config"], **preprocessor}}
    task, head = own_classifier(content, {**HEAD, **seeds}, "preset")
    assert task["registered_name"] == "roformer_keras>RoFormerTextClassifier"
    assert task["config"] == {
        "backbone": 1,
        "num_classes": 3,
        "pooling": "first",
        "head_dropout": 0.2,
        "max_length": 64,
    }
    assert list(head) == ["classes/kernel", "classes/bias"]
    assert list(head.values()) == list(HEAD.values())


@pytest.mark.parametrize(
    ("fields", "head"),
    [
        ({"activation": "tanh"}, HEAD),
        ({"activation": ["linear"]}, HEAD),
        ({"activation": None}, HEAD),
        ({}, {}),
    ],
)
def test_another_head_is_left_out(fields, head):
    content = {**TASK, "config": {**TASK["config"], **fields}}
    with pytest.warns(UserWarning, match="'KerasHubTextClassifier' is left out"):
        assert own_classifier(content, head, "preset") == (None, {})
    with pytest.warns(UserWarning, match="'KerasHubTextClassifier' is left out"):
        assert own_classifier({**TASK, "config": [1]}, head, "preset") == (None, {})

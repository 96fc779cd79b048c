"""Settings of a fine-tuning: rules of fields, alone and together."""

import json

import pytest

from roformer_keras.errors import ConfigurationError
from roformer_keras.training.finetuning_settings import FinetuningSettings


def settings_of(train, task="text-classification", **changes):
    return FinetuningSettings.from_dict({"task": task, "train": train, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "translation"}, "task must be one of 'text-classification'"),
        ({"epochs": 0}, "epochs must be an integer from 1 to 1000000"),
        ({"epochs": "3"}, "epochs must be an integer from 1 to 1000000, got '3'"),
        ({"holdout": 1.0}, r"holdout must be a number in \[0, 1\)"),
        ({"warmup_ratio": -0.1}, "warmup_ratio must be a number"),
        ({"layer_decay": 0.0}, r"layer_decay must be a number in \(0, 1\]"),
        ({"schedule": "cosine"}, "schedule must be one of 'linear', 'constant'"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"seed": 2**32}, r"seed must be an integer from 0"),
        ({"batch_size": 5, "accumulation": 2}, "must be a multiple of accumulation"),
        ({"holdout": 0.1, "valid": "v.tsv"}, "give valid or holdout, not both"),
        (
            {"valid": "-"},
            "valid must be a file, which .* got '-': write standard input",
        ),
        ({"holdout_by": ["1"]}, "give holdout, got holdout=0.0"),
        ({"monitor": "loss"}, "monitor needs data that are not trained on"),
        ({"patience": 3}, "patience needs data that are not trained on"),
        ({"adversarial_epsilon": 1.0, "lora_rank": 4}, "which lora_rank freezes"),
        (
            {"adversarial_epsilon": 1.0, "freeze_embeddings": True},
            "which freeze_embeddings freezes",
        ),
        (
            {"layer_decay": 0.9, "optimizer": {"name": "lamb"}},
            "layer_decay needs optimizer adamw, got 'lamb'",
        ),
        ({"task": "triplet-ranking", "r_drop": 1.0}, "r_drop works only for"),
        ({"task": "triplet-ranking", "pairs": True}, "pairs are for tasks of one"),
        ({"task": "multiple-choice", "pairs": True}, "pairs are for tasks of one"),
        (
            {"task": "text-regression", "class_weights": "balanced"},
            "class_weights works",
        ),
        (
            {"options": {"multi_label": True}, "class_weights": "balanced"},
            "class_weights must be of one class a row",
        ),
        ({"class_weights": {"好": "x"}}, "class_weights of 好 must be a finite number"),
        ({"lora_alpha": 8.0}, "which lora_rank turns on; got lora_rank=0"),
        ({"lora_targets": ["key"]}, "which lora_rank turns on; got lora_rank=0"),
        ({"class_weights": "even"}, "class_weights must be 'balanced' or a table"),
        ({"task": "sentence-embedding", "batch_size": 1}, "at least 2 times accumu"),
        ({"optimizer": 3}, r"optimizer must be an OptimizerSettings, got 3"),
        ({"colour": 1}, "FinetuningSettings has no field colour; it has task"),
    ],
)
def test_settings_that_break_a_rule(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        settings_of("a.tsv", **changes)


def test_settings_come_back_from_json():
    settings = settings_of(
        *("a.tsv", "text-regression"),
        fields=[1, 2, 3],
        optimizer={"ema": 0.9},
        lora_rank=2,
        lora_targets=["key"],
    )
    assert settings.fields == ("1", "2", "3")
    assert settings.text_count == 2
    again = FinetuningSettings.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings

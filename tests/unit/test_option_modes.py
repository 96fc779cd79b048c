"""Options of trainings count or are refused, in every mode.

A mode is the values of the settings that decide. A new option needs a line here: it
counts always, or has a value that is refused where it does not count.
"""

import dataclasses

import pytest

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.task_registry import TASKS
from roformer_keras.tables.corpus import CorpusSource
from roformer_keras.tasks.finetuning_settings import FinetuningSettings
from roformer_keras.tasks.optimizer_settings import OptimizerSettings
from roformer_keras.training.pretraining_settings import (
    OBJECTIVE_NAMES,
    PretrainingSettings,
    TrainingStage,
)

LAMB = {"name": "lamb"}
HELD_OUT = [{"files": ["a.txt"], "holdout": 0.1}]
# Settings, what all modes have, the modes, and a value of each option that does not
# always count.
FINETUNING = (
    FinetuningSettings,
    {"train": "a.tsv"},
    [
        *({"task": task} for task in TASKS),
        *(
            {"task": "text-classification", **mode}
            for mode in (
                *({"valid": "b.tsv"}, {"holdout": 0.1}, {"lora_rank": 2}),
                *({"freeze_embeddings": True}, {"optimizer": LAMB}),
                {"holdout": 0.1, "keep_best": False},
                {"holdout": 0.1, "keep_best": False, "patience": 2},
            )
        ),
    ],
    {
        "holdout_by": ["1"],
        "layer_decay": 0.9,
        "lora_alpha": 2.0,
        "lora_targets": ["key"],
        "freeze_embeddings": True,
        "adversarial_epsilon": 0.1,
        "r_drop": 0.1,
        "class_weights": "balanced",
        "monitor": "loss",
        "patience": 1,
        "keep_best": False,
    },
)
PRETRAINING = (
    PretrainingSettings,
    {"data": [{"files": ["a.txt"]}], "stages": [{"steps": 9}]},
    [
        *(
            {"objective": name, **({"teacher": "t.zip"} if "dist" in name else {})}
            for name in OBJECTIVE_NAMES
        ),
        *(
            {"objective": "mlm", **mode}
            for mode in (
                *({"source": "a.zip"}, {"vocabulary": "v.txt"}, {"data": HELD_OUT}),
                {"source": "a.zip", "vocabulary": "v.txt"},
            )
        ),
    ],
    {
        "initialize_heads": True,
        "ignore": ["x"],
        "subwords": True,
        "lower_case": False,
        "min_count": 2,
        "max_vocabulary": 99,
        "packed": True,
        "evaluate_every": 50,
        "evaluation_batches": 3,
    },
)
CORPUS = (CorpusSource, {"files": ["a.tsv"]}, [{}, {"holdout": 0.1}], {"group": "1"})
# A check of several settings holds these, or they count always.
ALWAYS = {
    FinetuningSettings: "task train source ignore valid test holdout fields format "
    "header encoding on_bad_row pairs options model max_length epochs batch_size "
    "accumulation learning_rate warmup_ratio schedule optimizer lora_rank "
    "freeze_layers dtype gradient_checkpointing seed",
    PretrainingSettings: "objective data stages name source model vocabulary options "
    "teacher optimizer dtype seed log_every save_every average_checkpoints",
    CorpusSource: "files fields format header encoding holdout",
    OptimizerSettings: "name beta_1 beta_2 epsilon weight_decay clip_norm ema",
    TrainingStage: "steps length batch_size learning_rate schedule accumulation",
}


@pytest.mark.parametrize("kind", ALWAYS, ids=lambda kind: kind.__name__)
def test_every_option_declares_with_which_settings_it_counts(kind):
    fields = dataclasses.fields(kind)
    declared = {field.name for field in fields if field.metadata.get("only")}
    assert {field.name for field in fields} - declared == {*ALWAYS[kind].split()}
    values = {table[0]: table[3] for table in (FINETUNING, PRETRAINING, CORPUS)}
    assert declared == values.get(kind, {}).keys()


@pytest.mark.parametrize(
    ("kind", "common", "modes", "values"), [FINETUNING, PRETRAINING, CORPUS]
)
def test_an_option_counts_or_is_refused(kind, common, modes, values):
    counted = set()
    for mode in modes:
        settings = kind.from_dict({**common, **mode})
        for name in values.keys() - mode.keys():
            changes = {name: values[name]}
            if name == "subwords":
                changes["max_vocabulary"] = 99
            field = kind.__dataclass_fields__[name]
            only = field.metadata["only"]
            try:
                kind.from_dict({**common, **mode, **changes})
                counted.add(name)
            except ConfigurationError as error:
                assert f"{name} counts only with {only.words}" in str(error) or (
                    name == "subwords" and "max_vocabulary counts only" in str(error)
                )
                # The default passes everywhere.
                default = {name: getattr(settings, name)}
                assert kind.from_dict({**common, **mode, **default}) == settings
    # None is refused in all modes, and none counts in all that are listed.
    assert counted == values.keys()

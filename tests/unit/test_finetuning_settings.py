"""Settings of a fine-tuning: rules of fields, alone and together."""

import json

from hostile.run import unrefused

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli import finetune
from roformer_keras.tasks.finetuning_settings import FinetuningSettings


def settings_of(train, task="text-classification", **changes):
    return FinetuningSettings.from_dict({"task": task, "train": train, **changes})


NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**30
NO_NUMBERS = (NAN, INFINITY, -1, "x", True, [], {})
# Names of fields, values, and what they must be.
FIELDS = [
    ("epochs", (0, 1e400, "3", *NO_NUMBERS), "an integer from 1 to 1000000"),
    ("batch_size accumulation", (0, 1.5, HUGE, *NO_NUMBERS), "an integer from 1"),
    ("seed", (2**32, 1.0, *NO_NUMBERS), "an integer from 0 to 4294967295"),
    ("max_length", ("x", 1.5, NAN, True, []), "an integer or None"),
    ("lora_rank", (10**12, *NO_NUMBERS), "an integer from 0 to 1048576"),
    ("freeze_layers", NO_NUMBERS, "an integer of at least 0"),
    ("patience", (0, *NO_NUMBERS), "an integer of at least 1"),
    ("learning_rate", (1e300, HUGE, *NO_NUMBERS), "a number from 0 to 100"),
    ("holdout warmup_ratio", (1, 1.0, -0.1, None, *NO_NUMBERS), "a number in [0, 1)"),
    ("layer_decay", (0.0, 1.5, *NO_NUMBERS), "a number in (0, 1]"),
    ("adversarial_epsilon r_drop", NO_NUMBERS, "a finite number of at least 0"),
    ("lora_alpha", (NAN, INFINITY, "x", True, []), "a finite number or None"),
    ("pairs keep_best freeze_embeddings", (1, "no", None, []), "True or False"),
    ("gradient_checkpointing", (1, "no", None, []), "True or False"),
    ("task", ("translation", 3, None, []), "one of 'text-classification'"),
    ("schedule", ("cosine", 3, None, []), "one of 'linear', 'constant'"),
    ("dtype", ("float8", "float16", None, []), "one of 'float32', 'mixed_bfloat16',"),
    ("on_bad_row", ("ignore", ["skip"]), "one of 'error', 'skip'"),
    ("format", ("xml", "tsv\0", ""), "one of None, 'csv', 'tsv', 'txt', 'xlsx',"),
    ("header", ("", "second", True), "one of None, 'first', 'none'"),
    ("encoding", ("latin-1", None), "one of 'utf-8', 'gbk', 'gb18030', 'big5',"),
    ("train source", (3, [], None), "a string"),
    ("fields", (3, [1.5, 2], [[1], 2]), "a list of strings"),
    ("options model", (3, [], "x", None), "a table"),
    ("optimizer", (3, "adamw"), "an OptimizerSettings"),
    ("class_weights", (3, []), "a string or a table or None"),
]
OPTIMIZER = [
    ({"name": "lion"}, "name must be one of 'adamw', 'lamb', got 'lion'"),
    ({"name": ["adamw"]}, "name must be one of 'adamw', 'lamb', got ['adamw']"),
    ({"colour": 1}, "optimizer has no field colour; it has name, beta_1, beta_2,"),
    *(
        ({name: value}, f"{name} must be a finite number of at least 0, got {value}")
        for name in ("weight_decay", "clip_norm", "epsilon")
        for value in (-1, NAN)
    ),
]
TOGETHER = [
    ({"batch_size": 5, "accumulation": 2}, "must be a multiple of accumulation"),
    ({"holdout": 0.1, "valid": "v.tsv"}, "give valid or holdout, not both"),
    ({"valid": "-"}, "valid must be a file, which .* got '-': write standard input"),
    ({"holdout_by": ["1"]}, "counts only with holdout, got"),
    ({"monitor": "loss"}, "monitor counts only with data that are not trained on"),
    ({"patience": 3}, "patience counts only with data that are not trained on"),
    ({"keep_best": False}, "keep_best counts only with data that are not trained on"),
    (
        {"monitor": "loss", "keep_best": False, "holdout": 0.1},
        "and keep_best or patience, got",
    ),
    ({"adversarial_epsilon": 1.0, "lora_rank": 4}, "which lora_rank and"),
    ({"freeze_embeddings": True, "lora_rank": 4}, "counts only with lora_rank=0"),
    (
        {"adversarial_epsilon": 1.0, "freeze_embeddings": True},
        "adversarial_epsilon counts only with embeddings that are trained",
    ),
    (
        {"layer_decay": 0.9, "optimizer": {"name": "lamb"}},
        "layer_decay counts only with optimizer adamw",
    ),
    ({"task": "triplet-ranking", "r_drop": 1.0}, "r_drop counts only with task"),
    ({"task": "triplet-ranking", "pairs": True}, "pairs are for tasks of one"),
    ({"task": "multiple-choice", "pairs": True}, "pairs are for tasks of one"),
    ({"pairs": True, "fields": [1, 2]}, "name two texts and a label with pairs, got 1"),
    ({"task": "text-regression", "class_weights": "balanced"}, "class_weights counts"),
    (
        {"options": {"multi_label": True}, "class_weights": "balanced"},
        "class_weights must be of one class a row",
    ),
    *(
        (
            {"class_weights": {"好": value}},
            "class_weights of 好 must be a finite number",
        )
        for value in ("x", NAN, -1)
    ),
    ({"lora_alpha": 8.0}, "counts only with lora_rank above 0"),
    ({"lora_targets": ["key"]}, "counts only with lora_rank above 0"),
    ({"class_weights": "even"}, "class_weights must be 'balanced' or a table"),
    ({"task": "sentence-embedding", "batch_size": 1}, "at least 2 times accumu"),
    ({"colour": 1}, "FinetuningSettings has no field colour; it has task"),
    ({"": 1}, "FinetuningSettings has no field ; it has task, train,"),
]


def test_settings_that_break_a_rule():
    cases = [
        ({name: value}, f"{name} must be {rule}.*, got ")
        for names, values, rule in FIELDS
        for name in names.split()
        for value in values
    ]
    cases += [({"optimizer": table}, message) for table, message in OPTIMIZER]
    wrong = unrefused(
        [((changes,), message) for changes, message in cases + TOGETHER],
        lambda changes: settings_of(**{"train": "a.tsv", **changes}),
        ConfigurationError,
    )
    assert wrong == []


NO_TOML, TABLE = (
    "c.toml must be a TOML file: ",
    "c.toml: {0} must be a table [{0}], got",
)
FILES = [
    (b"[" * 5000, NO_TOML),
    (b"a = " + b"[" * 5000, f"{NO_TOML}maximum recursion depth exceeded"),
    (b"a = " + b"{b=" * 5000, f"{NO_TOML}maximum recursion depth exceeded"),
    (b"epochs = " + b"9" * 5000, f"{NO_TOML}Exceeds the limit (4300 digits)"),
    (b"epochs = 1\nepochs = 2", f"{NO_TOML}Cannot overwrite a value"),
    (b"task = ", NO_TOML),
    (b"\0", f"{NO_TOML}Invalid statement"),
    (b"\xff\xfe", f"{NO_TOML}'utf-8' codec can't decode byte"),
    (b"\xed\xa0\x80 = 1", f"{NO_TOML}'utf-8' codec can't decode byte"),
    (b"epochs = 1979-05-27", "c.toml must hold no dates and times: write them as"),
    *(
        (f"{name} = {value}".encode(), TABLE.format(name))
        for name in ("options", "model", "optimizer")
        for value in ("3", "[]", "'x'")
    ),
    (b"task = 3", "c.toml is for the task 3, the command for"),
    (b"task = 'text-regression'", "c.toml is for the task 'text-regression', the"),
    (b"epochs = 1e400", "epochs must be an integer from 1 to 1000000, got inf"),
]


def test_files_that_are_refused(tmp_path):
    def read(content):
        (tmp_path / "c.toml").write_bytes(content)
        flags = {"train": "a.tsv"}
        finetune.read_settings("text-classification", tmp_path / "c.toml", flags)

    cases = [((content,), message) for content, message in FILES]
    assert unrefused(cases, read, ConfigurationError) == []


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

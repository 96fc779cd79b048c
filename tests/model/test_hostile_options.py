"""Labels, options and settings that a task refuses before it is trained."""

import dataclasses

import pytest
from common import SMALL
from hostile.run import unrefused

from roformer_keras import (
    FinetuningSettings,
    RoFormerBackbone,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
)
from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.export import load_exported
from roformer_keras.export.generator import check_generator_export
from roformer_keras.export.model import check_export
from roformer_keras.optimizers import make_optimizer
from roformer_keras.tasks import RoFormerQuestionAnswerer, RoFormerTripletRanker
from roformer_keras.tasks.span_labels import as_spans
from roformer_keras.training.finetune import FinetuningRun
from roformer_keras.training.finetuning_data import read_data

NAN = float("nan")
NO_SPAN, OUTSIDE = "a span must be (start, end, label),", "a span must lie in its text"
NO_TAG = "a tag must be O, or a letter of BIO, BIOES"
SPANS = [
    *((value, "labels of a text must be a list") for value in (3, None, "甲")),
    *(
        ([value], NO_SPAN)
        for value in (
            3,
            [],
            [0, 1],
            [0, 1, "a", 2],
            [0.0, 1, "a"],
            [True, 2, "a"],
            ["0", "1", "a"],
            [0, float("inf"), "a"],
            [0, 1, ""],
            [0, 1, None],
            [0, 1, ["a"]],
            {"start": 0},
            {"start": 0, "end": 1, "label": {}},
        )
    ),
    *(
        ([[start, end, "a"]], OUTSIDE)
        for start, end in ((0, 9), (-1, 1), (2, 2), (3, 1), (0, 10**30))
    ),
    (["O"], "there must be a tag for each character, got 1 tags for 4"),
    *(
        ([tag, "O", "O", "O"], NO_TAG)
        for tag in ("X", "X-a", "x_a", "B", "B-", "I", "O-a", "科" + "9" * 5000)
    ),
]
ANSWERS = [
    ("丙", "an answer must stand in its text, got '丙'"),
    (3, "an answer must be (start, end), a str or None, got 3"),
    ([0, 9], OUTSIDE),
    ([1, 0], OUTSIDE),
    ([0.5, 1], NO_SPAN),
    ({}, "answers in objects must have text and"),
    (
        [{"text": "FAKE_ANSWER_1", "answer_start": -1}],
        "an answer must stand in its text, got 'FAKE_ANSWER_1'",
    ),
]
# Class, option, value, message.
OPTIONS = [
    ("num_classes", "3", "num_classes must be an integer of at least 2, got '3'"),
    ("classes", ["好", "好"], "classes must be 2 different names, got ['好',"),
    *(("multi_label", value, "multi_label must be True") for value in ("no", 1, None)),
    *(("pooling", value, "pooling must be one of") for value in ("median", 3, [])),
    *(("head_dropout", value, "head_dropout must be a") for value in (2, "x", NAN)),
    *(
        ("max_length", value, "max_length must be an integer from 4 to 1048576, got ")
        for value in (0, -1, 3, 10**30, "512", None)
    ),
]
OF_TAGS = [
    *(("labels", value, "labels must be a list of names") for value in (3, None, "地")),
    *(("labels", value, "labels must be different") for value in ([], ["地", "地"])),
    ("crf", "no", "crf must be True or False, got 'no'"),
    *(("crf_rate", value, "crf_rate must be a finite") for value in (-1, "x", NAN)),
]


def test_spans_tags_and_answers_that_are_none():
    cases = [((value, "甲乙丙丁", None), message) for value, message in SPANS]
    assert unrefused(cases, as_spans, ConfigurationError) == []
    cases = [((value, ("甲", "甲乙"), {}), message) for value, message in ANSWERS]
    parse = RoFormerQuestionAnswerer.files_class.parse_label
    assert unrefused(cases, parse, ConfigurationError) == []
    message = "a label must be 0 or B if the first text is nearer"
    cases = [((value, (), {}), message) for value in ("D", "", None, 2, True, [])]
    parse = RoFormerTripletRanker.files_class.parse_label
    assert unrefused(cases, parse, ConfigurationError) == []


def test_labels_of_several_classes_that_are_none():
    cases = [
        *((value, "a label of multi_label must be a list of") for value in (3, None)),
        *((value, "a label must be a name, an") for value in ([[]], [None], [1.5])),
    ]
    wrong = unrefused(
        [((value, (), {"multi_label": True}), message) for value, message in cases],
        RoFormerTextClassifier.files_class.parse_label,
        ConfigurationError,
    )
    assert wrong == []


def test_options_of_a_task():
    backbone = RoFormerBackbone.from_preset(SMALL)

    def build(kind, options):
        kind(backbone, backbone.tokenizer, **options)

    of_classes = {"classes": ["好", "坏"]}
    cases = [
        *(((RoFormerTextClassifier, {**of_classes, k: v}), m) for k, v, m in OPTIONS),
        *(
            ((RoFormerTokenClassifier, {"labels": ["地"], k: v}), m)
            for k, v, m in OF_TAGS
        ),
    ]
    assert unrefused(cases, build, ConfigurationError) == []


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"custom_position_ids": True}, "position_ids"),
        ({"layer_norm_cond_size": 4}, "layer_norm_cond"),
    ],
)
def test_a_task_refuses_a_backbone_that_takes_more_than_texts(fields, name):
    for kind, labels in (
        (RoFormerTextClassifier, {"classes": ["好", "坏"]}),
        (RoFormerTokenClassifier, {"labels": ["地"]}),
        (RoFormerQuestionAnswerer, {}),
    ):
        with pytest.raises(ConfigurationError, match=f"texts give no {name}, which"):
            kind.from_preset(SMALL, **labels, **fields, initialize_heads=True)


@pytest.mark.parametrize("value", ["x", ["x"], {"x": 1}, 3.5])
def test_choices_of_functions_that_are_none(value, tmp_path):
    with pytest.raises(ConfigurationError, match="name must be one of 'adamw'"):
        make_optimizer(1e-3, name=value)
    with pytest.raises(ConfigurationError, match="format must be one of 'saved_model"):
        check_export(value, False, ())
    with pytest.raises(ConfigurationError, match="to the format 'openvino'"):
        check_generator_export(value)


def test_an_export_is_loaded_by_its_own_format(tmp_path):
    (tmp_path / "export.json").write_text('{"format": "onnx"}')
    for format, message in (
        ("x", "format must be one of 'saved_model', 'onnx', 'openvino', got 'x'"),
        (["onnx"], "format must be one of"),
        ("openvino", "is an export of the format 'onnx', .*: load it with format='onn"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            load_exported(tmp_path, format)


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("甲\t好\n乙\t坏\n丙\t好\n丁\t坏\n", encoding="utf-8")
    return FinetuningSettings(
        task="text-classification", train=str(path), source=str(SMALL)
    )


def test_settings_that_do_not_fit_the_data(settings, tmp_path):
    files = {
        "one.tsv": "甲\t好\n" * 1000,
        "header.tsv": "text\tlabel\n甲\t好\n",
        "long.csv": f"{'天' * 10**6},好\n",
        "zero.csv": "\0,\0\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    few = "must have labels of at least 2 names, got ['"
    cases = [({"train": str(tmp_path / name)}, few) for name in files]
    cases += [({"options": {"classes": ["a"]}}, few)]
    assert unrefused(*reads(settings, cases), SourceError) == []
    cases = [
        ({"options": {"classes": 3}}, "names of labels must be a list, got 3"),
        *(
            ({"holdout": share}, f"holdout must leave rows on both sides, got {share}")
            for share in (1e-9, 0.99999)
        ),
    ]
    assert unrefused(*reads(settings, cases), ConfigurationError) == []


def reads(settings, cases):
    """Cases of changed settings, and the function that reads their data."""
    changed = [((changes,), message) for changes, message in cases]
    return changed, lambda changes: read_data(settings.replace(**changes))


def test_settings_that_do_not_fit_the_task_or_the_source(settings, tmp_path):
    def prepare(options, model, changes):
        run = FinetuningRun(
            dataclasses.replace(settings, options=options, model=model, **changes),
            tmp_path / "run",
            verbose=False,
        )
        run.build(True)

    no_option = "text-classification has no option {}; it has classes,"
    monitor = "monitor must be one of loss, accuracy, macro_f1, matthews, f1, got 'x'"
    cases = [
        *(
            (({name: 3}, {}, {}), no_option.format(name))
            for name in ("crf", "colour", "backbone", "tokenizer", "max_length", "name")
        ),
        (({"num_classes": 10**10}, {}, {}), "classes must be 10000000000 different"),
        (({"classes": ["好"] * 2}, {}, {}), "classes must be 2 different names, got"),
        (({"pooling": "median"}, {}, {}), "pooling must be one of 'first', 'last', "),
        (({}, {"colour": 1}, {}), "RoFormerTextClassifier has no argument colour; it"),
        (({}, {"dropout": "x"}, {}), "dropout must be a number in [0, 1), got 'x'"),
        (({}, {}, {"holdout": 0.5, "monitor": "x"}), monitor),
        (
            ({}, {}, {"class_weights": {"x": 1}}),
            "a label of class_weight must be an integer from 0 to 1, or a name",
        ),
        (
            ({}, {}, {"max_length": 3}),
            "max_length must be an integer from 4 to 1048576",
        ),
    ]
    assert unrefused(cases, prepare, ConfigurationError) == []
    assert not (tmp_path / "run").exists()

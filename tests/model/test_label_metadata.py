"""Metadata of labels counts, in each container and task."""

import functools
import itertools

import datasets
import keras
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from common import SIM, wrong_cells
from finetuning_cases import load_small
from table_files import read_examples

from roformer_keras import RoFormerBackbone, RoFormerSim, tasks
from roformer_keras.base.errors import ConfigurationError, RoFormerError
from roformer_keras.tables.memory import text_columns
from roformer_keras.tasks.labels import class_names, class_number

SINGLES = [("今天天气不错",), ("她在北京",), ("天气不好",), ("我们学习",)]
COUPLES = [(text, text[::-1]) for (text,) in SINGLES]
TRIPLES = [(text, text[1:], text[0]) for (text,) in SINGLES]
CHOICES = [(text, "哪里？", ["北京", "上海"]) for (text,) in SINGLES]
TOKENS = [(list(text),) for (text,) in SINGLES]
STARTS = [{"start": 0, "end": 1, "label": "甲"}, {"start": 1, "end": 3, "label": "乙"}]
GOOD, SORTED = ["好", "差", "好", "好"], {"classes": ["差", "好"]}
# Task: its class, options, rows, labels by name, and names in the order of numbers.
TASKS = {
    "classifier": ("TextClassifier", SORTED, SINGLES, GOOD, ["好", "差"]),
    "labels": (
        "TextClassifier",
        {**SORTED, "multi_label": True},
        SINGLES,
        [["好"], ["差", "好"], [], ["差"]],
        ["好", "差"],
    ),
    "classes": (
        "SentenceEncoder",
        {"objective": "classification", **SORTED},
        COUPLES,
        GOOD,
        ["好", "差"],
    ),
    "contrastive": (
        "SentenceEncoder",
        {"objective": "contrastive"},
        SINGLES,
        GOOD,
        ["好", "差"],
    ),
    "regressor": ("TextRegressor", {}, SINGLES, ["5", "1", "5", "3"], ["5", "3", "1"]),
    "cosent": ("SentenceEncoder", {}, COUPLES, ["1", "0", "0", "1"], ["1", "0"]),
    "ranker": ("TripletRanker", {}, TRIPLES, list("BCCB"), ["C", "B"]),
    "choices": (
        "MultipleChoice",
        {},
        CHOICES,
        ["北京", "上海", "北京", "北京"],
        ["上海", "北京"],
    ),
    "answers": (
        "QuestionAnswerer",
        {},
        [(question, text) for text, question in COUPLES],
        ["天气", "北京", "天气", "学习"],
        ["学习", "北京", "天气"],
    ),
    "tags": (
        "TokenClassifier",
        {"labels": ["甲"]},
        TOKENS,
        [["B-甲", "I-甲", *["O"] * (len(tokens) - 2)] for (tokens,) in TOKENS],
        ["O", "I-甲", "B-甲"],
    ),
    "spans": (
        "SpanExtractor",
        {"labels": ["甲", "乙"]},
        SINGLES,
        [STARTS, [], STARTS[:1], STARTS[1:]],
        ["乙", "甲"],
    ),
    "relations": (
        "RelationExtractor",
        {"labels": ["甲", "乙"]},
        SINGLES,
        [
            [{"subject": text[0], "predicate": "甲乙"[n % 2], "object": text[1]}]
            for n, (text,) in enumerate(SINGLES)
        ],
        ["乙", "甲"],
    ),
}
WAYS = ["datasets", "stream", "arrow", "batch", "column", "labels", "parquet", "saved"]
NAMES = ("first", "second", "third")


@functools.cache
def made(name):
    """The model of a task, and the targets of its labels by name."""
    kind, options, rows, labels, _ = TASKS[name]
    model = getattr(tasks, f"RoFormer{kind}")(*shared(), **options)
    return model, model.labelled(rows, labels).batch()[1]


@functools.cache
def shared():
    backbone = load_small(RoFormerBackbone)
    return backbone, backbone.tokenizer


def numbered(labels, names):
    """Labels, or what is in them, by the numbers of names."""
    if isinstance(labels, list):
        return [numbered(label, names) for label in labels]
    if isinstance(labels, dict):
        return {key: numbered(label, names) for key, label in labels.items()}
    return names.index(labels) if labels in names else labels


def feature_of(label, known=(), names=()):
    """The feature of `datasets` of labels like this one; `known` are class numbers."""
    if isinstance(label, list):
        return [feature_of(label[0], known, names)]
    if isinstance(label, dict):
        return {key: feature_of(value, known, names) for key, value in label.items()}
    if label in known:
        return datasets.ClassLabel(names=names)
    return datasets.Value("int64" if isinstance(label, int) else "string")


def check_cell(name, way, are_known, folder):
    """Returns what is wrong with labels that are numbers with these names, or None."""
    options, rows, labels, names = TASKS[name][1:]
    if not are_known and name == "contrastive":
        return None  # It takes any names.
    model, expected = made(name)
    columns = NAMES[: len(rows[0])]
    features = {
        name: feature_of(text) for name, text in zip(columns, rows[0], strict=True)
    }
    stored = names if are_known else [f"{one}x" if one != "O" else one for one in names]
    features["label"] = feature_of(labels[0], names, stored)
    content = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
    content["label"] = numbered(labels, names)
    dataset = datasets.Dataset.from_dict(content, datasets.Features(features))
    table, fields = dataset.data.table, (*columns, "label")
    try:
        if way in ("parquet", "saved"):
            path = str(folder)
            (dataset.to_parquet if way == "parquet" else dataset.save_to_disk)(path)
            form = "parquet" if way == "parquet" else None
            count = len(columns)
            one = read_examples(path, type(model), options, count, fields, format=form)
            data = model.labelled(one.texts, one.labels)
        elif way in ("column", "labels"):
            y = dataset["label"] if way == "column" else dataset.select_columns("label")
            data = model.labelled(rows, y)
        else:
            stream = dataset.to_iterable_dataset()
            (batch,) = table.combine_chunks().to_batches()
            made_of = {"stream": stream, "arrow": table, "batch": batch}
            data = model.labelled(made_of.get(way, dataset), fields=fields)
    except RoFormerError as error:
        return str(error) if are_known else None
    if not are_known:
        return "was not refused"
    return None if np.array_equal(data.batch()[1], expected) else "other targets"


@pytest.fixture
def check(tmp_path):
    def check_in_new_folder(*cell):
        return check_cell(*cell, tmp_path / "-".join(map(str, cell)))

    return check_in_new_folder


def test_a_sample_of_names_of_class_numbers(check):
    ways = itertools.cycle(WAYS)
    cells = [
        (name, next(ways), are_known) for are_known in (True, False) for name in TASKS
    ]
    assert wrong_cells(check, cells) == []


@pytest.mark.slow
def test_all_names_of_class_numbers(check):
    cells = itertools.product(TASKS, WAYS, (True, False))
    assert wrong_cells(check, cells) == []


@pytest.fixture
def texts():
    return [text for (text,) in SINGLES]


@pytest.fixture
def classifier():
    model, _ = made("classifier")
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    return model


def test_names_of_class_numbers_in_every_method(classifier, texts):
    features = {"text": feature_of(""), "label": feature_of("好", ["好"], ["好", "差"])}
    columns = {"text": texts, "label": [0, 1, 0, 0]}
    dataset = datasets.Dataset.from_dict(columns, datasets.Features(features))
    expected = classifier.evaluate(texts, GOOD, verbose=0)
    assert expected != classifier.evaluate(texts, [0, 1, 0, 0], verbose=0)
    assert classifier.evaluate(dataset, verbose=0) == expected
    assert classifier.test_on_batch(dataset) == pytest.approx(expected)
    logs = classifier.fit(dataset, validation_data=dataset, verbose=0).history
    assert [logs[name][0] for name in ("loss", "accuracy")] == pytest.approx(expected)
    assert logs["val_loss"] == pytest.approx(logs["loss"])
    with pytest.raises(ConfigurationError, match="labels must be a list or another"):
        classifier.labelled(texts, dataset.to_iterable_dataset()["label"])
    missing = datasets.Dataset.from_dict(
        {**columns, "label": [0, 1, -1, 0]}, datasets.Features(features)
    )
    with pytest.raises(ConfigurationError, match="must have a label, got None"):
        classifier.evaluate(missing, verbose=0)


@pytest.mark.parametrize("name", TASKS)
def test_labels_in_a_mapping_are_refused(name):
    model, _ = made(name)
    rows, labels = TASKS[name][2:4]
    for y in (dict(enumerate(labels)), pandas.Series(labels).to_dict()):
        with pytest.raises(ConfigurationError, match="must be a list, got a dict"):
            model.labelled(rows, y)
    with pytest.raises(ConfigurationError, match=r"must be|must name|one of"):
        model.labelled(rows, [{"差": 1, "好": 0}] * len(rows))


def test_second_texts_in_a_mapping_are_refused():
    texts = ["天气", "北京"]
    with pytest.raises(ConfigurationError, match="got a dict of '天气', '北京'"):
        RoFormerSim.from_preset(SIM).fit(texts, dict.fromkeys(texts, 0))


def test_columns_of_labels_go_by_their_names(classifier, texts):
    for name, labels in (
        ("classifier", GOOD),
        ("labels", [["好"], ["差"], [], ["好"]]),
    ):
        model, _ = made(name)
        flags = {one: [int(one in label) for label in labels] for one in "好差"}
        expected = model.labelled(texts, labels).batch()[1]
        for make in (pandas.DataFrame, polars.DataFrame, pa.table):
            assert np.array_equal(
                model.labelled(texts, make(flags)).batch()[1], expected
            )
        array = pandas.DataFrame(np.array([flags["差"], flags["好"]]).T)
        assert np.array_equal(model.labelled(texts, array).batch()[1], expected)
        with pytest.raises(ConfigurationError, match="got the columns 'a', 'b'"):
            model.labelled(texts, pandas.DataFrame({"a": [1] * 4, "b": [0] * 4}))
    for make in (pandas.DataFrame, polars.DataFrame, pa.table):
        made_labels = classifier.labelled(texts, make({"x": GOOD})).batch()[1]
        assert list(made_labels) == [1, 0, 1, 1]
    regressor, _ = made("regressor")
    scores = {"x": [1.0, 2.0, 3.0, 4.0]}
    targets = regressor.labelled(texts, pandas.DataFrame(scores)).batch()[1]
    assert targets.ravel().tolist() == scores["x"]
    with pytest.raises(ConfigurationError, match="one column, got the columns 'x'"):
        regressor.labelled(texts, pandas.DataFrame({**scores, "y": scores["x"]}))


def test_masked_and_categorical_labels(classifier, texts):
    codes = pandas.Categorical(GOOD, categories=["好", "差"])
    columns = {"text": texts, "label": codes}
    table = pandas.DataFrame(columns)
    dictionary = pa.array(GOOD).dictionary_encode()
    enum = polars.Series(GOOD, dtype=polars.Enum(["好", "差"]))
    for x, y in (
        (texts, codes),
        (table, None),
        (texts, dictionary),
        (pa.table({"text": texts, "label": dictionary}), None),
        (texts, enum),
        (polars.DataFrame({"text": texts, "label": enum}), None),
    ):
        assert list(classifier.labelled(x, y).batch()[1]) == [1, 0, 1, 1]
    masked = np.ma.array([1, 0, 1, 1], mask=[0, 1, 0, 0])
    with pytest.raises(ConfigurationError, match="got None in row 1"):
        classifier.labelled(texts, masked)


TRUTHS = [True, np.True_, 1, np.int64(1), 1.0, "1", "1.0", "true", "TRUE"]
LIES = [False, np.False_, 0, np.int64(0), 0.0, "0", "0.0", "false", "FALSE"]


@pytest.mark.parametrize(
    "classes",
    [
        None,
        *([True, False], [False, True], ["true", "false"], ["False", "True"]),
        *([0, 1], [1, 0], ["0", "1"], ["1", "0"], ["1.0", "0.0"]),
    ],
)
def test_truth_values_and_0_and_1(classes):
    count, names = class_names(2, classes, 2)
    values = [str(one).lower() in ("true", "1", "1.0") for one in names or (0, 1)]
    is_refused = str((names or "x")[0]) in ("1", "1.0") and isinstance(names[0], str)
    for label in TRUTHS + LIES:
        expected = values.index(label in TRUTHS[5:] or label is True or label == 1)
        if is_refused and not isinstance(label, str | bool | np.bool_):
            with pytest.raises(ConfigurationError, match="name of another one"):
                class_number(label, count, names)
        else:
            assert class_number(label, count, names) == expected, label


def test_names_that_are_one_class_are_refused():
    for classes in (["1", "1.0"], ["true", "True"], ["好", " 好"], [1, "1.0"]):
        with pytest.raises(ConfigurationError, match="must be 2 different names"):
            class_names(None, classes, 2)
    with pytest.raises(ConfigurationError, match="name of another one"):
        class_number(1, 2, ["true", "yes"])


# Columns of a table, by those that a model was trained on: which it reads, or None.
READ = [
    (None, ["text", "order"], ["text"]),
    (None, ["review"], ["review"]),
    (None, ["second", "first", "order"], ["first", "second"]),
    (None, ["order", "review"], None),
    (["review"], ["order", "review"], ["review"]),
    (["review"], ["order", "text"], ["text"]),
    (["review"], ["other"], ["other"]),
    (["review"], ["order", "other"], None),
    (["review"], ["first", "second"], None),
    (["b", "a"], ["a", "b", "order"], ["b", "a"]),
    (["b", "a"], ["x", "y"], ["x", "y"]),
    (["b", "a"], ["x"], None),
    (["b", "a"], ["x", "y", "z"], None),
]


@pytest.mark.parametrize(("trained", "columns", "expected"), READ)
def test_columns_of_texts(trained, columns, expected):
    for names in (columns, [*columns, "label"]):
        if expected is None:
            with pytest.raises(ConfigurationError, match="must have the columns"):
                text_columns(names, (1, 2), trained=trained or ())
        else:
            assert text_columns(names, (1, 2), trained=trained or ()) == expected


def test_a_model_of_single_texts_takes_no_other_column(classifier, texts):
    content = {"order": [text[::-1] for text in texts], "review": texts, "mood": GOOD}
    classifier.fit(pandas.DataFrame(content), fields=("review", "mood"), verbose=0)
    expected = classifier.classify(texts, probabilities=True, verbose=0)
    del content["mood"]
    for make in (pandas.DataFrame, datasets.Dataset.from_dict, pa.table):
        answers = classifier.classify(make(content), probabilities=True, verbose=0)
        assert np.array_equal(answers, expected)
    classifier.train_on_batch(texts, GOOD)
    for make in (pandas.DataFrame, datasets.Dataset.from_dict, pa.table):
        table, labelled = make(content), make({**content, "label": GOOD})
        for method, *arguments in (
            (classifier.classify, table),
            (classifier.predict, table),
            (classifier.evaluate, table, GOOD),
            (classifier.evaluate, labelled),
            (classifier.fit, labelled),
        ):
            with pytest.raises(ConfigurationError, match="got 'order', 'review'"):
                method(*arguments)
        with pytest.raises(ConfigurationError, match="got 'order', 'review'"):
            classifier.fit(texts, GOOD, validation_data=labelled)

"""Tables of pandas, polars, Arrow and `datasets` in place of lists of texts."""

from collections.abc import Iterator

import datasets
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from pyarrow import parquet

from roformer_keras import (
    RoFormerSentenceEncoder,
    RoFormerTextClassifier,
    RoFormerTextRegressor,
)
from roformer_keras.data.texts import as_texts
from roformer_keras.errors import ConfigurationError, SourceError
from roformer_keras.training.finetuning_data import read_examples

TEXTS, LABELS = ["好极了", "太差了", "不错", "很好"], ["好", "坏", "好", "好"]
OTHERS = TEXTS[::-1]
PAIRS = list(zip(TEXTS, OTHERS, strict=True))


def stream_of(columns):
    """An `IterableDataset` that does not know its columns."""
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    return datasets.IterableDataset.from_generator(lambda: iter(rows))


MAKERS = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "arrow": pa.table,
    "batch": pa.RecordBatch.from_pydict,
    "datasets": datasets.Dataset.from_dict,
    "stream": stream_of,
}
tables = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.fixture(scope="module")
def classifier(backbone):
    return RoFormerTextClassifier(backbone, backbone.tokenizer, classes=["坏", "好"])


@pytest.fixture(scope="module")
def encoder(backbone):
    return RoFormerSentenceEncoder(backbone, backbone.tokenizer)


def collected(found):
    return np.stack(list(found)) if isinstance(found, Iterator) else found


@tables
def test_predict_and_encode(make, classifier, encoder):
    expected = classifier.predict(TEXTS, verbose=0)
    # The columns of texts are found among others by their names.
    for columns in (
        {"text": TEXTS, "label": LABELS},
        {"sentence": TEXTS},
        # A label is no second text.
        {"review": TEXTS, "label": LABELS},
    ):
        found = classifier.predict(make(columns), verbose=0)
        assert isinstance(found, Iterator) == (make is stream_of)
        np.testing.assert_array_equal(collected(found), expected)
    pairs = make({"label": LABELS, "second": OTHERS, "first": TEXTS})
    np.testing.assert_array_equal(
        collected(classifier.predict(pairs, verbose=0)),
        classifier.predict(PAIRS, verbose=0),
    )
    found = collected(encoder.encode(make({"text": TEXTS}), verbose=0))
    np.testing.assert_array_equal(found, encoder.encode(TEXTS, verbose=0))


@tables
def test_evaluate_and_labelled_rows(make, classifier):
    classifier.compile()
    table = make({"id": [1, 2, 3, 4], "review": TEXTS, "mood": LABELS})
    fields = ("review", "mood")
    expected = classifier.evaluate(TEXTS, LABELS, verbose=0)
    assert classifier.evaluate(table, fields=fields, verbose=0) == expected
    standard = make({"text": TEXTS, "label": LABELS})
    assert classifier.evaluate(standard, verbose=0) == expected
    named = make({"review": TEXTS, "label": LABELS})
    assert classifier.evaluate(named, verbose=0) == expected
    assert classifier.evaluate(named, LABELS, verbose=0) == expected
    # `fit` reads its rows by the same function.
    inputs, targets = classifier.labelled(table, fields=fields).make_batch([2, 1], 0)
    plain, wanted = classifier.labelled(TEXTS, LABELS).make_batch([2, 1], 0)
    np.testing.assert_array_equal(inputs["token_ids"], plain["token_ids"])
    np.testing.assert_array_equal(targets, wanted)


@pytest.mark.parametrize(
    "column",
    [
        pandas.Series,
        polars.Series,
        pa.array,
        lambda x: datasets.Dataset.from_dict({"x": x})["x"],
    ],
    ids=["pandas", "polars", "arrow", "datasets"],
)
def test_columns(column, classifier):
    classifier.compile()
    expected = classifier.evaluate(TEXTS, LABELS, verbose=0)
    assert classifier.evaluate(column(TEXTS), column(LABELS), verbose=0) == expected


def test_fit_on_tables():
    import keras

    histories = []
    table = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    for x, y, valid in (
        (TEXTS, LABELS, (TEXTS, LABELS)),
        (table, None, polars.DataFrame(table.to_dict("list"))),
    ):
        keras.utils.set_random_seed(0)
        model = RoFormerTextClassifier.from_preset(
            "roformer-char", classes=["坏", "好"]
        )
        history = model.fit(x, y, validation_data=valid, verbose=0)
        histories.append(history.history)
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda table: datasets.DatasetDict(train=table, test=table),
            r"got the splits 'train', 'test': choose a split, as in x\['train'\]",
        ),
        (
            lambda table: datasets.DatasetDict(test=table),
            r"got the splits 'test': choose a split, as in x\['test'\]",
        ),
        (
            lambda table: polars.DataFrame({"text": TEXTS, "label": LABELS}).lazy(),
            r"must have its rows, got a LazyFrame: give x\.collect\(\)",
        ),
    ],
    ids=["splits", "split", "query"],
)
def test_what_is_no_table_yet_is_refused(make, message, classifier):
    x = make(datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}))
    calls = (classifier.predict, classifier.labelled, classifier.fit, as_texts)
    for call in calls:
        with pytest.raises(ConfigurationError, match=message):
            call(x)


@tables
def test_what_is_refused(make, classifier):
    for columns, message in (
        ({"text": ["好", None]}, "a text must be a str, got (None|nan) in row 1"),
        ({"text": [1, 2]}, "a text must be a str, got 1 in row 0"),
        ({"a": TEXTS, "b": TEXTS, "c": TEXTS}, "must have the columns text or first, "),
    ):
        with pytest.raises(ConfigurationError, match=message):
            collected(classifier.predict(make(columns), verbose=0))
    for fields, message in (
        ((), "must have the column 'label', got 'text'"),
        (("text", "mood"), "must have the column 'mood', got 'text'"),
        (("text",), r"fields must name 1 or 2 texts and a label, got \('text',\)"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            classifier.labelled(make({"text": TEXTS}), fields=fields)
    with pytest.raises(ConfigurationError, match="fields are columns of a table"):
        classifier.labelled(TEXTS, LABELS, fields=("text", "label"))


def test_a_file_under_another_name_has_rows(tmp_path):
    path = tmp_path / "data"
    parquet.write_table(pa.table({"text": TEXTS, "label": ["1", "2", "x", "4"]}), path)
    with pytest.raises(SourceError, match=f"row 3 of {path}: a label must be a fin"):
        read_examples(str(path), RoFormerTextRegressor, {}, 1, format="parquet")

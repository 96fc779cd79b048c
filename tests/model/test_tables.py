"""Tables of pandas, polars, Arrow and `datasets` in place of lists of texts."""

import re
from collections.abc import Iterator

import datasets
import keras
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from common import CHARACTER, wrong_cells
from pyarrow import parquet
from table_files import read_examples, write_table

from roformer_keras import (
    RoFormerQuestionAnswerer,
    RoFormerSentenceEncoder,
    RoFormerTextClassifier,
    RoFormerTextRegressor,
    RoFormerTokenClassifier,
)
from roformer_keras.base.errors import ConfigurationError, SourceError
from roformer_keras.tables.texts import as_texts

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
    model = RoFormerTextClassifier(backbone, backbone.tokenizer, classes=["坏", "好"])
    model.compile(run_eagerly=True)
    return model


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
        outputs = classifier.predict(make(columns), verbose=0)
        assert isinstance(outputs, Iterator) == (make is stream_of)
        np.testing.assert_array_equal(collected(outputs), expected)
    pairs = make({"label": LABELS, "second": OTHERS, "first": TEXTS})
    np.testing.assert_array_equal(
        collected(classifier.predict(pairs, verbose=0)),
        classifier.predict(PAIRS, verbose=0),
    )
    outputs = collected(encoder.encode(make({"text": TEXTS}), verbose=0))
    np.testing.assert_array_equal(outputs, encoder.encode(TEXTS, verbose=0))


@tables
def test_a_sim_encodes_the_column_of_texts(make, sim):
    expected = sim.encode(TEXTS, verbose=0)
    for columns in ({"text": TEXTS, "label": LABELS}, {"review": TEXTS}):
        vectors = sim.encode(make(columns), verbose=0)
        assert isinstance(vectors, Iterator) == (make is stream_of)
        np.testing.assert_array_equal(collected(vectors), expected)
    column = pa.table({"text": TEXTS})["text"]
    np.testing.assert_array_equal(sim.encode(column, verbose=0), expected)
    with pytest.raises(ConfigurationError, match="got a dict of 'text'"):
        sim.encode({"text": TEXTS})
    with pytest.raises(ConfigurationError, match="must have the columns text, or as"):
        sim.encode(make({"first": TEXTS, "second": OTHERS}))


@tables
def test_evaluate_and_labelled_rows(make, classifier):
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
    inputs, targets = classifier.labelled(table, fields=fields).make_batch([2, 1])
    plain, wanted = classifier.labelled(TEXTS, LABELS).make_batch([2, 1])
    np.testing.assert_array_equal(inputs["token_ids"], plain["token_ids"])
    np.testing.assert_array_equal(targets, wanted)


def test_columns(classifier):
    expected = classifier.evaluate(TEXTS, LABELS, verbose=0)
    for column in (
        pandas.Series,
        polars.Series,
        pa.array,
        lambda x: datasets.Dataset.from_dict({"x": x})["x"],
    ):
        x, y = column(TEXTS), column(LABELS)
        assert classifier.evaluate(x, y, verbose=0) == expected


@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
def test_fit_on_tables(eagerly):
    histories = []
    table = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    for x, y, valid in (
        (TEXTS, LABELS, (TEXTS, LABELS)),
        (table, None, polars.DataFrame(table.to_dict("list"))),
    ):
        keras.utils.set_random_seed(0)
        model = RoFormerTextClassifier.from_preset(CHARACTER, classes=["坏", "好"])
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


# Containers of texts, next to the tables.
LISTS = {
    "list": list,
    "rows": lambda texts: [(text,) for text in texts],
    "columns": lambda texts: (list(texts),),
    "array": lambda texts: np.array(texts, object),
    "series": lambda texts: pandas.Series(texts, dtype=object),
    "generator": iter,
}
# Bad texts, what the error says, and whether inference takes them.
BAD_TEXTS = {
    "none": (
        ["好", None, "坏"],
        "a text must be a str.*, got (None|nan) in row 1",
        False,
    ),
    "number": ([1, 2, 3], "a text must be a str.*, got 1 in row 0", False),
    "blank": (["好", " ", "坏"], "str that is not empty, got ' ' in row 1", True),
    "empty": (["好", "坏", ""], "str that is not empty, got '' in row 2", True),
}


@pytest.mark.parametrize("fault", BAD_TEXTS)
def test_a_bad_text_is_told_with_its_row(fault, classifier, encoder):
    """In every container, by every method."""
    texts, words, is_answered = BAD_TEXTS[fault]
    calls = {
        "predict": lambda x: collected(classifier.predict(x, verbose=0)),
        "classify": lambda x: list(classifier.classify(x, verbose=0)),
        "encode": lambda x: collected(encoder.encode(x, verbose=0)),
        "evaluate": lambda x: classifier.evaluate(x, LABELS[:3], verbose=0),
        "fit": lambda x: classifier.fit(x, LABELS[:3], verbose=0),
    }
    makers = {**LISTS, **{name: _column(make) for name, make in MAKERS.items()}}

    def check(container, method):
        try:
            calls[method](makers[container](texts))
        except ConfigurationError as error:
            return None if re.search(words, f"{error}") else f"{error}"
        return None if is_answered and method not in ("evaluate", "fit") else "no error"

    cells = [
        (container, method)
        for container in makers
        for method in calls
        # These take no generator of texts alone.
        if (container, method) not in (("generator", "evaluate"), ("generator", "fit"))
    ]
    assert wrong_cells(check, cells) == []


def _column(make):
    return lambda texts: make({"text": texts})


@tables
def test_what_is_refused(make, classifier):
    columns = {"a": TEXTS, "b": TEXTS, "c": TEXTS}
    with pytest.raises(ConfigurationError, match="must have the columns text or first"):
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
    with pytest.raises(ConfigurationError, match="labels must be a list or another"):
        classifier.labelled(TEXTS, iter(LABELS))


def test_two_columns_of_one_name_are_refused(classifier):
    table = pandas.DataFrame([["好", "坏"]], columns=["text", "text"])
    for call in (classifier.predict, as_texts):
        with pytest.raises(ConfigurationError, match="one column 'text', got 2"):
            call(table)
    table = pandas.DataFrame([["好", "坏", 1]], columns=["text", "a", "a"])
    with pytest.raises(ConfigurationError, match="one column 'a', got 2"):
        classifier.labelled(table, fields=("text", "a"))


def test_a_file_under_another_name_has_rows(tmp_path):
    path = tmp_path / "data"
    parquet.write_table(pa.table({"text": TEXTS, "label": ["1", "2", "x", "4"]}), path)
    with pytest.raises(SourceError, match=f"row 3 of {path}: a label must be a fin"):
        read_examples(str(path), RoFormerTextRegressor, {}, 1, format="parquet")


@pytest.mark.parametrize("labels", [["好", None, "坏"], [1, None, 0], [1.0, None, 0.0]])
@tables
def test_labels_that_are_missing(make, labels, classifier, monkeypatch):
    def never(*args):
        raise AssertionError("texts are not to be tokenized")

    monkeypatch.setattr(type(classifier), "make_rows", never)
    table = make({"text": TEXTS[:3], "mood": labels})
    message = "must have a label, got (None|nan) in the column 'mood' in row 1: leave"
    with pytest.raises(ConfigurationError, match=message):
        classifier.labelled(table, fields=("text", "mood"))


@pytest.mark.parametrize("kind", ["Int64", "string", "category", "datetime64[ns]"])
def test_what_pandas_has_for_missing_labels(kind, classifier):
    values = pandas.Series([1, None, 0] if kind == "Int64" else ["2020", None, "2021"])
    table = pandas.DataFrame({"text": TEXTS[:3], "label": values.astype(kind)})
    with pytest.raises(ConfigurationError, match="in the column 'label' in row 1"):
        classifier.labelled(table)


@tables
def test_a_question_may_have_no_answer(make, backbone):
    model = RoFormerQuestionAnswerer(backbone, backbone.tokenizer)
    rows = [("好吗", "好极了"), ("谁", "好极了")]
    first, second = (list(column) for column in zip(*rows, strict=True))
    table = make({"first": first, "second": second, "label": ["好", None]})
    _, targets = model.labelled(table).make_batch([0, 1])
    _, expected = model.labelled(rows, ["好", None]).make_batch([0, 1])
    np.testing.assert_array_equal(targets, expected)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_labels_that_are_missing_in_files(name, tmp_path):
    path = tmp_path / name
    for column, (task, labels, rule) in {
        "label": (
            RoFormerTextClassifier,
            ["好", None],
            "a name, an integer or a truth value",
        ),
        "stars": (RoFormerTextRegressor, [1.5, None], "a finite number"),
        "score": (RoFormerTextRegressor, [1.5, float("nan")], "a finite number"),
    }.items():
        table = pa.table({"text": TEXTS[:2], column: labels})
        write_table(path, table)
        fields = () if column == "label" else ("text", column)
        message = f"row 2 of .*{name}: a label must be {rule}, got .* in '{column}'"
        with pytest.raises(SourceError, match=message):
            read_examples(str(path), task, {}, 1, fields)
        examples = read_examples(str(path), task, {}, 1, fields, skips=True)
        assert (examples.unit, len(examples.texts), examples.skipped[0][0]) == (
            "row",
            1,
            2,
        )


def test_integers_of_a_column_that_lacks_one(tmp_path):
    table = pandas.DataFrame({"text": TEXTS[:3], "label": [1, 0, None]})
    table.to_parquet(tmp_path / "a.parquet")
    examples = read_examples(
        str(tmp_path / "a.parquet"), RoFormerTextClassifier, {}, 1, skips=True
    )
    assert (examples.labels, examples.skipped[0][0]) == (["1", "0"], 3)


def test_lists_of_as_many_names_as_there_are_classes(backbone, tmp_path):
    model = RoFormerTextClassifier(
        backbone, backbone.tokenizer, classes=["坏", "好"], multi_label=True
    )
    table = pandas.DataFrame({"text": TEXTS[:2], "label": [["好", "坏"], ["好"]]})
    table.to_parquet(tmp_path / "a.parquet")
    _, targets = model.labelled(pandas.read_parquet(tmp_path / "a.parquet")).make_batch(
        [0, 1]
    )
    np.testing.assert_array_equal(targets, [[1, 1], [0, 1]])


def test_answers_of_a_saved_dataset_of_questions(tmp_path):
    answers = {"text": ["好", "极"], "answer_start": [0, 1]}
    columns = {"question": ["如何"], "context": ["好极了"], "answers": [answers]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    examples = read_examples(
        str(tmp_path / "saved"), RoFormerQuestionAnswerer, {}, 2, tuple(columns)
    )
    assert (examples.texts, examples.labels) == (
        [("如何", "好极了")],
        [[(0, 1), (1, 2)]],
    )


def test_a_file_without_a_label_names_a_row(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": TEXTS[:2], "label": [None, ""]}), path)
    with pytest.raises(SourceError, match="no row with a label; row 1: a label must"):
        read_examples(str(path), RoFormerTextClassifier, {}, 1, skips=True)


@tables
def test_tokens_and_their_tags(make, backbone):
    """Tags by name or number, in a table or lists, equal those of the joined text."""
    tokens = [["她", "在", "New", "北京"], ["好"]]
    tags, numbers = [["O", "O", "O", "S-LOC"], ["O"]], [[0, 0, 0, 1], [0]]
    model = RoFormerTokenClassifier(backbone, backbone.tokenizer, labels=["LOC"])
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    texts = ["她在New北京", "好"]
    loss = model.evaluate(texts, [[(5, 7, "LOC")], []], verbose=0)
    for y in (tags, numbers):
        table = make({"tokens": tokens, "ner_tags": y})
        fields = ("tokens", "ner_tags")
        assert model.evaluate(table, fields=fields, verbose=0) == loss
        assert model.evaluate(tokens, y, verbose=0) == loss
    entities = [{"LOC": {"北京": [[5, 6]]}}, {}]
    assert model.evaluate(texts, entities, verbose=0) == loss
    extracted = model.extract(make({"text": tokens}), verbose=0)
    assert list(extracted) == model.extract(texts, verbose=0)
    assert model.extract(tokens, verbose=0) == model.extract(texts, verbose=0)


def test_numbers_of_tags_have_the_names_of_the_dataset(backbone, tmp_path):
    names = datasets.ClassLabel(names=["O", "I-LOC", "B-LOC"])
    features = {"tokens": datasets.Sequence(datasets.Value("string"))}
    features["ner_tags"] = datasets.Sequence(names)
    rows = {"tokens": [["她", "在", "北", "京"]], "ner_tags": [[0, 0, 2, 1]]}
    table = datasets.Dataset.from_dict(rows, datasets.Features(features))
    model = RoFormerTokenClassifier(backbone, backbone.tokenizer, labels=["LOC"])
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    fields = ("tokens", "ner_tags")
    expected = model.evaluate(["她在北京"], [[(2, 4, "LOC")]], verbose=0)
    for one in (table, table.data.table):
        assert model.evaluate(one, fields=fields, verbose=0) == expected
    table.save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "x.parquet")
    for path in (tmp_path / "saved", tmp_path / "x.parquet"):
        examples = read_examples(str(path), RoFormerTokenClassifier, {}, 1, fields)
        assert examples.labels == [[(2, 4, "LOC")]]

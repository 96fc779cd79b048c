"""The same data gives the same numbers by every container, method and kind of weights.

At learning rate 0 each cell is held against one oracle: plain Keras on ids and weights.
"""

import functools
import gc
import itertools
import weakref

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from allpairspy import AllPairs
from common import wrong_cells
from finetuning_cases import load_small

from roformer_keras import tasks
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.text.rows import draw_held_out

SINGLES = ["今天天气不错", "她在北京", "天气不", "在上海工作的人", "不是我们", "学习"]
COUPLES = [(text, text[::-1]) for text in SINGLES]
TRIPLES = [(text, text[1:], text[0]) for text in SINGLES]
CHOICES = [(text, "哪里？", ("北京", "上海")) for text in SINGLES]
SPANS = [[(0, 2, "甲")], [], [(1, 2, "乙")], [(0, 1, "甲")], [], [(1, 2, "甲")]]
NAMES, NUMBERS = ["差", "好", "差", "差", "好", "差"], [1.0, 0.5, 2.0, 0.0, 3.0, 1.5]
CLASSES = {"classes": ["差", "好"]}
SAMPLE = np.array([0.5, 2.0, 1.0, 3.0, 0.0, 1.0], "float32")
BY_CLASS = {"差": 1.0, "好": 10.0}
# Task: its class, options, texts, labels; whether labels are classes, and whether the
# mean over rows is that over batches.
TASKS = {
    "classifier": ("TextClassifier", CLASSES, SINGLES, NAMES, True, True),
    "pairs": ("TextClassifier", CLASSES, COUPLES, NAMES, True, True),
    "labels": (
        "TextClassifier",
        {**CLASSES, "multi_label": True},
        SINGLES,
        [["差"], [], ["好"], ["差", "好"], [], ["好"]],
        False,
        True,
    ),
    "regressor": ("TextRegressor", {}, SINGLES, NUMBERS, False, True),
    "cosent": ("SentenceEncoder", {}, COUPLES, NUMBERS, False, False),
    "classes": (
        "SentenceEncoder",
        {"objective": "classification", **CLASSES},
        COUPLES,
        NAMES,
        True,
        True,
    ),
    "contrastive": (
        "SentenceEncoder",
        {"objective": "contrastive"},
        SINGLES,
        [20231100, 20231101, 20231100, 20231101, 20231102, 20231102],
        False,
        False,
    ),
    "tags": ("TokenClassifier", {"labels": ["甲", "乙"]}, SINGLES, SPANS, False, False),
    "field": (
        "TokenClassifier",
        {"labels": ["甲", "乙"], "crf": True},
        SINGLES,
        SPANS,
        False,
        False,
    ),
    "spans": ("SpanExtractor", {"labels": ["甲", "乙"]}, SINGLES, SPANS, False, False),
    "relations": (
        "RelationExtractor",
        {"labels": ["甲"]},
        SINGLES,
        [[(text[0], "甲", text[1])] for text in SINGLES],
        False,
        False,
    ),
    "answers": (
        "QuestionAnswerer",
        {},
        [("哪里？", text) for text in SINGLES],
        [text[:1] for text in SINGLES],
        False,
        False,
    ),
    "choices": ("MultipleChoice", {}, CHOICES, [0, 1, 1, 0, 1, 0], False, True),
    "ranker": ("TripletRanker", {}, TRIPLES, list("BCBCBC"), False, True),
}
CONTAINERS = ["list", "array", "frame", "ids", "generator", "tf.data", "PyDataset"]
WEIGHTS = ["none", "sample", "name", "number", "both"]
VALIDATION = ["none", "split", "data"]
ALL = np.arange(6)
METHODS = ["fit", "evaluate", "train_on_batch", "test_on_batch", "predict"]
FACTORS = [list(TASKS), CONTAINERS, WEIGHTS, VALIDATION, METHODS]


@functools.cache
def loaded(name):
    """The model of a task, with what the oracle needs: ids, targets and outputs."""
    kind, options, texts, labels, *_ = TASKS[name]
    model = load_small(getattr(tasks, f"RoFormer{kind}"), **options)
    model.compile(keras.optimizers.SGD(0.0), metrics=[], run_eagerly=True)
    rows = model.make_rows([row if isinstance(row, tuple) else (row,) for row in texts])
    numbers = np.arange(len(texts))
    ids = rows.batch(numbers)
    targets = model.batch_targets(model.make_targets(labels, rows), numbers, ids)
    plain = keras.Model(model.input, model.output)
    plain.compile(keras.optimizers.SGD(0.0), model.default_loss(), run_eagerly=True)
    return model, plain, ids, targets


def oracle(name, weights, numbers):
    """The loss of some rows by plain Keras."""
    _, plain, ids, targets = loaded(name)
    # Rows of the ids: a text of a pair, or a choice, may have its own.
    many = len(ids["token_ids"]) // len(targets)
    if name in ("cosent", "classes"):
        many = 2
    rows = np.ravel([np.arange(n * many, (n + 1) * many) for n in numbers])
    inputs = {key: ids[key][rows] for key in ids}
    sample_weights, expected = weights[numbers], targets[numbers]
    if name == "tags":
        sample_weights = np.repeat(sample_weights[:, None], expected.shape[1], axis=1)
    sample_weights = sample_weights if (weights != 1).any() else None
    return float(plain.compute_loss(inputs, expected, plain(inputs), sample_weights))


def row_weights(name, kind):
    """Weights of rows in training, and those in validation."""
    sample = SAMPLE if kind in ("sample", "both") else np.ones(6, "float32")
    if TASKS[name][4] and kind in ("name", "number", "both"):
        return sample * [BY_CLASS[label] for label in NAMES], sample
    return sample, sample


class Batches(keras.utils.PyDataset):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, number):
        return self.parts[number]


def contained(name, container, sample, numbers=ALL):
    """`x`, `y` and weights of some rows as methods take them."""
    *_, texts, labels, _, is_mean = TASKS[name]
    _, _, ids, targets = loaded(name)
    if container == "ids":
        return ids, targets, sample
    texts, labels = [texts[n] for n in numbers], [labels[n] for n in numbers]
    sample_weights = () if sample is None else (sample[numbers],)
    if container == "list":
        return texts, labels, *sample_weights
    if container == "array":
        return np.array(texts), np.array(labels), *sample_weights
    if container == "frame":
        columns = ["text"] if isinstance(texts[0], str) else ["first", "second"]
        table = pandas.DataFrame(texts, columns=columns)
        return table.assign(label=labels), None, *sample_weights
    # The last batch is smaller.
    step = 4 if is_mean else len(texts)
    if container == "tf.data":
        columns = texts
        if isinstance(texts[0], tuple):
            columns = tuple(map(list, zip(*texts, strict=True)))
        dataset = tf.data.Dataset.from_tensor_slices((columns, labels, *sample_weights))
        return (dataset.batch(step), None)
    cuts = [slice(start, start + step) for start in range(0, len(texts), step)]
    parts = [
        (texts[cut], labels[cut], *(one[cut] for one in sample_weights)) for cut in cuts
    ]
    return (Batches(parts) if container == "PyDataset" else iter(parts)), None


def is_possible(name, container):
    """True if texts and labels of a task can have such a container."""
    texts, labels = TASKS[name][2:4]
    plain_labels = not isinstance(labels[0], list)
    if container == "array":
        return plain_labels and name != "choices"
    if container == "frame":
        return (plain_labels and len(texts[0]) == 2) or isinstance(texts[0], str)
    if container == "tf.data":
        return plain_labels and name != "choices"
    # Rows of ids of several texts cannot be weighed or split by Keras.
    return container != "ids" or name in ("classifier", "labels", "regressor", "pairs")


def check_cell(name, container, weights, validation, method):
    """Runs a cell; returns what is wrong, or None."""
    if not is_possible(name, container):
        return None
    model, *_ = loaded(name)
    has_classes = TASKS[name][4]
    is_stream = container in ("generator", "tf.data", "PyDataset")
    options, expected, held_out = {}, None, None
    trained, validated = row_weights(name, weights)
    sample = SAMPLE if weights in ("sample", "both") else None
    by_class = {"number": {0: 1.0, 1: 10.0}}.get(weights, BY_CLASS)
    refused = sample is not None and name == "cosent"
    if method in ("fit", "train_on_batch") and weights in ("name", "number", "both"):
        options["class_weight"] = by_class
        refused |= not has_classes
        # Keras takes one of them.
        refused |= (container, weights) == ("ids", "both")
    else:
        trained = validated
    rows = ALL
    if method == "predict":
        return _wrong_outputs(name, container)
    if method.endswith("on_batch") and (is_stream or container == "frame"):
        container, is_stream = "list", False
    if method == "fit" and validation == "data":
        held_out = rows[:4] if container != "ids" else rows
        data = contained(name, container, sample, held_out)
        options["validation_data"] = data[0] if data[1] is None else data
        if container == "frame" and sample is not None:
            options["validation_data"] = contained(name, "list", sample, held_out)
    elif method == "fit" and validation == "split":
        options["validation_split"] = 0.5
        refused |= container in ("generator", "PyDataset")
        drawn = draw_held_out(6, 0.5, 0) if container != "ids" else rows >= 3
        rows, held_out = rows[~drawn], rows[drawn]
    x, y, *own = contained(name, container, sample)
    if own:
        options["sample_weight"] = own[0]
    if not method.endswith("on_batch"):
        # Of containers that bring batches, these.
        size = 4 if TASKS[name][5] and held_out is None else 8
        options |= {"verbose": 0} if is_stream else {"verbose": 0, "batch_size": size}
    if container == "generator":
        steps = 2 if TASKS[name][5] else 1
        options["steps_per_epoch" if method == "fit" else "steps"] = steps
        if held_out is not None and validation == "data":
            options["validation_steps"] = 1
    if method == "evaluate":
        options["return_dict"] = True
    arguments = (x,) if y is None else (x, y)
    try:
        result = getattr(model, method)(*arguments, **options)
    except (ConfigurationError, ValueError) as error:
        return None if refused else f"raised {error}"
    if refused:
        return "was not refused"
    if method == "fit":
        result = {key: value[-1] for key, value in result.history.items()}
    elif method.endswith("on_batch"):
        result = {"loss": np.ravel(result)[0]}
    losses = {"loss": oracle(name, trained, rows)}
    if held_out is not None:
        losses["val_loss"] = oracle(name, validated, held_out)
    for key, expected in losses.items():
        if not abs(result[key] - expected) <= 2e-5 * max(1, abs(expected)):
            return f"{key} {result[key]} instead of {expected}"
    return None


def _wrong_outputs(name, container):
    model, plain, ids, _ = loaded(name)
    x, *_ = contained(name, container, None)
    if container == "generator":
        x = iter(TASKS[name][2])  # It gives rows.
    outputs = list(model.predict(x, verbose=0))
    expected = np.asarray(plain(ids))
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs instead of {len(expected)}"
    for output, own in zip(outputs, expected, strict=True):
        row = output
        if np.ndim(row) == np.ndim(own) + 1 and len(row) == 1:
            row = row[0]  # Of the one window of a text.
        if np.ndim(row) != np.ndim(own):
            return f"an output of shape {np.shape(row)} instead of {own.shape}"
        # Outputs of texts are without padding.
        cut = tuple(slice(size) for size in np.shape(row))
        finite = np.where(np.abs(own[cut]) < 1e6, own[cut], 0)
        if np.abs(np.where(np.abs(row) < 1e6, row, 0) - finite).max() > 2e-5:
            return "outputs differ"
    return None


def test_a_sample_of_all_cells():
    """Each two values of two factors come together once."""
    assert wrong_cells(check_cell, map(tuple, AllPairs(FACTORS))) == []


@pytest.mark.weekly
def test_all_cells():
    assert wrong_cells(check_cell, itertools.product(*FACTORS)) == []


# Widths of batches; Keras takes a size in which the first two agree for fixed.
ORDERS = {"equal": (0, 0, 1), "growing": (0, 1, 2), "shrinking": (2, 1, 0)}


def longer(text, times):
    """A text, or a row of texts and choices, with more characters and choices."""
    if isinstance(text, str):
        return text + "好" * 3 * times
    row = tuple(longer(part, times) for part in text)
    if isinstance(row[-1], tuple):
        return (*row[:-1], row[-1] + ("上", "下")[:times])
    return row


@functools.cache
def compiled_model(name):
    """The model of a task in a graph, at learning rate 0."""
    kind, options, *_ = TASKS[name]
    model = load_small(getattr(tasks, f"RoFormer{kind}"), **options)
    model.compile(keras.optimizers.SGD(0.0))
    return model


def check_widths(name, container, order, method):
    """Runs batches of some widths; returns what is wrong, or None."""
    model, (_, _, texts, labels, *_) = compiled_model(name), TASKS[name]
    parts = [([longer(row, n) for row in texts], labels) for n in ORDERS[order]]
    data, steps = Batches(parts), None
    if container == "generator":
        data, steps = iter(parts), len(parts)
    if method == "fit":
        logs = model.fit(data, steps_per_epoch=steps, verbose=0).history
        loss = logs["loss"][0]
    elif method == "evaluate":
        loss = np.ravel(model.evaluate(data, steps=steps, verbose=0))[0]
    else:
        options = {"validation_data": data, "validation_steps": steps, "verbose": 0}
        loss = model.fit(*parts[0], **options).history["val_loss"][0]
    expected = np.mean([np.ravel(model.test_on_batch(*part))[0] for part in parts])
    return None if abs(loss - expected) < 1e-4 else f"{loss} instead of {expected}"


WIDTHS = [["generator", "PyDataset"], list(ORDERS), ["fit", "evaluate", "validation"]]


@pytest.mark.parametrize(
    "name", ["choices", pytest.param("spans", marks=pytest.mark.slow)]
)
def test_batches_may_differ_in_width(name):
    cells = [(name, *cell) for cell in AllPairs(WIDTHS)]
    assert wrong_cells(check_widths, cells) == []


@pytest.mark.weekly
def test_batches_of_all_tasks_may_differ_in_width():
    cells = itertools.product(TASKS, *WIDTHS)
    assert wrong_cells(check_widths, cells) == []


VERBS = {
    "classifier": "classify",
    "labels": "classify",
    "pairs": "classify",
    "regressor": "regress",
    "cosent": "encode",
    "tags": "extract",
    "field": "extract",
    "spans": "extract",
    "relations": "extract",
    "answers": "answer",
    "ranker": "rank",
    "choices": "choose",
}


def emptied(row, number):
    """A row whose text of this number is empty; choices stay."""
    if isinstance(row, str):
        return ""
    return tuple("" if n == number else part for n, part in enumerate(row))


def check_empty(name, engine):
    """Answers rows with an empty text; returns what is wrong, or None."""
    model, texts = loaded(name)[0], TASKS[name][2]
    count = 1 if isinstance(texts[0], str) else sum(type(t) is str for t in texts[0])
    rows = [texts[0], *(emptied(texts[1], number) for number in range(count))]
    model.engine = engine
    try:
        for verb in {VERBS[name], "predict"} - {"encode"}:
            answers = getattr(model, verb)(rows, verbose=0)
            if len(answers) != len(rows):
                return f"{verb}: {len(answers)} answers"
        if name == "cosent":
            model.encode(["", SINGLES[0]], verbose=0)
            return None
        # As bert4keras: [CLS] and [SEP] alone.
        made = [row if isinstance(row, tuple) else (row,) for row in rows]
        ids = model.make_rows(made).batch(np.arange(len(made)))
        outputs, expected = model.predict(rows, verbose=0), loaded(name)[1](ids)
        for output, other in zip(outputs, np.asarray(expected), strict=True):
            output = np.asarray(output)
            if output.ndim == other.ndim + 1:
                output = output[0]
            cut = other[tuple(slice(size) for size in output.shape)]
            seen = np.abs(cut) < 1e6
            if not np.allclose(output[seen], cut[seen], atol=2e-5):
                return "outputs differ"
    finally:
        model.engine = "auto"


def test_empty_texts_are_answered():
    assert wrong_cells(check_empty, [("classifier", "keras")]) == []


@pytest.mark.weekly
def test_empty_texts_of_all_tasks_are_answered():
    cells = itertools.product(VERBS, ["keras", "openvino"])
    assert wrong_cells(check_empty, cells) == []


def test_empty_texts_are_no_texts_to_learn_from():
    model, *_ = loaded("classifier")
    with pytest.raises(
        ConfigurationError, match="a text must be a str that is not empty"
    ):
        model.fit(["好", ""], ["好", "差"], verbose=0)


@pytest.mark.parametrize(
    "method",
    [
        "evaluate",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fit", "predict")),
        pytest.param("validation", marks=pytest.mark.slow),
    ],
)
def test_a_data_loader_is_refused_or_read(method):
    """Keras reads one of ids; one of texts does not tell columns from rows."""
    import torch

    model, _, ids, targets = loaded("classifier")
    texts, labels = TASKS["classifier"][2:4]
    rows = [({key: ids[key][n] for key in ids}, targets[n]) for n in range(6)]
    call = {
        "fit": lambda data: model.fit(data, verbose=0),
        "evaluate": lambda data: model.evaluate(data, verbose=0),
        "predict": lambda data: model.predict(data, verbose=0),
        "validation": lambda data: model.fit(
            texts, labels, validation_data=data, verbose=0
        ),
    }[method]
    call(torch.utils.data.DataLoader(rows, 4))
    loader = torch.utils.data.DataLoader(list(zip(texts, labels, strict=True)), 4)
    with pytest.raises(ConfigurationError, match="got a DataLoader of PyTorch: give"):
        call(loader)


def test_a_trained_model_and_its_data_are_freed():
    """TensorFlow keeps the functions of its datasets for ever."""
    kind, options, texts, labels, *_ = TASKS["classifier"]
    model = load_small(getattr(tasks, f"RoFormer{kind}"), **options)
    model.compile(run_eagerly=True)
    data = Batches([(texts, labels)])
    model.fit(texts, labels, validation_data=(texts, labels), verbose=0)
    model.fit(data, validation_data=Batches([(texts, labels)]), verbose=0)
    model.evaluate(texts, labels, verbose=0)
    model.predict(model.tokenizer(texts), verbose=0)
    left = [weakref.ref(model), weakref.ref(data)]
    del model, data
    gc.collect()
    assert [one() for one in left] == [None, None]


def test_validation_data_of_a_wrong_type_are_refused():
    model, *_ = loaded("classifier")
    texts, labels = TASKS["classifier"][2:4]
    with pytest.raises(ConfigurationError, match="validation_data must be a pair"):
        model.fit(texts, labels, validation_data=5, verbose=0)


def test_after_an_interrupted_fit_the_next_one_has_its_own_validation():
    model, *_ = loaded("classifier")
    texts, labels = TASKS["classifier"][2:4]

    def stop(epoch, logs):
        raise KeyboardInterrupt

    interrupted = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            texts,
            labels,
            validation_data=(texts[:2], labels[:2]),
            callbacks=[interrupted],
            verbose=0,
        )
    history = model.fit(texts, labels, validation_data=(texts, labels), verbose=0)
    assert history.history["val_loss"] == pytest.approx(history.history["loss"])


def test_texts_are_not_learned_under_a_strategy_of_tensorflow():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        kind, options, texts, labels, *_ = TASKS["classifier"]
        model = load_small(getattr(tasks, f"RoFormer{kind}"), **options)
    for method in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ConfigurationError, match=r"under tf\.distribute"):
            method(texts, labels)
    assert model.predict(texts, verbose=0).shape == (6, 2)

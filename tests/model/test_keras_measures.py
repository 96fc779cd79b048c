"""Losses and metrics of Keras for one-hot labels, on the labels that tasks have."""

import keras
import numpy as np
import pytest
from common import wrong_cells
from finetuning_cases import load_small
from keras import losses, metrics, ops
from model.test_containers import TASKS, loaded

from roformer_keras import tasks
from roformer_keras.base.errors import ConfigurationError

METRICS = {
    "accuracy": metrics.CategoricalAccuracy,
    "auc": metrics.AUC,
    "binary": metrics.BinaryAccuracy,
    "entropy": metrics.CategoricalCrossentropy,
    "f1": lambda name: metrics.F1Score("macro", name=name),
    "precision": metrics.Precision,
    "recall": lambda name: metrics.Recall(class_id=1, name=name),
    "sensitivity": lambda name: metrics.SensitivityAtSpecificity(0.5, name=name),
    "top": lambda name: metrics.TopKCategoricalAccuracy(1, name=name),
}
LOSSES = {
    "crossentropy": losses.CategoricalCrossentropy,
    "focal": losses.CategoricalFocalCrossentropy,
    "binary": losses.BinaryCrossentropy,
    "binary focal": losses.BinaryFocalCrossentropy,
}
CLASSES = ["classifier", "labels", "classes", "choices", "ranker"]
OTHERS = ["tags", "field", "spans", "relations"]


def new_model(name):
    kind, options, *_ = TASKS[name]
    model = load_small(getattr(tasks, f"RoFormer{kind}"), **options)
    model.set_weights(loaded(name)[0].get_weights())
    return model


def wrong_measures(name):
    """Compare with plain Keras on one-hot labels and probabilities."""
    _, plain, ids, targets = loaded(name)
    texts, labels = TASKS[name][2:4]
    model, outputs = new_model(name), plain(ids)
    function = ops.softmax
    if name == "labels":
        function = ops.sigmoid
    else:
        targets = np.eye(outputs.shape[-1])[targets.astype(int)]
    # Keras needs a fixed number of classes for F1.
    made = [make(name=key) for key, make in METRICS.items()]
    if name == "choices":
        made = [one for one in made if one.name != "f1"]
    model.compile(metrics=[*made, "mae"], run_eagerly=True)
    found = model.evaluate(texts, labels, verbose=0, return_dict=True)
    expected = {"mae": np.abs(targets - outputs).mean()}
    for metric in made:
        plain_metric = METRICS[metric.name](name=metric.name)
        plain_metric.update_state(targets, function(outputs))
        expected[metric.name] = float(plain_metric.result())
    for key, make in LOSSES.items():
        loss = make(from_logits=True)
        expected[key] = float(loss(targets, outputs))
        model.compile(loss=loss, metrics=[], run_eagerly=True)
        found[key] = model.evaluate(texts, labels, verbose=0)
    differing = {
        key: (found[key], value)
        for key, value in expected.items()
        if abs(found[key] - value) > 1e-5
    }
    return differing and str(differing)


def test_measures_of_classes():
    assert wrong_cells(wrong_measures, [("classifier",)]) == []


@pytest.mark.weekly
def test_measures_of_all_classes():
    assert wrong_cells(wrong_measures, [(name,) for name in CLASSES]) == []


@pytest.mark.parametrize(
    "name",
    ["answers", *(pytest.param(name, marks=pytest.mark.weekly) for name in OTHERS)],
)
def test_measures_that_do_not_fit_are_refused(name):
    model, (_, _, texts, labels, *_) = new_model(name), TASKS[name]
    for options in (
        {"metrics": [metrics.F1Score()]},
        {"metrics": [metrics.AUC()]},
        {"loss": losses.CategoricalFocalCrossentropy(from_logits=True)},
    ):
        model.compile(run_eagerly=True, **options)
        with pytest.raises(ConfigurationError, match="must fit the labels of RoFormer"):
            model.evaluate(texts, labels, verbose=0)


@pytest.mark.slow
def test_measures_are_refused_before_the_first_batch():
    model, (_, _, texts, labels, *_) = new_model("answers"), TASKS["answers"]
    before = model.get_weights()
    model.compile(metrics=[metrics.F1Score()])
    with pytest.raises(ConfigurationError, match="must fit the labels of RoFormer"):
        model.fit(texts, labels, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_threshold_of_logits_stays():
    model, (_, _, texts, labels, *_) = new_model("labels"), TASKS["labels"]
    _, plain, ids, targets = loaded("labels")
    model.compile(metrics=[metrics.Precision(thresholds=0)], run_eagerly=True)
    expected = metrics.Precision(thresholds=0)
    expected.update_state(targets, plain(ids))
    found = model.evaluate(texts, labels, verbose=0)[1]
    assert found == pytest.approx(float(expected.result()))


def test_measures_are_saved_and_read(tmp_path):
    model, (_, _, texts, labels, *_) = new_model("classifier"), TASKS["classifier"]
    model.compile(
        loss=losses.CategoricalCrossentropy(from_logits=True),
        metrics=[metrics.F1Score("macro")],
        run_eagerly=True,
    )
    model.fit(texts, labels, verbose=0)
    expected = model.evaluate(texts, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    again.run_eagerly = True
    assert again.evaluate(texts, labels, verbose=0) == pytest.approx(expected)


@pytest.mark.parametrize(
    "name", ["tags", pytest.param("field", marks=pytest.mark.slow)]
)
def test_the_loss_of_tokens_does_not_depend_on_batches(name):
    model, (_, _, texts, labels, *_) = new_model(name), TASKS[name]
    model.compile(run_eagerly=True)
    values = [model.evaluate(texts, labels, size, verbose=0) for size in (1, 4, 6)]
    np.testing.assert_allclose(values, values[-1:] * 3, rtol=1e-5)


def test_evaluate_compiles_as_fit_does():
    model, (_, _, texts, labels, *_) = new_model("classifier"), TASKS["classifier"]
    assert len(model.evaluate(texts, labels, verbose=0)) == 2

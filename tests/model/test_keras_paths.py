"""`predict`, `evaluate`, `fit` and the call of Keras: its contract, and no waiting."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from common import CHARACTER, SIM, is_tuned
from finetuning_cases import load_small
from tiny_models import ids

from roformer_keras import (
    FastModel,
    RoFormerBackbone,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
)
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.data import adapters
from roformer_keras.inference.compiled_forward import inference_of

ROWS, BATCH = 7, 3


@pytest.fixture(autouse=True)
def plain_calls():
    """Nothing: the graph that a call keeps is tested here."""


def dataset(*parts, batch=BATCH):
    parts = parts[0] if len(parts) == 1 else parts
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch)


class Batches(keras.utils.PyDataset):
    def __init__(self, *parts, **options):
        super().__init__(**options)
        self.parts = parts

    def __len__(self):
        return -(-ROWS // BATCH)

    def __getitem__(self, number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return keras.tree.map_structure(lambda x: x[rows], self.parts)


def generator(*parts):
    batches = Batches(*parts)
    return (batches[number] for number in itertools.cycle(range(len(batches))))


class Calls(keras.callbacks.Callback):
    """The calls of Keras in order; batches with the shapes of their outputs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __getattribute__(self, name):
        attribute = super().__getattribute__(name)
        is_call = name.startswith("on_") and ("predict" in name or "test" in name)
        if not is_call:
            return attribute

        def noted(*arguments, **options):
            *numbers, logs = [*arguments, *options.values()]
            self.seen.append((name, *numbers, shapes(logs)))

        return noted


def shapes(logs):
    return keras.tree.map_structure(lambda x: tuple(np.shape(x)), logs or {})


@pytest.fixture(scope="module")
def small():
    """A backbone of one layer without dropout."""
    rates = dict.fromkeys(("dropout", "attention_dropout"), 0.0)
    return RoFormerBackbone.from_preset(CHARACTER, num_layers=1, **rates)


@pytest.fixture(scope="module")
def plain(small):
    """A model of Keras alone with the layers of `small`."""
    return keras.Model(small.input, small.output)


def assert_close(found, expected, atol=2e-6):
    keras.tree.assert_same_structure(found, expected)
    for ours, theirs in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=atol)


# === predict ===

PREDICTED = {
    "arrays": lambda x: (x, {"batch_size": BATCH}),
    "tensors": lambda x: (keras.tree.map_structure(tf.constant, x), {}),
    "int64": lambda x: (keras.tree.map_structure(np.int64, x), {"batch_size": 2}),
    "dataset": lambda x: (dataset(x, np.zeros(ROWS)), {}),
    "PyDataset": lambda x: (Batches(x), {}),
    "generator": lambda x: (generator(x), {"steps": 3}),
    "steps": lambda x: (x, {"batch_size": BATCH, "steps": 2}),
    "steps of a dataset": lambda x: (dataset(x).repeat(), {"steps": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PREDICTED)
def test_predict_keeps_the_contract_of_keras(case, small, plain):
    outputs, calls = [], []
    for model in (small, plain):
        (x, options), callback = PREDICTED[case](ids(ROWS)), Calls()
        outputs.append(model.predict(x, verbose=0, callbacks=[callback], **options))
        calls.append(callback.seen)
    assert_close(*outputs)
    assert calls[0] == calls[1]
    names = [name for name, *_ in calls[0]]
    assert names[0] == "on_predict_begin" and names[-1] == "on_predict_end"
    assert names.count("on_predict_batch_end") == len(names) // 2 - 1


def test_predict_shows_the_progress_of_keras(masked_lm, capsys):
    keras.config.disable_interactive_logging()
    keras.config.enable_interactive_logging()
    masked_lm.predict(ids(ROWS), batch_size=BATCH, verbose=1)
    assert "3/3" in capsys.readouterr().out
    masked_lm.predict(ids(ROWS), batch_size=BATCH, verbose=0)
    assert capsys.readouterr().out == ""


def test_predict_stops_where_a_callback_says_so(masked_lm):
    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 1

    outputs = masked_lm.predict(ids(ROWS), BATCH, verbose=0, callbacks=[Stop()])
    assert len(outputs) == 2 * BATCH


@pytest.mark.slow
def test_nested_outputs_stay_nested(sim):
    outputs = sim.predict(ids(ROWS), batch_size=BATCH, verbose=0)
    expected = keras.Model(sim.input, sim.output).predict(ids(ROWS), BATCH, verbose=0)
    assert set(outputs) == {"logits", "pooled_output"}
    assert_close(outputs, expected)


def test_a_step_of_a_subclass_is_used(backbone):
    class Rounded(FastModel):
        def predict_step(self, data):
            # Sizes are numbers, as in Keras.
            assert data["token_ids"].shape[0] == ROWS
            return keras.ops.round(super().predict_step(data))

    model = Rounded(backbone.input, backbone.output)
    outputs = model.predict(ids(ROWS), verbose=0)
    np.testing.assert_array_equal(outputs, np.round(outputs))
    assert np.abs(outputs).max() >= 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 2}])
def test_predict_follows_compile(options, masked_lm):
    model = RoFormerMaskedLM.from_preset(CHARACTER)
    model.compile(**options)
    expected = masked_lm.predict(ids(ROWS), verbose=0)
    assert_close(model.predict(ids(ROWS), batch_size=2, verbose=0), expected)
    assert_close(model.predict(dataset(ids(ROWS), batch=2), verbose=0), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16"])
def test_predict_in_other_types(dtype):
    model = RoFormerBackbone.from_preset(CHARACTER, dtype=dtype, num_layers=1)
    expected = keras.Model(model.input, model.output).predict(ids(ROWS), verbose=0)
    outputs = model.predict(ids(ROWS), batch_size=BATCH, verbose=0)
    assert outputs.dtype == expected.dtype
    np.testing.assert_allclose(
        outputs.astype("float32"), expected.astype("float32"), atol=0.1
    )


@pytest.mark.slow
def test_batches_of_all_shapes_have_one_graph(monkeypatch):
    model = RoFormerBackbone.from_preset(CHARACTER, num_layers=1)
    traced = []
    run = RoFormerBackbone.call

    def noted(self, *arguments, **options):
        traced.append(1)
        return run(self, *arguments, **options)

    monkeypatch.setattr(model, "call", noted.__get__(model))
    for rows, length in ((1, 4), (5, 9), (7, 2), (7, 30)):
        outputs = model.predict(ids(rows, length), batch_size=BATCH, verbose=0)
        assert outputs.shape == (rows, length, 32)
    # Keras wraps this batch in one tuple more.
    for rows, length in ((1, 4), (5, 9)):
        model.predict_on_batch(ids(rows, length))
    assert len(traced) == 2


def test_bad_rows_are_refused(masked_lm):
    empty = keras.tree.map_structure(lambda x: x[:0], ids(ROWS))
    with pytest.raises(ConfigurationError, match="at least one row"):
        masked_lm.predict(empty)
    wrong = {**ids(ROWS), "segment_ids": np.full((ROWS, 9), 2)}
    with pytest.raises(ConfigurationError, match="from 0 to 1, got 2"):
        masked_lm.predict(wrong)


def test_ids_and_callbacks_of_a_task():
    model = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2)
    callback = Calls()
    outputs = model.predict(ids(ROWS), 2, steps=2, callbacks=[callback], verbose=0)
    assert outputs.shape == (4, 2)
    assert len(callback.seen) == 6
    with pytest.raises(ConfigurationError, match="leave them out"):
        model.predict(["好"], callbacks=[callback])


# === evaluate and fit ===

EVALUATED = {
    "arrays": lambda x, y, w: ((x, y), {"batch_size": BATCH}),
    "weights": lambda x, y, w: ((x, y), {"batch_size": BATCH, "sample_weight": w}),
    "weights, one batch": lambda x, y, w: ((x, y), {"sample_weight": w}),
    "dataset": lambda x, y, w: ((dataset(x, y, w),), {}),
    "generator": lambda x, y, w: ((generator(x, y),), {"steps": 3}),
    "steps": lambda x, y, w: ((x, y), {"batch_size": BATCH, "steps": 2}),
}


def classifiers_of(backbone, *optimizer, **metrics):
    """A model of ours and one of Keras, of the same layers."""
    models = [
        kind(backbone.input, backbone.output[:, 0]) for kind in (FastModel, keras.Model)
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for model in models:
        model.compile(*optimizer, loss=loss, **metrics)
    return models


@pytest.fixture(scope="module")
def evaluated(small):
    metrics = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    return classifiers_of(small, **metrics)


@pytest.mark.slow
@pytest.mark.parametrize("case", EVALUATED)
def test_evaluate_keeps_the_contract_of_keras(case, evaluated):
    random = np.random.default_rng(1)
    y = random.integers(0, 32, ROWS)
    weights = random.uniform(size=ROWS).astype("float32")
    results = []
    for model in evaluated:
        callback = Calls()
        data, options = EVALUATED[case](ids(ROWS), y, weights)
        logs = model.evaluate(
            *data, **options, callbacks=[callback], return_dict=True, verbose=0
        )
        results.append((logs, callback.seen))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-5)
    assert results[0][1] == results[1][1]


@pytest.fixture(scope="module")
def fitted(small):
    """A model of ours and one of Keras, and the weights that they begin with."""
    return classifiers_of(small, "sgd"), small.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["arrays", "split"])
def test_fit_keeps_the_contract_of_keras(case, fitted):
    y = np.random.default_rng(1).integers(0, 32, ROWS)
    options = {
        "arrays": {
            "class_weight": dict.fromkeys(range(32), 2.0),
            "validation_data": (ids(ROWS), y),
        },
        "split": {"validation_split": 0.4},
    }[case]
    options |= {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    (models, weights), histories = fitted, []
    for model in models:
        model.set_weights(weights)
        histories.append(model.fit(ids(ROWS), y, **options).history)
    models[0].set_weights(weights)
    assert set(histories[0]) == {"loss", "val_loss"}
    for name, values in histories[1].items():
        assert histories[0][name] == pytest.approx(values, rel=1e-4)


# === No dataset is tuned ===


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dataset", "generator"])
def test_no_dataset_is_tuned(case, small, plain, datasets):
    x, options = PREDICTED[case](ids(ROWS))
    small.predict(x, verbose=0, **options)
    assert datasets and not any(map(is_tuned, datasets))
    datasets.clear()
    x, options = PREDICTED[case](ids(ROWS))
    plain.predict(x, verbose=0, **options)
    # The fixture sees those of Keras, which are.
    assert datasets and all(map(is_tuned, datasets))


def test_arrays_need_no_dataset(masked_lm, datasets):
    masked_lm.predict(ids(ROWS), batch_size=BATCH, verbose=0)
    assert not datasets


@pytest.mark.slow
def test_no_dataset_of_training_is_tuned(datasets):
    options = {"num_layers": 1}
    model = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2, **options)
    model.compile(run_eagerly=True)
    texts, labels = ["好", "坏", "天气", "北京"], [0, 1, 0, 1]
    model.fit(texts, labels, validation_data=(texts, labels), verbose=0)
    model.evaluate(texts, labels, batch_size=2, verbose=0)
    assert len(datasets) >= 3 and not any(map(is_tuned, datasets))
    datasets.clear()
    lm = RoFormerMaskedLM.from_preset(CHARACTER, **options)
    lm.compile(run_eagerly=True)
    lm.fit(texts, validation_data=texts, verbose=0)
    lm.evaluate(texts, verbose=0)
    assert len(datasets) >= 3 and not any(map(is_tuned, datasets))


def test_what_a_dataset_says_of_tuning_stays(masked_lm, datasets):
    options = tf.data.Options()
    options.autotune.enabled = True
    masked_lm.predict(dataset(ids(ROWS)).with_options(options), verbose=0)
    assert datasets and all(map(is_tuned, datasets))


def test_without_the_names_of_keras_data_goes_to_it_as_it_is(monkeypatch, masked_lm):
    expected = masked_lm.predict(ids(ROWS), verbose=0)
    monkeypatch.setattr(adapters, "_KERAS", None)
    np.testing.assert_array_equal(masked_lm.predict(ids(ROWS), verbose=0), expected)


# === model(ids) ===

MODELS = {
    "backbone": (RoFormerBackbone, CHARACTER, {}),
    "sim": (RoFormerSim, SIM, {}),
    "tagger": (RoFormerTokenClassifier, CHARACTER, {"labels": ["LOC"]}),
}


def by_operation(model, x):
    model.run_eagerly = True
    try:
        return model(x)
    finally:
        model.run_eagerly = False


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_call_computes_what_each_operation_would(name):
    cls, source, options = MODELS[name]
    model = cls.from_preset(source, num_layers=1, **options)
    for length in (1, 9, 30):
        x = ids(ROWS, length)
        outputs, expected = model(x), by_operation(model, x)
        assert_close(outputs, expected, atol=2e-5)
        for ours, theirs in zip(
            *map(keras.tree.flatten, (outputs, expected)), strict=True
        ):
            has_mask = getattr(theirs, "_keras_mask", None) is not None
            assert (getattr(ours, "_keras_mask", None) is not None) == has_mask
            if has_mask:
                np.testing.assert_array_equal(ours._keras_mask, theirs._keras_mask)
    assert inference_of(model).keeps("call")


@pytest.mark.slow
def test_gradients_flow_through_a_call():
    model = RoFormerBackbone.from_preset(CHARACTER, num_layers=1)

    def gradients(call):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(call(model, ids(ROWS))))
        computed = tape.gradient(loss, model.trainable_variables)
        return [tf.convert_to_tensor(one) for one in computed]

    expected = gradients(by_operation)
    by_call = gradients(lambda model, x: model(x))
    for ours, theirs in zip(by_call, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_dropout_and_graphs_are_left_to_keras(backbone, monkeypatch):
    model = RoFormerBackbone.from_preset(CHARACTER, num_layers=1)
    x = ids(ROWS)
    first, second = model(x, training=True), model(x, training=True)
    assert np.abs(first - second).max() > 0.01
    tf.function(lambda: model(x), autograph=False)()
    assert not inference_of(model).keeps("call")
    # In a model that trains the backbone does as well.
    head = keras.layers.GlobalAveragePooling1D()

    class Own(keras.Model):
        def call(self, x):
            return head(model(x))

    subclassed = Own()
    assert (
        np.abs(subclassed(x, training=True) - subclassed(x, training=True)).max() > 0.01
    )
    assert not inference_of(model).keeps("call")
    np.testing.assert_allclose(subclassed(x), head(by_operation(model, x)), atol=1e-6)
    assert inference_of(model).keeps("call")


@pytest.mark.slow
def test_models_of_users_are_fast_as_well(tmp_path, small):
    hidden = keras.layers.GlobalAveragePooling1D()(small.output)
    model = FastModel(small.input, keras.layers.Dense(3)(hidden))
    assert isinstance(model, FastModel)
    expected = keras.Model(model.input, model.output).predict(ids(ROWS), verbose=0)
    np.testing.assert_allclose(
        model.predict(ids(ROWS), 2, verbose=0), expected, atol=1e-6
    )
    np.testing.assert_allclose(model(ids(ROWS)), expected, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, FastModel)
    np.testing.assert_allclose(
        loaded.predict(ids(ROWS), verbose=0), expected, atol=1e-6
    )


def test_a_step_of_training_is_traced_once(monkeypatch):
    """TensorFlow traces a step that makes variables, as the optimizer's, twice."""
    traced, texts = [], ["今天天气不错", "她在北京"]
    step = keras.Model.train_step

    def counted(model, data):
        traced.append(type(model).__name__)
        return step(model, data)

    monkeypatch.setattr(keras.Model, "train_step", counted)
    classifier = load_small(RoFormerTextClassifier, num_classes=2)
    classifier.compile(keras.optimizers.SGD(0.1))
    classifier.fit(texts, [0, 1], epochs=2, verbose=0)
    masked = load_small(RoFormerMaskedLM)
    masked.fit(texts, max_length=12, epochs=2, verbose=0)
    assert traced == ["RoFormerTextClassifier", "FastModel"]

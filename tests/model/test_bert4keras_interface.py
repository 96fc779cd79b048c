"""Layers and functions of the interface of bert4keras, with the real answers."""

import json

import keras as keras3
import numpy as np
import pytest
from common import ROOT
from finetuning_cases import GOOD, load_small
from keras import ops

from roformer_keras.base.errors import ConfigurationError, RoFormerError
from roformer_keras.bert4keras import backend, layers
from roformer_keras.bert4keras.backend import K, keras
from roformer_keras.bert4keras.keras2 import keras2_habits
from roformer_keras.bert4keras.layer_functions import MERGES
from roformer_keras.bert4keras.snippets import adversarial_training
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier
from tools.reference.interface import OF_BACKEND, OF_LAYERS, OF_TAGS, answers

GOLDEN = json.loads(
    (ROOT / "tests" / "data" / "bert4keras" / "interface.json").read_text(
        encoding="utf-8"
    )
)


def test_answers_equal_bert4keras():
    ours = answers("roformer_keras.bert4keras")
    for kind, asked in (
        ("backend", OF_BACKEND),
        ("layers", OF_LAYERS),
        ("tags", OF_TAGS),
    ):
        cases = zip(asked, ours[kind], GOLDEN[kind], strict=True)
        for number, ((name, *_), answer, expected) in enumerate(cases):
            label = f"{kind} {number}: {name}"
            if kind != "tags":
                answer, expected = [answer], [expected]
            for value, golden in zip(answer, expected, strict=True):
                np.testing.assert_allclose(value, golden, 2e-6, 2e-6, err_msg=label)


def test_names_that_are_not_covered_say_so():
    with pytest.raises(AttributeError, match="withdrew BatchSplit: slice a batch"):
        _ = layers.BatchSplit
    with pytest.raises(ImportError, match="use ConditionalRandomField"):
        exec("from roformer_keras.bert4keras.layers import MaximumEntropyMarkovModel")
    with pytest.raises(ImportError, match="use difflib"):
        exec("from roformer_keras.bert4keras.snippets import longest_common_substring")
    with pytest.raises(ConfigurationError, match="does not cover"):
        _ = layers.GatedAttentionUnit
    assert layers.Dense is keras.layers.Dense
    with pytest.raises(ConfigurationError, match="one of erf, tanh, got 'sigmoid'"):
        backend.set_gelu("sigmoid")


def test_layers_of_scripts_in_a_graph():
    """Shapes that only the run knows, and gradients."""

    class Own(keras.layers.Layer):
        def __init__(self, function, rank):
            super().__init__()
            self.function, self.rank = function, rank

        def call(self, x):
            return self.function(x)

        def compute_output_shape(self, shape):
            return (None,) * self.rank

    def flat(x):
        size, rows = K.prod(K.shape(x)[1:]), K.eye(K.shape(x)[0])
        return K.reshape(x, (-1, size)) + K.sum(rows)

    def slope(x):
        return K.gradients(K.sum(x**3), [x])[0]

    inputs = keras.Input((None, 2))
    model = keras.Model(inputs, [Own(flat, 2)(inputs), Own(slope, 3)(inputs)])
    x = np.arange(12, dtype="float32").reshape(2, 3, 2)
    flattened, slopes = model.predict(x, verbose=0)
    np.testing.assert_allclose(flattened, x.reshape(2, 6) + 2)
    np.testing.assert_allclose(slopes, 3 * x**2)


class Pooling(keras.layers.Layer):
    """A pooling layer of a script, which makes a layer in `build`."""

    def build(self, input_shape):
        self.scores = keras.layers.Dense(1, name="scores")
        self.scale = self.add_weight("scale", (1,), initializer="ones")

    def call(self, inputs, mask=None):
        weights = ops.softmax(self.scores(inputs) * self.scale, axis=1)
        return ops.sum(inputs * weights, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])


@pytest.mark.parametrize("by_name", [False, True])
def test_layers_that_build_makes_have_weights_before_a_batch(tmp_path, by_name):
    def make():
        x = keras.Input((4, 3))
        return keras.Model(x, Pooling(name="pooling")(x))

    saved, loaded = make(), make()
    assert len(saved.weights) == 3
    saved.save_weights(str(tmp_path / "x.weights"))
    loaded.load_weights(str(tmp_path / "x.weights"), by_name=by_name)
    for one, other in zip(saved.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(K.eval(one), K.eval(other))


def test_layers_and_models_tell_their_shapes():
    x = keras.Input((4, 3))
    dense = keras.layers.Dense(2)
    model = keras.Model(x, dense(x))
    assert (dense.input_shape, dense.output_shape) == ((None, 4, 3), (None, 4, 2))
    assert (model.input_shape, model.output_shape) == ((None, 4, 3), (None, 4, 2))
    both = keras.layers.Add()
    both([model.output, model.output])
    assert both.input_shape == [(None, 4, 2)] * 2
    sequential = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert sequential.output_shape == (None, 2)


@pytest.mark.parametrize("base", [keras.layers.Layer, layers.Layer])
def test_layers_of_scripts_show_metrics_in_training(base):
    class Measured(base):
        def call(self, inputs):
            self.add_metric(K.abs(inputs), name="size", aggregation="mean")
            return inputs * 2

    x = keras.Input((2,))
    model = keras.Model(x, layers.BiasAdd()(Measured()(x)))
    model.compile("sgd", "mse")
    ones = np.array([[1.0, -2.0]] * 3)
    history = model.fit(ones, ones, epochs=2, verbose=0).history
    assert history["size"] == [1.5, 1.5]
    model.predict(ones, verbose=0)


@pytest.mark.parametrize("method", ["add_loss", "add_metric"])
def test_symbolic_losses_and_metrics_are_refused_with_the_way_out(method):
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    with pytest.raises(ConfigurationError, match=f"model.{method} takes no symbolic"):
        getattr(model, method)(ops.mean(model.output))


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
def test_activations_of_bert4keras_have_names(name):
    x = np.linspace(-2, 2, 5, dtype="float32")
    expected = K.eval(getattr(backend, name)(x))
    for layer in (
        keras.layers.Dense(5, name, kernel_initializer="identity"),
        keras.layers.Dense(5, activation=name, kernel_initializer="identity"),
        keras.layers.Activation(name),
        keras.activations.get(name),
    ):
        np.testing.assert_allclose(K.eval(layer(x[None]))[0], expected, atol=1e-6)
    assert keras.activations.get("relu") is keras3.activations.relu


def test_functions_of_symbolic_tensors():
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(3)(inputs)
    function = K.function([inputs], [hidden])
    (output,) = function([np.ones((4, 2), "float32")])
    assert output.shape == (4, 3)


class Difference(layers.Loss):
    """A vector of losses, whose mean counts."""

    def compute_loss(self, inputs, mask=None):
        assert mask is None
        y_true, y_pred = inputs
        self.add_metric(K.abs(y_true - y_pred), name="distance", aggregation="mean")
        return K.sum(K.square(y_true - y_pred), axis=1)


def test_a_loss_layer_trains_by_the_mean_and_shows_its_metric():
    x_in, y_in = keras.Input((2,)), keras.Input((1,))
    output = Difference(1)([y_in, keras.layers.Dense(1)(x_in)])
    model = keras.Model([x_in, y_in], output)
    assert output.shape == (None, 1)
    model.compile("sgd")
    x, y = np.ones((4, 2), "float32"), np.arange(4, dtype="float32")[:, None]
    predicted = model.predict([x, y], verbose=0)
    history = model.fit([x, y], batch_size=4, epochs=1, verbose=0).history
    np.testing.assert_allclose(history["loss"], np.mean((predicted - y) ** 2), 1e-5)
    np.testing.assert_allclose(history["distance"], np.mean(abs(predicted - y)), 1e-5)


@pytest.mark.parametrize("name", [*MERGES, "GlobalMaxPooling1D"])
def test_layers_with_masks_of_keras_2_are_saved_as_layers_of_this_package(name):
    """A file that Keras alone loads would give other numbers."""
    ids = keras.Input((None,))
    masked = keras.layers.Embedding(5, 3, mask_zero=True)(ids)
    layer = getattr(keras.layers, name)()
    outputs = layer(masked if name not in MERGES else [masked, masked])
    (node,) = keras.Model(ids, outputs).get_config()["layers"][-1]["inbound_nodes"]
    assert node["kwargs"] == {}
    saved = keras.saving.serialize_keras_object(layer)
    assert saved["registered_name"] == f"bert4keras>{name}"
    assert type(keras.saving.deserialize_keras_object(saved)) is type(layer)


def test_other_layers_are_saved_as_those_of_keras():
    for name, argument in (("Dense", 3), ("Lambda", abs), ("Dropout", 0.5)):
        layer = getattr(keras.layers, name)(argument)
        saved = keras.saving.serialize_keras_object(layer)
        # Keras's own name, by which Keras loads it, is none of a package.
        assert saved["registered_name"] == name


@keras3.saving.register_keras_serializable("a_script")
class Averaging(keras.Model):
    """A subclass that is made of tensors, with its own argument."""

    def __init__(self, *args, share=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.share = share

    def train_step(self, data):
        return {"share": self.share}


def test_a_subclass_of_model_is_functional_if_it_is_called_with_tensors(tmp_path):
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(3)(inputs)
    model = Averaging(inputs, [outputs], share=0.25)
    assert isinstance(model, Averaging) and model.output is outputs
    assert Averaging.__mro__[1] is keras.Model
    model.compile("sgd", "mse")
    x, y = np.ones((1, 2)), np.ones((1, 3))
    assert model.fit(x, y, verbose=0).history == {"share": [0.25]}
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, Averaging) and hasattr(again, "fit_generator")
    np.testing.assert_array_equal(again(x), model(x))
    with pytest.raises(ConfigurationError, match="must be called with the tensors"):
        type("Made", (keras.Model,), {"__init__": make_inside})()


def make_inside(model):
    inputs = keras.Input((2,))
    keras.Model.__init__(model, inputs, keras.layers.Dense(3)(inputs))


def test_files_of_keras_are_loaded_with_the_methods_of_keras_2(tmp_path):
    inputs = keras3.Input((2,))
    keras3.Model(inputs, keras3.layers.Dense(3)(inputs)).save(tmp_path / "a.keras")
    assert type(keras.models.load_model(tmp_path / "a.keras")).fit_generator


def test_a_model_with_masks_of_keras_2_is_saved_and_loaded(tmp_path):
    ids = keras.Input((None,))
    masked = keras.layers.Embedding(5, 3, mask_zero=True)(ids)
    summed = keras.layers.add([masked, keras.layers.Embedding(5, 3)(ids)])
    model = keras.Model(ids, keras.layers.GlobalMaxPooling1D()(summed))
    model.save(tmp_path / "model.keras")
    again = keras3.models.load_model(tmp_path / "model.keras")
    x = np.array([[1, 2, 0, 0]])
    np.testing.assert_array_equal(again(x), model(x))
    np.testing.assert_allclose(again(x), model(x[:, :2]), 1e-6)


def test_names_that_do_not_go_with_a_save_format_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for name, save_format, message in (
        ("x.h5", "tf", "save_format='tf' does not write a file of the name"),
        ("x.model", "h5", "leave out save_format="),
        ("x.h5", "keras", "save_format='keras' does not"),
        ("x", "zip", "save_format must be one of 'tf', 'h5', 'keras', got 'zip'"),
        ("other", "tf", "other holds files and no saved_model.pb"),
    ):
        with pytest.raises(RoFormerError, match=message):
            model.save(str(tmp_path / name), save_format=save_format)
        with pytest.raises(RoFormerError, match=message):
            keras.models.save_model(model, tmp_path / name, save_format=save_format)
    with pytest.raises(RoFormerError, match="written in HDF5, got save_format='tf'"):
        model.save_weights(str(tmp_path / "x"), save_format="tf")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_models_with_one_output_in_a_list_have_that_output():
    inputs = keras.Input((2,))
    model = keras.Model([inputs], [keras.layers.Dense(3)(inputs)])
    assert model.output.shape == (None, 3)
    assert model.predict([np.ones((1, 2))], verbose=0).shape == (1, 3)


def model_with_table():
    ids = keras.Input((3,))
    table = layers.Embedding(5, 2, name="Embedding-Token")
    output = keras.layers.Dense(1)(keras.layers.Flatten()(table(ids)))
    model = keras.Model(ids, output)
    random = np.random.RandomState(0)
    model.set_weights([random.randn(*w.shape) for w in model.get_weights()])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_adversarial_training_updates_at_moved_embeddings():
    x, y = np.array([[1, 2, 3]]), np.ones((1, 1))
    plain, moved, adversarial = (model_with_table() for _ in range(3))
    before = plain.get_weights()
    plain.fit(x, y, verbose=0)
    gradient = (before[0] - plain.get_weights()[0]) / 0.1
    step = 0.5 * gradient / np.linalg.norm(gradient)
    moved.set_weights([before[0] + step, *before[1:]])
    moved.fit(x, y, verbose=0)
    expected = moved.get_weights()
    adversarial_training(adversarial, "Embedding-Token", 0.5)
    adversarial.fit(x, y, verbose=0)
    expected[0] = expected[0] - step
    for ours, value in zip(adversarial.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, value, atol=1e-6)
    with pytest.raises(ConfigurationError, match="must have the layer 'Embedding-X'"):
        adversarial_training(model_with_table(), "Embedding-X")


def test_scripts_that_import_keras_get_the_habits_by_one_call():
    import keras as own

    before = own.layers.Add, own.Model, own.models.load_model
    with keras2_habits():
        from keras.layers import Add
        from keras.models import Model

        assert (Add, Model) == (keras.layers.Add, keras.models.Model)
        from keras.losses import kullback_leibler_divergence as divergence

        assert hasattr(Model, "fit_generator") and divergence
    assert before == (own.layers.Add, own.Model, own.models.load_model)
    assert not hasattr(own.losses, "kullback_leibler_divergence")
    inputs = own.Input((2,))
    assert isinstance(own.Model(inputs, [inputs]).output, list)


SCRIPT = """
from keras.layers import Add, Dense
from keras.models import Model
from roformer_keras.bert4keras.models import build_transformer_model

model = build_transformer_model(
    vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=8, hidden_act="gelu", model="roformer",
)
"""


def test_a_script_that_builds_a_model_has_the_models_of_keras_2():
    names = {}
    exec(SCRIPT, names)
    assert names["Model"] is keras.models.Model is type(names["model"]).__mro__[1]
    assert (names["Add"], names["Dense"]) == (keras.layers.Add, keras3.layers.Dense)
    assert not hasattr(keras3.Model, "fit_generator")


def test_a_model_that_keras_cannot_read_from_h5_is_refused(tmp_path):
    x = keras.layers.Input((None,))
    hidden = layers.Embedding(5, 4, mask_zero=True)(x)
    keras.models.Model(x, hidden).save(tmp_path / "layers.h5")
    loaded = keras.models.load_model(tmp_path / "layers.h5")
    assert loaded.layers[-1].output_dim == 4
    sliced = keras.models.Model(x, hidden[:, 0])
    for model in (sliced, keras.models.Model(x, sliced(x))):
        with pytest.raises(ConfigurationError, match=r"computes GetItem .* in \.keras"):
            model.save(tmp_path / "sliced.h5")
    assert not (tmp_path / "sliced.h5").exists()


def test_layers_know_the_tensors_of_each_call():
    first, second = keras.Input((3,)), keras.Input((3,))
    shared = keras.layers.Dense(2)
    outputs = [shared(first), shared(second)]
    assert shared.get_output_at(-1) is outputs[1]
    assert shared.get_output_at(0) is outputs[0]
    assert shared.get_input_at(1) is second
    merged = keras.layers.Concatenate()(outputs)
    assert merged._keras_history.operation.get_input_at(0) == outputs
    with pytest.raises(ValueError, match="called 2 times, got 2"):
        shared.get_output_at(2)


def test_train_phase_is_that_of_the_model_around_a_layer():
    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return K.in_train_phase(lambda: inputs * 2, inputs)

    x = keras.Input((2,))
    # A bias of 0, for training needs a weight.
    model = keras.Model(x, layers.BiasAdd()(Doubled()(x)))
    ones = np.ones((1, 2), "float32")
    assert K.eval(model(ones, training=True)).sum() == 4
    assert K.eval(model(ones, training=False)).sum() == 2
    assert model.predict(ones, verbose=0).sum() == 2
    model.compile(keras.optimizers.SGD(0.0), "mse")
    assert model.train_on_batch(ones, ones) == 1
    assert model.test_on_batch(ones, ones) == 0
    with pytest.raises(ConfigurationError, match="in a layer's call or with training="):
        K.in_train_phase(ones, ones)


def test_random_binomial_draws_ones_with_its_probability():
    drawn = K.eval(K.random_binomial((4000,), p=0.25, seed=1))
    assert set(drawn) == {0, 1}
    assert abs(drawn.mean() - 0.25) < 0.03


def test_functions_take_the_arguments_of_keras_2():
    x = np.arange(6.0).reshape(2, 3)
    for computed, expected in (
        (K.permute_dimensions(x, pattern=(1, 0)), x.T),
        (K.clip(x, min_value=1, max_value=4), x.clip(1, 4)),
        (K.expand_dims(x=x), x[..., None]),
        (K.cumsum(x), x.cumsum(axis=0)),
        (K.cumprod(x, axis=1), x.cumprod(axis=1)),
        (K.repeat_elements(x, rep=2, axis=1), x.repeat(2, axis=1)),
        (K.reverse(x, axes=1), x[:, ::-1]),
        (K.pow(x, a=2), x**2),
        (K.maximum(x=x, y=3), np.maximum(x, 3)),
        (K.tile(x, n=(1, 2)), np.tile(x, (1, 2))),
        (K.zeros_like(x, name="zeros"), 0 * x),
    ):
        np.testing.assert_array_equal(K.eval(computed), expected)


def test_search_layer_of_a_tensor_without_history_says_so():
    with pytest.raises(ConfigurationError, match="in the loss of a model"):
        backend.search_layer(K.ones((2,)), "Embedding-Token")


def test_losses_have_the_names_of_keras_2():
    kullback_leibler_divergence = keras.losses.kullback_leibler_divergence
    x, y = np.array([[0.2, 0.8]], "float32"), np.array([[0.5, 0.5]], "float32")
    expected = 0.2 * np.log(0.4) + 0.8 * np.log(1.6)
    assert K.eval(kullback_leibler_divergence(x, y)) == pytest.approx([expected])


def test_a_loss_finds_layers_and_punishes_their_gradients():
    random = np.random.RandomState(0)
    table, kernel = random.randn(5, 2), random.randn(6, 1)
    ids = keras.Input((3,))
    embedding = layers.Embedding(5, 2, name="Embedding-Token")
    dense = keras.layers.Dense(1, use_bias=False)
    model = keras.Model(ids, dense(keras.layers.Flatten()(embedding(ids))))
    model.set_weights([table, kernel])

    def loss(y_true, y_pred):
        error = K.mean(K.square(y_true - y_pred))
        table = backend.search_layer(y_pred, "Embedding-Token").embeddings
        return error + 0.5 * K.sum(K.gradients(error, [table])[0].values ** 2)

    model.compile(keras.optimizers.SGD(0.1), loss)
    history = model.fit(np.array([[1, 2, 1]]), np.ones((1, 1)), verbose=0)
    # The gradient of each row is twice the error times its part of the kernel.
    output = table[[1, 2, 1]].reshape(-1) @ kernel[:, 0]
    squares = (kernel**2).sum()
    expected = (output - 1) ** 2 * (1 + 0.5 * 4 * squares)
    assert history.history["loss"][0] == pytest.approx(expected, rel=1e-6)
    # And it is derived once more.
    slope = 2 * (output - 1) * (1 + 2 * squares)
    moved = table.copy()
    for position, row in enumerate([1, 2, 1]):
        moved[row] -= 0.1 * slope * kernel[2 * position : 2 * position + 2, 0]
    np.testing.assert_allclose(model.get_weights()[0], moved, rtol=1e-5)
    model.compile("sgd", loss, run_eagerly=True)
    with pytest.raises(ConfigurationError, match="needs a graph"):
        model.fit(np.array([[1, 2, 1]]), np.ones((1, 1)), verbose=0)


class MovedTable:
    """Trains where the loss is worse, by a training function of Keras 2."""

    def __init__(self, model, epsilon, relabel=False):
        if model.train_function is None:
            model._make_train_function()
        self.train, self.epsilon, self.relabel = model.train_function, epsilon, relabel
        self.table = backend.search_layer(model.output, "Embedding-Token").embeddings
        (gradient,) = K.gradients(model.total_loss, [self.table])
        gradient = K.zeros_like(self.table) + gradient
        feeds = model._feed_inputs + model._feed_targets + model._feed_sample_weights
        self.slope = K.function(inputs=feeds, outputs=[gradient], name="slope")
        self.outputs = K.function(inputs=feeds, outputs=model.outputs)
        model.train_function = self.step

    def step(self, arrays):
        if self.relabel:
            arrays = arrays[:1] + self.outputs(arrays) + arrays[2:]
        (slope,) = self.slope(arrays)
        step = self.epsilon * slope / (np.sqrt((slope**2).sum()) + 1e-8)
        K.set_value(self.table, K.eval(self.table) + step)
        logs = self.train(arrays)
        K.set_value(self.table, K.eval(self.table) - step)
        return logs


@pytest.mark.slow
@pytest.mark.parametrize("way", ["generator", "train_on_batch"])
def test_a_script_may_replace_the_training_function(way):
    def train(model):
        if way == "generator":
            batches = ((x, y) for _ in range(2))
            model.fit(batches, steps_per_epoch=2, verbose=0)
        else:
            model.train_on_batch(x, y)
        return model.get_weights()

    x, y = np.array([[1, 2, 3], [4, 2, 1]]), np.ones((2, 1))
    scripted, ours = model_with_table(), model_with_table()
    MovedTable(scripted, 0.5)
    adversarial_training(ours, "Embedding-Token", 0.5)
    for found, expected in zip(train(scripted), train(ours), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # Keras 2 runs the same: outputs in place of targets have no error.
    relabelled = model_with_table()
    before = relabelled.get_weights()
    MovedTable(relabelled, 0.5, relabel=True)
    for found, expected in zip(train(relabelled), before, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_training_function_of_keras_3_cannot_be_replaced_so():
    model = model_with_table()
    model.fit(np.ones((1, 3)), np.ones((1, 1)), verbose=0)
    with pytest.raises(ConfigurationError, match="has one of Keras 3"):
        MovedTable(model, 1)


def test_what_is_trained_after_compile_is_that_of_keras_3_for_lora():
    """Keras 2 trains what was trainable when `compile` was called, and has no LoRA."""
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(3)
    plain = keras.Model(inputs, dense(inputs))
    task = load_small(RoFormerTextClassifier, classes=["差", "好"])
    texts = GOOD, ["好"] * len(GOOD)
    for model, data in ((plain, (np.ones((4, 4)), np.ones((4, 3)))), (task, texts)):
        model.compile(keras.optimizers.SGD(0.1), "mse" if model is plain else None)
        (dense if model is plain else model).enable_lora(2)
        before = [np.array(v) for v in model.variables]
        trained = {id(v) for v in model.trainable_variables}
        model.fit(*data, verbose=0)
        moved = {
            id(v)
            for v, old in zip(model.variables, before, strict=True)
            if (np.array(v) != old).any() and "seed" not in v.path
        }
        assert moved and moved <= trained
    task.freeze()
    task.fit(*texts, verbose=0)

"""Calls of Keras in scripts of Keras 2, compared with numbers of tf-keras 2.21."""

import random

import numpy as np
import pytest

from roformer_keras.bert4keras.backend import K, keras

# === Data ===


class Numbers(keras.utils.Sequence):
    """Pairs of a list of inputs and a target, in another order each epoch."""

    def __init__(self, count=6):
        self.order = list(range(count))
        self.log = []

    def __len__(self):
        return len(self.order) // 2

    def __getitem__(self, index):
        self.log.append(self.order[2 * index : 2 * index + 2])
        x = np.array(self.log[-1], "float32")[:, None]
        return [x, x * 2], x

    def on_epoch_end(self):
        self.log.append("end")
        np.random.shuffle(self.order)


@pytest.fixture
def summing():
    first, second = keras.Input((1,)), keras.Input((1,))
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Model([first, second], dense(keras.layers.add([first, second])))
    model.compile("sgd", "mse", metrics=["mae"])
    model.layers[-1].set_weights([np.full((1, 1), 0.5), np.zeros(1)])
    return model


WEIGHTS = {number: 1 + number / 9 for number in range(6)}


@pytest.mark.parametrize(
    ("shuffle", "options", "losses"),
    [
        (False, {}, [0.5314619, 0.454361, 0.0003766704]),
        (True, {"validation_data": Numbers(4)}, [4.76778, 1.01036, 0.2211733]),
        (
            True,
            {"class_weight": {i: 1 + i / 9 for i in range(6)}},
            [14.30038, 8.573304, 5.507879],
        ),
    ],
)
def test_a_sequence_trains_in_the_order_of_keras_2(summing, shuffle, options, losses):
    np.random.seed(0)
    random.seed(0)
    numbers = Numbers()
    history = summing.fit(numbers, epochs=3, verbose=0, shuffle=shuffle, **options)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-5)
    assert [x for x in numbers.log if x == "end"] == ["end"] * 3
    assert numbers.log[-1] == "end"


def test_a_dataset_in_a_strategy_is_not_drawn_before_training():
    import tensorflow as tf

    drawn = []

    def samples():
        drawn.append(np.random.permutation(4).tolist())
        yield from (([float(x)], [1.0]) for x in drawn[-1])

    data = tf.data.Dataset.from_generator(
        samples, output_types=("float32", "float32"), output_shapes=((1,), (1,))
    ).batch(2)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    model.fit(data.repeat(2), steps_per_epoch=2, epochs=2, shuffle=False, verbose=0)
    assert len(drawn) == 2


def test_class_weights_count_for_generators(summing):
    batch = [np.ones((2, 1)), np.ones((2, 1))], np.array([[0], [2]])
    weights = {0: 1.0, 2: 3.0}
    fit = summing.fit(iter([batch]), steps_per_epoch=1, class_weight=weights, verbose=0)
    # Outputs of 1, with the errors 1 and 1.
    assert fit.history["loss"] == [pytest.approx((1 + 3) / 2)]


def test_lists_of_numbers_are_arrays():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = [[1, 2], [3, 4], [5, 6]], [1, 0, 1]
    expected = model.predict(np.array(x), verbose=0)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    by_arrays = model.evaluate(np.array(x), np.array(y), verbose=0)
    assert model.evaluate(x, y, verbose=0) == by_arrays
    assert model.fit(x, y, validation_data=(x, y), verbose=0).history["val_loss"]


# === Compiling ===


@pytest.mark.parametrize("metric", ["acc", "mae", keras.metrics.MeanSquaredError()])
def test_metrics_in_a_list_are_of_all_outputs(metric):
    x = keras.Input((2,))
    names = ["first", "second"]
    model = keras.Model(x, [keras.layers.Dense(1, name=name)(x) for name in names])
    model.compile("sgd", "mse", metrics=[metric])
    ones = np.ones((2, 2))
    history = model.fit(ones, [ones[:, :1]] * 2, verbose=0).history
    shown = metric if isinstance(metric, str) else metric.name
    assert {f"{name}_{shown}" for name in names} < history.keys()


@pytest.mark.parametrize(
    ("make", "rates"),
    [
        (lambda: "adam", [0.001, 0.001]),
        (lambda: keras.optimizers.Adam(lr=0.5), [0.5, 0.5]),
        (lambda: keras.optimizers.SGD(0.5), [0.5, 0.5]),
        (lambda: keras.optimizers.SGD(lr=1.0, decay=1.0), [1.0, 0.5]),
        (lambda: keras.optimizers.RMSprop(0.5, 0.9, decay=3.0), [0.5, 0.125]),
    ],
)
def test_rates_of_optimizers_have_their_old_names(make, rates):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(make(), "mse")
    for rate in rates:
        assert K.get_value(model.optimizer.lr) == pytest.approx(rate)
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    again = type(model.optimizer).from_config(model.optimizer.get_config())
    assert K.get_value(again.lr) == pytest.approx(rates[0])


def test_a_rate_is_set_by_its_old_name():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr=0.5), "mse")
    K.set_value(model.optimizer.lr, 0.25)
    assert K.get_value(model.optimizer.learning_rate) == 0.25
    model.optimizer.lr = 0.125
    assert K.get_value(model.optimizer.learning_rate) == 0.125


@pytest.mark.parametrize(
    "name", ["best.h5", "best.weights", "best", "{epoch:02d}.hdf5"]
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_checkpoints_of_a_callback_have_any_name(tmp_path, name, weights_only):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = keras.callbacks.ModelCheckpoint(
        str(tmp_path / name),
        "loss",
        save_best_only=True,
        save_weights_only=weights_only,
    )
    x = np.ones((2, 1))
    model.fit(x, x, verbose=0, callbacks=[callback])
    (path,) = tmp_path.iterdir()
    assert path.name == name.format(epoch=1)
    expected = model.get_weights()
    if weights_only:
        model.set_weights([0 * w for w in expected])
        model.load_weights(path)
    else:
        model = keras.models.load_model(path)
    for one, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)

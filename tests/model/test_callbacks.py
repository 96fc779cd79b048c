"""Every callback of Keras, on `fit` of each kind of model, with texts."""

import csv

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SIM
from finetuning_cases import BAD, COUPLES, GOOD, ONE_BLOCK

import roformer_keras
from roformer_keras.optimizers import AdamW

pytestmark = pytest.mark.slow

ONE = {"num_layers": 1}
TEXTS = (GOOD + BAD)[:6]
# Its class, source, options and data.
KINDS = {
    "classifier": (
        roformer_keras.RoFormerTextClassifier,
        CHARACTER,
        {"classes": ["差", "好"], "ignore": ONE_BLOCK["ignore"]},
        (TEXTS, ["好"] * 4 + ["差"] * 2),
    ),
    "masked": (roformer_keras.RoFormerMaskedLM, CHARACTER, {}, (TEXTS,)),
    "causal": (roformer_keras.RoFormerCausalLM, GPT, {}, (TEXTS,)),
    "unilm": (roformer_keras.RoFormerCausalLM, SIM, {"attention": "unilm"}, (COUPLES,)),
    "sim": (roformer_keras.RoFormerSim, SIM, {}, (COUPLES,)),
}


def built(name, ema=0.0):
    """A model with dropout, whose draws too must be those of the epoch."""
    kind, source, options, data = KINDS[name]
    keras.utils.set_random_seed(0)
    model = kind.from_preset(source, **ONE, **options)
    optimizer = AdamW(0.003, use_ema=ema > 0, ema_momentum=ema)
    model.compile(optimizer, run_eagerly=True)
    return model, data


def weights_of(model):
    return [np.array(v) for v in model.weights if "seed_generator" not in v.path]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


class At(keras.callbacks.Callback):
    """Calls a function at the end of an epoch."""

    def __init__(self, epoch, function):
        super().__init__()
        self.epoch, self.function = epoch, function

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.function(self.model)


def stop(model):
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", KINDS)
def test_a_restored_training_ends_in_the_same_bits(name, tmp_path):
    ends = []
    for is_stopped in (False, True):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / str(is_stopped)))
        options = {"epochs": 3, "batch_size": 4, "verbose": 0}
        model, data = built(name)
        if is_stopped:
            callbacks = [backup, At(1, stop)]
            with pytest.raises(KeyboardInterrupt):
                model.fit(*data, callbacks=callbacks, **options)
            model, data = built(name)
        model.fit(*data, callbacks=[backup], **options)
        ends.append(weights_of(model))
    assert_equal(*ends)


@pytest.mark.parametrize("name", KINDS)
def test_callbacks_see_and_stop_the_model(name, tmp_path):
    model, data = built(name)
    seen, log = [], tmp_path / "log.csv"
    saved = [tmp_path / "best.keras", tmp_path / "{epoch}.weights.h5"]
    callbacks = [
        keras.callbacks.CSVLogger(str(log)),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1)),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.TensorBoard(str(tmp_path / "board"), write_graph=False),
        keras.callbacks.ModelCheckpoint(
            str(saved[0]), monitor="loss", mode="max", save_best_only=True
        ),
        keras.callbacks.ModelCheckpoint(str(saved[1]), save_weights_only=True),
        At(0, lambda found: seen.append((found, weights_of(found)))),
        keras.callbacks.EarlyStopping(
            "loss", mode="max", patience=1, restore_best_weights=True
        ),
    ]
    model.optimizer.learning_rate = 0.01
    history = model.fit(*data, callbacks=callbacks, epochs=9, batch_size=4, verbose=0)
    assert history is model.history
    assert [found is model for found, _ in seen] == [True]
    # The loss falls, and the first is kept.
    assert len(history.history["loss"]) == 2
    with open(log, newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert losses == pytest.approx(history.history["loss"])
    assert float(model.optimizer.learning_rate) == pytest.approx(0.005)
    assert any((tmp_path / "board").rglob("events*"))
    assert_equal(weights_of(model), seen[0][1])
    loaded = keras.models.load_model(saved[0])
    assert_equal(weights_of(loaded), weights_of(model))
    other, _ = built(name)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(str(saved[1]).format(epoch=1))
    assert_equal(weights_of(other), weights_of(model))


@pytest.mark.parametrize("name", KINDS)
def test_the_mean_of_weights_is_swapped_in_for_validation(name):
    model, data = built(name, ema=0.5)
    means = []
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    see = At(0, lambda found: means.append(weights_of(found)))
    # Keras takes the mean at the end of a training too.
    options = {"epochs": 1, "batch_size": 4, "verbose": 0}
    model.fit(*data, callbacks=[swap, see], **options)
    plain, _ = built(name, ema=0.5)
    plain.fit(*data, **options)
    for one, other in zip(means[0], weights_of(plain), strict=True):
        # Keras swaps them by sums.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)


def test_a_rate_falls_on_a_plateau_and_nan_ends_a_training():
    for name in ("classifier", "masked"):
        model, data = built(name)
        model.optimizer.learning_rate = 1e-6
        falls = keras.callbacks.ReduceLROnPlateau(
            "loss", factor=0.5, patience=1, min_delta=100.0
        )
        model.fit(*data, callbacks=[falls], epochs=3, batch_size=8, verbose=0)
        assert float(model.optimizer.learning_rate) < 1e-6
        model.optimizer.learning_rate = float("nan")
        ends = keras.callbacks.TerminateOnNaN()
        history = model.fit(*data, callbacks=[ends], epochs=3, batch_size=2, verbose=0)
        assert len(history.history["loss"]) == 1

"""The mean of the last checkpoints in plain `fit`."""

import gc
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from common import CHARACTER
from interruptions import InterruptAfter, Interrupted
from sources import assert_same_weights

from roformer_keras import RoFormerTextClassifier
from roformer_keras.errors import ConfigurationError, OutputError
from roformer_keras.optimizers import make_optimizer
from roformer_keras.training.averaging import AverageCheckpoints, LastCheckpoints

INPUTS = np.random.default_rng(0).normal(size=(6, 3))
TARGETS = INPUTS[:, :2] * INPUTS[:, 1:]


def make_model(**options):
    """The callback takes any model, so the smallest one does."""
    keras.utils.set_random_seed(0)
    layers = (keras.layers.Dense(size, name=f"dense_{size}") for size in (4, 2))
    model = keras.Sequential([keras.Input((3,)), *layers], name="model")
    optimizer = make_optimizer(0.01, **options)
    model.compile(optimizer, "mean_squared_error", run_eagerly=True)
    return model


def fit(model, *callbacks, epochs=3, **options):
    """Three batches an epoch."""
    model.fit(
        INPUTS,
        TARGETS,
        batch_size=2,
        epochs=epochs,
        callbacks=callbacks,
        verbose=0,
        **options,
    )
    return model


def values(variables):
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


class Recorder(keras.callbacks.Callback):
    """The trainable weights after each batch."""

    def on_train_begin(self, logs=None):
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(values(self.model.trainable_variables))


def assert_mean(model, recorded):
    for variable, *found in zip(model.trainable_variables, *recorded, strict=True):
        expected = np.mean(found, axis=0, dtype="float64")
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(variable), expected, atol=1e-7
        )


@pytest.mark.slow
def test_the_mean_is_of_what_the_weights_were():
    for options, accumulation, batches in (
        # After so many of the nine batches, from 1.
        ({"max_count": 2}, 1, [6, 9]),
        ({"max_count": 5}, 1, [3, 6, 9]),
        ({"max_count": 3, "every": 2}, 1, [4, 6, 8]),
        # Over the ends of epochs.
        ({"max_count": 5, "every": 4}, 1, [4, 8]),
        ({"max_count": 1, "every": 9}, 1, [9]),
        # An update is every third batch.
        ({"max_count": 2, "every": 1}, 3, [6, 9]),
        ({"max_count": 2, "every": 2}, 3, [6]),
    ):
        recorder, callback = Recorder(), AverageCheckpoints(**options)
        model = fit(make_model(accumulation=accumulation), recorder, callback)
        assert_mean(model, [recorder.found[batch - 1] for batch in batches])
        assert np.ptp([batch[0] for batch in recorder.found], axis=0).max() > 1e-3


def test_a_training_that_goes_on_counts_on():
    """The same callback twice, and an optimizer that has counted before."""
    model, recorder = make_model(), Recorder()
    callback = AverageCheckpoints(2, every=2)
    fit(model, callback, epochs=1)
    fit(model, recorder, callback, epochs=1)
    # Updates 4 and 6; that of the first training is over.
    assert_mean(model, [recorder.found[0], recorder.found[2]])


@pytest.mark.slow
@pytest.mark.parametrize(("every", "is_first"), [(None, True), (2, False)])
def test_an_interrupted_training_ends_in_the_same_mean(every, is_first, tmp_path):
    options = {"max_count": 4, "every": every}
    average = AverageCheckpoints(**options, folder=tmp_path / "a")
    # Keras does not say from which epoch it resumes, so the order must not change.
    whole = fit(make_model(), average, shuffle=False)
    # After the second epoch, and after weights that come again.
    callbacks = [
        AverageCheckpoints(**options, folder=tmp_path / "b" / "c"),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
    ][:: 1 if is_first else -1]
    with pytest.raises(Interrupted):
        fit(make_model(), *callbacks, InterruptAfter(8), shuffle=False)
    again = fit(make_model(), *callbacks, shuffle=False)
    assert_same_weights(again, whole)


def test_later_weights_of_an_interrupted_training_are_thrown_away(tmp_path):
    model = make_model()
    fit(model, AverageCheckpoints(9, every=1, folder=tmp_path / "folder"))
    checkpoints = LastCheckpoints(tmp_path / "folder", 9)
    assert checkpoints.updates() == [*range(1, 10)]
    checkpoints.drop_after(4)
    assert checkpoints.updates() == [1, 2, 3, 4]


def test_a_temporary_folder_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: folders.append([*tmp_path.iterdir()])
    )
    folders = []
    fit(make_model(), AverageCheckpoints(2), seen)
    assert [len(found) for found in folders] == [1, 1, 1]
    assert not [*tmp_path.iterdir()]
    # Where a training fails too, when nothing knows the callback any more.
    with pytest.raises(Interrupted):
        fit(make_model(), AverageCheckpoints(2), InterruptAfter(4))
    gc.collect()
    assert not [*tmp_path.iterdir()]


def test_a_task_with_frozen_weights():
    classifier = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=2)
    classifier.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    classifier.freeze(embeddings=True, layers=1)
    frozen = [weight for weight in classifier.weights if not weight.trainable]
    before = values(frozen)
    recorder = Recorder()
    classifier.fit(
        *(["今天天气不错", "她在北京"], [1, 0]),
        epochs=3,
        callbacks=[recorder, AverageCheckpoints(2)],
        verbose=0,
    )
    assert_mean(classifier, recorder.found[1:])
    assert frozen
    for value, after in zip(before, values(frozen), strict=True):
        np.testing.assert_array_equal(after, value)


def test_trainings_and_arguments_that_are_refused():
    with pytest.raises(ConfigurationError, match="at update 10: the training ended"):
        fit(make_model(), AverageCheckpoints(2, every=10))
    with pytest.raises(ConfigurationError, match="at the end of an epoch: the"):
        fit(make_model(), AverageCheckpoints(2), epochs=0)
    for options in ({"max_count": 0}, {"max_count": 2.0}, {"every": 0}):
        (name,) = options
        with pytest.raises(ConfigurationError, match=f"{name} must be an integer"):
            AverageCheckpoints(**options)


def test_folders_that_are_refused(tmp_path):
    folder = tmp_path / "folder"
    fit(make_model(), AverageCheckpoints(2, folder=folder))
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(contents) == 2
    with pytest.raises(ConfigurationError, match="must hold no checkpoints where"):
        fit(make_model(), AverageCheckpoints(2, folder=folder))
    assert {path: path.read_bytes() for path in folder.iterdir()} == contents
    Path(tmp_path, "file").write_text("")
    with pytest.raises(OutputError, match=r"could not write .*file"):
        fit(make_model(), AverageCheckpoints(2, folder=tmp_path / "file" / "folder"))

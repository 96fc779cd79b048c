"""The mean of the last checkpoints in plain `fit`."""

import gc
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from common import CHARACTER
from interruptions import InterruptAfter, Interrupted
from keras import ops
from sources import assert_same_weights

from roformer_keras import RoFormerCausalLM, RoFormerTextClassifier
from roformer_keras.base.errors import CheckpointError, ConfigurationError, OutputError
from roformer_keras.optimizers import make_optimizer
from roformer_keras.training.averaging import AverageCheckpoints, LastCheckpoints
from roformer_keras.training.pretrain import PretrainingRun, pretrain
from roformer_keras.training.pretraining_settings import PretrainingSettings

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
    with pytest.raises(ConfigurationError, match="must hold no checkpoints when"):
        fit(make_model(), AverageCheckpoints(2, folder=folder))
    assert {path: path.read_bytes() for path in folder.iterdir()} == contents
    Path(tmp_path, "file").write_text("")
    with pytest.raises(OutputError, match=r"could not write .*file"):
        fit(make_model(), AverageCheckpoints(2, folder=tmp_path / "file" / "folder"))


def test_the_mean_is_of_the_last_checkpoints(tmp_path):
    variables = [
        keras.Variable(np.zeros(shape, "float32"), name=f"v{number}")
        for number, shape in enumerate([(2, 3), (4,)])
    ]
    checkpoints = LastCheckpoints(tmp_path / "checkpoints", 3)
    generator, saved = np.random.default_rng(0), []
    for update in (9, 10, 100, 200, 1000):
        values = [generator.normal(size=v.shape).astype("float32") for v in variables]
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        checkpoints.add(update, variables)
        saved.append(values)
    # By number, not by name.
    assert checkpoints.updates() == [100, 200, 1000]
    # A checkpoint that is written again counts once.
    checkpoints.add(1000, variables)
    checkpoints.assign_mean(variables)
    for number, variable in enumerate(variables):
        expected = np.mean([values[number] for values in saved[2:]], axis=0)
        np.testing.assert_allclose(ops.convert_to_numpy(variable), expected, atol=1e-7)
    with pytest.raises(CheckpointError, match="must hold the variables of this model"):
        checkpoints.assign_mean(variables[:1])


# === A whole pre-training ===


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A table of texts and their reverse."""
    path = tmp_path_factory.mktemp("corpus") / "pairs.tsv"
    generator = np.random.default_rng(0)
    texts = [
        "".join(generator.choice(list("天地玄黄宇宙洪荒"), generator.integers(2, 11)))
        for _ in range(200)
    ]
    path.write_text("\n".join(f"{t}\t{t[::-1]}" for t in texts), encoding="utf-8")
    return path


def settings_of(corpus, **changes):
    content = {
        "objective": "unilm",
        "name": "tiny",
        "data": [{"files": [str(corpus)], "fields": ["1", "2"], "holdout": 0.1}],
        "stages": [{"steps": 14, "length": 16, "batch_size": 8}],
        "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 16},
        "min_count": 1,
        "log_every": 2,
        "save_every": 4,
        "average_checkpoints": 3,
        "evaluation_batches": 3,
    }
    return PretrainingSettings.from_dict({**content, **changes})


@pytest.mark.e2e
# `tf.data` traces its functions in eager tests too, and warns of it.
@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
@pytest.mark.usefixtures("eagerly")
def test_an_interrupted_training_ends_in_a_preset_of_means(corpus, tmp_path):
    settings, folder = settings_of(corpus), tmp_path / "whole"
    model = pretrain(settings, folder, verbose=False)
    again = RoFormerCausalLM.from_preset(folder / "preset")
    assert_same_weights(again, model)
    checkpoints = LastCheckpoints(folder / "checkpoints", 3)
    assert checkpoints.updates() == [8, 12, 14]
    checkpoints.assign_mean(again.trainable_variables)
    assert_same_weights(again, model)

    # After a checkpoint that the mean is taken of. It is saved every four updates.
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(settings, run, callbacks=[InterruptAfter(9)], verbose=False)
    assert_same_weights(pretrain(settings, run, verbose=False), model)
    # No setting of saving is free where means are taken, and no checkpoint.
    with pytest.raises(OutputError, match="save_every was 4, now 2"):
        pretrain(settings_of(corpus, save_every=2), folder, verbose=False)
    first, *others = (folder / "checkpoints").iterdir()
    for count, paths in ((2, [first]), (0, others)):
        for path in paths:
            path.unlink()
        with pytest.raises(CheckpointError, match=f"at least 3 checkpoi.*got {count}"):
            pretrain(settings, folder, verbose=False)
    assert_same_weights(RoFormerCausalLM.from_preset(folder / "preset"), model)


def test_the_vocabulary_of_a_training_is_of_parts_of_words(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"Lower {n}\tnewer {n}\n" for n in range(400)))
    changes = {"subwords": True, "max_vocabulary": 150, "lower_case": False}
    run = PretrainingRun(settings_of(path, **changes), tmp_path, verbose=False)
    run.prepare()
    assert {"##er", "Lower"} <= set(run.tokenizer.vocabulary)
    assert not run.tokenizer.lower_case


def test_settings_that_break_a_rule(corpus):
    vocabulary = {"subwords": True, "max_vocabulary": 200, "vocabulary": "vocab.txt"}
    for changes, message in (
        ({"subwords": True}, "subwords are for a vocabulary that is built"),
        (vocabulary, "subwords counts only with a vocabulary that is built"),
        ({"average_checkpoints": -1}, "average_checkpoints must be an integer"),
        ({"optimizer": {"ema": 0.9}}, "average_checkpoints=3 and ema=0.9"),
        ({"initialize_heads": True}, "initialize_heads counts only with a source"),
        ({"packed": True}, "packed counts only with mlm and lm"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            settings_of(corpus, **changes)

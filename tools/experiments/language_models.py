"""Models of the experiments that differ only in positions, and their training."""

import re
import time

import keras
from tqdm import tqdm

from roformer_keras.training.pretrain import optimizer_of


def make_models(model_class, config, length, seed):
    """`"roformer"` with rotary and `"absolute"` with learned positions.

    Their initial weights are equal, and their dropout is too. The second gets positions
    that are all 0, which rotate nothing, and the numbers 0, 1, 2, ... of its tokens as
    segments: a segment table with a row for each of `length` positions is a learned
    table of absolute positions. The first has segment 0 everywhere, which adds one
    vector to every token; `config` is its configuration.
    """
    configs = {
        "roformer": config,
        "absolute": config.replace(custom_position_ids=True, num_segments=length),
    }
    models = {}
    for name, config in configs.items():
        keras.utils.set_random_seed(seed)
        models[name] = model_class.from_roformer_config(config, "float32")
    pairs = zip(*map(shared_variables, models.values()), strict=True)
    for (path, variable), (other_path, other) in pairs:
        assert path == other_path
        other.assign(variable)
    return models


def shared_variables(model):
    """(path, variable) of all but the segment table, generators of dropout included."""
    return [
        # Keras numbers all generators of a process.
        (re.sub(r"seed_generator_\d+", "seed_generator", variable.path), variable)
        for variable in model.variables
        if "segment_embedding" not in variable.path
    ]


def next_token_trainer(model, settings, stage):
    """A compiled model of a causal language model, whose own `fit` takes texts."""
    trainer = keras.Model(model.input, model.output)
    trainer.compile(
        optimizer_of(settings, stage),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return trainer


def fit(model, stage, title, batches, intervals=20, **validation):
    """Trains a compiled model for the steps of a stage.

    Args:
        model: `keras.Model`.
        stage: `TrainingStage` with full rows.
        title: of the progress bar.
        batches: iterator.
        intervals: int. How many figures there are; each is a mean since the one before.
        validation: keywords of `fit`.

    Returns:
        list of dicts of `step`, `loss`, `seconds` of training, `tokens_per_second`, and
        `val_loss` if there is validation.
    """
    interval = max(1, stage.steps // intervals)
    recorder = Recorder(stage.steps, title)
    history = model.fit(
        batches,
        steps_per_epoch=interval,
        epochs=-(-stage.steps // interval),
        shuffle=False,
        callbacks=[recorder],
        verbose=0,
        **validation,
    ).history
    recorder.bar.close()
    rows, before = [], 0
    for number, (step, seconds) in enumerate(recorder.intervals):
        tokens = (step - before) * stage.batch_size * stage.length
        figures = {name: values[number] for name, values in history.items()}
        speed = {"seconds": seconds, "tokens_per_second": tokens / seconds}
        rows.append({"step": step, **figures, **speed})
        before = step
    return rows


class Recorder(keras.callbacks.Callback):
    """Shows progress, records steps and seconds of each interval, and ends a training.

    The seconds leave validation out.
    """

    def __init__(self, steps, title):
        super().__init__()
        self.steps, self.step, self.intervals = steps, 0, []
        self.bar = tqdm(total=steps, desc=title, unit=" steps", dynamic_ncols=True)

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.bar.update(1)
        self.seconds = time.perf_counter() - self.start
        # The last interval may be shorter.
        if self.step == self.steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.intervals.append((self.step, self.seconds))
        self.bar.set_postfix({k: f"{v:.4g}" for k, v in logs.items()})

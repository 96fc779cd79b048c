"""What experiments with language models share: corpora, models and their training."""

import itertools
import re
import time

import keras
import numpy as np
from tqdm import tqdm

from roformer_keras.data.corpus import Corpus
from roformer_keras.errors import ConfigurationError
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import build_vocabulary

__all__ = [
    "Documents",
    "check_documents",
    "check_fresh",
    "fit",
    "make_corpus",
    "make_documents",
    "make_models",
    "make_tokenizer",
    "shared_variables",
]


def check_fresh(settings, objective):
    """Raises ConfigurationError unless settings train an objective from the start."""
    if settings.objective != objective or settings.source is not None:
        raise ConfigurationError(
            f"the experiment needs a configuration of {objective} without a source, "
            f"got objective={settings.objective!r}, source={settings.source!r}"
        )


# === Corpora ===


def make_corpus(settings, seed, part):
    return Corpus(settings.data, seed=seed, buffer_size=settings.buffer_size, part=part)


def make_tokenizer(folder, settings):
    """The tokenizer of the settings, or of a vocabulary that is built once and kept."""
    if settings.vocabulary is not None:
        return RoFormerTokenizer(settings.vocabulary)
    path = folder / "vocab.txt"
    if not path.exists():
        records = make_corpus(settings, 0, "train").once()
        tokens, _ = build_vocabulary(
            tqdm(records, desc="vocabulary", unit=" records"),
            min_count=settings.min_count,
            max_size=settings.max_vocabulary,
        )
        RoFormerTokenizer(tokens).save_vocabulary(path)
    return RoFormerTokenizer(path)


def check_documents(settings):
    """Raises ConfigurationError unless `make_documents` can make both parts."""
    for data in settings.data:
        if len(data.fields) != 2 or not data.holdout:
            raise ConfigurationError(
                "data must have two fields, a text and its document, and a holdout "
                f"above 0, got fields={list(data.fields)}, holdout={data.holdout}"
            )


def make_documents(settings, tokenizer, part):
    records = make_corpus(settings, 0, part).once()
    return Documents(tqdm(records, desc=f"{part} texts", unit=" texts"), tokenizer)


class Documents:
    """Long texts as token ids, from which full rows are drawn: int32 `(rows, tokens)`.

    Args:
        records: pairs of a text and its document; consecutive texts of a document are
            joined.
        tokenizer: `RoFormerTokenizer`.
    """

    def __init__(self, records, tokenizer):
        documents = []
        for _, group in itertools.groupby(records, key=lambda record: record[1]):
            # Without [CLS] and [SEP].
            ids = [tokenizer.encode(text)[0][1:-1] for text, _ in group]
            documents.append(np.concatenate(ids).astype("int32"))
        self._ids = np.concatenate(documents)
        self._lengths = np.array([len(ids) for ids in documents])
        self._starts = np.cumsum(self._lengths) - self._lengths

    def rows(self, generator, count, tokens):
        """Rows that start anywhere in a document, every place equally likely."""
        places = self._lengths - tokens + 1
        return self._take(generator, count, tokens, places, step=1)

    def windows(self, generator, max_count, tokens):
        """Rows that do not overlap: `max_count`, or as many as there are."""
        places = self._lengths // tokens
        count = min(max_count, max(0, places.sum()))
        return self._take(generator, count, tokens, places, step=tokens, replace=False)

    def _take(self, generator, count, tokens, places, step, **options):
        """Rows at drawn places, of which a document has so many, `step` apart."""
        ends = np.cumsum(np.maximum(places, 0))
        if not ends[-1]:
            raise ConfigurationError(
                f"a row takes {tokens} tokens, and the longest document has "
                f"{self._lengths.max()}: shorten the stages"
            )
        chosen = generator.choice(ends[-1], count, **options)
        document = np.searchsorted(ends, chosen, side="right")
        before = ends[document] - np.maximum(places, 0)[document]
        starts = self._starts[document] + (chosen - before) * step
        return self._ids[starts[:, None] + np.arange(tokens)]


# === Models ===


def make_models(model_class, config, length, seed):
    """A model with rotary and one with learned positions, with equal initial weights.

    The second gets positions that are all 0, which rotate nothing, and the numbers 0,
    1, 2, ... of its tokens as segments: a segment table with a row for each position is
    a learned table of absolute positions. The first has segment 0 everywhere, which
    adds one vector to every token. Their dropout is equal too.

    Args:
        model_class: of both.
        config: `RoFormerConfig` of the first.
        length: int. Positions of the second.
        seed: int.

    Returns:
        dict of `"roformer"` and `"absolute"`.
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
        if path != other_path:
            raise AssertionError(f"{path} is not {other_path}")
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


# === Training ===


def fit(model, batches, stage, title, intervals=20, **validation):
    """Trains a compiled model for the steps of a stage.

    Args:
        model: `keras.Model`.
        batches: iterator.
        stage: `TrainingStage` with full rows.
        title: of the progress bar.
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

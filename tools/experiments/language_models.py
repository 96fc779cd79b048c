"""Texts and models of the experiments with language models."""

import itertools
import re
import tempfile
from pathlib import Path

import keras
import numpy as np
from tqdm import tqdm

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.corpus import read_corpus
from roformer_keras.text.examples import EpochItems, tokenize_corpus
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.text.train_vocabulary import build_vocabulary
from roformer_keras.training.pretrain import optimizer_of
from tools.experiments.harness import Experiment


def check_fresh(settings, objective):
    """Checks that settings train an objective from the start."""
    if settings.objective != objective or settings.source is not None:
        raise ConfigurationError(
            f"the experiment needs a configuration of {objective} without a source, "
            f"got objective={settings.objective!r}, source={settings.source!r}"
        )


def make_tokenizer(folder, settings):
    """The tokenizer of the settings, or of a vocabulary that is built once and kept."""
    if settings.vocabulary is not None:
        return RoFormerTokenizer(settings.vocabulary)
    path = folder / "vocab.txt"
    if not path.exists():
        records = read_corpus(settings.data, "train")
        tokens, _ = build_vocabulary(
            tqdm(records, desc="vocabulary", unit=" records"),
            min_count=settings.min_count,
            max_size=settings.max_vocabulary,
        )
        RoFormerTokenizer(tokens).save_vocabulary(path)
    return RoFormerTokenizer(path)


def tokenize(settings, objective, part):
    """The texts of a part as token ids; `make_examples` joins them to rows."""
    # The files are mapped into memory: they stay readable after they are deleted.
    with tempfile.TemporaryDirectory() as folder:
        return tokenize_corpus(
            Path(folder, "tokens"),
            None,
            tqdm(read_corpus(settings.data, part), desc=part, unit=" records"),
            objective.encoder(objective.rows.tokenizer, None),
        )


def make_examples(corpus, objective, seed):
    """Full rows; with the seed None in the order of the files."""
    return EpochItems(
        corpus,
        None if seed is None else [seed],
        packed=objective.rows.length - 2,
        separator=objective.rows.tokenizer.sep_id,
    )


class DocumentExperiment(Experiment):
    """An experiment with causal language models; `windows` are held-out rows."""

    max_windows: int

    def check_training(self, training):
        """Takes settings of `pretrain lm` with texts and their documents."""
        check_fresh(training, "lm")
        self.training, self.settings = training, training.to_dict()

    def prepare(self):
        tokenizer = make_tokenizer(self.folder, self.training)
        self.vocabulary_size = tokenizer.vocabulary_size
        self._documents, held_out = (
            Documents(
                tqdm(read_corpus(self.training.data, part), desc=part, unit=" texts"),
                tokenizer,
            )
            for part in ("train", "held_out")
        )
        generator = np.random.default_rng(self.training.seed)
        length = self.training.stages[-1].length + 1
        self.windows = held_out.windows(generator, self.max_windows, length)

    def draw_rows(self, stage, seed):
        """The rows of a batch of a stage, with a token more: the last target."""
        generator = np.random.default_rng(seed)
        return self._documents.rows(generator, stage.batch_size, stage.length + 1)


class Documents:
    """Long texts as token ids, from which full rows are drawn: int32 `(rows, tokens)`.

    Consecutive records, pairs of a text and its document, are joined.
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
        starts = self._lengths - tokens + 1
        return self._take(generator, count, tokens, starts, step=1)

    def windows(self, generator, max_count, tokens):
        """At most `max_count` rows that do not overlap."""
        window_counts = self._lengths // tokens
        count = min(max_count, max(0, window_counts.sum()))
        return self._take(
            generator, count, tokens, window_counts, step=tokens, replace=False
        )

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


def make_models(model_class, config, length, seed):
    """`"roformer"` with rotary and `"absolute"` with learned positions.

    Their initial weights and dropout are equal. The second gets positions of 0, which
    rotate nothing, and the numbers of its tokens as segments: its segment table with
    `length` rows is a learned table of positions. The first has segment 0 everywhere.
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

"""Models of the experiment with translation: one that writes, and its validation."""

import keras

from roformer_keras.models import RoFormerSeq2Seq, Seq2SeqConfig
from roformer_keras.text.tokenizer import RoFormerTokenizer
from roformer_keras.training.bleu import corpus_bleu
from roformer_keras.training.pretrain import fields_of_fresh_model
from tools.tables import read_rows, write_rows


def make_writer(settings):
    """A model with the structure of a training, which writes with its weights."""
    tokenizer = RoFormerTokenizer(settings.vocabulary, lower_case=settings.lower_case)
    model = RoFormerSeq2Seq(
        Seq2SeqConfig.from_dict(fields_of_fresh_model(settings, tokenizer))
    )
    model.tokenizer = tokenizer
    model.compile()
    return model


def copy_weights(model, writer):
    """Gives a writer the weights of a model."""
    pairs = zip(writer.trainable_variables, model.trainable_variables, strict=True)
    for own, other in pairs:
        if own.path != other.path:
            raise AssertionError(f"{own.path} is not {other.path}")
        own.assign(other)


class Validation(keras.callbacks.Callback):
    """Writes loss and BLEU of validation texts to a table, at each evaluation.

    Args:
        writer: model that takes the current weights.
        pairs: texts. The loss is of those short enough for training.
        texts: `translation.Settings`.
        settings: `PretrainingSettings`.
        path: of the table.
    """

    def __init__(self, writer, pairs, texts, settings, path):
        super().__init__()
        self.writer, self.pairs, self.texts, self.path = writer, pairs, texts, path
        (self.stage,) = settings.stages
        self.log_every = settings.log_every
        self.every = settings.evaluate_every or self.stage.steps
        encode = writer.tokenizer.encode
        short = [
            pair
            for pair in pairs
            if all(len(encode(text)[0]) <= self.stage.length for text in pair)
        ]
        self.sides = [list(side) for side in zip(*short, strict=True)]

    def on_epoch_end(self, epoch, logs=None):
        update = min((epoch + 1) * self.log_every, self.stage.steps)
        if update % self.every and update < self.stage.steps:
            return
        copy_weights(self.model, self.writer)
        sources, targets = zip(*self.pairs, strict=True)
        written = self.writer.generate(
            list(sources),
            method="greedy",
            max_length=self.texts.max_length,
            verbose=0,
        )
        row = {
            "update": update,
            "train_loss": logs["loss"],
            "valid_loss": self.writer.evaluate(
                *self.sides, max_length=self.stage.length, verbose=0
            ),
            "valid_bleu": corpus_bleu(written, targets, self.texts.tokenize).score,
        }
        # A resumed training repeats the updates after its saved state.
        rows = [other for other in read_rows(self.path) if other["update"] < update]
        write_rows(self.path, [*rows, row])

"""Batches of pairs, the loss, and the learning rate of Vaswani et al."""

import itertools
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.data.batches import TextBatches
from roformer_keras.text.rows import pad, padded_width


class LabelSmoothing(keras.losses.Loss):
    """The mean cross-entropy of tokens whose label has `1 - share`.

    All tokens of the vocabulary together have the share.
    """

    def __init__(self, share):
        super().__init__(reduction="mean_with_sample_weight")
        self.share = share

    def call(self, y_true, y_pred):
        vocabulary = y_pred.shape[-1]
        expected = ops.one_hot(ops.cast(y_true, "int32"), vocabulary)
        expected = (1 - self.share) * expected + self.share / vocabulary
        return ops.categorical_crossentropy(expected, y_pred, from_logits=True)


class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that rises in `warmup` updates, and then falls with the update's root."""

    def __init__(self, learning_rate, warmup):
        self.learning_rate, self.warmup = learning_rate, warmup

    def __call__(self, step):
        update = ops.cast(step, "float32") + 1
        factor = ops.minimum(update / self.warmup, ops.sqrt(self.warmup / update))
        return self.learning_rate * factor

    def get_config(self):
        return dict(vars(self))


class Pairs:
    """Tokenized pairs of texts, without those of more than `length` tokens."""

    def __init__(self, tokenizer, pairs, length):
        encoded = ([tokenizer.encode(text)[0] for text in pair] for pair in pairs)
        self._rows = [row for row in encoded if max(map(len, row)) <= length]
        if not self._rows:
            raise ConfigurationError(f"no pair has at most length={length} tokens")

    def batches(self, size: int, seed: int | None = None) -> TextBatches:
        """Batches of one epoch; with a seed each epoch has its own order."""
        lengths = np.array([sum(map(len, row)) for row in self._rows])
        shuffle = {} if seed is None else {"shuffle": True, "seed": seed}
        return TextBatches(lengths, self._batch, size, **shuffle)

    def endless(self, size: int, seed: int) -> Iterator[tuple]:
        """Batches of epoch after epoch."""
        batches = self.batches(size, seed)
        for epoch in itertools.count():
            batches.start_epoch(epoch)
            yield from (batches[number] for number in range(len(batches)))

    def _batch(self, numbers):
        sources, targets = zip(*(self._rows[number] for number in numbers), strict=True)

        def padded(rows):
            return pad(rows, padded_width(max(map(len, rows))))

        labels = padded([row[1:] for row in targets])
        # A token is predicted from those before it.
        inputs = {
            "source": padded(sources),
            "target": padded([r[:-1] for r in targets]),
        }
        return inputs, labels, (labels != 0).astype("float32")

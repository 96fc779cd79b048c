"""Base of objectives: rows of ids, hidden tokens, and the training model."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.inference.fast_model import FastModel
from roformer_keras.text.encoders import Item
from roformer_keras.text.matching import check_match

# [PAD], [UNK], [CLS], [SEP], [MASK], [unused1], and the two marks of released ones.
_SPECIAL = re.compile(r"\[.+\]|<[ST]>")
# Of the tokens that are predicted, as in BERT: most become [MASK], as many stay as
# become another token.
_MASKED, _KEPT = 0.8, 0.1


class Objective(Protocol):
    """Parts of an objective that training needs.

    Attributes:
        name: str. Its name in a configuration.
        model_class: str. The model that it trains.
        fields: int. Texts of a record, and its label; 0 for any number of documents.
        rows_per_item: int. Rows of a batch that one item becomes.
        rows: `Rows`.

    Example:
        >>> kind = objectives.OBJECTIVES["simbert"]
        >>> kind.model_class, kind.fields, kind.rows_per_item
        ('RoFormerSim', 2, 2)
    """

    name: str
    model_class: str
    fields: int
    rows_per_item: int
    rows: "Rows"

    def encoder(self, tokenizer, length: int | None) -> Callable:
        """The encoder of `data.encoders` that makes items of a record.

        Args:
            tokenizer: `RoFormerTokenizer` of the model.
            length: int. Tokens of a text, with `[CLS]` and `[SEP]`.
        """

    def batch(
        self, items: Sequence[Item], rng: np.random.Generator, number: int = 0
    ) -> tuple:
        """Inputs, targets and weights of some items, those of batch `number`.

        There are no weights where the loss takes none.

        Args:
            items: as the encoder makes them.
            rng: `numpy.random.Generator`. What is hidden depends on it.
            number: int. Which batch it is.
        """

    def training_model(self, model) -> keras.Model:
        """A model to compile and fit, which shares the layers of `model`.

        Args:
            model: of the class `model_class`.
        """

    def compile_options(self) -> dict:
        """Loss and metrics, as keywords of `compile`."""


class Rows:
    """Rows of ids between `[CLS]` and `[SEP]`, padded to one length."""

    def __init__(self, tokenizer, length):
        check_integer("length", length, minimum=4)
        self.tokenizer, self.length = tokenizer, int(length)

    def of_texts(self, texts):
        """`[CLS] text [SEP]` each: int32 `(texts, length)`."""
        token_ids = np.zeros((len(texts), self.length), "int32")
        for row, ids in enumerate(texts):
            self.check(ids)
            token_ids[row, 1 : 1 + len(ids)] = ids
            token_ids[row, 1 + len(ids)] = self.tokenizer.sep_id
        token_ids[:, 0] = self.tokenizer.cls_id
        return token_ids

    def of_pairs(self, pairs):
        """`[CLS] first [SEP] second [SEP]` each, whose second text is predicted.

        Args:
            pairs: pairs of ids.

        Returns:
            Inputs: dict of int32 `token_ids`, `segment_ids` `(pairs, 2 * length)` and
            `predicting_positions` `(pairs, length - 1)`; then the targets there, int32,
            and their weights, float32. A second text has `length - 2` tokens at most,
            and its `[SEP]` is predicted too.
        """
        shape = (len(pairs), self.length - 1)
        token_ids = np.zeros((len(pairs), 2 * self.length), "int32")
        segment_ids = np.zeros_like(token_ids)
        positions, targets = np.zeros(shape, "int32"), np.zeros(shape, "int32")
        weights = np.zeros(shape, "float32")
        token_ids[:, : self.length] = self.of_texts([first for first, _ in pairs])
        for row, (first, second) in enumerate(pairs):
            self.check(second)
            start, count = len(first) + 2, len(second) + 1
            token_ids[row, start : start + count - 1] = second
            token_ids[row, start + count - 1] = self.tokenizer.sep_id
            segment_ids[row, start : start + count] = 1
            # A token is predicted at the position before it.
            positions[row, :count] = np.arange(start - 1, start + count - 1)
            targets[row, :count] = token_ids[row, start : start + count]
            weights[row, :count] = 1
        inputs = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "predicting_positions": positions,
        }
        return inputs, targets, weights

    def check(self, ids):
        if len(ids) > self.length - 2:
            raise ConfigurationError(
                f"a text for length={self.length} must be of at most "
                f"{self.length - 2} tokens, for [CLS] and [SEP] join them; got "
                f"{len(ids)}: cut it with the objective's encoder"
            )

    def inputs(self, texts=1, **widths):
        """Inputs of a training model; `widths` names more of them."""
        length = texts * self.length
        widths = {"token_ids": length, "segment_ids": length, **widths}
        return {
            name: keras.Input((width,), dtype="int32", name=name)
            for name, width in widths.items()
        }


class Replacement:
    """Replaces tokens that are to be predicted: by `[MASK]`, another, or themselves."""

    def __init__(self, tokenizer):
        vocabulary = tokenizer.vocabulary
        self.is_special = np.array(
            [_SPECIAL.fullmatch(token) is not None for token in vocabulary]
        )
        (self.plain_ids,) = np.nonzero(~self.is_special)
        refuse(
            not len(self.plain_ids),
            "a vocabulary to train on must hold tokens that are not special, got "
            f"{len(vocabulary)} that are",
        )
        self.mask_id = tokenizer.mask_id

    def of_tokens(self, ids, rng):
        """Replaces every one of some ids, each drawn by itself."""
        draws, others = rng.random(len(ids)), self._others(len(ids), rng)
        ids = np.where(draws >= _MASKED + _KEPT, others, ids)
        return np.where(draws < _MASKED, self.mask_id, ids)

    def of_words(self, ids, words, rate, rng):
        """Replaces a share of the words, each as a whole; special tokens stay.

        Args:
            ids: int `(tokens,)`.
            words: int `(tokens,)`, ascending. The word of each token.
            rate: float. The probability of a word.
        """
        draws = rng.random(words.max(initial=-1) + 1)[words]
        others = self._others(len(ids), rng)
        new = np.where(draws < rate, others, ids)
        new = np.where(draws < rate * (_MASKED + _KEPT), ids, new)
        new = np.where(draws < rate * _MASKED, self.mask_id, new)
        return np.where(self.is_special[ids], ids, new)

    def _others(self, count, rng):
        return self.plain_ids[rng.integers(len(self.plain_ids), size=count)]


@keras.saving.register_keras_serializable("roformer_keras")
class TakePositions(keras.layers.Layer):
    """The vectors at some positions of each row.

    Call arguments:
        x: float `(batch, length, dim)`.
        positions: int `(batch, count)`.

    Returns:
        float `(batch, count, dim)`.

    Example:
        >>> x = np.arange(12.0).reshape(1, 4, 3)
        >>> ops.convert_to_numpy(objectives.TakePositions()(x, np.array([[0, 2]])))
        array([[[0., 1., 2.],
                [6., 7., 8.]]], dtype=float32)
    """

    def call(self, x, positions):
        # Exact, for all but one of the terms are zero. The gradient of a gather adds up
        # in no fixed order on a GPU, that of a product does.
        chosen = ops.one_hot(positions, ops.shape(x)[1], dtype=self.compute_dtype)
        return ops.matmul(chosen, x)

    def compute_mask(self, inputs, previous_mask=None):
        return None


def check_model(objective, model):
    """Raises ConfigurationError unless an objective can train a model on texts."""
    refuse(
        type(model).__name__ != objective.model_class,
        f"the objective {objective.name!r} trains a {objective.model_class}, got a "
        f"{type(model).__name__}",
    )
    check_match(model, objective.rows.tokenizer)


def run_backbone(model, inputs) -> dict:
    """Outputs of a model's backbone for the inputs of a training model."""
    outputs = model.backbone(
        {name: inputs[name] for name in ("token_ids", "segment_ids")}
    )
    return outputs if isinstance(outputs, dict) else {"sequence_output": outputs}


def predicting_logits(model, inputs, outputs):
    """The logits of a model at the `predicting_positions` of `Rows.of_pairs`."""
    hidden = TakePositions(dtype=model.backbone.dtype_policy, name="hidden")(
        outputs["sequence_output"], inputs["predicting_positions"]
    )
    return model.mlm_head(hidden)


def make_training_model(model, inputs, outputs, name) -> FastModel:
    """A functional model under the dtype policy of the model that it trains."""
    trainer = FastModel(inputs, outputs, name=name)
    # Under mixed_float16 `compile` goes by it, and scales the loss.
    trainer.dtype_policy = model.backbone.dtype_policy
    return trainer


def token_loss():
    """The mean cross-entropy of the tokens that have a weight."""
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True,
        reduction="mean_with_sample_weight",
        name="token_loss",
        dtype="float32",
    )


def token_accuracy():
    """The share of them that is predicted right."""
    return keras.metrics.SparseCategoricalAccuracy("accuracy", dtype="float32")

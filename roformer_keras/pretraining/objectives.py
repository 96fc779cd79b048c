"""What a model is trained to do: items to batches, and the model that takes them.

A batch is NumPy, `(inputs, targets, weights)` as `model.fit` takes it. Its shapes
depend on the number of items and on `length` alone, so that nothing is compiled twice,
and its content on the items and on the generator that it is drawn with, so that a
training can be repeated. The training model shares the layers of the model that it is
made from.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Protocol

import keras
import numpy as np
from keras import ops

from roformer_keras.errors import ConfigurationError
from roformer_keras.inference import check_vocabulary
from roformer_keras.pretraining.examples import DocumentEncoder

__all__ = ["OBJECTIVES", "CausalLM", "MaskedLM", "Objective"]

_PACKAGE = "roformer_keras"
# [PAD], [UNK], [CLS], [SEP], [MASK], [unused1], and the two marks of released ones.
_SPECIAL = re.compile(r"\[.+\]|<[ST]>")
# Of the tokens that are predicted, as in BERT: most become [MASK], as many stay as
# become another token.
_MASKED, _KEPT = 0.8, 0.1


class Objective(Protocol):
    """What the trainer knows of an objective.

    Attributes:
        name: str. As a configuration names it.
        model_class: str. Which model it trains.
        fields: int. Texts, and then a label, that a record has; 0 for any number,
            each a document of its own.
        rows_per_item: int. Rows of a batch that one item becomes.
    """

    name: str
    model_class: str
    fields: int
    rows_per_item: int

    def encoder(self, tokenizer, length: int) -> Callable:
        """What makes items of a record; it can be pickled."""

    def batch(self, items: Sequence, rng: np.random.Generator) -> tuple:
        """Inputs, targets and weights of some items."""

    def training_model(self, model) -> keras.Model:
        """A model to compile and fit; its layers are those of `model`."""

    def compile_options(self) -> dict:
        """Loss and metrics, as keywords of `compile`."""


class MaskedLM:
    """Some tokens of a text are hidden, and told from the others.

    Which ones is drawn anew for each batch. Of the hidden tokens 80 % become `[MASK]`,
    10 % another token and 10 % stay. Special tokens, `[UNK]` among them, are neither
    hidden nor put in the place of others. Only the hidden positions go through the
    output layer.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.
        rate: float from 0 to 1. Share of a text's tokens that is hidden, one at least.
        whole_word: bool. Whether words are hidden whole, as many as it takes to reach
            that share; none that would take the row beyond `rate * length`.

    Items are `(ids, word_starts)`: int of at most `length - 2` without specials around
    them; bool of the first token of each word, or None.

    Raises:
        ConfigurationError: an argument breaks its rule.
        VocabularyError: the vocabulary has no `[MASK]`.

    Source: Devlin et al. 2019, arXiv:1810.04805, section 3.1.
    """

    name = "mlm"
    model_class = "RoFormerMaskedLM"
    fields = 0
    rows_per_item = 1

    def __init__(self, tokenizer, length, rate=0.15, whole_word=False):
        self.rows = _Rows(tokenizer, length)
        self.replacement = _Replacement(tokenizer)
        _check_share("rate", rate)
        self.rate = rate
        self.whole_word = whole_word
        self.most_hidden = max(1, round(rate * length))

    def encoder(self, tokenizer, length):
        return DocumentEncoder(tokenizer, length, self.whole_word)

    def batch(self, items, rng):
        token_ids = self.rows.of_texts([ids for ids, _ in items])
        shape = (len(items), self.most_hidden)
        positions, targets = np.zeros(shape, "int32"), np.zeros(shape, "int32")
        weights = np.zeros(shape, "float32")
        for row, (ids, word_starts) in enumerate(items):
            # Behind [CLS].
            hidden = 1 + self._draw(np.asarray(ids), word_starts, rng)
            count = len(hidden)
            positions[row, :count] = hidden
            targets[row, :count] = token_ids[row, hidden]
            weights[row, :count] = 1
            token_ids[row, hidden] = self.replacement.of_tokens(
                token_ids[row, hidden], rng
            )
        inputs = {
            "token_ids": token_ids,
            "segment_ids": np.zeros_like(token_ids),
            "masked_positions": positions,
        }
        return inputs, targets, weights

    def _draw(self, ids, word_starts, rng):
        """Indices of the tokens to hide, in their order."""
        (candidates,) = np.nonzero(~self.replacement.is_special[ids])
        count = min(max(1, round(self.rate * len(candidates))), self.most_hidden)
        if not self.whole_word or word_starts is None:
            return np.sort(rng.permutation(candidates)[:count])
        words = np.cumsum(word_starts)[candidates]
        (ends,) = np.nonzero(np.diff(words, append=-1))
        begins = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        chosen = []
        for word in rng.permutation(len(ends)):
            tokens = candidates[begins[word] : ends[word] + 1]
            if len(chosen) + len(tokens) <= self.most_hidden:
                chosen.extend(tokens)
            if len(chosen) >= count:
                break
        return np.array(sorted(chosen), int)

    def training_model(self, model):
        _check_model(self, model, self.rows.tokenizer)
        inputs = self.rows.inputs(masked_positions=self.most_hidden)
        outputs = _run_backbone(model, inputs)
        hidden = TakePositions(dtype=model.backbone.dtype_policy, name="hidden")(
            outputs["sequence_output"], inputs["masked_positions"]
        )
        return _training_model(model, inputs, model.mlm_head(hidden), self.name)

    def compile_options(self):
        return {"loss": _token_loss(), "weighted_metrics": [_token_accuracy()]}


class CausalLM:
    """Every token is predicted from those before it.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.

    Items are `(ids, word_starts)` as of `MaskedLM`; words make no difference.

    Raises:
        ConfigurationError: an argument breaks its rule.
    """

    name = "lm"
    model_class = "RoFormerCausalLM"
    fields = 0
    rows_per_item = 1

    def __init__(self, tokenizer, length):
        self.rows = _Rows(tokenizer, length)

    def encoder(self, tokenizer, length):
        return DocumentEncoder(tokenizer, length)

    def batch(self, items, rng):
        token_ids = self.rows.of_texts([ids for ids, _ in items])
        # Where nothing follows, the target is padding and has no weight.
        targets = np.zeros_like(token_ids)
        targets[:, :-1] = token_ids[:, 1:]
        inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
        lengths = np.array([len(ids) + 1 for ids, _ in items])[:, None]
        weights = (np.arange(token_ids.shape[1]) < lengths).astype("float32")
        return inputs, targets, weights

    def training_model(self, model):
        _check_model(self, model, self.rows.tokenizer)
        if model.config.attention != "causal":
            raise ConfigurationError(
                "a model that learns to predict the next token must not see it: its "
                f"attention must be 'causal', got {model.config.attention!r}"
            )
        inputs = self.rows.inputs()
        outputs = _run_backbone(model, inputs)
        logits = model.mlm_head(outputs["sequence_output"])
        return _training_model(model, inputs, logits, self.name)

    def compile_options(self):
        return {"loss": _token_loss(), "weighted_metrics": [_token_accuracy()]}


# === What objectives share ===


class _Rows:
    """Rows of ids between `[CLS]` and `[SEP]`, padded to one length."""

    def __init__(self, tokenizer, length):
        if isinstance(length, bool) or not isinstance(length, Integral) or length < 4:
            raise ConfigurationError(
                f"length must be an integer of at least 4, got {length!r}"
            )
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


class _Replacement:
    """What stands in the place of tokens that are to be predicted."""

    def __init__(self, tokenizer):
        vocabulary = tokenizer.vocabulary
        self.is_special = np.array(
            [_SPECIAL.fullmatch(token) is not None for token in vocabulary]
        )
        (self.plain_ids,) = np.nonzero(~self.is_special)
        if not len(self.plain_ids):
            raise ConfigurationError(
                "a vocabulary to train on must hold tokens that are not special, got "
                f"{len(vocabulary)} that are"
            )
        self.mask_id = tokenizer.mask_id

    def of_tokens(self, ids, rng):
        """Of every one of some ids, each drawn on its own."""
        draws, others = rng.random(len(ids)), self._others(len(ids), rng)
        ids = np.where(draws >= _MASKED + _KEPT, others, ids)
        return np.where(draws < _MASKED, self.mask_id, ids)

    def _others(self, count, rng):
        return self.plain_ids[rng.integers(len(self.plain_ids), size=count)]


@keras.saving.register_keras_serializable(_PACKAGE)
class TakePositions(keras.layers.Layer):
    """The vectors at some positions of each row.

    Call arguments:
        x: float `(batch, length, dim)`.
        positions: int `(batch, count)`.

    Returns:
        float `(batch, count, dim)`.
    """

    def call(self, x, positions):
        # Exact, for all but one of the terms are zero. The gradient of a gather adds up
        # in no fixed order on a GPU, that of a product does.
        chosen = ops.one_hot(positions, x.shape[1], dtype=x.dtype)
        return ops.matmul(chosen, x)


def _check_share(name, value):
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name} must be from 0 to 1, got {value!r}")


def _check_model(objective, model, tokenizer):
    if type(model).__name__ != objective.model_class:
        raise ConfigurationError(
            f"the objective {objective.name!r} trains a {objective.model_class}, got a "
            f"{type(model).__name__}"
        )
    check_vocabulary(model, tokenizer)
    others = sorted(set(model.input) - {"token_ids", "segment_ids"})
    if others:
        raise ConfigurationError(
            f"a model to train on texts must take token_ids and segment_ids only, this "
            f"one takes {', '.join(others)} too"
        )


def _run_backbone(model, inputs):
    outputs = model.backbone(
        {name: inputs[name] for name in ("token_ids", "segment_ids")}
    )
    return outputs if isinstance(outputs, dict) else {"sequence_output": outputs}


def _training_model(model, inputs, outputs, name):
    trainer = keras.Model(inputs, outputs, name=name)
    # Under mixed_float16 `compile` goes by it, and scales the loss.
    trainer.dtype_policy = model.backbone.dtype_policy
    return trainer


def _token_loss():
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True,
        reduction="mean_with_sample_weight",
        name="token_loss",
        dtype="float32",
    )


def _token_accuracy():
    return keras.metrics.SparseCategoricalAccuracy("accuracy", dtype="float32")


OBJECTIVES: Mapping[str, type] = {kind.name: kind for kind in (MaskedLM, CausalLM)}

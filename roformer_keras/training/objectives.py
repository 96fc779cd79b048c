"""What a model is trained to do: items to batches, and the model that takes them.

A batch is NumPy, `(inputs, targets, weights)` as `model.fit` takes it. Its shapes
depend on the number of items and on `length` alone, so that nothing is compiled twice
(but where items come by length, and rows are as wide as the longest), and its content
on the items and on the generator that it is drawn with, so that a training can be
repeated. The training model shares the layers of the model that it is made from.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import keras
import numpy as np
from keras import ops

from roformer_keras import losses
from roformer_keras.checks import check_integer, check_number
from roformer_keras.data.encoders import (
    DocumentEncoder,
    LabelledPairEncoder,
    PairEncoder,
    TeacherPairEncoder,
    WholePairEncoder,
)
from roformer_keras.data.pair_rows import teacher_forcing
from roformer_keras.errors import ConfigurationError
from roformer_keras.layers.pairs import PairCosines, PairFeatures
from roformer_keras.models.checks import check_vocabulary

__all__ = [
    "OBJECTIVES",
    "CausalLM",
    "CoSENT",
    "Distillation",
    "MaskedLM",
    "Objective",
    "PairClassification",
    "Seq2Seq",
    "SimBERT",
]

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
        by_length: bool. Whether a batch has items of similar length, and is as wide as
            they ask; its `batch` is given the number of the batch too.
    """

    name: str
    model_class: str
    fields: int
    rows_per_item: int
    by_length: bool

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
    by_length = False

    def __init__(self, tokenizer, length, rate=0.15, whole_word=False):
        self.rows = _Rows(tokenizer, length)
        self.replacement = _Replacement(tokenizer)
        check_number("rate", rate, minimum=0, maximum=1)
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

    The `[SEP]` behind an item that fills its row is not: there the row ended, and maybe
    not the text.

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
    by_length = False

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
        # The [SEP] of a full row has none either.
        most = self.rows.length - 2
        counts = np.array([min(len(ids) + 1, most) for ids, _ in items])[:, None]
        weights = (np.arange(token_ids.shape[1]) < counts).astype("float32")
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


class SimBERT:
    """A text is told from its counterpart, and written from it.

    A pair (a, b) becomes the rows `a b` and `b a`, side by side. The second text of a
    row is predicted token by token, seeing the first (UniLM); and the vector of each
    row's first text must be nearer to its neighbour's than to any other of the batch.
    The sum of both cross-entropies is minimised. In some of the rows words of the first
    text are hidden.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of each of the two texts, with `[CLS]` and
            `[SEP]`; rows are of `2 * length`.
        mask_rate: float from 0 to 1. Share of the words of a first text that is hidden,
            each drawn on its own, as in `MaskedLM` with 80, 10 and 10 % but by word.
        mask_share: float from 0 to 1. Share of the rows in which that is done.
        whole_word: bool. If False, tokens are hidden instead of words.
        scale: float above 0. What cosines are multiplied by.

    Items are `(a_ids, b_ids, a_starts, b_starts)`, as of `PairEncoder`.

    Raises:
        ConfigurationError: an argument breaks its rule.
        VocabularyError: the vocabulary has no `[MASK]`.

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage1.py`, where
        a random token may be a special one.
    """

    name = "simbert"
    model_class = "RoFormerSim"
    fields = 2
    rows_per_item = 2
    by_length = False

    def __init__(
        self,
        tokenizer,
        length,
        mask_rate=0.15,
        mask_share=0.5,
        whole_word=True,
        scale=20.0,
    ):
        self.rows = _Rows(tokenizer, length)
        self.replacement = _Replacement(tokenizer)
        check_number("mask_rate", mask_rate, minimum=0, maximum=1)
        check_number("mask_share", mask_share, minimum=0, maximum=1)
        check_number("scale", scale, above=0)
        self.mask_rate = mask_rate
        self.mask_share = mask_share
        self.whole_word = whole_word
        self.scale = scale

    def encoder(self, tokenizer, length):
        return PairEncoder(tokenizer, length, self.whole_word)

    def batch(self, items, rng):
        sides = [
            side
            for a, b, a_starts, b_starts, *_ in items
            for side in ((a, a_starts, b), (b, b_starts, a))
        ]
        # One prediction for each token that the second text can have, and for [SEP].
        shape = (len(sides), self.rows.length - 1)
        token_ids = np.zeros((len(sides), 2 * self.rows.length), "int32")
        segment_ids = np.zeros_like(token_ids)
        positions, targets = np.zeros(shape, "int32"), np.zeros(shape, "int32")
        weights = np.zeros(shape, "float32")
        token_ids[:, : self.rows.length] = self.rows.of_texts([a for a, _, _ in sides])
        for row, (first, word_starts, second) in enumerate(sides):
            self.rows.check(second)
            start, count = len(first) + 2, len(second) + 1
            if rng.random() < self.mask_share:
                token_ids[row, 1 : start - 1] = self._hidden(first, word_starts, rng)
            token_ids[row, start : start + count - 1] = second
            token_ids[row, start + count - 1] = self.rows.tokenizer.sep_id
            segment_ids[row, start : start + count] = 1
            # The token before tells the token after it.
            positions[row, :count] = np.arange(start - 1, start + count - 1)
            targets[row, :count] = token_ids[row, start : start + count]
            weights[row, :count] = 1
        inputs = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "predicting_positions": positions,
        }
        vector_targets, vector_weights = self._vector_targets(len(sides))
        return (
            inputs,
            {"logits": targets, **vector_targets},
            {"logits": weights, **vector_weights},
        )

    def _hidden(self, ids, word_starts, rng):
        ids = np.asarray(ids)
        if self.whole_word and word_starts is not None:
            words = np.cumsum(word_starts)
        else:
            words = np.arange(len(ids))
        return self.replacement.of_words(ids, words, self.mask_rate, rng)

    def _vector_targets(self, count):
        # 1, 0, 3, 2, ...
        neighbours = np.arange(count, dtype="int32") ^ 1
        return {"vectors": neighbours}, {"vectors": np.ones(count, "float32")}

    def training_model(self, model):
        _check_model(self, model, self.rows.tokenizer)
        inputs = self._inputs()
        outputs = _run_backbone(model, inputs)
        hidden = TakePositions(dtype=model.backbone.dtype_policy, name="hidden")(
            outputs["sequence_output"], inputs["predicting_positions"]
        )
        outputs = {
            "logits": model.mlm_head(hidden),
            **self._vector_outputs(inputs, outputs["pooled_output"]),
        }
        return _training_model(model, inputs, outputs, self.name)

    def _inputs(self):
        return self.rows.inputs(2, predicting_positions=self.rows.length - 1)

    def _vector_outputs(self, inputs, vectors):
        return {"vectors": vectors}

    def compile_options(self):
        nearest = keras.metrics.MeanMetricWrapper(
            losses.neighbour_is_nearest, "accuracy", dtype="float32"
        )
        return {
            "loss": {
                "logits": _token_loss(),
                "vectors": losses.Contrastive(self.scale),
            },
            "weighted_metrics": {
                "logits": [_token_accuracy()],
                "vectors": [nearest],
            },
        }


class Distillation(SimBERT):
    """As `SimBERT`, but the cosines of the first texts are those of a teacher.

    The teacher sees the first texts whole, and is part of the training model, where it
    is frozen.

    Args:
        tokenizer, length, mask_rate, mask_share, whole_word: as of `SimBERT`.
        teacher: a model of this package with a pooler. It is made not trainable.
        teacher_tokenizer: `RoFormerTokenizer` of the teacher.

    Items are those of `SimBERT`, with the two texts' ids of the teacher behind.

    Raises:
        ConfigurationError: an argument breaks its rule.
        VocabularyError: the vocabulary has no `[MASK]`.

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage2.py`.
    """

    name = "distillation"

    def __init__(
        self,
        tokenizer,
        length,
        teacher,
        teacher_tokenizer,
        mask_rate=0.15,
        mask_share=0.5,
        whole_word=True,
    ):
        super().__init__(tokenizer, length, mask_rate, mask_share, whole_word)
        check_vocabulary(teacher, teacher_tokenizer)
        _check_inputs(teacher)
        if teacher.config.pooler_activation is None:
            raise ConfigurationError(
                "a teacher must have a pooler, which makes the vectors to learn from; "
                "got pooler_activation=None"
            )
        self.teacher = teacher
        self.teacher_rows = _Rows(teacher_tokenizer, length)

    def encoder(self, tokenizer, length):
        return TeacherPairEncoder(
            tokenizer, self.teacher_rows.tokenizer, length, self.whole_word
        )

    def batch(self, items, rng):
        inputs, targets, weights = super().batch(items, rng)
        texts = [ids for *_, a, b in items for ids in (a, b)]
        inputs["teacher_token_ids"] = self.teacher_rows.of_texts(texts)
        return inputs, targets, weights

    def _vector_targets(self, count):
        # Of the differences that the model gives.
        return (
            {"similarities": np.zeros((count, count), "float32")},
            {"similarities": np.ones(count, "float32")},
        )

    def training_model(self, model):
        if model is self.teacher or model.backbone is self.teacher:
            raise ConfigurationError(
                "a teacher must be another model than the one that learns from it: "
                "load it a second time"
            )
        return super().training_model(model)

    def _inputs(self):
        inputs = super()._inputs()
        inputs["teacher_token_ids"] = keras.Input(
            (self.rows.length,), dtype="int32", name="teacher_token_ids"
        )
        return inputs

    def _vector_outputs(self, inputs, vectors):
        expected = FrozenTeacher(self.teacher, name="teacher_vectors")(
            inputs["teacher_token_ids"]
        )
        difference = CosineDifference(dtype="float32", name="similarities")
        return {"similarities": difference(vectors, expected)}

    def compile_options(self):
        return {
            "loss": {
                "logits": _token_loss(),
                "similarities": losses.SimilarityRegression(),
            },
            "weighted_metrics": {"logits": [_token_accuracy()]},
        }


class _LabelledPairs:
    """What learning from labelled pairs shares: the rows a and b side by side.

    Only the vectors are trained, not the output over the vocabulary.
    """

    model_class = "RoFormerSim"
    fields = 3
    rows_per_item = 2
    by_length = False

    def __init__(self, tokenizer, length):
        self.rows = _Rows(tokenizer, length)

    def encoder(self, tokenizer, length):
        return LabelledPairEncoder(tokenizer, length)

    def batch(self, items, rng):
        token_ids = self.rows.of_texts([ids for a, b, _ in items for ids in (a, b)])
        inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
        labels = np.array([self._label(label) for _, _, label in items], "float32")
        return inputs, labels, np.ones(len(items), "float32")

    def _label(self, label):
        return label

    def training_model(self, model):
        _check_model(self, model, self.rows.tokenizer)
        inputs = self.rows.inputs()
        vectors = _run_backbone(model, inputs)["pooled_output"]
        return _training_model(model, inputs, self._output(vectors), self.name)

    def _output(self, vectors):
        raise NotImplementedError


class PairClassification(_LabelledPairs):
    """The label of a pair of texts, told from (a, b, |a - b|) of their vectors.

    Labels are of several sets, and a pair tells only among those of its label's set; so
    corpora with different kinds of labels are trained on together. The layer that tells
    them is part of the training model only.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.
        label_sets: sequences of int, together 0, 1, 2, ... each once. The default is
            that of the released models: different, same; and contradiction,
            entailment, neutral.

    Items are `(a_ids, b_ids, label)`, as of `LabelledPairEncoder`.

    Raises:
        ConfigurationError: an argument breaks its rule, or a label is in no set.

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/supervised.py`;
        Reimers and Gurevych 2019, arXiv:1908.10084.
    """

    name = "classification"

    def __init__(self, tokenizer, length, label_sets=((0, 1), (2, 3, 4))):
        super().__init__(tokenizer, length)
        try:
            self.label_sets = tuple(tuple(map(int, own)) for own in label_sets)
        except (TypeError, ValueError):
            self.label_sets = ()
        labels = sorted(label for own in self.label_sets for label in own)
        if not labels or labels != list(range(len(labels))):
            raise ConfigurationError(
                "label_sets must be lists that together hold 0, 1, 2, ... each once, "
                f"got {label_sets!r}"
            )
        self.labels = labels

    def _label(self, label):
        if label not in self.labels:
            raise ConfigurationError(
                f"a label must be one of {', '.join(map(str, self.labels))}, got "
                f"{label!r}: change the data, or set label_sets"
            )
        return label

    def _output(self, vectors):
        features = PairFeatures(dtype="float32", name="features")(vectors)
        return keras.layers.Dense(
            len(self.labels), use_bias=False, dtype="float32", name="labels"
        )(features)

    def compile_options(self):
        accuracy = keras.metrics.MeanMetricWrapper(
            losses.label_is_best,
            "accuracy",
            dtype="float32",
            label_sets=self.label_sets,
        )
        return {
            "loss": losses.MaskedLabelCrossentropy(self.label_sets),
            "weighted_metrics": [accuracy],
        }


class CoSENT(_LabelledPairs):
    """Of any two pairs the one with the higher label has the higher cosine.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.
        scale: float above 0. What cosines are multiplied by.

    Items are `(a_ids, b_ids, label)`, as of `LabelledPairEncoder`; labels are degrees
    of sameness, of any range.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Source: https://kexue.fm/archives/8847
    """

    name = "cosent"

    def __init__(self, tokenizer, length, scale=20.0):
        super().__init__(tokenizer, length)
        check_number("scale", scale, above=0)
        self.scale = scale

    def _output(self, vectors):
        return PairCosines(dtype="float32", name="similarities")(vectors)

    def compile_options(self):
        return {"loss": losses.CoSENT(self.scale)}


class Seq2Seq:
    """The second text of a pair is written from the first by an encoder-decoder.

    Each of its tokens, and the `[SEP]` behind them, is told from those before it.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Most tokens of each of the two texts, with `[CLS]` and
            `[SEP]`; pairs of which a text is longer are left out. Rows are as wide as
            the longest of their batch.
        label_smoothing: float in [0, 1). See `losses.smoothed_crossentropy`.

    Items are `(a_ids, b_ids)`, as of `WholePairEncoder`.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    name = "seq2seq"
    model_class = "RoFormerSeq2Seq"
    fields = 2
    rows_per_item = 1
    by_length = True

    def __init__(self, tokenizer, length, label_smoothing=0.1):
        self.rows = _Rows(tokenizer, length)
        check_number("label_smoothing", label_smoothing, minimum=0, below=1)
        self.label_smoothing = label_smoothing

    def encoder(self, tokenizer, length):
        return WholePairEncoder(tokenizer, length)

    def batch(self, items, rng, number=0):
        sides = list(zip(*items, strict=True))
        more = (0, 0)
        if keras.backend.backend() == "tensorflow":
            # Keras takes a width for fixed in which the first two batches agree, of
            # those that a training begins with or is taken up with.
            more = [(number + max(map(len, side))) % 2 for side in sides]
        return teacher_forcing(*sides, self.rows.tokenizer, more)

    def training_model(self, model):
        _check_class(self, model, self.rows.tokenizer)
        return _training_model(model, model.input, model.output, self.name)

    def compile_options(self):
        return {
            "loss": losses.LabelSmoothing(self.label_smoothing),
            "weighted_metrics": [_token_accuracy()],
        }


# === What objectives share ===


class _Rows:
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

    def of_words(self, ids, words, rate, rng):
        """Of a share of the words, each as a whole; special tokens stay.

        Args:
            ids: int `(tokens,)`.
            words: int `(tokens,)`, ascending. The word that a token belongs to.
            rate: float. How likely it is that a word is among those.
        """
        draws = rng.random(words.max(initial=-1) + 1)[words]
        others = self._others(len(ids), rng)
        new = np.where(draws < rate, others, ids)
        new = np.where(draws < rate * (_MASKED + _KEPT), ids, new)
        new = np.where(draws < rate * _MASKED, self.mask_id, new)
        return np.where(self.is_special[ids], ids, new)

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
        chosen = ops.one_hot(positions, ops.shape(x)[1], dtype=self.compute_dtype)
        return ops.matmul(chosen, x)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@keras.saving.register_keras_serializable(_PACKAGE)
class CosineDifference(keras.layers.Layer):
    """How far the cosines of some vectors are from those of others.

    Call arguments:
        vectors: float `(rows, dim)`.
        expected: float `(rows, expected_dim)`.

    Returns:
        float32 `(rows, rows)`.
    """

    def call(self, vectors, expected):
        return losses.cosines(vectors) - losses.cosines(expected)

    def compute_output_shape(self, vectors_shape, expected_shape):
        return (None, None)


class FrozenTeacher(keras.layers.Layer):
    """The vectors of a model that is not trained, and in which nothing is dropped.

    Args:
        model: a model of this package with a pooler.

    Call arguments:
        token_ids: int `(batch, length)`.

    Returns:
        float `(batch, hidden_dim)`, without gradient.
    """

    def __init__(self, model, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        self.backbone = getattr(model, "backbone", model)
        self.backbone.trainable = False

    def call(self, token_ids):
        inputs = {"token_ids": token_ids, "segment_ids": ops.zeros_like(token_ids)}
        # Not an argument of this layer: a model in training would set it.
        outputs = self.backbone(inputs, training=False)
        return ops.stop_gradient(ops.cast(outputs["pooled_output"], "float32"))

    def compute_output_shape(self, token_ids_shape):
        return (token_ids_shape[0], self.backbone.config.hidden_dim)


def _check_model(objective, model, tokenizer):
    _check_class(objective, model, tokenizer)
    _check_inputs(model)


def _check_class(objective, model, tokenizer):
    if type(model).__name__ != objective.model_class:
        raise ConfigurationError(
            f"the objective {objective.name!r} trains a {objective.model_class}, got a "
            f"{type(model).__name__}"
        )
    check_vocabulary(model, tokenizer)


def _check_inputs(model):
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
    trainer.dtype_policy = getattr(model, "backbone", model).dtype_policy
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


OBJECTIVES: Mapping[str, type] = {
    kind.name: kind
    for kind in (
        MaskedLM,
        CausalLM,
        SimBERT,
        Distillation,
        PairClassification,
        CoSENT,
        Seq2Seq,
    )
}

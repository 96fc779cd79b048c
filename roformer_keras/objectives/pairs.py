"""Objectives on pairs of texts: synonyms, a teacher and labels."""

import keras
import numpy as np
from keras import ops

from roformer_keras import losses
from roformer_keras.base.checks import check_number
from roformer_keras.base.errors import refuse
from roformer_keras.layers.pair_features import PairCosines, PairFeatures
from roformer_keras.objectives.base import (
    Replacement,
    Rows,
    check_model,
    make_training_model,
    predicting_logits,
    run_backbone,
    token_accuracy,
    token_loss,
)
from roformer_keras.text.encoders import PairEncoder
from roformer_keras.text.matching import check_match


class SimBERT:
    """A text is recognised among others by its counterpart, and written from it.

    A pair (a, b) becomes the rows `a b` and `b a`, next to each other. The second text
    of a row is predicted token by token, seeing the first (UniLM); and the vector of
    each row's first text must be nearer to its neighbour's than to any other of the
    batch. The sum of both cross-entropies is minimised. In some of the rows words of
    the first text are hidden.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of each of the two texts, with `[CLS]` and
            `[SEP]`; rows are of `2 * length`.
        mask_rate: float from 0 to 1. Probability that a word of a first text is hidden,
            as in `MaskedLM` with 80, 10 and 10 % but by word.
        mask_share: float from 0 to 1. Share of the rows in which that is done.
        whole_word: bool. If False, tokens are hidden instead of words.
        scale: float above 0. What cosines are multiplied by.

    Raises:
        ConfigurationError: an argument breaks its rule.
        VocabularyError: the vocabulary has no `[MASK]`.

    Example:
        >>> source = "roformer-sim-char"
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
        >>> objective = objectives.SimBERT(tokenizer, 16)
        >>> items = objective.encoder(tokenizer, 16)(("学而时习之", "学习了又时常温习"))
        >>> inputs, targets, weights = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (2, 32)

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage1.py`, where
        a random token may be a special one.
    """

    name = "simbert"
    model_class = "RoFormerSim"
    fields = 2
    rows_per_item = 2

    def __init__(
        self,
        tokenizer,
        length,
        mask_rate=0.15,
        mask_share=0.5,
        whole_word=True,
        scale=20.0,
    ):
        self.rows = Rows(tokenizer, length)
        self.replacement = Replacement(tokenizer)
        check_number("mask_rate", mask_rate, minimum=0, maximum=1)
        check_number("mask_share", mask_share, minimum=0, maximum=1)
        check_number("scale", scale, above=0)
        self.mask_rate = mask_rate
        self.mask_share = mask_share
        self.whole_word = whole_word
        self.scale = scale

    def encoder(self, tokenizer, length):
        return PairEncoder(tokenizer, length, whole_word=self.whole_word)

    def batch(self, items, rng, number=0):
        # Rows of the first text, its word starts and the second text.
        sides = []
        for (a, b, *_), starts, _ in items:
            a_starts, b_starts, *_ = starts or (None, None)
            sides += [(a, a_starts, b), (b, b_starts, a)]
        pairs = []
        for first, word_starts, second in sides:
            if rng.random() < self.mask_share:
                first = self._hide(first, word_starts, rng)
            pairs.append((first, second))
        inputs, targets, weights = self.rows.of_pairs(pairs)
        vector_targets, vector_weights = self._vector_targets(len(sides))
        return (
            inputs,
            {"logits": targets, **vector_targets},
            {"logits": weights, **vector_weights},
        )

    def _hide(self, ids, word_starts, rng):
        if self.whole_word and word_starts is not None:
            words = np.cumsum(word_starts)
        else:
            words = np.arange(len(ids))
        return self.replacement.of_words(np.asarray(ids), words, self.mask_rate, rng)

    def _vector_targets(self, count):
        # 1, 0, 3, 2, ...
        neighbours = np.arange(count, dtype="int32") ^ 1
        return {"vectors": neighbours}, {"vectors": np.ones(count, "float32")}

    def training_model(self, model):
        check_model(self, model)
        inputs = self._inputs()
        outputs = run_backbone(model, inputs)
        outputs = {
            "logits": predicting_logits(model, inputs, outputs),
            **self._vector_outputs(inputs, outputs["pooled_output"]),
        }
        return make_training_model(model, inputs, outputs, self.name)

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
                "logits": token_loss(),
                "vectors": losses.Contrastive(self.scale),
            },
            "weighted_metrics": {"logits": [token_accuracy()], "vectors": [nearest]},
        }


class Distillation(SimBERT):
    """`SimBERT`, but the cosines of the first texts are learned from a teacher.

    The teacher sees the first texts whole, and is part of the training model, where it
    is frozen.

    Args:
        tokenizer, length, mask_rate, mask_share, whole_word: as in `SimBERT`.
        teacher: a model of this package with a pooler. It is made not trainable.
        teacher_tokenizer: `RoFormerTokenizer` of the teacher.

    Raises:
        ConfigurationError: an argument breaks its rule.
        VocabularyError: the vocabulary has no `[MASK]`.

    Example:
        >>> teacher = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> tokenizer = teacher.tokenizer
        >>> objective = objectives.Distillation(tokenizer, 16, teacher, tokenizer)
        >>> items = objective.encoder(tokenizer, 16)(("学而时习之", "学习了又时常温习"))
        >>> inputs, targets, weights = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (2, 32)

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
        check_match(teacher, teacher_tokenizer)
        refuse(
            teacher.config.pooler_activation is None,
            "a teacher must have a pooler, which makes the vectors to learn from; "
            "got pooler_activation=None",
        )
        self.teacher = teacher
        self.teacher_rows = Rows(teacher_tokenizer, length)

    def encoder(self, tokenizer, length):
        return PairEncoder(
            tokenizer,
            length,
            whole_word=self.whole_word,
            teacher_tokenizer=self.teacher_rows.tokenizer,
        )

    def batch(self, items, rng, number=0):
        inputs, targets, weights = super().batch(items, rng, number)
        texts = [ids for item in items for ids in item.ids[2:]]
        inputs["teacher_token_ids"] = self.teacher_rows.of_texts(texts)
        return inputs, targets, weights

    def _vector_targets(self, count):
        # Targets of the differences that the model outputs.
        return (
            {"similarities": np.zeros((count, count), "float32")},
            {"similarities": np.ones(count, "float32")},
        )

    def training_model(self, model):
        refuse(
            model is self.teacher or model.backbone is self.teacher,
            "a teacher must be another model than the one that learns from it: "
            "load it a second time",
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
                "logits": token_loss(),
                "similarities": losses.SimilarityRegression(),
            },
            "weighted_metrics": {"logits": [token_accuracy()]},
        }


class _LabelledPairs:
    """An objective on the rows a and b of labelled pairs, next to each other.

    Only the vectors are trained, not the output over the vocabulary.
    """

    model_class = "RoFormerSim"
    fields = 3
    rows_per_item = 2
    # Any number.
    labels = ()

    def __init__(self, tokenizer, length):
        self.rows = Rows(tokenizer, length)

    def encoder(self, tokenizer, length):
        return PairEncoder(tokenizer, length, labels=self.labels)

    def batch(self, items, rng, number=0):
        token_ids = self.rows.of_texts([ids for item in items for ids in item.ids])
        inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
        labels = np.array([item.label for item in items], "float32")
        return inputs, labels, np.ones(len(items), "float32")

    def training_model(self, model):
        check_model(self, model)
        inputs = self.rows.inputs()
        vectors = run_backbone(model, inputs)["pooled_output"]
        return make_training_model(model, inputs, self._output(vectors), self.name)

    def _output(self, vectors):
        raise NotImplementedError


class PairClassification(_LabelledPairs):
    """The label of a pair of texts is predicted from (a, b, |a - b|) of their vectors.

    Labels form sets, and a label competes only with those of its set, so corpora with
    different kinds of labels are trained on together. The output layer is part of the
    training model only.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.
        label_sets: sequences of int, together 0, 1, 2, ... each once. The default is
            that of the released models: different, same; and contradiction,
            entailment, neutral.

    Raises:
        ConfigurationError: an argument breaks its rule, or a label is in no set.

    Example:
        >>> source = "roformer-sim-char"
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
        >>> objective = objectives.PairClassification(tokenizer, 16)
        >>> items = objective.encoder(tokenizer, 16)(("你好", "您好", "1"))
        >>> inputs, targets, weights = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (2, 16)

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
        refuse(
            not labels or labels != list(range(len(labels))),
            "label_sets must be lists that together hold 0, 1, 2, ... each once, "
            f"got {label_sets!r}",
        )
        self.labels = tuple(labels)

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
    """Trains cosines to have the order of the labels, over all couples of pairs.

    Args:
        tokenizer: `RoFormerTokenizer` of the model.
        length: int, at least 4. Tokens of a row, with `[CLS]` and `[SEP]`.
        scale: float above 0. What cosines are multiplied by.

    Labels are degrees of similarity, in any range.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> source = "roformer-sim-char"
        >>> tokenizer = roformer_keras.RoFormerTokenizer.from_preset(source)
        >>> objective = objectives.CoSENT(tokenizer, 16)
        >>> items = objective.encoder(tokenizer, 16)(("你好", "您好", "4.5"))
        >>> inputs, targets = objective.batch(items, np.random.default_rng(0))
        >>> inputs["token_ids"].shape
        (2, 16)

    Source: https://kexue.fm/archives/8847
    """

    name = "cosent"

    def __init__(self, tokenizer, length, scale=20.0):
        super().__init__(tokenizer, length)
        check_number("scale", scale, above=0)
        self.scale = scale

    def batch(self, items, rng, number=0):
        # One loss for the whole batch, in which rows have no weights.
        return super().batch(items, rng, number)[:2]

    def _output(self, vectors):
        return PairCosines(dtype="float32", name="similarities")(vectors)

    def compile_options(self):
        return {"loss": losses.CoSENT(self.scale)}


# === Layers ===


@keras.saving.register_keras_serializable("roformer_keras")
class CosineDifference(keras.layers.Layer):
    """Differences of the cosines of some vectors from those of others.

    Call arguments:
        vectors: float `(rows, dim)`.
        expected: float `(rows, expected_dim)`.
    """

    def call(self, vectors, expected):
        return losses.cosines(vectors) - losses.cosines(expected)

    def compute_output_shape(self, vectors_shape, expected_shape):
        return (None, None)


class FrozenTeacher(keras.layers.Layer):
    """The vectors of a model that is not trained, without dropout."""

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

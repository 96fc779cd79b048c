"""Vectors of sentences, trained so that cosines measure similarity."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import keras
import numpy as np
from keras import ops

from roformer_keras.base.argument_names import takes_other_names
from roformer_keras.base.checks import check_choice, check_integer, check_number
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.task_registry import SENTENCE_OBJECTIVES
from roformer_keras.base.types import Texts, Verbose
from roformer_keras.layers.pair_features import PairCosines, PairFeatures
from roformer_keras.losses import CoSENT, SupervisedContrastive
from roformer_keras.models import RoFormerBackbone
from roformer_keras.models.text_data import TextData
from roformer_keras.search.cosines import pair_cosines, unit_rows
from roformer_keras.search.rerank import rerank
from roformer_keras.tables.texts import as_numbers
from roformer_keras.tasks.baselines import (
    SIMILARITIES,
    Baseline,
    MostFrequent,
    NearestTexts,
    PairThreshold,
)
from roformer_keras.tasks.head_parts import dense_head, sequence_of
from roformer_keras.tasks.labels import (
    as_name,
    class_names,
    class_number,
    parse_name,
    parse_number,
    rounded,
    single_labels,
    sorted_names,
    weights_by_number,
)
from roformer_keras.tasks.measures import (
    ClassMeasure,
    Measure,
    NeighbourMeasure,
    NumberMeasure,
    nearest_rows,
)
from roformer_keras.tasks.task import MAX_LENGTH, TextTask
from roformer_keras.tasks.task_files import TaskFiles
from roformer_keras.tasks.vector import TextVector
from roformer_keras.text.rows import GroupRows, Rows
from roformer_keras.text.tokenizer import RoFormerTokenizer


class SentenceEncoderFiles(TaskFiles):
    """Labels of pairs and texts in files, and the figures of vectors."""

    @classmethod
    def parse_label(cls, value: Any, texts: tuple[str, ...], options: Mapping) -> Any:
        is_number = options.get("objective", "cosent") == "cosent"
        return parse_number(value) if is_number else parse_name(value)

    @classmethod
    def find_names(cls, labels: list, options: Mapping) -> list[str] | None:
        is_number = options.get("objective", "cosent") == "cosent"
        return None if is_number else sorted_names(labels)

    @classmethod
    def name_options(cls, names: Sequence[str], options: Mapping) -> dict[str, Any]:
        is_classified = options.get("objective") == "classification"
        return {"classes": names} if is_classified else {}

    @classmethod
    def metric_names(cls, options: Mapping) -> tuple[str, ...]:
        return {
            "cosent": ("spearman", "pearson"),
            "contrastive": ("accuracy",),
        }.get(options.get("objective", "cosent"), ("accuracy", "macro_f1"))

    @property
    def answer_counts(self) -> tuple[int, ...]:
        return (1, 2)

    @property
    def measure(self) -> Measure:
        if self.model.objective == "cosent":
            # Degrees of any range are no cosines.
            return NumberMeasure(is_scaled=False)
        if self.model.objective == "contrastive":
            return NeighbourMeasure()
        return ClassMeasure(self.model._names)

    def expected_answers(self, texts: list[tuple[str, ...]], labels: list) -> Any:
        if self.model.objective == "classification":
            return self.model.make_targets(labels).astype("int64")
        return labels

    def answers(self, texts: list[tuple[str, ...]], **options: Any) -> Any:
        columns = list(map(list, zip(*texts, strict=True)))
        answer = self.model.encode if len(columns) == 1 else self.model.similarity
        return answer(*columns, **options)

    def found_answers(self, texts: list[tuple[str, ...]], verbose: Verbose = 0) -> Any:
        if self.model.objective == "cosent":
            return self.answers(texts, verbose=verbose)
        if self.model.objective == "contrastive":
            return nearest_rows(self.answers(texts, verbose=verbose))
        logits = ops.convert_to_tensor(self.model.predict(texts, verbose=verbose))
        return ops.convert_to_numpy(ops.softmax(logits))

    def baselines(self, text_count: int) -> list[Baseline]:
        if self.model.objective == "cosent":
            return list(SIMILARITIES)
        if self.model.objective == "contrastive":
            return [NearestTexts()]
        thresholds = [PairThreshold(one, self.model._names) for one in SIMILARITIES]
        frequent = MostFrequent("most frequent class", len(self.model._names))
        return [frequent, *thresholds]

    def answer_kinds(self, count: int) -> dict:
        return {"vector": [float]} if count == 1 else {"similarity": float}

    def answer_to_json(self, answer: Any, texts: tuple[str, ...]) -> dict:
        if len(texts) == 1:
            return {"vector": list(map(rounded, answer))}
        return {"similarity": rounded(answer)}


@keras.saving.register_keras_serializable("roformer_keras")
class RoFormerSentenceEncoder(TextTask):
    """Encodes texts as vectors, which are close if the texts mean the same.

    Args:
        backbone: `RoFormerBackbone`. Its pooler is used if `pooling` asks for it.
        tokenizer, max_length: as in `TextTask`.
        objective: what labels are:

            - `"cosent"`: pairs with a degree of similarity, of any range. Of two pairs
              the one with the higher degree should have the higher cosine.
            - `"classification"`: pairs with a class, its name or its number from 0 to
              `num_classes - 1`, predicted from (a, b, |a - b|) of their vectors.
            - `"contrastive"`: texts with a class. In a batch a text should be nearer
              to those of its class than to others.
        num_classes: int, for `"classification"`. If not given, that of `classes`.
        classes: sequence of str: their names, by which labels may be given.
        scale: float above 0. Factor on cosines in `cosent` and `contrastive`.
        pooling: as in `VectorTask`; or `"pooler"` for the vectors of a `RoFormerSim`,
            which its pooler gives.
        whitening_dim: int or None. Width of vectors that `fit_whitening` whitens.
        kwargs: as in `keras.Model`, such as `name`.

    Call arguments:
        inputs: as `RoFormerBackbone` takes them; the texts of a pair are neighbours.

    Returns:
        What the objective compares: cosines `(pairs,)`, logits `(pairs, num_classes)`
        or vectors `(texts, hidden_dim)`, in float32. `encode` gives vectors of any
        texts, `similarity` cosines.

    Raises:
        ConfigurationError: an argument breaks its rule, or there are classes without
            the objective `"classification"`.

    Example:
        >>> model = roformer_keras.RoFormerSentenceEncoder.from_preset("roformer-char")
        >>> pairs = [("今天天气不错", "天气真好"), ("你好", "再见")]
        >>> history = model.fit(pairs, [5, 1], verbose=0)
        >>> model.encode(["他来了", "他到了"]).shape
        (2, 192)

    Source: https://kexue.fm/archives/8847; Reimers and Gurevych 2019,
    arXiv:1908.10084; Khosla et al. 2020, arXiv:2004.11362.
    """

    files_class = SentenceEncoderFiles
    rerank = rerank

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        objective: str = "cosent",
        num_classes: int | None = None,
        classes: Sequence[str] | None = None,
        scale: float = 20.0,
        pooling: str = "mean",
        max_length: int = 512,
        whitening_dim: int | None = None,
        **kwargs: Any,
    ):
        check_choice("objective", objective, SENTENCE_OBJECTIVES)
        is_classified = objective == "classification"
        if is_classified:
            num_classes, classes = class_names(num_classes, classes, minimum=2)
        elif num_classes is not None or classes is not None:
            raise ConfigurationError(
                "num_classes and classes are for the objective 'classification', got "
                f"{objective!r}"
            )
        check_number("scale", scale, above=0)
        if pooling == "pooler":
            vectors = keras.layers.Identity(dtype="float32", name="vector")(
                _pooled_output(backbone)
            )
        else:
            vectors = TextVector(pooling, dtype="float32", name="vector")(
                sequence_of(backbone), backbone.input["token_ids"]
            )
        if objective == "cosent":
            outputs = PairCosines(dtype="float32", name="cosines")(vectors)
        elif is_classified:
            assert num_classes is not None
            features = PairFeatures(dtype="float32", name="features")(vectors)
            outputs = dense_head(backbone, num_classes, "classes")(features)
        else:
            outputs = vectors
        super().__init__(backbone, tokenizer, outputs, max_length, **kwargs)
        self._plain_vectors = vectors
        self._set_whitening(whitening_dim)
        self.objective = objective
        self.num_classes, self.classes = num_classes, classes
        self.scale, self.pooling = float(scale), pooling
        self.text_counts = SENTENCE_OBJECTIVES[objective].text_counts

    # === Training ===

    @property
    def probabilities(self) -> Callable | None:
        return ops.softmax if self.objective == "classification" else None

    def default_loss(self) -> keras.losses.Loss:
        if self.objective == "cosent":
            return CoSENT(self.scale)
        if self.objective == "contrastive":
            return SupervisedContrastive(self.scale)
        return super().default_loss()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        is_classified = self.objective == "classification"
        return super().default_metrics() if is_classified else []

    def make_rows(self, texts: list[tuple[str, ...]]) -> Rows | GroupRows:
        if len(texts[0]) == 1:
            return super().make_rows(texts)
        pairs = [[(first,), (second,)] for first, second in texts]
        return GroupRows(self.text_tokenizer(), pairs, self.max_length)

    def labelled(
        self,
        x: Texts,
        y: Texts = None,
        sample_weight: Sequence[float] | np.ndarray | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> TextData:
        # Other losses than CoSENT would take the mean before they weigh.
        refuse(
            sample_weight is not None and self.objective == "cosent",
            "CoSENT is one number a batch, in which rows have no weights: leave "
            "sample_weight out",
        )
        return super().labelled(x, y, sample_weight, *args, **kwargs)

    def class_weights(self, class_weight: Mapping) -> np.ndarray:
        if self.objective != "classification":
            return super().class_weights(class_weight)
        assert self.num_classes is not None
        return weights_by_number(class_weight, self.num_classes, self.classes)

    def make_targets(self, y: Texts, rows: Rows | None = None) -> Any:
        if self.objective == "classification":
            assert self.num_classes is not None
            options = self.num_classes, self.classes
            y = single_labels(y, self.num_classes)
            y = [class_number(label, *options, row) for row, label in enumerate(y)]
        elif self.objective == "contrastive":
            # Only which are equal counts, and float32 merges integers above 2**24.
            numbers: dict[str, int] = {}
            names = [_name(label, row) for row, label in enumerate(y)]
            y = [numbers.setdefault(name, len(numbers)) for name in names]
        return as_numbers(y)

    @property
    def _names(self):
        """Names of the classes, which are their numbers if they have none."""
        assert self.num_classes is not None
        return list(map(as_name, self.classes or range(self.num_classes)))

    # === Whitening ===

    @property
    def vector_dim(self) -> int:
        """Width of the vectors of `encode`."""
        return self.vectors.output.shape[-1]

    def fit_whitening(
        self, texts: Texts, dim: int | None = None, **kwargs: Any
    ) -> None:
        """Whitens vectors: over these texts their mean is 0, and their covariance 1.

        `encode` and `similarity` use it from then on, as do presets, exports and
        engines. No labels are needed. Training does not change it: fit it again after
        `fit`.

        Args:
            texts: as in `encode`, such as those to compare; more of them than `dim`,
                or than numbers in a vector.
            dim: int. Width of the new vectors, the directions of most variance; all
                in which they vary if not given.
            kwargs: as in `predict`.

        Raises:
            ConfigurationError: `dim` is out of range, or the vectors vary in fewer
                directions.

        Example:
            >>> encoder = roformer_keras.RoFormerSentenceEncoder.from_preset(
            ...     "roformer-char"
            ... )
            >>> encoder.fit_whitening(["今天天气不错", "她在北京", "你好"], dim=2)
            >>> encoder.encode("天气真好").shape
            (2,)

        Source: Su et al. 2021, arXiv:2103.15316.
        """
        if dim is not None:
            check_integer("dim", dim, 1, self._plain_vectors.shape[-1])
        before = self.whitening_dim
        self._set_whitening(None)
        try:
            encoded = self.encode(texts, normalize=False, **kwargs)
            vectors = np.atleast_2d(np.stack(list(encoded)))
            kernel, bias = whitening_of(vectors, dim)
        except ConfigurationError:
            self._set_whitening(before)
            raise
        self._set_whitening(len(bias))
        self.whitening.set_weights([kernel, bias])

    def _set_whitening(self, dim):
        """Makes `vectors` whitened to so many dimensions, or plain ones."""
        outputs = self._plain_vectors
        if dim is not None:
            check_integer("whitening_dim", dim, 1, outputs.shape[-1])
            layer = getattr(self, "whitening", None)
            if layer is None or layer.units != dim:
                self.whitening = keras.layers.Dense(
                    dim,
                    kernel_initializer="identity",
                    trainable=False,
                    dtype="float32",
                    name="whitening",
                )
            outputs = self.whitening(outputs)
        self.whitening_dim = dim
        self.vectors = keras.Model(self.backbone.input, outputs, name="vectors")
        if self._made_layers:
            self._made_layers.remember(self, ("vectors", "whitening"))

    # === Answering ===

    @overload
    def encode(
        self, texts: Iterator[str], *, normalize: bool = True, **kwargs: Any
    ) -> Iterator[np.ndarray]: ...

    @overload
    def encode(
        self, texts: Texts, *, normalize: bool = True, **kwargs: Any
    ) -> np.ndarray: ...

    @takes_other_names
    def encode(
        self,
        texts: Texts,
        *,
        normalize: bool = True,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> np.ndarray | Iterator[np.ndarray]:
        """A vector for each text.

        Args:
            texts: a str, texts of any container, one a row, or an iterator of them.
            normalize: bool. Whether vectors are of length 1, so that products are
                cosines.
            max_length: int. Tokens to which texts are cut; the model's if not given.
            kwargs: as in `predict`.

        Returns:
            float32 `(vector_dim,)` for a str, `(texts, vector_dim)` for many; for an
            iterator an iterator of the vectors.
        """
        if isinstance(texts, str):
            options = {"normalize": normalize, "max_length": max_length, **kwargs}
            return self.encode([texts], **options)[0]
        length = self.max_length if max_length is None else max_length
        check_integer("max_length", length, minimum=4, maximum=MAX_LENGTH)

        def collect(vectors, rows):
            vectors = np.stack(vectors)
            return unit_rows(vectors) if normalize else vectors

        return self.map_outputs(
            texts,
            lambda vectors, *_: vectors.astype("float32"),
            collect,
            model=self.vectors,
            make_rows=lambda rows: Rows(self.text_tokenizer(), rows, length),
            text_counts=(1,),
            **kwargs,
        )

    @overload
    def similarity(self, first: str, second: str, **kwargs: Any) -> float: ...

    @overload
    def similarity(
        self, first: Iterable[str], second: Iterable[str], **kwargs: Any
    ) -> np.ndarray: ...

    def similarity(
        self, first: str | Iterable[str], second: str | Iterable[str], **kwargs: Any
    ) -> float | np.ndarray:
        """The cosine of two texts, or of each pair of two lists.

        Args:
            first, second: a str each, or lists of as many texts.
            kwargs: as in `predict`.

        Returns:
            float from -1 to 1 for two str, else float32 `(pairs,)`.
        """
        return pair_cosines(lambda texts: self.encode(texts, **kwargs), first, second)


def _pooled_output(backbone):
    outputs = backbone(backbone.input)
    refuse(
        not isinstance(outputs, dict),
        "pooling='pooler' needs a backbone with a pooler, as RoFormer-Sim has it",
    )
    return outputs["pooled_output"]


def whitening_of(
    vectors: np.ndarray, dim: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The kernel `(width, dim)` and bias `(dim,)` that whiten vectors."""
    refuse(
        dim is None and len(vectors) <= vectors.shape[1],
        "whitening to all directions needs more texts than a vector has numbers, "
        f"{vectors.shape[1]}, got {len(vectors)}",
        hint="give more texts, or fewer directions, as in dim=64",
    )
    vectors = vectors.astype("float64")
    mean = vectors.mean(axis=0)
    _, values, basis = np.linalg.svd(vectors - mean, full_matrices=False)
    deviations = values / math.sqrt(max(1, len(vectors) - 1))
    # The vectors that a norm gives vary in one direction less than they are wide.
    rank = int((deviations > 1e-5 * max(deviations[0], 1e-30)).sum())
    dim = max(1, rank) if dim is None else dim
    refuse(
        rank < dim,
        f"the vectors of the texts must vary in at least dim={dim} directions, got "
        f"{rank} of {len(vectors)} texts",
        hint="give more different texts, or a smaller dim",
    )
    kernel = basis[:dim].T / deviations[:dim]
    return kernel.astype("float32"), (-mean @ kernel).astype("float32")


def _name(label, row):
    """A class as str; a number is the class that a file calls by its digits."""
    if isinstance(label, str):
        return label
    value = label.item() if hasattr(label, "item") else label
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return str(int(value) if value == int(value) else value)
    raise ConfigurationError(
        f"a class must be a str or a finite number, got {value!r:.60}", row=row
    )

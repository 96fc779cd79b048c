"""Ranks texts for a query, by a model that compares texts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.search.cosines import pair_cosines
from roformer_keras.tables.texts import check_list


def rerank(
    model: Any,
    query: str,
    texts: Sequence[str],
    top_k: int | None = None,
    label: Any = None,
    **kwargs: Any,
) -> list[tuple[int, float]]:
    """Ranks texts by how well they fit a query.

    Args:
        model: a `RoFormerTextClassifier` or `RoFormerTextRegressor` of pairs, which
            reads the query and a text together; or a model with vectors, compared by
            cosine: `RoFormerSim`, `RoFormerSentenceEncoder` or their export.
        query: str.
        texts: list of str.
        top_k: int or None. Number of returned texts; by default all.
        label: the class of a classifier whose probability is the score; by default the
            second of two classes.
        kwargs: as in `predict` or `encode`, such as `engine`.

    Returns:
        list of (number of the text, score), the best first.

    Raises:
        ConfigurationError: the model does not compare texts, or an argument breaks its
            rule.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> texts = ["学而时习之", "今天天气不错", "床前明月光"]
        >>> search.rerank(model, "天气真好", texts, top_k=1)[0][0]
        1
    """
    if top_k is not None:
        check_integer("top_k", top_k, minimum=1)
    check_list(texts)
    if not (texts := list(texts)):
        return []
    pairs = [(query, text) for text in texts]
    scores = scorer_of(model, label)(pairs, **{"verbose": 0, **kwargs})
    order = np.argsort(-np.asarray(scores), kind="stable")[:top_k]
    return [(int(number), float(scores[number])) for number in order]


def scorer_of(model: Any, label: Any = None) -> Callable[..., np.ndarray]:
    """A function from pairs of texts to float32 scores; a higher score is better."""
    refuse(
        label is not None and not hasattr(model, "classify"),
        f"label is for classifiers, got a {type(model).__name__}",
    )
    if hasattr(model, "encode"):
        return lambda pairs, **kwargs: pair_cosines(
            lambda texts: model.encode(texts, **kwargs), *zip(*pairs, strict=True)
        )
    refuse(
        not ranks_pairs(model),
        "texts are ranked by a classifier or a regressor of pairs, without "
        f"multi_label, or by a model with vectors, got a {type(model).__name__}",
    )
    if hasattr(model, "regress"):
        return model.regress
    number = _class_number(model, label)
    return lambda pairs, **kwargs: model.classify(pairs, probabilities=True, **kwargs)[
        :, number
    ]


def ranks_pairs(model: Any) -> bool:
    """True if a model scores a query and a text that it reads together."""
    return 2 in getattr(model, "text_counts", ()) and (
        hasattr(model, "regress")
        or (hasattr(model, "classify") and not getattr(model, "multi_label", False))
    )


def _class_number(model, label):
    """The number of the class whose probability is the score."""
    names = list(model.classes or range(model.num_classes))
    if label is None:
        if len(names) != 2:
            raise ConfigurationError(
                f"a classifier of {len(names)} classes needs the label whose "
                f"probability is the score: one of {', '.join(map(str, names))}"
            )
        return 1
    for number, name in enumerate(names):
        if label in (name, str(name)):
            return number
    raise ConfigurationError(
        f"label must be one of {', '.join(map(str, names))}, got {label!r:.80}"
    )

"""Cosines of vectors of texts."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from roformer_keras.base.checks import check_iterable
from roformer_keras.base.errors import refuse
from roformer_keras.tables.texts import as_texts


def pair_cosines(
    encode: Callable, first: str | Iterable[str], second: str | Iterable[str]
) -> Any:
    """The cosine of two texts, or of each pair of two lists.

    Args:
        encode: function from a list of texts to vectors of length 1. Repeated texts are
            encoded once.
        first, second: two str, or two lists of equally many texts.

    Returns:
        float from -1 to 1 for two str, else float32 `(pairs,)`.

    Raises:
        ConfigurationError: a text is empty, or it is not clear which texts to compare.
    """
    if isinstance(first, str) and isinstance(second, str):
        return float(pair_cosines(encode, [first], [second])[0])
    refuse(
        isinstance(first, str) or isinstance(second, str),
        "similarity takes two texts or two lists of texts, got one of each",
    )
    check_iterable("texts to compare", first, "a text or a list of texts")
    check_iterable("texts to compare", second, "a text or a list of texts")
    first, second = list(first), list(second)
    if not first and not second:
        return np.zeros(0, "float32")
    sides = list(zip(*as_texts((first, second), (2,)), strict=True))
    texts = list(dict.fromkeys(text for side in sides for text in side))
    rows = {text: row for row, text in enumerate(texts)}
    vectors = encode(texts)
    first_vectors, second_vectors = (
        vectors[[rows[text] for text in side]] for side in sides
    )
    return np.sum(first_vectors * second_vectors, axis=1)


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Divides each row by its length; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo("float32").tiny)

"""Vectors of texts by any function from ids to vectors, and their cosines."""

from collections.abc import Callable, Iterable, Iterator
from typing import overload

import numpy as np

from roformer_keras.checks import check_iterable
from roformer_keras.data.rows import Rows, map_rows
from roformer_keras.data.tables import (
    TextRows,
    column_names,
    is_table,
    plain,
    text_columns,
)
from roformer_keras.data.texts import as_texts, check_no_mapping
from roformer_keras.errors import ConfigurationError
from roformer_keras.types import Texts, Verbose


def embed_rows(
    vectors_of: Callable[[dict[str, np.ndarray]], np.ndarray],
    tokenizer,
    texts: Texts,
    *,
    dim: int,
    max_length: int,
    verbose: Verbose,
    batch_tokens: int,
) -> np.ndarray | Iterator[np.ndarray]:
    """One vector a text, as `models.embedding.embed` gives them.

    Args:
        vectors_of: function from the inputs of a backbone to float32 `(rows, dim)`.
        texts: a str, texts of any container or a table of them, or an iterator.
        dim: int. Width of a vector.

    Raises:
        ConfigurationError: a text is no str, or a table has no column of texts.
    """
    embedded = map_rows(
        [texts] if isinstance(texts, str) else _one_column(texts),
        lambda texts: Rows(tokenizer, [(text,) for text in texts], max_length),
        lambda rows, numbers: vectors_of(rows.batch(numbers)),
        lambda vectors, _: np.stack(vectors),
        batch_tokens=batch_tokens,
        verbose=verbose,
    )
    if isinstance(texts, str):
        return embedded[0]
    return np.zeros((0, dim), "float32") if isinstance(embedded, list) else embedded


def _one_column(texts):
    """The texts of a table or a column; other containers unchanged."""
    if is_table(texts):
        rows = TextRows(texts, text_columns(column_names(texts), (1,)))
        column = (text for (text,) in rows)
        # A dataset without a length is a stream.
        return list(column) if hasattr(texts, "__len__") else column
    check_no_mapping(texts)
    check_iterable("texts", texts, "a text or a list of texts")
    return plain(texts)


@overload
def pair_cosines(  # type: ignore[overload-overlap]  # A str is an iterable of str.
    encode: Callable, first: str, second: str
) -> float: ...


@overload
def pair_cosines(
    encode: Callable, first: Iterable[str], second: Iterable[str]
) -> np.ndarray: ...


def pair_cosines(
    encode: Callable, first: str | Iterable[str], second: str | Iterable[str]
) -> float | np.ndarray:
    """The cosine of two texts, or of each pair of two lists.

    Args:
        encode: function from a list of texts to vectors of length 1. Texts that come
            again are encoded once.
        first, second: a str each, or lists of as many texts.

    Returns:
        float from -1 to 1 for two str, else float32 `(pairs,)`.

    Raises:
        ConfigurationError: a text is empty, or it is not clear which to compare.
    """
    if isinstance(first, str) and isinstance(second, str):
        return float(pair_cosines(encode, [first], [second])[0])
    if isinstance(first, str) or isinstance(second, str):
        raise ConfigurationError(
            "similarity takes two texts or two lists of texts, got one of each"
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
    """Each row divided by its length; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo("float32").tiny)

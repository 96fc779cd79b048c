"""Vectors of texts, by any function from ids to vectors."""

from collections.abc import Callable, Iterator

import numpy as np

from roformer_keras.base.checks import check_iterable
from roformer_keras.base.types import Texts, Verbose
from roformer_keras.tables.memory import (
    TextRows,
    column_names,
    is_table,
    plain,
    text_columns,
)
from roformer_keras.tables.texts import check_no_mapping
from roformer_keras.text.rows import Rows, map_rows


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
    """The vector of each text, as `models.embedding.embed` returns it."""
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
    """The texts in a table or a column; other containers unchanged."""
    if is_table(texts):
        rows = TextRows(texts, text_columns(column_names(texts), (1,)))
        column = (text for (text,) in rows)
        # A dataset without a length is a stream.
        return list(column) if hasattr(texts, "__len__") else column
    check_no_mapping(texts)
    check_iterable("texts", texts, "a text or a list of texts")
    return plain(texts)

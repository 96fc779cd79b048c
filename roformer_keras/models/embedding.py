"""Vectors of texts, of any number of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

import numpy as np

from roformer_keras.data.rows import (
    TOKENS_PER_BATCH,
    by_length,
    padded,
    windows,
)
from roformer_keras.models.forward import run_model
from roformer_keras.progress import progress_bar
from roformer_keras.text.matching import check_match


def embed(
    model,
    tokenizer,
    texts: str | Sequence[str] | Iterable[str],
    max_length: int = 512,
    normalize: bool = True,
    verbose: int | str = "auto",
    batch_tokens: int = TOKENS_PER_BATCH,
) -> np.ndarray | Iterator[np.ndarray]:
    """One vector a text: the pooled output, or else the first position's.

    Of a model with a head only the backbone runs. Texts are computed in batches of
    similar length, while the next are tokenized, and returned in their own order.

    Args:
        model: any model of this package; in `RoFormerSim` the vectors are trained.
        tokenizer: `RoFormerTokenizer` of the same vocabulary.
        texts: a str, a sequence of them, or an iterator, which need not fit into
            memory: some 2,000 texts are read from it at a time.
        max_length: int. Longer texts are cut to as many tokens.
        normalize: bool. Whether vectors have length 1, so that products are cosines.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.
        batch_tokens: int. Maximum tokens of a batch, padding included.

    Returns:
        float32 `(hidden_dim,)` for a str, `(len(texts), hidden_dim)` for a sequence;
        for an iterator an iterator of the vectors.

    Raises:
        ConfigurationError: tokenizer and model do not match.
    """
    check_match(model, tokenizer)
    backbone = getattr(model, "backbone", model)

    def vectors_of(rows):
        outputs = run_model(backbone, padded(rows))
        pooled = outputs["pooled_output"] if isinstance(outputs, dict) else None
        vectors = outputs[:, 0] if pooled is None else pooled
        vectors = vectors.astype("float32")
        return unit_rows(vectors) if normalize else vectors

    return embed_rows(
        vectors_of,
        tokenizer,
        texts,
        dim=model.config.hidden_dim,
        max_length=max_length,
        verbose=verbose,
        batch_tokens=batch_tokens,
    )


def embed_rows(
    vectors_of: Callable[[Sequence[Sequence[int]]], np.ndarray],
    tokenizer,
    texts: str | Sequence[str] | Iterable[str],
    *,
    dim: int,
    max_length: int,
    verbose: int | str,
    batch_tokens: int,
) -> np.ndarray | Iterator[np.ndarray]:
    """`embed` for any function that maps rows of ids to vectors.

    Args:
        vectors_of: function from a list of rows to float32 `(rows, dim)`.
        dim: int. Width of a vector.
    """

    def tokenized(texts):
        return [tokenizer.encode(text, max_length=max_length)[0] for text in texts]

    if isinstance(texts, str):
        return vectors_of(tokenized([texts]))[0]

    def each_window():
        total = len(texts) if isinstance(texts, Sized) else None
        with progress_bar(verbose, total=total, desc="texts") as bar:
            for rows in windows(texts, tokenized):
                vectors = np.zeros((len(rows), dim), "float32")
                for batch in by_length([len(row) for row in rows], batch_tokens):
                    vectors[batch] = vectors_of([rows[number] for number in batch])
                    bar.update(len(batch))
                yield vectors

    if isinstance(texts, Iterator):
        return (vector for vectors in each_window() for vector in vectors)
    return np.concatenate([np.zeros((0, dim), "float32"), *each_window()])


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its length; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo("float32").tiny)

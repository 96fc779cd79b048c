"""Vectors of texts, of any number of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from roformer_keras.data.rows import TOKENS_PER_BATCH, Rows, map_rows
from roformer_keras.data.texts import as_texts
from roformer_keras.errors import ConfigurationError
from roformer_keras.models.forward import run_model
from roformer_keras.text.matching import check_match
from roformer_keras.types import Verbose


def embed(
    model,
    tokenizer,
    texts: str | Sequence[str] | Iterable[str],
    max_length: int = 512,
    normalize: bool = True,
    verbose: Verbose = "auto",
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

    def vectors_of(inputs):
        outputs = run_model(backbone, inputs)
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
    vectors_of: Callable[[dict[str, np.ndarray]], np.ndarray],
    tokenizer,
    texts: str | Sequence[str] | Iterable[str],
    *,
    dim: int,
    max_length: int,
    verbose: Verbose,
    batch_tokens: int,
) -> np.ndarray | Iterator[np.ndarray]:
    """`embed` for any function that maps ids to vectors.

    Args:
        vectors_of: function from the inputs of a backbone to float32 `(rows, dim)`.
        dim: int. Width of a vector.
    """
    found = map_rows(
        [texts] if isinstance(texts, str) else texts,
        lambda texts: Rows(tokenizer, [(text,) for text in texts], max_length),
        lambda rows, numbers: vectors_of(rows.batch(numbers)),
        lambda vectors, _: np.stack(vectors),
        batch_tokens=batch_tokens,
        verbose=verbose,
    )
    if isinstance(texts, str):
        return found[0]
    return np.zeros((0, dim), "float32") if isinstance(found, list) else found


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
    first, second = list(first), list(second)
    if not first and not second:
        return np.zeros(0, "float32")
    sides = list(zip(*as_texts((first, second), (2,)), strict=True))
    texts = list(dict.fromkeys(text for side in sides for text in side))
    rows = {text: row for row, text in enumerate(texts)}
    vectors = encode(texts)
    one, other = (vectors[[rows[text] for text in side]] for side in sides)
    return np.sum(one * other, axis=1)


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its length; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo("float32").tiny)

"""The nearest vectors, by all cosines."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from roformer_keras.base.checks import check_integer, check_number
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.extras import import_extra, is_installed

# Maximal cosines that NumPy computes at a time (16 MiB), vectors of a corpus that are
# normalized at a time, and rows of a block of pairs.
_COSINES, _BLOCK, _ROWS = 2**22, 2**16, 2048
# Rounding error of the product of equal vectors of length 1.
_ROUNDING = 1e-6


class Neighbours(NamedTuple):
    """The nearest vectors of a corpus for each query, the nearest first.

    Attributes:
        numbers: int64 `(queries, k)`. Their rows in the corpus.
        scores: float32 `(queries, k)`. Cosines.

    Example:
        >>> nearest = search.semantic_search([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]])
        >>> nearest.numbers.tolist(), nearest.scores.tolist()
        ([[1, 0]], [[1.0, 0.0]])
    """

    numbers: np.ndarray
    scores: np.ndarray


class Pairs(NamedTuple):
    """Pairs of similar vectors, the nearest first.

    Attributes:
        first, second: int64 `(pairs,)`. Their rows; the first row is the lower one.
        scores: float32 `(pairs,)`. Cosines.

    Example:
        >>> pairs = search.paraphrase_mining([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
        >>> pairs.first.tolist(), pairs.second.tolist(), pairs.scores.tolist()
        ([0], [2], [1.0])
    """

    first: np.ndarray
    second: np.ndarray
    scores: np.ndarray


def semantic_search(queries: Any, corpus: Any, top_k: int = 10) -> Neighbours:
    """The nearest vectors of a corpus for each query, by cosine.

    The search is exact: all cosines are computed, one block at a time to save memory.
    FAISS computes them if it is installed.

    Args:
        queries: float `(queries, dim)`, or `(dim,)` for one query.
        corpus: float `(texts, dim)`, which may be a memory map.
        top_k: int. Neighbours of a query; the corpus may have fewer texts.

    Returns:
        `Neighbours`, with arrays `(k,)` for one query.

    Raises:
        ConfigurationError: the arrays do not match, or a value is not finite.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> corpus = model.encode(["今天天气不错", "学而时习之", "床前明月光"])
        >>> nearest = search.semantic_search(model.encode("天气真好"), corpus, top_k=1)
        >>> nearest.numbers.tolist()
        [0]
    """
    check_integer("top_k", top_k, minimum=1)
    if np.ndim(queries) == 1:
        neighbours = semantic_search(np.asarray(queries)[None], corpus, top_k)
        return Neighbours(neighbours.numbers[0], neighbours.scores[0])
    corpus, queries = _vectors("corpus", corpus), unit_vectors("queries", queries)
    blocks = [
        nearest_of_unit(queries, block, top_k, at)
        for at, block in _blocks(corpus, _BLOCK)
    ]
    numbers, scores = (
        np.concatenate(arrays, 1) for arrays in zip(*blocks, strict=True)
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return Neighbours(
        np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)
    )


def nearest_of_unit(
    queries: np.ndarray, corpus: np.ndarray, top_k: int, first_row: int = 0
) -> Neighbours:
    """`semantic_search` among vectors of length 1, by FAISS if it is installed."""
    if queries.shape[1] != corpus.shape[1]:
        raise ConfigurationError(
            "queries and the corpus must have vectors of one width, got "
            f"{queries.shape[1]} and {corpus.shape[1]}"
        )
    count = min(top_k, len(corpus))
    if is_installed("faiss"):
        faiss = import_extra("faiss", "exact search")
        metric = faiss.METRIC_INNER_PRODUCT
        scores, numbers = faiss.knn(queries, corpus, count, metric=metric)
        return Neighbours(numbers + first_row, scores)
    numbers = np.empty((len(queries), count), "int64")
    scores = np.empty((len(queries), count), "float32")
    height = max(1, _COSINES // len(corpus))
    for start in range(0, len(queries), height):
        rows = slice(start, start + height)
        cosines = queries[rows] @ corpus.T
        best = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(cosines, best, 1)
        order = np.argsort(-values, axis=1)
        numbers[rows] = np.take_along_axis(best, order, 1) + first_row
        scores[rows] = np.take_along_axis(values, order, 1)
    return Neighbours(numbers, scores)


def paraphrase_mining(
    vectors: Any, threshold: float = 0.8, max_pairs: int = 500_000
) -> Pairs:
    """All pairs of vectors whose cosine is at least a threshold.

    Args:
        vectors: float `(texts, dim)`, which may be a memory map.
        threshold: float from -1 to 1.
        max_pairs: int. The nearest pairs are kept if there are more.

    Returns:
        `Pairs`, the nearest first.

    Raises:
        ConfigurationError: an argument breaks its rule, or a value is not finite.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> vectors = model.encode(["今天天气不错", "床前明月光", "今天天气真不错"])
        >>> first, second, scores = search.paraphrase_mining(vectors)
        >>> first.tolist(), second.tolist()
        ([0], [2])
    """
    check_number("threshold", threshold, minimum=-1, maximum=1)
    check_integer("max_pairs", max_pairs, minimum=1)
    vectors = _vectors("vectors", vectors)
    pairs = Pairs(np.zeros(0, "int64"), np.zeros(0, "int64"), np.zeros(0, "float32"))
    minimum = threshold - _ROUNDING
    for start, some in _blocks(vectors, _ROWS):
        for at, others in _blocks(vectors, _ROWS, start):
            scores = some @ others.T
            if at == start:
                # Each pair counts once, and a vector forms no pair with itself.
                scores[np.tril_indices(len(scores))] = -np.inf
            rows, columns = _where(scores >= minimum)
            new = Pairs(rows + start, columns + at, scores[rows, columns])
            pairs = Pairs(*map(np.concatenate, zip(pairs, new, strict=True)))
            if len(pairs.first) > 2 * max_pairs:
                pairs = _nearest(pairs, max_pairs)
                minimum = max(minimum, float(pairs.scores[-1]))
    return _nearest(pairs, max_pairs)


def _nearest(pairs, count):
    order = np.lexsort((pairs.second, pairs.first, -pairs.scores))[:count]
    return Pairs(pairs.first[order], pairs.second[order], pairs.scores[order])


def cluster(
    vectors: Any, threshold: float = 0.85, min_size: int = 2
) -> list[np.ndarray]:
    """Groups of vectors that are near a common centre, such as duplicates.

    The vector with the most neighbours is the centre of the first group, and its
    neighbours are the other members; the next group comes from the remaining vectors.
    So no group is a long chain.

    Args:
        vectors: float `(texts, dim)`, which may be a memory map.
        threshold: float from -1 to 1. Minimal cosine to the centre.
        min_size: int. Smaller groups are left out.

    Returns:
        list of int64 arrays: the rows of each group, the largest group first. Its
        centre comes first, then the others by their rows.

    Raises:
        ConfigurationError: an argument breaks its rule, or a value is not finite.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> vectors = model.encode(["今天天气不错", "床前明月光", "今天天气真不错"])
        >>> [group.tolist() for group in search.cluster(vectors, 0.8)]
        [[0, 2]]
    """
    check_number("threshold", threshold, minimum=-1, maximum=1)
    check_integer("min_size", min_size, minimum=1)
    vectors, minimum = _vectors("vectors", vectors), threshold - _ROUNDING
    counts = np.zeros(len(vectors), "int64")
    for start, some in _blocks(vectors, _ROWS):
        for _, others in _blocks(vectors, _ROWS):
            near = (some @ others.T) >= minimum
            counts[start : start + len(some)] += near.sum(axis=1)
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= min_size]
    is_free, groups = np.ones(len(vectors), bool), []
    while len(order):
        centres, order = order[:_ROWS], order[_ROWS:]
        near = _near_rows(vectors, centres, np.flatnonzero(is_free), minimum)
        for centre, rows in zip(centres, near, strict=True):
            if not is_free[centre]:
                continue
            group = rows[is_free[rows] & (rows != centre)]
            group = np.concatenate([[centre], group])
            if len(group) >= min_size:
                is_free[group] = False
                groups.append(group)
        order = order[is_free[order]]
    return sorted(groups, key=lambda group: -len(group))


def _near_rows(vectors, centres, rows, minimum):
    """The rows that are near each centre."""
    centre_vectors = unit_vectors("vectors", vectors[centres])
    near_rows: list[list] = [[] for _ in centres]
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        near = (centre_vectors @ unit_vectors("vectors", vectors[block]).T) >= minimum
        for number, row in enumerate(near):
            near_rows[number].append(block[row])
    return [
        np.concatenate(row_blocks) if row_blocks else rows[:0]
        for row_blocks in near_rows
    ]


def _where(mask):
    """Computes `numpy.nonzero` of a matrix in a tenth of the time."""
    return np.divmod(np.flatnonzero(mask), mask.shape[1])


def _blocks(vectors, size, start=0) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the first row of each block, and the block's vectors with length 1."""
    for at in range(start, len(vectors), size):
        yield at, unit_vectors("vectors", vectors[at : at + size])


def unit_vectors(what: str, vectors: Any) -> np.ndarray:
    """Vectors as float32 `(texts, dim)` of length 1; zeros stay zeros."""
    vectors = _vectors(what, vectors)
    return vectors / vector_lengths(what, vectors)[:, None]


def vector_lengths(what: str, vectors: np.ndarray) -> np.ndarray:
    """The length of each vector, or a tiny number; all must be finite."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    refuse(
        not np.isfinite(lengths).all(),
        f"{what} must be finite, got nan or infinity",
    )
    return np.maximum(lengths, np.finfo("float32").tiny)


def _vectors(what, vectors):
    """Vectors as float32; a memory map stays a memory map."""
    if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32:
        try:
            vectors = np.asarray(vectors, "float32")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{what} must be vectors of numbers, got {type(vectors).__name__}"
            ) from error
    refuse(
        vectors.ndim != 2 or not vectors.shape[1],
        f"{what} must be of the shape (texts, dim), got {vectors.shape}",
    )
    return vectors

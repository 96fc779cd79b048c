"""The nearest vectors, exactly: products of blocks, of which the best are kept."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from roformer_keras.checks import check_integer, check_number
from roformer_keras.errors import ConfigurationError

# Cosines that are computed at a time, 16 MiB of them, and rows of a block.
_COSINES, _ROWS = 2**22, 2048
# Products of equal vectors of length 1 are 1 but for this.
_ROUNDING = 1e-6


class Neighbours(NamedTuple):
    """The vectors of a corpus that are nearest to queries, the nearest first.

    Attributes:
        numbers: int64 `(queries, k)`. Their rows in the corpus.
        scores: float32 `(queries, k)`. Cosines.

    Example:
        >>> found = search.semantic_search([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0]])
        >>> found.numbers.tolist(), found.scores.tolist()
        ([[1, 0]], [[1.0, 0.0]])
    """

    numbers: np.ndarray
    scores: np.ndarray


class Pairs(NamedTuple):
    """Pairs of vectors that are near to each other, the nearest first.

    Attributes:
        first, second: int64 `(pairs,)`. Their rows; the first is the lower one.
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
    """The vectors of a corpus that are nearest to each query, by their cosines.

    All cosines are computed, a block at a time, so that nothing is missed and memory is
    small. Of equal cosines the lower row comes first.

    Args:
        queries: float `(queries, dim)`, or `(dim,)` for one.
        corpus: float `(texts, dim)`, which may be a memory map.
        top_k: int. Neighbours of a query, at most as many as there are texts.

    Returns:
        `Neighbours`, of arrays `(k,)` for one query.

    Raises:
        ConfigurationError: the arrays do not fit together, or a value is not finite.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> corpus = model.encode(["今天天气不错", "学而时习之", "床前明月光"])
        >>> found = search.semantic_search(model.encode("天气真好"), corpus, top_k=1)
        >>> found.numbers.tolist()
        [0]
    """
    return nearest(queries, corpus, top_k)


def nearest(
    queries: Any, corpus: Any, top_k: int, lengths: np.ndarray | None = None
) -> Neighbours:
    """`semantic_search` in a corpus whose `vector_lengths` may be known."""
    check_integer("top_k", top_k, minimum=1)
    if np.ndim(queries) == 1:
        neighbours = nearest(np.asarray(queries)[None], corpus, top_k, lengths)
        return Neighbours(neighbours.numbers[0], neighbours.scores[0])
    corpus, queries = _vectors("corpus", corpus), unit_vectors("queries", queries)
    if queries.shape[1] != corpus.shape[1]:
        raise ConfigurationError(
            "queries and the corpus must have vectors of one width, got "
            f"{queries.shape[1]} and {corpus.shape[1]}"
        )
    best = _Best(len(queries), min(top_k, len(corpus)))
    height = max(1, min(len(queries), _ROWS))
    width = max(best.count, _COSINES // height)
    for at in range(0, len(corpus), width):
        # To divide the products takes less than to divide the vectors.
        block = corpus[at : at + width]
        if lengths is None:
            divisors = vector_lengths("corpus", block)
        else:
            divisors = lengths[at : at + width]
        for start in range(0, len(queries), height):
            cosines = queries[start : start + height] @ block.T
            cosines /= divisors
            best.add(start, at, cosines)
    return Neighbours(best.numbers, best.scores)


class _Best:
    """The best cosines of each query so far."""

    def __init__(self, queries, count):
        self.count = count
        self.numbers = np.full((queries, count), -1, "int64")
        self.scores = np.full((queries, count), -np.inf, "float32")

    def add(self, query, row, scores):
        """Adds the cosines of some queries and of the next rows of the corpus."""
        if not self.count:
            return
        part = slice(query, query + len(scores))
        if row == 0:
            # So that few have to be sorted.
            at = scores.shape[1] - self.count
            minimum = np.partition(scores, at, axis=1)[:, at : at + 1]
            better = _where(scores >= minimum)
        else:
            # A later row comes after an equal one.
            better = _where(scores > self.scores[part, -1:])
        queries, rows = better
        old = np.repeat(np.arange(len(scores)), self.count)
        owner = np.concatenate([old, queries])
        value = np.concatenate([self.scores[part].ravel(), scores[better]])
        number = np.concatenate([self.numbers[part].ravel(), rows + row])
        order = np.lexsort((number, -value, owner))
        # Where each query begins, of which the first `count` are kept.
        starts = np.searchsorted(owner[order], np.arange(len(scores)))
        kept = order[starts[:, None] + np.arange(self.count)]
        self.scores[part], self.numbers[part] = value[kept], number[kept]


def paraphrase_mining(
    vectors: Any, threshold: float = 0.8, max_pairs: int = 500_000
) -> Pairs:
    """All pairs of vectors whose cosine is at least a threshold.

    Args:
        vectors: float `(texts, dim)`, which may be a memory map.
        threshold: float from -1 to 1.
        max_pairs: int. Of more pairs, the nearest are kept.

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
                # Each pair once, and none of a vector with itself.
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
    """Groups of vectors that are near to one of the group, such as duplicates.

    The vector with the most others near it, and all of them, are the first group; the
    next is found among the rest. So no group is a long chain.

    Args:
        vectors: float `(texts, dim)`, which may be a memory map.
        threshold: float from -1 to 1. The cosine to the first of a group.
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
    """The rows among some that are near to each centre."""
    some = unit_vectors("vectors", vectors[centres])
    near_rows: list[list] = [[] for _ in centres]
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        near = (some @ unit_vectors("vectors", vectors[block]).T) >= minimum
        for number, row in enumerate(near):
            near_rows[number].append(block[row])
    return [np.concatenate(parts) if parts else rows[:0] for parts in near_rows]


def _where(mask):
    """As `numpy.nonzero` of a matrix, in a tenth of the time."""
    return np.divmod(np.flatnonzero(mask), mask.shape[1])


def _blocks(vectors, size, start=0) -> Iterator[tuple[int, np.ndarray]]:
    """Pairs of the first row of a block, and its vectors, of length 1."""
    for at in range(start, len(vectors), size):
        yield at, unit_vectors("vectors", vectors[at : at + size])


def unit_vectors(what: str, vectors: Any) -> np.ndarray:
    """Vectors as float32 `(texts, dim)` of length 1; zeros stay.

    Raises:
        ConfigurationError: they are no vectors, or not finite; `what` names them.
    """
    vectors = _vectors(what, vectors)
    return vectors / vector_lengths(what, vectors)[:, None]


def vector_lengths(what: str, vectors: np.ndarray) -> np.ndarray:
    """The length of each vector, or a tiny number; all must be finite."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    if not np.isfinite(lengths).all():
        raise ConfigurationError(f"{what} must be finite, got nan or infinity")
    return np.maximum(lengths, np.finfo("float32").tiny)


def _vectors(what, vectors):
    """Vectors as float32; a memory map stays one."""
    if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32:
        try:
            vectors = np.asarray(vectors, "float32")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{what} must be vectors of numbers, got {type(vectors).__name__}"
            ) from error
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise ConfigurationError(
            f"{what} must be of the shape (texts, dim), got {vectors.shape}"
        )
    return vectors

"""Rows of a vocabulary that are kept, and rows that are the mean of others."""

import numpy as np

from roformer_keras.base.checks import check_iterable, is_integer
from roformer_keras.base.errors import ConfigurationError, refuse


class KeptTokens:
    """The rows of the embedding and of the output bias that a model takes."""

    def __init__(self, vocabulary_size, keep_tokens, compound_tokens):
        for name, tokens in (
            ("keep_tokens", keep_tokens),
            ("compound_tokens", compound_tokens),
        ):
            if tokens is not None:
                check_iterable(name, tokens, "a list")
        self.keep_tokens = None if keep_tokens is None else list(keep_tokens)
        count = vocabulary_size if keep_tokens is None else len(self.keep_tokens)
        _check_ids("keep_tokens", self.keep_tokens or [], vocabulary_size)
        self.compounds = []
        for compound in compound_tokens or ():
            ids, weights = _ids_and_weights(compound)
            _check_ids("compound_tokens", ids, count)
            self.compounds.append((ids, weights))
        self.count = count + len(self.compounds)
        refuse(
            self.count == 0,
            "keep_tokens must name at least one token",
        )

    def rows_of(self, table: np.ndarray) -> np.ndarray:
        """`(vocabulary, ...)` to `(count, ...)`."""
        if self.keep_tokens is not None:
            table = table[self.keep_tokens]
        if not self.compounds:
            return table
        means = [
            np.average(table[ids].astype("float64"), axis=0, weights=weights)
            for ids, weights in self.compounds
        ]
        return np.concatenate([table, np.asarray(means, dtype=table.dtype)])


def _ids_and_weights(compound):
    try:
        ids, weights = (
            compound if isinstance(compound, tuple) else (compound, [1] * len(compound))
        )
        if len(ids) == len(weights) and sum(weights) != 0:
            return list(ids), list(weights)
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(
        "a compound token must be a list of ids, or a pair of ids and as many weights "
        f"that do not sum to zero, got {compound!r}"
    )


def _check_ids(name, ids, limit):
    wrong = [i for i in ids if not is_integer(i) or not 0 <= i < limit]
    if wrong:
        raise ConfigurationError(
            f"{name} must be ids from 0 to {limit - 1}, got {wrong[0]!r}"
        )

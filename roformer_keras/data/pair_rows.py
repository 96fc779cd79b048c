"""Pairs of texts to the rows that an encoder-decoder learns from."""

import warnings
from collections.abc import Sequence

import numpy as np

from roformer_keras.checks import check_integer
from roformer_keras.data.rows import padded_width
from roformer_keras.errors import ConfigurationError
from roformer_keras.text.tokenizer import RoFormerTokenizer

__all__ = ["PairRows", "as_pairs", "teacher_forcing"]


def as_pairs(sources: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of texts, checked.

    Raises:
        ConfigurationError: they are not equally many, or one is no text.
    """
    if targets is None:
        raise ConfigurationError("sources to learn from need targets: give y")
    for texts in (sources, targets):
        if isinstance(texts, str):
            raise ConfigurationError(
                f"texts must be a list of str, got one: [{texts!r:.40}]"
            )
    sources, targets = list(sources), list(targets)
    if len(sources) != len(targets) or not sources:
        raise ConfigurationError(
            f"there must be a target for each source, and at least one, got "
            f"{len(sources)} sources and {len(targets)} targets"
        )
    pairs = list(zip(sources, targets, strict=True))
    for number, pair in enumerate(pairs):
        for text in pair:
            if not isinstance(text, str) or not text.strip():
                raise ConfigurationError(
                    f"a text must be a str that is not empty, got {text!r} in pair "
                    f"{number}"
                )
    return pairs


def teacher_forcing(
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    tokenizer: RoFormerTokenizer,
    more: int | Sequence[int] = 0,
) -> tuple[dict, np.ndarray, np.ndarray]:
    """What `fit` takes as a batch: each token of a target is told from those before.

    Args:
        sources, targets: int `(tokens,)` each, without specials around them.
        tokenizer: of both.
        more: int. Columns of padding besides, or those of either side.

    Returns:
        Inputs of `RoFormerSeq2Seq`; targets int32 `(rows, target_length)`, each text
        with `[SEP]` behind it; and their weights, float32 of the same shape.
    """
    longest = [max(map(len, sources)) + 2, max(map(len, targets)) + 1]
    widths = [padded_width(int(width)) for width in np.add(longest, more)]
    encoder, decoder = (np.zeros((len(sources), width), "int32") for width in widths)
    expected, weights = np.zeros_like(decoder), np.zeros(decoder.shape, "float32")
    encoder[:, 0] = decoder[:, 0] = tokenizer.cls_id
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        encoder[row, 1 : 1 + len(source)] = source
        encoder[row, 1 + len(source)] = tokenizer.sep_id
        decoder[row, 1 : 1 + len(target)] = target
        expected[row, : len(target)] = target
        expected[row, len(target)] = tokenizer.sep_id
        weights[row, : 1 + len(target)] = 1
    inputs = {"encoder_token_ids": encoder, "decoder_token_ids": decoder}
    return inputs, expected, weights


class PairRows:
    """Tokenized pairs, of which those that are too long are left out, with a warning.

    Args:
        tokenizer: `RoFormerTokenizer`.
        pairs: of `as_pairs`.
        max_length: int, at least 3. Most tokens of a text, with `[CLS]` and `[SEP]`.

    Attributes:
        lengths: int64 `(rows, 2)`. Tokens of both texts of each pair.

    Raises:
        ConfigurationError: none is short enough, or `max_length` breaks its rule.
    """

    def __init__(self, tokenizer, pairs, max_length: int):
        check_integer("max_length", max_length, minimum=3)
        self._tokenizer = tokenizer
        rows = [
            tuple(np.array(tokenizer.encode(text)[0][1:-1], "int32") for text in pair)
            for pair in pairs
        ]
        self._rows = [row for row in rows if max(map(len, row)) <= max_length - 2]
        if not self._rows:
            raise ConfigurationError(
                f"a pair must have at most max_length={max_length} tokens a text, none "
                f"of {len(rows)} has: raise max_length"
            )
        left_out = len(rows) - len(self._rows)
        if left_out:
            warnings.warn(
                f"{left_out:,} of {len(rows):,} pairs are left out: a text has more "
                f"than max_length={max_length} tokens",
                stacklevel=5,
            )
        self.lengths = np.array([list(map(len, row)) for row in self._rows], "int64")

    def __len__(self):
        return len(self._rows)

    def batch(self, numbers: Sequence[int], more=0) -> tuple:
        """Some pairs, as `teacher_forcing` makes a batch of them."""
        sources, targets = zip(*(self._rows[number] for number in numbers), strict=True)
        return teacher_forcing(sources, targets, self._tokenizer, more)

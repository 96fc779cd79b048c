"""From texts to vectors and to filled masks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np
from tqdm import tqdm

from roformer_keras.config import is_integer
from roformer_keras.errors import ConfigurationError

__all__ = ["MaskCandidate", "check_vocabulary", "embed", "fill_mask"]

_POSITIONS_PER_BATCH = 4096


@dataclass(frozen=True)
class MaskCandidate:
    """One token for one mask.

    Attributes:
        token: str.
        token_id: int.
        probability: float, of the token at this mask, the other masks left masked.
    """

    token: str
    token_id: int
    probability: float


def embed(
    model,
    tokenizer,
    texts: Sequence[str],
    max_length: int = 512,
    normalize: bool = True,
    progress: bool = True,
) -> np.ndarray:
    """One vector a text: the pooled output, or else the first position's.

    Of a model with a head only the backbone runs. Texts are computed in batches of
    similar length, and returned in their own order.

    Args:
        model: any model of this package; in `RoFormerSim` the vectors are trained.
        tokenizer: `RoFormerTokenizer` of the same vocabulary.
        texts: sequence of str.
        max_length: int. Longer texts are cut to as many tokens.
        normalize: bool. Whether vectors have length 1, so that products are cosines.
        progress: bool. Whether a progress bar is shown.

    Returns:
        float32 `(len(texts), hidden_dim)`.

    Raises:
        ConfigurationError: `texts` is one str, or tokenizer and model do not match.
    """
    _check_match(model, tokenizer)
    if isinstance(texts, str):
        raise ConfigurationError("texts must be a list of str; put one text in a list")
    backbone = getattr(model, "backbone", model)
    rows = [tokenizer.encode(text, max_length=max_length)[0] for text in texts]
    vectors = np.zeros((len(rows), model.config.hidden_dim), "float32")
    with tqdm(total=len(rows), desc="texts", disable=not progress) as bar:
        for batch in _batches([len(row) for row in rows]):
            outputs = _outputs(backbone, [rows[i] for i in batch])
            vectors[batch] = (
                outputs["pooled_output"] if isinstance(outputs, dict) else outputs[:, 0]
            )
            bar.update(len(batch))
    if normalize:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.maximum(lengths, np.finfo("float32").tiny)
    return vectors


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts of similar length, longest first, within a budget."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(1, _POSITIONS_PER_BATCH // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _outputs(backbone, rows):
    """Of rows of ids, which are padded to the longest."""
    token_ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for at, row in enumerate(rows):
        token_ids[at, : len(row)] = row
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    return backbone.predict_on_batch(inputs)


def fill_mask(model, tokenizer, texts: str | Sequence[str], top_k: int = 5) -> list:
    """The likeliest tokens for every `[MASK]` in a text.

    Texts are computed in batches of similar length.

    Args:
        model: `RoFormerMaskedLM` that gives logits.
        tokenizer: `RoFormerTokenizer` of the same vocabulary.
        texts: a str with at least one literal `[MASK]`, or a list of them.
        top_k: int, at least 1.

    Returns:
        A list a mask, in the order of the text, of `top_k` candidates, best first:
        `MaskCandidate`. For a list of texts a list of those.

    Raises:
        ConfigurationError: no `[MASK]` in a text, `top_k` is out of range, or the
            model gives no logits.
    """
    _check_match(model, tokenizer)
    if getattr(model, "output_activation", "no head") is not None:
        raise ConfigurationError(
            "a model to fill masks must give logits: load a RoFormerMaskedLM with "
            "output_activation=None"
        )
    if not is_integer(top_k) or not 1 <= top_k <= tokenizer.vocabulary_size:
        raise ConfigurationError(
            f"top_k must be an integer from 1 to {tokenizer.vocabulary_size}, got "
            f"{top_k!r}"
        )
    if isinstance(texts, str):
        return fill_mask(model, tokenizer, [texts], top_k)[0]
    rows = [tokenizer.encode(text, keep_mask=True)[0] for text in texts]
    for text, row in zip(texts, rows, strict=True):
        if tokenizer.mask_id not in row:
            raise ConfigurationError(f"a text to fill must hold [MASK], got {text!r}")
    found = [[] for _ in rows]
    for batch in _batches([len(row) for row in rows]):
        hidden = _outputs(model.backbone, [rows[i] for i in batch])
        if isinstance(hidden, dict):
            hidden = hidden["sequence_output"]
        masks = [
            (at, position)
            for at, i in enumerate(batch)
            for position, token_id in enumerate(rows[i])
            if token_id == tokenizer.mask_id
        ]
        # A vocabulary is large, and most positions have no mask.
        logits = model.mlm_head(hidden[tuple(zip(*masks, strict=True))][None])
        for (at, _), row in zip(masks, _probabilities(logits), strict=True):
            found[batch[at]].append(
                [
                    MaskCandidate(tokenizer.id_to_token(int(i)), int(i), float(row[i]))
                    for i in np.argsort(-row, kind="stable")[:top_k]
                ]
            )
    return found


def _probabilities(logits):
    """Float64 `(masks, vocabulary)` of logits `(1, masks, vocabulary)`."""
    logits = keras.ops.convert_to_numpy(logits)[0].astype("float64")
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def check_vocabulary(model, tokenizer):
    """Raises ConfigurationError unless the two are of one vocabulary."""
    if model.config.vocabulary_size != tokenizer.vocabulary_size:
        raise ConfigurationError(
            f"model and tokenizer must be of one vocabulary; the model has "
            f"{model.config.vocabulary_size} tokens, the tokenizer "
            f"{tokenizer.vocabulary_size}"
        )


def _check_match(model, tokenizer):
    check_vocabulary(model, tokenizer)
    others = sorted(set(model.input) - {"token_ids", "segment_ids"})
    if others:
        raise ConfigurationError(
            f"texts give no {' and no '.join(others)}, which this model takes"
        )

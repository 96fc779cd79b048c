"""The likeliest tokens for masks in texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np

from roformer_keras.base.checks import check_integer, check_iterable
from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Engine
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.text.matching import check_match
from roformer_keras.text.rows import TOKENS_PER_BATCH, by_length, padded


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


def fill_mask(
    model,
    tokenizer,
    texts: str | Sequence[str],
    top_k: int = 5,
    batch_tokens: int = TOKENS_PER_BATCH,
    engine: Engine | None = None,
) -> list:
    """`RoFormerMaskedLM.fill_mask` with any tokenizer of the model's vocabulary.

    Texts are computed in batches of similar length.

    Raises:
        ConfigurationError: no `[MASK]` in a text, `top_k` is out of range, or the
            model gives no logits.
    """
    check_match(model, tokenizer)
    refuse(
        getattr(model, "output_activation", "no head") is not None,
        "a model to fill masks must give logits: load a RoFormerMaskedLM with "
        "output_activation=None",
    )
    check_integer("top_k", top_k, minimum=1, maximum=tokenizer.vocabulary_size)
    if isinstance(texts, str):
        return fill_mask(model, tokenizer, [texts], top_k, engine=engine)[0]
    check_iterable("texts", texts, "a text or a list of texts")
    rows = [tokenizer.encode(text, keep_mask=True)[0] for text in texts]
    for text, row in zip(texts, rows, strict=True):
        refuse(
            tokenizer.mask_id not in row,
            f"a text to fill must hold [MASK], got {text!r}",
        )
    found: list[list[list[MaskCandidate]]] = [[] for _ in rows]
    for batch in by_length([len(row) for row in rows], batch_tokens):
        inputs = padded([rows[i] for i in batch])
        hidden = run_model(model.backbone, inputs, engine or model._engine)
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

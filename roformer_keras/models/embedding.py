"""Vectors of texts, of any number of them."""

from collections.abc import Iterator

import numpy as np

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import Engine, Texts, Verbose
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.search.cosines import unit_rows
from roformer_keras.text.matching import check_match
from roformer_keras.text.rows import TOKENS_PER_BATCH
from roformer_keras.text.vectors import embed_rows


def embed(
    model,
    tokenizer,
    texts: Texts,
    max_length: int = 512,
    normalize: bool = True,
    verbose: Verbose = "auto",
    batch_tokens: int = TOKENS_PER_BATCH,
    engine: Engine | None = None,
) -> np.ndarray | Iterator[np.ndarray]:
    """One vector a text: the pooled output, or else the first position's.

    Of a model with a head only the backbone runs. Texts are computed in batches of
    similar length, while the next are tokenized, and returned in their own order.

    Args:
        model: any model of this package; in `RoFormerSim` the vectors are trained.
        tokenizer: `RoFormerTokenizer` of the same vocabulary.
        texts: a str, a sequence of them, or a table of pandas with a column `text`;
            or an iterator, which need not fit into memory: some 2,000 texts are read
            from it at a time.
        max_length: int. Longer texts are cut to as many tokens.
        normalize: bool. Whether vectors have length 1, so that products are cosines.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.
        batch_tokens: int. Maximum tokens of a batch, padding included.
        engine: what computes the texts; `model.engine` if not given.

    Returns:
        float32 `(hidden_dim,)` for a str, `(len(texts), hidden_dim)` for a sequence;
        for an iterator an iterator of the vectors.

    Raises:
        ConfigurationError: tokenizer and model do not match, attention is causal, a
            text is no str, or a table has no column of texts.
    """
    check_match(model, tokenizer)
    backbone = getattr(model, "backbone", model)
    refuse(
        backbone.config.attention == "causal",
        "the first position gives the vector of a text, and sees nothing of the "
        "text in a model with attention='causal'",
        hint="load a RoFormerBackbone with attention='bidirectional'; for a "
        "command, first write a bidirectional preset by `convert --model "
        "RoFormerMaskedLM`",
    )

    def vectors_of(inputs):
        outputs = run_model(backbone, inputs, engine or model._engine)
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

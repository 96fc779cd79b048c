"""Similar sentences, of a model that writes them and compares vectors."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import numpy as np

from roformer_keras.base.checks import check_integer, check_names, is_integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import Engine, Verbose
from roformer_keras.generation.generate import Scored, decode_prompts
from roformer_keras.generation.generation_config import MAX_TEXTS, SamplingOptions
from roformer_keras.generation.prompts import (
    as_ids,
    as_prompt,
    as_rows,
    generation_config,
)

# Texts that are encoded between two calls of `on_step`.
_COMPARED_TOGETHER = 4


@overload
def paraphrase(
    model: Any, texts: str, n: int = 100, k: int = 20, **options: Any
) -> list[Scored]: ...


@overload
def paraphrase(
    model: Any, texts: Sequence[str], n: int = 100, k: int = 20, **options: Any
) -> list[list[Scored]]: ...


def paraphrase(
    model: Any,
    texts: str | Sequence[str],
    n: int = 100,
    k: int = 20,
    *,
    masked_positions: Sequence[int] = (),
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    seed: int | None = None,
    batch_size: int = 128,
    first_number: int | Sequence[int] = 0,
    engine: Engine | None = None,
    on_step: Callable[[], Any] | None = None,
    verbose: Verbose = "auto",
    **options: Any,
) -> list:
    """Similar sentences: writes `n`, and keeps the `k` nearest to the original.

    Repeated sentences and the original do not count, so there may be fewer.

    Args:
        texts: a str, or a list of them.
        n: int. Sentences to write for each text.
        k: int. The most sentences to return for each text.
        masked_positions: ints. Tokens of each text to replace with `[MASK]` first,
            so that others are found for them; 1 is the first, 0 is `[CLS]`.
        max_length, max_new_tokens, seed, batch_size, first_number: as in
            `generate`.
        engine, on_step, verbose: as in `generate`.
        options: fields of `SamplingOptions`, such as `top_k`, as in `generate`.

    Returns:
        A list of `(sentence, cosine)` pairs, nearest first; for a list of texts a
        list of those.

    Raises:
        ConfigurationError: as in `generate`; or `n`, `k` or a position is out of
            range.

    Example:
        >>> model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
        >>> found = model.paraphrase("学而时习之", n=4, k=2, max_new_tokens=16)
        >>> [0.0 < cosine <= 1.0 for sentence, cosine in found]
        [True, True]

    Source: https://github.com/ZhuiyiTechnology/roformer-sim, `generate.py`.
    """
    check_vectors(model)
    names = tuple(field.name for field in dataclasses.fields(SamplingOptions))
    check_names("paraphrase", "option", options, names)
    for name, value in (("n", n), ("k", k)):
        check_integer(name, value, 1, MAX_TEXTS)
    rows, is_text, is_one = as_rows(texts)
    refuse(
        not is_text,
        "texts to paraphrase must be str, got ids",
    )
    config = generation_config(model, None, seed, num_return_sequences=n, **options)
    prompts = [
        as_prompt(
            model,
            masked(model, row, masked_positions),
            max_length,
            max_new_tokens=max_new_tokens,
        )
        for row in rows
    ]
    written = decode_prompts(
        model, prompts, config, batch_size, first_number, verbose, engine, on_step
    )
    candidates_by_text = [
        _candidates(model, *pair) for pair in zip(rows, written, strict=True)
    ]
    pairs = zip(rows, candidates_by_text, strict=True)
    texts = [one for own, others in pairs for one in (own, *others)]
    vectors = _vectors(model, texts, engine, on_step)
    ends = np.cumsum([1 + len(candidates) for candidates in candidates_by_text])
    ranked = []
    for candidates, part in zip(
        candidates_by_text, np.split(vectors, ends)[:-1], strict=True
    ):
        scores = part[1:] @ part[0]
        order = np.argsort(-scores, kind="stable")[:k]
        ranked.append([Scored(candidates[i], float(scores[i])) for i in order])
    return ranked[0] if is_one else ranked


def masked(model: Any, text: str, positions: Sequence[int]) -> str | list[int]:
    """The ids of a text with `[MASK]` at some of them; the text if at none."""
    refuse(
        not isinstance(positions, Iterable),
        f"masked_positions must be a list of integers, got {positions!r}",
    )
    positions = list(positions)
    if not positions:
        return text
    ids = as_ids(model, text)
    for position in positions:
        if not is_integer(position) or not 1 <= position < len(ids) - 1:
            raise ConfigurationError(
                f"masked_positions must be integers from 1 to {len(ids) - 2}, the "
                f"tokens of {text!r:.40}, got {position!r}"
            )
        ids[position] = model.text_tokenizer().mask_id
    return ids


def _vectors(model, texts, engine, on_step):
    """The vectors of texts; those of a few at a time if there is work in between."""
    if on_step is None:
        return model.encode(texts, verbose=0, engine=engine)
    vectors = np.zeros((len(texts), model.config.hidden_dim), "float32")
    order = np.argsort([len(text) for text in texts], kind="stable")
    for at in range(0, len(texts), _COMPARED_TOGETHER):
        numbers = order[at : at + _COMPARED_TOGETHER]
        some = [texts[number] for number in numbers]
        vectors[numbers] = model.encode(some, verbose=0, engine=engine)
        on_step()
    return vectors


def _candidates(model, text, written):
    """Different texts, none of them the original or empty, in their order."""
    decode = model.text_tokenizer().decode
    excluded = {text, decode(as_ids(model, text)), ""}
    sentences = dict.fromkeys(decode(one.token_ids) for one in written)
    return [candidate for candidate in sentences if candidate not in excluded]


def check_vectors(model: Any) -> None:
    """Raises ConfigurationError if a model has no vectors to compare."""
    if not model.has_vectors:
        raise ConfigurationError(
            "similar sentences need a RoFormerSim, which gives vectors; "
            f"{model.folder} holds a {model.metadata['model']}"
        )

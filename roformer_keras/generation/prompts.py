"""Prompts, lengths and stop tokens, from the arguments of a user to a search."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import numpy as np

from roformer_keras.base.checks import check_integer, check_iterable, is_integer
from roformer_keras.base.errors import ConfigurationError, VocabularyError, refuse
from roformer_keras.generation.generation_config import (
    MAX_TOKENS,
    GenerationConfig,
    Prompt,
)
from roformer_keras.text.tokenizer import RoFormerTokenizer


class DefaultLengths(NamedTuple):
    """Lengths of texts where a user gives none."""

    max_length: int = 256
    new_tokens: int | None = None


class WritingModel(Protocol):
    """A model that writes text token by token."""

    tokenizer: Any

    @property
    def config(self) -> Any:
        """An object with `attention` and `vocabulary_size`."""

    @property
    def default_lengths(self) -> DefaultLengths: ...

    @property
    def is_continuation(self) -> bool:
        """True if a text continues its prompt, or follows it as a second segment."""

    def text_tokenizer(self) -> RoFormerTokenizer: ...

    def _decoder(self, engine: Any = None) -> Any: ...


def as_rows(prompts: Any) -> tuple[Sequence, bool, bool]:
    """A list of prompts, whether they are texts, and whether one was given alone."""
    if isinstance(prompts, str):
        return [prompts], True, True
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    check_iterable("prompts", prompts, "texts or ids")
    if not isinstance(prompts, Sequence):
        prompts = list(prompts)
    if not prompts:
        return [], True, False
    if all(isinstance(prompt, str) for prompt in prompts):
        return prompts, True, False
    if all(isinstance(prompt, Integral) for prompt in prompts):
        return [prompts], False, True
    refuse(
        not all(_is_list(prompt) for prompt in prompts),
        "prompts must be texts or lists of ids, and not some of both, got "
        f"{prompts!r:.80}",
    )
    return prompts, False, False


def _is_list(prompt):
    return isinstance(prompt, Sequence | np.ndarray) and not isinstance(
        prompt, str | bytes
    )


# Options of how long a text may become.
LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")


def as_prompt(
    model: WritingModel,
    prompt: str | Sequence[int],
    max_length: int | None = None,
    min_length: int = 0,
    *,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
) -> Prompt:
    """The `Prompt` of a text or of ids.

    Args: as in `generate`.
    """
    check_lengths(
        max_length,
        min_length,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
    )
    ids = as_ids(model, prompt) if isinstance(prompt, str) else prompt
    ids = _check_ids(model, ids)
    defaults = model.default_lengths
    min_new_tokens = max(0, min_new_tokens, min_length - len(ids))
    if max_length is max_new_tokens is None:
        max_new_tokens = defaults.new_tokens
    if max_new_tokens is None:
        max_length = max_length or defaults.max_length
        max_new_tokens = max_length - len(ids)
    if max_new_tokens < 1:
        shown = prompt if isinstance(prompt, str) else "ids"
        raise ConfigurationError(
            f"a prompt must be shorter than max_length={max_length} tokens, got "
            f"{len(ids)}: {shown:.40}; raise max_length or cut the prompt"
        )
    refuse(
        min_new_tokens > max_new_tokens,
        f"at least {min_new_tokens} new tokens do not fit in {max_new_tokens}: "
        "raise max_new_tokens or max_length",
    )
    return Prompt(tuple(ids), (0,) * len(ids), max_new_tokens, min_new_tokens)


def check_lengths(
    max_length: int | None = None,
    min_length: int = 0,
    *,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
) -> None:
    """Raises ConfigurationError if a length breaks its rule with any prompt."""
    if max_length is not None:
        check_integer("max_length", max_length, 1, MAX_TOKENS)
    if max_new_tokens is not None:
        check_integer("max_new_tokens", max_new_tokens, 1, MAX_TOKENS)
        refuse(
            max_length is not None,
            "a text is limited by max_length or by max_new_tokens, got both",
        )
    check_integer("min_length", min_length, 0, max_length or MAX_TOKENS)
    maximum = max_new_tokens or MAX_TOKENS
    check_integer("min_new_tokens", min_new_tokens, 0, maximum)


def as_ids(model: WritingModel, text: str, name: str = "a prompt") -> list[int]:
    """The ids of a text as a prompt."""
    tokenizer = model.text_tokenizer()
    ids, _ = tokenizer.encode(text)
    refuse(
        len(ids) == 2,
        f"{name} must hold text, got {text!r}, which has no token",
    )
    refuse(
        set(ids[1:-1]) == {tokenizer.unk_id},
        f"{name} must have tokens of the vocabulary, got {text:.40} of which "
        "it holds none",
    )
    # [SEP] would end a text that is continued.
    return ids[:-1] if model.is_continuation else ids


def _check_ids(model, ids):
    size = model.config.vocabulary_size
    wrong = [i for i in ids if not is_integer(i) or not 0 <= i < size]
    if wrong:
        raise ConfigurationError(
            f"token ids must be integers from 0 to {size - 1}, got {wrong[0]!r}"
        )
    refuse(
        not len(ids),
        "a prompt must hold at least one id, got none",
    )
    return [int(i) for i in ids]


def generation_config(
    model: WritingModel, stop_tokens: Any, seed: int | None, **options: Any
) -> GenerationConfig:
    """The `GenerationConfig` of the arguments of `generate`."""
    stop_ids = stop_ids_of(model, stop_tokens)
    # A text may continue after 。 but not after [SEP].
    sep = model.tokenizer and model.text_tokenizer().sep_id
    if seed is None:
        entropy: Any = np.random.SeedSequence().entropy
        seed = entropy % 2**63
    return GenerationConfig.from_dict(
        {
            "stop_ids": stop_ids,
            "suppressed_stop_ids": tuple(i for i in stop_ids if i == sep),
            "seed": seed,
            **options,
        }
    )


def stop_ids_of(model: WritingModel, stop_tokens: Any) -> tuple[int, ...]:
    """The ids of the tokens that end a text."""
    if stop_tokens is None:
        return (model.text_tokenizer().sep_id,)
    if isinstance(stop_tokens, str) or not isinstance(stop_tokens, Iterable):
        stop_tokens = [stop_tokens]
    ids = []
    for token in stop_tokens:
        if not isinstance(token, str):
            ids += _check_ids(model, [token])
            continue
        token_id = model.text_tokenizer().token_to_id(token)
        refuse(
            model.text_tokenizer().id_to_token(token_id) != token,
            f"a stop token must be in the vocabulary, got {token!r}",
            error=VocabularyError,
        )
        ids += [token_id, model.text_tokenizer().sep_id]
    return tuple(dict.fromkeys(ids))

"""The methods of models that write text: texts or ids in, texts or ids out.

`generate` and `stream` are methods of `RoFormerCausalLM` and `ServedGenerator`, which
are `WritingModel`s.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from time import time
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from roformer_keras.base.checks import check_integer, is_integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.progress import progress_bar
from roformer_keras.base.types import Engine
from roformer_keras.generation.beam_search import decode
from roformer_keras.generation.beam_search import stream as stream_ids
from roformer_keras.generation.generation_config import GenerationConfig, Prompt
from roformer_keras.generation.prompts import (
    LENGTHS,
    WritingModel,
    as_prompt,
    as_rows,
    generation_config,
)

_LOGGER = logging.getLogger(__name__)
# Tokens after which nothing changes how the text before them is spaced.
_SETTLED = re.compile("[\u4e00-\u9fff]+")


class Scored(NamedTuple):
    """A text, or the ids of one, and its score.

    The score is the sum of the log-probabilities of its tokens; with beams divided by
    a power of the length; of a paraphrase the cosine with the original.
    """

    output: str | list[int]
    score: float


@overload
def generate(
    model: WritingModel,
    prompts: str,
    *,
    num_return_sequences: None = None,
    return_scores: Literal[False] = False,
    **options: Any,
) -> str: ...


@overload
def generate(
    model: WritingModel,
    prompts: Sequence[str],
    *,
    num_return_sequences: None = None,
    return_scores: Literal[False] = False,
    **options: Any,
) -> list[str]: ...


@overload
def generate(
    model: WritingModel,
    prompts: str,
    *,
    num_return_sequences: int,
    return_scores: Literal[False] = False,
    **options: Any,
) -> list[str]: ...


@overload
def generate(
    model: WritingModel,
    prompts: str | Sequence | np.ndarray,
    *,
    num_return_sequences: int | None = None,
    return_scores: bool = False,
    **options: Any,
) -> str | Scored | list[Any]: ...


def generate(
    model: WritingModel,
    prompts: str | Sequence | np.ndarray,
    *,
    num_return_sequences: int | None = None,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    min_length: int = 0,
    min_new_tokens: int = 0,
    stop_tokens: Sequence[str | int] | None = None,
    seed: int | None = None,
    return_scores: bool = False,
    batch_size: int = 64,
    first_number: int | Sequence[int] = 0,
    engine: Engine | None = None,
    on_step: Callable[[], Any] | None = None,
    verbose: int | str = "auto",
    **options: Any,
) -> str | Scored | list[Any]:
    """Continues prompts, or answers them; returns what is new.

    The prompts of a batch are computed once, then one token a step for all rows.
    The first call compiles, and so does one with more rows or longer texts than
    before, rounded up to a few sizes; the progress bar and the log say so. Other
    engines than Keras compile once; the log says so.

    Args:
        prompts: a str, or a list of them; or ids, as a list or array of int, which
            are used as they are, or a list of those.
        num_return_sequences: int. Texts for each prompt, in a list; beams give the
            best ones. None for one text, not in a list.
        max_length: int. Maximum tokens of prompt and new text together, including
            `[CLS]` and `[SEP]`; 256 by default.
        max_new_tokens: int. Maximum tokens of the new text, instead of
            `max_length`. The default of RoFormerSim is 64.
        min_length, min_new_tokens: int. Counted likewise. In a shorter text `[SEP]`
            is not written, and no other stop token ends it.
        stop_tokens: tokens that end a text, or ids. `[SEP]` is added to tokens,
            because what follows it is nonsense; ids are used as they are. `[SEP]`
            by default; nothing if empty.
        seed: int. The same seed gives the same texts for the same prompts and
            `num_return_sequences`. Drawn by default.
        return_scores: bool. Whether each output is a `Scored` pair with its score.
        batch_size: int. Maximum texts, or beams, of a batch.
        first_number: int. The number of the first prompt in a longer list: with the
            seed of the list, its part gets the same texts. Or the numbers of all
            prompts.
        engine: what computes the steps, `model.engine` if not given: `"keras"`;
            `"openvino"`, faster on a CPU; or `"openvino-int8"`, with weights in 8
            bits, the fastest for a few texts. Those need the extra `openvino`, and
            a few seconds when they are first used and when weights have changed.
            With float weights they give the same texts up to rounding.
        on_step: function that is called after every few tokens, at most 32. An
            exception that it raises stops the generation.
        verbose: 0 for no progress bar, 1 for one, `"auto"` for one on a terminal.
        options: further fields of `GenerationConfig`: `method`, `temperature`,
            `top_k`, `top_p`, `repetition_penalty`, `no_repeat_ngram_size`,
            `num_beams`, `length_penalty`.

    Returns:
        str for a str, ids for ids; a list of them with `num_return_sequences`; and
        a list of either for a list of prompts. Ids include the stop token.

    Raises:
        ConfigurationError: an argument breaks its rule, or a prompt is empty, too
            long, or out of the vocabulary.
        CheckpointError: the weights are not finite numbers.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> texts = model.generate(["床前", "白日"], seed=1, max_new_tokens=4)
        >>> texts == model.generate(["床前", "白日"], seed=1, max_new_tokens=4)
        True
        >>> len(model.generate("床前", num_return_sequences=2, max_new_tokens=4))
        2
    """
    rows, is_text, is_one = as_rows(prompts)
    config = generation_config(
        model,
        stop_tokens,
        seed,
        num_return_sequences=(
            1 if num_return_sequences is None else num_return_sequences
        ),
        **options,
    )
    lengths: dict[str, Any] = {
        "max_length": max_length,
        "max_new_tokens": max_new_tokens,
        "min_length": min_length,
        "min_new_tokens": min_new_tokens,
    }
    rows = [as_prompt(model, row, **lengths) for row in rows]
    outputs: list[Any] = []
    for texts in decode_prompts(
        model, rows, config, batch_size, first_number, verbose, engine, on_step
    ):
        results: list[Any] = [text.token_ids for text in texts]
        if is_text:
            results = [model.text_tokenizer().decode(ids) for ids in results]
        if return_scores:
            scores = [text.score for text in texts]
            results = list(map(Scored, results, scores))
        outputs.append(results[0] if num_return_sequences is None else results)
    return outputs[0] if is_one else outputs


def stream(
    model: WritingModel,
    prompt: str,
    *,
    max_length: int | None = None,
    max_new_tokens: int | None = None,
    min_length: int = 0,
    min_new_tokens: int = 0,
    stop_tokens: Sequence[str | int] | None = None,
    seed: int | None = None,
    engine: Engine | None = None,
    on_token: Callable[[int], Any] | None = None,
    **options: Any,
) -> Iterator[str]:
    """Continues one text piece by piece.

    Args:
        on_token: function that is called with the id of each new token, of which a
            text does not show all.
        prompt, max_length, max_new_tokens: as in `generate`.
        min_length, min_new_tokens, stop_tokens, seed, engine: as in `generate`.
        options: as in `generate`, with the methods `"sample"` and `"greedy"`.

    Returns:
        An iterator of str, which together are what `generate` returns.

    Raises:
        ConfigurationError: as in `generate`; or the method is `"beam"`, there is
            more than one text to return, or the prompt is no str.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> pieces = model.stream("床前", seed=1, max_new_tokens=4)
        >>> "".join(pieces) == model.generate("床前", seed=1, max_new_tokens=4)
        True
    """
    pieces = stream_steps(
        model,
        prompt,
        max_length=max_length,
        max_new_tokens=max_new_tokens,
        min_length=min_length,
        min_new_tokens=min_new_tokens,
        stop_tokens=stop_tokens,
        seed=seed,
        engine=engine,
        on_token=on_token,
        **options,
    )
    return (piece for piece in pieces if piece)


def stream_steps(
    model: WritingModel,
    prompt,
    *,
    stop_tokens=None,
    seed=None,
    engine=None,
    on_token=None,
    shows_stop=True,
    **options,
):
    """Streams like `stream`, with "" for each token whose piece is held back."""
    refuse(
        not isinstance(prompt, str),
        f"a prompt to stream must be a str, got {prompt!r}",
    )
    lengths = {name: options.pop(name) for name in LENGTHS if name in options}
    config = generation_config(model, stop_tokens, seed, **options)
    refuse(
        config.method == "beam" or config.copies > 1,
        "a stream is one text, and a text of method='beam' is not known before its "
        f"end, got method={config.method!r}, num_return_sequences="
        f"{config.num_return_sequences}: use generate",
    )
    row = as_prompt(model, prompt, **lengths)
    tokenizer = model.text_tokenizer()

    def is_settled(token_id):
        return _SETTLED.fullmatch(tokenizer.id_to_token(token_id)) is not None

    token_ids = stream_ids(model._decoder(engine), row, config)
    if on_token is not None:
        token_ids = _told(token_ids, on_token)

    def decode_ids(ids):
        is_stop = not shows_stop and ids[-1:] and ids[-1] in config.stop_ids
        return tokenizer.decode(ids[:-1] if is_stop else ids)

    return text_pieces(token_ids, decode_ids, is_settled)


def decode_prompts(
    model: WritingModel,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    batch_size: int,
    first_number: Any,
    verbose: Any,
    engine: Any,
    on_step: Callable[[], Any] | None,
) -> list:
    """The texts of prompts, with a progress bar; arguments as in `generate`."""
    check_integer("batch_size", batch_size, minimum=1)
    is_one = is_integer(first_number)
    refuse(
        not is_one and not isinstance(first_number, Sequence | np.ndarray),
        f"first_number must be an integer, or one for each prompt, got "
        f"{first_number!r}",
    )
    if not is_one and len(first_number) != len(prompts):
        raise ConfigurationError(
            f"first_number must be one number, or one for each of {len(prompts)} "
            f"prompts, got {len(first_number)}"
        )
    for number in [first_number] if is_one else first_number:
        check_integer("first_number", number, minimum=0)
    decoder, begin = model._decoder(engine), time()
    total = len(prompts) * config.copies
    with progress_bar(verbose, total=total, desc="writing", unit="text") as bar:

        def on_rows(rows):
            bar.set_postfix_str("", refresh=False)
            bar.update(rows)
            if on_step is not None:
                on_step()

        def on_compile(message):
            bar.set_postfix_str(message, refresh=False)
            # `refresh` does not wait for the delay of a bar, and the bar does not
            # know that it was shown and has a line to end.
            if not bar.disable and time() >= begin + bar.delay:
                bar.refresh()
                bar.last_print_t = time()

        decoder.on_compile = on_compile
        try:
            return decode(decoder, prompts, config, batch_size, first_number, on_rows)
        finally:
            decoder.on_compile = None


def text_pieces(token_ids, decode, is_settled) -> Iterator[str]:
    """Pieces of a text that together are all of its ids decoded, one for each id.

    How tokens are spaced depends on those that follow, so a piece is held back until a
    token comes after which nothing can change it. The others give "", so that a
    loop over the pieces can stop after each token. What is left at the end is one more
    piece.
    """
    ids, shown = [], ""
    for token_id in token_ids:
        ids.append(token_id)
        if is_settled(token_id):
            text = decode(ids)
            yield text[len(shown) :]
            shown = text
        else:
            yield ""
    last_piece = decode(ids)[len(shown) :]
    if last_piece:
        yield last_piece


def _told(token_ids, on_token):
    for token_id in token_ids:
        on_token(token_id)
        yield token_id

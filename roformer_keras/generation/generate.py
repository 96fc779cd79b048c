"""The methods of models that write text: texts or ids in, texts or ids out."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from time import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from roformer_keras.checks import check_integer, is_integer
from roformer_keras.errors import ConfigurationError, VocabularyError
from roformer_keras.generation.engines import choose_engine, make_decoder
from roformer_keras.generation.options import MAX_TOKENS, GenerationConfig, Prompt
from roformer_keras.generation.search import decode, stream
from roformer_keras.progress import progress_bar
from roformer_keras.types import Engine

# A mixin calls what a Keras model has.
if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object

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


class TextGeneration(_Model):
    """Mixin of models that write text token by token.

    Subclasses define `_make_decoder`, and `_networks` and `_reading` for the engines
    other than Keras.
    """

    # Where neither is given. `default_max_new_tokens` comes first.
    default_max_length: int = 256
    default_max_new_tokens: int | None = None
    # Tokens that a text may have more than its prompt, instead of these.
    default_longer: int | None = None

    @overload
    def generate(
        self,
        prompts: str,
        *,
        num_return_sequences: None = None,
        return_scores: Literal[False] = False,
        **options: Any,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_return_sequences: None = None,
        return_scores: Literal[False] = False,
        **options: Any,
    ) -> list[str]: ...

    @overload
    def generate(
        self,
        prompts: str,
        *,
        num_return_sequences: int,
        return_scores: Literal[False] = False,
        **options: Any,
    ) -> list[str]: ...

    @overload
    def generate(
        self,
        prompts: str | Sequence | np.ndarray,
        *,
        num_return_sequences: int | None = None,
        return_scores: bool = False,
        **options: Any,
    ) -> str | Scored | list[Any]: ...

    def generate(
        self,
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
                `[CLS]` and `[SEP]`; 256 by default. Of an encoder-decoder the maximum
                tokens of the new text.
            max_new_tokens: int. Maximum tokens of the new text, instead of
                `max_length`. The default of RoFormerSim is 64; of an encoder-decoder
                50 more than the prompt has.
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
                `top_k`, `top_p`, `num_beams`, `length_penalty`.

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
        config = self._config(
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
        rows = [self.as_prompt(row, **lengths) for row in rows]
        outputs: list[Any] = []
        for texts in self._decode(
            rows, config, batch_size, first_number, verbose, engine, on_step
        ):
            results: list[Any] = [text.token_ids for text in texts]
            if is_text:
                results = [self.text_tokenizer().decode(ids) for ids in results]
            if return_scores:
                scores = [text.score for text in texts]
                results = list(map(Scored, results, scores))
            outputs.append(results[0] if num_return_sequences is None else results)
        return outputs[0] if is_one else outputs

    def stream(
        self,
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
            ConfigurationError: as in `generate`; or the method is `"beam"`, or the
                prompt is no str.

        Example:
            >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
            >>> pieces = model.stream("床前", seed=1, max_new_tokens=4)
            >>> "".join(pieces) == model.generate("床前", seed=1, max_new_tokens=4)
            True
        """
        pieces = self._stream_steps(
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

    def _stream_steps(
        self,
        prompt,
        *,
        max_length=None,
        max_new_tokens=None,
        min_length=0,
        min_new_tokens=0,
        stop_tokens=None,
        seed=None,
        engine=None,
        on_token=None,
        shows_stop=True,
        **options,
    ):
        """As `stream`, with "" for each token whose piece is held back.

        Args:
            shows_stop: bool. Whether the text has the stop token that ends it.
        """
        if options.get("method") == "beam":
            raise ConfigurationError(
                "a text of method='beam' is not known before its end; stream with "
                "method='sample' or 'greedy', or use generate"
            )
        if not isinstance(prompt, str):
            raise ConfigurationError(
                f"a prompt to stream must be a str, got {prompt!r}"
            )
        config = self._config(stop_tokens, seed, **options)
        row = self.as_prompt(
            prompt,
            max_length,
            min_length,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
        )
        tokenizer = self.text_tokenizer()

        def is_settled(token_id):
            return _SETTLED.fullmatch(tokenizer.id_to_token(token_id)) is not None

        token_ids = stream(self._decoder(engine), row, config)
        if on_token is not None:
            token_ids = _told(token_ids, on_token)

        def decode_ids(ids):
            is_stop = not shows_stop and ids[-1:] and ids[-1] in config.stop_ids
            return tokenizer.decode(ids[:-1] if is_stop else ids)

        return text_pieces(token_ids, decode_ids, is_settled)

    # === From the arguments of a user to those of a search ===

    @property
    def is_continuation(self) -> bool:
        """True if a text continues its prompt, or follows it as a second segment."""
        return self.config.attention == "causal"

    def as_prompt(
        self,
        prompt: str | Sequence[int],
        max_length: int | None = None,
        min_length: int = 0,
        *,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
    ) -> Prompt:
        """The `Prompt` of a text or of ids.

        Args: as in `generate`.

        Raises:
            ConfigurationError: as `generate` does.
        """
        self.check_lengths(
            max_length,
            min_length,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
        )
        ids = self.as_ids(prompt) if isinstance(prompt, str) else prompt
        ids = self._check_ids(ids)
        counted = self._counted_length(ids)
        min_new_tokens = max(0, min_new_tokens, min_length - counted)
        if max_length is max_new_tokens is None:
            max_new_tokens = self._default_new_tokens(ids, min_new_tokens)
        if max_new_tokens is None:
            max_length = max_length or self.default_max_length
            max_new_tokens = max_length - counted
        if max_new_tokens < 1:
            shown = prompt if isinstance(prompt, str) else "ids"
            raise ConfigurationError(
                f"a prompt must be shorter than max_length={max_length} tokens, got "
                f"{len(ids)}: {shown:.40}; raise max_length or cut the prompt"
            )
        if min_new_tokens > max_new_tokens:
            raise ConfigurationError(
                f"at least {min_new_tokens} new tokens do not fit in {max_new_tokens}: "
                "raise max_new_tokens or max_length"
            )
        return Prompt(tuple(ids), (0,) * len(ids), max_new_tokens, min_new_tokens)

    def check_lengths(
        self,
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
            if max_length is not None:
                raise ConfigurationError(
                    "a text is limited by max_length or by max_new_tokens, got both"
                )
        check_integer("min_length", min_length, 0, max_length or MAX_TOKENS)
        maximum = max_new_tokens or MAX_TOKENS
        check_integer("min_new_tokens", min_new_tokens, 0, maximum)

    def as_ids(self, text: str, name: str = "a prompt") -> list[int]:
        """The ids of a text as a prompt.

        Args:
            text: str.
            name: str. What errors call it.

        Raises:
            ConfigurationError: it has no token, or none of the vocabulary.
        """
        tokenizer = self.text_tokenizer()
        ids, _ = tokenizer.encode(text)
        if len(ids) == 2:
            raise ConfigurationError(
                f"{name} must hold text, got {text!r}, which has no token"
            )
        if set(ids[1:-1]) == {tokenizer.unk_id}:
            raise ConfigurationError(
                f"{name} must have tokens of the vocabulary, got {text:.40} of which "
                "it holds none"
            )
        # [SEP] would end a text that is continued.
        return ids[:-1] if self.is_continuation else ids

    def _counted_length(self, ids) -> int:
        """Number of tokens of a prompt that count for `max_length`."""
        return len(ids)

    def _default_new_tokens(self, ids, min_new_tokens: int) -> int | None:
        """New tokens where no length is given; None for `default_max_length`."""
        if self.default_longer is not None:
            return max(len(ids) + self.default_longer, min_new_tokens)
        return self.default_max_new_tokens

    def _check_ids(self, ids):
        size = self.config.vocabulary_size
        wrong = [i for i in ids if not is_integer(i) or not 0 <= i < size]
        if wrong:
            raise ConfigurationError(
                f"token ids must be integers from 0 to {size - 1}, got {wrong[0]!r}"
            )
        if not len(ids):
            raise ConfigurationError("a prompt must hold at least one id, got none")
        return [int(i) for i in ids]

    def _config(self, stop_tokens, seed, **options):
        stop_ids = self._stop_ids(stop_tokens)
        # A text may continue after 。 but not after [SEP].
        sep = self.tokenizer and self.text_tokenizer().sep_id
        if seed is None:
            seed = np.random.SeedSequence().entropy % 2**63
        return GenerationConfig.from_dict(
            {
                "stop_ids": stop_ids,
                "suppressed_stop_ids": tuple(i for i in stop_ids if i == sep),
                "seed": seed,
                **options,
            }
        )

    def _stop_ids(self, stop_tokens):
        if stop_tokens is None:
            return (self.text_tokenizer().sep_id,)
        if isinstance(stop_tokens, str) or not isinstance(stop_tokens, Iterable):
            stop_tokens = [stop_tokens]
        ids = []
        for token in stop_tokens:
            if not isinstance(token, str):
                ids += self._check_ids([token])
                continue
            token_id = self.text_tokenizer().token_to_id(token)
            if self.text_tokenizer().id_to_token(token_id) != token:
                raise VocabularyError(
                    f"a stop token must be in the vocabulary, got {token!r}"
                )
            ids += [token_id, self.text_tokenizer().sep_id]
        return tuple(dict.fromkeys(ids))

    def _decode(
        self, prompts, config, batch_size, first_number, verbose, engine, on_step
    ):
        check_integer("batch_size", batch_size, minimum=1)
        is_one = is_integer(first_number)
        if not is_one and not isinstance(first_number, Sequence | np.ndarray):
            raise ConfigurationError(
                f"first_number must be an integer, or one for each prompt, got "
                f"{first_number!r}"
            )
        if not is_one and len(first_number) != len(prompts):
            raise ConfigurationError(
                f"first_number must be one number, or one for each of {len(prompts)} "
                f"prompts, got {len(first_number)}"
            )
        for number in [first_number] if is_one else first_number:
            check_integer("first_number", number, minimum=0)
        decoder, begin = self._decoder(engine), time()
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
                return decode(
                    decoder, prompts, config, batch_size, first_number, on_rows
                )
            finally:
                decoder.on_compile = None

    def _decoder(self, engine=None):
        """Kept with its programs, as long as the model computes with the same."""
        # With Keras, which the functions of this module do without.
        from roformer_keras.inference import inference_of

        inference = inference_of(self)
        version = [self.config, getattr(self.tokenizer, "cls_id", None)]
        decoder = inference.program(
            choose_engine(engine or self._engine), "decoder", self._compile, version
        )
        if decoder is not None:
            return decoder
        return inference.keep("decoder of keras", self._make_decoder, version)

    def _compile(self, engine, is_bfloat16):
        _LOGGER.info(f"compiling for the engine {engine!r}")
        return make_decoder(self._networks(), self._reading(), engine, is_bfloat16)


def as_rows(prompts):
    """A list of prompts, whether they are texts, and whether one was given alone."""
    if isinstance(prompts, str):
        return [prompts], True, True
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise ConfigurationError(f"prompts must be texts or ids, got {prompts!r:.80}")
    if not isinstance(prompts, Sequence):
        prompts = list(prompts)
    if not prompts:
        return [], True, False
    if all(isinstance(prompt, str) for prompt in prompts):
        return prompts, True, False
    if all(isinstance(prompt, Integral) for prompt in prompts):
        return [prompts], False, True
    if not all(_is_list(prompt) for prompt in prompts):
        raise ConfigurationError(
            "prompts must be texts or lists of ids, and not some of both, got "
            f"{prompts!r:.80}"
        )
    return prompts, False, False


def _is_list(prompt):
    return isinstance(prompt, Sequence | np.ndarray) and not isinstance(
        prompt, str | bytes
    )


def text_pieces(token_ids, decode, is_settled) -> Iterator[str]:
    """Pieces of a text that together are all of its ids decoded, one for each id.

    How tokens are spaced depends on those that follow, so a piece is held back until a
    token comes after which nothing can change it. The others give "", so that a
    loop over the pieces can stop after each token. What is left at the end is one more
    piece.

    Args:
        token_ids: iterable of ids, as they come.
        decode: function of a list of ids to str.
        is_settled: function of a token: whether it settles the text up to itself.
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

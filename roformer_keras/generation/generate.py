"""Texts or ids in, texts or ids out: what the models share that write."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from time import time
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from roformer_keras.checks import check_integer, is_integer
from roformer_keras.errors import ConfigurationError, VocabularyError
from roformer_keras.generation.options import GenerationConfig, Prompt
from roformer_keras.generation.search import decode, stream
from roformer_keras.generation.streaming import text_pieces

__all__ = ["Scored", "TextGeneration", "as_rows"]

# Shorter jobs are over before a bar is of use.
_SECONDS_BEFORE_BAR = 2
# Nothing that follows one of these changes how what is before is spaced.
_SETTLED = re.compile("[\u4e00-\u9fff]+")


class Scored(NamedTuple):
    """A text, or the ids of one, and its score.

    The score is the sum of the log-probabilities of its tokens; for beams that divided
    by a power of the length; for paraphrases the cosine with the original.
    """

    output: str | list[int]
    score: float


class TextGeneration:
    """What models share that write, token by token; a part of a `PresetModel`.

    Subclasses have a `_make_decoder`.
    """

    # Of prompt and continuation together, or else of each of the two.
    default_max_length = 256

    @property
    def is_continuation(self) -> bool:
        """Whether what is written goes on from the prompt, or is a text of its own."""
        return self.config.attention == "causal"

    def generate(
        self,
        prompts: str | Sequence,
        *,
        method: str = "sample",
        num_return_sequences: int | None = None,
        max_length: int | None = None,
        min_length: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 0.95,
        num_beams: int = 4,
        length_penalty: float = 0.0,
        stop_tokens: Sequence[str | int] | None = None,
        seed: int | None = None,
        return_scores: bool = False,
        batch_size: int = 64,
        first_number: int = 0,
        progress: bool = True,
    ):
        """Writes on from prompts; returns what is new.

        The prompt is computed once, then one token a step for all rows of a batch. The
        first call compiles, and so does one with more rows or longer texts than before,
        rounded up to a few sizes; the progress bar and the log say so.

        Args:
            prompts: a str, or a list of them; or ids, as a list or array of int, which
                are taken as they are, or a list of those.
            method: `"sample"` draws each token, `"greedy"` takes the likeliest,
                `"beam"` searches for a likely text.
            num_return_sequences: int. Texts for each prompt, in a list; beams give the
                best ones. None for one, not in a list.
            max_length: int. Most tokens: with causal attention of prompt and
                continuation together, with UniLM of each of the two; `[CLS]` and
                `[SEP]` count. 256, or 64 with RoFormerSim, if not given. Of an
                encoder-decoder: of what is written, 50 more than the prompt has.
            min_length: int. Tokens, counted likewise, before which `[SEP]` is not
                written, and no other stop token ends a text.
            temperature: float above 0. Below 1 likely tokens become likelier.
            top_k: int. Draws from so many of the likeliest tokens only.
            top_p: float in (0, 1]. Draws from the likeliest tokens that have so much
                probability together, the one that crosses it included. 1 for all.
            num_beams: int. Texts that are pursued at a time.
            length_penalty: float, at least 0. Beams are ranked by the sum of their
                log-probabilities divided by length to this power.
            stop_tokens: tokens that end a text, to which `[SEP]` is added, because what
                goes on behind it is nonsense; or ids, which are taken as they are.
                `[SEP]` alone if not given, nothing if empty.
            seed: int. The same seed gives the same texts for the same prompts and
                `num_return_sequences`; drawn if not given.
            return_scores: bool. Whether each output is a `Scored` pair with its score.
            batch_size: int. Most texts, or beams, that are computed together.
            first_number: int. Number of the first prompt in a longer list, of which
                this is a part: with the list's seed it gets the list's texts.
            progress: bool. Whether jobs of more than two seconds show a bar.

        Returns:
            str for a str, ids for ids; a list of them with `num_return_sequences`; and
            a list of either for a list of prompts. Ids include the stop token.

        Raises:
            ConfigurationError: an argument breaks its rule, a prompt is empty, too
                long, or out of the vocabulary.
            CheckpointError: weights are not finite numbers.
        """
        rows, is_text, is_one = as_rows(prompts)
        decoding = self._decoding(
            stop_tokens,
            method=method,
            num_return_sequences=(
                1 if num_return_sequences is None else num_return_sequences
            ),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            num_beams=num_beams,
            length_penalty=length_penalty,
            seed=seed,
        )
        rows = [self.as_prompt(row, max_length, min_length) for row in rows]
        written = self._decode(rows, decoding, batch_size, progress, first_number)
        outputs = []
        for texts in written:
            found = [
                self.text_tokenizer().decode(text.token_ids)
                if is_text
                else text.token_ids
                for text in texts
            ]
            if return_scores:
                found = [
                    Scored(output, text.score)
                    for output, text in zip(found, texts, strict=True)
                ]
            outputs.append(found[0] if num_return_sequences is None else found)
        return outputs[0] if is_one else outputs

    def stream(
        self,
        prompt: str,
        *,
        method: str = "sample",
        max_length: int | None = None,
        min_length: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 0.95,
        stop_tokens: Sequence[str | int] | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Writes on from one text, piece by piece.

        Args:
            prompt: str.
            method: `"sample"` or `"greedy"`. The rest as for `generate`.

        Returns:
            An iterator of str, which together are what `generate` returns.
        """
        if method == "beam":
            raise ConfigurationError(
                "a text of method='beam' is not known before its end; stream with "
                "method='sample' or 'greedy', or use generate"
            )
        if not isinstance(prompt, str):
            raise ConfigurationError(
                f"a prompt to stream must be a str, got {prompt!r}"
            )
        decoding = self._decoding(
            stop_tokens,
            method=method,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        row = self.as_prompt(prompt, max_length, min_length)
        tokenizer = self.text_tokenizer()

        def is_settled(token_id):
            return _SETTLED.fullmatch(tokenizer.id_to_token(token_id)) is not None

        token_ids = stream(self._decoder(), row, decoding)
        return text_pieces(token_ids, tokenizer.decode, is_settled)

    # === From what the user says to what a decoder takes ===

    def _decoding(self, stop_tokens, seed, **options):
        stop_ids = self._stop_ids(stop_tokens)
        suppressed_stop_ids = ()
        if self.tokenizer is not None:
            # Behind 。 a text may go on for a while, behind [SEP] it may not.
            suppressed_stop_ids = tuple(
                i for i in stop_ids if i == self.text_tokenizer().sep_id
            )
        if seed is None:
            seed = np.random.SeedSequence().entropy % 2**63
        return GenerationConfig(
            stop_ids=stop_ids,
            suppressed_stop_ids=suppressed_stop_ids,
            seed=seed,
            **options,
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
            found = self.text_tokenizer().token_to_id(token)
            if self.text_tokenizer().id_to_token(found) != token:
                raise VocabularyError(
                    f"a stop token must be in the vocabulary, got {token!r}"
                )
            ids += [found, self.text_tokenizer().sep_id]
        return tuple(dict.fromkeys(ids))

    def as_prompt(
        self,
        prompt: str | Sequence[int],
        max_length: int | None = None,
        min_length: int = 0,
    ) -> Prompt:
        """What a decoder takes for a text, or for ids; or the error of `generate`."""
        together = self.is_continuation
        max_length = self.check_lengths(max_length, min_length)
        ids = self.as_ids(prompt) if isinstance(prompt, str) else prompt
        ids = self._check_ids(ids)
        shown = prompt if isinstance(prompt, str) else "ids"
        if len(ids) + together > max_length:
            raise ConfigurationError(
                f"a prompt must be {'shorter' if together else 'no longer'} than "
                f"max_length={max_length} tokens, got {len(ids)}: {shown:.40}; raise "
                "max_length or cut the prompt"
            )
        taken = len(ids) if together else 0
        return Prompt(
            token_ids=tuple(ids),
            segment_ids=(0,) * len(ids),
            max_new_tokens=max_length - taken,
            min_new_tokens=max(0, min_length - taken),
        )

    def check_lengths(self, max_length: int | None, min_length: int) -> int:
        """The most tokens, or ConfigurationError if either breaks its rule."""
        if max_length is None:
            max_length = self.default_max_length
        check_integer("max_length", max_length, minimum=1)
        check_integer("min_length", min_length, minimum=0, maximum=max_length)
        return max_length

    def as_ids(self, text: str, name: str = "a prompt") -> list[int]:
        """The ids of a text as a prompt, or as what errors shall name it.

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
        # A prompt to go on with does not end.
        return ids[:-1] if self.is_continuation else ids

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

    def _decode(self, prompts, decoding, batch_size, progress, first_number):
        check_integer("batch_size", batch_size, minimum=1)
        check_integer("first_number", first_number, minimum=0)
        decoder, begin = self._decoder(), time()
        with tqdm(
            total=len(prompts) * decoding.copies,
            desc="writing",
            unit="text",
            delay=_SECONDS_BEFORE_BAR,
            disable=not progress,
        ) as bar:

            def on_rows(rows):
                bar.set_postfix_str("", refresh=False)
                bar.update(rows)

            def on_compile(message):
                bar.set_postfix_str(message, refresh=False)
                # `refresh` heeds no delay, nor does the bar know that it was shown
                # and has a line to end.
                if time() >= begin + _SECONDS_BEFORE_BAR:
                    bar.refresh()
                    bar.last_print_t = time()

            decoder.on_compile = on_compile
            try:
                return decode(
                    decoder, prompts, decoding, batch_size, first_number, on_rows
                )
            finally:
                decoder.on_compile = None

    def _decoder(self):
        """Kept with its programs, as long as the model computes with the same."""
        # Without a backend until there is a model.
        from roformer_keras.layers.projection import structure_version

        begin = getattr(self.tokenizer, "cls_id", None)
        version = [structure_version(), begin, *(id(weight) for weight in self.weights)]
        if getattr(self, "_kept_decoder", (None,))[0] != version:
            self._kept_decoder = (version, self._make_decoder())
        return self._kept_decoder[1]


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

"""Searches: samples, the greedy text, beams. They work with any decoder.

A decoder has the methods of `Decoder` that a search calls. Nothing here imports a
backend.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from roformer_keras.generation.choosing import limit_repetition
from roformer_keras.generation.generation_config import (
    GeneratedText,
    GenerationConfig,
    Prompt,
)
from roformer_keras.generation.row_state import RowState, history_of


def decode(
    decoder,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    batch_size: int = 64,
    first_number: int | Sequence[int] = 0,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> list[list[GeneratedText]]:
    """Writes `num_return_sequences` texts for each prompt.

    Prompts of similar length are computed together, and rows that have ended leave
    their batch.

    Args:
        decoder: `Decoder`.
        prompts: of any lengths.
        config: how tokens are chosen.
        batch_size: int, at least 1. Maximum rows at a time: texts, or beams.
        first_number: int. The number of the first prompt in a longer list, on which its
            random numbers depend; or the numbers of all prompts.
        on_rows: called every few steps with the number of texts that have ended since;
            an exception that it raises ends the search.

    Returns:
        A list for each prompt: samples in the order of their numbers, or beams, best
        first.

    Raises:
        CheckpointError: the model's logits are not finite.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> ids = tuple(model.tokenizer.encode("床前明月光，")[0][:-1])  # without [SEP]
        >>> prompt = generation.Prompt(ids, (0,) * len(ids), max_new_tokens=5)
        >>> config = generation.GenerationConfig(method="greedy")
        >>> decoder = generation.CachedDecoder(model)
        >>> [[text]] = generation.decode(decoder, [prompt], config)
        >>> len(text.token_ids)
        5
    """
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i].token_ids))
    together = max(1, batch_size // config.copies)
    batches = [order[at : at + together] for at in range(0, len(order), together)]
    results: list[list[GeneratedText]] = [[] for _ in prompts]
    if config.method == "beam":
        for numbers in batches:
            batch = [prompts[i] for i in numbers]
            written = _beam_search(decoder, batch, config, on_rows)
            for number, texts in zip(numbers, written, strict=True):
                results[number] = texts
        return results
    row_numbers = first_number
    if isinstance(row_numbers, int | np.integer):
        row_numbers = range(row_numbers, row_numbers + len(prompts))
    texts = {
        (number, copy): _Text(
            RandomStream(config, row_numbers[number] * config.copies + copy)
        )
        for number in range(len(prompts))
        for copy in range(config.copies)
    }
    # The samples of one prompt may go into several batches.
    at_once = min(config.copies, batch_size)
    starts = [
        (numbers, range(first, min(first + at_once, config.copies)))
        for numbers in batches
        for first in range(0, config.copies, at_once)
    ]
    begin = (
        _Batch.started(
            decoder,
            [prompts[i] for i in numbers],
            [texts[number, copy] for number in numbers for copy in copies],
            config,
        )
        for numbers, copies in starts
    )
    _sample(decoder, begin, len(starts), batch_size, on_rows)
    for (number, _), text in texts.items():
        results[number].append(GeneratedText(text.token_ids, text.score))
    return results


def stream(decoder, prompt: Prompt, config: GenerationConfig) -> Iterator[int]:
    """The new ids of one text, each as soon as it is chosen.

    They are those that `decode` returns for this prompt alone.

    Args:
        decoder: `Decoder`.
        prompt: `Prompt`.
        config: `GenerationConfig`, with one text and no beams.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> ids = tuple(model.tokenizer.encode("床前明月光，")[0][:-1])  # without [SEP]
        >>> prompt = generation.Prompt(ids, (0,) * len(ids), max_new_tokens=5)
        >>> config = generation.GenerationConfig(method="greedy")
        >>> decoder = generation.CachedDecoder(model)
        >>> len(list(generation.stream(decoder, prompt, config)))
        5
    """
    random = RandomStream(config, 0)
    row = RowState.of_prompts(config, [prompt])
    logits, state = decoder.start([prompt], 1, prompt.max_new_tokens)
    tokens, _, row = decoder.choose(logits, random.take(1), row)
    yield int(tokens[0])
    while not row.done[0]:
        chosen, _, _, row = decoder.advance(state, tokens, random.take(1)[None], row)
        tokens = chosen[:, -1]
        yield int(tokens[0])


class RandomStream:
    """The random numbers of one text, the same in whichever batch it is computed."""

    def __init__(self, config: GenerationConfig, number: int):
        self._draws = config.method == "sample"
        self._generator = np.random.Generator(
            np.random.Philox(key=np.array([config.seed, number], "uint64"))
        )

    def take(self, count: int) -> np.ndarray:
        """The next float32 numbers in [0, 1); zeros if nothing is drawn."""
        if not self._draws:
            return np.zeros(count, "float32")
        return self._generator.random(count, dtype="float32")


# === Samples, and the greedy text ===


@dataclasses.dataclass
class _Text:
    """A text that is being written, and its random numbers."""

    random: RandomStream
    token_ids: list[int] = dataclasses.field(default_factory=list)
    score: float = 0.0


@dataclasses.dataclass
class _Batch:
    """Texts that are written together, one a row, and how far they are."""

    texts: list[_Text]
    state: Any
    tokens: np.ndarray
    rows: RowState

    @classmethod
    def started(cls, decoder, prompts, texts, config):
        """A batch with its first tokens; neighbouring texts are of one prompt."""
        copies = len(texts) // len(prompts)
        rows = RowState.of_prompts(config, prompts, copies)
        longest = int(rows.max_left.max())
        logits, state = decoder.start(prompts, copies, longest)
        uniforms = np.concatenate([text.random.take(1) for text in texts])
        tokens, scores, after = decoder.choose(logits, uniforms, rows)
        batch = cls(texts, state, tokens, rows)
        batch.add(tokens[:, None], scores[:, None], after)
        return batch

    def add(self, written, scores, rows):
        """Adds tokens `(rows, steps)` to the texts that had not ended."""
        counts = self.rows.max_left - rows.max_left
        sums = scores.sum(axis=1, dtype="float64")
        results = zip(self.texts, written, counts, sums, strict=True)
        for text, ids, count, score in results:
            text.token_ids += ids[:count].tolist()
            text.score += float(score)
        self.tokens, self.rows = written[:, -1], rows

    def keep(self, decoder, rows):
        decoder.select(self.state, rows)
        self.texts = [self.texts[row] for row in rows]
        self.tokens, self.rows = self.tokens[rows], self.rows.select(rows)

    def joined(self, decoder, others):
        """This batch and others, with their texts in one."""
        batches = [self, *others]
        return _Batch(
            [text for batch in batches for text in batch.texts],
            decoder.join([batch.state for batch in batches]),
            np.concatenate([batch.tokens for batch in batches]),
            self.rows.joined([batch.rows for batch in others]),
        )


def _sample(decoder, batches, count, batch_size, on_rows):
    """Writes all texts of an iterator of `count` batches.

    The few texts that go on when most of their batch have ended would take as long as
    many. A decoder that can join batches writes them later, those of several together.
    """
    set_aside, few = [], batch_size // 4 if getattr(decoder, "can_join", False) else 0
    while count or set_aside:
        waiting = sum(len(batch.texts) for batch in set_aside)
        if count and waiting + few <= batch_size:
            batch, count = next(batches), count - 1
        else:
            first, *others = set_aside
            taken, size = 0, len(first.texts)
            while taken < len(others) and size + len(others[taken].texts) <= batch_size:
                size, taken = size + len(others[taken].texts), taken + 1
            # Also alone: a state that was left can only be joined.
            batch = first.joined(decoder, others[:taken])
            set_aside = others[taken:]
        _write(decoder, batch, few if count or set_aside else 0, on_rows)
        if batch.texts:
            decoder.leave(batch.state)
            set_aside.append(batch)


def _write(decoder, batch, few, on_rows):
    """Writes until only a few texts of a batch go on, which alone stay in it."""
    active = len(batch.texts)
    while True:
        going = np.flatnonzero(~batch.rows.done)
        on_rows(active - len(going))
        active = len(going)
        if active <= few:
            if active:
                batch.keep(decoder, going)
            else:
                batch.texts = []
            return
        steps = int(batch.rows.max_left[going].max())
        if decoder.pays_to_leave(batch.state, active, steps):
            batch.keep(decoder, going)
        steps = min(steps, decoder.room(batch.state))
        uniforms = np.stack([text.random.take(steps) for text in batch.texts])
        written, scores, _, rows = decoder.advance(
            batch.state, batch.tokens, uniforms, batch.rows
        )
        batch.add(written, scores, rows)


# === Beams ===


def _beam_search(decoder, prompts, config, on_rows):
    beams = config.num_beams
    searches = [_Beams(prompt, config) for prompt in prompts]
    # Which search the rows of the state belong to, `beams` rows each.
    slots = list(range(len(prompts)))
    longest = max(prompt.max_new_tokens for prompt in prompts)
    logits, state = decoder.start(prompts, beams, longest)
    while True:
        parents, tokens = [], []
        logits = logits.reshape(len(slots), beams, -1)
        for slot, number in enumerate(slots):
            search = searches[number]
            if not search.done:
                search.extend(_log_softmax(logits[slot]))
                on_rows(beams if search.done else 0)
            parents.append(slot * beams + search.parents)
            tokens.append(search.tokens)
        going = [s for s, number in enumerate(slots) if not searches[number].done]
        if not going:
            return [search.best() for search in searches]
        steps = max(searches[slots[s]].max_left for s in going)
        if decoder.pays_to_leave(state, len(going) * beams, steps):
            parents, tokens = [parents[s] for s in going], [tokens[s] for s in going]
            slots = [slots[s] for s in going]
        decoder.select(state, np.concatenate(parents))
        count = len(slots) * beams
        # The search decides what ends.
        rows = RowState.endless(config, count)
        uniforms = np.zeros((count, 1), "float32")
        _, _, logits, _ = decoder.advance(state, np.concatenate(tokens), uniforms, rows)


class _Beams:
    """The search of one prompt."""

    def __init__(self, prompt, config):
        beams = config.num_beams
        self._history = history_of(config, [prompt], beams)
        self.done = False
        self.max_left = prompt.max_new_tokens
        self.parents = np.arange(beams)
        self.tokens = np.zeros(beams, "int32")
        self._prompt, self._config = prompt, config
        self._texts = [[] for _ in range(beams)]
        # All beams are the same before the first step: only one continues.
        self._scores = np.full(beams, -np.inf)
        self._scores[0] = 0
        self._finished = []

    def extend(self, log_probabilities):
        """A step, given `(beams, vocabulary)` log-probabilities of the next token."""
        config, beams = self._config, self._config.num_beams
        length = len(self._texts[0]) + 1
        self.max_left -= 1
        log_probabilities = limit_repetition(log_probabilities, self._history, config)
        too_short = length < self._prompt.min_new_tokens
        if too_short:
            log_probabilities[:, list(config.suppressed_stop_ids)] = -np.inf
        scores = self._scores[:, None] + log_probabilities
        texts, parents, going = [], [], []
        # Even if all stop tokens rank high, `beams` candidates are left to continue.
        count = beams * (1 + max(1, len(config.stop_ids)))
        for rank, (score, beam, token) in enumerate(_largest(scores, count)):
            text = [*self._texts[beam], token]
            if self.max_left == 0 or (token in config.stop_ids and not too_short):
                # Only the first `beams` candidates may end, as in Transformers.
                if rank < beams:
                    self._finish(score / length**config.length_penalty, text)
            elif len(texts) < beams:
                texts.append(text)
                parents.append(beam)
                going.append(score)
        self.done = not texts or self._cannot_gain(going[0])
        missing = beams - len(texts)
        self._texts = texts + [[0] * length] * missing
        self._scores = np.array(going + [-np.inf] * missing)
        self.parents = np.array(parents + [0] * missing)
        self.tokens = np.array([text[-1] for text in self._texts], "int32")
        if self._history is not None:
            history = self._history[self.parents]
            self._history = np.column_stack([history, self.tokens])

    def best(self) -> list[GeneratedText]:
        ranked = sorted(self._finished, reverse=True)
        return [
            GeneratedText(text, float(score))
            for score, _, text in ranked[: self._config.num_return_sequences]
        ]

    def _finish(self, score, text):
        # For equal scores, keep the earlier text.
        heapq.heappush(self._finished, (score, -len(text), text))
        if len(self._finished) > self._config.num_beams:
            heapq.heappop(self._finished)

    def _cannot_gain(self, score):
        """True if no beam can come to rank among the finished, whatever follows."""
        if len(self._finished) < self._config.num_beams:
            return False
        longest = self._prompt.max_new_tokens
        return score / longest**self._config.length_penalty <= self._finished[0][0]


def _largest(scores, count):
    """Score, beam and id of the largest finite scores `(beams, vocabulary)`."""
    flat = scores.ravel()
    count = min(count, flat.size)
    largest = np.sort(np.argpartition(-flat, count - 1)[:count])
    largest = largest[np.argsort(-flat[largest], kind="stable")]
    for index in largest[np.isfinite(flat[largest])]:
        beam, token = divmod(int(index), scores.shape[1])
        yield float(flat[index]), beam, token


def _log_softmax(logits):
    logits = logits.astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

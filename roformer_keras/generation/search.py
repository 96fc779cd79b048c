"""Searches: samples, the greedy text, beams. They work with any decoder.

A decoder has the methods of `Decoder` that a search calls. Nothing here imports a
backend.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from roformer_keras.generation.options import (
    GeneratedText,
    GenerationConfig,
    Prompt,
    RowState,
)


def decode(
    decoder,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    batch_size: int = 64,
    first_number: int = 0,
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
            random numbers depend.
        on_rows: called with the number of texts that have ended.

    Returns:
        A list for each prompt: samples in the order of their numbers, or beams, best
        first.

    Raises:
        CheckpointError: the model's logits are not finite.
    """
    beams = config.method == "beam"
    copies = config.copies
    results: list[list[GeneratedText]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i].token_ids))
    # The samples of one prompt may go into several batches, its beams may not.
    at_once = copies if beams else min(copies, batch_size)
    together = max(1, batch_size // copies)
    for at in range(0, len(order), together):
        numbers = order[at : at + together]
        batch = [prompts[i] for i in numbers]
        for first in range(0, copies, at_once):
            count = min(at_once, copies - first)
            if beams:
                written = _beam_search(decoder, batch, config, on_rows)
            else:
                streams = [
                    RandomStream(config, (first_number + i) * copies + first + copy)
                    for i in numbers
                    for copy in range(count)
                ]
                written = _sample(decoder, batch, config, count, streams, on_rows)
            for number, texts in zip(numbers, written, strict=True):
                results[number] += texts
    return results


def stream(decoder, prompt: Prompt, config: GenerationConfig) -> Iterator[int]:
    """The new ids of one text, each as soon as it is chosen.

    They are those that `decode` returns for this prompt alone.
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


def _sample(decoder, prompts, config, copies, streams, on_rows):
    count = len(prompts) * copies
    rows = RowState.of_prompts(config, prompts, copies)
    max_new_tokens = rows.max_left
    longest = int(max_new_tokens.max())
    texts, scores = np.zeros((count, longest), "int32"), np.zeros(count)
    lengths = np.zeros(count, int)
    # Which text a row of the state is; rows leave as they end.
    numbers = np.arange(count)
    logits, state = decoder.start(prompts, copies, longest)
    uniforms = np.concatenate([stream.take(1) for stream in streams])
    tokens, score, rows = decoder.choose(logits, uniforms, rows)
    written, score = tokens[:, None], score[:, None]
    length, active = 0, count
    while True:
        texts[numbers, length : length + written.shape[1]] = written
        length += written.shape[1]
        scores[numbers] += score.sum(axis=1, dtype="float64")
        lengths[numbers] = max_new_tokens[numbers] - rows.max_left
        going = np.flatnonzero(~rows.done)
        on_rows(active - len(going))
        active = len(going)
        if not active:
            break
        tokens = written[:, -1]
        steps = int(rows.max_left[going].max())
        if decoder.pays_to_leave(state, active, steps):
            decoder.select(state, going)
            numbers, tokens, rows = numbers[going], tokens[going], rows.select(going)
        steps = min(steps, decoder.room(state))
        uniforms = np.stack([streams[number].take(steps) for number in numbers])
        written, score, _, rows = decoder.advance(state, tokens, uniforms, rows)
    found = [
        GeneratedText(ids[:length].tolist(), float(score))
        for ids, length, score in zip(texts, lengths, scores, strict=True)
    ]
    return [found[at : at + copies] for at in range(0, count, copies)]


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
    """The search of one prompt.

    Attributes:
        parents: int `(beams,)`. Which beam each of the next beams continues.
        tokens: int32 `(beams,)`. With which token.
        done: bool.
        max_left: int. Tokens that beams may still grow by.
    """

    def __init__(self, prompt, config):
        beams = config.num_beams
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
                # What is less likely than two whole beams is no way to end.
                if rank < 2 * beams:
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

    def best(self) -> list[GeneratedText]:
        ranked = sorted(self._finished, reverse=True)
        return [
            GeneratedText(text, float(score))
            for score, _, text in ranked[: self._config.num_return_sequences]
        ]

    def _finish(self, score, text):
        # Of equal scores the earlier stays.
        heapq.heappush(self._finished, (score, -len(text), text))
        if len(self._finished) > self._config.num_beams:
            heapq.heappop(self._finished)

    def _cannot_gain(self, score):
        """Whether no beam can come to rank among the finished, whatever follows."""
        if len(self._finished) < self._config.num_beams:
            return False
        longest = self._prompt.max_new_tokens
        return score / longest**self._config.length_penalty <= self._finished[0][0]


def _largest(scores, count):
    """Score, beam and id of the largest finite scores `(beams, vocabulary)`."""
    flat = scores.ravel()
    count = min(count, flat.size)
    found = np.sort(np.argpartition(-flat, count - 1)[:count])
    found = found[np.argsort(-flat[found], kind="stable")]
    for index in found[np.isfinite(flat[found])]:
        beam, token = divmod(int(index), scores.shape[1])
        yield float(flat[index]), beam, token


def _log_softmax(logits):
    logits = logits.astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

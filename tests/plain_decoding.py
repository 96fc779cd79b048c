"""Decoding as slow as can be: no cache, no batch, by sorting, in float64 NumPy.

Nothing but the model itself is the package's. Unit tests compare searches with it over
`FakeDecoder`, `test_generation.py` models on TensorFlow, `backend_checks.py` on the
other backends.
"""

from types import SimpleNamespace

import numpy as np
from plain_losses import log_softmax

# Texts and their rows are padded to multiples, for backends that compile each shape.
PAD, PAD_ROWS = 32, 4


class FakeDecoder:
    """A decoder for a search, in NumPy: no model, and nothing is compiled.

    The logits of the next token are a row of a random table, which all tokens so far
    determine together.

    Args:
        steps: int. The most steps that `advance` does in one call.
        leaves: bool. Whether rows that have ended leave at once.
        scale: float. Standard deviation of the logits.

    Attributes:
        rows: list of int. The rows of each call of `start` and `advance`.
    """

    def __init__(self, steps=4, leaves=False, vocabulary_size=40, scale=2.0):
        generator = np.random.default_rng(5)
        self.table = generator.normal(size=(997, vocabulary_size), scale=scale)
        self.steps, self.leaves, self.rows = steps, leaves, []
        self.on_compile = None

    def all_logits(self, prompt, texts):
        """As `all_logits` below."""
        rows_of_logits = []
        for text in texts:
            states = [self._read(prompt)]
            for token in text:
                states.append(self._read([token], states[-1]))
            rows_of_logits.append(self.table[states])
        return np.array(rows_of_logits)

    def start(self, prompts, copies, max_new_tokens):
        states = [self._read(prompt.token_ids) for prompt in prompts]
        state = SimpleNamespace(rows=np.repeat(states, copies))
        self.rows.append(len(state.rows))
        return self.table[state.rows], state

    def choose(self, logits, uniforms, rows):
        config, tokens, scores = rows.config, [], []
        for row, (found, uniform) in enumerate(zip(logits, uniforms, strict=True)):
            allowed = found.copy()
            if rows.min_left[row] > 1:
                allowed[list(config.suppressed_stop_ids)] = -np.inf
            if config.method == "sample":
                bounds = np.cumsum(
                    kept(allowed, config.temperature, config.top_k, config.top_p)
                )
                token = np.searchsorted(bounds, uniform * bounds[-1], side="right")
            else:
                token = allowed.argmax()
            tokens.append(int(token))
            scores.append(log_softmax(found)[token])
        going = ~rows.done
        tokens, scores = np.int32(tokens) * going, np.array(scores) * going
        max_left, min_left = rows.max_left - going, rows.min_left - going
        stops = np.isin(tokens, config.stop_ids) & (min_left <= 0)
        limits = max_left, min_left, rows.done | stops | (max_left <= 0)
        return tokens, scores, rows.with_limits(limits)

    def advance(self, state, tokens, uniforms, rows):
        self.rows.append(len(tokens))
        assert uniforms.shape[1] <= self.steps
        chosen = []
        for uniform in uniforms.T:
            pairs = zip(tokens, state.rows, strict=True)
            state.rows = np.array([self._read([token], row) for token, row in pairs])
            logits = self.table[state.rows]
            tokens, scores, rows = self.choose(logits, uniform, rows)
            chosen.append((tokens, scores))
            if rows.done.all():
                break
        tokens, scores = (
            np.stack(steps, axis=1) for steps in zip(*chosen, strict=True)
        )
        return tokens, scores, logits, rows

    def select(self, state, rows):
        state.rows = state.rows[rows]

    def room(self, state):
        return self.steps

    def pays_to_leave(self, state, rows, steps):
        return self.leaves and rows < len(state.rows)

    def _read(self, token_ids, state=0):
        for token_id in token_ids:
            state = (31 * state + int(token_id) + 1) % len(self.table)
        return state


def _host(tensor):
    from keras import ops

    return ops.convert_to_numpy(ops.cast(tensor, "float32")).astype("float64")


def all_logits(model, prompt, texts):
    """Float64 logits `(texts, length + 1, vocabulary)` of each token and the next.

    Args:
        prompt: ids of one prompt.
        texts: rows of ids that were written for it, all of one length.
    """
    if isinstance(model, FakeDecoder):
        return model.all_logits(prompt, texts)
    causal = model.config.attention == "causal"
    rows = np.array([[*prompt, *text] for text in texts], "int32")
    count, length = rows.shape
    padded, padded_rows = -(-length // PAD) * PAD, -(-count // PAD_ROWS) * PAD_ROWS
    token_ids = np.zeros((padded_rows, padded), "int32")
    token_ids[:count, :length] = rows
    token_ids[count:] = token_ids[0]
    segment_ids = np.full(token_ids.shape, 0 if causal else 1, "int32")
    segment_ids[:, : len(prompt)] = 0
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    if "position_ids" in model.input:
        positions = np.arange(padded, dtype="float32")
        inputs["position_ids"] = np.tile(positions, (padded_rows, 1))
    outputs = model(inputs, training=False)
    if isinstance(outputs, dict):
        outputs = outputs["logits"]
    return _host(outputs)[:count, len(prompt) - 1 : length]


def next_logits(model, prompt, texts):
    """Float64 `(texts, vocabulary)`."""
    return all_logits(model, prompt, texts)[:, -1]


def score(model, prompt, text):
    """The log-probability of a text, token by token."""
    log_probabilities = log_softmax(all_logits(model, prompt, [text])[0, :-1])
    return log_probabilities[np.arange(len(text)), text].sum()


def kept(logits, temperature=1.0, top_k=None, top_p=1.0):
    """The distribution that a token is drawn from: float64 `(vocabulary,)`."""
    logits = logits.astype("float64")
    weights = np.exp((logits - logits.max()) / temperature)
    if top_k is not None and top_k < len(weights):
        weights = weights * (weights >= np.sort(weights)[-top_k])
    if top_p < 1:
        ordered = np.sort(weights)[::-1]
        crosses = np.searchsorted(np.cumsum(ordered), top_p * ordered.sum())
        weights = weights * (weights >= ordered[crosses])
    return weights / weights.sum()


def _as_it_is(text, scores):
    return scores


def write(
    model,
    prompt,
    limit,
    choose,
    stops=(),
    suppressed=(),
    minimum=0,
    draft=(),
    process=_as_it_is,
):
    """One text, token by token; `choose` is given the logits that `process` gives.

    As long as a draft agrees, its logits are computed in one go, which is the same.
    """
    text, ahead = [], ()
    while True:
        if len(text) < len(ahead) and list(draft[: len(text)]) == text:
            logits = ahead[len(text)].copy()
        else:
            continued = draft if list(draft[: len(text)]) == text else text
            (ahead,) = all_logits(model, prompt, [continued])
            logits = ahead[len(text)].copy()
        logits = process(text, logits)
        if len(text) + 1 < minimum:
            logits[list(suppressed)] = -np.inf
        text.append(int(choose(logits)))
        if len(text) == limit or (text[-1] in stops and len(text) >= minimum):
            return text


def greedy(model, prompt, limit, **options):
    return write(model, prompt, limit, np.argmax, **options)


def sample(model, prompt, limit, seed, number, cuts, **options):
    """The text of this number in the order of the call, for a seed."""
    stream = np.random.Generator(
        np.random.Philox(key=np.array([seed, number], "uint64"))
    )

    def choose(logits):
        bounds = np.cumsum(kept(logits, **cuts))
        uniform = stream.random(dtype="float32")
        return np.searchsorted(bounds, uniform * bounds[-1], side="right")

    return write(model, prompt, limit, choose, **options)


def beam(
    model,
    prompt,
    limit,
    beams,
    penalty=0.0,
    stops=(),
    suppressed=(),
    minimum=0,
    process=_as_it_is,
):
    """The best `beams` finished texts as (score, text), best first.

    It never stops before `limit`: to stop where nothing can be gained changes nothing.
    """
    live, finished = [(0.0, [])], []
    for length in range(1, limit + 1):
        logits = next_logits(model, prompt, [text for _, text in live])
        pairs = zip(live, log_softmax(logits), strict=True)
        log_probabilities = np.stack([process(one[1], row) for one, row in pairs])
        if length < minimum:
            log_probabilities[:, list(suppressed)] = -np.inf
        scores = np.array([score for score, _ in live])[:, None] + log_probabilities
        going = []
        order = np.argsort(-scores.ravel(), kind="stable")
        for rank, index in enumerate(order[: beams * (1 + max(1, len(stops)))]):
            beam, token = divmod(int(index), scores.shape[1])
            total, text = scores[beam, token], [*live[beam][1], token]
            if length == limit or (token in stops and length >= minimum):
                if rank < beams:
                    finished.append((total / length**penalty, text))
            elif len(going) < beams:
                going.append((total, text))
        live = going
        if not live:
            break
    return sorted(finished, key=lambda one: -one[0])[:beams]


def assert_logits(model, prompts, length, room, decoder=None):
    """Checks a decoder's logits of prompts and random texts against the model.

    Args:
        model: with a `_decoder`.
        prompts: two rows of ids.
        length: int. Tokens to feed, some of them of id 0, which later ones do not see.
        room: int. New tokens for which the decoder makes room.
        decoder: another than the model's own.
    """
    from roformer_keras.generation import GenerationConfig, Prompt, RowState

    texts = np.random.default_rng(1).integers(1, 260, (len(prompts), length))
    texts[:, [3, length - 3, length - 2]] = 0
    decoder = decoder or model._decoder()
    rows = [Prompt(prompt, (0,) * len(prompt), 999) for prompt in prompts]
    logits, state = decoder.start(rows, 1, room)
    endless = RowState.endless(GenerationConfig(method="greedy"), len(rows))
    steps, uniforms = [logits], np.zeros((len(rows), 1), "float32")
    for tokens in texts.T:
        *_, logits, _ = decoder.advance(state, tokens, uniforms, endless)
        steps.append(logits)
    for prompt, text, ours in zip(prompts, texts, np.stack(steps, axis=1), strict=True):
        (expected,) = all_logits(model, prompt, [text])
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)

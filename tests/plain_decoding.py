"""Decoding as slow as can be: no cache, no batch, by sorting, in float64 NumPy.

Nothing but the model itself is the package's. `test_generation.py` compares with it on
TensorFlow, `backend_checks.py` on the other backends.
"""

from types import SimpleNamespace

import numpy as np
from keras import ops

# Texts are padded to multiples of it, for backends that compile for each length.
PAD = 32


class EncoderDecoder:
    """A `RoFormerSeq2Seq` as the functions below ask for a model, from one source."""

    config = SimpleNamespace(attention="causal")
    input = ()

    def __init__(self, model, source):
        self._model, self._source = model, source

    def __call__(self, inputs, training):
        rows, first = inputs["token_ids"], len(self._source) - 1
        target = rows[:, first:].copy()
        # Where the source ends the target begins.
        target[:, 0] = self._model.tokenizer.cls_id
        source = np.tile(np.array(self._source, "int32"), (len(rows), 1))
        found = self._model(
            {"encoder_token_ids": source, "decoder_token_ids": target}, training=False
        )
        found = ops.convert_to_numpy(found).astype("float64")
        return np.pad(found, ((0, 0), (first, 0), (0, 0)))


def all_logits(model, prompt, texts):
    """Float64 logits `(texts, length + 1, vocabulary)` of each token and the next.

    Args:
        prompt: ids of one prompt.
        texts: rows of ids that were written for it, all of one length.
    """
    causal = model.config.attention == "causal"
    rows = np.array([[*prompt, *text] for text in texts], "int32")
    count, length = rows.shape
    padded = -(-length // PAD) * PAD
    token_ids = np.zeros((count, padded), "int32")
    token_ids[:, :length] = rows
    segment_ids = np.full((count, padded), 0 if causal else 1, "int32")
    segment_ids[:, : len(prompt)] = 0
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    if "position_ids" in model.input:
        inputs["position_ids"] = np.tile(np.arange(padded, dtype="float32"), (count, 1))
    outputs = model(inputs, training=False)
    if isinstance(outputs, dict):
        outputs = outputs["logits"]
    logits = ops.convert_to_numpy(ops.cast(outputs, "float32")).astype("float64")
    return logits[:, len(prompt) - 1 : length]


def next_logits(model, prompt, texts):
    """Float64 `(texts, vocabulary)`."""
    return all_logits(model, prompt, texts)[:, -1]


def log_softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def score(model, prompt, text):
    """The log-probability of a text, token by token."""
    found = log_softmax(all_logits(model, prompt, [text])[0, :-1])
    return found[np.arange(len(text)), text].sum()


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


def write(model, prompt, most, choose, stops=(), late=(), least=0, draft=()):
    """One text, token by token; `choose` is given the logits.

    As long as a draft agrees, its logits are computed in one go, which is the same.
    """
    text, ahead = [], ()
    while True:
        if len(text) < len(ahead) and list(draft[: len(text)]) == text:
            logits = ahead[len(text)].copy()
        else:
            rest = draft if list(draft[: len(text)]) == text else text
            (ahead,) = all_logits(model, prompt, [rest])
            logits = ahead[len(text)].copy()
        if len(text) + 1 < least:
            logits[list(late)] = -np.inf
        text.append(int(choose(logits)))
        if len(text) == most or (text[-1] in stops and len(text) >= least):
            return text


def greedy(model, prompt, most, **options):
    return write(model, prompt, most, np.argmax, **options)


def sample(model, prompt, most, seed, number, cuts, **options):
    """The text of this number in the order of the call, for a seed."""
    stream = np.random.Generator(
        np.random.Philox(key=np.array([seed, number], "uint64"))
    )

    def choose(logits):
        bounds = np.cumsum(kept(logits, **cuts))
        uniform = stream.random(dtype="float32")
        return np.searchsorted(bounds, uniform * bounds[-1], side="right")

    return write(model, prompt, most, choose, **options)


def beam(model, prompt, most, beams, penalty=0.0, stops=(), late=(), least=0):
    """The best `beams` finished texts as (score, text), best first.

    It never stops before `most`: to stop where nothing can be gained changes nothing.
    """
    live, finished = [(0.0, [])], []
    for length in range(1, most + 1):
        logits = next_logits(model, prompt, [text for _, text in live])
        found = log_softmax(logits)
        if length < least:
            found[:, list(late)] = -np.inf
        scores = np.array([score for score, _ in live])[:, None] + found
        going = []
        order = np.argsort(-scores.ravel(), kind="stable")
        for rank, index in enumerate(order[: beams * (1 + max(1, len(stops)))]):
            beam, token = divmod(int(index), scores.shape[1])
            total, text = scores[beam, token], [*live[beam][1], token]
            if length == most or (token in stops and length >= least):
                if rank < 2 * beams:
                    finished.append((total / length**penalty, text))
            elif len(going) < beams:
                going.append((total, text))
        live = going
        if not live:
            break
    return sorted(finished, key=lambda one: -one[0])[:beams]

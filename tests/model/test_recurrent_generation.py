"""Decoding with a state of constant size against computing the whole text again."""

import keras
import numpy as np
import plain_decoding as plain
import pytest
from common import random_lm

from roformer_keras.generation import GenerationConfig, Prompt, RecurrentDecoder, decode

pytestmark = pytest.mark.slow

# Unequal lengths, and a token of padding within.
PROMPTS = [(2, 7, 9), (2, 30, 8, 0, 11, 200, 41)]


@pytest.fixture(scope="module")
def model():
    return random_lm(num_layers=2, attention_type="linear")


@pytest.mark.parametrize(
    "fields",
    # What changes what a model keeps: features, rotation, positions, segments, biases.
    [
        {"attention_type": "linear"},
        {"attention_type": "cosine", "custom_position_ids": True},
        {
            "attention_type": "performer",
            "performer_features": 12,
            "shared_segment_embeddings": True,
        },
        {
            "attention_type": "rotary_performer",
            "performer_features": 12,
            "custom_position_ids": True,
        },
        {"attention_type": "performer", "rotary": False, "model_type": "roformer_v2"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_logits_at_every_step(fields, uncompiled):
    plain.assert_logits(random_lm(num_layers=2, **fields), PROMPTS, 12, room=12)


def test_samples_and_beams_equal_a_plain_loop(model):
    """Four rows each, and more tokens than one call of the program takes."""
    cuts, stops = {"top_k": 30, "top_p": 0.9}, (5, 17)
    outputs = model.generate(
        PROMPTS,
        num_return_sequences=2,
        max_length=45,
        stop_tokens=stops,
        seed=3,
        **cuts,
    )
    assert max(len(text) for texts in outputs for text in texts) > 34
    for at, (prompt, texts) in enumerate(zip(PROMPTS, outputs, strict=True)):
        for copy, text in enumerate(texts):
            draw = (45 - len(prompt), 3, 2 * at + copy, cuts)
            expected = plain.sample(model, prompt, *draw, stops=stops, draft=text)
            assert text == expected
    outputs = model.generate(
        PROMPTS,
        method="beam",
        num_beams=2,
        num_return_sequences=2,
        max_length=20,
        stop_tokens=stops,
        return_scores=True,
    )
    for prompt, texts in zip(PROMPTS, outputs, strict=True):
        expected = plain.beam(model, prompt, 20 - len(prompt), 2, stops=stops)
        assert [one.output for one in texts] == [text for _, text in expected]
        np.testing.assert_allclose(
            [one.score for one in texts], [score for score, _ in expected], atol=1e-3
        )


def test_rows_that_have_ended_leave_a_large_batch(model):
    prompts = [(2, 7 + i) for i in range(20)]
    options = {"method": "greedy", "max_length": 60, "stop_tokens": range(5, 12)}
    generated = model.generate(prompts, **options)
    lengths = [len(text) for text in generated]
    assert min(lengths) < 20 < max(lengths)
    for at in (0, int(np.argmin(lengths)), int(np.argmax(lengths))):
        assert generated[at] == plain.greedy(
            model, prompts[at], 58, stops=range(5, 12), draft=generated[at]
        )


def test_the_state_does_not_grow(model):
    """Neither with the prompt nor with what is written; and no program is added."""
    decoder, said = RecurrentDecoder(model._decoder().model), []
    decoder.on_compile = said.append
    sizes, states = set(), []
    start = decoder.start

    def size(state):
        caches = keras.tree.map_structure(keras.ops.convert_to_numpy, state.caches)
        return sum(part.nbytes for pair in caches for part in pair)

    def recorded(*arguments):
        logits, state = start(*arguments)
        sizes.add(size(state))
        states.append(state)
        return logits, state

    decoder.start = recorded
    for length, limit in ((3, 5), (60, 50), (300, 80)):
        prompt = Prompt((2,) + (9,) * (length - 1), (0,) * length, limit)
        (written,) = decode(decoder, [prompt], GenerationConfig(method="greedy"))[0]
        assert len(written.token_ids) == limit
        assert states[-1].written == limit - 1
        sizes.add(size(states[-1]))
    heads, features, dim, layers = 2, 8, 8, 2
    assert sizes == {4 * layers * heads * features * (dim + 1)}
    assert sum("steps" in line for line in said) == 1

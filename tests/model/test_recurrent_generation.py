"""Writing with a state of constant size against computing the whole text again."""

import keras
import numpy as np
import plain_decoding as plain
import pytest
from common import GPT

from roformer_keras import RoFormerCausalLM, RoFormerConfig
from roformer_keras.errors import CheckpointError
from roformer_keras.generation import GenerationConfig, Prompt, RecurrentDecoder, decode

# Unequal lengths, and a token of padding within.
PROMPTS = [(2, 7, 9), (2, 30, 8, 0, 11, 200, 41), (2, 8)]
STOPS = (5, 17, 60, 61)

# What changes what a model keeps: features, rotation, positions, segments, no biases.
MAKE = {
    "linear": {"attention_type": "linear"},
    "cosine-position-ids": {"attention_type": "cosine", "custom_position_ids": True},
    "performer-shared-segments": {
        "attention_type": "performer",
        "performer_features": 12,
        "shared_segment_embeddings": True,
    },
    "rotary-performer": {
        "attention_type": "rotary_performer",
        "performer_features": 12,
        "custom_position_ids": True,
    },
    "performer-v2-without-rotation": {
        "attention_type": "performer",
        "rotary": False,
        "model_type": "roformer_v2",
    },
}


def fresh(**fields):
    """A model of random weights that are large enough to tell tokens apart."""
    config = RoFormerConfig(
        vocabulary_size=260,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=24,
        attention="causal",
        **fields,
    )
    model = RoFormerCausalLM.from_roformer_config(config)
    generator = np.random.default_rng(3)
    for weight in model.weights:
        value = generator.normal(size=weight.shape, scale=0.4)
        weight.assign(value + 1 if weight.name == "gamma" else value)
    return model


@pytest.fixture(scope="module")
def models():
    """By name, each made when it is first asked for, with its programs."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = fresh(**MAKE[name])
        return made[name]

    return get


@pytest.mark.parametrize("name", MAKE)
def test_greedy_and_beams_equal_a_plain_loop(name, models):
    """More tokens than one call of the program takes."""
    model = models(name)
    options = {"max_length": 45, "stop_tokens": STOPS, "return_scores": True}
    found = model.generate(PROMPTS, method="greedy", **options)
    assert max(len(one.output) for one in found) > 34
    for prompt, one in zip(PROMPTS, found, strict=True):
        most = 45 - len(prompt)
        expected = plain.greedy(model, prompt, most, stops=STOPS, draft=one.output)
        assert one.output == expected
        assert one.score == pytest.approx(
            plain.score(model, prompt, expected), abs=1e-3
        )
    options.update(method="beam", num_beams=2, num_return_sequences=2, max_length=20)
    # As many rows as before: beams take the program that there is.
    found = model.generate(PROMPTS[:2], **options)
    for prompt, texts in zip(PROMPTS[:2], found, strict=True):
        expected = plain.beam(model, prompt, 20 - len(prompt), 2, stops=STOPS)
        assert [one.output for one in texts] == [text for _, text in expected]
        np.testing.assert_allclose(
            [one.score for one in texts], [score for score, _ in expected], atol=1e-3
        )


def test_samples_follow_the_seed_and_the_plain_distribution(models):
    model, cuts = models("linear"), {"top_k": 30, "top_p": 0.9}
    options = {"max_length": 24, "stop_tokens": STOPS, "seed": 3, **cuts}
    found = model.generate(PROMPTS[:2], num_return_sequences=2, **options)
    for at, prompt in enumerate(PROMPTS[:2]):
        for copy, text in enumerate(found[at]):
            assert text == plain.sample(
                model,
                prompt,
                24 - len(prompt),
                3,
                2 * at + copy,
                cuts,
                stops=STOPS,
                draft=text,
            )
    # Row by row, and in a list, as together.
    again = [
        text
        for first in (0, 1)
        for text in model.generate(
            PROMPTS[first : first + 1],
            num_return_sequences=2,
            first_number=first,
            **options,
        )
    ]
    assert again == found


def test_rows_that_have_ended_leave_a_large_batch(models):
    model = models("linear")
    prompts = [(2, 7 + i) for i in range(20)]
    options = {"method": "greedy", "max_length": 60, "stop_tokens": range(5, 12)}
    found = model.generate(prompts, **options)
    lengths = [len(text) for text in found]
    assert min(lengths) < 20 < max(lengths)
    for at in (0, int(np.argmin(lengths)), int(np.argmax(lengths))):
        assert found[at] == plain.greedy(
            model, prompts[at], 58, stops=range(5, 12), draft=found[at]
        )


def test_a_stream_is_the_text():
    model = RoFormerCausalLM.from_preset(GPT, attention_type="linear")
    options = {"max_length": 24, "seed": 1}
    pieces = list(model.stream("今天天气", **options))
    assert "".join(pieces) == model.generate("今天天气", **options)
    assert len(pieces) > 1


def test_the_state_does_not_grow(models):
    """Neither with the prompt nor with what is written; and no program is added."""
    model = models("linear")
    decoder, said = RecurrentDecoder(model._decoder().model), []
    decoder.on_compile = said.append
    sizes = set()
    start = decoder.start

    def recorded(*arguments):
        logits, state = start(*arguments)
        sizes.add(sum(part.nbytes for pair in host(state.caches) for part in pair))
        recorded.state = state
        return logits, state

    decoder.start = recorded
    for length, most in ((3, 5), (60, 50), (300, 80)):
        prompt = Prompt((2,) + (9,) * (length - 1), (0,) * length, most)
        (written,) = decode(decoder, [prompt], GenerationConfig(method="greedy"))[0]
        assert len(written.token_ids) == most
        sizes.add(
            sum(part.nbytes for pair in host(recorded.state.caches) for part in pair)
        )
        assert recorded.state.written == most - 1
    heads, features, dim, layers = 2, 8, 8, 2
    assert sizes == {4 * layers * heads * features * (dim + 1)}
    assert sum("steps" in line for line in said) == 1


def host(caches):
    return keras.tree.map_structure(keras.ops.convert_to_numpy, caches)


def test_weights_that_are_no_numbers(models):
    model = fresh(attention_type="cosine")
    weight = model.backbone.transformer_layers[0].attention.query.kernel
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(CheckpointError, match="finite"):
        model.generate(PROMPTS[0], method="greedy", max_length=8, stop_tokens=STOPS)

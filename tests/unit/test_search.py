"""Samples, greedy texts, beams and streams, against one token at a time.

The decoder is one of NumPy: see `plain_decoding.FakeDecoder`.
"""

import dataclasses

import numpy as np
import plain_decoding as plain
import pytest
from common import GPT, WORD
from plain_decoding import FakeDecoder

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.generation import GenerationConfig, Prompt, decode, stream
from roformer_keras.generation.beam_search import RandomStream
from roformer_keras.generation.generate import text_pieces

PROMPTS = [(2, 7, 9), (2, 30, 8, 0, 11, 20, 31), (2, 8), (2, 12, 13, 14)]
# The first is suppressed before a text is long enough, as [SEP] is.
STOPS = (3, 5, 17)
DECODER = FakeDecoder()


def prompts_of(rows=PROMPTS, limit=20, minimum=0):
    return [Prompt(ids, (0,) * len(ids), limit, minimum) for ids in rows]


def ids_of(found):
    return [[text.token_ids for text in texts] for texts in found]


def config_of(**changes):
    options = {"stop_ids": STOPS, "suppressed_stop_ids": STOPS[:1], **changes}
    if options.get("method", "sample") == "sample":
        options.setdefault("top_p", 1.0)
    return GenerationConfig(**options)


# Steps of a call, whether rows leave, rows of a batch: each pair of values.
WAYS = [(1, False, 1), (1, True, 3), (1, True, 64), (7, True, 1), (7, False, 3)]
WAYS += [(7, False, 64)]
CUTS = [{}, {"top_k": 4}, {"top_p": 0.5, "temperature": 2.0}]


@pytest.mark.parametrize("minimum", [0, 9])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_samples_equal_a_plain_loop(cuts, minimum):
    config = config_of(num_return_sequences=3, seed=11, **cuts)
    options = {"stops": STOPS, "suppressed": STOPS[:1], "minimum": minimum}
    expected = [
        [
            plain.sample(DECODER, prompt, 20, 11, 3 * at + copy, cuts, **options)
            for copy in range(3)
        ]
        for at, prompt in enumerate(PROMPTS)
    ]
    lengths = {len(text) for texts in expected for text in texts}
    assert len(lengths) > 3 and min(lengths) >= minimum
    for steps, leaves, batch_size in WAYS:
        decoder = FakeDecoder(steps, leaves)
        samples = decode(decoder, prompts_of(minimum=minimum), config, batch_size)
        assert ids_of(samples) == expected
        # The score is of the whole distribution, whatever the limits cut.
        for prompt, texts in zip(PROMPTS, samples, strict=True):
            for text in texts:
                score = plain.score(DECODER, prompt, text.token_ids)
                assert text.score == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("minimum", [0, 9])
def test_greedy_equals_a_plain_loop(minimum):
    config = config_of(method="greedy")
    options = {"stops": STOPS, "suppressed": STOPS[:1], "minimum": minimum}
    expected = [[plain.greedy(DECODER, ids, 20, **options)] for ids in PROMPTS]
    for steps, leaves, batch_size in WAYS:
        decoder = FakeDecoder(steps, leaves)
        decoded = decode(decoder, prompts_of(minimum=minimum), config, batch_size)
        assert ids_of(decoded) == expected


@pytest.mark.parametrize("penalty", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("minimum", [0, 9])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_beams_equal_a_plain_search(beams, minimum, penalty):
    config = config_of(
        method="beam",
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=penalty,
    )
    options = {"stops": STOPS, "suppressed": STOPS[:1], "minimum": minimum}
    expected = [
        plain.beam(DECODER, ids, 20, beams, penalty, **options) for ids in PROMPTS
    ]
    for leaves, batch_size in ((False, 64), (True, 64), (True, 1)):
        decoder = FakeDecoder(1, leaves)
        decoded = decode(decoder, prompts_of(minimum=minimum), config, batch_size)
        assert ids_of(decoded) == [[text for _, text in texts] for texts in expected]
        for texts, others in zip(decoded, expected, strict=True):
            scores = [text.score for text in texts]
            assert scores == sorted(scores, reverse=True)
            assert scores == pytest.approx([score for score, _ in others], abs=1e-9)


def test_beams_look_beyond_tokens_that_end():
    """If all of the likeliest next tokens end the text, other beams continue."""
    (logits,) = plain.next_logits(DECODER, PROMPTS[1], [[]])
    stops = tuple(np.argsort(-logits)[:7].tolist())
    config = GenerationConfig(
        method="beam", num_beams=1, length_penalty=1.0, stop_ids=stops
    )
    (((text,),),) = [decode(FakeDecoder(), prompts_of(PROMPTS[1:2], 3), config)]
    ((score, _),) = plain.beam(DECODER, PROMPTS[1], 3, 1, 1.0, stops=stops)
    assert text.score == pytest.approx(score)


def test_the_best_beam_alone_and_with_others():
    options = {"method": "beam", "num_beams": 3}
    (best,), (all_three,) = (
        decode(
            FakeDecoder(),
            prompts_of(PROMPTS[:1]),
            config_of(num_return_sequences=count, **options),
        )
        for count in (1, 3)
    )
    assert best == all_three[:1]
    assert len({tuple(text.token_ids) for text in all_three}) == 3


def test_a_stop_token_that_is_not_suppressed_is_written_and_does_not_end():
    text = plain.greedy(DECODER, PROMPTS[0], 17)
    config = GenerationConfig(method="greedy", stop_ids=(text[2],))
    ((found,),) = ids_of(decode(FakeDecoder(), prompts_of(PROMPTS[:1], 17), config))
    assert found == text[: text.index(text[2]) + 1]
    rows = prompts_of(PROMPTS[:1], 17, minimum=6)
    ((found,),) = ids_of(decode(FakeDecoder(), rows, config))
    assert found[:6] == text[:6]
    assert len(found) > 3


def test_rows_that_have_ended_leave_and_are_counted():
    config, counted = config_of(num_return_sequences=3, seed=11), []
    decoder = FakeDecoder(1, leaves=True)
    decode(decoder, prompts_of(), config, on_rows=counted.append)
    assert decoder.rows[0] == 12
    assert decoder.rows == sorted(decoder.rows, reverse=True)
    assert len(set(decoder.rows)) > 3
    assert sum(counted) == 12
    # A beam search ends as a whole: all beams of a prompt leave together.
    config, counted = config_of(method="beam", num_beams=2), []
    decoder = FakeDecoder(1, leaves=True, scale=5.0)
    rows = [
        dataclasses.replace(row, max_new_tokens=limit)
        for row, limit in zip(prompts_of(), (5, 9, 20, 20), strict=True)
    ]
    decode(decoder, rows, config, on_rows=counted.append)
    assert sum(counted) == 8
    assert decoder.rows[0] == 8 and decoder.rows[-1] < 8
    assert all(rows % 2 == 0 for rows in decoder.rows)


def test_a_list_in_parts_gets_the_texts_of_the_whole():
    config = config_of(num_return_sequences=2, seed=3)
    whole = decode(FakeDecoder(), prompts_of(), config)
    parts = [
        texts
        for first, last in ((0, 1), (1, 3), (3, 4))
        for texts in decode(
            FakeDecoder(), prompts_of()[first:last], config, first_number=first
        )
    ]
    assert parts == whole
    others = config_of(num_return_sequences=2, seed=4)
    assert decode(FakeDecoder(), prompts_of(), others) != whole


@pytest.mark.parametrize("method", ["sample", "greedy"])
def test_a_stream_gives_each_token_as_soon_as_it_is_chosen(method):
    config = config_of(method=method, seed=6)
    (prompt,) = prompts_of(PROMPTS[:1], minimum=8)
    ((expected,),) = ids_of(decode(FakeDecoder(), [prompt], config))
    decoder, streamed = FakeDecoder(), []
    for number, token in enumerate(stream(decoder, prompt, config), start=1):
        streamed.append(token)
        assert len(decoder.rows) == number
    assert streamed == expected


# === Random numbers ===


def test_random_numbers_of_a_text_are_the_same_however_they_are_taken():
    whole = RandomStream(GenerationConfig(seed=7), 3).take(40)
    assert whole.dtype == "float32"
    assert ((whole >= 0) & (whole < 1)).all()
    for counts in ([1] * 40, [1, 15, 16, 8]):
        parts = RandomStream(GenerationConfig(seed=7), 3)
        np.testing.assert_array_equal(
            np.concatenate([parts.take(count) for count in counts]), whole
        )
    for seed, row in ((7, 4), (8, 3)):
        other = RandomStream(GenerationConfig(seed=seed), row).take(40)
        assert not np.isin(other, whole).any()


def test_every_seed_has_its_own_stream():
    seeds = [0, 1, np.int64(2), np.int32(3), np.uint64(4), 2**63 - 1, 2**63, 2**64 - 1]
    first = {RandomStream(GenerationConfig(seed=s), 0).take(1)[0] for s in seeds}
    assert len(first) == len(seeds)
    same = RandomStream(GenerationConfig(seed=np.int64(9)), 0).take(4)
    np.testing.assert_array_equal(
        same, RandomStream(GenerationConfig(seed=9), 0).take(4)
    )


# === Pieces of text ===


@pytest.mark.parametrize("source", [GPT, WORD])
def test_pieces_together_are_the_decoded_text(source):
    """Random tokens: Chinese, Latin words and their parts, digits, punctuation."""
    tokenizer = RoFormerTokenizer.from_preset(source)
    generator = np.random.default_rng(0)
    tokens = tokenizer.vocabulary
    others = [i for i, token in enumerate(tokens) if not "一" <= token[0] <= "鿿"]
    assert any(tokens[i].startswith("##") for i in others)

    def settled(index):
        return len(tokens[index]) == 1 and "一" <= tokens[index] <= "鿿"

    held = 0
    for share in np.tile([0.0, 0.5, 0.9, 1.0], 75):
        count = generator.integers(1, 25)
        ids = np.where(
            generator.random(count) < share,
            generator.choice(others, count),
            generator.integers(0, len(tokens), count),
        ).tolist()
        pieces = list(text_pieces(ids, tokenizer.decode, settled))
        assert "".join(pieces) == tokenizer.decode(ids), [tokens[i] for i in ids]
        # A turn of the server ends with each token, settled or not.
        assert [bool(piece) for piece in pieces[:count]] == list(map(settled, ids))
        assert all(pieces[count:]) and len(pieces) <= count + 1
        held += "" in pieces
    assert held > 25
    assert list(text_pieces([], tokenizer.decode, settled)) == []


# === Options ===


def test_options_that_break_a_rule():
    for options, message in (
        ({"method": "best"}, "method must be one of .* got 'best'"),
        ({"num_return_sequences": 0}, "num_return_sequences must .* got 0"),
        ({"num_return_sequences": 2, "method": "greedy"}, "at most 1 .* use method='s"),
        ({"num_return_sequences": 5, "method": "beam"}, "at most 4 .* raise num_beams"),
        ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"num_beams": 0}, "num_beams must .* got 0"),
        ({"seed": -1}, "seed must .* got -1"),
        ({"seed": 2**64}, "seed must be an integer from 0"),
        ({"seed": 0.5}, "seed must be an integer"),
        ({"length_penalty": -0.5}, "must be a number from 0 to 50, got -0.5"),
        ({"stop_ids": ("a",)}, "stop_ids must be a list of integers"),
        ({"best_of": 2}, "best_of"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            GenerationConfig.from_dict(options)
    infinite = (float("nan"), float("inf"))
    for name, values in (
        ("top_p", (0, 1.1, -0.1, "1", None, True, *infinite)),
        ("temperature", (0, -1, "1", None, *infinite)),
    ):
        for value in values:
            with pytest.raises(ConfigurationError, match=f"{name} must be a .*number"):
                GenerationConfig.from_dict({name: value})


def test_options_and_prompts_are_frozen():
    for value in (GenerationConfig(), Prompt((1,), (0,), 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.seed = 1

"""Writing with a cache against the same without, and what is around it."""

import dataclasses
import logging

import keras
import numpy as np
import plain_decoding as plain
import pytest
from common import CHECKPOINTS, GPT, SIM, V2, V2_EMBEDDING_SIZE, WORD

from roformer_keras import (
    RoFormerCausalLM,
    RoFormerConfig,
    RoFormerSim,
    RoFormerTokenizer,
)
from roformer_keras.errors import (
    CheckpointError,
    ConfigurationError,
    VocabularyError,
)
from roformer_keras.generation import CachedDecoder, GenerationConfig, Prompt, decode
from roformer_keras.generation.decoder import RowState
from roformer_keras.generation.streaming import text_pieces
from roformer_keras.models.generative import Scored

KEY_SIZE = CHECKPOINTS / "roformer-key-size_L-3_H-24_A-4.zip"
EMBEDDING_SIZE = CHECKPOINTS / "roformer-embedding-size_L-2_H-24_A-4.zip"

# Rows of one prompt, and of several, take their own programs: as few shapes as will do.
SHORT, LONG = (2, 7, 9), (2, 30, 8, 0, 11, 200, 41)
STOPS = (5, 17, 60, 61, 62, 63, 101)


def fresh(cls=RoFormerCausalLM, num_layers=2, **fields):
    """A model of random weights that are large enough to tell tokens apart."""
    config = RoFormerConfig(
        vocabulary_size=260,
        num_layers=num_layers,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=24,
        **{"attention": "causal", **fields},
    )
    model = cls.from_roformer_config(config)
    generator = np.random.default_rng(3)
    for weight in model.weights:
        value = generator.normal(size=weight.shape, scale=0.4)
        weight.assign(value + 1 if weight.name == "gamma" else value)
    return model


MAKE = {
    "gpt": lambda: RoFormerCausalLM.from_preset(GPT),
    "sim": lambda: RoFormerSim.from_preset(SIM),
    "v2": lambda: RoFormerCausalLM.from_preset(V2),
    "v2-embedding-size": lambda: RoFormerCausalLM.from_preset(
        V2_EMBEDDING_SIZE, initialize_heads=True, attention="unilm"
    ),
    "key-size": lambda: RoFormerCausalLM.from_preset(KEY_SIZE, attention="unilm"),
    "embedding-size-residual-scores-position-ids": lambda: RoFormerCausalLM.from_preset(
        EMBEDDING_SIZE, residual_attention_scores=True, custom_position_ids=True
    ),
    "shared-segments": lambda: fresh(shared_segment_embeddings=True),
    "shared-segments-unilm-residual-scores": lambda: fresh(
        RoFormerSim,
        attention="unilm",
        pooler_activation="linear",
        shared_segment_embeddings=True,
        residual_attention_scores=True,
    ),
}


@pytest.fixture(scope="module")
def models():
    """By name, each made when it is first asked for."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = MAKE[name]()
        return made[name]

    return get


@pytest.fixture(scope="module")
def gpt(models):
    return models("gpt")


@pytest.fixture(scope="module")
def sim(models):
    return models("sim")


@pytest.fixture
def ending(gpt):
    """`gpt`, with its programs, whose texts end after ten tokens or so."""
    (bias,) = (w for w in gpt.mlm_head.weights if w.shape == (669,))
    before = bias.numpy()
    value = before.copy()
    value[gpt.tokenizer.sep_id] += 3.5
    bias.assign(value)
    yield gpt
    bias.assign(before)


def lengths_for(model, prompts, most):
    """The `max_length` with which the longest prompt may have `most` new tokens."""
    causal = model.config.attention == "causal"
    return most + (max(map(len, prompts)) if causal else 0)


def new_tokens(model, prompt, max_length):
    return max_length - (len(prompt) if model.config.attention == "causal" else 0)


# === With a cache as without ===


# What others of them show too is left to the slow tests.
SLOW = ("v2", "shared-segments")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.e2e if name in SLOW else ())
        for name in MAKE
    ],
)
def test_greedy_and_beams_equal_a_plain_loop(name, models):
    """Prompts of unequal length, and more tokens than a merge takes."""
    model, prompts = models(name), [SHORT, LONG, (2, 8), (2, 50, 51)]
    max_length = lengths_for(model, prompts, 19)
    options = {"max_length": max_length, "stop_tokens": STOPS, "return_scores": True}
    found = model.generate(prompts, method="greedy", **options)
    for prompt, output in zip(prompts, found, strict=True):
        most = new_tokens(model, prompt, max_length)
        expected = plain.greedy(model, prompt, most, stops=STOPS, draft=output.output)
        assert output.output == expected
        assert output.score == pytest.approx(
            plain.score(model, prompt, expected), abs=1e-3
        )
    options.update(method="beam", num_beams=2, num_return_sequences=2)
    found = model.generate(prompts[:2], **options)
    for prompt, texts in zip(prompts[:2], found, strict=True):
        most = new_tokens(model, prompt, max_length)
        assert_beams(texts, plain.beam(model, prompt, most, 2, stops=STOPS))


def assert_beams(found, expected):
    assert [one.output for one in found] == [text for _, text in expected]
    np.testing.assert_allclose(
        [one.score for one in found], [score for score, _ in expected], atol=1e-3
    )


def test_beams_look_beyond_tokens_that_end(ending):
    """The likeliest next tokens may all end the text: others must be left to go on."""
    stops = np.argsort(-plain.next_logits(ending, LONG, [[]])[0])[:7].tolist()
    found = ending.generate(
        LONG,
        method="beam",
        num_beams=1,
        length_penalty=1.0,
        stop_tokens=stops,
        max_length=7 + 3,
        return_scores=True,
    )
    (expected,) = plain.beam(ending, LONG, 3, 1, 1.0, stops=stops)
    assert found.score == pytest.approx(expected[0], abs=1e-4)


@pytest.mark.parametrize("name", ["gpt", "sim"])
def test_one_beam_and_three(name, models):
    model = models(name)
    options = {"method": "beam", "stop_tokens": STOPS, "return_scores": True}
    options["max_length"] = lengths_for(model, [LONG], 19)
    for beams in (1, 3):
        found = model.generate(
            LONG, num_beams=beams, num_return_sequences=beams, **options
        )
        assert_beams(found, plain.beam(model, LONG, 19, beams, stops=STOPS))


def test_probabilities_as_output_change_nothing(gpt):
    model = RoFormerCausalLM.from_preset(GPT, output_activation="softmax")
    # The first token takes no loop that would be compiled.
    options = {"method": "greedy", "max_length": 8, "return_scores": True}
    assert model.generate(LONG, **options) == gpt.generate(LONG, **options)


@pytest.mark.parametrize("penalty", [0.5, 2.0])
@pytest.mark.parametrize("least", [0, 9])
def test_beams_with_a_length_penalty(ending, penalty, least):
    stops = (ending.tokenizer.sep_id, *STOPS)
    found = ending.generate(
        LONG,
        method="beam",
        num_beams=3,
        num_return_sequences=3,
        length_penalty=penalty,
        stop_tokens=stops,
        max_length=7 + 19,
        min_length=least and least + len(LONG),
        return_scores=True,
    )
    assert_beams(
        found,
        plain.beam(
            ending, LONG, 19, 3, penalty, stops=stops, late=stops[:1], least=least
        ),
    )
    assert min(len(one.output) for one in found) >= least


CUTS = [
    {},
    {"temperature": 0.5},
    {"top_k": 4},
    {"top_p": 0.5, "temperature": 2.0},
    {"top_k": 30, "top_p": 0.9},
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", ["gpt", "sim"])
def test_samples_equal_a_plain_loop(name, cuts, models):
    model, prompts = models(name), [SHORT, LONG]
    max_length = lengths_for(model, prompts, 20)
    found = model.generate(
        prompts,
        num_return_sequences=2,
        max_length=max_length,
        stop_tokens=STOPS,
        seed=11,
        return_scores=True,
        **{"top_p": 1.0, **cuts},
    )
    for at, (prompt, texts) in enumerate(zip(prompts, found, strict=True)):
        most = new_tokens(model, prompt, max_length)
        for copy, text in enumerate(texts):
            number = 2 * at + copy
            assert text.output == plain.sample(
                model, prompt, most, 11, number, cuts, stops=STOPS, draft=text.output
            )
            # Whatever was cut, the score is that of the whole distribution.
            assert text.score == pytest.approx(
                plain.score(model, prompt, text.output), abs=1e-3
            )


def fed(decoder, prompts, texts, max_new_tokens):
    """Logits after the prompts and after each token of given texts: a list of steps."""
    prompts = [Prompt(prompt, (0,) * len(prompt), 999) for prompt in prompts]
    logits, state = decoder.start(prompts, 1, max_new_tokens)
    found = [logits]
    rows = len(texts)
    for tokens in texts.T:
        choice = RowState(
            GenerationConfig(method="greedy"),
            np.full(rows, 9, "int32"),
            np.zeros(rows, "int32"),
            np.zeros(rows, bool),
        )
        *_, logits, _ = decoder.advance(
            state, tokens, np.zeros((rows, 1), "float32"), choice
        )
        found.append(logits)
    return np.stack(found, axis=1)


@pytest.mark.parametrize(
    ("make", "room"), [(lambda: fresh(num_layers=1), 1), (MAKE["sim"], 200)]
)
def test_logits_at_every_step(make, room):
    """Over 150 tokens: in a cache that grows from nothing, and in one with room."""
    model, prompts = make(), [SHORT, LONG]
    texts = np.random.default_rng(1).integers(1, 260, (2, 150)).astype("int32")
    # A token of id 0 is not seen by those that follow.
    texts[:, [3, 40, 41]] = 0
    found = fed(model._decoder(), prompts, texts, room)
    for prompt, text, logits in zip(prompts, texts, found, strict=True):
        (expected,) = plain.all_logits(model, prompt, [text])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_rows_are_taken_in_any_order(gpt):
    """As a beam search does: in the middle of what was not merged, some twice."""
    decoder = gpt._decoder()
    prompts = [Prompt(ids, (0,) * len(ids), 99) for ids in (SHORT, LONG, (2, 50), (2,))]
    logits, state = decoder.start(prompts, 1, 24)
    choice = RowState(
        GenerationConfig(method="greedy"),
        np.full(4, 99, "int32"),
        np.zeros(4, "int32"),
        np.zeros(4, bool),
    )
    texts = [list(prompt.token_ids) for prompt in prompts]
    tokens = logits.argmax(axis=1).astype("int32")
    for step, order in enumerate(
        [(0, 1, 2, 3), (3, 3, 0, 1), (2, 1, 0, 3), (1, 1, 1, 1), *[(3, 0, 1, 2)] * 16]
    ):
        decoder.select(state, np.array(order))
        texts = [[*texts[i], int(tokens[i])] for i in order]
        *_, logits, _ = decoder.advance(
            state, tokens[list(order)], np.zeros((4, 1), "float32"), choice
        )
        if step in (1, 2, 3, 12, 15, 19):
            for text, ours in zip(texts, logits, strict=True):
                (expected,) = plain.next_logits(gpt, text, [[]])
                np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
        # Not the likeliest in every row, so that rows of one origin part.
        tokens = np.argsort(-logits, axis=1)[np.arange(4), np.arange(4)].astype("int32")


# === Batches ===


@pytest.mark.parametrize("name", ["gpt", "sim"])
def test_a_batch_gives_what_each_prompt_gives_alone(name, models):
    model = models(name)
    prompts = [SHORT, LONG, (2, 8), (2, 50, 51, 52, 53)]
    options = {"max_length": 26, "stop_tokens": STOPS, "seed": 3}
    together = model.generate(prompts, method="greedy", **options)
    assert model.generate(prompts, method="greedy", batch_size=1, **options) == together
    assert [model.generate(p, method="greedy", **options) for p in prompts] == together
    for more in ({"method": "beam", "num_beams": 2}, {"method": "sample"}):
        more.update(options, num_return_sequences=2)
        together = model.generate(prompts[:2], **more)
        assert model.generate(prompts[:2], batch_size=2, **more) == together
        alone = [model.generate(prompt, **more) for prompt in prompts[:2]]
        assert alone[0] == together[0]
        # The second of several has another number, and so other draws.
        assert (alone[1] == together[1]) == (more["method"] == "beam")


def test_more_sequences_than_a_batch_holds(gpt):
    options = {"num_return_sequences": 4, "max_length": 20, "seed": 4}
    whole = gpt.generate(SHORT, **options)
    assert len({tuple(text) for text in whole}) == 4
    for batch_size in (1, 2, 3):
        assert gpt.generate(SHORT, batch_size=batch_size, **options) == whole


def at_once(self, state, rows, steps):
    return rows < state.rows


@pytest.mark.parametrize("shared", [True, False])
def test_rows_that_leave_do_not_disturb_the_others(ending, shared, monkeypatch):
    prompts = [(2, 30, 8)] if shared else [SHORT, LONG]
    options = {"num_return_sequences": 4 // len(prompts), "max_length": 26, "seed": 1}
    stayed = ending.generate(prompts, **options)
    lengths = {len(text) for texts in stayed for text in texts}
    assert len(lengths) > 2
    left = []
    select = CachedDecoder.select

    def counted(self, state, rows):
        select(self, state, rows)
        left.append(state.rows)

    monkeypatch.setattr(CachedDecoder, "select", counted)
    monkeypatch.setattr(CachedDecoder, "pays_to_leave", at_once)
    # They leave between calls of the loop: after every token.
    monkeypatch.setattr(CachedDecoder, "room", lambda self, state: 1)
    assert ending.generate(prompts, **options) == stayed
    assert len(left) >= 2
    assert left == sorted(set(left), reverse=True)


def test_beams_whose_prompt_is_done_leave(ending, monkeypatch):
    prompts, sep = [SHORT, LONG], ending.tokenizer.sep_id
    options = {
        "method": "beam",
        "num_beams": 2,
        "num_return_sequences": 2,
        "max_length": 26,
        # So much longer the shorter prompt must be gone on with.
        "min_length": 12,
        "return_scores": True,
    }
    stayed = ending.generate(prompts, **options)
    for prompt, found in zip(prompts, stayed, strict=True):
        size = len(prompt)
        expected = plain.beam(
            ending, prompt, 26 - size, 2, stops=[sep], late=[sep], least=12 - size
        )
        assert_beams(found, expected)
    calls = []

    def counted(self, state, rows, steps):
        calls.append(at_once(self, state, rows, steps))
        return calls[-1]

    monkeypatch.setattr(CachedDecoder, "pays_to_leave", counted)
    found = ending.generate(prompts, **options)
    assert [[one.output for one in texts] for texts in found] == [
        [one.output for one in texts] for texts in stayed
    ]
    assert any(calls)


def test_whether_it_pays_to_leave_depends_on_sizes_alone(gpt):
    """Else a seed gave other last digits once more programs are there."""
    decoder = CachedDecoder(gpt._decoder().model)
    _, state = decoder.start([Prompt((2, 7), (0, 0), 100)], 16, 100)
    assert state.all_rows == 16
    for programs in (set(), {("steps", (rows, 16, 96)) for rows in (1, 2, 4, 8)}):
        decoder._programs = programs
        assert decoder.pays_to_leave(state, 8, 8)
        assert not decoder.pays_to_leave(state, 8, 7)
        assert not decoder.pays_to_leave(state, 9, 1000)
    _, state = decoder.start([Prompt((2, 7), (0, 0), 100)], 8, 100)
    assert not decoder.pays_to_leave(state, 1, 1000)


# === Lengths and ends ===


def test_causal_length_counts_the_prompt(gpt):
    for max_length in (20, 23):
        found = gpt.generate(
            [SHORT, (2,)], max_length=max_length, stop_tokens=(), seed=0
        )
        assert [len(text) for text in found] == [max_length - 3, max_length - 1]
    text = "今天天气"
    ids = gpt.tokenizer.encode(text)[0][:-1]
    options = {"max_length": 20, "stop_tokens": (), "seed": 0}
    assert len(gpt.generate(ids, **options)) == 15
    # A text is its ids without [SEP], and comes back as a text.
    assert gpt.generate(text, **options) == gpt.tokenizer.decode(
        gpt.generate(ids, **options)
    )


def test_unilm_length_bounds_both_segments(sim):
    for most in (20, 23):
        found = sim.generate([SHORT, LONG], max_length=most, stop_tokens=(), seed=0)
        assert [len(text) for text in found] == [most, most]
    # [CLS], four characters, [SEP].
    text = "今天天气"
    assert sim.as_prompt(text, 6).max_new_tokens == 6
    with pytest.raises(ConfigurationError, match="no longer than max_length=5 tokens"):
        sim.generate(text, max_length=5)
    options = {"max_length": 20, "seed": 0}
    ids = sim.tokenizer.encode(text)[0]
    assert sim.generate(text, **options) == sim.tokenizer.decode(
        sim.generate(ids, **options)
    )


def test_default_lengths(gpt, sim, monkeypatch):
    seen = []
    monkeypatch.setattr(
        type(gpt), "_decode", lambda self, rows, *_, **__: seen.extend(rows) or []
    )
    monkeypatch.setattr(
        type(sim), "_decode", lambda self, rows, *_, **__: seen.extend(rows) or []
    )
    gpt.generate([SHORT])
    sim.generate([SHORT])
    assert [prompt.max_new_tokens for prompt in seen] == [253, 64]


@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.4}], ids=str)
def test_before_min_length_sep_is_not_written(ending, cuts):
    """And the rest is drawn from what is left, cut as ever."""
    sep = ending.tokenizer.sep_id
    found = ending.generate(
        SHORT,
        num_return_sequences=4,
        max_length=26,
        min_length=3 + 12,
        seed=2,
        **{"top_p": 1.0, **cuts},
    )
    for number, text in enumerate(found):
        assert text == plain.sample(
            ending,
            SHORT,
            23,
            2,
            number,
            cuts,
            stops=[sep],
            late=[sep],
            least=12,
            draft=text,
        )
        assert sep not in text[:11]
    free = ending.generate(SHORT, num_return_sequences=4, max_length=26, seed=2)
    assert min(map(len, free)) < 12


def test_before_min_length_another_stop_token_is_written_and_does_not_end(gpt):
    text = plain.greedy(gpt, SHORT, 17)
    stop = text[2]
    options = {"method": "greedy", "max_length": 20, "stop_tokens": stop}
    assert gpt.generate(SHORT, **options) == text[: text.index(stop) + 1]
    found = gpt.generate(SHORT, min_length=3 + 6, **options)
    assert found == plain.greedy(gpt, SHORT, 17, stops=[stop], least=6)
    assert found[:6] == text[:6]


def test_stop_tokens_by_name_and_by_id(gpt):
    tokenizer = gpt.tokenizer
    options = {"num_return_sequences": 4, "max_length": 20, "seed": 0}
    names = ["的", "。", "[SEP]"]
    ids = [tokenizer.token_to_id(name) for name in names]
    expected = gpt.generate(SHORT, stop_tokens=names, **options)
    assert gpt.generate(SHORT, stop_tokens=ids, **options) == expected
    assert gpt.generate(SHORT, stop_tokens=np.array(ids), **options) == expected
    # Whoever names one is not asked to think of [SEP]; ids are taken as they are.
    one = gpt.generate(SHORT, stop_tokens="。", **options)
    assert one == gpt.generate(SHORT, stop_tokens=["。"], **options)
    assert one == gpt.generate(SHORT, stop_tokens=ids[1:], **options)
    assert gpt._stop_ids("。") == tuple(ids[1:])
    assert gpt._stop_ids(ids[1]) == (ids[1],)
    assert gpt._stop_ids(["[SEP]"]) == (ids[2],)
    assert gpt._stop_ids(()) == ()
    for text in expected:
        assert set(text[:-1]).isdisjoint(ids)
        assert len(text) == 17 or text[-1] in ids


# === Seeds, and what is returned ===


def test_seeds(gpt):
    options = {"max_length": 20, "num_return_sequences": 2}
    first = gpt.generate(SHORT, seed=1, **options)
    assert gpt.generate(SHORT, seed=1, **options) == first
    assert gpt.generate(SHORT, seed=np.int64(1), **options) == first
    assert gpt.generate(SHORT, seed=2, **options) != first
    # Without one, each call draws its own, also right after `set_random_seed`.
    assert gpt.generate(SHORT, **options) != gpt.generate(SHORT, **options)
    # Texts that follow do not change those before.
    more = gpt.generate([SHORT, LONG], seed=1, **options)
    assert more[0] == first


def test_what_is_returned(gpt):
    options = {"max_length": 20, "seed": 0}
    text = gpt.generate("今天", **options)
    assert isinstance(text, str)
    assert gpt.generate(["今天"], **options) == [text]
    assert gpt.generate("今天", num_return_sequences=1, **options) == [text]
    assert gpt.generate(["今天"], num_return_sequences=1, **options) == [[text]]
    assert gpt.generate([], **options) == []
    assert gpt.generate([], num_return_sequences=3, method="beam", **options) == []
    ids = gpt.generate(list(SHORT), **options)
    assert all(type(i) is int for i in ids)
    for prompts in (SHORT, np.array(SHORT), np.array(SHORT, "uint16"), iter(SHORT)):
        assert gpt.generate(prompts, **options) == ids
    for prompts in ([SHORT], np.array([SHORT]), [np.array(SHORT)]):
        assert gpt.generate(prompts, **options) == [ids]
    scored = gpt.generate(SHORT, return_scores=True, **options)
    assert isinstance(scored, Scored)
    assert scored.output == ids
    assert type(scored.score) is float
    pair = gpt.generate("今天", num_return_sequences=2, return_scores=True, **options)
    assert [type(one) for one in pair] == [Scored, Scored]


def test_beams_come_best_first_and_differ(gpt):
    found = gpt.generate(
        LONG,
        method="beam",
        num_beams=3,
        num_return_sequences=3,
        max_length=26,
        return_scores=True,
    )
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(one.output) for one in found}) == 3
    for one in found:
        assert one.score == pytest.approx(plain.score(gpt, LONG, one.output), abs=1e-3)
    best = gpt.generate(LONG, method="beam", num_beams=3, max_length=26)
    assert best == found[0].output
    greedy = gpt.generate(LONG, method="greedy", max_length=26, return_scores=True)
    assert scores[0] >= greedy.score - 1e-4


# === Streams ===


@pytest.mark.parametrize("method", ["sample", "greedy"])
@pytest.mark.parametrize("name", ["gpt", "sim"])
def test_a_stream_is_what_generate_returns(name, method, models):
    model = models(name)
    options = {"method": method, "max_length": 26, "stop_tokens": ["。"], "seed": 6}
    options["min_length"] = 8
    pieces = list(model.stream("今天天气", **options))
    assert "".join(pieces) == model.generate("今天天气", **options)
    assert len(pieces) > 3


def test_a_stream_comes_before_its_text_is_written(gpt):
    decoder = gpt._decoder()
    advanced = []
    original = decoder.advance

    def advance(*arguments):
        advanced.append(1)
        return original(*arguments)

    decoder.advance = advance
    try:
        next(gpt.stream("今天天气", max_length=26, seed=6))
        assert len(advanced) < 10
    finally:
        del decoder.advance


def test_a_stream_says_at_once_what_is_wrong(gpt):
    with pytest.raises(ConfigurationError, match="must hold text"):
        gpt.stream("")
    with pytest.raises(ConfigurationError, match="'beam' is not known before its end"):
        gpt.stream("今天", method="beam")
    with pytest.raises(ConfigurationError, match="must be a str, got \\["):
        gpt.stream([2, 3])


@pytest.mark.parametrize("source", [GPT, WORD])
def test_pieces_together_are_the_decoded_text(source, gpt):
    """Random tokens: Chinese, Latin words and their parts, digits, punctuation."""
    tokenizer = RoFormerTokenizer.from_preset(source)
    generator = np.random.default_rng(0)
    tokens = tokenizer.vocabulary
    others = [i for i, token in enumerate(tokens) if not "一" <= token[0] <= "鿿"]
    assert any(tokens[i].startswith("##") for i in others)

    def settled(index):
        return len(tokens[index]) == 1 and "一" <= tokens[index] <= "鿿"

    held = 0
    for share in np.tile([0.0, 0.5, 0.9, 1.0], 300):
        count = generator.integers(1, 25)
        ids = np.where(
            generator.random(count) < share,
            generator.choice(others, count),
            generator.integers(0, len(tokens), count),
        ).tolist()
        pieces = list(text_pieces(ids, tokenizer.decode, settled))
        assert "".join(pieces) == tokenizer.decode(ids), [tokens[i] for i in ids]
        assert all(pieces)
        held += len(pieces) < count
    assert held > 100


def test_pieces_of_nothing():
    assert list(text_pieces([], lambda ids: "", bool)) == []


# === Programs ===


class Traced(CachedDecoder):
    """Counts the programs that are compiled for steps."""

    traces = 0

    def _loop_function(self, *arguments):
        self.traces += 1
        return super()._loop_function(*arguments)


def test_what_is_compiled_is_said_and_serves_all_of_a_bucket(gpt, caplog, capsys):
    """Prompts of up to 16 tokens, up to 16 new ones, 3 or 4 samples, any cuts."""
    decoder, said = Traced(gpt._decoder().model), []
    decoder.on_compile = said.append
    with caplog.at_level(logging.INFO, "roformer_keras"):
        for length, new, copies in ((9, 5, 4), (1, 16, 3), (16, 3, 3), (16, 15, 4)):
            prompt = Prompt((2,) * length, (0,) * length, new, new // 2)
            for cuts in ({}, {"top_k": 3}, {"temperature": 0.3, "stop_ids": STOPS}):
                decoding = GenerationConfig(
                    num_return_sequences=copies, seed=length, **cuts
                )
                decode(decoder, [prompt], decoding)
    assert decoder.traces == 1
    assert said[0] == "compiling prompts, 1 x 16 tokens"
    assert said[-1] == "compiling steps, 4 x 48 tokens"
    assert [record.getMessage() for record in caplog.records] == said
    assert len(said) == len(set(said)) <= 3
    # A library says it to the log, and a bar shows it.
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("new", [33, 48, 79, 112, 128])
def test_a_text_of_up_to_128_new_tokens_takes_one_program_for_its_steps(gpt, new):
    decoder = Traced(gpt._decoder().model)
    prompt = Prompt((2,) * 5, (0,) * 5, new)
    (((text,),),) = [decode(decoder, [prompt], GenerationConfig(method="greedy"))]
    assert len(text.token_ids) == new
    assert decoder.traces == 1


def test_progress_counts_texts_of_long_jobs(gpt, capsys, monkeypatch):
    options = {"num_return_sequences": 2, "max_length": 26}
    gpt.generate([SHORT, LONG], progress=False, **options)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("roformer_keras.models.generative._SECONDS_BEFORE_BAR", 0)
    gpt.generate([SHORT, LONG], **options)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "4/4" in shown.err
    gpt.generate([SHORT, LONG], method="beam", **options)
    assert "8/8" in capsys.readouterr().err


# === Weights ===


def test_new_weights_show_in_the_next_text(gpt):
    options = {"method": "greedy", "max_length": 20, "stop_tokens": ()}
    before = gpt.generate(SHORT, **options)
    decoder, weights = gpt._decoder(), gpt.get_weights()
    generator = np.random.default_rng(0)
    try:
        for weight in gpt.weights:
            weight.assign_add(generator.normal(size=weight.shape, scale=0.1))
        after = gpt.generate(SHORT, **options)
        assert after == plain.greedy(gpt, SHORT, 17, draft=after) != before
        assert gpt._decoder() is decoder
    finally:
        gpt.set_weights(weights)
    assert gpt.generate(SHORT, **options) == before


def test_lora_makes_a_new_decoder():
    model = fresh(num_layers=1)
    # One token takes no loop that would be compiled.
    options = {"method": "greedy", "max_length": 4, "stop_tokens": ()}
    options["return_scores"] = True
    before = model.generate(SHORT, **options)
    decoder = model._decoder()
    value = model.backbone.transformer_layers[0].attention.value
    value.enable_lora(2)
    # Keras draws them, and a draw may change next to nothing.
    value.lora_kernel_a.assign(np.tile([[1.0, -1.0]], (16, 1)))
    value.lora_kernel_b.assign(np.tile([[1.0], [0.5]], (1, 16)))
    after = model.generate(SHORT, **options)
    assert model._decoder() is not decoder
    assert after.score == pytest.approx(plain.score(model, SHORT, after.output))
    assert after.score != pytest.approx(before.score, rel=1e-2)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_a_model_that_has_written_is_saved_and_copied_as_ever(gpt, tmp_path):
    expected = gpt.generate("今天", method="greedy", max_length=4)
    gpt.save(tmp_path / "model.keras")
    gpt.save_to_preset(tmp_path / "preset")
    whole = keras.saving.load_model(tmp_path / "model.keras")
    preset = RoFormerCausalLM.from_preset(tmp_path / "preset")
    whole.tokenizer = gpt.tokenizer
    for model in (whole, preset):
        # One token takes no loop that would be compiled.
        assert model.generate("今天", method="greedy", max_length=4) == expected


def test_weights_that_are_no_numbers_are_an_error(sim):
    embedding = sim.backbone.segment_embedding.embeddings
    before = embedding.numpy()
    value = before.copy()
    try:
        # The prompt is of segment 0: first the loop shows it, then the prompt.
        for row in (1, 0):
            value[row, 0] = np.nan
            embedding.assign(value)
            for more in ({}, {"method": "greedy"}, {"method": "beam", "num_beams": 1}):
                with pytest.raises(CheckpointError, match=r"must be finite .* got NaN"):
                    sim.generate(SHORT, max_length=20, **more)
            with pytest.raises(CheckpointError, match="must be finite"):
                list(sim.stream("今天", max_length=20))
    finally:
        embedding.assign(before)


def test_half_precision(gpt):
    model = RoFormerCausalLM.from_preset(GPT, dtype="mixed_bfloat16")
    found = model.generate(
        SHORT, max_length=20, method="greedy", stop_tokens=(), return_scores=True
    )
    assert len(found.output) == 17
    assert found.score == pytest.approx(plain.score(gpt, SHORT, found.output), abs=0.5)


# === Tokenizers ===


def test_ids_need_no_tokenizer_and_texts_say_so():
    model = fresh(num_layers=1)
    assert len(model.generate([2, 3], max_length=3, stop_tokens=(), seed=0)) == 1
    assert len(model.generate([2, 3], max_length=3, stop_tokens=[259], seed=0)) == 1
    for call in (
        lambda: model.generate("今天"),
        lambda: model.generate([2, 3]),
        lambda: model.generate([2, 3], stop_tokens="。"),
        lambda: model.stream("今天"),
    ):
        with pytest.raises(VocabularyError, match=r"set model\.tokenizer to"):
            call()


# === What is refused ===


UNKNOWN = "\u2603\u2603"
REFUSED = {
    "empty": ("", {}, "must hold text, got ''"),
    "spaces": (" \n", {}, "must hold text"),
    "one of many": (["今天", ""], {}, "must hold text"),
    "unknown": (UNKNOWN, {}, "must have tokens of the vocabulary"),
    "long": ("今天" * 8, {"max_length": 17}, "shorter than max_length=17 .* got 17"),
    "long ids": ([2] * 5, {"max_length": 5}, "shorter than max_length=5 .* got 5"),
    "no ids": ([[]], {}, "at least one id"),
    "id too large": ([2, 669], {}, "from 0 to 668, got 669"),
    "id below 0": ([[2, -1]], {}, "from 0 to 668, got -1"),
    "bool ids": ([[2, True]], {}, "from 0 to 668, got True"),
    "first_number": ("今", {"first_number": -1}, "first_number must .* got -1"),
    "fractional ids": ([[2, 1.5]], {}, "from 0 to 668, got 1.5"),
    "text and ids": (["今天", [2, 3]], {}, "not some of both"),
    "text and id": (["今天", 2], {}, "not some of both"),
    "ids and lists": ([2, [3]], {}, "not some of both"),
    "fractions": ([1.5, 2.0], {}, "must be texts or lists of ids"),
    "None": (None, {}, "must be texts or ids, got None"),
    "list of None": ([None], {}, r"lists of ids, .* got \[None\]"),
    "number": (5, {}, "must be texts or ids, got 5"),
    "bytes": (b"ab", {}, "must be texts or ids"),
    "list of bytes": ([b"ab"], {}, "must be texts or lists of ids"),
    "method": ("今", {"method": "best"}, "method must be one of .* got 'best'"),
    "n": ("今", {"num_return_sequences": 0}, "num_return_sequences must .* got 0"),
    "greedy n": (
        "今",
        {"num_return_sequences": 2, "method": "greedy"},
        "at most 1 .* use method='sample'",
    ),
    "beam n": (
        "今",
        {"num_return_sequences": 5, "method": "beam"},
        "at most 4 .* raise num_beams",
    ),
    "top_k": ("今", {"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
    "top_k 1.5": ("今", {"top_k": 1.5}, "top_k must be an integer"),
    "num_beams": ("今", {"num_beams": 0, "method": "beam"}, "num_beams must .* got 0"),
    "batch_size": ("今", {"batch_size": 0}, "batch_size must .* got 0"),
    "seed": ("今", {"seed": -1}, "seed must .* got -1"),
    "seed 2**64": ("今", {"seed": 2**64}, "seed must be an integer from 0"),
    "seed 0.5": ("今", {"seed": 0.5}, "seed must be an integer"),
    "max_length": ("今", {"max_length": 0}, "max_length must .* got 0"),
    "max_length 9.5": ("今", {"max_length": 9.5}, "max_length must .* got 9.5"),
    "min_length": ("今", {"min_length": -1}, "min_length must .* got -1"),
    "min above max": (
        "今",
        {"min_length": 9, "max_length": 8},
        "from 0 to 8, got 9",
    ),
    "length_penalty": (
        "今",
        {"length_penalty": -0.5},
        "length_penalty must be a number from 0 to 50, got -0.5",
    ),
    "stop tokens": ("今", {"stop_tokens": range(9)}, "at most 8 .* got 9"),
    "stop id": ("今", {"stop_tokens": [669]}, "from 0 to 668, got 669"),
    "stop word": ("今", {"stop_tokens": "今天"}, "in the vocabulary, got '今天'"),
    **{
        f"{name} {value}": ("今", {name: value}, f"{name} must be a .*number .* got ")
        for name, values in (
            ("top_p", (0, 1.1, -0.1, float("nan"), float("inf"), "0.9", None, True)),
            ("temperature", (0, -1, float("nan"), float("inf"), "1", None)),
        )
        for value in values
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, gpt):
    prompts, options, message = REFUSED[name]
    with pytest.raises((ConfigurationError, VocabularyError), match=message):
        gpt.generate(prompts, **options)


def test_a_model_that_takes_more_than_ids_is_refused():
    model = fresh(num_layers=1, layer_norm_cond_size=3)
    with pytest.raises(ConfigurationError, match="gives no layer_norm_cond, which"):
        model.generate([2, 3], stop_tokens=())


def test_decoding_and_prompts_are_frozen():
    for value in (GenerationConfig(), Prompt((1,), (0,), 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.seed = 1

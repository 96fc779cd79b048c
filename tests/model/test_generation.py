"""Decoding with a cache against the same without: what is compiled.

Searches, seeds, lengths and options are in tests/unit/test_search.py and
test_generate.py. Here as many tests as can share the programs of four rows, prompts of
up to 16 tokens and up to 32 new ones; what needs no program runs uncompiled.
"""

import logging

import keras
import numpy as np
import plain_decoding as plain
import pytest
from common import CHECKPOINTS, EMBEDDING_SIZE, GPT, V2_EMBEDDING_SIZE, random_lm

from roformer_keras import RoFormerCausalLM
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.generation import (
    CachedDecoder,
    GenerationConfig,
    Prompt,
    RowState,
    decode,
)
from roformer_keras.generation.prompts import as_prompt

# `test_engines` has the other engines.
pytestmark = pytest.mark.usefixtures("by_keras")

KEY_SIZE = CHECKPOINTS / "roformer-key-size_L-3_H-24_A-4.zip"


SHORT, LONG = (2, 7, 9), (2, 30, 8, 0, 11, 200, 41)
PROMPTS = [SHORT, LONG, (2, 8), (2, 50, 51)]
STOPS = (5, 17, 60, 61, 62, 63, 101)
NEW = 19


@pytest.fixture
def ending(causal_lm):
    """The shared model, with its programs, whose texts end after ten tokens or so."""
    bias = causal_lm.mlm_head.bias
    before = bias.numpy()
    value = before.copy()
    value[causal_lm.tokenizer.sep_id] += 3.5
    bias.assign(value)
    yield causal_lm
    bias.assign(before)


def prompts_of(rows, limit=99):
    return [Prompt(ids, (0,) * len(ids), limit) for ids in rows]


# === With a cache as without ===


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cuts"), [("causal_lm", {}), ("sim", {"top_k": 30, "top_p": 0.9})]
)
def test_samples_equal_a_plain_loop(name, cuts, request):
    model = request.getfixturevalue(name)
    max_length = len(LONG) + NEW
    samples = model.generate(
        PROMPTS[:2],
        num_return_sequences=2,
        max_length=max_length,
        stop_tokens=STOPS,
        seed=11,
        return_scores=True,
        **{"top_p": 1.0, **cuts},
    )
    for at, (prompt, texts) in enumerate(zip(PROMPTS, samples, strict=False)):
        limit = max_length - len(prompt)
        for copy, text in enumerate(texts):
            number = 2 * at + copy
            assert text.output == plain.sample(
                model, prompt, limit, 11, number, cuts, stops=STOPS, draft=text.output
            )
            # The score is of the whole distribution, whatever the limits cut.
            score = plain.score(model, prompt, text.output)
            assert text.score == pytest.approx(score, abs=1e-3)


def test_any_number_of_stop_tokens(causal_lm):
    stops, options = range(100, 500), {"max_length": 26, "seed": 1, "top_p": 1.0}
    (text,) = causal_lm.generate([SHORT], stop_tokens=stops, **options)
    assert text == plain.sample(causal_lm, SHORT, 23, 1, 0, {}, stops=stops, draft=text)
    assert text[-1] in stops


MAKE = {
    "v2-embedding-size": lambda: RoFormerCausalLM.from_preset(
        V2_EMBEDDING_SIZE, initialize_heads=True, attention="unilm"
    ),
    "key-size": lambda: RoFormerCausalLM.from_preset(KEY_SIZE, attention="unilm"),
    "embedding-size-residual-scores-position-ids": lambda: RoFormerCausalLM.from_preset(
        EMBEDDING_SIZE, residual_attention_scores=True, custom_position_ids=True
    ),
    "shared-segments-unilm-residual-scores": lambda: random_lm(
        "RoFormerSim",
        num_layers=2,
        attention="unilm",
        pooler_activation="linear",
        shared_segment_embeddings=True,
        residual_attention_scores=True,
    ),
}
COMPILED = "shared-segments-unilm-residual-scores"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MAKE if name != COMPILED])
def test_logits_of_every_architecture(name, uncompiled):
    """At each step, before and after a merge."""
    plain.assert_logits(MAKE[name](), [SHORT, LONG], 20, room=36)


@pytest.mark.slow
def test_logits_of_compiled_steps():
    plain.assert_logits(MAKE[COMPILED](), [SHORT, LONG], 36, room=36)


@pytest.mark.slow
def test_logits_in_a_cache_that_grows_from_nothing(uncompiled):
    plain.assert_logits(random_lm(), [SHORT, LONG], 40, room=1)


@pytest.mark.slow
def test_logits_of_a_long_text_in_a_cache_with_room():
    plain.assert_logits(random_lm(attention="unilm"), [SHORT, LONG], 150, room=200)


@pytest.mark.slow
def test_rows_are_taken_in_any_order(causal_lm):
    """As a beam search takes them: between merges of caches, and some rows twice."""
    decoder = causal_lm._decoder()
    prompts = [SHORT, LONG, (2, 50), (2,)]
    logits, state = decoder.start(prompts_of(prompts), 1, NEW)
    rows = RowState.endless(GenerationConfig(method="greedy"), 4)
    texts = [list(prompt) for prompt in prompts]
    tokens = logits.argmax(axis=1).astype("int32")
    orders = [(0, 1, 2, 3), (3, 3, 0, 1), (2, 1, 0, 3), (1, 1, 1, 1)]
    for step, order in enumerate([*orders, *[(3, 0, 1, 2)] * 16]):
        decoder.select(state, np.array(order))
        texts = [[*texts[i], int(tokens[i])] for i in order]
        *_, logits, _ = decoder.advance(
            state, tokens[list(order)], np.zeros((4, 1), "float32"), rows
        )
        if step in (1, 2, 3, 12, 15, 19):
            for text, ours in zip(texts, logits, strict=True):
                (expected,) = plain.next_logits(causal_lm, text, [[]])
                np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)
        # Not the likeliest in every row, so that rows of one origin part.
        tokens = np.argsort(-logits, axis=1)[np.arange(4), np.arange(4)].astype("int32")


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [[(2, 30, 8)], [SHORT, LONG]], ids=len)
def test_rows_that_leave_do_not_disturb_the_others(ending, prompts, monkeypatch):
    options = {"num_return_sequences": 4 // len(prompts), "max_length": 26, "seed": 1}
    stayed = ending.generate(prompts, **options)
    assert len({len(text) for texts in stayed for text in texts}) > 2
    left, select = [], CachedDecoder.select

    def counted(self, state, rows):
        select(self, state, rows)
        left.append(state.rows)

    monkeypatch.setattr(CachedDecoder, "select", counted)
    monkeypatch.setattr(
        CachedDecoder, "pays_to_leave", lambda self, state, rows, _: rows < state.rows
    )
    # They leave between calls of the loop: after every token.
    monkeypatch.setattr(CachedDecoder, "room", lambda self, state: 1)
    assert ending.generate(prompts, **options) == stayed
    assert len(left) >= 2
    assert left == sorted(set(left), reverse=True)


def test_whether_it_pays_to_leave_depends_on_sizes_alone():
    """Else a seed gave other last digits once more programs are there."""
    decoder = random_lm()._decoder()
    _, state = decoder.start(prompts_of([(2, 7)]), 16, 100)
    assert state.all_rows == 16
    for programs in (set(), {("steps", (rows, 16, 96)) for rows in (1, 2, 4, 8)}):
        decoder._programs = programs
        assert decoder.pays_to_leave(state, 8, 8)
        assert not decoder.pays_to_leave(state, 8, 7)
        assert not decoder.pays_to_leave(state, 9, 1000)
    _, state = decoder.start(prompts_of([(2, 7)]), 8, 100)
    assert not decoder.pays_to_leave(state, 1, 1000)


@pytest.mark.slow
def test_a_stream_is_what_generate_returns(causal_lm):
    options = {"max_length": 26, "stop_tokens": ["。"], "seed": 6, "min_length": 8}
    pieces = list(causal_lm.stream("今天天气", **options))
    assert "".join(pieces) == causal_lm.generate("今天天气", **options)
    assert len(pieces) > 3


@pytest.mark.slow
def test_a_graph_without_xla_writes_the_same(causal_lm, monkeypatch):
    options = {"max_new_tokens": NEW, "seed": 5, "num_return_sequences": 2}
    expected = causal_lm.generate(PROMPTS[:2], stop_tokens=STOPS, **options)
    monkeypatch.setattr(CachedDecoder, "_pays_xla", lambda self, rows: False)
    decoder = causal_lm._decoder()
    monkeypatch.setattr(decoder, "_loop", None)
    assert causal_lm.generate(PROMPTS[:2], stop_tokens=STOPS, **options) == expected


def test_many_rows_are_left_to_the_graph():
    for dtype, most in (("float32", 16), ("bfloat16", 8), ("mixed_bfloat16", 8)):
        decoder = RoFormerCausalLM.from_preset(GPT, dtype=dtype)._decoder()
        for rows in (1, 8, 16, 64):
            assert decoder._pays_xla(rows) == (rows <= most), (dtype, rows)


# === Programs ===


class Traced(CachedDecoder):
    """Counts the programs that are compiled for steps."""

    traces = 0

    def _loop_function(self, *arguments):
        self.traces += 1
        return super()._loop_function(*arguments)


@pytest.mark.slow
def test_what_is_compiled_is_said_and_serves_all_of_a_bucket(caplog, capsys):
    """Prompts of up to 16 tokens, up to 16 new ones, 3 or 4 samples, any cuts."""
    decoder, said = Traced(random_lm()._decoder().model), []
    decoder.on_compile = said.append
    with caplog.at_level(logging.INFO, "roformer_keras"):
        for length, new, copies in ((9, 5, 4), (1, 16, 3), (16, 3, 3), (16, 15, 4)):
            prompt = Prompt((2,) * length, (0,) * length, new, new // 2)
            for cuts in ({}, {"top_k": 3}, {"temperature": 0.3, "stop_ids": STOPS}):
                config = GenerationConfig(
                    num_return_sequences=copies, seed=length, **cuts
                )
                decode(decoder, [prompt], config)
    assert decoder.traces == 1
    assert said[0] == "compiling prompts, 1 x 16 tokens"
    assert said[-1] == "compiling steps, 4 x 48 tokens"
    assert [record.getMessage() for record in caplog.records] == said
    assert len(said) == len(set(said)) <= 3
    # A library says it to the log, and a bar shows it.
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("new", [33, 128])
def test_a_text_of_up_to_128_new_tokens_takes_one_program_for_its_steps(new):
    decoder = Traced(random_lm()._decoder().model)
    ((text,),) = decode(
        decoder, prompts_of([(2,) * 5], new), GenerationConfig(method="greedy")
    )
    assert len(text.token_ids) == new
    assert decoder.traces == 1


# === Weights ===

# One token takes no loop that would be compiled.
ONE = {"method": "greedy", "max_length": 4, "stop_tokens": ()}


def test_new_weights_show_in_the_next_text(causal_lm):
    options = {"method": "greedy", "max_length": 20, "stop_tokens": ()}
    before = causal_lm.generate(SHORT, **options)
    decoder, weights = causal_lm._decoder(), causal_lm.get_weights()
    generator = np.random.default_rng(0)
    try:
        for weight in causal_lm.weights:
            weight.assign_add(generator.normal(size=weight.shape, scale=0.1))
        after = causal_lm.generate(SHORT, **options)
        assert after == plain.greedy(causal_lm, SHORT, 17, draft=after) != before
        assert causal_lm._decoder() is decoder
    finally:
        causal_lm.set_weights(weights)
    assert causal_lm.generate(SHORT, **options) == before


@pytest.mark.slow
def test_lora_makes_a_new_decoder(uncompiled):
    model, options = random_lm(), {**ONE, "return_scores": True}
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


@pytest.mark.slow
def test_a_model_that_has_written_is_saved_and_copied_as_ever(
    causal_lm, tmp_path, uncompiled
):
    expected = causal_lm.generate("今天", **ONE)
    causal_lm.save(tmp_path / "model.keras")
    causal_lm.save_to_preset(tmp_path / "preset")
    whole = keras.saving.load_model(tmp_path / "model.keras")
    preset = RoFormerCausalLM.from_preset(tmp_path / "preset")
    whole.tokenizer = causal_lm.tokenizer
    for model in (whole, preset):
        assert model.generate("今天", **ONE) == expected


@pytest.mark.slow
def test_probabilities_as_output_change_nothing(causal_lm, uncompiled):
    model = RoFormerCausalLM.from_preset(GPT, output_activation="softmax")
    options = {**ONE, "max_length": 8, "return_scores": True}
    written = model.generate(LONG, **options)
    expected = causal_lm.generate(LONG, **options)
    assert written.output == expected.output
    # Another program may round the last digit otherwise.
    assert written.score == pytest.approx(expected.score, rel=1e-6)


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_an_error():
    model = random_lm(attention="unilm")
    embedding = model.backbone.segment_embedding.embeddings
    # No text ends at its first token, so that there is a step.
    options = {"max_length": 20, "min_new_tokens": 2, "stop_tokens": STOPS}
    value = embedding.numpy()
    # The prompt is of segment 0: first the loop shows it, then the prompt.
    for row in (1, 0):
        value[row, 0] = np.nan
        embedding.assign(value)
        for more in ({}, {"method": "greedy"}, {"method": "beam", "num_beams": 1}):
            with pytest.raises(CheckpointError, match=r"must be finite .* got NaN"):
                model.generate(SHORT, **options, **more)


@pytest.mark.slow
def test_half_precision(causal_lm, uncompiled):
    model = RoFormerCausalLM.from_preset(GPT, dtype="mixed_bfloat16")
    written = model.generate(
        SHORT, max_new_tokens=8, method="greedy", stop_tokens=(), return_scores=True
    )
    assert len(written.output) == 8
    score = plain.score(causal_lm, SHORT, written.output)
    assert written.score == pytest.approx(score, abs=0.3)


def test_a_model_that_takes_more_than_ids_is_refused():
    model = random_lm(layer_norm_cond_size=3)
    with pytest.raises(ConfigurationError, match="gives no layer_norm_cond, which"):
        model.generate([2, 3], stop_tokens=())


def test_the_default_length_of_sim(sim):
    assert as_prompt(sim, (2,) * 100).max_new_tokens == 64

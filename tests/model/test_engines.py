"""Engines other than Keras write what Keras writes.

The logits are compared with the model's for each architecture, texts with those that
Keras's backend decodes.
"""

import itertools
import sys

import keras
import numpy as np
import plain_decoding as plain
import pytest
from common import CHECKPOINTS, GPT, V2, V2_EMBEDDING_SIZE, random_lm

from roformer_keras import RoFormerCausalLM
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.engines import network
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.engines.programs import OpenVINOProgram
from roformer_keras.generation import beam_search as search
from roformer_keras.generation.prompts import as_prompt, generation_config
from roformer_keras.generation.stateful import StatefulDecoder
from roformer_keras.inference.compiled_forward import inference_of
from roformer_keras.layers.norms import activation_from_name

pytestmark = pytest.mark.usefixtures("by_keras")

KEY_SIZE = CHECKPOINTS / "roformer-key-size_L-3_H-24_A-4.zip"
SHORT, LONG = (2, 7, 9), (2, 30, 8, 0, 11, 200, 41)
STOPS = (5, 17, 60, 61, 62, 63, 101)
ENGINES = ["openvino"]
QUIET = {"verbose": 0}


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(params=["causal_lm", "sim"])
def model(request):
    return request.getfixturevalue(request.param)


def prompts_of(model, count):
    """Rows of 1 to 12 ids; some have the id of padding in the middle."""
    random = np.random.default_rng(4)
    size = model.config.vocabulary_size
    return [
        [2, *random.integers(0, size, random.integers(0, 12)).tolist()]
        for _ in range(count)
    ]


def stops_of(model):
    return [i for i in STOPS if i < model.config.vocabulary_size]


# === As Keras ===

MAKE = {
    "v2": lambda: RoFormerCausalLM.from_preset(V2),
    "v2-embedding-size": lambda: RoFormerCausalLM.from_preset(
        V2_EMBEDDING_SIZE, initialize_heads=True, attention="unilm"
    ),
    "key-size": lambda: RoFormerCausalLM.from_preset(KEY_SIZE, attention="unilm"),
    "shared-segments": lambda: random_lm(num_layers=2, shared_segment_embeddings=True),
    "shared-segments-unilm": lambda: random_lm(
        "RoFormerSim",
        num_layers=2,
        attention="unilm",
        pooler_activation="linear",
        shared_segment_embeddings=True,
    ),
    "untied": lambda: random_lm(tie_word_embeddings=False),
    "residual-scores": lambda: random_lm(residual_attention_scores=True),
    "no-rotation": lambda: random_lm(rotary=False, activation="silu"),
    "other-base-position-ids": lambda: random_lm(
        rotary_base=500.0, custom_position_ids=True, activation="relu"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_logits_of_every_architecture(name):
    model = MAKE[name]()
    for engine in ENGINES:
        decoder = model._decoder(engine)
        assert isinstance(decoder, StatefulDecoder)
        plain.assert_logits(model, [SHORT, LONG], 36, room=9, decoder=decoder)


def test_every_activation():
    x = np.linspace(-8, 8, 33, dtype="float32")[None]
    for name in OpenVINOGraph.activations:
        graph = OpenVINOGraph()
        node = graph.input("x", "float32", (None, None))
        # An input that is the output would have one of their names.
        node = graph.add(node, np.zeros(1, "float32"))
        graph.output("y", graph.activations[name](graph, node), x.shape)
        program = OpenVINOProgram(graph.finish())
        outputs = program.run(program.start(), {"x": x})["y"]
        expected = keras.ops.convert_to_numpy(activation_from_name(name)(x))
        np.testing.assert_allclose(
            outputs, expected, rtol=1e-4, atol=1e-5, err_msg=name
        )


# Keras compiles one program of 16 rows for all.
CUTS = {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "seed": 5}
METHODS = {
    "greedy": (16, {"method": "greedy", "max_new_tokens": 12}),
    "sample": (
        8,
        {"num_return_sequences": 2, "max_new_tokens": 8, "min_new_tokens": 4, **CUTS},
    ),
    "beam": (
        4,
        {
            "method": "beam",
            "num_beams": 4,
            "num_return_sequences": 4,
            "max_new_tokens": 6,
            "min_new_tokens": 3,
            "length_penalty": 0.6,
        },
    ),
}


@pytest.mark.slow
def test_texts_and_scores_are_those_of_keras(model):
    """Scores differ by rounding alone."""
    for method, (count, options) in METHODS.items():
        prompts = prompts_of(model, count)
        options = {"num_return_sequences": 1, "return_scores": True, **options, **QUIET}
        options["stop_tokens"] = stops_of(model)
        expected = model.generate(prompts, **options)
        assert len(expected) == count
        min_length = options.get("min_new_tokens", 1)
        assert all(len(t.output) >= min_length for texts in expected for t in texts)
        for engine in ENGINES:
            case = f"{method} by {engine}"
            written = model.generate(prompts, engine=engine, **options)
            for texts, others in zip(expected, written, strict=True):
                outputs = [text.output for text in texts]
                assert [text.output for text in others] == outputs, case
                scores = pytest.approx([text.score for text in texts], abs=1e-3)
                assert [text.score for text in others] == scores, case


@pytest.mark.slow
def test_a_temperature_that_is_nearly_zero(causal_lm):
    """In float32 it is zero, or logits divided by it are."""
    options = {"max_new_tokens": 9, "stop_tokens": (), "seed": 3, **QUIET}
    prompts = prompts_of(causal_lm, 4)
    greedy = causal_lm.generate(prompts, method="greedy", **options)
    options["top_p"] = 0.9
    for temperature in (1e-50, 1e-38):
        for engine in ("keras", *ENGINES):
            options |= {"temperature": temperature, "engine": engine}
            assert causal_lm.generate(prompts, **options) == greedy


def test_streams_of_one_decoder_do_not_disturb_each_other(causal_lm, engine):
    options = {"max_length": 20, "seed": 6, "engine": engine}
    prompts = ("今天", "北京人")
    streams = [causal_lm.stream(text, **options) for text in prompts]
    pieces = zip(*itertools.zip_longest(*streams, fillvalue=""), strict=True)
    texts = [causal_lm.generate(text, **options) for text in prompts]
    assert ["".join(parts) for parts in pieces] == texts
    assert min(map(len, texts)) > 3


@pytest.mark.slow
def test_paraphrases(sim):
    options = {"n": 4, "k": 3, "max_new_tokens": 8, "seed": 2, **QUIET}
    expected = sim.paraphrase("今天天气不错", **options)
    for engine in ENGINES:
        others = sim.paraphrase("今天天气不错", engine=engine, **options)
        assert [text for text, _ in others] == [text for text, _ in expected] != []
        cosines = pytest.approx([cosine for _, cosine in expected], abs=1e-5)
        assert [cosine for _, cosine in others] == cosines


@pytest.mark.slow
def test_a_text_does_not_depend_on_its_batch(model, engine):
    """Prompts of other lengths, and rows that end: all in one batch, or alone."""
    prompts = prompts_of(model, 12)
    options = {"max_new_tokens": 19, "stop_tokens": stops_of(model), "seed": 3}
    options |= {"engine": engine, "temperature": 0.5, "verbose": 0}
    together = model.generate(prompts, batch_size=64, **options)
    assert len(set(map(len, together))) > 2
    for number, prompt in enumerate(prompts):
        alone = model.generate([prompt], first_number=number, **options)
        assert alone == together[number : number + 1]


def assert_same_texts(texts, others):
    for (text,), (other,) in zip(texts, others, strict=True):
        assert text.token_ids == other.token_ids
        assert text.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 20])
def test_what_is_left_of_batches_is_written_together(causal_lm, engine, batch_size):
    """Many prompts of different lengths; most texts end early, some late."""
    decoder = causal_lm._decoder(engine)
    random = np.random.default_rng(1)
    ids = [
        [2, *random.integers(1, 260, n).tolist()] for n in random.integers(1, 14, 60)
    ]
    limits = [int(n) for n in np.minimum(random.geometric(0.2, 60), 19)]
    prompts = [
        as_prompt(causal_lm, row, max_new_tokens=limit)
        for row, limit in zip(ids, limits, strict=True)
    ]
    config = generation_config(causal_lm, (), 1, top_p=0.8)
    joined, join = [], decoder.join

    def counted(states):
        state = join(states)
        joined.append(len(state.slots))
        return state

    decoder.join = counted
    ended = []
    try:
        texts = search.decode(
            decoder, prompts, config, batch_size, on_rows=ended.append
        )
    finally:
        del decoder.join
    assert joined and 1 < max(joined) <= batch_size
    assert sum(ended) == 60
    assert [len(text.token_ids) for (text,) in texts] == limits
    decoder.can_join = False
    try:
        apart = search.decode(decoder, prompts, config, batch_size)
    finally:
        del decoder.can_join
    assert_same_texts(texts, apart)


def test_a_rest_of_one_batch_is_written_alone(causal_lm, engine):
    """The second batch ends with all of its texts, so that nothing joins the rest."""
    limits = [1] * 6 + [19] * 2 + [1] * 8
    prompts = [
        as_prompt(causal_lm, (2, 7 + number), max_new_tokens=limit)
        for number, limit in enumerate(limits)
    ]
    config, decoder = generation_config(causal_lm, (), 1), causal_lm._decoder(engine)
    texts = search.decode(decoder, prompts, config, batch_size=8)
    assert [len(text.token_ids) for (text,) in texts] == limits
    assert_same_texts(texts, search.decode(decoder, prompts, config))


def test_rows_that_have_ended_leave_the_program(causal_lm, engine):
    """As many rows are computed as a bucket holds."""
    decoder = causal_lm._decoder(engine)
    computed, run = [], decoder._program.run

    def counted(memory, inputs):
        computed.append(len(inputs["token_ids"]))
        return run(memory, inputs)

    decoder._program.run = counted
    try:
        random = np.random.default_rng(0)
        lengths = random.integers(1, 19, 20)
        prompts = [as_prompt(causal_lm, (2, 7), max_new_tokens=int(n)) for n in lengths]
        config = generation_config(causal_lm, (), 1, method="greedy")
        texts = search.decode(decoder, prompts, config)
    finally:
        del decoder._program.run
    assert [len(text.token_ids) for (text,) in texts] == lengths.tolist()
    assert set(computed) <= {20, 16, 8, 4, 2, 1}
    assert computed == sorted(computed, reverse=True)
    assert computed[-1] <= 2


# === Weights ===


@pytest.mark.slow
def test_new_weights_show_in_the_next_text(causal_lm, engine):
    options = {"method": "greedy", "max_length": 20, "stop_tokens": (), **QUIET}
    before = causal_lm.generate(SHORT, engine=engine, **options)
    decoder = causal_lm._decoder(engine)
    assert causal_lm._decoder(engine) is decoder
    weight = causal_lm.backbone.transformer_layers[0].attention.value.kernel
    value = weight.numpy()
    try:
        weight.assign(value[::-1])
        after = causal_lm.generate(SHORT, engine=engine, **options)
        assert after == causal_lm.generate(SHORT, engine="keras", **options)
        assert after != before
        assert causal_lm._decoder(engine) is not decoder
        # There are never two of an engine, and the own one stays.
        for name in ("keras", engine):
            assert inference_of(causal_lm).keeps(f"decoder of {name}")
    finally:
        weight.assign(value)
    assert causal_lm.generate(SHORT, engine=engine, **options) == before


def test_the_log_says_when_an_engine_compiles(engine, caplog):
    model = random_lm()
    with caplog.at_level("INFO", logger="roformer_keras.generation"):
        for _ in range(2):
            model.generate(SHORT, engine=engine, stop_tokens=(), max_length=5)
    assert caplog.messages == [f"compiling for the engine {engine!r}"]


def test_lora_is_part_of_the_weights():
    model = random_lm()
    options = {"method": "greedy", "max_length": 4, "stop_tokens": ()}
    options |= {"return_scores": True, "engine": "openvino"}
    before = model.generate(SHORT, **options)
    value = model.backbone.transformer_layers[0].attention.value
    value.enable_lora(2)
    value.lora_kernel_a.assign(np.tile([[1.0, -1.0]], (16, 1)))
    value.lora_kernel_b.assign(np.tile([[1.0], [0.5]], (1, 16)))
    after = model.generate(SHORT, **options)
    assert after.score == pytest.approx(
        plain.score(model, SHORT, after.output), abs=1e-4
    )
    assert after.score != pytest.approx(before.score, rel=1e-2)


def test_bfloat16(causal_lm):
    model = RoFormerCausalLM.from_preset(GPT, dtype="bfloat16")
    generated = model.generate(
        SHORT,
        max_length=20,
        method="greedy",
        stop_tokens=(),
        return_scores=True,
        engine="openvino",
    )
    assert len(generated.output) == 17
    score = plain.score(causal_lm, SHORT, generated.output)
    assert generated.score == pytest.approx(score, abs=0.5)


def test_eight_bits(causal_lm, engine):
    """Close to the logits of the model, and not the same."""
    prompts = [as_prompt(causal_lm, ids, max_new_tokens=1) for ids in (SHORT, LONG)]
    exact, _ = causal_lm._decoder().start(prompts, 1, 1)
    logits, _ = causal_lm._decoder(f"{engine}-int8").start(prompts, 1, 1)
    gap = np.abs(logits - exact).max()
    assert 0 < gap < 0.05 * np.abs(exact).max()


# === Errors ===


def test_an_engine_that_does_not_exist(causal_lm):
    for write in (causal_lm.generate, causal_lm.stream):
        with pytest.raises(ConfigurationError, match="engine must be one of 'auto'"):
            write("今天", engine="tensorrt")


@pytest.mark.slow
def test_a_model_that_the_engines_do_not_know():
    for fields, message in (
        ({"attention_type": "linear"}, "need attention_type='softmax', got 'linear'"),
        ({"activation": "celu"}, "'tanh', got 'celu'"),
    ):
        model = random_lm(**fields)
        for engine in ENGINES:
            with pytest.raises(ConfigurationError, match=message) as error:
                model.generate(SHORT, stop_tokens=(), engine=engine)
            assert "engine='keras'" in str(error.value)


def test_a_model_that_keras_quantized():
    model = random_lm()
    model.backbone.token_embedding.quantize("int8")
    for engine in ENGINES:
        with pytest.raises(ConfigurationError, match=r"float weights, got .* in int8"):
            model.generate(SHORT, stop_tokens=(), engine=engine)


def test_without_a_library(monkeypatch):
    model = random_lm()
    monkeypatch.setitem(sys.modules, "openvino", None)
    message = r"needs openvino, .*roformer-keras\[openvino\]"
    with pytest.raises(ConfigurationError, match=message):
        model.generate(SHORT, stop_tokens=(), engine="openvino")


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_an_error():
    model = random_lm()
    block = model.backbone.transformer_layers[0]
    engines = [f"{name}{bits}" for name in ENGINES for bits in ("", "-int8")]
    for weight in (block.feed_forward.intermediate_dense.kernel, model.mlm_head.bias):
        for wrong in (np.nan, np.inf):
            before = weight.numpy()
            value = before.copy()
            value.flat[3] = wrong
            weight.assign(value)
            for engine in engines:
                message = r"weights must be finite .* in "
                with pytest.raises(CheckpointError, match=message):
                    model.generate(SHORT, engine=engine, stop_tokens=())
            weight.assign(before)
    for engine in engines:
        model.generate(SHORT, engine=engine, stop_tokens=(), max_length=4)


def test_logits_that_are_no_numbers_are_an_error(monkeypatch):
    # NaN in weights stands for products that overflow.
    monkeypatch.setattr(network, "_value", keras.ops.convert_to_numpy)
    model = random_lm(attention="unilm")
    embedding = model.backbone.segment_embedding.embeddings
    # No text ends at its first token, so that there is a step.
    options = {"max_length": 20, "min_new_tokens": 2, "stop_tokens": STOPS}
    value = embedding.numpy()
    # The prompt is of segment 0: first a step shows it, then the prompt.
    for row in (1, 0):
        value[row, 0] = np.nan
        embedding.assign(value)
        for more in ({}, {"method": "beam", "num_beams": 1}):
            with pytest.raises(CheckpointError, match=r"must be finite .* got NaN"):
                model.generate(SHORT, engine="openvino", **options, **more)

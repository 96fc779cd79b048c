"""`engine=` means the same for every method that reads texts, and sees every change."""

import logging
import sys

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SIM
from finetuning_cases import BAD, GOOD, load_small

import roformer_keras
from roformer_keras import RoFormerBackbone, RoFormerMaskedLM, RoFormerTextClassifier
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.engines.forward import ModelProgram
from roformer_keras.inference.compiled_forward import ENGINES, inference_of, run_model
from roformer_keras.models.embedding import embed
from roformer_keras.tasks import Relation, Span
from roformer_keras.verbs import VERBS

TEXTS = GOOD[:2] + BAD[:1]
PAIRS = [(text, TEXTS[0]) for text in TEXTS]


def vectors_of_backbone(model, texts, **options):
    return embed(model, model.tokenizer, texts, **options)


def masked(model, texts, **options):
    filled = model.fill_mask([f"{text}[MASK]" for text in texts], **options)
    return [[one.probability for one in mask] for text in filled for mask in text]


def similar(model, texts, **options):
    return model.similarity(texts, texts[::-1], **options)


def method(name, rows=TEXTS, **fixed):
    """A function that calls a method on these rows."""
    return lambda model, _, **options: getattr(model, name)(rows, **fixed, **options)


# Class, its options, and how it is asked; numbers are compared, answers must be equal.
CASES = {
    "embed": ("RoFormerBackbone", {}, vectors_of_backbone),
    "fill_mask": ("RoFormerMaskedLM", {}, masked),
    "predict": ("RoFormerTextClassifier", {"classes": ["a", "b"]}, method("predict")),
    "classify": ("RoFormerTextClassifier", {"classes": ["a", "b"]}, method("classify")),
    "regress": ("RoFormerTextRegressor", {}, method("regress")),
    "encode": ("RoFormerSentenceEncoder", {}, method("encode")),
    "similarity": ("RoFormerSentenceEncoder", {}, similar),
    "pairs": ("RoFormerSentenceEncoder", {}, method("predict", PAIRS)),
    "classes of pairs": (
        "RoFormerSentenceEncoder",
        {"objective": "classification", "num_classes": 2},
        method("predict", PAIRS),
    ),
    "rank": (
        "RoFormerTripletRanker",
        {},
        method("predict", [(*pair, BAD[1]) for pair in PAIRS]),
    ),
    "tokens": ("RoFormerTokenClassifier", {"labels": ["X"]}, method("extract")),
    "spans": ("RoFormerSpanExtractor", {"labels": ["X"]}, method("extract")),
    "relations": ("RoFormerRelationExtractor", {"labels": ["X"]}, method("extract")),
    "answer": ("RoFormerQuestionAnswerer", {}, method("answer", PAIRS)),
    "choose": (
        "RoFormerMultipleChoice",
        {},
        method(
            "choose",
            [
                (
                    TEXTS[0],
                    TEXTS[1:],
                ),
                (BAD[0], GOOD[:3]),
            ],
            probabilities=True,
        ),
    ),
}
SIM_CASES = {"encode": method("encode"), "similarity": similar}


def flat(value):
    """The numbers of an answer, and what else is in it."""
    leaves = keras.tree.flatten(value)
    kinds = Span, Relation
    parts = [x.to_json() if isinstance(x, kinds) else x for x in leaves]
    leaves = keras.tree.flatten(parts)
    numbers = [np.ravel(x) for x in leaves if not isinstance(x, str) and x is not None]
    return np.concatenate([*numbers, [0.0]]), [x for x in leaves if isinstance(x, str)]


def answers(model, ask, engine=None):
    return flat(
        ask(model, TEXTS, verbose=0, engine=engine)
        if ask not in (masked,)
        else ask(model, TEXTS, engine=engine)
    )


@pytest.fixture
def classifier():
    return load_small(RoFormerTextClassifier, classes=["a", "b"])


def probabilities(model, **options):
    return model.predict(TEXTS, verbose=0, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_method_gives_what_keras_gives(name):
    class_name, options, ask = CASES[name]
    kind = getattr(roformer_keras, class_name)
    model = load_small(kind, **options)
    check_engines(model, ask)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIM_CASES)
def test_vectors_of_sim(name):
    check_engines(roformer_keras.RoFormerSim.from_preset(SIM), SIM_CASES[name])


def check_engines(model, ask):
    assert model.engine == "openvino"
    expected, strings = answers(model, ask, "keras")
    for engine in (None, "auto", "openvino"):
        computed, others = answers(model, ask, engine)
        np.testing.assert_allclose(computed, expected, atol=1e-5, err_msg=str(engine))
        assert others == strings
    model.engine = "openvino-int8"
    computed, _ = answers(model, ask)
    np.testing.assert_array_equal(computed, answers(model, ask, "openvino-int8")[0])
    model.engine = "keras"
    np.testing.assert_array_equal(answers(model, ask)[0], expected)
    with pytest.raises(ConfigurationError, match="engine must be one of 'auto'"):
        answers(model, ask, "tensorrt")
    with pytest.raises(ConfigurationError, match="engine must be one of 'auto'"):
        model.engine = "tensorrt"


def test_every_verb_has_the_engines():
    for kind in VERBS.values():
        given = {"source": "x", **dict.fromkeys(kind.inputs.operands, "x")}
        assert kind.of(given).engine == "auto"
        with pytest.raises(ConfigurationError, match="engine must be one of 'auto'"):
            kind.of({**given, "engine": "tensorrt"})


@pytest.mark.slow
def test_integers_are_close_and_not_equal():
    model = roformer_keras.RoFormerSim.from_preset("roformer-sim-char")
    texts = ["今天天气不错", "学而时习之，不亦说乎？", "春眠不觉晓"]
    exact = model.encode(texts, engine="openvino")
    vectors = model.encode(texts, engine="openvino-int8")
    cosines = np.sum(exact * vectors, axis=1)
    assert cosines.min() > 0.995 and cosines.max() < 1 - 1e-6


def test_new_values_of_weights_show_in_the_next_answer(classifier):
    kernel = classifier.get_layer("classes").kernel
    answered = [probabilities(classifier)]
    for assign in (
        lambda: kernel.assign(kernel * 1.5),
        lambda: kernel.value.assign_add(keras.ops.ones(kernel.shape)),
        lambda: classifier.fit(TEXTS, ["a", "b", "a"], verbose=0),
        lambda: classifier.train_on_batch(TEXTS, ["a", "b", "a"]),
        lambda: classifier.set_weights([1.1 * w for w in classifier.get_weights()]),
    ):
        assign()
        answered.append(probabilities(classifier))
        exact = probabilities(classifier, engine="keras")
        np.testing.assert_allclose(answered[-1], exact, atol=1e-5)
        assert np.abs(answered[-1] - answered[-2]).max() > 1e-4


def programs(model):
    """Names of the programs that hold the weights of a model."""
    return [name for name in inference_of(model)._kept if " of openvino" in name]


@pytest.mark.slow
def test_a_model_that_is_trained_between_calls_is_computed_by_keras(classifier):
    ids = classifier.tokenizer(TEXTS)
    kernel, seen = classifier.get_layer("classes").kernel, []
    for _ in range(4):
        kernel.assign(kernel * 1.5)
        run_model(classifier, ids, "auto")
        seen.append("rows" in inference_of(classifier)._kept)
    assert seen == [False, False, True, True]
    # Then the weights stay, and it is compiled again.
    run_model(classifier, ids, "auto")
    np.testing.assert_allclose(
        run_model(classifier, ids, "auto"), run_model(classifier, ids), atol=1e-5
    )
    # Asked for by name, it always computes.
    kernel.assign(kernel * 1.5)
    np.testing.assert_allclose(
        run_model(classifier, ids, "openvino"), run_model(classifier, ids), atol=1e-5
    )


def test_a_program_begins_early_while_the_weights_stay(classifier, monkeypatch):
    begin, begun = ModelProgram.begin, []
    monkeypatch.setattr(
        ModelProgram, "begin", lambda self, ids: begun.append(self) or begin(self, ids)
    )
    ids = classifier.tokenizer(TEXTS)
    kernel = classifier.get_layer("classes").kernel
    for _ in range(3):
        run_model(classifier, ids, "auto")
    # Once a call: what began early was right.
    assert len(begun) == 3 and len(set(begun)) == 1
    for _ in range(3):
        kernel.assign(kernel * 1.5)
        np.testing.assert_allclose(
            run_model(classifier, ids, "auto"), run_model(classifier, ids), atol=1e-5
        )
    # The third is computed by Keras, and so is the next.
    count = len(begun)
    kernel.assign(kernel * 1.5)
    run_model(classifier, ids, "auto")
    assert len(begun) == count


def test_training_drops_the_program_and_the_values_it_was_made_of(classifier):
    probabilities(classifier)
    assert programs(classifier) == ["network of openvino"]
    classifier.fit(TEXTS, ["a", "b", "a"], verbose=0)
    assert programs(classifier) == []
    assert inference_of(classifier)._values is None


@pytest.mark.slow
def test_auto_is_keras_where_openvino_cannot_compute(caplog):
    half = RoFormerMaskedLM.from_preset(CHARACTER, dtype="float16")
    assert half.engine == "keras"
    linear = RoFormerBackbone.from_preset(CHARACTER, attention_type="linear")
    assert linear.engine == "openvino"
    with caplog.at_level(logging.INFO, "roformer_keras.inference"):
        vectors_of_backbone(linear, TEXTS)
    assert linear.engine == "keras"
    assert "computing with Keras: engines other than Keras need" in caplog.text
    with pytest.raises(ConfigurationError, match="attention_type='softmax'"):
        vectors_of_backbone(linear, TEXTS, engine="openvino")
    eager = RoFormerBackbone.from_preset(CHARACTER)
    eager.compile(run_eagerly=True)
    assert eager.engine == "keras"


def test_auto_is_keras_without_openvino(classifier, monkeypatch):
    monkeypatch.setattr(
        "roformer_keras.inference.compiled_forward.is_installed", lambda name: False
    )
    assert classifier.engine == "keras"
    monkeypatch.setitem(sys.modules, "openvino", None)
    probabilities(classifier)
    with pytest.raises(ConfigurationError, match=r"roformer-keras\[openvino\]"):
        probabilities(classifier, engine="openvino")


def test_the_log_names_the_engine_once(classifier, caplog):
    with caplog.at_level(logging.INFO, "roformer_keras.inference"):
        probabilities(classifier)
        probabilities(classifier)
    assert caplog.messages == ["computing texts with the engine 'openvino'"]


@pytest.mark.slow
def test_bfloat16_is_as_far_from_float32_as_that_of_keras():
    texts = ["今天天气不错", "学而时习之，不亦说乎？", "春眠不觉晓"]
    exact = roformer_keras.RoFormerSim.from_preset(SIM).encode(texts, engine="keras")
    model = roformer_keras.RoFormerSim.from_preset(SIM, dtype="bfloat16")
    gaps = [
        np.abs(model.encode(texts, engine=engine) - exact).max()
        for engine in ("keras", "openvino")
    ]
    assert model.engine == "openvino"
    assert gaps[1] <= max(1.5 * gaps[0], 1e-3)


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_an_error(classifier):
    kernel = classifier.get_layer("classes").kernel
    kernel.assign(np.full(kernel.shape, np.nan))
    for engine in ENGINES:
        with pytest.raises(CheckpointError, match="NaN"):
            probabilities(classifier, engine=engine)


@pytest.mark.slow
def test_a_text_that_is_written_is_greedily_the_same():
    model = roformer_keras.RoFormerCausalLM.from_preset(GPT)
    options = {"method": "greedy", "max_new_tokens": 8, "stop_tokens": ()}
    texts = [
        model.generate("今天", engine=engine, **options)
        for engine in (None, "keras", "openvino")
    ]
    assert len(set(texts)) == 1
    assert "decoder of openvino" in programs(model)


def test_weights_that_are_added_show_in_the_next_answer(classifier):
    probabilities(classifier)
    layer = classifier.get_layer("classes")
    layer.enable_lora(2)
    before = probabilities(classifier)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    answer = probabilities(classifier)
    exact = probabilities(classifier, engine="keras")
    np.testing.assert_allclose(answer, exact, atol=1e-5)
    assert np.abs(answer - before).max() > 1e-4

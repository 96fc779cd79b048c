"""`fit` and `evaluate` of language models on texts."""

import numpy as np
import pytest
from common import CHARACTER, GPT, SIM

from roformer_keras import RoFormerCausalLM, RoFormerMaskedLM, RoFormerSim
from roformer_keras.base.errors import ConfigurationError

pytestmark = pytest.mark.slow

TEXTS = ["今天天气不错。", "我们去北京。", "天气好，我们去玩。", "你好"] * 2
PAIRS = [(text, text[::-1]) for text in TEXTS]
CASES = {
    "mlm": (RoFormerMaskedLM, CHARACTER, TEXTS, {"options": {"whole_word": True}}),
    "lm": (RoFormerCausalLM, GPT, TEXTS, {}),
    "unilm": (RoFormerCausalLM, SIM, PAIRS, {}),
    "simbert": (RoFormerSim, SIM, PAIRS, {"options": {"mask_share": 0.0}}),
}


def load(name, rate=0.01):
    kind, source, *_ = CASES[name]
    fields = {"attention": "unilm"} if name == "unilm" else {}
    fields |= {"dropout": 0.0, "attention_dropout": 0.0, "num_layers": 1}
    model = kind.from_preset(source, **fields)
    model.compile("adam", run_eagerly=True)
    model.optimizer.learning_rate = rate
    return model


@pytest.mark.parametrize("name", CASES)
def test_a_model_learns_texts_and_resumes_by_epoch(name):
    *_, x, options = CASES[name]
    options = {"max_length": 12, "batch_size": 4, "verbose": 0, **options}
    model = load(name)
    before = model.evaluate(x, return_dict=True, **options)
    if name == "mlm":
        # The same tokens are masked.
        assert model.evaluate(x, return_dict=True, **options) == before
    whole = model.fit(x, epochs=2, validation_data=x, **options).history
    assert whole["loss"][1] < whole["loss"][0]
    assert whole["val_loss"][1] < before["loss"]
    parts = load(name)
    losses = parts.fit(x, epochs=1, **options).history["loss"]
    losses += parts.fit(x, epochs=2, initial_epoch=1, **options).history["loss"]
    assert losses == whole["loss"]
    for one, other in zip(model.weights, parts.weights, strict=True):
        if "seed_generator" not in one.path:
            np.testing.assert_array_equal(np.array(one), np.array(other), one.path)


def test_the_seed_determines_the_order_and_pairs_may_be_two_lists():
    first, second = map(list, zip(*PAIRS, strict=True))
    options = {"max_length": 12, "batch_size": 4, "verbose": 0, "epochs": 1}
    losses = [
        load("simbert").fit(*x, seed=seed, **options).history["loss"]
        for x, seed in (((PAIRS,), 1), ((first, second), 1), ((PAIRS,), 2))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_what_is_no_text_is_refused_and_ids_go_to_keras():
    model = load("lm")
    for x, options, message in (
        (["今天", ""], {}, "a text must be a str that is not empty"),
        ([3], {}, "a text must be a str"),
        ([("今", "天")], {}, "a row must have 1 text"),
        (["今天"], {"max_length": 3}, "length must be an integer of at least 4"),
        (["今天"], {"batch_size": 0}, "batch_size must be an integer"),
        (["今天"], {"options": {"whole_wrd": True}}, "has no option whole_wrd"),
        (["今天"], {"options": ["whole_word"]}, "options must be"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.fit(x, verbose=0, **options)
    ids = model.tokenizer(["今天天气"])
    model.compile("sgd", "mse", run_eagerly=True)
    logits = np.array(model(ids))
    assert model.evaluate(ids, logits, verbose=0) == pytest.approx(0, abs=1e-9)
    model.fit(ids, logits, epochs=1, verbose=0)

"""In every mode, each option changes the output or is refused.

The options are the fields of the dataclasses, so a new one needs a line here.
"""

import pytest

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.generation.generation_config import METHODS
from roformer_keras.verbs.generate import Generate
from roformer_keras.verbs.paraphrase import Paraphrase

PROMPTS = ["今天天气今天", "天气不错"]
# A value of each option that is not its default.
VALUES = {
    "temperature": 3.0,
    "top_k": 1,
    "top_p": 0.01,
    "repetition_penalty": 5.0,
    "no_repeat_ngram_size": 1,
    "num_return_sequences": 2,
    "num_beams": 32,
    "length_penalty": 3.0,
    "max_length": 9,
    "max_new_tokens": 2,
    "min_length": 15,
    "min_new_tokens": 9,
    "stop_tokens": (),
    "n": 2,
    "k": 1,
    "masked_positions": (1,),
    "seed": 2,
}
# The texts are the same with these, or they say which model is loaded.
OTHERS = {"source", "config", "vocabulary", "model", "unilm", "engine", "batch_size"}


@pytest.fixture
def write(causal_lm, sim):
    """A function from a verb and options to texts and scores."""

    def write(verb, options):
        options = {"seed": 1, "verbose": 0, "engine": "openvino", **options}
        has_maximum = not options.keys().isdisjoint({"max_length", "max_new_tokens"})
        if not has_maximum:
            options["max_new_tokens"] = 10
        if verb is Generate and not has_maximum:
            options.setdefault("min_new_tokens", 4)
        if verb is Paraphrase:
            return sim.paraphrase(PROMPTS, **{"n": 4, "k": 4, **options})
        options.setdefault("stop_tokens", range(5, 200))
        return causal_lm.generate(PROMPTS, return_scores=True, **options)

    return write


def test_every_option_has_a_value():
    names = {*Generate.option_names(), *Paraphrase.option_names()}
    assert names == {"method", *VALUES, *OTHERS}


@pytest.mark.parametrize(
    ("verb", "mode"),
    [
        *((Generate, {"method": method}) for method in METHODS),
        pytest.param(Generate, {"num_beams": 1}, marks=pytest.mark.slow),
        pytest.param(Generate, {"num_beams": 2}, marks=pytest.mark.slow),
        pytest.param(Paraphrase, {}, marks=pytest.mark.slow),
    ],
)
def test_an_option_counts_or_is_refused(verb, mode, write):
    method = verb(**mode).method
    expected, refused = write(verb, mode), set()
    # The same seed gives the same texts: greedy texts and beams need none.
    left_out = OTHERS | mode.keys() | (set() if method == "sample" else {"seed"})
    for name in set(verb.option_names()) - left_out - {"method"}:
        try:
            assert write(verb, {**mode, name: VALUES[name]}) != expected, name
        except ConfigurationError as error:
            refused.add(name)
            assert name in error.message
            # The same rule holds before a model is loaded.
            with pytest.raises(ConfigurationError, match=name):
                verb(**mode, **{name: VALUES[name]})
    drawn, searched = {"temperature", "top_k", "top_p"}, {"num_beams", "length_penalty"}
    by_method = {
        "sample": searched,
        "greedy": drawn | searched | {"num_return_sequences"},
        "beam": drawn,
    }
    assert refused == (by_method[method] - mode.keys() if verb is Generate else set())

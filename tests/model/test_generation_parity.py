"""Generation against a decoder without a cache over the real bert4keras's logits.

What is expected was written by tools/reference/generation.py, which
describes it.
Models of random weights in tests/checkpoints: GPT, Sim and v2; the sharp ones have
larger weights, so that every token of a prompt counts and [SEP] and [PAD] are written.
"""

import functools

import numpy as np
import pytest
from common import CHECKPOINTS, read_json

from roformer_keras.generation import GenerationConfig, Prompt, RowState
from roformer_keras.generation.decoder import LARGE_BATCH
from roformer_keras.verification.counterpart import counterpart, outputs_by_role

pytestmark = pytest.mark.slow

FOLDER = CHECKPOINTS.parent / "data" / "generation"
GOLDEN = read_json(FOLDER / "golden.json")
NAMES = list(GOLDEN["models"])
# Every batch size and length compiles anew: two models do for what batches change, and
# those of GPT for large batches.
SHARP = ["gpt-sharp", "sim-sharp"]
SEP = 102


WEEKLY = pytest.mark.weekly


def cases_of(work):
    """Of the sharp models all, because every token counts in them.

    Of the others the first greedy texts, and by another test the logits of each step;
    the weekly job has them all.
    """
    return [
        pytest.param(name, i, id=f"{name}-{i}", marks=() if is_sample else WEEKLY)
        for name in NAMES
        for i in range(len(work(GOLDEN["models"][name])))
        for is_sample in [name in SHARP or (i == 0 and work is greedy_cases)]
    ]


def greedy_cases(facts):
    return facts["greedy"]["cases"]


GREEDY = cases_of(greedy_cases)
BEAM = cases_of(lambda facts: facts["beam"]["cases"])
SAMPLES = cases_of(lambda facts: facts["samples"])


# Source -> its model, the weights of each name, and the name of those that it has.
_MODELS = {}


def model_of(name):
    """The model of a source with the weights of a name.

    Those of one source are one model, so that they share its programs.
    """
    facts = GOLDEN["models"][name]
    if facts["source"] not in _MODELS:
        model = counterpart(
            CHECKPOINTS / f"{facts['source']}.zip",
            facts["kwargs"],
            layer_norm_epsilon=GOLDEN["layer_norm_epsilon"],
        )
        _MODELS[facts["source"]] = [model, model.get_weights(), None]
    loaded = _MODELS[facts["source"]]
    model, weights, now = loaded
    if name != now:
        model.set_weights(weights)
        if facts["sharpened"]:
            sharpen(model, facts["sharpened"])
        loaded[2] = name
    return model


def sharpen(model, factors):
    """As the tool does with bert4keras's model."""
    for weight in model.weights:
        if weight.name == "kernel":
            weight.assign(factors["kernels"] * weight)
    head = model.mlm_head
    for weight in head.norm.weights:
        weight.assign(factors["head_norm"] * weight)
    bias = head.bias.numpy()
    for token, value in factors["bias"].items():
        bias[int(token)] += value
    head.bias.assign(bias)


def generate(name, prompts, **options):
    """In batches of 8 rows, so that few programs are compiled."""
    options = {"batch_size": 8, "return_scores": True, **options}
    return model_of(name).generate(prompts, **options)


def options_of(name, case):
    renamed = {"stop_ids": "stop_tokens"}
    if name.startswith("sim"):
        # Those lengths do not count the prompt.
        renamed.update(max_length="max_new_tokens", min_length="min_new_tokens")
    return {renamed.get(k, k): value for k, value in case.items() if k != "outputs"}


@functools.cache
def greedy(name, number):
    """The outputs of all prompts at once, and the expected ones."""
    facts = GOLDEN["models"][name]["greedy"]
    case = facts["cases"][number]
    options = options_of(name, case)
    if name.startswith("gpt"):
        # Of so many rows those leave that have ended.
        options["batch_size"] = LARGE_BATCH
    outputs = generate(name, facts["prompts"], method="greedy", **options)
    return outputs, case["outputs"]


@functools.cache
def beams(name, number):
    facts = GOLDEN["models"][name]["beam"]
    case = facts["cases"][number]
    outputs = generate(
        name,
        facts["prompts"],
        method="beam",
        num_return_sequences=case["num_beams"],
        **options_of(name, case),
    )
    return outputs, case["outputs"]


def uncached_score(name, prompt, new):
    """Sum of log-probabilities, by one pass of the model over all of it."""
    facts = GOLDEN["models"][name]
    written = int(facts["kwargs"]["application"] == "unilm")
    logits = outputs_by_role(
        model_of(name),
        {
            "token_ids": np.int32([[*prompt, *new]]),
            "segment_ids": np.int32([[0] * len(prompt) + [written] * len(new)]),
        },
    )["mlm"][0, len(prompt) - 1 : -1].astype("float64")
    logits -= logits.max(-1, keepdims=True)
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return scores[np.arange(len(new)), new].sum()


def agreement(ours, theirs):
    """The p-value of two samples by token; rare tokens are counted together."""
    # Takes a second, in which every collection of tests would wait.
    from scipy.stats import chi2_contingency

    tokens = sorted({*ours, *theirs})
    cells = np.array([[ours.get(t, 0), theirs.get(t, 0)] for t in tokens])
    rare = cells.sum(1) < 10
    cells = np.vstack([cells[~rare], cells[rare].sum(0)])
    test = chi2_contingency(cells[cells.sum(1) > 0], correction=False)
    assert test.dof >= 3
    return test.pvalue


# --- greedy ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), GREEDY)
def test_greedy_equals_the_uncached_decoder(name, number):
    outputs, expected = greedy(name, number)
    assert [output for output, _ in outputs] == [output["ids"] for output in expected]
    np.testing.assert_allclose(
        [score for _, score in outputs],
        [output["score"] for output in expected],
        rtol=0,
        atol=1e-3,
    )


@pytest.mark.parametrize("name", SHARP)
def test_greedy_one_by_one_equals_the_batch(name):
    facts = GOLDEN["models"][name]["greedy"]
    case, together = facts["cases"][2], greedy(name, 2)[0]
    for prompt, (ids, score) in list(zip(facts["prompts"], together, strict=True))[:4]:
        alone = generate(name, prompt, method="greedy", **options_of(name, case))
        assert alone.output == ids
        assert alone.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_cached_logits_equal_bert4keras_at_every_step(name):
    """All prompts side by side, of unequal lengths, as one batch."""
    facts = GOLDEN["models"][name]
    with np.load(FOLDER / "logits.npz") as file:
        expected = {i: file[f"{name}/{i}"] for i in facts["steps"]}
    prompts, written = (
        [values[i] for i in facts["steps"]]
        for values in (
            facts["greedy"]["prompts"],
            [output["ids"] for output in facts["greedy"]["cases"][0]["outputs"]],
        )
    )
    longest = max(map(len, written))
    assert longest >= 24
    decoder = model_of(name)._decoder()
    # As many rows as the greedy search has, whose programs these are.
    prompts, written = 2 * prompts, 2 * written
    rows = [Prompt(tuple(p), (0,) * len(p), longest) for p in prompts]
    logits, state = decoder.start(rows, 1, longest)
    # The tokens that come out are passed over for those that were expected.
    choice = RowState.endless(
        GenerationConfig(method="greedy", stop_ids=(SEP,)), len(rows)
    )
    column_step, compared = GOLDEN["column_step"], 0
    for step in range(longest):
        for row, i in enumerate(2 * facts["steps"]):
            if step < len(written[row]):
                choices = logits[row].copy()
                if written[row][step] != SEP:
                    # The case puts it off.
                    choices[SEP] = -np.inf
                assert choices.argmax() == written[row][step]
                np.testing.assert_allclose(
                    logits[row, ::column_step], expected[i][step], rtol=0, atol=1e-4
                )
                compared += 1
        # Rows that have ended continue with a token that is ignored.
        tokens = np.int32([ids[step] if step < len(ids) else 104 for ids in written])
        _, _, logits, _ = decoder.advance(
            state, tokens, np.zeros((len(rows), 1), "float32"), choice
        )
    assert compared == 2 * sum(map(len, expected.values())) == sum(map(len, written))


# --- beams ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), BEAM)
def test_every_beam_equals_the_uncached_search(name, number):
    outputs, expected = beams(name, number)
    for texts, output in zip(outputs, expected, strict=True):
        assert [ids for ids, _ in texts] == output["ids"]
        np.testing.assert_allclose(
            [score for _, score in texts], output["score"], rtol=0, atol=1e-3
        )


@pytest.mark.e2e
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SHARP else WEEKLY) for n in NAMES]
)
def test_beam_search_finds_what_is_as_probable_as_what_bert4keras_finds(name):
    searched = GOLDEN["models"][name]["beam_search"]
    outputs = generate(
        name,
        searched["prompts"],
        method="beam",
        num_beams=searched["num_beams"],
        **options_of(name, {k: searched[k] for k in ("stop_ids", "max_length")}),
        batch_size=64,
    )
    scores = np.array([score for _, score in outputs])
    theirs = np.array([output["score"] for output in searched["outputs"]])
    assert len(scores) == 200
    assert (scores >= theirs - 1e-4).all(), (scores - theirs).min()
    # That the scores are what they say they are.
    for i in range(0, 200, 40):
        score = uncached_score(name, searched["prompts"][i], outputs[i].output)
        assert score == pytest.approx(scores[i], abs=1e-3)


# --- samples --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_sampling_frequencies_agree_with_bert4keras(name, number):
    facts = GOLDEN["models"][name]
    sample = facts["samples"][number]
    prompt = sample["prompt"]
    samples = generate(
        name,
        prompt,
        method="sample",
        num_return_sequences=10_000,
        max_new_tokens=1,
        top_k=sample.get("top_k"),
        top_p=sample.get("top_p", 1.0),
        temperature=sample["temperature"],
        seed=number,
        batch_size=2_500,
    )
    tokens, counts = np.unique([ids[0] for ids, _ in samples], return_counts=True)
    ours = dict(zip(tokens.tolist(), counts.tolist(), strict=True))
    assert agreement(ours, dict(sample["counts"])) > 1e-4

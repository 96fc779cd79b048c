"""Choosing a token against the same by sorting, in float64 NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from plain_decoding import kept

from roformer_keras.generation import GenerationConfig
from roformer_keras.generation.choosing import NumPySampler, choose_next, controls_of
from roformer_keras.generation.compiled_sampling import CompiledSampler
from roformer_keras.generation.row_state import RowState

_samplers = {"keras": CompiledSampler(), "numpy": NumPySampler()}
_compiled = tf.function(_samplers["keras"].choose, jit_compile=True, autograph=False)
_tested = {name: sampler.choose for name, sampler in _samplers.items()}


@pytest.fixture(params=["keras", "numpy"], autouse=True)
def implementation(request, monkeypatch):
    """Each test is one of the functions of the backend, and of NumPy's."""
    monkeypatch.setitem(_tested, "now", _tested[request.param])
    return request.param


def drawn(logits, uniforms, temperature=1.0, top_k=None, top_p=1.0, by=None):
    """Tokens for many uniforms, or for one each of as many rows of logits."""
    logits = np.atleast_2d(logits).astype("float32")
    size = logits.shape[1]
    tokens = (by or _tested["now"])(
        np.broadcast_to(logits, (len(uniforms), size)),
        np.asarray(uniforms, "float32"),
        np.array(temperature, "float32"),
        np.array(size if top_k is None else top_k, "int32"),
        np.array(top_p, "float32"),
    )
    return np.asarray(tokens)


def assert_is(tokens, uniforms, expected, margin=2e-6):
    """Each uniform gave the token at which the running sum passes it."""
    assert tokens.dtype == "int32"
    bounds = np.cumsum(expected)
    # Where both sums are float32 they may part at the very bound.
    clear = np.abs(bounds[None] - uniforms[:, None]).min(axis=1) > margin
    assert clear.mean() > 0.5
    right = np.searchsorted(bounds, uniforms, side="right")
    np.testing.assert_array_equal(tokens[clear], right[clear])
    assert (expected[tokens] > 0).all()


def grid(count):
    return (np.arange(count) + 0.5) / count


def random(size, scale=2.0, seed=0):
    return np.random.default_rng(seed).normal(size=size, scale=scale).astype("float32")


CUTS = [
    {},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.95},
    {"top_k": 20, "top_p": 0.6},
    {"temperature": 0.5, "top_k": 40, "top_p": 0.9},
    {"temperature": 2.0, "top_k": 10_000, "top_p": 0.99},
]


@pytest.mark.slow
def test_every_share_of_the_unit_interval_is_that_of_its_token():
    uniforms = grid(400)
    for size in (1, 2, 5, 260):
        rows = [random(size, seed=seed) for seed in range(3)]
        for cuts in CUTS:
            logits, draws = np.repeat(rows, 400, axis=0), np.tile(uniforms, 3)
            tokens = drawn(logits, draws, **cuts).reshape(3, 400)
            for row, chosen in zip(rows, tokens, strict=True):
                assert_is(chosen, uniforms, kept(row, **cuts))


@pytest.mark.slow
def test_a_vocabulary_of_the_released_size(implementation):
    logits, uniforms = random(12_000, scale=3), grid(100)
    by = _compiled if implementation == "keras" else _tested["numpy"]
    for cuts in CUTS[-2:]:
        expected = kept(logits, **cuts)
        # Thousands of tokens stand for a bound each; those near one are left out.
        assert_is(drawn(logits, uniforms, **cuts, by=by), uniforms, expected)


def test_rows_are_chosen_each_from_its_own_logits():
    logits = np.stack([random(50, seed=seed) for seed in range(40)])
    uniforms = np.random.default_rng(0).random(40)
    tokens = drawn(logits, uniforms, top_k=9, top_p=0.8)
    for row, uniform, token in zip(logits, uniforms, tokens, strict=True):
        bounds = np.cumsum(kept(row, top_k=9, top_p=0.8))
        assert token == np.searchsorted(bounds, uniform, side="right")
    alone = drawn(logits[:1], uniforms[:1], top_k=9, top_p=0.8)
    assert alone[0] == tokens[0]


def support(logits, count=400, by=None, **cuts):
    return set(drawn(logits, grid(count), by=by, **cuts).tolist())


def test_the_token_that_crosses_top_p_is_kept():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert support(logits, top_p=0.4) == {0}
    assert support(logits, top_p=0.51) == {0, 1}
    assert support(logits, top_p=0.79) == {0, 1}
    assert support(logits, top_p=0.81) == {0, 1, 2}
    assert support(logits, top_p=0.96) == {0, 1, 2, 3}
    # Of what top_k left, 0.5 is 0.625.
    assert support(logits, top_k=2, top_p=0.6) == {0}
    assert support(logits, top_k=2, top_p=0.65) == {0, 1}
    # The likeliest is never cut.
    logits = random(260)
    for top_p in (1e-45, 1e-9, 1e-3):
        assert support(logits, top_p=top_p) == {logits.argmax()}


def test_equal_tokens_are_kept_together():
    logits = np.array([0, 2, 1, 2, 2, -1], "float32")
    assert support(logits, top_k=1) == {1, 3, 4}
    assert support(logits, top_k=3) == {1, 3, 4}
    assert support(logits, top_k=4) == {1, 2, 3, 4}
    assert support(logits, top_p=0.01) == {1, 3, 4}
    assert support(np.zeros(7), top_k=2) == set(range(7))
    assert support(np.zeros(7), top_p=0.1) == set(range(7))
    assert np.bincount(drawn(np.zeros(7), grid(700))).tolist() == [100] * 7


def test_greedily_the_lowest_id_of_equals():
    logits = np.array([[0, 2, 1, 2], [3, 3, 3, 3], [-1, -2, -3, 0]], "float32")
    assert drawn(logits, [0.99] * 3, temperature=0.0).tolist() == [1, 0, 3]


@pytest.mark.slow
def test_the_lowest_temperatures_take_the_likeliest(implementation):
    logits = random(50)
    for by in (None, _compiled) if implementation == "keras" else (None,):
        for temperature in (1e-3, 1e-6, 1e-30, 1e-38, 1e-40, 1e-45):
            for cuts in ({}, {"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "top_p": 0.9}):
                tokens = support(logits, 50, temperature=temperature, by=by, **cuts)
                assert tokens == {logits.argmax()}


def test_the_highest_temperatures_still_know_which_are_likeliest():
    logits = random(50)
    order = np.argsort(-logits)
    for temperature in (1e3, 1e6, 1e20, 1e30):
        assert support(logits, temperature=temperature) == set(range(50))
        tokens = drawn(logits, grid(1000), temperature=temperature, top_k=5)
        assert set(tokens.tolist()) == set(order[:5].tolist())
        assert np.bincount(tokens)[order[:5]] == pytest.approx(200, rel=0.01)


def test_a_token_that_is_barred_changes_no_cut():
    """A token before min_length has such a logit: the others are cut as ever."""
    logits, uniforms = random(50), grid(400)
    others = np.delete(np.arange(50), 3)
    for barred in (-1e4, -1e30, -3.4e38):
        logits[3] = barred
        for cuts in ({"top_k": 5}, {"top_p": 0.3}, {"top_k": 9, "top_p": 0.7}):
            tokens = drawn(logits, uniforms, **cuts)
            assert 3 not in tokens
            tokens = np.searchsorted(others, tokens).astype("int32")
            assert_is(tokens, uniforms, kept(logits[others], **cuts))


def test_only_differences_of_logits_matter():
    logits, uniforms = np.round(random(50), 1), grid(400)
    cuts = {"top_k": 12, "top_p": 0.9}
    for offset in (-1e6, -300.0, 300.0, 1e6):
        # In float32 the sum is rounded; the tokens go by what it is.
        moved = (logits + np.float32(offset)).astype("float32")
        assert_is(drawn(moved, uniforms, **cuts), uniforms, kept(moved, **cuts))


def test_uniforms_at_the_ends():
    logits = np.array([-1e30, 0, -1e30, 1, -1e30], "float32")
    assert drawn(logits, [0.0, np.nextafter(np.float32(1), 0)]).tolist() == [1, 3]


def test_log_probabilities(implementation):
    log_probabilities = _samplers[implementation].log_probabilities
    for size in (1, 5, 12_000):
        logits = np.stack([random(size, 1, 0), random(size, 30, 1)])
        tokens = np.array([size - 1, size // 2], "int32")
        exact = logits.astype("float64")
        exact -= exact.max(axis=1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(
            np.asarray(log_probabilities(logits, tokens)),
            exact[np.arange(2), tokens],
            rtol=1e-5,
            atol=1e-5,
        )


# Once, as it compares the two.
@pytest.mark.parametrize("implementation", ["keras"], indirect=True)
@pytest.mark.parametrize("method", ["sample", "greedy"])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_both_samplers_choose_the_same(cuts, method):
    """Tokens, scores and limits, in rows that may end, must go on, or have ended."""
    rows, size = 24, 300
    generator = np.random.default_rng(3)
    logits = generator.normal(size=(rows, size), scale=2).astype("float32")
    # Two stop ids are likely; the first one is not chosen too early.
    logits[::2, 7], logits[1::2, 9] = 9, 9
    options = cuts if method == "sample" else {}
    config = GenerationConfig(
        method=method, stop_ids=(7, 9), suppressed_stop_ids=(7,), **options
    )
    state = RowState(
        config,
        max_left=np.arange(rows, dtype="int32") % 4 + 1,
        min_left=np.arange(rows, dtype="int32") // 4 % 4,
        done=np.arange(rows) % 5 == 4,
    )
    uniforms = generator.random(rows, dtype="float32")
    *controls, top_p, stop_ids, suppressed_ids = controls_of(config, size)
    tokens, scores, limits = _samplers["keras"].choose_next(
        logits,
        logits,
        uniforms,
        state.limits,
        (*controls, np.float32(top_p), stop_ids, suppressed_ids),
    )
    by_numpy = choose_next(logits, uniforms, state)
    np.testing.assert_array_equal(tokens, by_numpy[0])
    np.testing.assert_allclose(scores, by_numpy[1], rtol=1e-5, atol=1e-5)
    for limit, expected in zip(limits, by_numpy[2].limits, strict=True):
        np.testing.assert_array_equal(limit, expected)
    assert len(set(by_numpy[0].tolist())) > 2
    assert by_numpy[2].done.sum() > state.done.sum()

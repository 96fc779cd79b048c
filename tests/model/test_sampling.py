"""Choosing a token against the same by sorting, in float64 NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from plain_decoding import kept

from roformer_keras.generation import choosing
from roformer_keras.generation.sampling import choose, log_probabilities

_compiled = tf.function(choose, jit_compile=True, autograph=False)
_own = {"keras": choose, "numpy": choosing.choose}


@pytest.fixture(params=_own, autouse=True)
def implementation(request, monkeypatch):
    """Each test is one of the functions of the backend, and of NumPy's."""
    monkeypatch.setitem(_own, "own", _own[request.param])
    return request.param


def drawn(logits, uniforms, temperature=1.0, top_k=None, top_p=1.0, by=None):
    """Tokens for many uniforms, or for one each of as many rows of logits."""
    logits = np.atleast_2d(logits).astype("float32")
    size = logits.shape[1]
    tokens = (by or _own["own"])(
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
    found = np.searchsorted(bounds, uniforms, side="right")
    np.testing.assert_array_equal(tokens[clear], found[clear])
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
@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 5, 260])
def test_every_share_of_the_unit_interval_is_that_of_its_token(size, cuts):
    for seed in range(3):
        logits = random(size, seed=seed)
        tokens = drawn(logits, grid(3000), **cuts)
        assert_is(tokens, grid(3000), kept(logits, **cuts))


@pytest.mark.slow
@pytest.mark.parametrize("cuts", CUTS[-2:], ids=str)
def test_a_vocabulary_of_the_released_size(cuts, implementation):
    logits = random(12_000, scale=3)
    uniforms = grid(500)
    expected = kept(logits, **cuts)
    # Thousands of tokens stand for a bound each; those near one are left out.
    by = _compiled if implementation == "keras" else choosing.choose
    assert_is(drawn(logits, uniforms, **cuts, by=by), uniforms, expected)


@pytest.mark.slow
def test_rows_are_chosen_each_from_its_own_logits():
    logits = np.stack([random(50, seed=seed) for seed in range(40)])
    uniforms = np.random.default_rng(0).random(40)
    tokens = drawn(logits, uniforms, top_k=9, top_p=0.8)
    for row, uniform, token in zip(logits, uniforms, tokens, strict=True):
        assert token == drawn(row, [uniform], top_k=9, top_p=0.8)[0]
        bounds = np.cumsum(kept(row, top_k=9, top_p=0.8))
        assert token == np.searchsorted(bounds, uniform, side="right")


def support(logits, count=2000, by=None, **cuts):
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


@pytest.mark.parametrize("top_p", [1e-45, 1e-9, 1e-3])
def test_a_tiny_top_p_leaves_the_likeliest(top_p):
    logits = random(260)
    assert support(logits, top_p=top_p) == {logits.argmax()}


def test_equal_tokens_are_kept_together():
    logits = np.array([0, 2, 1, 2, 2, -1], "float32")
    assert support(logits, top_k=1) == {1, 3, 4}
    assert support(logits, top_k=3) == {1, 3, 4}
    assert support(logits, top_k=4) == {1, 2, 3, 4}
    assert support(logits, top_p=0.01) == {1, 3, 4}
    assert support(np.zeros(7), top_k=2) == set(range(7))
    assert support(np.zeros(7), top_p=0.1) == set(range(7))
    found = drawn(np.zeros(7), grid(7000))
    assert np.bincount(found).tolist() == [1000] * 7


def test_greedily_the_lowest_id_of_equals():
    logits = np.array([[0, 2, 1, 2], [3, 3, 3, 3], [-1, -2, -3, 0]], "float32")
    assert drawn(logits, [0.99] * 3, temperature=0.0).tolist() == [1, 0, 3]


@pytest.mark.slow
@pytest.mark.parametrize("by", [None, _compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-30, 1e-38, 1e-40, 1e-45])
def test_the_lowest_temperatures_take_the_likeliest(temperature, by):
    logits = random(50)
    for cuts in ({}, {"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "top_p": 0.9}):
        found = support(logits, temperature=temperature, by=by, **cuts)
        assert found == {logits.argmax()}


@pytest.mark.parametrize("temperature", [1e3, 1e6, 1e20, 1e30])
def test_the_highest_temperatures_still_know_which_are_likeliest(temperature):
    logits = random(50)
    order = np.argsort(-logits)
    assert support(logits, temperature=temperature) == set(range(50))
    found = drawn(logits, grid(5000), temperature=temperature, top_k=5)
    assert set(found.tolist()) == set(order[:5].tolist())
    assert np.bincount(found)[order[:5]] == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("barred", [-1e4, -1e30, -3.4e38])
def test_a_token_that_is_barred_changes_no_cut(barred):
    """A token before min_length has such a logit: the others are cut as ever."""
    logits = random(50)
    logits[3] = barred
    others = np.delete(np.arange(50), 3)
    for cuts in ({"top_k": 5}, {"top_p": 0.3}, {"top_k": 9, "top_p": 0.7}):
        expected = kept(logits[others], **cuts)
        found = drawn(logits, grid(3000), **cuts)
        assert 3 not in found
        assert_is(np.searchsorted(others, found).astype("int32"), grid(3000), expected)


@pytest.mark.parametrize("offset", [-1e6, -300.0, 300.0, 1e6])
def test_only_differences_of_logits_matter(offset):
    logits = np.round(random(50), 1)
    moved = (logits + np.float32(offset)).astype("float32")
    # In float32 the sum is rounded; the tokens go by what it is.
    expected = kept(moved, top_k=12, top_p=0.9)
    assert_is(drawn(moved, grid(1000), top_k=12, top_p=0.9), grid(1000), expected)


def test_uniforms_at_the_ends():
    logits = np.array([-1e30, 0, -1e30, 1, -1e30], "float32")
    assert drawn(logits, [0.0, np.nextafter(np.float32(1), 0)]).tolist() == [1, 3]


@pytest.mark.parametrize("size", [1, 5, 12_000])
def test_log_probabilities(size):
    logits = np.stack([random(size, scale, seed) for seed, scale in ((0, 1), (1, 30))])
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

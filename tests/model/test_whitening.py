"""Whitening of sentence vectors: the definition, and every place that keeps it."""

import numpy as np
import pytest
from common import CHARACTER, SIM
from finetuning_cases import load_small

from roformer_keras import (
    RoFormerBackbone,
    RoFormerSentenceEncoder,
    RoFormerSim,
    convert,
    export,
    load_model,
)
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tasks.sentence_encoder import whitening_of

WORDS = ["天", "气", "她", "在", "北京", "我们", "学", "人", "好", "说"]
TEXTS = [a + b + c for a in WORDS for b in WORDS[:5] for c in WORDS[5:8]]
OTHERS = ["今天天气不错", "她在北京", "我们学习语言"]


@pytest.fixture(scope="module")
def whitened():
    model = load_small(RoFormerSentenceEncoder)
    model.fit_whitening(TEXTS, 8, verbose=0)
    return model


@pytest.mark.slow
def test_vectors_have_mean_0_and_covariance_1(whitened):
    vectors = whitened.encode(TEXTS, normalize=False, verbose=0)
    assert vectors.shape == (len(TEXTS), 8) and whitened.vector_dim == 8
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(8), atol=2e-3)


@pytest.mark.slow
def test_vectors_are_those_of_the_published_definition():
    """BERT-whitening: cosines of (x - mean) @ u @ diag(s ** -0.5), by an SVD."""
    vectors = np.random.default_rng(0).normal(size=(200, 12)) @ np.diag(range(1, 13))
    vectors += 3
    kernel, bias = whitening_of(vectors, 5)
    u, s, _ = np.linalg.svd(np.cov(vectors.T))
    expected = (vectors - vectors.mean(axis=0)) @ (u / np.sqrt(s))[:, :5]
    found = vectors @ kernel + bias
    # A direction may be turned round.
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-3)


@pytest.mark.slow
def test_what_is_saved_and_exported_is_whitened(whitened, tmp_path):
    expected = whitened.encode(OTHERS, verbose=0, engine="keras")
    assert np.linalg.norm(expected, axis=1) == pytest.approx(1, abs=1e-5)
    cosine = whitened.similarity(OTHERS[0], OTHERS[1], verbose=0)
    assert cosine == pytest.approx(expected[0] @ expected[1], abs=1e-4)
    whitened.save_to_preset(tmp_path / "preset")
    whitened.save(tmp_path / "model.keras")
    export.export_model(whitened, tmp_path / "export", "openvino")
    readers = [load_model(tmp_path / name) for name in ("preset", "model.keras")]
    served = export.ServedEncoder(tmp_path / "export")
    assert served.encode([]).shape == (0, 8)
    for reader in (whitened, *readers, served):
        vectors = reader.encode(OTHERS, verbose=0)
        np.testing.assert_allclose(vectors, expected, atol=1e-4)
    assert readers[0].whitening_dim == 8


@pytest.mark.slow
def test_vectors_of_roformer_sim_are_whitened(tmp_path):
    sim = RoFormerSim.from_preset(SIM)
    model = RoFormerSentenceEncoder.from_preset(SIM, pooling="pooler")
    plain = sim.encode(OTHERS, verbose=0)
    np.testing.assert_allclose(model.encode(OTHERS, verbose=0), plain, atol=1e-5)
    model.fit_whitening(TEXTS, 8, verbose=0)
    vectors = model.encode(TEXTS, normalize=False, verbose=0)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(8), atol=2e-3)
    expected = model.encode(OTHERS, verbose=0)
    model.save_to_preset(tmp_path / "preset")
    folder = convert(
        tmp_path / "preset", tmp_path / "st", format="sentence-transformers"
    )
    back = convert(folder, tmp_path / "back", verbose=0)
    for path in (tmp_path / "preset", folder, back):
        again = load_model(path)
        assert (again.pooling, again.whitening_dim) == ("pooler", 8)
        np.testing.assert_array_equal(again.encode(OTHERS, verbose=0), expected)
    for ours, theirs in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    engine = model.encode(OTHERS, verbose=0, engine="openvino")
    np.testing.assert_allclose(engine, expected, atol=1e-4)
    with pytest.raises(ConfigurationError, match="needs a backbone with a pooler"):
        RoFormerSentenceEncoder(
            RoFormerBackbone.from_preset(CHARACTER), sim.tokenizer, pooling="pooler"
        )


@pytest.mark.slow
def test_it_is_fitted_again_and_training_leaves_it():
    model = load_small(RoFormerSentenceEncoder, objective="contrastive")
    plain = model.encode(OTHERS, verbose=0)
    model.fit_whitening(TEXTS, 4, verbose=0)
    first = model.encode(OTHERS, verbose=0)
    for few in (TEXTS[:9], "今天天气不错"):
        with pytest.raises(ConfigurationError, match="needs more texts than a vector"):
            model.fit_whitening(few, verbose=0)
    np.testing.assert_array_equal(model.encode(OTHERS, verbose=0), first)
    model.fit_whitening(iter(TEXTS), 6, verbose=0)
    assert model.encode(OTHERS, verbose=0).shape == (3, 6)
    kernel = np.array(model.whitening.kernel)
    model.fit(TEXTS[:8], list("abababab"), verbose=0)
    np.testing.assert_array_equal(model.whitening.kernel, kernel)
    assert len(model.head_variables()) == 2
    # The loss is of plain vectors.
    assert model.output.shape[-1] == plain.shape[-1]
    for texts, dim, message in (
        (TEXTS[:3], 4, "vary in at least dim=4 directions, got 2 of 3 texts"),
        (TEXTS, 0, "dim must be an integer from 1 to"),
        (TEXTS, 10**4, "dim must be an integer from 1 to"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.fit_whitening(texts, dim, verbose=0)
    assert model.vector_dim == 6 and first.shape == (3, 4)

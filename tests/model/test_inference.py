"""Vectors and filled masks against the same computed by hand."""

import functools
import itertools
import threading

import numpy as np
import pytest
from common import CHARACTER, SIM, SMALL, WORD

from roformer_keras import (
    RoFormerBackbone,
    RoFormerMaskedLM,
    RoFormerSpanExtractor,
    RoFormerTokenizer,
)
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.inference import compiled_forward as inference
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.models.embedding import embed
from roformer_keras.models.fill_mask import fill_mask
from roformer_keras.text import rows as batches

TEXTS = [
    "今天天气不错",
    "",
    "北京",
    "我爱北京天安门，天安门上太阳升。" * 5,
    "今天天气不错",
    "a",
    "hello, world 2021",
]


@pytest.fixture(scope="module")
def pooled():
    return RoFormerBackbone.from_preset(SIM, pooler_activation="linear")


def alone(model, tokenizer, text, max_length=512):
    """The vector of one text, computed by itself and without padding."""
    token_ids, segment_ids = tokenizer.encode(text, max_length=max_length)
    outputs = model(
        {"token_ids": np.array([token_ids]), "segment_ids": np.array([segment_ids])},
        training=False,
    )
    if isinstance(outputs, dict):
        return np.asarray(outputs["pooled_output"])[0]
    return np.asarray(outputs)[0, 0]


# === The functions that are kept ===


@pytest.mark.slow
def test_of_one_short_text_each_number_is_that_of_the_model(pooled, monkeypatch):
    """From the third on it is padded to one of two lengths, which XLA compiles."""
    shapes, run = [], inference.Inference._run

    def noted(kept, name, make, inputs):
        if name == "short rows":
            shapes.append(tuple(inputs["token_ids"].shape))
        return run(kept, name, make, inputs)

    monkeypatch.setattr(inference.Inference, "_run", noted)
    monkeypatch.setattr(
        pooled, "_inference", inference.Inference(pooled), raising=False
    )
    for length in (3, 16, 1, 7, 16, 17, 32, 33):
        inputs = {
            "token_ids": np.arange(5, 5 + length)[None],
            "segment_ids": np.zeros((1, length), "int32"),
        }
        computed, expected = run_model(pooled, inputs), pooled(inputs, training=False)
        assert computed.keys() == expected.keys()
        for name, value in computed.items():
            np.testing.assert_allclose(value, expected[name], atol=2e-6)
    assert shapes == [(1, 16)] * 3 + [(1, 32)] * 2


def test_what_is_as_long_as_the_text_in_two_axes_is_cut_in_both(monkeypatch):
    model = RoFormerSpanExtractor.from_preset(CHARACTER, labels=["甲", "乙"])
    monkeypatch.setattr(inference, "_ROWS_BEFORE", 0)
    token_ids = np.array([[101, 5, 6, 102]])
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids)}
    expected = np.asarray(model(inputs, training=False))
    assert expected.shape == (1, 2, 4, 4)
    np.testing.assert_allclose(run_model(model, inputs), expected, atol=1e-5)


# === Vectors ===


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 40])
def test_each_vector_is_that_of_its_text_alone(budget, pooled, tokenizer):
    vectors = embed(pooled, tokenizer, TEXTS, normalize=False, batch_tokens=budget)
    assert vectors.shape == (len(TEXTS), 32)
    assert vectors.dtype == "float32"
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = alone(pooled, tokenizer, text)
        np.testing.assert_allclose(vector, expected, atol=2e-6)
    # Equal texts have equal vectors, and different ones do not.
    np.testing.assert_allclose(vectors[0], vectors[4], atol=2e-6)
    assert np.abs(vectors[0] - vectors[2]).max() > 0.1


def test_longer_texts_are_cut(pooled, tokenizer):
    vectors = embed(pooled, tokenizer, TEXTS, max_length=8, normalize=False)
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = alone(pooled, tokenizer, text, max_length=8)
        np.testing.assert_allclose(vector, expected, atol=2e-6)
    whole = embed(pooled, tokenizer, TEXTS, normalize=False)
    changed = np.abs(vectors - whole).max(axis=1) > 1e-3
    assert changed.tolist() == [len(tokenizer.encode(t)[0]) > 8 for t in TEXTS]


def test_of_a_model_with_a_head_the_backbone_is_what_counts(
    tokenizer, pooled, sim, backbone, masked_lm
):
    expected = embed(pooled, tokenizer, TEXTS)
    # The first segment sees all of itself, so the pattern makes no difference.
    np.testing.assert_allclose(embed(sim, tokenizer, TEXTS), expected, atol=2e-6)
    first = embed(backbone, tokenizer, TEXTS)
    expected = alone(backbone, tokenizer, TEXTS[0])
    np.testing.assert_allclose(first[0], expected / np.linalg.norm(expected), atol=2e-6)
    np.testing.assert_allclose(embed(masked_lm, tokenizer, TEXTS), first, atol=2e-6)


def test_progress_counts_texts(pooled, tokenizer, capsys):
    embed(pooled, tokenizer, TEXTS)
    assert capsys.readouterr() == ("", "")
    embed(pooled, tokenizer, TEXTS, verbose=1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "7/7" in shown.err and "text/s" in shown.err


def test_a_stream_is_read_as_its_vectors_are_taken(pooled, tokenizer, monkeypatch):
    monkeypatch.setattr(batches, "windows", functools.partial(batches.windows, size=3))
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield TEXTS[number % len(TEXTS)]

    expected = embed(pooled, tokenizer, TEXTS)
    vectors = embed(pooled, tokenizer, endless())
    assert read == []
    for vector in expected:
        np.testing.assert_allclose(next(vectors), vector, atol=2e-6)
    # Three windows whose vectors were asked for, and the one that is prepared.
    assert len(read) == 12
    assert list(embed(pooled, tokenizer, iter([]))) == []


def test_windows_prepare_the_next_beside_the_caller():
    begun = [threading.Event() for _ in range(3)]

    def prepare(window):
        begun[window[0]].set()
        return window

    for window in batches.windows(range(3), prepare, size=1):
        if window[0] < 2:
            # Before the caller asks for it.
            assert begun[window[0] + 1].wait(10)
        else:
            assert all(event.is_set() for event in begun)


def test_what_fails_while_windows_are_prepared_is_told():
    def prepare(window):
        raise ConfigurationError(f"no {window}")

    with pytest.raises(ConfigurationError, match=r"no \[0, 1\]"):
        list(batches.windows(range(3), prepare, size=2))


def test_batches_hold_every_text_once_within_the_budget():
    lengths = [3, 50, 7, 120, 50, 2, 33, 1]
    planned = list(batches.by_length(lengths, 100))
    assert sorted(i for batch in planned for i in batch) == list(range(8))
    for batch in planned:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or longest * len(batch) <= 100
    assert planned[0].tolist() == [3]
    assert max(map(len, batches.by_length(lengths, 100, batch_size=2))) == 2


def test_batches_of_groups_are_within_the_budget():
    lengths, groups = np.array([10] * 8), np.array([2, 2, 2, 9, 2, 3, 2, 2])
    planned = list(batches.by_length(lengths, 100, group_size=groups))
    assert [batch.tolist() for batch in planned] == [[0, 1, 2], [3], [4, 5, 6], [7]]
    same = list(batches.by_length(lengths, 100, group_size=2))
    assert list(map(len, same)) == [5, 3]


# === Filled masks ===


def logits_of(model, tokenizer, text):
    batch = tokenizer([text], keep_mask=True)
    (row,) = np.asarray(model(batch, training=False)).astype("float64")
    positions = np.flatnonzero(batch["token_ids"][0] == tokenizer.mask_id)
    return row[positions]


def test_all_candidates_sum_to_one(masked_lm, tokenizer):
    (candidates,) = fill_mask(
        masked_lm, tokenizer, "今[MASK]天", top_k=tokenizer.vocabulary_size
    )
    assert len({c.token for c in candidates}) == 669
    assert sum(c.probability for c in candidates) == pytest.approx(1)
    order = [c.probability for c in candidates]
    assert order == sorted(order, reverse=True)


def test_a_mask_may_become_a_word():
    tokenizer = RoFormerTokenizer.from_preset(WORD)
    model = RoFormerMaskedLM.from_preset(WORD)
    text = "今天[MASK]不错"
    (candidates,) = fill_mask(model, tokenizer, text, top_k=877)
    assert any(len(c.token) > 1 and "[" not in c.token for c in candidates)
    (row,) = logits_of(model, tokenizer, text)
    assert [c.token_id for c in candidates][:5] == np.argsort(-row)[:5].tolist()


def test_texts_with_masks_are_computed_in_batches(masked_lm, tokenizer, monkeypatch):
    shapes = []

    def counted(model, inputs, engine):
        shapes.append(inputs["token_ids"].shape)
        return run_model(model, inputs, engine)

    monkeypatch.setattr("roformer_keras.models.fill_mask.run_model", counted)
    texts = ["今[MASK]", "[MASK]天" * 9, "今天[MASK]气[MASK]", "[MASK]"]
    filled = fill_mask(masked_lm, tokenizer, texts, top_k=3)
    assert shapes == [(4, 20)]
    assert [len(masks) for masks in filled] == [1, 9, 2, 1]
    for text, masks in zip(texts, filled, strict=True):
        for candidates, row in zip(
            masks, logits_of(masked_lm, tokenizer, text), strict=True
        ):
            best = np.argsort(-row)[:3]
            assert [c.token_id for c in candidates] == best.tolist()
            tokens = [tokenizer.vocabulary[i] for i in best]
            assert [c.token for c in candidates] == tokens
            np.testing.assert_allclose(
                [c.probability for c in candidates],
                (np.exp(row) / np.exp(row).sum())[best],
                rtol=1e-4,
            )


def test_texts_and_options_that_are_refused(masked_lm, tokenizer):
    for text, top_k, message in (
        *(("今[MASK]", k, f"top_k must be .* 669, got {k}") for k in (0, -1, 670)),
        *((text, 5, r"must hold \[MASK\]") for text in ("", "今天", "[mask]", "[MASK")),
    ):
        with pytest.raises(ConfigurationError, match=message):
            fill_mask(masked_lm, tokenizer, text, top_k=top_k)


def test_a_model_that_gives_no_logits_is_refused(tokenizer, pooled):
    softmax = RoFormerMaskedLM.from_preset(CHARACTER, output_activation="softmax")
    for model in (softmax, pooled):
        with pytest.raises(ConfigurationError, match="must give logits: load a RoForm"):
            fill_mask(model, tokenizer, "今[MASK]")


def test_model_and_tokenizer_must_be_of_one_vocabulary(masked_lm, pooled):
    other = RoFormerTokenizer.from_preset(SMALL)
    message = "the model has 669 tokens, the tokenizer 260"
    with pytest.raises(ConfigurationError, match=message):
        fill_mask(masked_lm, other, "今[MASK]")
    with pytest.raises(ConfigurationError, match=message):
        embed(pooled, other, ["今"])

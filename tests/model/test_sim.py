"""Texts in, vectors, cosines, paraphrases and filled masks out."""

import dataclasses

import keras
import numpy as np
import pytest
from common import SMALL

from roformer_keras import RoFormerTokenizer
from roformer_keras.base.errors import ConfigurationError, VocabularyError
from roformer_keras.generation import paraphrase as paraphrasing
from roformer_keras.models.fill_mask import fill_mask

TEXTS = ["今天天气不错", "北京", "我爱北京天安门，天安门上太阳升。", "今天天气不错"]


def vector(model, text):
    """Of one text by itself."""
    token_ids, segment_ids = model.tokenizer.encode(text)
    outputs = model(
        {"token_ids": np.array([token_ids]), "segment_ids": np.array([segment_ids])}
    )
    pooled = np.asarray(outputs["pooled_output"])[0].astype("float64")
    return pooled / np.linalg.norm(pooled)


def test_encode_gives_the_unit_vector_of_each_text(sim):
    vectors = sim.encode(TEXTS)
    assert vectors.dtype == "float32"
    assert vectors.shape == (4, 32)
    expected = np.stack([vector(sim, text) for text in TEXTS])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert sim.encode([]).shape == (0, 32)
    cut = sim.encode(TEXTS, max_length=6)
    np.testing.assert_allclose(cut[0], vector(sim, "今天天气"), atol=1e-5)
    np.testing.assert_allclose(sim.encode(TEXTS[0]), vectors[0], atol=1e-6)
    streamed = sim.encode(iter(TEXTS))
    np.testing.assert_allclose(list(streamed), vectors, atol=1e-6)


def test_similarity_is_the_cosine(sim):
    first, second = TEXTS[0], TEXTS[2]
    expected = vector(sim, first) @ vector(sim, second)
    assert abs(expected) < 0.99
    cosine = sim.similarity(first, second)
    assert type(cosine) is float
    assert cosine == pytest.approx(expected, abs=1e-5)
    assert sim.similarity(first, first) == pytest.approx(1, abs=1e-5)
    others = TEXTS[::-1]
    pairs = sim.similarity(TEXTS, others)
    assert pairs.dtype == "float32"
    assert pairs.shape == (4,)
    expected = [
        vector(sim, a) @ vector(sim, b) for a, b in zip(TEXTS, others, strict=True)
    ]
    np.testing.assert_allclose(pairs, expected, atol=1e-5)
    assert sim.similarity([], []).shape == (0,)
    cut = sim.similarity(first, second, max_length=6)
    assert cut == pytest.approx(
        vector(sim, "今天天气") @ vector(sim, "我爱北京"), abs=1e-5
    )


def test_texts_that_come_again_are_computed_once(sim, monkeypatch):
    asked = []
    original = type(sim).encode

    def encode(self, texts, **options):
        asked.extend(texts)
        return original(self, texts, **options)

    monkeypatch.setattr(type(sim), "encode", encode)
    sim.similarity(TEXTS, [TEXTS[0]] * 4)
    assert sorted(asked) == sorted(set(TEXTS))


def test_texts_that_cannot_be_compared(sim):
    for first, second in (("今", ["今"]), (["今"], "今")):
        with pytest.raises(ConfigurationError, match="two texts or two lists"):
            sim.similarity(first, second)
    for text, message in (
        ("", "a text must be a str that is not empty"),
        ("☃", "a text to compare must have tokens"),
    ):
        for first, second in ((text, "今"), ("今", text), (["今"] * 2, ["今", text])):
            with pytest.raises(ConfigurationError, match=message):
                sim.similarity(first, second)
    with pytest.raises(ConfigurationError, match="one length, got 1, 2"):
        sim.similarity(["今"], ["今", "天"])


# The same shapes in every test: 8 rows, up to 24 new tokens.
OPTIONS = {"max_new_tokens": 24, "seed": 1}


def test_paraphrases_are_what_was_written_ranked_by_cosine(sim):
    text = TEXTS[0]
    ranked = sim.paraphrase(text, n=8, k=5, **OPTIONS)
    written = sim.generate(text, num_return_sequences=8, **OPTIONS)
    cosines = {one: vector(sim, text) @ vector(sim, one) for one in set(written)}
    best = sorted(cosines, key=cosines.get, reverse=True)[:5]
    assert [one for one, _ in ranked] == best
    for one, cosine in ranked:
        assert type(cosine) is float
        assert cosine == pytest.approx(cosines[one], abs=1e-5)
    everything = sim.paraphrase(text, n=8, k=100, **OPTIONS)
    assert everything[:5] == ranked
    assert len(everything) == len(set(written) - {text, ""})
    assert sim.paraphrase(text, n=8, k=5, batch_size=8, **OPTIONS) == ranked


def test_what_was_written_twice_counts_once_and_the_original_not_at_all(
    sim, monkeypatch
):
    ids = [sim.tokenizer.encode(text)[0][1:] for text in ("北京", "今天", "hello 北京")]
    ids = [*ids, ids[0], [sim.tokenizer.sep_id], ids[2]]

    class Text:
        def __init__(self, token_ids):
            self.token_ids = token_ids

    monkeypatch.setattr(
        paraphrasing,
        "decode_prompts",
        lambda model, prompts, *_, **__: [[Text(i) for i in ids] for _ in prompts],
    )
    ranked = sim.paraphrase("今天", n=6)
    assert {one for one, _ in ranked} == {"北京", "hello北京"}
    # The original is the same however it is spaced and written.
    ranked = sim.paraphrase("HELLO  北京", n=6)
    assert {one for one, _ in ranked} == {"北京", "今天"}


def test_many_texts_as_each_by_itself(sim):
    texts = [TEXTS[0], TEXTS[1]]
    many = sim.paraphrase(texts, n=4, k=3, **OPTIONS)
    assert len(many) == 2
    assert many[0] == sim.paraphrase(texts[0], n=4, k=3, **OPTIONS)
    assert [len(found) for found in many] == [3, 3]
    for text, found in zip(texts, many, strict=True):
        for one, cosine in found:
            assert cosine == pytest.approx(sim.similarity(text, one), abs=1e-5)
    assert sim.paraphrase([], **OPTIONS) == []
    (alone,) = sim.paraphrase([texts[0]], n=4, k=3, **OPTIONS)
    assert alone == many[0]


def test_positions_are_masked_in_the_prompt_but_not_in_the_ranking(sim, monkeypatch):
    asked = []
    original = paraphrasing.decode_prompts

    def decode(model, prompts, *arguments, **options):
        asked.extend(prompts)
        return original(model, prompts, *arguments, **options)

    monkeypatch.setattr(paraphrasing, "decode_prompts", decode)
    text = TEXTS[0]
    ranked = sim.paraphrase(text, n=8, k=3, masked_positions=[1, 4], **OPTIONS)
    expected = list(sim.tokenizer.encode(text)[0])
    expected[1] = expected[4] = sim.tokenizer.mask_id
    assert [list(prompt.token_ids) for prompt in asked] == [expected]
    assert ranked != sim.paraphrase(text, n=8, k=3, **OPTIONS)
    for one, cosine in ranked:
        assert cosine == pytest.approx(sim.similarity(text, one), abs=1e-5)


REFUSED = [
    ("", {}, "must hold text"),
    (["今", ""], {}, "must hold text"),
    ("☃", {}, "must have tokens of the vocabulary"),
    ("☃", {"masked_positions": [1]}, "must have tokens of the vocabulary"),
    ("今天" * 40, {"max_length": 64}, "shorter than max_length=64 tokens, got 82"),
    ([2, 3], {}, "must be str, got ids"),
    ("今", {"masked_positions": 1}, "must be a list of integers, got 1"),
    ("今", {"masked_positions": [True]}, "must be integers from 1 .* got True"),
    ("今", {"masked_positions": ["a"]}, "must be integers from 1 to 1, .* got 'a'"),
    ("今", {"n": 0}, "n must be an integer from 1 to 1048576, got 0"),
    ("今", {"k": 0}, "k must be an integer from 1 to 1048576, got 0"),
    ("今", {"n": 1.5}, "n must be an integer from 1 to 1048576, got 1.5"),
    *(
        (
            TEXTS[0],
            {"masked_positions": [1, position]},
            f"from 1 to 6, .* got {position}",
        )
        for position in (0, 7, -1, 100)
    ),
    # It must hold for each of the texts.
    (TEXTS[:2], {"masked_positions": [3]}, "from 1 to 2, .* got 3"),
]


def test_what_paraphrase_refuses(sim):
    for texts, options, message in REFUSED:
        with pytest.raises(ConfigurationError, match=message):
            sim.paraphrase(texts, **options)


def test_a_sim_without_a_tokenizer_says_so(sim, monkeypatch):
    monkeypatch.setattr(sim, "tokenizer", None)
    for call in (
        lambda: sim.encode(["今"]),
        lambda: sim.similarity("今", "天"),
        lambda: sim.paraphrase("今"),
    ):
        with pytest.raises(VocabularyError, match=r"set model\.tokenizer to the"):
            call()
    sim.tokenizer = RoFormerTokenizer.from_preset(SMALL)
    with pytest.raises(ConfigurationError, match="669 tokens, the tokenizer 260"):
        sim.encode(["今"])


def test_masks_of_one_text_and_of_many(masked_lm, monkeypatch):
    texts = ["今天[MASK]气[MASK]错", "[MASK]京", "我爱北京[MASK]"]
    for given in (texts, texts[0]):
        by_method = masked_lm.fill_mask(given, top_k=3)
        by_function = fill_mask(masked_lm, masked_lm.tokenizer, given, 3)
        candidates = zip(
            keras.tree.flatten(by_method), keras.tree.flatten(by_function), strict=True
        )
        for one, other in candidates:
            # From its third row on, a short text is computed by XLA.
            assert one.probability == pytest.approx(other.probability)
            assert dataclasses.replace(one, probability=other.probability) == other
    assert len(masked_lm.fill_mask("[MASK]")[0]) == 5
    assert masked_lm.fill_mask([]) == []
    for top_k in (2.0, True, "2"):
        with pytest.raises(ConfigurationError, match="top_k must be an integer from 1"):
            masked_lm.fill_mask("[MASK]", top_k=top_k)
    monkeypatch.setattr(masked_lm, "tokenizer", None)
    with pytest.raises(VocabularyError, match=r"set model\.tokenizer to the"):
        masked_lm.fill_mask("[MASK]")

"""Penalties of repetition: scores of Transformers' processors, in every search."""

import numpy as np
import plain_decoding as plain
import pytest

from roformer_keras import export
from roformer_keras.generation import GenerationConfig, ServedGenerator
from roformer_keras.generation.choosing import limit_repetition
from roformer_keras.generation.row_state import right_aligned

PENALTIES = (
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 0.6, "no_repeat_ngram_size": 3},
    {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1},
)
LIMIT = 12
PROMPTS = [[2, 7, 9, 7, 9], [2, 30, 8, 11, 20, 31, 8], [2, 8]]


def processed(ids, scores, penalties):
    """Scores `(vocabulary,)` by the processors of Transformers."""
    import torch
    from transformers.generation import logits_process

    made = logits_process.LogitsProcessorList()
    if "repetition_penalty" in penalties:
        penalty = float(penalties["repetition_penalty"])
        made.append(logits_process.RepetitionPenaltyLogitsProcessor(penalty))
    if "no_repeat_ngram_size" in penalties:
        size = penalties["no_repeat_ngram_size"]
        made.append(logits_process.NoRepeatNGramLogitsProcessor(size))
    rows = torch.tensor([list(map(int, ids))]), torch.tensor(scores[None])
    return made(*rows)[0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_scores_equal_transformers(penalties):
    random = np.random.default_rng(0)
    rows = [random.integers(0, 6, random.integers(1, 20)).tolist() for _ in range(50)]
    for dtype in ("float32", "float64"):
        scores = random.normal(size=(len(rows), 9), scale=4).astype(dtype)
        before = scores.copy()
        config = GenerationConfig(**penalties)
        found = limit_repetition(scores, right_aligned(rows), config)
        expected = [
            processed(*pair, penalties) for pair in zip(rows, scores, strict=True)
        ]
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == dtype
        np.testing.assert_array_equal(scores, before)
    assert limit_repetition(scores, None, config) is scores


def expected_texts(model, prompts, penalties, options):
    """Texts and scores of a plain loop with the processors, by prompt."""
    size = model.config.vocabulary_size
    stops = (5, 17, 60)
    texts = []
    for number, prompt in enumerate(prompts):

        def process(text, scores, prompt=prompt):
            return processed([*prompt, *text], scores, penalties)

        common = {"stops": stops, "process": process}
        if options["method"] == "beam":
            beams = plain.beam(model, prompt, LIMIT, options["num_beams"], **common)
            texts.append([(ids, score) for score, ids in beams])
            continue
        if options["method"] == "greedy":
            text = plain.greedy(model, prompt, LIMIT, **common)
        else:
            cuts = {"temperature": 0.7, "top_k": min(30, size), "top_p": 0.9}
            text = plain.sample(model, prompt, LIMIT, 5, number, cuts, **common)
        texts.append([(text, plain.score(model, prompt, text))])
    return texts


METHODS = {
    "greedy": {"method": "greedy"},
    "sample": {"method": "sample", "temperature": 0.7, "top_k": 30, "top_p": 0.9},
    "beam": {"method": "beam", "num_beams": 3},
}


@pytest.mark.slow
@pytest.mark.usefixtures("by_keras")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["causal_lm", "sim"])
def test_texts_equal_a_plain_loop_with_transformers(name, method, request):
    model, options = request.getfixturevalue(name), METHODS[method]
    size = model.config.vocabulary_size
    prompts = [[i % size for i in prompt] for prompt in PROMPTS]
    penalties = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}
    expected = expected_texts(model, prompts, penalties, options)
    count = options.get("num_beams", 1)
    for engine in ("keras", "openvino"):
        written = model.generate(
            prompts,
            **options,
            **penalties,
            seed=5,
            engine=engine,
            stop_tokens=[i for i in (5, 17, 60) if i < size],
            max_new_tokens=LIMIT,
            num_return_sequences=count,
            return_scores=True,
            verbose=0,
        )
        for texts, others in zip(written, expected, strict=True):
            assert [one.output for one in texts] == [ids for ids, _ in others], engine
            scores = [score for _, score in others]
            assert [one.score for one in texts] == pytest.approx(scores, abs=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("by_keras")
def test_streams_paraphrases_and_exports_have_them(causal_lm, sim, tmp_path):
    options = {"method": "greedy", "no_repeat_ngram_size": 2, "repetition_penalty": 1.3}
    options["max_new_tokens"] = LIMIT
    text = causal_lm.generate("今天天气", **options, verbose=0)
    assert text != causal_lm.generate("今天天气", method="greedy", max_new_tokens=LIMIT)
    for engine in ("keras", "openvino"):
        assert "".join(causal_lm.stream("今天天气", engine=engine, **options)) == text
    export.export_generator(causal_lm, tmp_path / "served")
    assert ServedGenerator(tmp_path / "served").generate("今天天气", **options) == text
    cuts = {"n": 6, "k": 6, "seed": 1, "max_new_tokens": LIMIT, "verbose": 0}
    penalties = {"no_repeat_ngram_size": 1}
    found = sim.paraphrase("今天天气", **cuts, **penalties, engine="keras")
    assert found and found != sim.paraphrase("今天天气", **cuts, engine="keras")
    for sentence, _ in found:
        ids = sim.tokenizer.encode(sentence)[0][1:-1]
        assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.usefixtures("by_keras")
def test_batches_change_nothing(causal_lm):
    options = {"num_return_sequences": 5, "seed": 3, "max_new_tokens": 20, "verbose": 0}
    options |= {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    expected = causal_lm.generate(PROMPTS, **options, engine="openvino")
    for engine, size in (("openvino", 4), ("openvino", 1), ("keras", 64)):
        found = causal_lm.generate(PROMPTS, **options, engine=engine, batch_size=size)
        assert found == expected

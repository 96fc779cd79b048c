"""Beam searches next to those of Transformers, on random options and prompts.

The figures stand in docs/generation.md.
"""

import numpy as np
import pytest
from common import GPT

from roformer_keras import RoFormerCausalLM
from roformer_keras.conversion.convert import convert


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model whose next tokens differ in probability, and the same in Transformers."""
    import transformers

    folder = tmp_path_factory.mktemp("beams")
    model = RoFormerCausalLM.from_preset(GPT)
    (gamma,) = (one for one in model.mlm_head.weights if "gamma" in one.path)
    gamma.assign(8 * gamma.numpy())
    model.save_to_preset(folder / "preset")
    convert(folder / "preset", folder / "huggingface", format="huggingface")
    theirs = transformers.RoFormerForCausalLM.from_pretrained(
        folder / "huggingface", is_decoder=True
    )
    return model, theirs.eval()


def draw_cell(rng):
    """Options of both libraries, and a prompt."""
    beams = int(rng.integers(2, 7))
    options = {
        "num_beams": beams,
        "num_return_sequences": int(rng.integers(1, beams + 1)),
        "max_new_tokens": int(rng.integers(1, 25)),
        "length_penalty": float(rng.choice([0, 0.6, 1, 2])),
        "repetition_penalty": float(rng.choice([1, 1, 1.3])),
        "no_repeat_ngram_size": int(rng.choice([0, 0, 2])),
    }
    count = int(rng.choice([1, 3, 60]))
    stops = rng.choice(np.arange(5, 650), count, replace=False).tolist()
    return options, stops, [2, *rng.integers(5, 600, int(rng.integers(1, 9))).tolist()]


def search(theirs, options, stops, prompt, early_stopping):
    import torch

    with torch.no_grad():
        found = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            early_stopping=early_stopping,
            do_sample=False,
            eos_token_id=stops,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
    texts = []
    for ids in found.sequences[:, len(prompt) :].tolist():
        ends = [at for at, token in enumerate(ids, start=1) if token in stops]
        texts.append(ids[: ends[0]] if ends else ids)
    return texts, found.sequences_scores.tolist()


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(121, marks=pytest.mark.weekly),
    ],
)
def test_beams_are_those_of_transformers(count, models):
    """All are, with `early_stopping="never"`; by default theirs may score less."""
    (model, theirs), rng, differing = models, np.random.default_rng(1), []
    for _ in range(count):
        options, stops, prompt = draw_cell(rng)
        (texts,) = model.generate(
            [prompt], stop_tokens=stops, return_scores=True, verbose=0, **options
        )
        outputs, scores = map(list, zip(*texts, strict=True))
        cell = options, stops, prompt
        found, their_scores = search(theirs, *cell, "never")
        assert outputs == found, cell
        assert scores == pytest.approx(their_scores, abs=1e-4), cell
        found, their_scores = search(theirs, *cell, False)
        if outputs != found:
            differing.append(options)
            assert options["length_penalty"] > 0, cell
            assert np.greater_equal(scores, np.array(their_scores) - 1e-4).all(), cell
    print(f"{len(differing)} of {count} differ with early_stopping=False: {differing}")
    assert len(differing) <= count / 40

"""Language models whose output is not tied to the token embedding."""

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SIM, V2
from sources import INPUTS

from roformer_keras import (
    RoFormerCausalLM,
    RoFormerConfig,
    RoFormerMaskedLM,
    RoFormerSim,
    convert,
    load_model,
)
from roformer_keras.base.errors import CheckpointError, ConfigurationError

SOURCES = {
    "masked": (RoFormerMaskedLM, CHARACTER),
    "causal": (RoFormerCausalLM, GPT),
    "sim": (RoFormerSim, SIM),
    "v2": (RoFormerMaskedLM, V2),
}
FORMATS = {
    "preset": "preset",
    "keras": "x.keras",
    "safetensors": "x.safetensors",
    "weights.h5": "x.weights.h5",
    "huggingface": "huggingface",
}


def outputs_of(model):
    outputs = model(INPUTS)
    outputs = outputs["logits"] if isinstance(outputs, dict) else outputs
    return keras.ops.convert_to_numpy(outputs)


def untied_model(name):
    """A model with an output that was trained apart, and the class of its source."""
    cls, source = SOURCES[name]
    model = cls.from_preset(source, tie_word_embeddings=False)
    tied = cls.from_preset(source)
    np.testing.assert_array_equal(outputs_of(model), outputs_of(tied))
    output = model.mlm_head.output_embedding.embeddings
    output.assign_add(np.random.default_rng(0).normal(0, 0.1, output.shape))
    assert np.abs(outputs_of(model) - outputs_of(tied)).max() > 0.1
    return model


@pytest.mark.parametrize("name", SOURCES)
def test_every_format_keeps_an_output_of_its_own(name, tmp_path):
    model = untied_model(name)
    expected, cls = outputs_of(model), type(model)
    model.save_to_preset(tmp_path / "preset")
    model.save_weights(tmp_path / "saved.weights.h5")
    model.save(tmp_path / "saved.keras")
    options = {"config": model.config}
    for format, target in FORMATS.items():
        if format == "huggingface" and name == "v2":
            continue
        if format != "preset":
            convert(tmp_path / "preset", tmp_path / target, format=format, verbose=0)
        loaded = cls.from_preset(
            tmp_path / target, **(options if format == "weights.h5" else {})
        )
        np.testing.assert_array_equal(outputs_of(loaded), expected, format)
    loaded = cls.from_preset(tmp_path / "saved.weights.h5", **options)
    np.testing.assert_array_equal(outputs_of(loaded), expected)
    loaded = load_model(tmp_path / "saved.keras")
    np.testing.assert_array_equal(outputs_of(loaded), expected)
    with pytest.raises(ConfigurationError, match="tie_word_embeddings=False"):
        convert(tmp_path / "preset", tmp_path / "x.zip", verbose=0)


def test_a_tied_checkpoint_is_converted_to_an_output_of_its_own(tmp_path):
    folder = convert(GPT, tmp_path / "x", tie_word_embeddings=False, verbose=0)
    model = RoFormerCausalLM.from_preset(folder)
    assert not model.config.tie_word_embeddings
    tied = RoFormerCausalLM.from_preset(GPT)
    np.testing.assert_array_equal(outputs_of(model), outputs_of(tied))
    untied_model("causal").load_preset(GPT)


def test_an_output_of_its_own_is_never_dropped(tmp_path):
    untied_model("causal").save_to_preset(tmp_path / "x")
    name = r"unexpected cls/predictions/decoder/weights[^:]*: its output is not tied"
    with pytest.raises(CheckpointError, match=name):
        RoFormerCausalLM.from_preset(tmp_path / "x", tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=name):
        RoFormerCausalLM.from_preset(GPT).load_preset(tmp_path / "x")


def test_tokens_that_are_kept_are_kept_in_the_output_too(tmp_path):
    model = untied_model("masked")
    model.save_to_preset(tmp_path / "x")
    tokens = list(range(100))
    smaller = RoFormerMaskedLM.from_preset(tmp_path / "x", keep_tokens=tokens)
    np.testing.assert_allclose(
        outputs_of(smaller), outputs_of(model)[..., tokens], atol=1e-5
    )


def test_a_new_head_has_an_output_of_its_own():
    config = RoFormerConfig(
        vocabulary_size=50,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        tie_word_embeddings=False,
    )
    model = RoFormerMaskedLM.from_roformer_config(config)
    output = model.mlm_head.output_embedding.embeddings
    assert np.abs(output - model.backbone.token_embedding.embeddings).max() > 0
    assert any(output is variable for variable in model.trainable_variables)

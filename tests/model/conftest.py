"""Tiny models that every test of this tier shares: loaded and compiled once a process.

They are read only: a test that trains a model loads its own. At the end of the session
their weights must be what they were.
"""

import zlib

import pytest
from common import CHARACTER, GPT, SIM, V2


def _checksum(model):
    values = (weight.numpy().tobytes() for weight in model.weights)
    return [zlib.crc32(value) for value in values]


def _shared(class_name, source):
    @pytest.fixture(scope="session")
    def fixture():
        import roformer_keras

        model = getattr(roformer_keras, class_name).from_preset(source)
        before = _checksum(model)
        yield model
        changed = [
            weight.path
            for weight, old, new in zip(
                model.weights, before, _checksum(model), strict=True
            )
            if old != new
        ]
        assert not changed, f"a test changed the shared {class_name}: {changed[:3]}"

    return fixture


backbone = _shared("RoFormerBackbone", CHARACTER)
masked_lm = _shared("RoFormerMaskedLM", CHARACTER)
causal_lm = _shared("RoFormerCausalLM", GPT)
sim = _shared("RoFormerSim", SIM)
v2_backbone = _shared("RoFormerBackbone", V2)


@pytest.fixture(scope="session")
def tokenizer(backbone):
    """The character tokenizer of `backbone` and `masked_lm`."""
    return backbone.tokenizer

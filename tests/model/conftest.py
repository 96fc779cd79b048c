"""Tiny models that every test of this tier shares: loaded and compiled once a process.

They are read only: a test that trains a model loads its own. At the end of the session
their weights must be what they were.
"""

import zlib

import pytest
from common import CHARACTER, GPT, SIM


@pytest.fixture(autouse=True)
def plain_calls(monkeypatch):
    """Has `model(ids)` compute operation by operation.

    The graph that it keeps takes longer to trace than the few calls of a test. Modules
    that test that graph have a fixture of this name, which does nothing.
    """
    from roformer_keras.inference import fast_model

    monkeypatch.setattr(fast_model, "_is_outside_graph", lambda inputs: False)


@pytest.fixture
def by_keras(monkeypatch):
    """Has Keras compute where a test names no engine: it is what others must equal."""
    from roformer_keras.inference.fast_model import FastModel

    monkeypatch.setattr(FastModel, "_engine", "keras")


@pytest.fixture
def uncompiled(monkeypatch):
    """Decoders of models that a test makes compute operation by operation."""
    import keras

    from roformer_keras.base import compiled

    def as_it_is(_, function):
        def call(*arguments):
            tensors = keras.ops.convert_to_tensor
            return function(*keras.tree.map_structure(tensors, arguments))

        return call

    monkeypatch.setattr(compiled, "_in_tensorflow", as_it_is)


def _checksum(model):
    values = (weight.numpy().tobytes() for weight in model.weights)
    return [zlib.crc32(value) for value in values]


def _unchanged(model):
    """The model of a session fixture; an error at its end if a test changed it."""
    before = _checksum(model)
    yield model
    after = zip(model.weights, before, _checksum(model), strict=True)
    changed = [weight.path for weight, old, new in after if old != new]
    assert not changed, f"a test changed the shared {model.name}: {changed[:3]}"


def _shared(class_name, source):
    @pytest.fixture(scope="session")
    def fixture():
        import roformer_keras

        yield from _unchanged(getattr(roformer_keras, class_name).from_preset(source))

    return fixture


backbone = _shared("RoFormerBackbone", CHARACTER)
masked_lm = _shared("RoFormerMaskedLM", CHARACTER)
causal_lm = _shared("RoFormerCausalLM", GPT)
sim = _shared("RoFormerSim", SIM)


@pytest.fixture(scope="session")
def tokenizer(backbone):
    """The character tokenizer of `backbone` and `masked_lm`."""
    return backbone.tokenizer

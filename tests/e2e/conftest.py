"""Fixtures of tests that start commands and servers."""

import functools

import pytest
from common import SIM


@pytest.fixture(scope="module")
def load_once():
    """A source that commands load is loaded once, with what was compiled of it."""
    from roformer_keras.verbs import loading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_source", functools.cache(loading.load_source))
        yield


@pytest.fixture(scope="module")
def plain_calls():
    """`model(ids)` computes operation by operation: tracing takes longer."""
    from roformer_keras.inference import fast_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_model, "_is_outside_graph", lambda inputs: False)
        yield


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """The folder of RoFormer-Sim, exported as a generator."""
    from roformer_keras import RoFormerSim
    from roformer_keras.export import export_generator

    folder = tmp_path_factory.mktemp("export") / "roformer-sim-char"
    export_generator(RoFormerSim.from_preset(SIM), folder)
    return folder

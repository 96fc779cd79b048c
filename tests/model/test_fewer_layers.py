"""Models of the first layers of a checkpoint."""

import numpy as np
import pytest
from common import CHARACTER

from roformer_keras import RoFormerBackbone
from roformer_keras.errors import CheckpointError


def test_the_first_layers_are_those_of_the_whole_model():
    whole = RoFormerBackbone.from_preset(CHARACTER)
    first = RoFormerBackbone.from_preset(CHARACTER, num_layers=1)
    assert first.config.num_layers == 1 < whole.config.num_layers
    weights = {weight.path: np.array(weight) for weight in whole.weights}
    for weight in first.weights:
        np.testing.assert_array_equal(np.array(weight), weights[weight.path])


def test_more_layers_than_there_are_is_an_error():
    layers = RoFormerBackbone.from_preset(CHARACTER).config.num_layers
    with pytest.raises(CheckpointError, match=f"missing bert/encoder/layer_{layers}/"):
        RoFormerBackbone.from_preset(CHARACTER, num_layers=layers + 1)
    with pytest.raises(CheckpointError, match="1,000,000 layers"):
        RoFormerBackbone.from_preset(CHARACTER, num_layers=10**6)

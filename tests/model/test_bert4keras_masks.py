"""Masks of layers, with the answers of Keras 2."""

import json

import numpy as np
import pytest
from common import ROOT

from roformer_keras.bert4keras import layers
from roformer_keras.bert4keras.backend import K, keras
from roformer_keras.bert4keras.layer_functions import MERGES
from tools.reference.masks import CASES, answer

GOLDEN = json.loads(
    (ROOT / "tests" / "data" / "bert4keras" / "masks.json").read_text(encoding="utf-8")
)
# Names of layers that differ from those of Keras; the other cases are slow.
QUICK = (*MERGES, "concatenate", "GlobalMaxPooling1D", "Asking", "inner")


@pytest.mark.filterwarnings("ignore:Layer .*destroy the mask")
@pytest.mark.parametrize(
    "case",
    [
        x
        if any(f"{name}(" in x for name in QUICK)
        else pytest.param(x, marks=pytest.mark.slow)
        for x in CASES
    ],
)
def test_values_and_masks_are_those_of_keras_2(case):
    values, mask = answer("roformer_keras.bert4keras", case)
    expected, expected_mask = GOLDEN[case]
    np.testing.assert_allclose(values, expected, rtol=0, atol=2e-5)
    assert mask == expected_mask


def test_a_sequence_without_a_mask_is_visible_in_a_concatenation():
    """Keras 2 stops at it."""
    ids = keras.Input((4,))
    embeddings = [layers.Embedding(5, 3, mask_zero=mask) for mask in (True, False)]
    x = keras.layers.Concatenate(axis=1)([layer(ids) for layer in embeddings])
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))
    rows = np.array([[1, 2, 0, 0]])
    first, second = (np.array(x.weights[0])[rows[0]] for x in embeddings)
    expected = np.concatenate([first[:2], second]).mean(0)
    np.testing.assert_allclose(K.eval(model(rows))[0], expected, atol=1e-6)

"""The table of weights has the paths and datasets of our Keras models."""

import h5py
import keras
import numpy as np
import pytest
from weight_cases import CONFIGS, OPTIONS

import roformer_keras
from roformer_keras.base.config import config_for_model
from roformer_keras.conversion.weights import KERAS_BACKBONE, model_heads, weight_table

# The classes differ in their heads, and in nothing else that has weights.
CASES = [("RoFormerMaskedLM", name) for name in CONFIGS if name != "eleven-layers"]
BACKBONES = ("v1", "v2-embedding", "embedding-nsp", "eleven-layers")
CASES += [("RoFormerBackbone", name) for name in BACKBONES]
CASES += [("RoFormerCausalLM", "v1"), ("RoFormerSim", "nsp")]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_rows_are_the_variables_of_the_model_and_the_datasets_of_keras(
    model, name, tmp_path
):
    config = config_for_model(model, CONFIGS[name], **OPTIONS[name])
    rows = weight_table(config, model_heads(model, config))
    built = getattr(roformer_keras, model).from_roformer_config(config)
    random = np.random.default_rng(1)
    for variable in built.weights:
        variable.assign(random.standard_normal(variable.shape))
    values = {v.path: keras.ops.convert_to_numpy(v) for v in built.weights}
    assert {row.path: row.shape for row in rows} == {
        path: value.shape for path, value in values.items()
    }
    built.save_weights(tmp_path / "x.weights.h5")
    stored = {}
    with h5py.File(tmp_path / "x.weights.h5") as file:
        file.visititems(
            lambda key, node: (
                stored.update({key: node[()]})
                if isinstance(node, h5py.Dataset) and "seed" not in key
                else None
            )
        )
    has_prefix = model != "RoFormerBackbone"
    for row in rows:
        prefix = KERAS_BACKBONE if has_prefix and row.head != "mlm" else ""
        dataset = stored.pop(prefix + row.dataset)
        np.testing.assert_array_equal(dataset, values[row.path])
    assert stored == {}

"""Our outputs against those that the real bert4keras gave, for every option.

The golden files and the checkpoints were written by the real bert4keras, see
checkpoints/README.md. Every case has padded rows.
"""

import functools
import json

import numpy as np
import pytest
from common import CHECKPOINTS, SAVED, config_of_saved

from roformer_keras.verification.counterpart import counterpart, outputs_by_role

NEW, OLD = "0.11.5", "0.10.6"
# 0.10.6 adds up the scores of all layers before; we follow 0.11, which passes on the
# previous layer's alone, and refuses a mask with them.
NOT_REPRODUCED = {f"residual-attention-scores{mask}" for mask in ("", "-lm", "-unilm")}


@functools.cache
def golden(version):
    with np.load(CHECKPOINTS / f"golden-{version}.npz") as file:
        arrays = dict(file)
    return arrays, json.loads(str(arrays.pop("metadata")))


def cases_of(version):
    return golden(version)[1]["cases"]


def test_the_versions_have_the_same_cases_but_for_roformer_v2():
    new, old = (set(cases_of(version)) - NOT_REPRODUCED for version in (NEW, OLD))
    assert old == {name for name in new if not name.startswith("v2-")}


@pytest.mark.parametrize("name", cases_of(NEW))
def test_outputs_equal_bert4keras(name):
    """0.11.5 in the graph that users run, 0.10.6 operation by operation."""
    case = cases_of(NEW)[name]
    model = model_of(NEW, case, case["kwargs"])
    assert_equal(model, NEW, name)
    if name not in cases_of(OLD) or name in NOT_REPRODUCED:
        return
    assert cases_of(OLD)[name] == case
    if "custom_position_ids" in case["kwargs"]:
        # It takes the input and passes over it.
        kwargs = {**case["kwargs"], "custom_position_ids": False}
        model = model_of(OLD, case, kwargs)
    else:
        change_epsilon(model, *(golden(v)[1]["layer_norm_epsilon"] for v in (NEW, OLD)))
    model.run_eagerly = True
    assert_equal(model, OLD, name)


def model_of(version, case, kwargs):
    name, options = case["source"], {}
    source = CHECKPOINTS / f"{name}.zip"
    if name.endswith(".h5"):
        source, options = SAVED / name, {"config": config_of_saved(name)}
    epsilon = golden(version)[1]["layer_norm_epsilon"]
    return counterpart(source, kwargs, layer_norm_epsilon=epsilon, **options)


def change_epsilon(model, before, after):
    """Gives all norms another epsilon, as if the model was built with it."""
    norms = [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "epsilon", None) == before
    ]
    assert len(norms) > model.config.num_layers
    for norm in norms:
        norm.epsilon = after


def assert_equal(model, version, name):
    arrays, metadata = golden(version)
    batches = {key.split("/")[1] for key in arrays if key.startswith(f"{name}/")}
    assert batches == {"main", "length-1", "length-2"}
    for batch in batches:
        prefix = f"{name}/{batch}/"
        data = {
            key.removeprefix(prefix): value
            for key, value in arrays.items()
            if key.startswith(prefix)
        }
        ours = outputs_by_role(model, data)
        assert list(ours) == metadata["cases"][name]["outputs"]
        for role, value in ours.items():
            if role == "mlm" and "mlm_columns" in data:
                assert (value.argmax(-1) == data["mlm_top"]).all()
                value = value[..., data["mlm_columns"]]
            np.testing.assert_allclose(value, data[role], rtol=0, atol=2e-5)

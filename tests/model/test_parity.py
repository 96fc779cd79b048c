"""Our outputs against those that the real bert4keras gave, for every option.

The golden files and the checkpoints were written by the real bert4keras, see
checkpoints/README.md. Every case has padded rows.
"""

import pytest
from common import CHECKPOINTS, SAVED, config_of_saved
from golden_outputs import assert_outputs, golden, golden_batches, golden_cases

from roformer_keras.verification.counterpart import counterpart, outputs_by_role

NEW, OLD = "0.11.5", "0.10.6"
# 0.10.6 adds up the scores of all layers before; we follow 0.11, which passes on the
# previous layer's alone, and refuses a mask with them.
NOT_REPRODUCED = {f"residual-attention-scores{mask}" for mask in ("", "-lm", "-unilm")}


def test_the_versions_have_the_same_cases_but_for_roformer_v2():
    new, old = (set(golden_cases(version)) - NOT_REPRODUCED for version in (NEW, OLD))
    assert old == {name for name in new if not name.startswith("v2-")}


@pytest.mark.parametrize("name", golden_cases(NEW))
def test_outputs_equal_bert4keras(name):
    """0.11.5 in the graph that users run, 0.10.6 operation by operation."""
    case = golden_cases(NEW)[name]
    model = model_of(NEW, case, case["kwargs"])
    assert_equal(model, NEW, name)
    if name not in golden_cases(OLD) or name in NOT_REPRODUCED:
        return
    assert golden_cases(OLD)[name] == case
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
    for batch in golden_batches(name, version).values():
        outputs = outputs_by_role(model, batch)
        assert list(outputs) == golden_cases(version)[name]["outputs"]
        assert_outputs(outputs, batch)

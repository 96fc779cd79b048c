"""Our outputs against those that the real bert4keras gave, for every option.

The golden files and the checkpoints were written by the real bert4keras, see
checkpoints/README.md. Every case has padded rows.
"""

import json

import numpy as np
import pytest
from common import CHECKPOINTS, SAVED, config_of_saved

from roformer_keras.verification.counterpart import counterpart, outputs_by_role

VERSIONS = ("0.11.5", "0.10.6")

# 0.10.6 adds up the scores of all layers before; we follow 0.11, which passes on the
# previous layer's alone.
NOT_REPRODUCED = {
    ("0.10.6", "residual-attention-scores"),
    ("0.10.6", "residual-attention-scores-lm"),
    ("0.10.6", "residual-attention-scores-unilm"),
}


def golden(version):
    with np.load(CHECKPOINTS / f"golden-{version}.npz") as file:
        arrays = dict(file)
    return arrays, json.loads(str(arrays.pop("metadata")))


def cases():
    for version in VERSIONS:
        _, metadata = golden(version)
        for name in metadata["cases"]:
            if (version, name) in NOT_REPRODUCED:
                continue
            yield pytest.param(version, name, id=f"{version}-{name}")


def source_of(case):
    name = case["source"]
    if name.endswith(".h5"):
        return SAVED / name
    return CHECKPOINTS / f"{name}.zip"


@pytest.mark.parametrize(("version", "name"), list(cases()))
def test_outputs_equal_bert4keras(version, name):
    arrays, metadata = golden(version)
    case = metadata["cases"][name]
    options, kwargs = {}, dict(case["kwargs"])
    if case["source"].endswith(".h5"):
        options["config"] = config_of_saved(case["source"])
    if version == "0.10.6":
        # It takes the input and passes over it.
        kwargs.pop("custom_position_ids", None)
    model = counterpart(
        source_of(case),
        kwargs,
        layer_norm_epsilon=metadata["layer_norm_epsilon"],
        **options,
    )
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
        assert set(ours) == set(case["outputs"])
        for role in case["outputs"]:
            value = ours[role]
            if role == "mlm" and "mlm_columns" in data:
                assert (value.argmax(-1) == data["mlm_top"]).all()
                value = value[..., data["mlm_columns"]]
            np.testing.assert_allclose(value, data[role], rtol=0, atol=2e-5)

"""Outputs of models by the real bert4keras, for every option, on padded batches."""

import functools

import numpy as np
from common import CHECKPOINTS, load_golden


@functools.cache
def golden(version="0.11.5"):
    """The arrays and the metadata that a version of bert4keras wrote."""
    return load_golden(CHECKPOINTS / f"golden-{version}.npz")


def golden_cases(version="0.11.5"):
    return golden(version)[1]["cases"]


def golden_batches(name, version="0.11.5"):
    """Inputs and outputs of each batch of a case, by name."""
    arrays, _ = golden(version)
    batches = {}
    for key, value in arrays.items():
        case, batch, part = key.split("/")
        if case == name:
            batches.setdefault(batch, {})[part] = value
    assert set(batches) == {"main", "length-1", "length-2"}
    return batches


def assert_outputs(outputs, batch):
    """Compares outputs by role with a batch; of the MLM, samples of the logits."""
    for role, value in outputs.items():
        if role == "mlm" and "mlm_columns" in batch:
            assert (value.argmax(-1) == batch["mlm_top"]).all()
            value = value[..., batch["mlm_columns"]]
        np.testing.assert_allclose(value, batch[role], rtol=0, atol=2e-5)

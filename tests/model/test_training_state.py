"""The saved state of a training, and its log."""

import keras
import numpy as np
import pytest
import safetensors.numpy

from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.training.log import LogFile, read_log
from roformer_keras.training.state import load_metadata, load_variables, save_state


@pytest.fixture
def variables():
    dtypes = ("float32", "bfloat16", "int32")
    return {
        "model": [keras.Variable(np.arange(3.0), dtype=t, name=t) for t in dtypes],
        "optimizer": [keras.Variable(7, dtype="int32", name="iterations")],
    }


@pytest.fixture
def path(tmp_path, variables):
    save_state(
        tmp_path / "state.safetensors", variables, {"done": 1, "名": [None, "天"]}
    )
    return tmp_path / "state.safetensors"


def test_a_state_comes_back(path, variables):
    metadata = load_metadata(path)
    assert metadata.pop("paths")["optimizer"] == ["iterations"]
    assert metadata == {"done": 1, "名": [None, "天"]}
    for members in variables.values():
        for variable in members:
            variable.assign(variable * 0)
    load_variables(path, {"model": variables["model"]})
    for variable in variables["model"]:
        assert np.asarray(variable).astype("float32").tolist() == [0, 1, 2]
    assert int(variables["optimizer"][0]) == 0


def test_weights_that_are_not_finite_replace_no_state(path, variables):
    for value in (float("nan"), float("inf")):
        variables["model"][1].assign([0.0, value, 0.0])
        with pytest.raises(ConfigurationError, match="finite, bfloat16 is not: what w"):
            save_state(path, variables, {"done": 2})
    assert load_metadata(path)["done"] == 1


def test_generators_may_have_other_numbers(tmp_path, variables):
    for number in (3, 14):
        name = f"dropout/seed_generator_{number}/state"
        variables["model"] = [keras.Variable(number, dtype="int32", name="state")]
        variables["model"][0]._path = name
        if number == 3:
            save_state(tmp_path / "state", variables, {})
    load_variables(tmp_path / "state", variables)
    assert int(variables["model"][0]) == 3


def test_other_variables_are_refused(path, variables):
    for groups in ({"model": variables["model"][:2]}, {"best": []}):
        with pytest.raises(CheckpointError, match="must hold the variables of this"):
            load_variables(path, groups)


def test_a_damaged_state_is_refused(path, variables):
    data, message = path.read_bytes(), r"is damaged: .*; remove it to start"
    for end in (0, 5, 100, -1):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointError, match=message):
            load_variables(path, variables)
    for metadata in (
        None,
        {"metadata": "[" * 100_000},
        {"metadata": "[]"},
        {"metadata": '{"paths": 3}'},
        {"metadata": "3"},
        {"other": "{}"},
    ):
        safetensors.numpy.save_file({"model/0": np.zeros(3)}, path, metadata)
        with pytest.raises(CheckpointError, match=message):
            load_variables(path, variables)


def test_a_log_continues_with_its_columns(tmp_path):
    path = tmp_path / "log.csv"
    log = LogFile(path)
    log.write({"update": 1, "loss": 0.123456789})
    size = log.size
    log.write({"update": 2})
    assert read_log(path) == [
        {"update": "1", "loss": "0.123457"},
        {"update": "2", "loss": ""},
    ]
    log = LogFile(path, size)
    log.write({"loss": 1.0, "update": 3, "other": 4})
    assert [row["update"] for row in read_log(path)] == ["1", "3"]
    assert log.size == path.stat().st_size


def test_a_damaged_log_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(b"update,loss\n\xed,1\n")
    for action in (lambda: read_log(path), lambda: LogFile(path, 14)):
        with pytest.raises(
            CheckpointError, match=r"is damaged: .*; start the training"
        ):
            action()

"""`keras.models.load_model` of hostile files, and hostile arrays given to `predict`."""

import warnings

import keras
import numpy as np
import pytest
from common import SMALL
from hostile.keras_files import CASES, changed

from roformer_keras import RoFormerMaskedLM, RoFormerTextClassifier
from roformer_keras.errors import ConfigurationError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a language model and of a task."""
    folder = tmp_path_factory.mktemp("saved")
    models = {
        "lm": RoFormerMaskedLM.from_preset(SMALL),
        "task": RoFormerTextClassifier.from_preset(SMALL, classes=["a", "b"]),
    }
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
    return {name: (folder / f"{name}.keras").read_bytes() for name in models}


@pytest.mark.parametrize(("model", "member", "keys", "value", "message"), CASES)
def test_a_hostile_file_is_an_error_of_ours_or_of_keras(
    model, member, keys, value, message, saved, tmp_path
):
    path = tmp_path / "x.keras"
    path.write_bytes(changed(saved[model], member, keys, value))
    with warnings.catch_warnings(), pytest.raises(Exception) as caught:
        # Keras warns of a weight that it cannot find before it raises.
        warnings.simplefilter("ignore", UserWarning)
        keras.models.load_model(path)
    assert message in f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_ids", [[260]], "must be integers from 0 to 259, got 260"),
        ("token_ids", [[-1]], "must be integers from 0 to 259, got -1"),
        ("token_ids", [[2**40]], "must be integers from 0 to 259, got 1099511627776"),
        ("token_ids", [[-(2**62)]], "must be integers from 0 to 259"),
        ("token_ids", [[5.7]], "must be integers from 0 to 259, got 5.7"),
        ("token_ids", [[float("nan")]], "must be integers from 0 to 259, got nan"),
        ("token_ids", [[float("inf")]], "must be integers from 0 to 259, got inf"),
        ("token_ids", np.zeros((0, 4), int), "must have at least one row, got none"),
        ("segment_ids", [[2]], "must be integers from 0 to 1, got 2"),
        ("segment_ids", [[-1]], "must be integers from 0 to 1, got -1"),
        ("segment_ids", [[0.5]], "must be integers from 0 to 1, got 0.5"),
        ("segment_ids", [[2**33]], "must be integers from 0 to 1, got 8589934592"),
    ],
)
def test_ids_that_a_model_does_not_have(name, value, message):
    model = RoFormerMaskedLM.from_preset(SMALL)
    value = np.asarray(value)
    inputs = {key: np.zeros(value.shape, "int32") for key in model.input}
    with pytest.raises(ConfigurationError, match=f"{name} {message}"):
        model.predict({**inputs, name: value}, verbose=0)

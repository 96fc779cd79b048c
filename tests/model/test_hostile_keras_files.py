"""`keras.models.load_model` of hostile files, and hostile arrays given to `predict`."""

import warnings

import keras
import numpy as np
import pytest
from common import SMALL
from hostile.keras_files import CASES, changed
from hostile.run import unrefused

from roformer_keras import RoFormerMaskedLM, RoFormerTextClassifier
from roformer_keras.base.errors import ConfigurationError


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


@pytest.mark.slow
def test_a_hostile_file_is_an_error_of_ours_or_of_keras(saved, tmp_path):
    path = tmp_path / "x.keras"

    def load(model, member, keys, value):
        path.write_bytes(changed(saved[model], member, keys, value))
        try:
            with warnings.catch_warnings():
                # Keras warns of a weight that it cannot find before it raises.
                warnings.simplefilter("ignore", UserWarning)
                keras.models.load_model(path)
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    cases = [(row[:4], row[4]) for row in CASES]
    assert unrefused(cases, load, RuntimeError) == []


def test_ids_that_a_model_does_not_have():
    cases = [
        *(
            (
                ("token_ids", [[value]]),
                f"token_ids must be integers from 0 to 259, got {one}",
            )
            for value, one in (
                *((260, 260), (-1, -1), (2**40, 2**40), (-(2**62), -(2**62))),
                *((5.7, 5.7), (float("nan"), "nan"), (float("inf"), "inf")),
            )
        ),
        *(
            (("segment_ids", [[value]]), f"must be integers from 0 to 1, got {value}")
            for value in (2, -1, 0.5, 2**33)
        ),
        (("token_ids", np.zeros((0, 4), int)), "must have at least one row, got none"),
    ]
    model = RoFormerMaskedLM.from_preset(SMALL)

    def predict(name, value):
        value = np.asarray(value)
        inputs = {key: np.zeros(value.shape, "int32") for key in model.input}
        model.predict({**inputs, name: value}, verbose=0)

    assert unrefused(cases, predict, ConfigurationError) == []

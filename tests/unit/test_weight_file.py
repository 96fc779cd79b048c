"""Weights in a file, which leave memory and come back."""

import mmap

import numpy as np
import pytest

from roformer_keras.engines import weight_file
from roformer_keras.engines.weight_file import WeightFile


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0)
    # Of sizes that fill no page.
    return [draw.normal(size=(n, 97)).astype("float32") for n in (301, 1, 702)]


def test_arrays_stay_the_same_when_their_memory_is_released(arrays):
    weights = WeightFile()
    mapped = [weights.mapped(array.T) for array in arrays]
    for _ in range(2):
        for array, other in zip(arrays, mapped, strict=True):
            np.testing.assert_array_equal(array.T, other)
        weights.release()
    integers = np.arange(2**17, dtype="int8")
    np.testing.assert_array_equal(weights.mapped(integers), integers)


def test_small_arrays_stay_in_memory(arrays):
    weights = WeightFile()
    is_same = [weights.mapped(array) is array for array in arrays]
    assert is_same == [False, True, False]


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="has no file to fill")
def test_without_room_for_a_file_arrays_stay_in_memory(arrays, monkeypatch):
    def fail(*arguments, **keywords):
        raise OSError("no space left on device")

    weights = WeightFile()
    monkeypatch.setattr(weight_file.mmap, "mmap", fail)
    assert weights.mapped(arrays[0]) is arrays[0]
    weights.release()
    monkeypatch.setattr(weight_file.tempfile, "TemporaryFile", fail)
    weights = WeightFile()
    assert weights.mapped(arrays[0]) is arrays[0]

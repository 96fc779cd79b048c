"""Callbacks for `fit`."""

from roformer_keras.training.averaging import AverageCheckpoints

__all__ = ["AverageCheckpoints"]

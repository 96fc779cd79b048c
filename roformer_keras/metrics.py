"""Metrics for `compile`."""

from roformer_keras.layers import SpanF1, TagAccuracy

__all__ = ["SpanF1", "TagAccuracy"]

"""Losses and metrics of Keras that want one-hot labels or probabilities.

Labels of tasks are numbers of classes, and their outputs are logits.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_keras.base.errors import ConfigurationError, RoFormerError
from roformer_keras.models.loop_arguments import BY_SHAPE

# Keys in the configuration of a metric that compares probabilities.
_OF_PROBABILITIES = {"from_logits", "num_thresholds", "threshold", "thresholds"}
# Classes that take numbers of classes, or wrap a function of the user's. The wrapper of
# losses has no public name.
_OF_NUMBERS = (
    keras.losses.SparseCategoricalCrossentropy,
    keras.losses.MeanSquaredError.__base__,
    keras.metrics.MeanMetricWrapper,
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.SparseCategoricalCrossentropy,
    keras.metrics.SparseTopKCategoricalAccuracy,
)
# The code of `tf.errors.ResourceExhaustedError`.
_TENSORFLOW_OUT_OF_MEMORY = 8


def named_metrics(metrics: Any) -> Any:
    """Metrics of `compile`, with objects for names of Keras's classes."""

    def named(metric):
        if not isinstance(metric, str) or metric.lower() in BY_SHAPE:
            return metric
        named_metric = keras.metrics.get(metric)
        if not isinstance(named_metric, keras.metrics.Metric):
            return metric
        named_metric.name = metric
        return named_metric

    return keras.tree.map_structure(named, metrics)


def adapt_measures(measures: Any, probabilities: Callable) -> Any:
    """Losses or metrics of Keras, made to take numbers of classes and logits."""
    return keras.tree.map_structure(
        lambda measure: _adapted(measure, probabilities), measures
    )


def _adapted(measure, probabilities):
    kind = type(measure)
    is_metric = isinstance(measure, keras.metrics.Metric)
    is_measure = is_metric or isinstance(measure, keras.losses.Loss)
    is_of_keras = is_measure and kind.__module__.startswith("keras.")
    if not is_of_keras or kind in _OF_NUMBERS:
        return measure
    method = "update_state" if is_metric else "call"
    # The method of the class, so that a measure that is given twice is adapted once.
    original = getattr(kind, method)
    converts = is_metric and _reads_probabilities(measure.get_config())

    def adapted(y_true, y_pred, *args, **kwargs):
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if len(y_true.shape) == len(y_pred.shape) - 1:
            classes = ops.arange(ops.shape(y_pred)[-1], dtype=y_true.dtype)
            y_true = ops.cast(ops.equal(y_true[..., None], classes), y_pred.dtype)
        if converts:
            y_pred = probabilities(y_pred)
        return original(measure, y_true, y_pred, *args, **kwargs)

    setattr(measure, method, adapted)
    return measure


@contextlib.contextmanager
def explained(model: Any, labels: Any, outputs: Any) -> Iterator[None]:
    """Explains an error of a loss or a metric that does not fit a task."""
    try:
        yield
    except (RoFormerError, MemoryError):
        raise
    except Exception as error:
        if getattr(error, "error_code", None) == _TENSORFLOW_OUT_OF_MEMORY:
            raise
        raise ConfigurationError(
            "the loss and the metrics of compile must fit the labels of "
            f"{type(model).__name__}, which are of shape {tuple(labels.shape)}, and "
            f"its outputs, which are logits of shape {tuple(outputs.shape)}, and they "
            f"do not: {str(error).partition(chr(10))[0]:.200}",
            hint="leave loss and metrics out for those of the task",
        ) from error


def _reads_probabilities(config):
    """True for a metric that compares probabilities, and not logits with 0."""
    thresholds = config.get("thresholds", config.get("threshold"))
    compares_logits = thresholds is not None and np.all(np.equal(thresholds, 0))
    is_of_logits = config.get("from_logits") or compares_logits
    return bool(_OF_PROBABILITIES & config.keys()) and not is_of_logits

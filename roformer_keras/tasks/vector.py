"""Heads on one vector of a row, for classes and scores."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import keras
import numpy as np
from keras import ops

from roformer_keras.base.checks import check_choice, check_number
from roformer_keras.base.config import ACTIVATIONS
from roformer_keras.base.task_registry import Pooling
from roformer_keras.layers.configured import ConfiguredLayer
from roformer_keras.layers.masks import is_token
from roformer_keras.models import RoFormerBackbone
from roformer_keras.tasks.head_parts import EXCLUDED, dense_head, sequence_of
from roformer_keras.tasks.task import TextTask
from roformer_keras.text.tokenizer import RoFormerTokenizer


class VectorTask(TextTask):
    """A dense layer on the vector of a text, or of a pair of texts in one row.

    Args:
        backbone: `RoFormerBackbone` with bidirectional attention.
        tokenizer: `RoFormerTokenizer` of its vocabulary.
        units: int. Outputs of the dense layer.
        head: str. Name of the dense layer.
        pooling: `"first"` takes the vector at `[CLS]`, `"mean"` the mean over the
            tokens; for others see `TextVector`.
        head_dropout: float in [0, 1). Dropout of that vector.
        head_activation: str or None. Activation of a second dense layer, of
            `hidden_dim` outputs and before the other, as the heads of Transformers have
            it; None for no such layer.
        max_length: int, at least 4. Tokens to which longer rows are cut.
        combine: layer from the outputs of rows to those of the model, or None.
        inputs, rows: dicts of symbolic tensors: the inputs of the model, and the rows
            of ids that are made of them; both are the backbone's inputs if not given.
        kwargs: as in `keras.Model`, such as `name`.
    """

    # Names of both dense layers, where there are two.
    activated_names = ("dense", "out_proj")

    def __init__(
        self,
        backbone: RoFormerBackbone,
        tokenizer: RoFormerTokenizer,
        units: int,
        head: str,
        pooling: str = "first",
        head_dropout: float = 0.0,
        max_length: int = 512,
        head_activation: str | None = None,
        combine: Callable | None = None,
        inputs: dict | None = None,
        rows: dict | None = None,
        **kwargs: Any,
    ):
        check_number("head_dropout", head_dropout, minimum=0, below=1)
        check_choice("head_activation", head_activation, (None, *ACTIVATIONS))
        policy = backbone.dtype_policy
        rows = backbone.input if rows is None else rows
        vector = TextVector(pooling, dtype=policy, name="vector")(
            sequence_of(backbone, rows), rows["token_ids"]
        )
        vector = keras.layers.Dropout(head_dropout, dtype=policy, name="head_dropout")(
            vector
        )
        if head_activation is not None:
            name, head = self.activated_names
            width = backbone.config.hidden_dim
            vector = dense_head(backbone, width, name, head_activation)(vector)
            vector = keras.layers.Dropout(
                head_dropout, dtype="float32", name="output_dropout"
            )(vector)
        outputs = dense_head(backbone, units, head)(vector)
        if combine is not None:
            outputs = combine(outputs)
        super().__init__(
            backbone, tokenizer, outputs, max_length, inputs=inputs, **kwargs
        )
        self.pooling, self.head_dropout = pooling, head_dropout
        self.head_activation = head_activation

    def _convert(self, function, outputs):
        """A function of outputs, in NumPy; of an iterator an iterator."""
        if isinstance(outputs, Iterator):
            return (self._convert(function, output[None])[0] for output in outputs)
        return ops.convert_to_numpy(function(ops.convert_to_tensor(outputs)))

    def _labels(self, x, activation, label, probabilities, **kwargs):
        """`label` of the probabilities of each row, or the probabilities."""
        converted = self._convert(activation, self.predict(x, **kwargs))
        if probabilities:
            return converted
        labels = map(label, converted)
        return labels if isinstance(converted, Iterator) else list(labels)


@keras.saving.register_keras_serializable("roformer_keras")
class TextVector(ConfiguredLayer):
    """One vector a row: that of the first position, or the mean over its tokens."""

    def __init__(self, pooling, **kwargs):
        parts = pooling.split("+") if isinstance(pooling, str) else [pooling]
        for part in parts:
            check_choice("pooling", part, get_args(Pooling))
        super().__init__(**kwargs)
        self.pooling, self._parts = pooling, parts

    def call(self, hidden, token_ids):
        vectors = [self._pooled(part, hidden, token_ids) for part in self._parts]
        return ops.concatenate(vectors, axis=-1) if len(vectors) > 1 else vectors[0]

    def _pooled(self, pooling, hidden, token_ids):
        if pooling in ("first", "last_position"):
            return hidden[:, 0 if pooling == "first" else -1]
        values = ops.cast(hidden, "float32")
        is_visible = is_token(token_ids)[..., None]
        if pooling == "max":
            values = ops.where(is_visible, values, EXCLUDED)
            return ops.cast(ops.max(values, axis=1), hidden.dtype)
        weights = ops.cast(is_visible, "float32")
        if pooling == "mean_positions":
            weights = ops.ones_like(weights)
        elif pooling in ("last", "weighted_mean"):
            weights *= ops.cumsum(ops.ones_like(weights), axis=1)
        if pooling == "last":
            last = ops.max(weights, axis=1, keepdims=True)
            weights = ops.cast(ops.equal(weights, last), "float32")
        count = ops.sum(weights, axis=1)
        if pooling == "sqrt_mean":
            count = ops.sqrt(count)
        return ops.cast(ops.sum(values * weights, axis=1) / count, hidden.dtype)

    def write_network(self, writer, hidden, token_ids):
        """Writes the layer on a graph of an engine, see `NetworkWriter`."""
        parts = [self._written(one, writer, hidden, token_ids) for one in self._parts]
        return writer.graph.concatenated(*parts) if len(parts) > 1 else parts[0]

    def _written(self, pooling, writer, hidden, token_ids):
        graph = writer.graph
        if pooling in ("first", "last_position"):
            return graph.token(hidden, 0 if pooling == "first" else -1)
        is_visible = graph.expand_dims(writer.is_token(token_ids), 2)
        if pooling == "max":
            values = graph.where(is_visible, hidden, np.float32(EXCLUDED))
            return graph.item(graph.largest(values, 1), 0, 1)
        weights = graph.as_float(is_visible)
        if pooling == "mean_positions":
            weights = graph.maximum(weights, np.float32(1))
        elif pooling in ("last", "weighted_mean"):
            positions = graph.expand_dims(writer.positions(token_ids), 2)
            weights = graph.multiply(weights, graph.add(positions, np.float32(1)))
        if pooling == "last":
            last = graph.largest(weights, 1)
            weights = graph.as_float(graph.equal(weights, last))
        count = graph.total(weights, 1)
        if pooling == "sqrt_mean":
            count = graph.root(count)
        total = graph.total(graph.multiply(hidden, weights), 1)
        return graph.item(graph.divide(total, count), 0, 1)

    def compute_mask(self, inputs, previous_mask=None):
        return None

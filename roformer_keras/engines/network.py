"""The networks of this package, for runtimes other than Keras.

A graph, `OpenVINOGraph` or `OnnxGraph`, has the operations. `NetworkWriter` writes the
layers of a model to it, with their weights. Dropout is left out.
"""

import itertools
from collections.abc import Callable
from typing import Generic

import keras
import numpy as np
from keras import ops

from roformer_keras import layers
from roformer_keras.base import quirks
from roformer_keras.base.errors import CheckpointError, ConfigurationError
from roformer_keras.base.types import TensorLike
from roformer_keras.base.visible_keys import is_token, visible_keys
from roformer_keras.engines.graph import Graph, Tensor
from roformer_keras.engines.known import (
    ADD,
    WAY_OUT,
    check_layer,
    check_model,
    functions_of,
    is_none,
    refusing,
    takes_mask_of_inputs,
    unknown_layer,
)
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.layers.masks import PaddingMask
from roformer_keras.layers.projection import Dense, Projection

# Added to the score of a key that is hidden.
HIDDEN = -1e9


@refusing()
def write_model(graph: Graph[Tensor], model: keras.Model) -> None:
    """Writes a functional model whose inputs and outputs are dicts.

    Inputs are int32 `token_ids` and `segment_ids` `(rows, length)`; outputs float32, as
    the model names them.
    """
    inputs = {name: graph.input(name, "int32", (None, None)) for name in model.input}
    outputs = NetworkWriter(graph).functional(model, inputs)
    for name, symbolic in model.output.items():
        graph.output(name, outputs[name], symbolic.shape)


@refusing()
def write_language_model(graph: OpenVINOGraph, model: keras.Model) -> None:
    """Writes a step of a `RoFormerCausalLM` or `RoFormerSim`.

    Inputs are int32 `token_ids` and `segment_ids` and float32 `position_ids`
    `(rows, length)`; float32 `mask` `(rows, 1, length, keys)`, which is added to the
    scores; and int32 `rows` `(rows,)`: which row of the last step each one continues.
    The output is `logits` of the token after the last: float32 `(rows, vocabulary)`.
    """
    rows = graph.input("rows", "int32", (None,))
    writer = NetworkWriter(
        graph,
        graph.input("mask", "float32", (None, 1, None, None)),
        graph.input("position_ids", "float32", (None, None)),
        rows,
    )
    inputs = {
        name: graph.input(name, "int32", (None, None))
        for name in ("token_ids", "segment_ids")
    }
    if "position_ids" in model.backbone.input:
        inputs["position_ids"] = writer.position_ids
    x = writer.functional(model.backbone, inputs)
    x = x["sequence_output"] if isinstance(x, dict) else x
    logits = writer.written(model.mlm_head, graph.token(x, -1))
    graph.output("logits", logits, (None, None))


class NetworkWriter(Generic[Tensor]):
    """Writes layers to a graph; each method takes a layer and what it is called on.

    A layer whose class is not in `WRITERS` may write itself: by the method
    `write_network(writer, *inputs)` of the class that has its `call`.
    """

    def __init__(
        self,
        graph: Graph[Tensor],
        mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        rows: Tensor | None = None,
    ):
        self.graph, self.position_ids = graph, position_ids
        self._mask, self._rows = mask, rows
        self._angles: dict[tuple[int, float, int], tuple[Tensor, Tensor]] = {}
        self._tables: dict[int, Tensor] = {}
        self._cache_numbers = itertools.count()

    def functional(self, model: keras.Model, inputs: dict[str, Tensor]) -> TensorLike:
        """The outputs of a functional model, nested as the model nests them."""
        check_model(model)
        return quirks.run_graph(model, inputs, self._writer_of)

    def written(
        self, layer: keras.Layer, *inputs: TensorLike, **options: TensorLike
    ) -> TensorLike:
        """The outputs of a layer, by its entry in `WRITERS`."""
        return self._writer_of(layer)(*inputs, **options)

    def _writer_of(self, layer: keras.Layer) -> Callable[..., TensorLike]:
        if isinstance(layer, keras.Model):
            write: Callable[..., TensorLike] | None = NetworkWriter.functional
        else:
            check_layer(layer)
            write = WRITERS.get(type(layer))

        def written(
            *inputs: TensorLike, training: bool | None = None, **options: TensorLike
        ) -> TensorLike:
            # Keras gives a model the masks of its inputs, each of which may be None.
            options = {k: v for k, v in options.items() if not is_none(v)}
            known: tuple[type, ...] = (bool, type(None), *self.graph.tensors)
            arguments = keras.tree.flatten((inputs, options))
            if training or not all(isinstance(x, known) for x in arguments):
                raise unknown_layer(layer, "called with constants or in training")
            if takes_mask_of_inputs(layer, inputs, options):
                raise unknown_layer(layer, "which takes the Keras mask of its inputs")
            if write is None:
                return layer.write_network(self, *inputs, **options)
            return write(self, layer, *inputs, **options)

        return written

    # === Positions and masks ===

    def positions(self, x: Tensor) -> Tensor:
        """Numbers of the positions of `(rows, length, ...)`: float32 `(1, length)`."""
        if self.position_ids is None:
            self.position_ids = self.graph.positions(x)
        return self.position_ids

    def is_token(self, token_ids: Tensor) -> TensorLike:
        """As `layers.masks.is_token`: bool `(rows, length)`."""
        return is_token(self.graph, token_ids, self.positions(token_ids))

    def attention_mask(
        self, layer: keras.Layer, token_ids: Tensor, segment_ids: Tensor
    ) -> Tensor:
        """Addend of scores, 0 or `HIDDEN`."""
        if self._mask is not None:
            return self._mask
        visible = visible_keys(
            self.graph,
            layer.pattern,
            layer.pad_segments,
            token_ids,
            segment_ids,
            self.positions(token_ids),
        )
        return self.graph.where(visible, np.float32(0), np.float32(HIDDEN))

    # === Embeddings, dense layers and norms ===

    def embedding(self, layer: keras.Layer, ids: Tensor) -> Tensor:
        return self.graph.take(self.table(layer), ids)

    def table(self, layer: keras.Layer) -> Tensor:
        """The embeddings of a layer, written once."""
        if id(layer) not in self._tables:
            check_layer(layer)
            self._tables[id(layer)] = self.graph.table(_value(layer.embeddings))
        return self._tables[id(layer)]

    def add(self, layer: keras.Layer, x: Tensor, y: Tensor) -> Tensor:
        return self.graph.add(x, y)

    def same(self, layer: keras.Layer, x: Tensor) -> Tensor:
        """The input, of a layer that only matters in training."""
        return x

    def padding_mask(self, layer: keras.Layer, inputs: list[Tensor]) -> Tensor:
        """The first input: no layer that engines know takes a Keras mask."""
        return inputs[0]

    def dense(
        self,
        layer: keras.Layer,
        x: Tensor,
        heads: int = 1,
        order: np.ndarray | None = None,
        factor: float | None = None,
    ) -> TensorLike:
        """A dense layer with its activation."""
        check_layer(layer)
        if factor is not None and layer.activation is not keras.activations.linear:
            raise unknown_layer(layer, "with an activation before attention")
        y = _linear(self.graph, layer, x, heads, order, factor)
        return self.activation(layer.activation, y)

    def activation(
        self, activation: Callable[..., TensorLike] | None, x: Tensor
    ) -> TensorLike:
        """An activation, which must be the very function that the graph knows."""
        if activation is None:
            return x
        for name, write in self.graph.activations.items():
            if any(activation is function for function in functions_of(name)):
                return write(self.graph, x)
        raise ConfigurationError(
            "engines other than Keras know the activations "
            f"{', '.join(map(repr, sorted(self.graph.activations)))}, got "
            f"{getattr(activation, '__name__', activation)!r}",
            hint=WAY_OUT,
        )

    def layer_norm(self, layer: keras.Layer, x: Tensor) -> Tensor:
        gamma, beta = _value(layer.gamma), _value(layer.beta)
        return self.graph.layer_norm(x, gamma, beta, layer.epsilon)

    def rms_norm(self, layer: keras.Layer, x: Tensor) -> Tensor:
        return self.graph.rms_norm(x, layer.epsilon)

    def unit_length(self, layer: keras.Layer, x: Tensor) -> Tensor:
        """Scales the last axis to length 1, like `keras.layers.UnitNormalization`."""
        graph = self.graph
        square = graph.total(graph.multiply(x, x), -1)
        return graph.divide(x, graph.root(graph.maximum(square, np.float32(1e-12))))

    # === Blocks ===

    def block(
        self,
        block: keras.Layer,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        condition: Tensor | None = None,
        residual_scores: Tensor | None = None,
        return_scores: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        """A `RoFormerBlock`; with `return_scores` a pair with its scores."""
        scores: list[Tensor] = []

        def attend(layer: keras.Layer, x: TensorLike) -> TensorLike:
            x = self.written(
                layer,
                x,
                attention_mask,
                position_ids,
                residual_scores,
                return_scores=return_scores,
            )
            x, *new_scores = x if return_scores else (x,)
            scores.extend(new_scores)
            return x

        x = self.added(block, "attention", x, attend)
        x = self.added(block, "feed_forward", x, self.written)
        return (x, *scores) if return_scores else x

    def added(
        self, block: keras.Layer, name: str, x: Tensor, write: Callable[..., Tensor]
    ) -> Tensor:
        """`norm(x + layer(x))`, or with `norm_first` `x + layer(norm(x))`."""
        layer, norm = getattr(block, name), getattr(block, f"{name}_norm")
        inputs = self.written(norm, x) if block.norm_first else x
        x = self.graph.add(x, write(layer, inputs))
        return x if block.norm_first else self.written(norm, x)

    def feed_forward(self, layer: keras.Layer, x: Tensor) -> TensorLike:
        return self.written(
            layer.output_dense, self.written(layer.intermediate_dense, x)
        )

    def attention(
        self,
        layer: keras.Layer,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        residual_scores: Tensor | None = None,
        return_scores: bool = False,
    ) -> TensorLike:
        """`RoPEAttention`; with `return_scores` a pair with its scores."""
        query, key, value = self._heads(layer, x, position_ids)
        mask = self._mask if attention_mask is None else attention_mask
        if self._rows is not None and not return_scores and residual_scores is None:
            # The operation of a runtime that knows keys and values of before.
            mixed = self.graph.attention(query, key, value, mask)
            return self._joined(layer, mixed)
        scores = self.graph.product(query, key, transposed=True)
        total = scores
        if residual_scores is not None:
            total = self.graph.add(scores, residual_scores)
        mixed = self._mixed(layer, total, mask, value)
        return (mixed, scores) if return_scores else mixed

    def _mixed(
        self, layer: keras.Layer, scores: Tensor, mask: Tensor | None, value: Tensor
    ) -> TensorLike:
        graph = self.graph
        if mask is not None:
            scores = graph.add(scores, mask)
        return self._joined(layer, graph.product(graph.softmax(scores), value))

    def _joined(self, layer: keras.Layer, mixed: Tensor) -> TensorLike:
        joined = self.graph.joined(mixed, layer.num_heads * layer.head_dim)
        return self.written(layer.output_dense, joined)

    def _heads(
        self, layer: keras.Layer, x: Tensor, position_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value `(rows, heads, length, dim)`, rotated and kept.

        The product of query and key is a score: the query is already divided.
        """
        graph, heads, dim = self.graph, layer.num_heads, layer.key_dim
        order = None
        if layer.rotary:
            # As halves: a score is a sum over features, in whichever order they are.
            order = np.arange(dim)
            if layer.layout == "interleaved":
                order = order.reshape(-1, 2).T.ravel()
        query, key, value = (
            graph.heads(self.dense(dense, x, heads, columns, factor), heads)
            for dense, columns, factor in (
                (layer.query, order, dim**-0.5),
                (layer.key, order, None),
                (layer.value, None, None),
            )
        )
        if layer.rotary:
            angles = self.angles(x, dim, layer.base, position_ids)
            query, key = (graph.rotated(part, angles, dim) for part in (query, key))
        if self._rows is not None:
            number = next(self._cache_numbers)
            key = graph.cached(f"keys_{number}", key, heads, dim, self._rows)
            name, size = f"values_{number}", layer.head_dim
            value = graph.cached(name, value, heads, size, self._rows)
        return query, key, value

    def angles(
        self, x: Tensor, dim: int, base: float, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions of `x`, shared by its layers."""
        if position_ids is None:
            position_ids = self.positions(x)
        key = dim, base, id(position_ids)
        if key not in self._angles:
            frequencies = np.tile(base ** (-np.arange(0, dim, 2) / dim), 2)
            self._angles[key] = self.graph.angles(
                position_ids, frequencies.astype("float32")
            )
        return self._angles[key]

    # === Heads of language models ===

    def pooler(self, layer: keras.Layer, x: Tensor) -> TensorLike:
        return self.written(layer.dense, self.graph.token(x, 0))

    def masked_lm_head(self, layer: keras.Layer, x: Tensor) -> Tensor:
        graph, embedding = self.graph, layer.scoring_embedding
        if embedding.reverse_dtype not in (None, embedding.compute_dtype):
            raise unknown_layer(embedding, "with another reverse_dtype than its own")
        if layer.dense.built:
            x = self.written(layer.dense, x)
        if layer.transform:
            x = self.written(layer.norm, x)
        logits = graph.score(x, self.table(embedding))
        return graph.add(logits, _value(layer.bias)) if layer.transform else logits

    # === Heads of tasks ===

    def crf(self, layer: keras.Layer, scores: Tensor, mask: Tensor) -> Tensor:
        """Scores of tags, -inf where there is no token of a text."""
        graph = self.graph
        return graph.where(graph.expand_dims(mask, 2), scores, np.float32(-np.inf))

    def pointer(
        self, layer: keras.Layer, x: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Scores of spans of a `GlobalPointer` or `EfficientGlobalPointer`."""
        graph, dim, heads = self.graph, layer.head_dim, layer.num_heads
        projected, bias = self.written(layer.dense, x), None
        is_efficient = isinstance(layer, layers.EfficientGlobalPointer)
        if is_efficient:
            # The features of starts and ends alternate: (rows, length, 1, dim, 2).
            pairs = graph.reshaped(projected, 0, 0, 1, dim, 2)
            starts, ends = (
                graph.reshaped(graph.item(pairs, number, 4), 0, 0, 1, dim)
                for number in (0, 1)
            )
            added = self.written(layer.type_dense, projected)
            added = graph.multiply(added, np.float32(0.5))
            added = graph.moved(graph.reshaped(added, 0, 0, heads, 2), 0, 2, 1, 3)
            bias = graph.add(
                graph.expand_dims(graph.item(added, 0, 3), 2),
                graph.expand_dims(graph.item(added, 1, 3), 3),
            )
        else:
            pairs = graph.reshaped(projected, 0, 0, heads, 2, dim)
            starts, ends = (graph.item(pairs, number, 3) for number in (0, 1))
        starts, ends = (graph.moved(part, 0, 2, 1, 3) for part in (starts, ends))
        if layer.use_rotary:
            starts, ends = (
                self._rotated_pairs(x, part, dim) for part in (starts, ends)
            )
        scores = graph.product(starts, ends, transposed=True)
        scores = graph.multiply(scores, np.float32(dim**-0.5))
        if bias is not None:
            scores = graph.add(scores, bias)
        visible = None
        if layer.upper_triangular:
            positions = self.positions(x)
            visible = graph.less_equal(
                graph.expand_dims(positions, (1, 3)),
                graph.expand_dims(positions, (1, 2)),
            )
        if mask is not None:
            both = graph.logical_and(
                graph.expand_dims(mask, (1, 3)), graph.expand_dims(mask, (1, 2))
            )
            visible = both if visible is None else graph.logical_and(visible, both)
        if visible is None:
            return scores
        return graph.where(visible, scores, np.float32(-np.inf))

    def _rotated_pairs(self, x: Tensor, part: Tensor, dim: int) -> Tensor:
        """Neighbouring features of `(rows, heads, length, dim)`, turned as halves.

        A score is a sum over features, so that their order does not matter.
        """
        graph = self.graph
        order = np.arange(dim).reshape(-1, 2).T.ravel()
        part = graph.reordered(part, order, 3)
        return graph.rotated(part, self.angles(x, dim, 10000.0), dim)


# Class -> the function that writes its layers.
WRITERS: dict[type, Callable[..., TensorLike]] = {
    keras.layers.Embedding: NetworkWriter.embedding,
    keras.layers.ReversibleEmbedding: NetworkWriter.embedding,
    keras.layers.Dense: NetworkWriter.dense,
    Projection: NetworkWriter.dense,
    Dense: NetworkWriter.dense,
    keras.layers.Dropout: NetworkWriter.same,
    keras.layers.Identity: NetworkWriter.same,
    PaddingMask: NetworkWriter.padding_mask,
    layers.LayerNorm: NetworkWriter.layer_norm,
    layers.RMSNorm: NetworkWriter.rms_norm,
    keras.layers.UnitNormalization: NetworkWriter.unit_length,
    layers.AttentionMask: NetworkWriter.attention_mask,
    layers.RoPEAttention: NetworkWriter.attention,
    layers.FeedForward: NetworkWriter.feed_forward,
    layers.RoFormerBlock: NetworkWriter.block,
    layers.Pooler: NetworkWriter.pooler,
    layers.MaskedLMHead: NetworkWriter.masked_lm_head,
    layers.ConditionalRandomField: NetworkWriter.crf,
    layers.GlobalPointer: NetworkWriter.pointer,
    layers.EfficientGlobalPointer: NetworkWriter.pointer,
    ADD: NetworkWriter.add,
}


# === Parts ===


def _linear(
    graph: Graph[Tensor],
    layer: keras.Layer,
    x: Tensor,
    heads: int = 1,
    order: np.ndarray | None = None,
    factor: float | None = None,
) -> Tensor:
    """The product and bias of a dense layer, without its activation."""
    arrays = [_value(x) for x in (layer.kernel, layer.bias) if x is not None]
    if order is not None:
        arrays = [
            array.reshape(*array.shape[:-1], heads, -1)[..., order].reshape(array.shape)
            for array in arrays
        ]
    if factor is not None:
        arrays = [array * np.float32(factor) for array in arrays]
    return graph.linear(x, *arrays)


def _value(variable: keras.Variable) -> np.ndarray:
    """The weights of a variable, float32; raises CheckpointError for NaN or infinity.

    Integers do not show them, so that the logits of a network in 8 bits would not.
    """
    value: np.ndarray = ops.convert_to_numpy(ops.cast(variable, "float32"))
    if not np.isfinite(value).all():
        # A kernel with LoRA is a sum.
        name = getattr(variable, "path", "a kernel with LoRA")
        raise CheckpointError(
            f"the model's weights must be finite numbers, got NaN or infinity in {name}"
            ": check the file that they come from"
        )
    return value

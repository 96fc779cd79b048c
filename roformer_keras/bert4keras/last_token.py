"""A model's outputs at the last position, with the keys and values before it kept.

bert4keras computes all positions for each new token. A model that
`build_transformer_model` made, with more layers on it or with a loss, gives the same
numbers from the new position alone, if nothing but attention mixes positions and a
position sees none after it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from roformer_keras.base import quirks
from roformer_keras.base.compiled import Compiled, WeightValues
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.base.visible_keys import visible_keys
from roformer_keras.bert4keras import layers as own
from roformer_keras.bert4keras.keras2_models import PREDICT, Model
from roformer_keras.inference.compiled_forward import fill_rows

# Keys are added in steps of this size, and prompts are padded to one.
_STEP = 64
# Layers that compute each position by itself, whatever their arguments.
_BY_POSITION: tuple[type, ...] = (
    own.BiasAdd,
    own.Embedding,
    own.FeedForward,
    own.LayerNormalization,
    own.ScaleOffset,
    keras.layers.Activation,
    keras.layers.Add,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.Embedding,
    keras.layers.InputLayer,
)
_POSITIONS = (own.SinusoidalPositionEmbedding, own.PositionEmbedding)
_MASKS = (own.LanguageModelMask, own.UnifiedLanguageModelMask)


class _Graph(NamedTuple):
    """Facts about the layers of a model.

    Attributes:
        attentions: its attention layers.
        sequences: numbers of the inputs `(batch, length)`; the others are of a row.
        tokens: number of the input that says which keys are visible.
        segments: number of the input of the UniLM mask, or None for a causal one.
    """

    attentions: list[own.MultiHeadAttention]
    sequences: list[int]
    tokens: int
    segments: int | None


class CachedSteps:
    """Computes the last position of a model; see `CachedSteps.of`.

    A call whose rows continue those of the call before by one position computes that
    position; any other call starts again.

    Args:
        model: functional `keras.Model`.
        graph: of it.
    """

    def __init__(self, model: keras.Model, graph: _Graph):
        self._model = model
        self._graph = graph
        self._compute = Compiled(self._step, model.weights, any_shape=True)
        self._values = WeightValues(model.weights)
        self._forget()

    @classmethod
    def of(cls, model: keras.Model) -> "CachedSteps | None":
        """For a model that allows it, else None."""
        graph = _read_graph(model)
        return None if graph is None else cls(model, graph)

    def _forget(self) -> None:
        """Drops keys and values, which other weights computed."""
        self._seen: np.ndarray | None = None
        self._rows_seen: list[np.ndarray] = []
        self._caches: list = []

    def __call__(self, inputs: Sequence[np.ndarray]) -> TensorLike:
        """The outputs at the last position: arrays `(batch, ...)`, as the model's.

        Args:
            inputs: arrays, as `model.predict` takes them, without padding at the end.
        """
        count = len(inputs[0])
        inputs = [fill_rows(np.asarray(x, "float32")) for x in inputs]
        rows = [x for i, x in enumerate(inputs) if i not in self._graph.sequences]
        # (batch, length, sequences)
        tokens = np.stack([inputs[i] for i in self._graph.sequences], axis=-1)
        batch, length = tokens.shape[:2]
        values = self._values.now()
        if values is not self._values:
            self._values = values
            self._forget()
        origins = self._origins(tokens, rows)
        start = 0 if origins is None else length - 1
        self._make_room(batch, length, origins)
        if start == 0:
            padded = -(-length // _STEP) * _STEP
            for i in self._graph.sequences:
                inputs[i] = np.pad(inputs[i], [(0, 0), (0, padded - length)])
        arrays = list(inputs)
        for i in self._graph.sequences:
            arrays[i] = inputs[i][:, start:]
        computed = arrays[self._graph.sequences[0]].shape[1]
        visible = self._visible(tokens, start, computed)
        outputs, self._caches = self._compute(
            [ops.convert_to_tensor(x) for x in arrays],
            self._caches,
            ops.convert_to_tensor(visible),
            ops.convert_to_tensor(start, "int32"),
            ops.convert_to_tensor(length - 1 - start, "int32"),
        )
        self._seen, self._rows_seen = tokens, rows
        return keras.tree.map_structure(
            lambda x: ops.convert_to_numpy(x)[:count], outputs
        )

    def _origins(self, tokens: np.ndarray, rows: list[np.ndarray]) -> np.ndarray | None:
        """For each row the one it continues, or None if there is one without."""
        seen = self._seen
        if seen is None or seen.shape[1] != tokens.shape[1] - 1:
            return None
        before = tokens[:, :-1]
        if seen.shape == before.shape and np.array_equal(seen, before):
            same = all(map(np.array_equal, rows, self._rows_seen))
            return np.arange(len(seen)) if same else None
        places: dict[bytes, int] = {}
        for place, key in enumerate(_row_keys(seen, self._rows_seen)):
            places.setdefault(key, place)
        origins = [places.get(key) for key in _row_keys(before, rows)]
        return None if None in origins else np.array(origins)

    def _make_room(self, batch: int, length: int, origins: np.ndarray | None) -> None:
        """Caches for these rows with room for the positions."""
        room = -(-length // _STEP) * _STEP
        if origins is None:
            self._caches = [
                attention.create_cache(batch, room)
                for attention in self._graph.attentions
            ]
            return
        count, _, size, _ = self._caches[0][0].shape
        has_room = size >= room
        is_same = np.array_equal(origins, np.arange(count))

        def moved(cache: TensorLike) -> TensorLike:
            if not is_same:
                cache = ops.take(cache, origins, axis=0)
            if not has_room:
                cache = ops.pad(cache, [(0, 0), (0, 0), (0, _STEP), (0, 0)])
            return cache

        if not (is_same and has_room):
            self._caches = keras.tree.map_structure(moved, self._caches)

    def _visible(self, tokens: np.ndarray, start: int, computed: int) -> np.ndarray:
        """bool `(batch, 1, computed, keys)`: which keys each new position sees."""
        sequences, segments = self._graph.sequences, self._graph.segments
        length = -(-tokens.shape[1] // _STEP) * _STEP
        length = max(length, self._caches[0][0].shape[2])
        tokens = np.pad(tokens, [(0, 0), (0, length - tokens.shape[1]), (0, 0)])
        visible: np.ndarray = visible_keys(
            np,
            "causal" if segments is None else "unilm",
            False,
            tokens[..., sequences.index(self._graph.tokens)],
            None if segments is None else tokens[..., sequences.index(segments)],
            np.arange(length)[None],
            slice(start, start + computed),
        )
        return visible

    def _step(
        self,
        inputs: list,
        caches: TensorLike,
        visible: TensorLike,
        start: TensorLike,
        last: TensorLike,
    ) -> tuple[TensorLike, list]:
        """The outputs at one of the new positions, and the caches with all of them."""
        caches = dict(zip(map(id, self._graph.attentions), caches, strict=True))
        length = ops.shape(inputs[self._graph.sequences[0]])[1]
        position_ids = ops.cast(ops.arange(length)[None] + start, "float32")

        def replaced(operation) -> Callable:
            if isinstance(operation, own.MultiHeadAttention):

                def attend(given, p_bias=None, **_):
                    output, caches[id(operation)] = operation.attend_with_cache(
                        given[0],
                        given[-1] if p_bias else None,
                        visible,
                        caches[id(operation)],
                        start,
                    )
                    return output

                return attend
            if isinstance(operation, _MASKS):
                return lambda x, **_: x
            if isinstance(operation, own.Loss):
                return lambda x, **_: operation.chosen(x)
            if not isinstance(operation, _POSITIONS) or operation.custom_position_ids:
                return operation
            return lambda x, **_: operation.at(x, position_ids)

        outputs = quirks.run_graph(self._model, inputs, replaced)
        outputs = keras.tree.map_structure(lambda x: ops.take(x, last, axis=1), outputs)
        return outputs, [caches[id(one)] for one in self._graph.attentions]


def _row_keys(tokens: np.ndarray, rows: list[np.ndarray]) -> list[bytes]:
    """A key for each row: all of its inputs."""
    parts = [tokens, *rows]
    return [b"".join(part[i].tobytes() for part in parts) for i in range(len(tokens))]


def _read_graph(model) -> _Graph | None:
    nodes = quirks.graph_nodes(model)
    if nodes is None:
        return None
    numbers = {id(x): i for i, x in enumerate(model.inputs)}
    shapes = [x.shape for x in model.inputs]
    sequences = [i for i, x in enumerate(shapes) if len(x) == 2 and x[1] is None]
    attentions: list[own.MultiHeadAttention] = []
    tokens: set[int | None] = set()
    masks: set[int | None] = set()
    for node in nodes:
        operation = node.operation
        if node.is_input:
            continue
        tensors = node.input_tensors
        if isinstance(operation, own.MultiHeadAttention):
            if operation in attentions or not _is_own_attention(node):
                return None
            attentions.append(operation)
        elif isinstance(operation, _MASKS):
            masks.add(
                numbers.get(id(tensors[0]))
                if isinstance(operation, own.UnifiedLanguageModelMask)
                else None
            )
        elif isinstance(operation, own.Embedding):
            if operation.mask_zero and len(tensors[0].shape) == 2:
                tokens.add(numbers.get(id(tensors[0])))
        elif isinstance(operation, keras.layers.Reshape):
            if tensors[0].shape[1] is None:
                return None
        elif not isinstance(operation, (*_BY_POSITION, *_POSITIONS, own.Loss)):
            return None
    sizes = [x.shape for x in model.outputs]
    by_position = all(len(size) == 3 and size[1] is None for size in sizes)
    if not attentions or not by_position or len(tokens) != 1 or len(masks) != 1:
        return None
    (token,), (segment,) = tokens, masks
    if token is None:
        return None
    return _Graph(attentions, sequences, token, segment)


def _is_own_attention(node):
    """True if an attention is of a sequence to itself, with one mask of the model."""
    tensors = node.input_tensors
    if node.operation.return_attention_scores or len(tensors) < 4:
        return False
    is_self = tensors[0] is tensors[1] is tensors[2]
    return is_self and isinstance(quirks.maker_of(tensors[3]), _MASKS)


class LastToken(Model):
    """The outputs of a model at the last position of each row.

    A model that allows it keeps the keys and values of the positions before; any other
    computes all positions, by a function that is kept. `predict` takes an array
    `(batch, length)`, or a list of arrays as the model has them, with rows of equal
    lengths and no padding at the end; it returns an array `(batch, ...)`, or a list.

    Args:
        model: `keras.Model`, whose outputs are `(batch, length, ...)`.

    Attributes:
        steps: the `CachedSteps` of it, or None.
    """

    def __init__(self, model: keras.Model):
        super().__init__(name=f"{model.name}_last_token")
        self.model = model
        self.steps = CachedSteps.of(model)
        self._compute = Compiled(self._last, model.weights, any_shape=True)

    def _last(self, inputs: Sequence) -> TensorLike:
        several = isinstance(self.model.input, list | tuple)
        outputs = self.model(inputs if several else inputs[0], training=False)
        return keras.tree.map_structure(lambda x: x[:, -1], outputs)

    def call(self, inputs: TensorLike) -> TensorLike:
        """The outputs, in a graph of Keras."""
        return self._last(inputs if isinstance(inputs, list | tuple) else [inputs])

    def predict(
        self, x: TensorLike = None, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """The outputs for a batch of arrays, by a function that is kept."""
        if keras.Model.predict is not PREDICT:
            # Whoever put another function there, to record its calls, sees this one.
            return keras.Model.predict(self, x, *args, **options)
        return self._predict_last(x)

    def _predict_last(self, inputs: Sequence) -> TensorLike:
        several = isinstance(inputs, Sequence)
        arrays = [np.asarray(x) for x in (inputs if several else [inputs])]
        if self.steps:
            return self.steps(arrays)
        tensors = [
            ops.convert_to_tensor(x, given.dtype)
            for x, given in zip(arrays, self.model.inputs, strict=True)
        ]
        outputs = self._compute(tensors)
        return keras.tree.map_structure(ops.convert_to_numpy, outputs)

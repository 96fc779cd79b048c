"""The base of bert4keras's models: layers by name, and weights by layer."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import keras as keras3
import numpy as np
from keras import ops

from roformer_keras.base.errors import CheckpointError, printable, refuse
from roformer_keras.base.types import Shape, TensorLike, Unchecked
from roformer_keras.bert4keras.block_layers import MultiHeadAttention
from roformer_keras.bert4keras.keras2 import keras
from roformer_keras.conversion.reader import opened_bundle
from roformer_keras.io.atomic import replacing
from roformer_keras.io.tensor_bundle import TensorBundleReader, write_shard
from roformer_keras.models import initializers
from roformer_keras.models.kept_tokens import KeptTokens

# The prefix of a checkpoint, an open one, or its arrays by name.
Checkpoint: TypeAlias = str | os.PathLike | TensorBundleReader | dict[str, np.ndarray]


class TruncatedNormal(keras3.initializers.TruncatedNormal):
    """A method of a script as an initializer, which is saved as the one of Keras."""

    __module__ = keras3.initializers.TruncatedNormal.__module__

    def __init__(self, draw: Callable):
        super().__init__()
        self._draw = draw

    def __call__(self, shape: Shape, dtype: str | None = None) -> TensorLike:
        return self._draw(shape, dtype)

    def clone(self) -> "TruncatedNormal":
        return self


class Transformer:
    """A model built layer by layer from a configuration; subclasses say which layers.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads,
        intermediate_size, hidden_act: as in `bert_config.json`.
        dropout_rate, attention_dropout_rate: float in [0, 1), or None.
        embedding_size, attention_head_size, attention_key_size: int or None.
        sequence_length: int, or None for any.
        keep_tokens: ids of the vocabulary to keep, in their new order.
        compound_tokens: new tokens after them: lists of ids, or pairs of ids and
            weights.
        residual_attention_scores: bool. Adds each layer's attention scores to the
            next layer's.
        ignore_invalid_weights: bool. Whether weights that a checkpoint lacks stay.
        autoresize_weights: bool. Not covered.
        layers: dict of layers by name, which are used in place of new ones.
        prefix: of the names of layers.
        name: of the model.

    Attributes:
        model: the Keras model.
        inputs, input, outputs, output: its symbolic tensors.
        layers: dict of its layers by name.
        initializer: of new kernels.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        intermediate_size: int,
        hidden_act: str | Callable,
        dropout_rate: float | None = None,
        attention_dropout_rate: float | None = None,
        embedding_size: int | None = None,
        attention_head_size: int | None = None,
        attention_key_size: int | None = None,
        sequence_length: int | None = None,
        keep_tokens: Sequence[int] | None = None,
        compound_tokens: Sequence | None = None,
        residual_attention_scores: bool = False,
        ignore_invalid_weights: bool = False,
        autoresize_weights: bool = False,
        layers: dict[str, keras.layers.Layer] | None = None,
        prefix: str | None = None,
        name: str | None = None,
        **kwargs: Unchecked,
    ):
        refuse(
            autoresize_weights,
            "autoresize_weights is not covered: build the model with the sizes of "
            "its checkpoint",
        )
        if keep_tokens is not None:
            vocab_size = len(keep_tokens)
        self.vocab_size = vocab_size + len(compound_tokens or ())
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = (
            attention_head_size or hidden_size // num_attention_heads
        )
        self.attention_key_size = attention_key_size or self.attention_head_size
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.dropout_rate = dropout_rate or 0
        self.attention_dropout_rate = attention_dropout_rate or 0
        self.embedding_size = embedding_size or hidden_size
        self.sequence_length = sequence_length
        self.keep_tokens = keep_tokens
        self.compound_tokens = compound_tokens
        self.residual_attention_scores = residual_attention_scores
        self.ignore_invalid_weights = ignore_invalid_weights
        self.layers = {} if layers is None else layers
        self.prefix = prefix or ""
        self.name = name
        self.attention_bias: TensorLike = None
        self.position_bias: TensorLike = None
        self.attention_scores: TensorLike = None
        self.built = False

    # === What subclasses define ===

    def get_inputs(self) -> list:
        """The symbolic inputs."""
        raise NotImplementedError

    def apply_embeddings(self, inputs: list) -> TensorLike:
        """The input of the first block."""
        raise NotImplementedError

    def apply_main_layers(self, inputs: TensorLike, index: int) -> TensorLike:
        """A block."""
        raise NotImplementedError

    def apply_final_layers(self, inputs: TensorLike) -> TensorLike:
        """The outputs: a tensor, or a list of them."""
        raise NotImplementedError

    def variable_mapping(self) -> dict[str, list[str]]:
        """For each layer the names of its weights in a checkpoint."""
        return {}

    def compute_attention_bias(self, inputs: TensorLike = None) -> TensorLike:
        """The mask, or bias, of all blocks, or None."""
        return self.attention_bias

    def compute_position_bias(self, inputs: TensorLike = None) -> TensorLike:
        """The positions of all blocks, or None."""
        return self.position_bias

    # === Building ===

    def build(
        self,
        attention_caches: Unchecked = None,
        layer_norm_cond: TensorLike = None,
        layer_norm_cond_hidden_size: int | None = None,
        layer_norm_cond_hidden_act: str | Callable | None = None,
        additional_input_layers: TensorLike = None,
        **kwargs: Unchecked,
    ) -> None:
        """Builds `model`, once.

        Args:
            attention_caches: not covered.
            layer_norm_cond: symbolic `(batch, width)`, which shifts every norm.
            layer_norm_cond_hidden_size, layer_norm_cond_hidden_act: of a dense layer
                on it.
            additional_input_layers: inputs of the model after its own.
        """
        if self.built:
            return
        refuse(
            attention_caches,
            "attention_caches is not covered: AutoRegressiveDecoder.last_token "
            "keeps keys and values by itself",
        )
        extra_inputs = additional_input_layers
        if extra_inputs is None:
            extra_inputs = []
        inputs = self.get_inputs()
        self.inputs = [
            *inputs,
            *(extra_inputs if isinstance(extra_inputs, list) else [extra_inputs]),
        ]
        self.input = self.inputs if len(self.inputs) > 1 else self.inputs[0]
        self.layer_norm_conds = (
            layer_norm_cond,
            layer_norm_cond_hidden_size,
            layer_norm_cond_hidden_act or "linear",
        )
        outputs = self.call(inputs)
        self.outputs = outputs if isinstance(outputs, list) else [outputs]
        self.output = outputs
        self.model = keras.Model(self.inputs, outputs, name=self.name)
        self.built = True

    def call(self, inputs: list) -> TensorLike:
        """All layers, one after another."""
        outputs = self.apply_embeddings(inputs)
        for index in range(self.num_hidden_layers):
            outputs = self.apply_main_layers(outputs, index)
        return self.apply_final_layers(outputs)

    def prefixed(self, name: str | None) -> TensorLike:
        """A layer's name, with the prefix."""
        return None if name is None else self.prefix + name

    def apply(
        self,
        inputs: TensorLike = None,
        layer: Callable = keras3.Layer,
        arguments: Mapping | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> TensorLike:
        """Calls the layer of a name, which is made at first.

        Args:
            inputs: of the layer; None for the layer itself.
            layer: its class.
            arguments: keyword arguments of the call.
            name: of the layer, without the prefix.
            kwargs: other arguments of the class.
        """
        is_dropout = isinstance(layer, type) and issubclass(
            layer, keras3.layers.Dropout
        )
        if is_dropout and self.dropout_rate == 0:
            return inputs
        if layer is keras.layers.Input:
            return keras.layers.Input(name=self.prefixed(name), **kwargs)
        kwargs = {
            key: TruncatedNormal(value)
            if key.endswith("initializer") and inspect.isroutine(value)
            else value
            for key, value in kwargs.items()
        }
        is_attention = layer is MultiHeadAttention
        if is_attention and self.residual_attention_scores:
            kwargs["return_attention_scores"] = True
        made = self.layers.get(self.prefixed(name))
        if made is None:
            made = layer(name=self.prefixed(name), **kwargs)
            self.layers[made.name] = made
        if inputs is None:
            return made
        if is_attention and self.residual_attention_scores:
            return self._attend_with_scores(made, inputs, dict(arguments or {}))
        return made(inputs, **(arguments or {}))

    def _attend_with_scores(
        self, attention: MultiHeadAttention, inputs: Sequence, arguments: dict
    ) -> TensorLike:
        """The attention, with the scores of the one before it added to its own."""
        if self.attention_scores is not None:
            biases = int(bool(arguments.get("a_bias")))
            inputs = [
                *inputs[: 3 + biases],
                self.attention_scores,
                *inputs[3 + biases :],
            ]
            arguments["a_bias"] = biases + 1
        output, self.attention_scores = attention(inputs, **arguments)
        return output

    @property
    def initializer(self) -> keras3.Initializer:
        """Initializer of new kernels and tables."""
        return initializers.TruncatedNormal(stddev=0.02)

    def simplify(self, inputs: Sequence) -> TensorLike:
        """A list without its Nones; a tensor if only one is left."""
        inputs = [x for x in inputs if x is not None]
        return inputs[0] if len(inputs) == 1 else inputs

    # === Weights ===

    def load_embeddings(self, embeddings: np.ndarray) -> np.ndarray:
        """The rows of a table for the tokens of this model."""
        embeddings = np.asarray(embeddings, keras.config.floatx())
        vocabulary = KeptTokens(len(embeddings), self.keep_tokens, self.compound_tokens)
        return vocabulary.rows_of(embeddings)

    def load_variable(self, checkpoint: Checkpoint, name: str) -> np.ndarray:
        """A tensor of a checkpoint.

        Args:
            checkpoint: prefix of a checkpoint, an open one, or dict of arrays by name.
        """
        if isinstance(checkpoint, str | os.PathLike):
            with opened_bundle(checkpoint) as tensors:
                return tensors.read(name)
        return (
            checkpoint[name] if isinstance(checkpoint, dict) else checkpoint.read(name)
        )

    def create_variable(
        self, name: str, value: np.ndarray, dtype: str | None = None
    ) -> np.ndarray:
        """A tensor as a checkpoint holds it."""
        return np.asarray(value, dtype or keras.config.floatx())

    def _layer_names(self, mapping: Mapping | None) -> Iterator[tuple]:
        mapping = self.variable_mapping() if mapping is None else mapping
        for layer, names in mapping.items():
            if self.prefixed(layer) in self.layers:
                yield self.layers[self.prefixed(layer)], names

    def load_weights_from_checkpoint(
        self, checkpoint: Checkpoint, mapping: Mapping | None = None
    ) -> None:
        """Assigns the weights of a checkpoint: all of them, or none.

        Args:
            checkpoint: what `build_transformer_model` takes, or a dict of arrays by
                name.
            mapping: dict of layer to names of its weights; `variable_mapping()` if not
                given.

        Raises:
            CheckpointError: a weight is missing or of another shape; names it.
        """
        if isinstance(checkpoint, str | os.PathLike):
            with opened_bundle(checkpoint) as tensors:
                self.load_weights_from_checkpoint(tensors, mapping)
            return
        assigned = []
        for layer, names in self._layer_names(mapping):
            for variable, name in zip(layer.trainable_weights, names, strict=False):
                try:
                    value = self.load_variable(checkpoint, name)
                except (KeyError, CheckpointError) as error:
                    if not self.ignore_invalid_weights:
                        raise CheckpointError(
                            f"the checkpoint has no weight {printable(name)} for the "
                            f"layer {layer.name}",
                            hint="give ignore_invalid_weights=True to leave it out",
                        ) from error
                    print(f"{name} is not in the checkpoint, and was ignored.")
                    continue
                if tuple(variable.shape) != value.shape:
                    raise CheckpointError(
                        f"the weight {name} of the layer {layer.name} must be of shape "
                        f"{tuple(variable.shape)}, got {value.shape}"
                    )
                assigned.append((variable, value))
        for variable, value in assigned:
            variable.assign(value)

    def save_weights_as_checkpoint(
        self, filename: str, mapping: Mapping | None = None, dtype: str | None = None
    ) -> None:
        """Writes a checkpoint of TensorFlow, which bert4keras reads.

        Args:
            filename: its prefix.
            mapping: as in `load_weights_from_checkpoint`.
            dtype: of the tensors; Keras's float type by default.

        Raises:
            OutputError: it could not be written.
        """
        tensors = [
            (name, self.create_variable(name, ops.convert_to_numpy(variable), dtype))
            for layer, names in self._layer_names(mapping)
            for variable, name in zip(layer.trainable_weights, names, strict=False)
        ]
        data, index = f"{filename}.data-00000-of-00001", f"{filename}.index"
        with (
            replacing(index, True) as new_index,
            replacing(data, True) as new_data,
            open(new_data, "wb") as shard,
        ):
            new_index.write_bytes(write_shard(shard, tensors))

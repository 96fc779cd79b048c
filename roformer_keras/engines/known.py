"""The layers that engines other than Keras compute as Keras does."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence

import keras

from roformer_keras import layers
from roformer_keras.base import quirks
from roformer_keras.base.errors import ConfigurationError, Hint, RoFormerError
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.layers.masks import PaddingMask
from roformer_keras.layers.norms import activation_from_name
from roformer_keras.layers.projection import Dense, Projection

WAY_OUT = Hint("use {engine:'keras'}; or export with {format:'saved_model'}")
# The classes of functional models, and of `keras.ops.add` in their graphs.
_FUNCTIONAL, ADD = quirks.graph_classes()
# Calls of models that compute their graph and nothing else; `FastModel` adds its own.
GRAPH_CALLS = {
    vars(kind)[name]
    for kind in _FUNCTIONAL.__mro__
    for name in ("__call__", "call")
    if name in vars(kind)
}
_LORA = "lora_enabled lora_rank lora_alpha quantization_config"
_DENSE = f"units activation use_bias _kernel bias lora_kernel_a lora_kernel_b {_LORA}"
_TABLE = f"input_dim output_dim _embeddings lora_embeddings_a lora_embeddings_b {_LORA}"
# Attributes that training, LoRA and `quantize` may change.
_CHANGEABLE = {*f"{_LORA} rate noise_shape seed seed_generator recompute".split()}
_POINTER = "num_heads head_dim use_rotary use_bias upper_triangular dense type_dense"
_CONDITION = "condition_hidden_dim condition_hidden_activation"
# Class -> the attributes that its writer in `network.WRITERS` knows. Of others a layer
# must have the defaults.
KNOWN = {
    keras.layers.Embedding: _TABLE,
    keras.layers.ReversibleEmbedding: f"reverse_dtype {_TABLE}",
    keras.layers.Dense: _DENSE,
    Projection: _DENSE,
    Dense: _DENSE,
    keras.layers.Dropout: "rate noise_shape seed seed_generator",
    keras.layers.Identity: "",
    PaddingMask: "pad_segments",
    layers.LayerNorm: f"epsilon gamma beta {_CONDITION}",
    layers.RMSNorm: "epsilon",
    keras.layers.UnitNormalization: "",
    layers.AttentionMask: "pattern pad_segments",
    layers.RoPEAttention: "num_heads head_dim key_dim base layout rotary use_bias "
    "query key value output_dense in_blocks",
    layers.FeedForward: "intermediate_dim activation use_bias intermediate_dense "
    "output_dense",
    layers.RoFormerBlock: "attention feed_forward attention_norm feed_forward_norm "
    "norm_first recompute",
    layers.Pooler: "activation dense",
    layers.MaskedLMHead: "token_embedding output_embedding tie_word_embeddings "
    f"transform activation layer_norm_epsilon dense norm bias {_CONDITION}",
    layers.ConditionalRandomField: "learning_rate_multiplier kernel",
    layers.GlobalPointer: _POINTER,
    layers.EfficientGlobalPointer: _POINTER,
    ADD: "",
}


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raises the errors of other libraries as ConfigurationError."""
    try:
        yield
    except RoFormerError:
        raise
    except Exception as error:
        raise ConfigurationError(
            "engines other than Keras cannot compute this model; writing it ended in "
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            hint=WAY_OUT,
        ) from error


def check_model(model: keras.Model) -> None:
    """Raises ConfigurationError if a model computes something else than its graph."""
    own_calls = {"__call__", "call"} & vars(model).keys() or {
        vars(kind)[name]
        for kind in type(model).__mro__
        for name in ("__call__", "call")
        if name in vars(kind)
    } - GRAPH_CALLS
    if own_calls or quirks.graph_nodes(model) is None:
        raise unknown_layer(model, "whose call is replaced")


def check_methods(model: keras.Model, kind: type, names: tuple[str, ...]) -> None:
    """Raises ConfigurationError unless a model has these methods of a class."""
    for name in names:
        if name in vars(model) or getattr(type(model), name) is not getattr(kind, name):
            raise unknown_layer(model, f"whose {name} is replaced")


def check_layer(layer: keras.Operation) -> None:
    """Raises ConfigurationError unless a layer and those in it are in `KNOWN`.

    They must have the very methods that were read when `KNOWN` was written, and no
    attribute that it does not name; or write themselves.
    """
    kind = type(layer)
    if isinstance(layer, layers.LinearRoPEAttention):
        raise ConfigurationError(
            "engines other than Keras need attention_type='softmax', got "
            f"{layer.kind!r}",
            hint=WAY_OUT,
        )
    if getattr(layer, "quantization_mode", None) is not None:
        raise ConfigurationError(
            f"engines other than Keras take float weights, got {layer.name} in "
            f"{layer.quantization_mode}",
            hint=Hint("load the model as floats, and use {engine:'openvino-int8'}"),
        )
    if replaced_methods(layer):
        raise unknown_layer(layer, "whose methods were replaced")
    if kind not in KNOWN:
        if not vars(kind).keys() >= {"call", "write_network"}:
            raise unknown_layer(layer)
        return
    if any(_methods(base) != _METHODS[base] for base in kind.__mro__):
        raise unknown_layer(layer, "whose methods were replaced")
    unknown = _unknown_attributes(layer, KNOWN[kind].split())
    if unknown:
        raise unknown_layer(layer, f"with {', '.join(sorted(unknown))}")
    if isinstance(layer, keras.layers.Layer):
        for part in quirks.nested_layers(layer)[1:]:
            check_layer(part)


def replaced_methods(layer: keras.Layer) -> set[str]:
    """Names of methods that a layer has besides those of its class."""
    methods = {x for x in vars(layer) if callable(getattr(type(layer), x, None))}
    return methods - {"build", "quantize"}


def settings(layer: keras.Layer) -> dict[str, object]:
    """The layers in a layer, and the values in `KNOWN` that its weights do not hold."""
    names = {*KNOWN.get(type(layer), "").split()} - _CHANGEABLE
    # On PyTorch, a layer keeps the layers in it in another dict.
    values = {**vars(layer), **vars(layer).get("_modules", {})}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, keras.Layer)
        or (name in names and not isinstance(value, keras.Variable))
    }


def unknown_layer(layer: keras.Operation, reason: str = "") -> ConfigurationError:
    """An error that names a layer, and why engines do not know it."""
    return ConfigurationError(
        f"engines other than Keras do not know the layer {layer.name!r}, a "
        f"{type(layer).__name__}{reason and ' '}{reason}",
        hint=WAY_OUT,
    )


def _methods(kind: type) -> dict[str, object]:
    """The methods and properties that a class has itself."""
    kinds = (property, classmethod, staticmethod)
    return {k: v for k, v in vars(kind).items() if callable(v) or isinstance(v, kinds)}


_METHODS = {base: _methods(base) for kind in KNOWN for base in kind.__mro__}
# Endings of the names of attributes that matter in training alone.
_OF_TRAINING = ("initializer", "regularizer", "constraint", "dropout")


def _unknown_attributes(layer: keras.Operation, known: Sequence[str]) -> set[str]:
    """Names of attributes that differ from their defaults and are not known."""
    parameters: dict[str, inspect.Parameter] = {}
    for kind in reversed(type(layer).__mro__):
        if "__init__" in vars(kind) and not issubclass(keras.layers.Layer, kind):
            parameters.update(inspect.signature(kind).parameters)
    return {
        name
        for name, value in vars(layer).items()
        if name not in (*_common_attributes(), *known)
        and (name[0] != "_" or isinstance(value, keras.Variable | keras.layers.Layer))
        and not name.endswith(_OF_TRAINING)
        and not (
            name in parameters
            and type(value) is type(default := parameters[name].default)
            and (value is default or value == default)
        )
    }


def is_none(nested: Unchecked) -> bool:
    """True if there is nothing but None."""
    return all(x is None for x in keras.tree.flatten(nested))


@functools.cache
def _common_attributes() -> set[str]:
    # On TensorFlow, Keras's writer of SavedModels gives every layer the functions.
    functions = {"train_function", "test_function", "predict_function"}
    return {*functions, *vars(keras.layers.Layer(name="layer"))}


@functools.cache
def functions_of(name: str) -> list[Callable[..., TensorLike]]:
    """The functions that have one of the names of `activations` of graphs."""
    exact = [keras.activations.gelu] if name == "gelu" else []
    return [activation_from_name(name), *exact]


def takes_mask_of_inputs(
    layer: keras.Operation,
    inputs: tuple[TensorLike, ...],
    options: dict[str, TensorLike],
) -> bool:
    """True if Keras calls a layer with a mask that an input of it carries."""
    signature = inspect.signature(layer.call)
    arguments = signature.bind_partial(*inputs, **options).arguments
    if "mask" not in signature.parameters or arguments.get("mask") is not None:
        return False
    symbols = [x for call in quirks.calls_of(layer) for x in call.input_tensors]
    return any(quirks.mask_of(x) is not None for x in symbols)

"""Saving and restoring of models that Keras quantized by `model.quantize(mode)`."""

import contextlib
import gc
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from roformer_keras.checks import check_integer, check_number
from roformer_keras.conversion.quantized import MODES, QuantizedLayer
from roformer_keras.errors import CheckpointError, ConfigurationError
from roformer_keras.io.tensor import Tensor
from roformer_keras.models.paths import layers_by_path

# Mode -> Keras's class of configuration; weights of a group at most.
_CONFIGS = {"int8": "Int8QuantizationConfig", "int4": "Int4QuantizationConfig"}
_MAX_BLOCK = 2**20


@contextlib.contextmanager
def quiet_quantization() -> Iterator[None]:
    """Runs Keras's `quantize` without its warnings of layers that stay float."""
    with warnings.catch_warnings(), _quick_deletion():
        # Norms have nothing to quantize.
        warnings.filterwarnings("ignore", "Layer .* `quantize` .* implemented")
        yield


def quantized_layers(model: keras.Layer) -> dict[str, QuantizedLayer]:
    """The quantized layers of a model by path, with their variables.

    Raises:
        ConfigurationError: a layer has another mode than int8 and int4.
    """
    quantized = {}
    for path, layer in _quantizable(model).items():
        mode = layer.quantization_mode
        if mode is None:
            continue
        if mode not in MODES:
            raise ConfigurationError(
                f"a model can be saved if its layers are quantized to "
                f"{' or '.join(MODES)}, got {mode!r} in {path}"
            )
        variables = {variable.name: variable for variable in layer.variables}
        names = layer.variable_serialization_spec[mode]
        config = layer.quantization_config
        quantized[path] = QuantizedLayer(
            mode,
            config and keras.saving.serialize_keras_object(config),
            tuple(name for name in names if name in variables),
            {name: _tensor(variables[name]) for name in names if name in variables},
        )
    return quantized


def quantized_variables(layer: keras.Layer) -> set[str]:
    """Paths of variables that quantization made constants, as in `weights_by_path`."""
    return {
        f"{path}/{name}"
        for path, found in quantized_layers(layer).items()
        for name in (found.weight_name, *found.added)
    }


def quantization_state(model: keras.Model, without: Any = None) -> dict[str, Any]:
    """The field `quantization` of a model's configuration, if there is any.

    Args:
        model: the model.
        without: a model in it, which saves its own.
    """
    layers = quantized_layers(model)
    inner = quantized_layers(without) if without is not None else {}
    state = {p: layer.to_dict() for p, layer in layers.items() if p not in inner}
    return {"quantization": state} if state else {}


def set_quantization_state(model: keras.Model, state: Mapping[str, Any]) -> None:
    """Quantizes the layers of a new model as `quantization_state` says."""
    if not isinstance(state, Mapping):
        raise CheckpointError(f"quantization must be an object, got {state!r:.80}")
    layers = {
        path: QuantizedLayer.from_dict(fields, f"quantization of {path}")
        for path, fields in state.items()
    }
    restore_quantized(model, layers)


def restore_quantized(
    model: keras.Model, layers: Mapping[str, QuantizedLayer], by_row: bool = True
) -> None:
    """Quantizes a model's layers, and assigns the integers and scales that are given.

    Layers that the model lacks, or that are quantized already, are passed over.

    Args:
        model: the model, with float weights.
        layers: dict of path to `QuantizedLayer`.
        by_row: bool. Whether the rows of embeddings are those that were stored;
            otherwise their own integers are computed.
    """
    quantizable = _quantizable(model)
    for path, stored in layers.items():
        layer = quantizable.get(path)
        if layer is None or layer.quantization_mode is not None:
            continue
        with _quick_deletion():
            layer.quantize(stored.mode, config=_config_of(stored, path))
        if stored.weight_name == "embeddings" and not by_row:
            continue
        variables = {variable.name: variable for variable in layer.variables}
        for name, tensor in stored.tensors.items():
            if name != "bias":
                variables[name].assign(tensor.read())


def _config_of(stored: QuantizedLayer, path: str):
    """Keras's policy of a quantized layer. A file names it: nothing else is made."""
    if stored.config is None:
        return None
    try:
        options = _options_of(stored.config, _CONFIGS[stored.mode])
        block_size = options.get("block_size", 1)
        if block_size not in (None, -1):
            check_integer("block_size", block_size, 1, _MAX_BLOCK)
        for name in ("weight_quantizer", "activation_quantizer"):
            if options[name] is not None:
                options[name] = _quantizer_of(options[name])
        return getattr(keras.quantizers, _CONFIGS[stored.mode])(**options)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"quantization of {path} must have the configuration of {stored.mode} that "
            f"Keras writes, got {str(stored.config)[:200]} ({error}): save the model "
            "again"
        ) from error


def _options_of(config, class_name):
    """The arguments in what Keras serialized of an object of a class."""
    kind = config["module"], config["class_name"], config["registered_name"]
    if kind != ("keras.quantizers", class_name, None):
        raise ValueError(f"class_name must be {class_name!r}")
    return dict(config["config"])


def _quantizer_of(config):
    options = _options_of(config, "AbsMaxQuantizer")
    low, high = options["value_range"]
    check_integer("value_range", low, -128, 127)
    check_integer("value_range", high, low + 1, 127)
    check_number("epsilon", options["epsilon"], above=0, maximum=1)
    if options["output_dtype"] != "int8":
        raise ValueError("output_dtype must be 'int8'")
    axis = options.get("axis", 0)
    for one in axis if isinstance(axis, list) else [axis]:
        check_integer("axis", one, -2, 2)
    return keras.quantizers.AbsMaxQuantizer(**options)


@contextlib.contextmanager
def _quick_deletion():
    """Keras collects garbage for each kernel that it deletes: 0.6 s for each layer.

    What is frozen is not looked through.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _quantizable(model):
    kinds = keras.layers.Dense, keras.layers.Embedding
    layers = layers_by_path(model).items()
    return {path: layer for path, layer in layers if isinstance(layer, kinds)}


def _tensor(variable) -> Tensor:
    def read():
        value = keras.ops.convert_to_numpy(variable)
        return value if value.dtype.kind in "iu" else value.astype("float32")

    return Tensor(tuple(variable.shape), str(variable.dtype), read)

"""Outputs of a model, by compiled functions that are kept with it."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from roformer_keras import quirks
from roformer_keras.compiled import Compiled, general_specs
from roformer_keras.errors import CheckpointError
from roformer_keras.layers.fused import fused, runs_on_cpu
from roformer_keras.types import Shape

# Lengths of one row that XLA computes on TensorFlow's CPUs, in float32. There is little
# but reading of weights then, which TensorFlow's own products rearrange at each call.
# Of more tokens XLA gains nothing, and loses in bfloat16.
_SHORT_LENGTHS = (16, 32)
# It takes seconds to compile: the first few such rows are computed by the graph.
_ROWS_BEFORE = 2
# Attributes of these types are compared by value, others by identity.
_PLAIN = (bool, int, float, str, tuple)


def inference_of(model: keras.Model) -> "Inference":
    """The `Inference` of any functional model, which keeps it."""
    inference = vars(model).get("_inference")
    if inference is None:
        inference = model._inference = Inference(model)
    return inference


def run_model(model: keras.Model, inputs: dict[str, np.ndarray]) -> Any:
    """The outputs of a functional model, without the overhead of `predict`.

    Args:
        model: functional Keras model that takes a dict.
        inputs: arrays as it takes them, of one number of rows and one length; or of
            one number of groups, of rows in a group, and one length.

    Returns:
        NumPy arrays, nested as the model's outputs are.

    Raises:
        CheckpointError: an output is not a number.
    """
    return inference_of(model).outputs(inputs)


class Inference:
    """The compiled functions of a model, each kept until the model computes another.

    One rule decides for all of them, those of Keras's own loops too: what was made for
    another `Structure` of the model is dropped. Weights are read as they are when a
    function is called.

    Args:
        model: functional Keras model.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._structure: Structure | None = None
        # Name -> version and object.
        self._kept: dict[str, tuple] = {}
        self._short_rows = 0

    def structure(self) -> "Structure":
        """That of the model as it is; drops what was made for another."""
        if self._structure is None or self._structure.has_changed():
            self._structure = Structure(self._model)
            self._kept.clear()
            self._short_rows = 0
        return self._structure

    def keep(self, name: str, make: Callable, version: Any = None) -> Any:
        """Result of `make`, kept as long as structure and version stay the same.

        Args:
            name: str. There is one object of a name; an old one is dropped before
                another is made.
            make: function without arguments.
            version: what else the object depends on; compared by `==`.
        """
        self.structure()
        return self._get(name, make, version)

    def _get(self, name, make, version=None):
        """As `keep`, where the structure has just been looked at."""
        if self.keeps(name) and self._kept[name][0] == version:
            return self._kept[name][1]
        self._kept.pop(name, None)
        result = make()
        self._kept[name] = version, result
        return result

    def keeps(self, name: str) -> bool:
        """True if there is an object of that name, which may be stale."""
        return name in self._kept

    def _run(self, name, make, arguments):
        """Result of a kept function, where the structure has just been looked at."""
        function = self._get(name, make)
        is_new = not function.is_used
        outputs = function(arguments)
        if is_new:
            # Tracing may build layers.
            assert self._structure is not None
            self._structure.read()
        return outputs

    # === The call of a model, outside a graph ===

    def call(self, call: Callable, inputs: Any) -> Any:
        """The outputs of a model's own `call`, by one graph for all shapes.

        Args:
            call: the function, without the mixins around it.
            inputs: nested arrays or tensors.

        Returns:
            Nested tensors, which carry their Keras masks.
        """

        def with_masks(inputs):
            outputs = call(inputs, training=False)
            flat = keras.tree.flatten(outputs)
            return outputs, list(map(quirks.mask_of, flat))

        self.structure()
        convert = keras.ops.convert_to_tensor
        outputs, masks = self._run(
            "call",
            lambda: self._compiled(with_masks),
            keras.tree.map_structure(convert, inputs),
        )
        for output, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
            if mask is not None:
                quirks.set_mask(output, mask)
        return outputs

    def _compiled(self, function, any_shape=True):
        sizes = known_sizes(self._model) if any_shape else ()
        return Compiled(function, self._model.weights, any_shape=any_shape, sizes=sizes)

    # === Outputs of arrays ===

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> Any:
        """As `run_model`."""
        count, *group, length = inputs["token_ids"].shape
        inputs = {name: fill_rows(array) for name, array in inputs.items()}
        rows = len(inputs["token_ids"])
        is_float32 = self.structure().is_float32
        short = 0 if group or not is_float32 else self._short_length(count, length)
        if short:
            inputs = self._lengthened(inputs, short)
        outputs = keras.tree.map_structure(
            keras.ops.convert_to_numpy,
            self._run(
                "short rows" if short else "rows",
                self._of_short_rows if short else self._of_rows,
                {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()},
            ),
        )
        if any(np.isnan(output).any() for output in keras.tree.flatten(outputs)):
            raise CheckpointError(
                "the model's outputs must be numbers, got NaN: check the file that its "
                "weights come from, or load it with dtype='float32'"
            )
        if short:
            outputs = self._shortened(outputs, length)
        if rows > count:
            # Groups of rows have one output each.
            outputs = keras.tree.map_structure(
                lambda output: output[: len(output) * count // rows], outputs
            )
        return outputs

    def _of_rows(self):
        def of_rows(inputs):
            with fused():
                return self._model(inputs, training=False)

        return self._compiled(of_rows)

    def _of_short_rows(self):
        def of_short_rows(inputs):
            return self._model(inputs, training=False)

        return self._compiled(of_short_rows, any_shape=False)

    def _short_length(self, count, length):
        """Columns to which a row is filled up for XLA; 0 where that does not pay."""
        if count > 1 or not runs_on_cpu():
            return 0
        filled = next((most for most in _SHORT_LENGTHS if length <= most), 0)
        self._short_rows += filled > 0
        return filled if self._short_rows > _ROWS_BEFORE else 0

    def _lengthened(self, inputs, length):
        """With padding after everything that has a length."""
        return {
            name: np.pad(array, ((0, 0), (0, length - array.shape[1])))
            if self._model.input[name].shape[1] is None
            else array
            for name, array in inputs.items()
        }

    def _shortened(self, outputs, length):
        """Removes the padding from every axis of text length."""

        def cut(symbolic, output):
            axes = (
                slice(length if axis and size is None else None)
                for axis, size in enumerate(symbolic.shape)
            )
            return output[tuple(axes)]

        return keras.tree.map_structure(cut, self._model.output, outputs)


class Structure:
    """State of a model that its compiled functions depend on.

    That is: which layers and weights there are, the type in which a layer computes and
    its public attributes. LoRA, quantization, another activation or dtype policy, new
    random features and any assigned number or flag change it; new values of weights do
    not. Reading takes about 0.4 ms for a model of 12 layers.

    Args:
        model: Keras model.

    Attributes:
        is_float32: bool. True if all layers compute in float32.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self.read()

    def read(self) -> None:
        """Takes the model as it is."""
        layers = quirks.nested_layers(self._model)
        # The attributes of a model itself change with each training.
        self._layers = [x for x in layers if not isinstance(x, keras.Model)]
        self._attributes = [
            (vars(layer), name)
            for layer in self._layers
            for name in vars(layer)
            if not name.startswith("_")
        ]
        self._state = self._current()
        self.is_float32 = {layer.compute_dtype for layer in layers} == {"float32"}

    def _current(self):
        return (
            [id(weight) for weight in self._model.variables],
            [layer.dtype_policy.name for layer in self._layers],
            [values.get(name) for values, name in self._attributes],
        )

    def has_changed(self) -> bool:
        """True if the model computes something else than when it was read."""
        weights, policies, values = self._current()
        before = self._state
        return (
            weights != before[0]
            or policies != before[1]
            or not all(map(_is_same, values, before[2]))
        )


def _is_same(value, other):
    if value is other:
        return True
    return type(value) is type(other) and type(value) in _PLAIN and value == other


def known_sizes(model: keras.Model) -> list[Shape]:
    """Shapes of the flat inputs of a functional model, with None for free sizes."""
    inputs = getattr(model, "inputs", None) or ()
    return [(None, *x.shape[1:]) for x in inputs]


def for_any_shape(function: Any, model: keras.Model) -> Callable:
    """A TensorFlow function of a batch, traced once for all shapes of a model's inputs.

    Args:
        function: `tf.function` of one argument.
        model: functional Keras model.
    """
    import tensorflow as tf

    sizes, traced = known_sizes(model), set()

    def tensor(x):
        return tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x

    def call(data):
        data = keras.tree.map_structure(tensor, data)
        specs = general_specs(data, sizes)
        if str(specs) not in traced:
            # TensorFlow runs the most general graph that it has for some arguments.
            function.get_concrete_function(specs)
            traced.add(str(specs))
        return function(data)

    return call


def fill_rows(array: np.ndarray) -> np.ndarray:
    """On JAX, which compiles each number of rows, fills it up to a power of two.

    The last row is repeated: a row of padding only has no `[CLS]`.
    """
    if keras.backend.backend() != "jax":
        return array
    missing = (1 << (len(array) - 1).bit_length()) - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])

"""Outputs of a model, by compiled functions that are kept with it."""

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from roformer_keras.base import quirks
from roformer_keras.base.checks import check_choice
from roformer_keras.base.compiled import (
    Compiled,
    WeightValues,
    general_specs,
    is_on_cpu,
    runs_on_cpu,
)
from roformer_keras.base.errors import CheckpointError, Hint
from roformer_keras.base.extras import is_installed
from roformer_keras.base.processes import refuse_forked_process
from roformer_keras.base.types import ENGINES, Shape
from roformer_keras.engines.forward import ModelProgram
from roformer_keras.engines.known import refusing
from roformer_keras.layers.block import RoFormerBlock
from roformer_keras.layers.fused import fused

_LOGGER = logging.getLogger("roformer_keras.inference")
# Calls in a row that found other weights, after which Keras computes: the model is
# being trained between them, and a program would be compiled for each.
_MAX_NEW_WEIGHTS = 2

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


def fix_model(model: keras.Model) -> None:
    """Takes a model, and models in it, not to change any more, see `Inference.fix`."""
    for layer in quirks.nested_layers(model):
        if isinstance(layer, keras.Model):
            inference_of(layer).fix()


def run_model(
    model: keras.Model, inputs: dict[str, np.ndarray], engine: str = "keras"
) -> Any:
    """The outputs of a functional model, without the overhead of `predict`."""
    return inference_of(model).outputs(inputs, engine)


class Inference:
    """The compiled functions of a model, each kept until the model computes another.

    One rule decides for all of them, those of Keras's own loops too: what was made for
    another `Structure` of the model is dropped. Weights are read as they are when a
    function is called.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._structure: Structure | None = None
        # Name -> version and object.
        self._kept: dict[str, tuple] = {}
        self._short_rows = 0
        self._values: WeightValues | None = None
        self._new_weights = 0
        self._last_engine: str | None = None
        self._is_named = self._is_fixed = False

    def fix(self) -> None:
        """Takes structure and weights not to change any more.

        Nothing compares them at each call then, which takes about 1 ms; several where
        other threads are busy.
        """
        self._is_fixed = True

    def structure(self) -> "Structure":
        """That of the model as it is; drops what was made for another."""
        if self._structure is None or (
            not self._is_fixed and self._structure.has_changed()
        ):
            self._structure = Structure(self._model)
            self._kept.clear()
            self._short_rows = 0
            # There may be other weights.
            self._values = None
        return self._structure

    def keep(self, name: str, make: Callable, version: Any = None) -> Any:
        """Result of `make`, kept as long as structure and version stay the same."""
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
        if self._is_eager():
            return self._model(arguments, training=False)
        function = self._get(name, make)
        is_new = not function.is_used
        outputs = function(arguments)
        if is_new:
            # Tracing may build layers.
            assert self._structure is not None
            self._structure.read()
        return outputs

    # === Engines other than Keras ===

    def weight_values(self) -> WeightValues:
        """The weights, as the same object as long as none has another value.

        A version for `keep`, of programs that hold weights. It holds the values too.
        """
        if self._values is None:
            self._values = WeightValues(self._model.weights)
        elif not self._is_fixed:
            self._values = self._values.now()
        return self._values

    def chosen_engine(self, engine: str) -> str:
        """The engine that computes the model as it is.

        `"auto"` is OpenVINO where that is installed and Keras runs on a CPU, for models
        in float32 or bfloat16 that it can compute; else Keras.
        """
        check_choice("engine", engine, ENGINES)
        self.structure()
        return self._chosen(engine)

    def _chosen(self, engine):
        """As `chosen_engine`, where the structure has just been looked at."""
        if engine != "auto":
            return engine
        return "keras" if self._is_eager() else self._get("engine", self._best_engine)

    def _is_eager(self):
        return getattr(self._model, "run_eagerly", False)

    def _best_engine(self):
        model = self._model
        assert self._structure is not None
        is_possible = (
            self._structure.dtype is not None
            and is_installed("openvino")
            and is_on_cpu(model.weights)
        )
        return "openvino" if is_possible else "keras"

    def release(self) -> None:
        """Drops the programs of other engines, and the values that they were made of.

        Training does so: else the weights are held twice.
        """
        self._values, self._new_weights = None, 0
        for name in [*filter(_is_program, self._kept)]:
            del self._kept[name]

    def program(
        self, engine: str, name: str, make: Callable, version: Any = None
    ) -> Any:
        """A program that holds the weights, or None where Keras is to compute.

        Under `"auto"` Keras computes where anything fails while a program is made.
        """
        refuse_forked_process()
        chosen = self.chosen_engine(engine)
        if chosen == "keras":
            return None
        before = self._values
        version = self.weight_values(), version
        self._new_weights = 0 if self._values is before else self._new_weights + 1
        name = f"{name} of {chosen}"
        if self.keeps(name) and self._kept[name][0] == version:
            return self._kept[name][1]
        if engine == "auto" and self._new_weights > _MAX_NEW_WEIGHTS:
            return None
        assert self._structure is not None
        is_bfloat16 = self._structure.dtype == "bfloat16"
        try:
            with refusing():
                program = self._get(
                    name, functools.partial(make, chosen, is_bfloat16), version
                )
        except Exception as error:
            if engine != "auto":
                raise
            _LOGGER.info(f"computing with Keras: {error}")
            self._kept["engine"] = None, "keras"
            return None
        if not self._is_named:
            self._is_named = True
            _LOGGER.info(f"computing texts with the engine {chosen!r}")
        return program

    def _network(self, engine, is_bfloat16):
        return ModelProgram(self._model, engine.endswith("int8"), is_bfloat16)

    def _program_of_before(self, engine):
        """The program that computed the last call, with this engine, or None."""
        if engine != self._last_engine:
            return None
        if engine == "auto":
            _, engine = self._kept.get("engine", (None, engine))
        _, program = self._kept.get(f"network of {engine}", (None, None))
        return program

    # === The call of a model, outside a graph ===

    def call(self, call: Callable, inputs: Any) -> Any:
        """The outputs of a model's own `call`, by one graph for all shapes."""

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

    def outputs(self, inputs: Mapping[str, np.ndarray], engine: str = "keras") -> Any:
        """As `run_model`."""
        # It takes milliseconds to see whether the model has changed. The program of
        # before computes meanwhile: what it gives is right if it is still the program.
        early = self._program_of_before(engine)
        finish = early.begin(inputs) if early else None
        program = early_outputs = None
        try:
            program = self.program(engine, "network", self._network)
        finally:
            if finish:
                early_outputs = finish()
        self._last_engine = engine if program is not None else None
        if program is not None:
            return _checked(
                early_outputs if program is early else program.begin(inputs)()
            )
        count, *group, length = inputs["token_ids"].shape
        inputs = {name: fill_rows(array) for name, array in inputs.items()}
        rows = len(inputs["token_ids"])
        # `program` has just looked at it.
        assert self._structure is not None
        is_float32 = self._structure.dtype == "float32"
        may_fill = is_float32 and not group and not self._is_eager()
        short = self._short_length(count, length) if may_fill else 0
        if short:
            inputs = self._lengthened(inputs, short)
        outputs = keras.tree.map_structure(
            keras.ops.convert_to_numpy,
            self._run(
                "short rows" if short else "rows",
                functools.partial(self._of_rows, is_short=bool(short)),
                {k: keras.ops.convert_to_tensor(v) for k, v in inputs.items()},
            ),
        )
        if short:
            outputs = self._shortened(outputs, length)
        if rows > count:
            # Groups of rows have one output each.
            outputs = keras.tree.map_structure(
                lambda output: output[: len(output) * count // rows], outputs
            )
        return _checked(outputs)

    def _of_rows(self, is_short):
        """The outputs, of one short row by XLA, which knows no fused norm."""

        def of_rows(inputs):
            with contextlib.nullcontext() if is_short else fused():
                return self._model(inputs, training=False)

        return self._compiled(of_rows, any_shape=not is_short)

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

    That is: which layers and weights there are, the class of a layer, the type in which
    it computes, its public attributes, and its methods. LoRA, quantization, another
    activation or dtype policy, new random features, a layer in place of another, a
    `call` of the user's and any assigned number or flag change it; new values of
    weights do not. Reading takes about 0.4 ms for a model of 12 layers.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self.read()

    def read(self) -> None:
        """Takes the model as it is."""
        layers = self._all_layers = quirks.nested_layers(self._model)
        models = [vars(x) for x in layers if isinstance(x, keras.Model)]
        # Other attributes of a model itself change with each training.
        self._layers = [x for x in layers if not isinstance(x, keras.Model)]
        self._values = [vars(x) for x in self._layers]
        self._classes = {type(x) for x in layers}
        self._parts = [
            (values, name)
            for values in models
            for name, value in values.items()
            if name[0] != "_" and isinstance(value, keras.layers.Layer | list)
        ] + [(values, "call") for values in models]
        self._attributes = [
            (vars(layer), name)
            for layer in self._layers
            for name in vars(layer)
            if not name.startswith("_")
        ]
        self._state = self._current()
        self.dtype = _common_dtype(layers)

    def _current(self):
        return (
            [id(weight) for weight in self._model.variables],
            [layer.dtype_policy.name for layer in self._layers],
            [values.get(name) for values, name in self._attributes],
            # A method that is assigned to a layer is one more attribute.
            [*map(type, self._all_layers), *map(len, self._values)],
            [kind.call for kind in self._classes],
            [_items(values.get(name)) for values, name in self._parts],
        )

    def has_changed(self) -> bool:
        """True if the model computes something else than when it was read."""
        weights, policies, values, *others = self._current()
        before = self._state
        return (
            weights != before[0]
            or policies != before[1]
            or others != [*before[3:]]
            or not all(map(_is_same, values, before[2]))
        )


def _common_dtype(layers):
    """The type in which a model with these layers computes."""
    dtypes = {x.compute_dtype for x in layers if "float" in x.compute_dtype}
    if dtypes == {"float32"}:
        return "float32"
    in_blocks = {x.compute_dtype for x in layers if isinstance(x, RoFormerBlock)}
    is_bfloat16 = in_blocks == {"bfloat16"} and dtypes <= {"float32", "bfloat16"}
    return "bfloat16" if is_bfloat16 else None


def _is_program(name):
    return " of openvino" in name


def _checked(outputs):
    """Outputs; raises CheckpointError if one is not a number."""
    if any(np.isnan(output).any() for output in keras.tree.flatten(outputs)):
        raise CheckpointError(
            "the model's outputs must be numbers, got NaN",
            hint=Hint("check the file of the weights; or load with {dtype:'float32'}"),
        )
    return outputs


def _items(value):
    """A layer, or those of a list, to be compared later."""
    return [*value] if isinstance(value, list) else value


def _is_same(value, other):
    if value is other:
        return True
    return type(value) is type(other) and type(value) in _PLAIN and value == other


def known_sizes(model: keras.Model) -> list[Shape]:
    """Shapes of the flat inputs of a functional model, with None for free sizes."""
    inputs = getattr(model, "inputs", None) or ()
    return [(None, *x.shape[1:]) for x in inputs]


def for_any_shape(function: Any, model: keras.Model) -> Callable:
    """A TensorFlow function of a batch, traced once for all shapes of inputs."""
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

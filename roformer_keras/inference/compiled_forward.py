"""Outputs of a model, by compiled functions that the model keeps."""

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
# After this many consecutive calls with other weights, Keras computes: the model is
# being trained between the calls, and each call would compile a program.
_MAX_NEW_WEIGHTS = 2

# Lengths of a single row that XLA computes on TensorFlow's CPUs, in float32. Reading
# the weights takes most of the time, and TensorFlow's own products rearrange them at
# each call. For longer rows XLA gains nothing, and in bfloat16 it loses.
_SHORT_LENGTHS = (16, 32)
# XLA takes seconds to compile: the graph computes the first few short rows.
_ROWS_BEFORE = 2
# Attributes of these types are compared by value, others by identity.
_PLAIN = (bool, int, float, str, tuple)


def inference_of(model: keras.Model) -> "Inference":
    """The `Inference` of a functional model; the model keeps it."""
    inference = vars(model).get("_inference")
    if inference is None:
        inference = model._inference = Inference(model)
    return inference


def fix_model(model: keras.Model) -> None:
    """Assumes that a model and its submodels no longer change, see `Inference.fix`."""
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

    One rule covers all of them, and those of Keras's own loops: a function that was
    made for another `Structure` of the model is dropped. A function reads the weights
    when it is called.
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
        """Assumes that structure and weights no longer change.

        Calls then skip the comparison, which takes about 1 ms, and several where other
        threads are busy.
        """
        self._is_fixed = True

    def structure(self) -> "Structure":
        """The model's present structure; functions made for another are dropped."""
        if self._structure is None or (
            not self._is_fixed and self._structure.has_changed()
        ):
            self._structure = Structure(self._model)
            self._kept.clear()
            self._short_rows = 0
            # The model may have other weights.
            self._values = None
        return self._structure

    def keep(self, name: str, make: Callable, version: Any = None) -> Any:
        """The result of `make`, kept while structure and version stay the same."""
        self.structure()
        return self._get(name, make, version)

    def _get(self, name, make, version=None):
        """Does the work of `keep` after the structure has been compared."""
        if self.keeps(name) and self._kept[name][0] == version:
            return self._kept[name][1]
        self._kept.pop(name, None)
        result = make()
        self._kept[name] = version, result
        return result

    def keeps(self, name: str) -> bool:
        """True if an object of that name is kept; it may be stale."""
        return name in self._kept

    def _run(self, name, make, arguments):
        """The result of a kept function, after the structure has been compared."""
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
        """The weights, as the same object until a weight changes its value.

        This is a version for `keep`, for programs that hold weights. It holds the
        values too.
        """
        if self._values is None:
            self._values = WeightValues(self._model.weights)
        elif not self._is_fixed:
            self._values = self._values.now()
        return self._values

    def chosen_engine(self, engine: str) -> str:
        """The engine that computes the model in its present state.

        `"auto"` means OpenVINO if it is installed, Keras runs on a CPU, and the model
        is in float32 or bfloat16 and supported by OpenVINO; otherwise it means Keras.
        """
        check_choice("engine", engine, ENGINES)
        self.structure()
        return self._chosen(engine)

    def _chosen(self, engine):
        """Does the work of `chosen_engine` after the structure has been compared."""
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
        """Drops the programs of other engines, and their values of the weights.

        Training calls it, so that the weights are not held twice.
        """
        self._values, self._new_weights = None, 0
        for name in [*filter(_is_program, self._kept)]:
            del self._kept[name]

    def program(
        self, engine: str, name: str, make: Callable, version: Any = None
    ) -> Any:
        """A program that holds the weights, or None if Keras computes.

        With `"auto"`, Keras computes if the program cannot be made.
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
        """The program that computed the last call, if it used this engine, or None."""
        if engine != self._last_engine:
            return None
        if engine == "auto":
            _, engine = self._kept.get("engine", (None, engine))
        _, program = self._kept.get(f"network of {engine}", (None, None))
        return program

    # === The call of a model, outside a graph ===

    def call(self, call: Callable, inputs: Any) -> Any:
        """The outputs of a model's own `call`, from one graph for all shapes."""

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
        """The outputs for arrays, as `run_model` returns them."""
        # The comparison of the structure takes milliseconds. Meanwhile the previous
        # program computes: its outputs are used if it is still the right program.
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
        # `program` has just compared the structure.
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
            # Each group of rows has one output.
            outputs = keras.tree.map_structure(
                lambda output: output[: len(output) * count // rows], outputs
            )
        return _checked(outputs)

    def _of_rows(self, is_short):
        """A function of the outputs; XLA, for a short row, has no fused norm."""

        def of_rows(inputs):
            with contextlib.nullcontext() if is_short else fused():
                return self._model(inputs, training=False)

        return self._compiled(of_rows, any_shape=not is_short)

    def _short_length(self, count, length):
        """The width to which a row is padded for XLA, or 0 if XLA does not pay."""
        if count > 1 or not runs_on_cpu():
            return 0
        width = next((limit for limit in _SHORT_LENGTHS if length <= limit), 0)
        self._short_rows += width > 0
        return width if self._short_rows > _ROWS_BEFORE else 0

    def _lengthened(self, inputs, length):
        """Pads every input that has a length."""
        return {
            name: np.pad(array, ((0, 0), (0, length - array.shape[1])))
            if self._model.input[name].shape[1] is None
            else array
            for name, array in inputs.items()
        }

    def _shortened(self, outputs, length):
        """Cuts the padding from every axis of text length."""

        def cut(symbolic, output):
            axes = (
                slice(length if axis and size is None else None)
                for axis, size in enumerate(symbolic.shape)
            )
            return output[tuple(axes)]

        return keras.tree.map_structure(cut, self._model.output, outputs)


class Structure:
    """The state of a model that its compiled functions depend on.

    It consists of the layers and weights, and of the class, compute dtype, public
    attributes and methods of each layer. LoRA, quantization, another activation or
    dtype policy, new random features, an exchanged layer, a `call` of the user and any
    assigned number or flag change it; new values of weights do not. Reading takes about
    0.4 ms for a model of 12 layers.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self.read()

    def read(self) -> None:
        """Reads the present state of the model."""
        layers = self._all_layers = quirks.nested_layers(self._model)
        models = [vars(x) for x in layers if isinstance(x, keras.Model)]
        # Training changes the other attributes of a model itself.
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
            # A method that is assigned to a layer adds an attribute.
            [*map(type, self._all_layers), *map(len, self._values)],
            [kind.call for kind in self._classes],
            [_items(values.get(name)) for values, name in self._parts],
        )

    def has_changed(self) -> bool:
        """True if the model computes something else than when the state was read."""
        weights, policies, values, *others = self._current()
        before = self._state
        return (
            weights != before[0]
            or policies != before[1]
            or others != [*before[3:]]
            or not all(map(_is_same, values, before[2]))
        )


def _common_dtype(layers):
    """The dtype in which a model with these layers computes."""
    dtypes = {x.compute_dtype for x in layers if "float" in x.compute_dtype}
    if dtypes == {"float32"}:
        return "float32"
    in_blocks = {x.compute_dtype for x in layers if isinstance(x, RoFormerBlock)}
    is_bfloat16 = in_blocks == {"bfloat16"} and dtypes <= {"float32", "bfloat16"}
    return "bfloat16" if is_bfloat16 else None


def _is_program(name):
    return " of openvino" in name


def _checked(outputs):
    """The outputs; raises CheckpointError if one of them is NaN."""
    if any(np.isnan(output).any() for output in keras.tree.flatten(outputs)):
        raise CheckpointError(
            "the model's outputs must be numbers, got NaN",
            hint=Hint("check the weights file; or load with {dtype:'float32'}"),
        )
    return outputs


def _items(value):
    """A layer, or the layers of a list, for a later comparison."""
    return [*value] if isinstance(value, list) else value


def _is_same(value, other):
    if value is other:
        return True
    return type(value) is type(other) and type(value) in _PLAIN and value == other


def known_sizes(model: keras.Model) -> list[Shape]:
    """Shapes of the flat inputs of a functional model, with None for variable sizes."""
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
            # TensorFlow runs the most general matching graph.
            function.get_concrete_function(specs)
            traced.add(str(specs))
        return function(data)

    return call


def fill_rows(array: np.ndarray) -> np.ndarray:
    """Pads a batch to a power of two on JAX, which compiles each number of rows.

    Copies of the last row are added: a row of padding alone would have no `[CLS]`.
    """
    if keras.backend.backend() != "jax":
        return array
    missing = (1 << (len(array) - 1).bit_length()) - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])

"""Keras's models with the habits of Keras 2, see `keras2`."""

import contextlib
import contextvars
import functools
import inspect
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from roformer_keras.base import quirks
from roformer_keras.base.checks import check_choice
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras import sequences, train_functions, weight_files
from roformer_keras.bert4keras.node_tensors import NodeTensors, subclass_as_keras
from roformer_keras.data.adapters import SIGNATURES, call_without_wait
from roformer_keras.data.generators import as_inputs
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.atomic import make_folder, replacing

_input = keras.Input((1,), name="input")
_Functional: Any = type(keras.Model(_input, _input, name="model"))
# Keras's own, which takes 50 ms to begin.
PREDICT = keras.Model.predict
# How Keras 2 reads a generator, which the methods of Keras 3 do not take.
_READING = ("max_queue_size", "workers", "use_multiprocessing", "pickle_safe")
# Values of `save_format`, and how the names of such files end.
_SAVE_FORMATS = {"tf": "", "h5": ".h5", "keras": ".keras"}
_MODEL_FILES = (".keras", ".h5", ".hdf5")
# The model in a folder of TensorFlow, which ignores it.
_KERAS_FILE = Path("assets.extra", "model.keras")

# The model whose loss is being computed: tensors in a loss do not know theirs.
_model_of_loss: contextvars.ContextVar = contextvars.ContextVar("model", default=None)


@contextlib.contextmanager
def loss_of(model: keras.Model) -> Iterator[None]:
    """While it lasts, `search_layer` looks for the layers of tensors in `model`."""
    token = _model_of_loss.set(model)
    try:
        yield
    finally:
        _model_of_loss.reset(token)


def model_of_loss() -> keras.Model | None:
    """The model whose loss is being computed, or None."""
    return _model_of_loss.get()


class _Computed:
    """A property that an attribute of a script's class may replace."""

    def __init__(self, make):
        self._make = make

    def __get__(self, model, owner=None):
        return self if model is None else self._make(model)


class ScriptModel(NodeTensors, quirks.BuildsWithoutBatch):
    """A mixin of models with the methods of Keras 2."""

    _trains_on_lists = False
    # Ids of all weights and of the trained ones when the model was compiled.
    _compiled_ids: frozenset[int] | None = None
    _trained_ids: frozenset[int] | None = None
    _trains_as_compiled = False

    total_loss = _Computed(train_functions.total_loss)
    _feed_inputs = _Computed(lambda model: list(model.inputs))
    _feed_targets = _Computed(train_functions.feeds)
    _feed_sample_weights = _Computed(train_functions.feeds)
    _make_train_function = train_functions.make_list_function

    # === Training ===

    def fit(
        self, x: TensorLike = None, *args: Unchecked, **options: Unchecked
    ) -> keras.callbacks.History:
        """Trains as Keras does; generators may yield lists."""
        with self._training_as_compiled():
            return self._without_wait(super().fit, x, args, options)

    def train_on_batch(self, *args: Unchecked, **options: Unchecked) -> TensorLike:
        """Trains on a batch the weights that `compile` has settled."""
        with self._training_as_compiled():
            return super().train_on_batch(*args, **options)

    def evaluate(
        self, x: TensorLike = None, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """Evaluates as Keras does; generators may yield lists."""
        return self._without_wait(super().evaluate, x, args, options)

    def predict(
        self, x: TensorLike = None, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """Predicts as Keras does; generators may yield lists."""
        return self._without_wait(super().predict, x, args, options)

    def fit_generator(
        self, generator: Iterable, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """`fit`, as Keras 2 calls it for generators."""
        return self.fit(generator, *args, **options)

    def evaluate_generator(
        self, generator: Iterable, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """`evaluate`, as Keras 2 calls it for generators."""
        return self.evaluate(generator, *args, **options)

    def predict_generator(
        self, generator: Iterable, *args: Unchecked, **options: Unchecked
    ) -> TensorLike:
        """`predict`, as Keras 2 calls it for generators."""
        return self.predict(generator, *args, **options)

    def _without_wait(
        self, method: Callable, x: TensorLike, arguments: tuple, options: dict[str, Any]
    ) -> TensorLike:
        reading = {name: options.pop(name) for name in _READING if name in options}
        workers = reading.get("workers", 1)
        read_ahead = reading.get("max_queue_size", 10) if workers else 0
        signature = SIGNATURES[method.__name__]
        options = signature.bind(self, x, *arguments, **options).arguments
        del options["self"]
        options |= options.pop("kwargs", {})
        names = [name for name in ("x", "y") if name in options]
        arrays = self._numbers([options[name] for name in names])
        options |= zip(names, arrays, strict=True)
        if isinstance(options.get("validation_data"), tuple):
            options["validation_data"] = self._numbers(options["validation_data"])
        sequences.take_batches(options, read_ahead)
        if method.__name__ == "fit":
            options["callbacks"] = sequences.with_ends(options)
            return call_without_wait(method, (), options)
        result = call_without_wait(method, (), options)
        sequences.end_epoch(options["x"])
        return result

    def _numbers(self, data: Sequence) -> tuple:
        """Inputs, targets and weights, of which lists of numbers become arrays."""
        names = ("inputs", "outputs")
        several = [len(getattr(self, name, None) or ()) > 1 for name in names]
        arrays = [
            as_inputs(x) if is_list else as_inputs([x])[0]
            for x, is_list in zip(data, several, strict=False)
        ]
        return (*arrays, *data[2:])

    def compile(self, *args: Unchecked, **options: Unchecked) -> None:
        """Compiles as Keras 2 does: the weights that are trainable now are trained."""
        bound = inspect.signature(super().compile).bind(*args, **options)
        options = bound.arguments
        if isinstance(options.get("optimizer"), str):
            plain = keras.optimizers.get(options["optimizer"])
            kind = optimizer_class(plain.__class__)
            options["optimizer"] = kind.from_config(plain.get_config())
        for name in ("metrics", "weighted_metrics"):
            options[name] = self._by_output(options.get(name))
        super().compile(**options)
        self._trained_ids = self._compiled_ids = None
        if self.built:
            self._compiled_ids = frozenset(id(x) for x in self.variables)
            # Keras takes variables in an attribute for weights of the model.
            self._trained_ids = frozenset(id(x) for x in self.trainable_variables)

    def _by_output(self, metrics):
        """Metrics for each output, where a list of them is for all outputs."""
        outputs = getattr(self, "outputs", None) or ()
        is_flat = isinstance(metrics, list | tuple) and not any(
            isinstance(x, list | tuple | dict) for x in metrics
        )
        if not is_flat or len(outputs) < 2:
            return metrics
        return [[_copied(x) for x in metrics] for _ in outputs]

    def compile_from_config(self, config: dict[str, Unchecked]) -> None:
        # Keras does this itself only if `compile` is not overridden.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def trainable(self) -> bool:
        """Keras's property, which is true while `fit` trains the settled weights."""
        return self._trains_as_compiled or super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.Layer.trainable.fset(self, value)

    @contextlib.contextmanager
    def _training_as_compiled(self) -> Iterator[None]:
        trained = self._trained_ids
        # Keras 2 has nothing, such as LoRA, that adds weights after `compile`.
        if not trained or self._compiled_ids != {id(x) for x in self.variables}:
            yield
            return
        others = [x for x in self.variables if x.trainable != (id(x) in trained)]
        try:
            for variable in others:
                variable.trainable = not variable.trainable
            self._trains_as_compiled = True
            yield
        finally:
            self._trains_as_compiled = False
            for variable in others:
                variable.trainable = not variable.trainable

    def compute_loss(
        self,
        x: TensorLike = None,
        y: TensorLike = None,
        *args: Unchecked,
        **options: Unchecked,
    ) -> TensorLike:
        """Computes Keras's loss; the target of one output may be a dict by its name."""
        names: list[str] = getattr(self, "output_names", None) or []
        if isinstance(y, dict) and len(names) == 1 and names[0] in y:
            y = y[names[0]]
        with loss_of(self):
            return super().compute_loss(x, y, *args, **options)

    def make_train_function(self, force: bool = False) -> Callable:
        """Makes Keras's function, or adapts one of lists, see `train_functions`."""
        return train_functions.of_batches(self, super().make_train_function, force)

    def add_loss(
        self, loss: TensorLike, *args: Unchecked, **options: Unchecked
    ) -> None:
        """Adds a loss that is a value.

        Raises:
            ConfigurationError: the loss is a symbolic tensor.
        """
        _refuse_symbolic("add_loss", loss)
        super().add_loss(loss)

    def add_metric(
        self, value: TensorLike, *args: Unchecked, **options: Unchecked
    ) -> None:
        """Refuses metrics of a model, which Keras 3 does not have."""
        _refuse_symbolic("add_metric", value)
        raise ConfigurationError(
            "a model of Keras 3 has no add_metric",
            hint="give the metric to compile(metrics=)",
        )

    # === Files ===

    def save_weights(
        self,
        filepath: str | os.PathLike,
        overwrite: bool = True,
        save_format: str | None = None,
        **options: Unchecked,
    ) -> None:
        """As in Keras 2: HDF5 under any name; no other `save_format`."""
        refuse(
            save_format not in (None, "h5"),
            f"weights are written in HDF5, got save_format={save_format!r}",
            hint="leave out save_format=, and load_weights reads the file",
        )
        if str(filepath).endswith((".weights.h5", ".weights.json")):
            super().save_weights(filepath, overwrite=overwrite, **options)
        else:
            weight_files.save(self, filepath, overwrite)

    def load_weights(
        self,
        filepath: str | os.PathLike,
        by_name: bool = False,
        skip_mismatch: bool = False,
        **options: Unchecked,
    ) -> None:
        """As in Keras 2: files of either version, also by the names of layers."""
        if weight_files.is_of_keras_3(filepath):
            with weight_files.with_own_parts(filepath) as path:
                super().load_weights(path, skip_mismatch=skip_mismatch, **options)
        else:
            weight_files.load(self, filepath, by_name, skip_mismatch)

    def save(
        self,
        filepath: str | os.PathLike,
        overwrite: bool = True,
        save_format: str | None = None,
        **options: Unchecked,
    ) -> None:
        """As in Keras 2: under any name, and as a folder of TensorFlow.

        Raises:
            ConfigurationError: Keras could not read it, or the name belongs to another
                format.
        """
        name = str(filepath)
        if save_format is not None:
            check_choice("save_format", save_format, _SAVE_FORMATS)
            if save_format == "tf" and not name.endswith(_MODEL_FILES):
                _save_folder(self, super().save, filepath, overwrite)
                return
            refuse(
                save_format == "tf" or not name.endswith(_SAVE_FORMATS[save_format]),
                f"save_format={save_format!r} does not write a file of the name "
                f"{name!r}",
                hint="leave out save_format= to write a file of Keras 3 under any "
                "name; .h5 is HDF5",
            )
        function = _function_of(self)
        refuse(
            name.endswith(".h5") and function,
            "Keras reads a model from HDF5 only if all of it are layers, and this "
            f"one computes {function} between them, got the path "
            f"{filepath}",
            hint="end the path in .keras, or write the weights alone by "
            "model.save_weights",
        )
        if name.endswith(_MODEL_FILES):
            super().save(filepath, overwrite=overwrite, **options)
            return
        options.pop("include_optimizer", None)
        with scratch_folder() as folder, replacing(filepath, overwrite) as target:
            written = folder / "model.keras"
            super().save(written, **options)
            shutil.copyfile(written, target)


class Model(ScriptModel, keras.Model):
    """`keras.Model` with the methods of Keras 2."""

    # Keras's names, under which the classes here are saved.
    __module__ = keras.Model.__module__

    def __new__(cls: type, *args: Unchecked, **kwargs: Unchecked) -> keras.Model:
        arguments = keras.tree.flatten([args, kwargs])
        has_tensors = any(map(keras.utils.is_keras_tensor, arguments))
        kind = _functional_class(cls) if has_tensors else cls
        return keras.Model.__new__(kind, *args, **kwargs)

    def __init__(self, *args: Unchecked, **kwargs: Unchecked):
        if not isinstance(self, _Functional):
            refuse(
                len(args) == 2 or "outputs" in kwargs,
                f"{type(self).__name__} must be called with the tensors that it hands "
                "to Model.__init__",
                hint="pass inputs and outputs to the class, or define call",
            )
            super().__init__(*args, **kwargs)
            return
        args, kwargs = _with_single_output(*args, **kwargs)
        super().__init__(*args, **kwargs)
        _build_parts(self)


class Functional(Model, _Functional):
    """Class of `Model(inputs, outputs)`."""

    __module__ = _Functional.__module__
    input_shape, output_shape = _Functional.input_shape, _Functional.output_shape


class Sequential(ScriptModel, keras.Sequential):
    """`keras.Sequential` with the methods of Keras 2."""

    __module__ = keras.Sequential.__module__
    input_shape = keras.Sequential.input_shape
    output_shape = keras.Sequential.output_shape


def _build_parts(model: keras.Model) -> None:
    """Builds layers that a layer makes in `build`, so that they have weights to save.

    Keras calls no layer that has a `compute_output_shape`, until a batch comes.
    """
    for layer in model.layers:
        nodes = quirks.calls_of(layer)
        if nodes and not all(part.built for part in quirks.nested_layers(layer)):
            arguments = nodes[0].arguments
            keras.Operation.compute_output_spec(
                layer, *arguments.args, **arguments.kwargs
            )


def _refuse_symbolic(method: str, value: TensorLike) -> None:
    refuse(
        any(map(keras.utils.is_keras_tensor, keras.tree.flatten(value))),
        f"model.{method} takes no symbolic tensor in Keras 3",
        hint="subclass roformer_keras.bert4keras.layers.Loss, whose compute_loss "
        "gets the tensors, returns the loss and may call self.add_metric",
    )


def _copied(metric):
    is_metric = isinstance(metric, keras.Metric)
    return type(metric).from_config(metric.get_config()) if is_metric else metric


@functools.cache
def _functional_class(cls):
    """The class of functional models of a subclass of `Model`."""
    if issubclass(cls, Functional):
        return cls
    if cls is Model:
        return Functional
    names = ("__module__", "__qualname__", "__doc__")
    content = {name: getattr(cls, name) for name in names}
    functional = type(cls.__name__, (cls, Functional), content)
    package, _, name = keras.saving.get_registered_name(cls).rpartition(">")
    if package:
        keras.saving.register_keras_serializable(package, name)(functional)
    return functional


def _with_single_output(inputs=None, outputs=None, *args, **kwargs):
    """Arguments of a functional model, where a list of one output is that output."""
    is_single = isinstance(outputs, list | tuple) and len(outputs) == 1
    return (inputs, outputs[0] if is_single else outputs, *args), kwargs


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras's callback, which takes any file name here."""

    def __init__(
        self, filepath: str | os.PathLike, *args: Unchecked, **options: Unchecked
    ):
        super().__init__("x.weights.h5", *args, **options)
        self.filepath = os.fspath(filepath)


@functools.cache
def optimizer_class(base: type[keras.Optimizer]) -> type[keras.Optimizer]:
    """The class of Keras's optimizer that scripts get, with the names of Keras 2."""

    parameters = inspect.signature(base).parameters

    def initialize(self, *args, **options):
        options |= dict(zip(parameters, args, strict=False))
        rate = options.pop("lr", None)
        if rate is not None:
            options["learning_rate"] = rate
        if decay := options.pop("decay", None):
            rate = options.get("learning_rate", parameters["learning_rate"].default)
            schedule = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
            options["learning_rate"] = schedule
        base.__init__(self, **options)

    rate = property(
        lambda self: self.learning_rate,
        lambda self, rate: setattr(self, "learning_rate", rate),
    )
    return subclass_as_keras(base, (), {"__init__": initialize, "lr": rate})


def save_model(
    model: keras.Model,
    filepath: str | os.PathLike,
    overwrite: bool = True,
    **options: Unchecked,
) -> None:
    """`model.save`, as a function."""
    model.save(filepath, overwrite=overwrite, **options)


def load_model(
    filepath: str | os.PathLike,
    custom_objects: dict | None = None,
    *args: Unchecked,
    **options: Unchecked,
) -> keras.Model:
    """Loads what Keras does, other file names, and folders that `save` wrote."""
    if str(filepath).endswith((".h5", ".hdf5")):
        # Keras cannot read the short names that it writes there.
        short_names = {x: keras.losses.get(x) for x in ("mse", "mae", "mape", "msle")}
        custom_objects = short_names | (custom_objects or {})
    classes = {"Functional": Functional, "Sequential": Sequential}
    custom_objects = classes | (custom_objects or {})
    with _readable(filepath) as path:
        return keras.saving.load_model(path, custom_objects, *args, **options)


@contextlib.contextmanager
def _readable(filepath: str | os.PathLike) -> Iterator[str | os.PathLike]:
    """A path that Keras reads."""
    if os.path.isfile(Path(filepath) / _KERAS_FILE):
        filepath = Path(filepath) / _KERAS_FILE
    is_other = not str(filepath).endswith((".keras", ".h5"))
    if is_other and os.path.isfile(filepath) and zipfile.is_zipfile(filepath):
        with scratch_folder() as folder:
            linked = folder / "model.keras"
            linked.symlink_to(os.path.abspath(filepath))
            yield linked
    else:
        yield filepath


def _save_folder(
    model: keras.Model, save: Callable, filepath: str | os.PathLike, overwrite: bool
) -> None:
    """Writes a SavedModel for TensorFlow Serving, with the Keras model in it."""
    refuse(
        keras.backend.backend() == "torch",
        "a SavedModel for batches of any size needs the backend TensorFlow or JAX",
        hint="set KERAS_BACKEND=tensorflow, or leave out save_format=",
    )
    folder = Path(filepath)
    make_folder(folder.absolute().parent)
    with replacing(folder, overwrite, folder="saved_model.pb") as partial:
        model.export(str(partial), verbose=False)
        (partial / _KERAS_FILE).parent.mkdir(exist_ok=True)
        save(partial / _KERAS_FILE)


def _function_of(model: keras.Operation) -> str | None:
    """The name of an operation of a model that is no layer, or None."""
    for operation in getattr(model, "operations", ()):
        if not isinstance(operation, keras.Layer):
            return type(operation).__name__
        if name := _function_of(operation):
            return name
    return None

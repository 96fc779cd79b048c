"""What scripts of Keras 2 call on `keras.Model`, added to that of Keras 3.

Scripts build `keras.models.Model` themselves, so the class itself has to know:

- `fit`, `predict` and `evaluate` take generators and lists of lists, and do not wait,
  see `data.adapters`; `fit_generator`, `predict_generator` and `evaluate_generator` are
  their other names. A thread reads `max_queue_size` batches ahead, and with
  `workers=0` none.
- `compile` settles which weights are trained: `layer.trainable = False` after it
  counts for models that are compiled later.
- The target of a single output may be a dict with the name of its layer.
- `Model(inputs, [x])` has the output `x`, and not a list of one.
- `save_weights` and `load_weights` take any file name, see `weight_files`.
- `save` takes any file name, and with `save_format="tf"` writes a folder of TensorFlow;
  `keras.models.load_model` reads both again. What Keras could not read from a `.h5` is
  refused.
- In a loss, `search_layer` knows the model that is trained.
- A script may replace `train_function` of a compiled model, see `train_functions`.
- `layer.get_output_at(i)` and `layer.get_input_at(i)` are the tensors of its call `i`.
- Layers that add up have the mask where all branches have it, see `join_masks`, and
  `GlobalMaxPooling1D` leaves out what the mask hides. Where that differs from Keras 3,
  the layer is saved as one of this package, and else as Keras's.
"""

import functools
import os
import shutil
import warnings
import zipfile
from pathlib import Path

import keras

from roformer_keras.bert4keras.backend import loss_of
from roformer_keras.bert4keras.basic_layers import hide_positions, join_masks
from roformer_keras.bert4keras.batches import READ_AHEAD, as_batches, as_inputs
from roformer_keras.checks import check_choice
from roformer_keras.data.adapters import call_without_wait
from roformer_keras.errors import ConfigurationError, OutputError
from roformer_keras.fast_model import FastInference
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.atomic import replacing

# How Keras 2 reads a generator, which the methods of Keras 3 do not take.
_READING = ("max_queue_size", "workers", "use_multiprocessing", "pickle_safe")
# Values of `save_format`, and how the names of such files end.
_SAVE_FORMATS = {"tf": "", "h5": ".h5", "keras": ".keras"}
_MODEL_FILES = (".keras", ".h5", ".hdf5")
# The model in a folder of TensorFlow, which ignores it.
_KERAS_FILE = Path("assets.extra", "model.keras")

# What was replaced: owner, name, and the value before or `_NONE`.
_replaced: list[tuple] = []
_NONE = object()


def install() -> None:
    """Adds all of it, once."""
    if _replaced:
        return
    # A subclass of `keras.Model` that Keras makes of `keras.Model(inputs, outputs)`.
    from keras.src.models.functional import Functional
    from keras.src.trainers.trainer import Trainer

    # A model may be loaded where its script is not imported, so all of its classes are.
    from roformer_keras.bert4keras import (  # noqa: F401
        basic_layers,
        layers,
        optimizers,
        train_functions,
        weight_files,
    )

    model = keras.Model
    for name in ("fit", "predict", "evaluate"):
        _replace(model, name, _without_wait(getattr(model, name)))
        _replace(model, f"{name}_generator", _other_name(name))
    for name in ("fit", "train_on_batch"):
        _replace(model, name, _training_as_compiled(getattr(model, name)))
    # A `compile` of `keras.Model` itself is not called when Keras loads a model.
    _replace(Trainer, "compile", _compiling(Trainer.compile))
    _replace(
        model, "compute_loss", _known_to_losses(_with_named_target(model.compute_loss))
    )
    _replace(model, "_trains_on_lists", False)
    _replace(
        model,
        "make_train_function",
        train_functions.taking_batches(model.make_train_function),
    )
    _replace(model, "_make_train_function", train_functions.make_list_function)
    for name, make in (
        ("total_loss", train_functions.total_loss),
        ("_feed_inputs", lambda model: list(model.inputs)),
        ("_feed_targets", train_functions.feeds),
        ("_feed_sample_weights", train_functions.feeds),
    ):
        _replace(model, name, _Computed(make))
    _replace(Functional, "__init__", _with_single_output(Functional.__init__))
    _replace(model, "save_weights", _saving(model.save_weights, weight_files))
    _replace(model, "load_weights", _loading(model.load_weights, weight_files))
    _replace(model, "save", _saving_models(model.save))
    for module in (keras.models, keras.saving):
        _replace(module, "load_model", _loading_models(module.load_model))
        _replace(module, "save_model", _save_model)

    for module in (keras.losses, keras.metrics):
        _replace(module, "kullback_leibler_divergence", module.kl_divergence)
    for name in ("input", "output"):
        _replace(keras.layers.Layer, f"get_{name}_at", _tensors_at(name))

    for name, masked in basic_layers.MERGES.items():
        merge = getattr(keras.layers, name)
        _replace(merge, "compute_mask", _joining(merge, masked))
    pooling, masked = keras.layers.GlobalMaxPooling1D, layers.GlobalMaxPooling1D
    _replace(pooling, "call", _without_hidden(pooling.call))
    _replace(pooling, "compute_mask", _dropping(pooling, masked))
    # In Keras 2 a Lambda drops the mask without a word.
    warnings.filterwarnings("ignore", r"Layer '.*' \(of type Lambda\) was passed")


def uninstall() -> None:
    """Gives Keras its own back; models of scripts need `install()` again."""
    while _replaced:
        owner, name, before = _replaced.pop()
        if before is _NONE:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _replace(owner, name, value):
    _replaced.append((owner, name, vars(owner).get(name, _NONE)))
    setattr(owner, name, value)


class _Computed:
    """A property that an attribute of a script's class may replace."""

    def __init__(self, make):
        self._make = make

    def __get__(self, model, owner=None):
        return self if model is None else self._make(model)


def _other_name(name):
    def call(self, generator, *arguments, **options):
        return getattr(self, name)(generator, *arguments, **options)

    call.__doc__ = f"`{name}`, as Keras 2 calls it for generators."
    return call


def _tensors_at(name):
    def call(self, node_index):
        nodes = self._inbound_nodes
        if not -len(nodes) <= node_index < len(nodes):
            raise ValueError(
                f"node_index must be that of a call of the layer {self.name}, which "
                f"was called {len(nodes)} times, got {node_index}"
            )
        tensors = getattr(nodes[node_index], f"{name}_tensors")
        return tensors[0] if len(tensors) == 1 else list(tensors)

    call.__doc__ = f"The symbolic {name} of the layer's call of a number."
    return call


def _without_wait(method):
    @functools.wraps(method)
    def call(self, x=None, *arguments, **options):
        if len(getattr(self, "inputs", None) or ()) > 1:
            x = as_inputs(x)
        if method.__name__ == "predict" and hasattr(self, "predict_last"):
            return self.predict_last(x)
        reading = {name: options.pop(name) for name in _READING if name in options}
        read_ahead = reading.get("max_queue_size", READ_AHEAD)
        if not reading.get("workers", 1):
            read_ahead = 0
        if options.get("validation_data") is not None:
            data = as_batches(options["validation_data"], read_ahead)
            options["validation_data"] = data
        bound = method.__get__(self)
        arguments = (as_batches(x, read_ahead), *arguments)
        return call_without_wait(bound, arguments, options)

    return call


def _compiling(compile_):
    @functools.wraps(compile_)
    def call(self, *arguments, **options):
        compile_(self, *arguments, **options)
        self._trained_ids = self._compiled_ids = None
        # Models of this package train what is trainable when they train, as in Keras 3.
        if self.built and not isinstance(self, FastInference):
            self._compiled_ids = frozenset(id(x) for x in self.variables)
            # Keras takes variables in an attribute for weights of the model.
            self._trained_ids = frozenset(id(x) for x in self.trainable_variables)

    return call


def _training_as_compiled(train):
    @functools.wraps(train)
    def call(self, *arguments, **options):
        trained = getattr(self, "_trained_ids", None)
        # Keras 2 has nothing, such as LoRA, that adds weights after `compile`.
        if not trained or self._compiled_ids != {id(x) for x in self.variables}:
            return train(self, *arguments, **options)
        others = [x for x in self.variables if x.trainable != (id(x) in trained)]
        before = self._trainable
        try:
            # The property would set the flags of all layers.
            self._trainable = True
            for variable in others:
                variable.trainable = not variable.trainable
            return train(self, *arguments, **options)
        finally:
            self._trainable = before
            for variable in others:
                variable.trainable = not variable.trainable

    return call


def _with_named_target(compute_loss):
    @functools.wraps(compute_loss)
    def call(self, x=None, y=None, *arguments, **options):
        names = getattr(self, "output_names", None) or ()
        if isinstance(y, dict) and len(names) == 1 and names[0] in y:
            y = y[names[0]]
        return compute_loss(self, x, y, *arguments, **options)

    return call


def _known_to_losses(method):
    @functools.wraps(method)
    def call(self, *arguments, **options):
        with loss_of(self):
            return method(self, *arguments, **options)

    return call


def _with_single_output(initialize):
    @functools.wraps(initialize)
    def call(self, inputs, outputs, *arguments, **options):
        if isinstance(outputs, list | tuple) and len(outputs) == 1:
            outputs = outputs[0]
        initialize(self, inputs, outputs, *arguments, **options)

    return call


def _saving(save, weight_files):
    @functools.wraps(save)
    def call(self, filepath, overwrite=True, save_format=None, **options):
        if save_format not in (None, "h5"):
            raise ConfigurationError(
                f"weights are written in HDF5, got save_format={save_format!r}",
                hint="leave out save_format=, and load_weights reads the file",
            )
        if str(filepath).endswith((".weights.h5", ".weights.json")):
            return save(self, filepath, overwrite=overwrite, **options)
        return weight_files.save(self, filepath, overwrite)

    return call


def _loading(load, weight_files):
    @functools.wraps(load)
    def call(self, filepath, by_name=False, skip_mismatch=False, **options):
        if weight_files.is_of_keras_3(filepath):
            with weight_files.with_own_parts(filepath) as path:
                return load(self, path, skip_mismatch=skip_mismatch, **options)
        return weight_files.load(self, filepath, by_name, skip_mismatch)

    return call


def _joining(merge, masked):
    """`compute_mask` of a merging layer of Keras.

    A layer whose mask differs from that of Keras 3 becomes a `masked`, so that a model
    of it is loaded with this package only, and gives the same numbers.
    """

    def compute_mask(self, inputs, mask=None):
        masks = list(mask or ())
        if type(self) is merge and any(one is not masks[0] for one in masks):
            object.__setattr__(self, "__class__", masked)
        return join_masks(masks)

    return compute_mask


def _without_hidden(pool):
    """`call` of the maximum, which leaves out what the mask hides.

    A mask is no named argument of Keras's, which would be saved with the model.
    """

    def call(self, inputs, **mask):
        return pool(self, hide_positions(self, inputs, **mask))

    return call


def _dropping(pooling, masked):
    """`compute_mask` of the maximum; with a mask a layer becomes a `masked`."""

    def compute_mask(self, inputs, mask=None):
        if type(self) is pooling and mask is not None:
            object.__setattr__(self, "__class__", masked)

    return compute_mask


def _saving_models(save):
    @functools.wraps(save)
    def call(self, filepath, overwrite=True, save_format=None, **options):
        name = str(filepath)
        if save_format is not None:
            check_choice("save_format", save_format, _SAVE_FORMATS)
            if save_format == "tf" and not name.endswith(_MODEL_FILES):
                return _save_folder(self, save, filepath, overwrite)
            if save_format == "tf" or not name.endswith(_SAVE_FORMATS[save_format]):
                raise ConfigurationError(
                    f"save_format={save_format!r} does not write a file of the name "
                    f"{name!r}",
                    hint="leave out save_format=, and the file is one of Keras 3 under "
                    "any name; .h5 is HDF5",
                )
        function = _function_of(self)
        if name.endswith(".h5") and function:
            raise ConfigurationError(
                "Keras reads a model from HDF5 only if all of it are layers, and this "
                f"one computes {function} between them, got the path "
                f"{filepath}",
                hint="end the path in .keras, or write the weights alone by "
                "model.save_weights",
            )
        if name.endswith(_MODEL_FILES):
            return save(self, filepath, overwrite=overwrite, **options)
        options.pop("include_optimizer", None)
        with scratch_folder() as folder, replacing(filepath, overwrite) as target:
            written = folder / "model.keras"
            save(self, written, **options)
            shutil.copyfile(written, target)
        return None

    return call


def _save_model(model, filepath, overwrite=True, **options):
    """`model.save`, as a function."""
    return model.save(filepath, overwrite=overwrite, **options)


def _save_folder(model, save, filepath, overwrite):
    """Writes a SavedModel, as TensorFlow Serving takes it, with the Keras model in it.

    Raises:
        ConfigurationError: Keras's backend does not write any size of a batch.
        OutputError: the folder exists and holds something else, or writing failed.
    """
    if keras.backend.backend() == "torch":
        raise ConfigurationError(
            "a SavedModel for batches of any size needs the backend TensorFlow or JAX",
            hint="set KERAS_BACKEND=tensorflow, or leave out save_format=",
        )
    folder = Path(filepath)
    is_saved = (folder / "saved_model.pb").is_file()
    if folder.is_dir() and any(folder.iterdir()) and not is_saved:
        raise OutputError(f"{folder} holds no SavedModel: choose another folder")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder, overwrite, folder=True) as partial:
        model.export(str(partial), verbose=False)
        (partial / _KERAS_FILE).parent.mkdir(exist_ok=True)
        save(model, partial / _KERAS_FILE)


def _function_of(model):
    """The name of an operation of a model that is no layer, or None."""
    for operation in getattr(model, "operations", ()):
        if not isinstance(operation, keras.Layer):
            return type(operation).__name__
        if name := _function_of(operation):
            return name
    return None


def _loading_models(load):
    @functools.wraps(load)
    def call(filepath, *arguments, **options):
        if os.path.isfile(Path(filepath) / _KERAS_FILE):
            filepath = Path(filepath) / _KERAS_FILE
        is_other = not str(filepath).endswith((".keras", ".h5"))
        if is_other and os.path.isfile(filepath) and zipfile.is_zipfile(filepath):
            with scratch_folder() as folder:
                linked = folder / "model.keras"
                linked.symlink_to(os.path.abspath(filepath))
                return load(linked, *arguments, **options)
        return load(filepath, *arguments, **options)

    return call

"""What scripts of Keras 2 call on `keras.Model`, added to that of Keras 3.

Scripts build `keras.models.Model` themselves, so the class itself has to know:

- `fit`, `predict` and `evaluate` take generators of lists, and do not wait, see
  `data.adapters`; `fit_generator`, `predict_generator` and `evaluate_generator` are
  their other names.
- `Model(inputs, [x])` has the output `x`, and not a list of one.
- `save_weights` and `load_weights` take any file name, see `weight_files`.
- `save` takes any file name, and `keras.models.load_model` reads it again.
- Layers that add up have the mask where all branches have it, see `join_masks`.
"""

import functools
import os
import shutil
import warnings
import zipfile

import keras

from roformer_keras.bert4keras.batches import as_batches
from roformer_keras.data.adapters import call_without_wait
from roformer_keras.io.archive import scratch_folder
from roformer_keras.io.atomic import replacing

# Of the generator methods of Keras 2, what those of Keras 3 do not take.
_DROPPED = ("max_queue_size", "workers", "use_multiprocessing", "pickle_safe")


def install() -> None:
    """Adds all of it, once."""
    if hasattr(keras.Model, "fit_generator"):
        return
    # A subclass of `keras.Model` that Keras makes of `keras.Model(inputs, outputs)`.
    from keras.src.models.functional import Functional

    from roformer_keras.bert4keras import layers, weight_files

    _add_methods(keras.Model)
    _unwrap_single_outputs(Functional)
    keras.Model.save_weights = _saving(keras.Model.save_weights, weight_files)
    keras.Model.load_weights = _loading(keras.Model.load_weights, weight_files)
    keras.Model.save = _saving_models(keras.Model.save)
    for module in (keras.models, keras.saving):
        module.load_model = _loading_models(module.load_model)
    for merge in ("Average", "Maximum", "Minimum", "Multiply", "Subtract"):
        getattr(keras.layers, merge).compute_mask = lambda self, inputs, mask=None: (
            layers.join_masks(mask)
        )
    # In Keras 2 a Lambda drops the mask without a word.
    warnings.filterwarnings("ignore", r"Layer '.*' \(of type Lambda\) was passed")


def _add_methods(model):
    for name in ("fit", "predict", "evaluate"):
        setattr(model, name, _without_wait(getattr(model, name)))

    def other_name(name):
        def call(self, generator, *arguments, **options):
            for dropped in _DROPPED:
                options.pop(dropped, None)
            return getattr(self, name)(generator, *arguments, **options)

        call.__doc__ = f"`{name}`, as Keras 2 calls it for generators."
        return call

    for name in ("fit", "predict", "evaluate"):
        setattr(model, f"{name}_generator", other_name(name))


def _without_wait(method):
    @functools.wraps(method)
    def call(self, x=None, *arguments, **options):
        if method.__name__ == "predict" and hasattr(self, "predict_last"):
            return self.predict_last(x)
        if options.get("validation_data") is not None:
            options["validation_data"] = as_batches(options["validation_data"])
        bound = method.__get__(self)
        return call_without_wait(bound, (as_batches(x), *arguments), options)

    return call


def _unwrap_single_outputs(functional):
    initialize = functional.__init__

    @functools.wraps(initialize)
    def call(self, inputs, outputs, *arguments, **options):
        if isinstance(outputs, list | tuple) and len(outputs) == 1:
            outputs = outputs[0]
        initialize(self, inputs, outputs, *arguments, **options)

    functional.__init__ = call


def _saving(save, weight_files):
    @functools.wraps(save)
    def call(self, filepath, overwrite=True, save_format=None, **options):
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


def _saving_models(save):
    @functools.wraps(save)
    def call(self, filepath, overwrite=True, **options):
        if str(filepath).endswith((".keras", ".h5")):
            return save(self, filepath, overwrite=overwrite, **options)
        for name in ("save_format", "include_optimizer"):
            options.pop(name, None)
        with scratch_folder() as folder, replacing(filepath, overwrite) as target:
            written = folder / "model.keras"
            save(self, written, **options)
            shutil.copyfile(written, target)
        return None

    return call


def _loading_models(load):
    @functools.wraps(load)
    def call(filepath, *arguments, **options):
        is_other = not str(filepath).endswith((".keras", ".h5"))
        if is_other and os.path.isfile(filepath) and zipfile.is_zipfile(filepath):
            with scratch_folder() as folder:
                linked = folder / "model.keras"
                linked.symlink_to(os.path.abspath(filepath))
                return load(linked, *arguments, **options)
        return load(filepath, *arguments, **options)

    return call

"""The habits of Keras 2, in subclasses that `backend.keras` hands out.

Keras itself stays as it is. Scripts that take `keras` from `bert4keras.backend` get
what Keras 2 has. In a script that calls `build_transformer_model`, so do names that it
has by `from keras.models import Model` and the like. All others need one call before
their imports of Keras:

    from roformer_keras.bert4keras.keras2 import keras2_habits

    keras2_habits()
    import keras

Models:

- `fit`, `predict` and `evaluate`, or `fit_generator` and so on, take generators and
  lists of lists. A thread reads `max_queue_size` batches ahead; none with `workers=0`.
- `compile` settles which weights are trained: `layer.trainable = False` after it
  counts for models that are compiled later.
- The target of a single output may be a dict with the name of its layer, and
  `Model(inputs, [x])` has the output `x`, and not a list of one.
- `save_weights`, `load_weights`, `save` and `load_model` take any file name.
- In a loss, `search_layer` knows the model that is trained; and a script may replace
  `train_function` of a compiled model, see `train_functions`.

Layers:

- `layer.get_output_at(i)` and `layer.get_input_at(i)` are the tensors of its call `i`.
- Layers that merge branches have the mask where all branches have it, see
  `join_masks`, and merge hidden numbers as well. `GlobalMaxPooling1D` leaves out what
  the mask hides. They are saved as layers of this package.
- The mask of a list is None if none of its tensors has one.
- `add_metric` in a layer's `call` shows a mean in training.
- A `Lambda` drops the mask without a word.

All else is saved as Keras's own, and loaded without this package.
"""

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras as keras3

from roformer_keras.base.types import TensorLike, Unchecked
from roformer_keras.bert4keras import keras_functions as K
from roformer_keras.bert4keras.basic_layers import MASKED
from roformer_keras.bert4keras.keras2_models import (
    Model,
    ModelCheckpoint,
    Sequential,
    load_model,
    optimizer_class,
    save_model,
)
from roformer_keras.bert4keras.layer_functions import MERGES, named_activation
from roformer_keras.bert4keras.node_tensors import NodeTensors, subclass_as_keras


def _initialize_lambda(
    self: keras3.layers.Lambda, *arguments: Unchecked, **options: Unchecked
) -> None:
    keras3.layers.Lambda.__init__(self, *arguments, **options)
    # Keras warns of layers that drop a mask and do not say so.
    self.supports_masking = True


@functools.cache
def layer_class(base: type[keras3.Layer]) -> type[keras3.Layer]:
    """The class of Keras's layer that scripts of Keras 2 get."""
    if base.__name__ in MASKED:
        return MASKED[base.__name__]
    is_lambda = base is keras3.layers.Lambda
    methods = {"__init__": _initialize_lambda} if is_lambda else {}
    return subclass_as_keras(base, (NodeTensors,), methods)


class _Namespace(types.ModuleType):
    """A module of Keras with some names replaced."""

    def __init__(self, module: types.ModuleType, names: Mapping[str, Unchecked]):
        super().__init__(module.__name__, module.__doc__)
        self._module, self._names = module, names
        # `import keras.callbacks` and `from keras.layers import *` read these.
        self.__path__ = getattr(module, "__path__", [])
        self.__all__ = [name for name in dir(self) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Unchecked:
        # `vars` of a module that is being made lacks both.
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._names:
            return self._names[name]
        return getattr(self._module, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._module), *self._names})


class _ScriptNamespace(_Namespace):
    """A namespace in the place of a module: libraries read the module through it."""

    def __getattr__(self, name: str) -> Unchecked:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] in ("roformer_keras", "keras", "keras_hub"):
            return getattr(self._module, name)
        return super().__getattr__(name)


def _merging(name: str) -> Callable[..., TensorLike]:
    def merge(inputs, *args, **options):
        return getattr(keras.layers, name)(*args, **options)(inputs)

    merge.__name__ = name.lower()
    merge.__doc__ = f"`{name}` of a list of tensors."
    return merge


def _activation(identifier: Unchecked = None) -> Callable:
    """`keras.activations.get`, which knows bert4keras's names as well."""
    return keras3.activations.get(named_activation(identifier))


_DIVERGENCE = "kullback_leibler_divergence"


def _replacements() -> dict[str, Mapping[str, Unchecked]]:
    """Module of Keras -> the names that scripts of Keras 2 get instead."""
    layers = {
        name: layer_class(value)
        for name, value in vars(keras3.layers).items()
        if isinstance(value, type) and issubclass(value, keras3.Layer)
    }
    merges = {name.lower(): _merging(name) for name in MERGES}
    optimizers = {
        name: optimizer_class(value)
        for name, value in vars(keras3.optimizers).items()
        if isinstance(value, type) and value is not keras3.optimizers.Optimizer
    }
    files = {"load_model": load_model, "save_model": save_model}
    kinds = {"Model": Model, "Sequential": Sequential}
    return {
        "": {**kinds, "Layer": layers["Layer"]},
        "activations": {"get": _activation},
        "layers": {**layers, **merges},
        "models": {**kinds, **files},
        "saving": files,
        "backend": {
            name: value for name, value in vars(K).items() if not name.startswith("_")
        },
        "callbacks": {"ModelCheckpoint": ModelCheckpoint},
        "optimizers": optimizers,
        "losses": {_DIVERGENCE: keras3.losses.kl_divergence},
        "metrics": {_DIVERGENCE: keras3.metrics.kl_divergence},
    }


_NAMES = _replacements()


def _namespaces(kind: type[_Namespace], root: str = "keras") -> dict[str, _Namespace]:
    """Name of a module -> its namespace; the package has the others as attributes."""
    modules = {
        name: kind(importlib.import_module(f"{root}.{name}"), names)
        for name, names in _NAMES.items()
        if name
    }
    return {
        "": kind(importlib.import_module(root), {**_NAMES[""], **modules}),
        **modules,
    }


# Keras, as scripts of Keras 2 know it.
keras: Any = _namespaces(_Namespace)[""]

# Id of a function or class of Keras -> the one that differs from it.
_BY_ID = {
    id(getattr(keras3.models, name)): value for name, value in _NAMES["models"].items()
} | {
    id(getattr(keras3.layers, name)): value
    for name, value in _NAMES["layers"].items()
    if name in (*MASKED, "Lambda") or name.capitalize() in MERGES
}
# The package of `tf.keras`, and where scripts import it from.
_TF_KERAS = "keras._tf_keras.keras"


def keras2_habits() -> "contextlib.ExitStack":
    """Puts these classes in the place of Keras's own, for scripts that import `keras`.

    Call it before the script's imports of `keras` or TensorFlow. Imports of `keras`,
    `keras.layers` and so on, and `tf.keras`, then get the names of Keras 2. Keras
    itself and this package keep Keras's own.

    Returns:
        A context manager, at whose end Keras's own names are back; so does its
        `close()`.

    Example:
        >>> from roformer_keras.bert4keras.keras2 import keras2_habits
        >>> with keras2_habits():
        ...     from keras.layers import Dense
        >>> hasattr(Dense, "get_output_at"), hasattr(keras.Layer, "get_output_at")
        (True, False)
    """
    stack = contextlib.ExitStack()
    scripts = {"keras": _namespaces(_ScriptNamespace)}
    scripts[_TF_KERAS] = scripts["tensorflow.keras"] = _namespaces(
        _ScriptNamespace, _TF_KERAS
    )
    modules = {
        f"{root}.{name}".rstrip("."): namespace
        for root, namespaces in scripts.items()
        for name, namespace in namespaces.items()
    }
    for name, module in modules.items():
        stack.callback(_put_module, name, sys.modules.get(name))
        _put_module(name, module)
    # None is put there where TensorFlow must not be imported.
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None:
        stack.callback(setattr, tensorflow, "keras", tensorflow.keras)
        tensorflow.keras = modules[_TF_KERAS]
    return stack


def _put_module(name: str, module: types.ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


def replace_names(namespace: dict[str, Unchecked]) -> None:
    """Puts models and layers that differ in the place of Keras's, in a script's names.

    Args:
        namespace: dict of the names of the module that builds a model.
    """
    for name, value in list(namespace.items()):
        if id(value) in _BY_ID:
            namespace[name] = _BY_ID[id(value)]

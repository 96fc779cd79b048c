"""Weights and layers of a model by their paths below it.

`variable.path` begins with the name scopes in which the variable was made: those of
`keras.name_scope`, or of a layer whose `build` loads the model. Files lack these.
"""

import inspect
from collections.abc import Iterator

import keras

from roformer_keras.base import quirks


def weights_by_path(model: keras.Layer) -> dict[str, keras.Variable]:
    """The weights of a model, or of a layer, by path without outer name scopes."""
    paths = {
        id(variable): path
        for part in _parts(model)
        for variable in part.weights
        for path in _below(part, variable.path)
    }
    return {paths.get(id(one), one.path): one for one in model.weights}


def layers_by_path(model: keras.Layer) -> dict[str, keras.Layer]:
    """The built layers of a model at any depth; as `weights_by_path`."""
    paths = {
        id(layer): path
        for part in _parts(model)
        for layer in quirks.nested_layers(part)
        for path in _below(part, layer.path)
    }
    layers = quirks.nested_layers(model)
    return {paths[id(layer)]: layer for layer in layers if id(layer) in paths}


def _parts(model) -> Iterator[keras.Layer]:
    """The layers of a model, those of models inside it one by one."""
    if not isinstance(model, keras.Model):
        yield model
        return
    for layer in model.layers:
        yield from _parts(layer)


def _below(part, path):
    """A path in a layer from the layer's name on; nothing if it is in another layer."""
    if part.path and path and f"{path}/".startswith(f"{part.path}/"):
        yield path[len(part.path) - len(part.name) :]


def is_stored(cls: type) -> bool:
    """True for a class of this package, by which presets name a model."""
    return keras.saving.get_registered_name(cls).startswith("roformer_keras>")


def saved_name(cls: type) -> str:
    """The name of a class in files, without that of its package."""
    return keras.saving.get_registered_name(cls).rpartition(">")[2]


def stored_name(cls: type) -> str:
    """The name of the class of this package that a class is, or extends."""
    return saved_name(next(filter(is_stored, cls.__mro__)))


def argument_names(cls: type) -> list[str]:
    """The arguments of a constructor, with those that a user's class passes on."""
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    names: list[str] = []
    for base in cls.__mro__:
        parameters = inspect.signature(base).parameters.values()
        names += [each.name for each in parameters if each.kind not in variable]
        passes_on = any(each.kind is each.VAR_KEYWORD for each in parameters)
        if is_stored(base) or not passes_on:
            break
    return list(dict.fromkeys(names))


def backbone_of(model):
    """The backbone of a model, or the model if it is one."""
    return getattr(model, "backbone", model)

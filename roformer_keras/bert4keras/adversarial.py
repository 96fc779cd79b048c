"""Adversarial training, which bert4keras's examples do by a function of this name."""

import functools
from collections.abc import Callable

import keras

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.bert4keras.backend import search_layer
from roformer_keras.tasks import adversarial


def adversarial_training(
    model: keras.Model, embedding_name: str, epsilon: float = 1
) -> None:
    """Makes each update of a model where the loss is a little worse.

    The example's own function replaces a function of Keras 2 that Keras 3 has not;
    leave it out of a script, and import this one.

    Args:
        model: compiled `keras.Model`.
        embedding_name: of the layer whose table is moved, such as `"Embedding-Token"`.
        epsilon: float above 0. Length of the step, over the whole table.

    Raises:
        ConfigurationError: the model has no such layer.

    Source: Miyato et al. 2017, arXiv:1605.07725; https://kexue.fm/archives/7234
    """
    layers = (search_layer(output, embedding_name) for output in model.outputs)
    layer = next((layer for layer in layers if layer is not None), None)
    if layer is None:
        raise ConfigurationError(
            f"the model must have the layer {embedding_name!r}, and it has none"
        )
    step: Callable = functools.partial(
        adversarial.train_step, model, model.train_step, layer.variables[0], epsilon
    )
    model.train_step = step
    model.train_function = None

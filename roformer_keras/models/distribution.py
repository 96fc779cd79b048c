"""Models under `keras.distribution`: their layout, and what they refuse."""

import keras

from roformer_keras.config import RoFormerConfig
from roformer_keras.data.adapters import has_strategy
from roformer_keras.errors import ConfigurationError

# === The layout of a model that is wider than a device ===


def backbone_layout(
    config: RoFormerConfig,
    device_mesh: keras.distribution.DeviceMesh,
    axis: str = "model",
) -> keras.distribution.LayoutMap:
    """Weights of a backbone that the devices share, for `ModelParallel`.

    Each device has some of the heads of every attention layer and some of the features
    of every feed-forward layer, so that a block adds up the results of the devices
    twice. The token embedding is divided by tokens where their number is a multiple of
    the number of devices. All other weights are small, and whole on every device. An
    optimizer's variables are divided as the weights are.

    Args:
        config: `RoFormerConfig` of the model.
        device_mesh: `keras.distribution.DeviceMesh` with an axis of that name.
        axis: str. The axis whose devices share the weights.

    Returns:
        `keras.distribution.LayoutMap`. It fits language models and tasks too, which
        have the weights of the backbone under the same paths.

    Raises:
        ConfigurationError: the mesh has no such axis, or its devices cannot share the
            heads or the feed-forward features equally.

    Example:
    ```python
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    config = RoFormerConfig(num_heads=16, hidden_dim=1024, ...)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=backbone_layout(config, mesh))
    )
    model = RoFormerMaskedLM.from_roformer_config(config)
    ```

    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
    """
    if axis not in device_mesh.axis_names:
        raise ConfigurationError(
            f"axis must be one of the mesh, {', '.join(device_mesh.axis_names)}; got "
            f"{axis!r}"
        )
    count = device_mesh.shape[list(device_mesh.axis_names).index(axis)]
    for name in ("num_heads", "intermediate_dim"):
        if getattr(config, name) % count:
            raise ConfigurationError(
                f"{name} must be a multiple of the devices that share a model, got "
                f"{name}={getattr(config, name)} and {count} devices on the axis "
                f"{axis!r}: take fewer of them"
            )
    layout = keras.distribution.LayoutMap(device_mesh)
    block = r"(.*/)?transformer_layer_\d+"
    for name in ("attention/(query|key|value)", "feed_forward/intermediate_dense"):
        layout[f"{block}/{name}/kernel"] = (None, axis)
        layout[f"{block}/{name}/bias"] = (axis,)
    for name in ("attention", "feed_forward"):
        layout[f"{block}/{name}/output_dense/kernel"] = (axis, None)
    if config.vocabulary_size % count == 0:
        layout["(.*/)?(token|output)_embedding/embeddings"] = (axis, None)
    return layout


# === Strategies of TensorFlow ===


def refuse_strategy(model: keras.Model) -> None:
    """Refuses to train on texts under `tf.distribute`.

    Its devices clip gradients, and weigh rows and tokens, each for itself: on odd or
    padded batches the numbers are others than those of one device.

    Args:
        model: that is to be trained or evaluated.

    Raises:
        ConfigurationError: the model was made, or is used, in the scope of a strategy.
    """
    if has_strategy(model):
        raise ConfigurationError(
            f"{type(model).__name__} does not learn texts under tf.distribute, whose "
            "devices weigh their rows and clip their gradients each for itself",
            hint="use keras.distribution.DataParallel on the backend JAX, see "
            "docs/several-devices.md; ids are trained as Keras does",
        )

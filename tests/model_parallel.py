"""Trains a model whose weights 4 devices of JAX share, or 2 and 2.

The results must be those of one device, and each device must hold its share alone. Run
as a process, or imported before JAX starts: the number of devices is set before.
"""

import json
import os

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
)

import keras
import numpy as np

from roformer_keras import RoFormerConfig, RoFormerMaskedLM
from roformer_keras.errors import ConfigurationError
from roformer_keras.models.distribution import backbone_layout

SIZES = {"num_heads": 4, "hidden_dim": 32, "intermediate_dim": 64}
CONFIG = RoFormerConfig(
    vocabulary_size=64, num_layers=1, dropout=0.0, attention_dropout=0.0, **SIZES
)
IDS = np.random.default_rng(0).integers(1, 64, (4, 8)).astype("int32")
INPUTS = {"token_ids": IDS, "segment_ids": np.zeros_like(IDS)}


def results():
    """A trained model, its losses and its outputs."""
    keras.utils.set_random_seed(0)
    model = RoFormerMaskedLM.from_roformer_config(CONFIG)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    history = model.fit(INPUTS, IDS, epochs=2, batch_size=2, shuffle=False, verbose=0)
    after = model.predict(INPUTS, verbose=0)
    return model, {"after": after, **history.history}


def shares(model):
    """Of each weight, which part of its numbers the first device holds."""
    return {
        weight.path: weight.value.addressable_shards[0].data.size / weight.value.size
        for weight in model.weights
        if "seed_generator" not in weight.path
    }


def check_shares(model, count):
    block, share_of = "transformer_layer_0", shares(model)
    divided = {"token_embedding/embeddings"}
    for name in ("query", "key", "value"):
        divided |= {f"{block}/attention/{name}/{kind}" for kind in ("kernel", "bias")}
    inner = f"{block}/feed_forward/intermediate_dense"
    divided |= {f"{inner}/kernel", f"{inner}/bias"}
    divided |= {
        f"{block}/{layer}/output_dense/kernel"
        for layer in ("attention", "feed_forward")
    }
    assert {path for path, share in share_of.items() if share < 1} == divided
    assert {share_of[path] for path in divided} == {1 / count}
    # The optimizer's variables are divided as the weights are.
    pairs = zip(model.trainable_variables, model.optimizer.momentums, strict=True)
    for weight, momentum in pairs:
        sizes = [
            one.value.addressable_shards[0].data.shape for one in (weight, momentum)
        ]
        assert sizes[0] == sizes[1], weight.path


def refused(mesh, axis, config):
    try:
        backbone_layout(config, mesh, axis)
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("the layout was not refused")


def main():
    _, expected = results()
    devices = keras.distribution.list_devices()
    names = ("batch", "model")
    for shape in ((1, 4), (2, 2)):
        used = devices[: shape[0] * shape[1]]
        mesh = keras.distribution.DeviceMesh(shape, names, used)
        distribution = keras.distribution.ModelParallel(
            layout_map=backbone_layout(CONFIG, mesh), auto_shard_dataset=False
        )
        with distribution.scope():
            model, computed = results()
        check_shares(model, shape[1])
        for name, value in expected.items():
            np.testing.assert_allclose(computed[name], value, atol=1e-6, err_msg=name)
    mesh = keras.distribution.DeviceMesh((1, 4), names, devices)
    assert "axis must be one of the mesh" in refused(mesh, "width", CONFIG)
    for name, changes in (
        ("num_heads", {"num_heads": 2}),
        ("intermediate_dim", {"intermediate_dim": 66}),
    ):
        message = refused(mesh, "model", CONFIG.replace(**changes))
        assert f"{name} must be a multiple" in message
    # Tokens that the devices cannot share equally stay whole.
    layout = backbone_layout(CONFIG.replace(vocabulary_size=63), mesh)
    assert layout["token_embedding/embeddings"] is None
    print("model parallel:", json.dumps(sorted(expected)))


if __name__ == "__main__":
    main()

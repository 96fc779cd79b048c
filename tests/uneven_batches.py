"""Trains, evaluates and predicts on four devices of JAX, with an odd last batch.

The results must be those of one device. Run as a process: the number of devices is set
before JAX starts. `test_several_devices.py` runs it in such a process.
"""

import json
import os

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
)

import keras
import numpy as np
from finetuning_cases import load_small

from roformer_keras import RoFormerBackbone, RoFormerTextClassifier

TEXTS = ["今天天气", "北京", "我们在上海的家里"] * 3
LABELS = [0, 1, 0] * 3


def results():
    """Figures of a model that is trained on 9 texts in batches of 4."""
    keras.utils.set_random_seed(0)
    model = load_small(RoFormerTextClassifier, num_classes=2)
    model.compile(keras.optimizers.SGD(0.1))
    options = {"batch_size": 4, "verbose": 0}
    history = model.fit(TEXTS, LABELS, epochs=2, **options).history
    backbone = load_small(RoFormerBackbone)
    return {
        **history,
        "evaluation": model.evaluate(TEXTS, LABELS, **options),
        "answers": model.predict(TEXTS, **options),
        "hidden": backbone.predict(backbone.tokenizer(TEXTS), **options),
        "update": model.train_on_batch(TEXTS[:1], LABELS[:1]),
    }


def main():
    expected = results()
    devices = keras.distribution.list_devices()
    assert len(devices) == 4
    distribution = keras.distribution.DataParallel(
        devices=devices, auto_shard_dataset=False
    )
    with distribution.scope():
        computed = results()
    assert expected.keys() == computed.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(computed[name], value, atol=2e-6, err_msg=name)
    print("uneven batches:", json.dumps(sorted(computed)))


if __name__ == "__main__":
    main()

"""Every way to call a model gives the same numbers, also after it was changed."""

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT
from finetuning_cases import BAD, GOOD, ONE_BLOCK

from roformer_keras import FastModel, RoFormerBackbone, RoFormerCausalLM
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier

TEXTS = GOOD + BAD


def attention_of(model):
    return model.backbone.get_layer("transformer_layer_0").attention


def with_lora(layer):
    """Adds factors whose product is not zero."""
    layer.enable_lora(2)
    factor = next(v for v in layer.trainable_variables if v.path.endswith("_b"))
    factor.assign(np.random.default_rng(0).normal(size=factor.shape))


# What Keras, or an attribute, changes of a model that was called before.
CHANGES = {
    "base of the rotation": lambda m: setattr(attention_of(m), "base", 50.0),
    "LoRA of a dense layer of Keras": lambda m: with_lora(m.get_layer("classes")),
    "LoRA of the embedding": lambda m: with_lora(m.backbone.token_embedding),
    "LoRA of a projection": lambda m: with_lora(attention_of(m).query),
    "epsilon of a norm": lambda m: setattr(
        m.backbone.get_layer("embedding_norm"), "epsilon", 0.5
    ),
    "a quantized layer": lambda m: m.get_layer("classes").quantize("int8"),
    "new weights": lambda m: m.set_weights([1.5 * w for w in m.get_weights()]),
    "a frozen model": lambda m: m.freeze(),
}


@pytest.mark.slow
def test_every_call_sees_every_change():
    wrong = []
    for name, change in CHANGES.items():
        model = RoFormerTextClassifier.from_preset(
            CHARACTER, classes=["差", "好"], **ONE_BLOCK
        )
        model.compile("sgd")
        ids = model.tokenizer(TEXTS)
        ways = {
            "call": lambda: model(ids),  # noqa: B023
            "predict ids": lambda: model.predict(ids, verbose=0),  # noqa: B023
            "predict texts": lambda: model.predict(TEXTS, verbose=0),  # noqa: B023
            "on batch": lambda: model.predict_on_batch(ids),  # noqa: B023
        }
        before = [np.array(way()) for way in ways.values()]
        change(model)
        model.run_eagerly = True
        expected = np.array(model(ids))
        model.run_eagerly = False
        moves = np.abs(before[0] - expected).max() > 1e-5
        if moves != (name != "a frozen model"):
            wrong.append(f"{name} changes nothing")
        for way, call in ways.items():
            distance = np.abs(np.array(call()) - expected).max()
            if distance > 2e-5 * max(1, np.abs(expected).max()):
                wrong.append(f"{way} after {name}: {distance}")
    assert wrong == []


@pytest.mark.slow
def test_texts_are_written_by_the_model_as_it_is():
    def written(model):
        return model.generate("今天天气", max_length=16, seed=0)

    changed = [RoFormerCausalLM.from_preset(GPT) for _ in range(2)]
    before = written(changed[0])
    for model in changed:
        for layer in model.backbone._flatten_layers():
            if hasattr(layer, "rotary"):
                layer.base = 3.0
    assert before != written(changed[0]) == written(changed[1])


# Layers that need a size which the model knows, by the shape of another input.
LAYERS = {
    "norm": ((6,), lambda: keras.layers.LayerNormalization()),
    "groups": ((6,), lambda: keras.layers.GroupNormalization(2)),
    "steps": ((4, 6), lambda: keras.layers.TimeDistributed(keras.layers.Dense(2))),
    "unrolled": ((3, 4), lambda: keras.layers.LSTM(2, unroll=True)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_fast_model_knows_the_sizes_of_its_inputs(name):
    shape, make = LAYERS[name]
    backbone = RoFormerBackbone.from_preset(
        CHARACTER, num_layers=1, ignore=ONE_BLOCK["ignore"]
    )
    extra = keras.Input(shape, name="extra")
    pooled = keras.layers.GlobalAveragePooling1D()(backbone.output)
    outputs = keras.layers.Concatenate()(
        [pooled, keras.layers.Flatten()(make()(extra))]
    )
    inputs = {**backbone.input, "extra": extra}
    arrays = {**backbone.tokenizer(TEXTS), "extra": np.ones((8, *shape), "float32")}
    expected = keras.Model(inputs, outputs).predict(arrays, verbose=0)
    model = FastModel(inputs, outputs)
    for found in (model(arrays), model.predict(arrays, verbose=0)):
        np.testing.assert_allclose(np.array(found), expected, atol=1e-5)
    # The length of texts stays free.
    shorter = {**backbone.tokenizer(["你好"] * 8), "extra": arrays["extra"]}
    assert model.predict(shorter, verbose=0).shape == expected.shape

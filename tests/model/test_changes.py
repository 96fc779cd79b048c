"""Every way to call a model gives the same numbers, also after it was changed."""

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT
from finetuning_cases import BAD, GOOD, ONE_BLOCK, load_small

from roformer_keras import FastModel, RoFormerBackbone, RoFormerCausalLM, layers
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.tasks.text_classifier import RoFormerTextClassifier

TEXTS = GOOD + BAD


def attention_of(model):
    return model.backbone.get_layer("transformer_layer_0").attention


def with_lora(layer):
    """Adds factors whose product is not zero."""
    layer.enable_lora(2)
    factor = next(v for v in layer.trainable_variables if v.path.endswith("_b"))
    factor.assign(np.random.default_rng(0).normal(size=factor.shape))


def classes_of(model):
    return model.get_layer("classes")


def block_of(model):
    return model.backbone.get_layer("transformer_layer_0")


def scaled(variable):
    variable.assign(1.5 * variable)


def replace_activation(model):
    classes_of(model).activation = keras.activations.tanh


def merge(model):
    model.enable_lora(2)
    for weight in model.trainable_variables:
        scaled(weight)
    model.merge_lora()


def train(model):
    model.fit(TEXTS, LABELS, verbose=0)


def change_and_train(model):
    with_lora(classes_of(model))
    attention_of(model).base = 50.0
    model.compile("sgd")
    train(model)


def replace_pattern(model):
    masks = [x for x in model.backbone.layers if isinstance(x, layers.AttentionMask)]
    for mask in masks:
        mask.pattern = "causal"


# What Keras, a method or an attribute changes of a model that was called before.
CHANGES = {
    "base of the rotation": lambda m: setattr(attention_of(m), "base", 50.0),
    "no rotation": lambda m: setattr(attention_of(m), "rotary", False),
    "LoRA of a dense layer of Keras": lambda m: with_lora(classes_of(m)),
    "LoRA of the embedding": lambda m: with_lora(m.backbone.token_embedding),
    "LoRA of a projection": lambda m: with_lora(attention_of(m).query),
    "LoRA of the model, trained": lambda m: (m.enable_lora(2), train(m)),
    "merged LoRA": merge,
    "epsilon of a norm": lambda m: setattr(
        m.backbone.get_layer("embedding_norm"), "epsilon", 0.5
    ),
    "norms first": lambda m: setattr(block_of(m), "norm_first", True),
    "another activation": replace_activation,
    "another pattern of attention": replace_pattern,
    "a quantized layer": lambda m: classes_of(m).quantize("int8"),
    "a quantized embedding": lambda m: m.backbone.token_embedding.quantize("int8"),
    "another dtype policy": lambda m: setattr(
        classes_of(m), "dtype_policy", keras.DTypePolicy("bfloat16")
    ),
    "new weights": lambda m: m.set_weights([1.5 * w for w in m.get_weights()]),
    "a new weight": lambda m: scaled(classes_of(m).kernel),
    "training": train,
    "several changes and a training": change_and_train,
    "another activation in a block": lambda m: setattr(
        block_of(m).feed_forward.intermediate_dense, "activation", keras.ops.tanh
    ),
    "a frozen model": lambda m: m.freeze(),
    "a model compiled again": lambda m: m.compile("adam"),
}
SAME = ("a frozen model", "a model compiled again")
LABELS = ["好"] * len(GOOD) + ["差"] * len(BAD)


def ways_to_ask(model):
    """Six functions that give the probabilities of classes, or the loss."""
    ids = model.tokenizer(TEXTS)
    return {
        "call": lambda: model(ids),
        "predict ids": lambda: model.predict(ids, verbose=0),
        "predict texts": lambda: model.predict(TEXTS, verbose=0),
        "predict_on_batch": lambda: model.predict_on_batch(ids),
        "run_model": lambda: run_model(model, ids),
        "evaluate": lambda: model.evaluate(TEXTS, LABELS, verbose=0)[0],
    }


@pytest.mark.slow
def test_every_call_sees_every_change():
    wrong = []
    for name, change in CHANGES.items():
        model = load_small(RoFormerTextClassifier, classes=["差", "好"])
        model.compile("sgd")
        ways = ways_to_ask(model)
        before = [np.array(way()) for way in ways.values()]
        change(model)
        expected = by_operation(model, model.tokenizer(TEXTS))
        moves = np.abs(before[0] - expected).max() > 1e-5
        if moves != (name not in SAME):
            wrong.append(f"{name} changes nothing")
        targets = np.array([["差", "好"].index(label) for label in LABELS])
        loss = float(np.mean(model.loss(targets, expected)))
        for way, call in ways.items():
            right = loss if way == "evaluate" else expected
            distance = np.abs(np.array(call(), "float32") - right).max()
            if distance > 2e-5 * max(1, np.abs(right).max()):
                wrong.append(f"{way} after {name}: {distance}")
        if model.classify(TEXTS) != [["差", "好"][n] for n in expected.argmax(axis=1)]:
            wrong.append(f"classify after {name}")
    assert wrong == []


def by_operation(model, ids):
    """The outputs without a graph, in which nothing can be stale."""
    model.run_eagerly = True
    outputs = np.array(model(ids), "float32")
    model.run_eagerly = False
    return outputs


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

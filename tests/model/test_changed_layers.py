"""A layer that is not one that engines know is computed by Keras, or refused.

Each layer that an engine writes is changed in each way that Keras allows; the answers
by default must then be those of Keras.
"""

import functools
import logging

import keras
import numpy as np
import onnxruntime
import pytest
from keras import ops
from tiny_models import TOKENIZER, UNILM, backbone, batch, draw_weights

from roformer_keras import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerRelationExtractor,
    RoFormerSentenceEncoder,
    RoFormerSim,
    RoFormerSpanExtractor,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
    layers,
)
from roformer_keras.base import quirks
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.engines.known import KNOWN
from roformer_keras.engines.network import WRITERS, write_model
from roformer_keras.engines.onnx_graph import OnnxGraph
from roformer_keras.engines.openvino_graph import OpenVINOGraph
from roformer_keras.export.model import served_model
from roformer_keras.generation.prompts import as_prompt
from roformer_keras.inference.compiled_forward import run_model
from roformer_keras.layers.projection import Projection

# === Changes of a layer ===


def other(x):
    """Another output than a layer's."""
    if isinstance(x, tuple | list):
        return type(x)(map(other, x))
    if keras.backend.standardize_dtype(x.dtype) == "bool":
        return ops.logical_or(x, ops.roll(x, 1, axis=-1))
    return ops.where(ops.isfinite(x), 1.5 * x + ops.cast(0.2, x.dtype), x)


def other_call(kind):
    @functools.wraps(kind.call)
    def call(self, *args, **kwargs):
        return other(kind.call(self, *args, **kwargs))

    return call


def subclass(layer, name="Mine"):
    kind = type(layer)
    layer.__class__ = type(name, (kind,), {"call": other_call(kind)})


def class_of_the_same_name(layer):
    subclass(layer, type(layer).__name__)


def own_call(layer):
    layer.call = functools.partial(other_call(type(layer)), layer)


def own_activation(layer):
    """A function with the name of one of Keras's."""

    def relu(x):
        return 1.5 * ops.relu(x) + 0.3 * x

    layer.activation = relu


def activation_of_keras(layer):
    layer.activation = ops.gelu


def another_attribute(layer):
    layer.scale = 3.0


def another_weight(layer):
    with quirks.adding_state(layer):
        layer.another_weight = layer.add_weight(shape=(2,), name="another_weight")


ON_ACTIVATIONS = own_activation, activation_of_keras
CHANGES = (
    subclass,
    class_of_the_same_name,
    own_call,
    *ON_ACTIVATIONS,
    another_attribute,
    another_weight,
)


# === Models with all layers that engines know ===


def head(layer, **fields):
    """A functional model of the user's, with one more layer."""
    plain = backbone(num_layers=1, **fields)
    return keras.Model(plain.input, layer(plain.output))


def on_backbone(kind, *arguments, **options):
    fields = options.pop("fields", {})
    return lambda: kind(backbone(num_layers=1, **fields), *arguments, **options)


MODELS = {
    "classifier": on_backbone(RoFormerTextClassifier, TOKENIZER, classes=["a", "b"]),
    "sim": on_backbone(RoFormerSim, fields={**UNILM, "embedding_dim": 8}),
    "v2": lambda: backbone(model_type="roformer_v2", num_layers=1),
    "vectors": on_backbone(RoFormerSentenceEncoder, TOKENIZER),
    "tags": on_backbone(RoFormerTokenClassifier, TOKENIZER, labels=["X"], crf=True),
    "unit length": lambda: head(keras.layers.UnitNormalization()),
    "identity": lambda: head(keras.layers.Identity()),
    "spans": on_backbone(RoFormerSpanExtractor, TOKENIZER, labels=["X"]),
    "pointer": on_backbone(
        RoFormerSpanExtractor, TOKENIZER, labels=["X"], efficient=False
    ),
    "relations": on_backbone(RoFormerRelationExtractor, TOKENIZER, labels=["X"]),
}


def make(name):
    model = MODELS[name]()
    draw_weights(model)
    return model


def layers_of(model):
    """One layer of each class that an engine writes, by its class."""
    chosen = {}
    for layer in quirks.nested_layers(model):
        kind = type(layer)
        if (kind in WRITERS or hasattr(kind, "write_network")) and layer.built:
            chosen.setdefault(kind, layer)
    return chosen


@functools.cache
def classes_of(name):
    return frozenset(layers_of(make(name)))


def changed(layer, change):
    """Applies a change; returns a function that takes it back."""
    kind, values = type(layer), dict(vars(layer))
    change(layer)

    def restore():
        if hasattr(layer, "another_weight"):
            quirks.drop_variable(layer, "another_weight")
        layer.__class__ = kind
        vars(layer).clear()
        vars(layer).update(values)

    return restore


def flat(outputs):
    return [np.array(x, "float32") for x in keras.tree.flatten(outputs)]


def assert_close(outputs, expected, case=""):
    for output, value in zip(flat(outputs), flat(expected), strict=True):
        np.testing.assert_allclose(output, value, rtol=1e-4, atol=1e-4, err_msg=case)


def assert_exported_or_refused(model, inputs, case=""):
    """The names of what refuses, ONNX and OpenVINO, or right outputs."""
    try:
        served, graph = served_model(model), OnnxGraph()
        write_model(graph, served)
    except ConfigurationError as error:
        assert "engines other than Keras" in str(error)
        with pytest.raises(ConfigurationError, match="engines other than Keras"):
            write_model(OpenVINOGraph(), served_model(model))
        return
    session = onnxruntime.InferenceSession(graph.finish())
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    assert_close(outputs, served(inputs), case)


def check(case, model, layer, change):
    """Compares all ways of asking a model whose layer is changed."""
    inputs, asked = batch(), [model]
    if hasattr(model, "vectors"):
        asked.append(model.vectors)
    for part in asked:
        vars(part).pop("_inference", None)
    for is_built in (False, True):
        if is_built:
            for part in asked:
                run_model(part, inputs, "auto")
        restore = changed(layer, change)
        try:
            for part in asked:
                expected = part(inputs)
                assert_close(run_model(part, inputs, "auto"), expected, case)
            assert_exported_or_refused(model, inputs, case)
        finally:
            restore()


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (keras.layers.Dense, subclass),
        (layers.RoPEAttention, own_call),
        pytest.param(layers.LayerNorm, class_of_the_same_name, marks=pytest.mark.slow),
        pytest.param(Projection, activation_of_keras, marks=pytest.mark.slow),
    ],
)
def test_changed_layers(shared_classifier, kind, change):
    layer = layers_of(shared_classifier)[kind]
    check("", shared_classifier, layer, change)


@pytest.fixture(scope="module")
def shared_classifier():
    return make("classifier")


@pytest.mark.weekly
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_and_change(name):
    """The layers that no model before has, each changed in all ways."""
    before = [classes_of(other) for other in list(MODELS)[: list(MODELS).index(name)]]
    model = make(name)
    for kind, layer in layers_of(model).items():
        for change in CHANGES if kind not in frozenset().union(*before) else ():
            if change not in ON_ACTIVATIONS or hasattr(layer, "kernel"):
                check(f"{kind.__name__} {change.__name__}", model, layer, change)


@pytest.mark.slow
def test_models_have_all_layers_that_engines_know():
    written = {kind for kind in WRITERS if issubclass(kind, keras.layers.Layer)}
    assert written <= frozenset().union(*map(classes_of, MODELS))
    assert WRITERS.keys() == KNOWN.keys()


# === Calls, arguments and models of the user's own ===


class Doubled(RoFormerBackbone):
    def call(self, inputs, **kwargs):
        return 2 * super().call(inputs, **kwargs)


class DoubledClassifier(RoFormerTextClassifier):
    def call(self, inputs, **kwargs):
        return 2 * super().call(inputs, **kwargs)


def with_norm(norm):
    plain = backbone(num_layers=1)
    with quirks.adding_state(plain.transformer_layers[0]):
        plain.transformer_layers[0].attention_norm = norm
    norm.build((None, None, 16))
    return plain


def reversed_embedding():
    plain = backbone(num_layers=1)
    return keras.Model(plain.input, plain.token_embedding(plain.output, reverse=True))


def soft_cap():
    model = RoFormerMaskedLM(backbone(num_layers=1))
    model.backbone.token_embedding.logit_soft_cap = 0.5
    return model


def untied():
    embedding = keras.layers.ReversibleEmbedding(60, 16, tie_weights=False)
    embedding.build()
    return head(layers.MaskedLMHead(embedding))


def nested(kind):
    config = backbone(num_layers=1).config
    inner = kind(config)
    return keras.Model(inner.input, keras.layers.Dense(2)(inner(inner.input)))


def activated(name):
    model = make("classifier")
    attention = model.backbone.transformer_layers[0].attention
    getattr(attention, name).activation = keras.activations.tanh
    return model


OWN = {
    "axis": lambda: head(keras.layers.UnitNormalization(axis=1)),
    "constant": lambda: head(lambda x: ops.add(x, 0.5)),
    "array": lambda: head(lambda x: ops.add(x, np.ones(16, "float32"))),
    "reverse": reversed_embedding,
    "soft cap": soft_cap,
    "untied": untied,
    "operation": lambda: head(lambda x: ops.tanh(x)),
    "gelu of ops": lambda: head(keras.layers.Dense(2, activation=ops.gelu)),
    "lambda": lambda: head(keras.layers.Dense(2, activation=lambda x: x * 2)),
    "mask of inputs": lambda: head(layers.GlobalPointer(2, 4)),
    "norm of Keras": lambda: with_norm(keras.layers.RMSNormalization()),
    "unit norm": lambda: with_norm(keras.layers.UnitNormalization()),
    "sum of ranks": lambda: head(
        lambda x: keras.layers.Add()([x, keras.layers.GlobalMaxPooling1D()(x)])
    ),
    "backbone's call": lambda: Doubled(backbone(num_layers=1).config),
    "nested call": lambda: nested(Doubled),
    "task's call": lambda: DoubledClassifier(
        backbone(num_layers=1), TOKENIZER, classes=["a", "b"]
    ),
    "tanh of queries": lambda: activated("query"),
    "tanh of keys": lambda: activated("key"),
    "tanh of values": lambda: activated("value"),
}
# The table has these in pull requests, and all in the weekly run.
OFTEN = ("axis", "constant", "task's call")


@pytest.mark.parametrize(
    "name",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
        for name in OWN
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not support masking")
def test_own_models(name, caplog):
    model, inputs = OWN[name](), batch()
    draw_weights(model)
    with caplog.at_level(logging.INFO, "roformer_keras.inference"):
        for _ in range(2):
            assert_close(run_model(model, inputs, "auto"), model(inputs))
    assert len(caplog.messages) == 1
    if name in ("unit norm", "tanh of keys", "tanh of values"):
        assert "openvino" in caplog.text
        return
    assert "computing with Keras: engines other than Keras" in caplog.text
    with pytest.raises(ConfigurationError, match="engines other than Keras"):
        run_model(model, inputs, "openvino")
    if isinstance(model, DoubledClassifier):
        with pytest.raises(ConfigurationError, match="whose call is replaced"):
            served_model(model)
        texts = ["".join(map(chr, [0x4E01, 0x4E02])), chr(0x4E03)]
        ways = [model.classify(texts, engine=x) for x in (None, "keras")]
        assert ways[0] == ways[1]


@pytest.mark.parametrize("place", ["call", "argument"])
def test_dropout_that_is_drawn_where_nothing_trains(place):
    """No two answers are equal, so that only Keras may give them."""
    options = {"training": True} if place == "call" else {}
    model = head(lambda x: keras.layers.Dropout(0.5)(x, **options))
    if place == "argument":
        model = head(lambda x: x)
        model = keras.Model(model.input, model(model.input, training=True))
    with pytest.raises(ConfigurationError, match="or in training"):
        run_model(model, batch(), "openvino")


# === Texts that are written ===


def other_logits(self, hidden):
    return 2 * RoFormerCausalLM.logits(self, hidden)


# Models look up what they need by the name of the class.
Doubling = type("RoFormerCausalLM", (RoFormerCausalLM,), {"logits": other_logits})


def language_model(kind=RoFormerCausalLM):
    model = kind(backbone(attention="causal"))
    draw_weights(model)
    return model


def swapped_block(model):
    block = model.backbone.transformer_layers[0]
    new = type(block).from_config(block.get_config())
    new.build((None, None, 16))
    model.backbone.transformer_layers[0] = new


def in_head(change):
    return lambda model: change(model.mlm_head)


def in_attention(change):
    return lambda model: change(model.backbone.transformer_layers[1].attention)


STEPS = {
    "nothing": lambda model: None,
    "swapped block": swapped_block,
    "other order": lambda model: model.backbone.transformer_layers.reverse(),
    "head": in_head(subclass),
    "head's call": in_head(own_call),
    "attention": in_attention(own_call),
    "pattern": lambda model: setattr(
        model.backbone.attention_mask, "pattern", "bidirectional"
    ),
}


def logits(model, engine):
    prompts = [as_prompt(model, [2, 7, 9, 11], max_new_tokens=3)]
    return model._decoder(engine).start(prompts, 1, 3)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("is_built", [True, False])
def test_steps_of_texts(uncompiled, name, is_built):
    model = language_model()
    if is_built:
        assert_close(logits(model, "auto"), logits(model, "keras"))
    STEPS[name](model)
    assert_close(logits(model, "auto"), logits(model, "keras"))
    if name == "nothing":
        assert model.engine == "openvino"
        return
    with pytest.raises(ConfigurationError):
        model._decoder("openvino")


def test_a_step_of_the_users_own(uncompiled):
    model = language_model(Doubling)
    assert_close(logits(model, "auto"), logits(model, "keras"))
    with pytest.raises(ConfigurationError, match="whose logits is replaced"):
        model._decoder("openvino")


# === Watching the layers ===


def test_run_eagerly_reaches_all_layers(shared_classifier, monkeypatch):
    """A task's, by compile or by assignment; of texts too."""
    model, seen = shared_classifier, []
    call = layers.RoPEAttention.call

    def watched(self, x, **options):
        seen.append(hasattr(x, "numpy"))
        return call(self, x, **options)

    monkeypatch.setattr(layers.RoPEAttention, "call", watched)
    model.run_eagerly = True
    try:
        for ask in (model, lambda ids: run_model(model, ids, "auto")):
            seen.clear()
            ask(batch())
            assert seen == [True]
        assert model.engine == "keras" and model.backbone.run_eagerly
    finally:
        model.run_eagerly = False
    assert not model.backbone.run_eagerly and model.engine == "openvino"

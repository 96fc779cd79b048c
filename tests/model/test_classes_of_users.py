"""Subclasses of models and tasks: read by Keras, refused by what would lose them."""

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SIM

import roformer_keras
from roformer_keras.base import quirks
from roformer_keras.base.errors import ConfigurationError

SMALL = {"num_layers": 1}
# Class -> source, arguments.
BASES = {
    "RoFormerBackbone": (CHARACTER, {}),
    "RoFormerMaskedLM": (CHARACTER, {}),
    "RoFormerCausalLM": (GPT, {}),
    "RoFormerSim": (SIM, {}),
    "RoFormerTextClassifier": (CHARACTER, {"classes": ["差", "好"]}),
    "RoFormerTextRegressor": (CHARACTER, {"pooling": "mean"}),
    "RoFormerTokenClassifier": (CHARACTER, {"labels": ["地"], "crf": True}),
}
TASKS = [name for name, (_, options) in BASES.items() if options]


def subclass_of(name):
    """A subclass of the same name, or of another, whose outputs are doubled."""

    def call(self, inputs, **kwargs):
        doubled = super(cls, self).call(inputs, **kwargs)
        return keras.tree.map_structure(lambda x: 2 * x, doubled)

    cls = type(f"My{name}", (getattr(roformer_keras, name),), {"call": call})
    return cls


def outputs(model):
    values = model(model.tokenizer(["今天天气不错"]), training=False)
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(values)]


SLOW = ("RoFormerCausalLM", "RoFormerSim", "RoFormerTextRegressor")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BASES],
)
def test_keras_reads_it_and_a_preset_refuses_it(name, tmp_path):
    source, options = BASES[name]
    cls = subclass_of(name)
    model = cls.from_preset(source, **SMALL, **options)
    with pytest.raises(ConfigurationError, match=f"got My{name}: write the model by"):
        model.save_to_preset(tmp_path / "preset")
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path, custom_objects={cls.__name__: cls})
    assert type(again) is cls
    for ours, theirs in zip(outputs(again), outputs(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for read in (roformer_keras.load_model, cls.from_preset):
        with pytest.raises(ConfigurationError, match=r"keras\.models\.load_model rea"):
            read(path)


@pytest.mark.parametrize("name", TASKS)
def test_a_preset_of_its_base_is_read_with_the_head(name, tmp_path):
    source, options = BASES[name]
    base = getattr(roformer_keras, name).from_preset(source, **SMALL, **options)
    base.save_to_preset(tmp_path / "preset")
    model = subclass_of(name).from_preset(tmp_path / "preset")
    for ours, theirs in zip(model.weights, base.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Weighted(roformer_keras.RoFormerTextClassifier):
    """A task that adds an argument, and passes on the others."""

    def __init__(self, *args, scale=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = scale


def test_arguments_that_a_subclass_passes_on(tmp_path):
    options = {"classes": ["差", "好"], "scale": 3.0, **SMALL}
    model = Weighted.from_preset(CHARACTER, **options)
    model.save(path := tmp_path / "model.keras")
    again = keras.models.load_model(path, custom_objects={"Weighted": Weighted})
    assert (again.classes, again.scale) == (["差", "好"], 3.0)
    with pytest.raises(ConfigurationError, match="argument"):
        Weighted.from_preset(CHARACTER, size=1, **options)


def test_a_class_of_the_same_name_and_a_backbone_of_the_users(tmp_path):
    base = roformer_keras.RoFormerTextClassifier
    same = type(base.__name__, (base,), {})
    encoder = subclass_of("RoFormerBackbone").from_preset(CHARACTER, **SMALL)
    models = (
        same.from_preset(CHARACTER, num_classes=2, **SMALL),
        base(encoder, encoder.tokenizer, num_classes=2),
    )
    for model in models:
        with pytest.raises(ConfigurationError, match="classes of this package"):
            model.save_to_preset(tmp_path / "preset")
        model.save(tmp_path / "model.keras")
        with pytest.raises(ConfigurationError, match="must be"):
            roformer_keras.load_model(tmp_path / "model.keras")


# === Layers that are changed in a model of this package ===

Projection = type(roformer_keras.layers.FeedForward(4).intermediate_dense)


class Doubled(Projection):
    def call(self, *args, **kwargs):
        return 2 * super().call(*args, **kwargs)


def feed_forward(model):
    return model.backbone.transformer_layers[0].feed_forward


def swap(model):
    layer = feed_forward(model)
    dense = layer.output_dense
    doubled = Doubled.from_config(dense.get_config())
    doubled.build((None, layer.intermediate_dim))
    doubled.set_weights(dense.get_weights())
    with quirks.adding_state(layer):
        layer.output_dense = doubled


def head(model):
    return next(x for x in model.layers if isinstance(x, keras.layers.Dense))


def double(inputs, **kwargs):
    return 2 * inputs


# Name of a change -> layer, attribute, new value.
CHANGES = {
    "the class of the head": (head, "__class__", Doubled),
    "the call of a layer": (feed_forward, "call", double),
    "the call of the head": (head, "call", double),
    "the call of the model": (lambda model: model, "call", double),
    "the call of the backbone": (lambda model: model.backbone, "call", double),
    "another method": (
        lambda model: model.backbone.attention_mask,
        "compute_output_spec",
        double,
    ),
    "an activation": (
        lambda model: feed_forward(model).intermediate_dense,
        "activation",
        keras.activations.tanh,
    ),
    "an epsilon": (lambda model: model.backbone.embedding_norm, "epsilon", 0.1),
}
WRITERS = {
    "model.save": lambda model, path: model.save(path / "new.keras"),
    "Keras": lambda model, path: keras.saving.serialize_keras_object(model),
    "preset": lambda model, path: model.save_to_preset(path / "preset"),
    "a model around it": lambda model, path: roformer_keras.FastModel(
        model.input, model(model.input)
    ).save(path / "outer.keras"),
}


@pytest.fixture(scope="module")
def classifier():
    return roformer_keras.RoFormerTextClassifier.from_preset(
        CHARACTER, classes=["差", "好"], **SMALL
    )


def assert_refused(model, layer, folder):
    for name, write in WRITERS.items():
        with pytest.raises(ConfigurationError) as error:
            write(model, folder)
        words = f"{layer}.*undo the change; or make it in the constructor of a subclass"
        assert error.match(words), name
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_layer_is_refused(name, classifier, monkeypatch, tmp_path):
    find, attribute, value = CHANGES[name]
    layer = find(classifier)
    with monkeypatch.context() as patch:
        patch.setattr(layer, attribute, value)
        assert_refused(classifier, layer.path, tmp_path)
    classifier.get_config()


class Swapped(roformer_keras.RoFormerTextClassifier):
    """A task that changes a layer in its constructor."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        swap(self)


def test_a_layer_in_a_block(tmp_path):
    options = {"num_classes": 2, **SMALL}
    model = roformer_keras.RoFormerTextClassifier.from_preset(CHARACTER, **options)
    model.save(tmp_path / "model.keras")
    again = roformer_keras.load_model(tmp_path / "model.keras")
    (tmp_path / "model.keras").unlink()
    for changed in (model, again):
        swap(changed)
        assert_refused(changed, "feed_forward has another output_dense", tmp_path)
    subclass = Swapped.from_preset(CHARACTER, initialize_heads=True, **options)
    subclass.save(path := tmp_path / "model.keras")
    custom = {"Swapped": Swapped}
    (ours,), (theirs,) = (
        outputs(x) for x in (keras.models.load_model(path, custom), subclass)
    )
    np.testing.assert_array_equal(ours, theirs)

"""Subclasses of models and tasks: read by Keras, refused by what would lose them."""

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SIM

import roformer_keras
from roformer_keras.errors import ConfigurationError

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
    return [np.asarray(value) for value in keras.tree.flatten(values)]


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

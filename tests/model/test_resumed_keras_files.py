"""A `.keras` file by each reader: the model that was saved, which trains as it would.

Files are read by `load_model`, by `from_preset` of their class and by Keras.
"""

import itertools

import keras
import numpy as np
import pytest
from common import CHARACTER, GPT, SIM

import roformer_keras
from roformer_keras.base.errors import ConfigurationError

TEXTS = ["今天天气不错", "她在北京大学", "我们学习语言", "床前明月光"]
# Class -> source, arguments, and labels of the texts.
MODELS = {
    "RoFormerBackbone": (CHARACTER, {}, None),
    "RoFormerMaskedLM": (CHARACTER, {}, None),
    "RoFormerCausalLM": (GPT, {}, None),
    "RoFormerSim": (SIM, {}, None),
    "RoFormerTextClassifier": (CHARACTER, {"classes": ["差", "好"]}, [0, 1, 0, 1]),
    "RoFormerTextRegressor": (CHARACTER, {}, [0.1, 1.0, 0.2, 0.4]),
    "RoFormerTokenClassifier": (
        CHARACTER,
        {"labels": ["地"], "crf": True},
        [[], [(2, 4, "地")], [], []],
    ),
}
# Keras does not save the seeds of dropout.
SMALL = {"num_layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
TASKS = [name for name, (_, _, labels) in MODELS.items() if labels]
AIDS = {"r_drop": 0.5, "adversarial_epsilon": 0.1}
STATES = (
    "fresh",
    "compiled",
    "trained",
    "frozen",
    "all frozen",
    "lora",
    "aids",
    "mixed",
)
READERS = {
    "load_model": lambda model, path: roformer_keras.load_model(path),
    "from_preset": lambda model, path: type(model).from_preset(path),
    "keras": lambda model, path: keras.models.load_model(path),
}
CELLS = [
    (name, state)
    for name, state in itertools.product(MODELS, STATES)
    if state != "aids" or name in TASKS
]


def compile_model(model, **options):
    loss = {"loss": "mse"} if isinstance(model, roformer_keras.RoFormerBackbone) else {}
    model.compile("adam", **loss, run_eagerly=True, jit_compile=False, **options)


def train(model):
    """One update, by what each class learns from."""
    labels = MODELS[type(model).__name__][2]
    if isinstance(model, roformer_keras.RoFormerBackbone):
        ids = model.tokenizer(TEXTS)
        target = np.ones((*ids["token_ids"].shape, model.config.hidden_dim))
        model.train_on_batch(ids, target)
    elif isinstance(model, roformer_keras.RoFormerSim):
        model.train_on_batch(TEXTS, TEXTS[::-1])
    elif labels is None:
        model.train_on_batch(TEXTS)
    else:
        model.train_on_batch(TEXTS, labels)


def saved_model(name, state):
    source, options, _ = MODELS[name]
    if state == "mixed":
        options = {**options, "dtype": "mixed_bfloat16"}
    cls = getattr(roformer_keras, name)
    model = cls.from_preset(source, name="mine", **SMALL, **options)
    if state == "frozen":
        model.freeze(embeddings=True, layers=1)
        block = getattr(model, "backbone", model).transformer_layers[1]
        block.feed_forward.trainable = False
        model.layers[-1].trainable = name == "RoFormerBackbone"
    if state == "all frozen":
        getattr(model, "backbone", model).trainable = False
    if state == "lora":
        model.enable_lora(2)
    if state != "fresh":
        aids = dict(AIDS) if state == "aids" else {}
        if name == "RoFormerTokenClassifier":
            aids.pop("r_drop", None)
        compile_model(model, **aids)
    if state not in ("fresh", "compiled") and model.trainable_variables:
        train(model)
        model.optimizer.learning_rate = 0.003
    return model


def outputs(model):
    tokenizer = model.tokenizer
    rows = tokenizer(TEXTS)
    values = keras.tree.flatten(model(rows, training=False))
    return [np.asarray(keras.ops.cast(value, "float32")) for value in values]


def trained_names(model):
    return sorted(variable.path for variable in model.trainable_variables)


def check(model, again):
    """Compares two models, trains both, and compares their weights."""
    assert again.name == model.name and again.get_config() == model.get_config()
    assert again.compiled == model.compiled
    assert trained_names(again) == trained_names(model)
    for ours, theirs in zip(outputs(again), outputs(model), strict=True):
        # Kernels are stored with their LoRA, which rounds.
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    if not model.compiled or not model.trainable_variables:
        return
    assert again.get_compile_config() == model.get_compile_config()
    pairs = zip(again.optimizer.variables, model.optimizer.variables, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs)
    train(again)


def check_cell(name, state, path):
    model = saved_model(name, state)
    model.save(path)
    copies = [read(model, path) for read in READERS.values()]
    for again in copies:
        check(model, again)
    if model.compiled and model.trainable_variables:
        train(model)
    for reader, again in zip(READERS, copies, strict=True):
        for ours, theirs in zip(again.weights, model.weights, strict=True):
            message = f"{reader}: {ours.path}"
            np.testing.assert_allclose(ours, theirs, atol=1e-6, err_msg=message)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("RoFormerTextClassifier", "frozen"),
        ("RoFormerMaskedLM", "lora"),
        pytest.param("RoFormerTextRegressor", "aids", marks=pytest.mark.slow),
        pytest.param("RoFormerTokenClassifier", "trained", marks=pytest.mark.slow),
    ],
)
def test_a_sample(name, state, tmp_path):
    check_cell(name, state, tmp_path / "model.keras")


def test_arguments_that_change_weights_make_a_new_model(tmp_path):
    path = tmp_path / "model.keras"
    saved = saved_model("RoFormerTextClassifier", "frozen")
    saved.save(path)
    read = roformer_keras.load_model
    assert read(path, max_length=64).compiled and read(path, dropout=0.1).compiled
    new = read(path, num_layers=1)
    assert not new.compiled and len(new.trainable_variables) == len(new.weights)
    assert read(path, name="other").name == "other"


@keras.saving.register_keras_serializable("tests")
class Squared(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.ops.square(y_true - y_pred)


def unknown_loss(y_true, y_pred):
    return keras.ops.square(y_true - y_pred)


def test_a_loss_of_the_users(tmp_path):
    path = tmp_path / "model.keras"
    model = saved_model("RoFormerTextRegressor", "fresh")
    model.compile(loss=Squared())
    model.save(path)
    assert isinstance(roformer_keras.load_model(path).loss, Squared)
    model.compile(loss=unknown_loss)
    model.save(path)
    with pytest.warns(UserWarning, match="the model is not compiled.*unknown_loss"):
        again = roformer_keras.load_model(path)
    assert not again.compiled
    np.testing.assert_array_equal(outputs(again)[0], outputs(model)[0])


def test_compile_makes_nothing_else(tmp_path):
    model = saved_model("RoFormerTextRegressor", "fresh")
    for name in ("keras.layers.Dense", "roformer_keras.RoFormerBackbone"):
        module, _, kind = name.rpartition(".")
        loss = {"module": module, "class_name": kind, "config": {"units": 2}}
        loss["registered_name"] = f"roformer_keras>{kind}"
        model.get_compile_config = lambda loss=loss: {"loss": loss}
        model.compile()
        model.save(tmp_path / "model.keras")
        with pytest.warns(UserWarning, match="registered optimizers, schedules, los"):
            assert not roformer_keras.load_model(tmp_path / "model.keras").compiled


@pytest.mark.weekly
@pytest.mark.parametrize(("name", "state"), CELLS)
def test_the_table(name, state, tmp_path):
    check_cell(name, state, tmp_path / "model.keras")


# === Other ways in which Keras makes and joins models ===


@pytest.mark.parametrize("name", ["RoFormerTextClassifier", "RoFormerTokenClassifier"])
def test_a_clone_of_a_compiled_task(name):
    model = saved_model(name, "compiled")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert clone.compiled
    np.testing.assert_array_equal(outputs_of(clone, model), outputs_of(model, model))
    for option in ("adversarial_epsilon", "r_drop"):
        model.compile(**{option: 0.5})
        with pytest.raises(ConfigurationError, match=f"{option}=0.5.*from_config"):
            keras.models.clone_model(model)
        copy = type(model).from_config(model.get_config())
        copy.compile_from_config(model.get_compile_config())
        assert getattr(copy, option) == 0.5


def outputs_of(model, owner):
    return np.asarray(model(owner.tokenizer(TEXTS), training=False))


def test_two_models_in_one(tmp_path):
    cls = roformer_keras.RoFormerTextClassifier
    options = {"num_classes": 2, **SMALL}
    first, second = (cls.from_preset(CHARACTER, **options) for _ in "ab")
    inputs = first.input
    for parts in ((first, second), (first.backbone, second.backbone)):
        joined = keras.layers.Concatenate()([part(inputs) for part in parts])
        model = keras.Model(inputs, joined)
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(
            outputs_of(again, first), outputs_of(model, first)
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_name_of_the_users(name):
    assert saved_model(name, "fresh").name == "mine"

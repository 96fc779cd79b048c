"""The optimizers of bert4keras's interface: bert4keras's numbers, step by step.

The golden numbers come from the real bert4keras, written by
tools/reference/optimizers.py. Tests of a name with "equals_bert4keras" run on any
backend, which KERAS_BACKEND selects.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from common import load_golden

from roformer_keras.base.errors import ConfigurationError
from roformer_keras.base.other_names import WITHDRAWN
from roformer_keras.bert4keras import optimizers
from roformer_keras.bert4keras.backend import keras
from tools.reference.optimizers import flat, make_model, make_optimizer

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "data" / "bert4keras" / "optimizers.npz"
ARRAYS, METADATA = load_golden(GOLDEN)
VARIABLES, CASES, FITS = (METADATA[name] for name in ("variables", "cases", "fits"))
EMBEDDING = VARIABLES[0]
PAIRS = [name for name in CASES if "+" in name]
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
# Fits that XLA compiles on TensorFlow. PyTorch would take long to do it.
WITH_XLA = ("roformer-v2", "adafactor", "average")
# What bert4keras has under tf.keras, without what it imports.
PUBLIC = {
    *("AdaFactor", "AdaFactorBase", "AdaFactorV1", "AdaFactorV2", "Adam"),
    *("custom_objects", "export_to_custom_objects"),
    *("extend_with_exponential_moving_average", "extend_with_gradient_accumulation"),
    *("extend_with_layer_adaptation", "extend_with_piecewise_linear_lr"),
    "extend_with_weight_decay",
}


def values(variables):
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def close(ours, expected, tolerance=1e-6, name=""):
    atol = tolerance / 10
    np.testing.assert_allclose(ours, expected, tolerance, atol, err_msg=name)


def make_variables():
    """Variables with the paths that layers would give them."""
    made = []
    for path in VARIABLES:
        *scopes, name = path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            made.append(keras.Variable(ARRAYS[f"start/{path}"], name=name))
        assert made[-1].path == path
    return made


def gradients_of(step):
    """Those of the embedding are a list of rows, on TensorFlow, as models have it."""
    gradients = [ARRAYS[f"gradient/{name}"][step] for name in VARIABLES]
    rows, shape = ARRAYS["rows"][step], ARRAYS[f"start/{EMBEDDING}"].shape
    if IS_TENSORFLOW:
        import tensorflow as tf

        table = tf.IndexedSlices(tf.constant(gradients[0]), tf.constant(rows), shape)
    else:
        table = np.zeros(shape, "float32")
        np.add.at(table, rows, gradients[0])
        table = keras.ops.convert_to_tensor(table)
    return [table, *map(keras.ops.convert_to_tensor, gradients[1:])]


def check_case(name):
    base, names, options = CASES[name]
    optimizer = make_optimizer(optimizers, base, names, options)
    variables, saved = make_variables(), []
    for step in range(len(ARRAYS["rows"])):
        optimizer.apply(gradients_of(step), variables)
        saved.append(flat(values(variables)))
    expected = ARRAYS[name]
    # Elsewhere the rows of one token are summed before they are clipped.
    is_clipped_alone = "clip" in name and not IS_TENSORFLOW
    start = ARRAYS[f"start/{EMBEDDING}"].size if is_clipped_alone else 0
    for step, row in zip(METADATA["saved"], expected, strict=False):
        close(saved[step - 1][start:], row[start:], name=name)
    if "exponential_moving_average" not in names:
        assert len(expected) == len(METADATA["saved"])
        return
    optimizer.apply_ema_weights()
    # Elsewhere a gradient is never a list of rows, which bert4keras counts twice.
    start = 0 if IS_TENSORFLOW else ARRAYS[f"start/{EMBEDDING}"].size
    close(flat(values(variables))[start:], expected[-1][start:], name=name)
    optimizer.reset_old_weights()
    np.testing.assert_array_equal(flat(values(variables)), saved[-1])


def test_optimizer_equals_bert4keras():
    for name in CASES:
        # Elsewhere the rows of one token are summed before the norm is taken.
        if name not in PAIRS and (IS_TENSORFLOW or name != "adam-global-clipnorm"):
            check_case(name)


# `everything` and `everything-reversed` have each pair in each order.
@pytest.mark.weekly
def test_two_extensions_in_the_order_of_bert4keras():
    for name in PAIRS:
        check_case(name)


def compiled_model(base, names, options, **keywords):
    model = make_model(keras.layers, keras.Model)
    sizes = [weight.size for weight in model.get_weights()]
    parts = np.split(ARRAYS["fit/start"], np.cumsum(sizes)[:-1])
    model.set_weights(
        [part.reshape(w.shape) for part, w in zip(parts, model.weights, strict=True)]
    )
    optimizer = make_optimizer(optimizers, base, names, options)
    model.compile(optimizer, "sparse_categorical_crossentropy", **keywords)
    return model


def fit(model, start=0, stop=None):
    """Trains on the batches from start to stop."""
    part = slice(start, stop)
    batches = list(
        zip(ARRAYS["fit/ids"][part], ARRAYS["fit/labels"][part], strict=True)
    )
    model.fit(
        (batch for batch in batches),
        steps_per_epoch=len(batches),
        verbose=0,
        shuffle=False,
    )


@pytest.mark.parametrize("name", FITS)
def test_fit_equals_bert4keras(name):
    jit_compile = name in WITH_XLA if IS_TENSORFLOW else "auto"
    model = compiled_model(*FITS[name], jit_compile=jit_compile)
    fit(model)
    if is_average := hasattr(model.optimizer, "apply_ema_weights"):
        model.optimizer.apply_ema_weights()
    start = model.weights[0].shape[0] * 4 if is_average and not IS_TENSORFLOW else 0
    expected = ARRAYS[f"fit/{name}"][start:]
    assert np.abs(expected - ARRAYS["fit/start"][start:]).max() > 1e-3
    close(flat(values(model.weights))[start:], expected, 5e-6)


@pytest.mark.parametrize("name", ["adafactor", "average"])
def test_a_compiled_model_is_saved_and_trains_on(name, tmp_path):
    model = compiled_model(*FITS[name], run_eagerly=True)
    fit(model, 0, 4)
    model.save(tmp_path / "model.keras")
    # A script that loads it has made the class again.
    make_optimizer(optimizers, *FITS[name])
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    loaded.run_eagerly = True
    for trained in (model, loaded):
        fit(trained, 4)
    model_values, other = (
        values(m.weights + m.optimizer.variables) for m in (model, loaded)
    )
    for first, second in zip(model_values, other, strict=True):
        np.testing.assert_array_equal(first, second)


def test_averaged_weights_are_for_evaluation_between_epochs():
    """As in scripts: the mean of the weights predicts, and training goes on without."""
    plain, averaged = (
        compiled_model(*FITS["average"], run_eagerly=True) for _ in range(2)
    )
    seen = []

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            before = values(self.model.weights)
            self.model.optimizer.apply_ema_weights()
            seen.append(values(self.model.weights))
            assert not np.array_equal(seen[-1][0], before[0])
            self.model.optimizer.reset_old_weights()
            for old, new in zip(before, values(self.model.weights), strict=True):
                np.testing.assert_array_equal(old, new)

    batches = list(zip(ARRAYS["fit/ids"], ARRAYS["fit/labels"], strict=True))
    for model, callbacks in ((plain, []), (averaged, [Evaluate()])):
        data = (batch for batch in batches)
        model.fit(
            data,
            steps_per_epoch=4,
            epochs=2,
            verbose=0,
            shuffle=False,
            callbacks=callbacks,
        )
    assert len(seen) == 2
    for one, other in zip(values(plain.weights), values(averaged.weights), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_it_trains_in_types_of_16_bits(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = compiled_model(*CASES["everything"], run_eagerly=True)
        # The first batches find a scale of the loss.
        fit(model)
        fit(model)
    finally:
        keras.config.set_dtype_policy(before)
    weights = flat(values(keras.ops.cast(w, "float32") for w in model.weights))
    assert np.isfinite(weights).all()
    assert not np.array_equal(weights, ARRAYS["fit/start"])


def test_every_name_of_bert4keras_is_there():
    extending = {name for name in PUBLIC if name.startswith("extend_with")}
    public = PUBLIC | {f"{name}_v2" for name in extending}
    assert set(optimizers.__all__) == public
    for name in extending:
        extend, alias = (getattr(optimizers, f"{name}{end}") for end in ("", "_v2"))
        made, named = extend(optimizers.Adam), alias(optimizers.Adam, "Named")
        assert (made.__name__, named.__name__) == ("NewOptimizer", "Named")
        assert issubclass(made, optimizers.Adam)
    assert optimizers.custom_objects == {
        "Adam": optimizers.Adam,
        "AdaFactor": optimizers.AdaFactor,
    }


def test_functions_of_users_can_extend_too():
    @optimizers.export_to_custom_objects
    def extend_with_nothing(BaseOptimizer):
        class Nothing(BaseOptimizer):
            pass

        return Nothing

    made = extend_with_nothing(optimizers.Adam, name="Idle")
    assert made.__name__ == "Idle"
    assert extend_with_nothing(optimizers.Adam).__name__ == "Nothing"
    optimizer = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(made(0.5))
    )
    assert type(optimizer) is made
    assert float(optimizer.learning_rate) == 0.5


def test_the_rate_has_two_names():
    optimizer = optimizers.Adam(lr=0.25)
    assert float(optimizer.lr) == float(optimizer.learning_rate) == 0.25
    optimizer.lr = 0.5
    assert optimizer.get_config()["learning_rate"] == 0.5
    assert float(optimizers.Adam(1).lr) == 1.0
    rate = optimizers.AdaFactor(None).get_config()["learning_rate"]
    assert rate["class_name"] == "RelativeStepRate"
    assert optimizers.Adam(0.5, 0.8, name=None).get_config() == {
        "learning_rate": 0.5,
        "beta_1": 0.8,
        "beta_2": 0.999,
        "epsilon": 1e-6,
        "bias_correction": True,
        "name": "Adam",
        "decay": 0.0,
        **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm")),
    }


def test_an_option_that_does_not_exist_is_refused():
    made = optimizers.extend_with_weight_decay(optimizers.Adam, name="AdamW")
    with pytest.raises(ConfigurationError, match="did you mean weight_decay_rate= for"):
        made(1e-3, weight_decay=0.1)
    with pytest.raises(ConfigurationError) as caught:
        made(1e-3, amsgrad=True)
    for name in ("weight_decay_rate", "bias_correction", "learning_rate", "clipnorm"):
        assert name in str(caught.value)


def test_what_cannot_be_extended_is_refused():
    with pytest.raises(ConfigurationError, match="Adam, AdaFactor, and"):
        optimizers.extend_with_layer_adaptation(keras.optimizers.SGD)
    made = optimizers.extend_with_layer_adaptation(optimizers.Adam, name="LAMB")
    made = optimizers.extend_with_weight_decay(made)
    with pytest.raises(ConfigurationError, match="has LayerAdaptation already"):
        optimizers.extend_with_layer_adaptation(made)


@pytest.mark.parametrize("end", ["", "_v2"])
@pytest.mark.parametrize("extension", ["lookahead", "lazy_optimization"])
def test_a_withdrawn_extension_names_the_way_of_keras_3(extension, end):
    name = f"extend_with_{extension}"
    message = f"version 0.2 withdrew {name}: {WITHDRAWN[name][:20]}"
    with pytest.raises(AttributeError, match=message):
        getattr(optimizers, name + end)
    with pytest.raises(ImportError, match=message):
        exec(f"from roformer_keras.bert4keras.optimizers import {name}{end}")
    with pytest.raises(AttributeError, match="did you mean Adam"):
        _ = optimizers.Adamm


def test_options_have_rules():
    for name, options in (
        ("gradient_accumulation", {"grad_accum_steps": 0}),
        ("gradient_accumulation", {"grad_accum_steps": 1.5}),
        ("exponential_moving_average", {"ema_momentum": 1}),
        ("weight_decay", {"decay": -1}),
    ):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            make_optimizer(optimizers, "Adam", [name], options)


def test_weights_without_a_mean_are_not_replaced():
    optimizer = make_optimizer(
        optimizers, "Adam", ["exponential_moving_average"], {"learning_rate": 1e-3}
    )
    with pytest.raises(ConfigurationError, match="at least one batch"):
        optimizer.apply_ema_weights()

"""The functions of bert4keras's `K`: the numbers of Keras 2, call by call."""

import json
import re

import numpy as np
import pytest
from common import ROOT

from roformer_keras.bert4keras.backend import K, keras, symbolic
from tools.covered_names import covered_names
from tools.reference.functions import CALLS, TENSORS, answers, plain, tensors, type_of

GOLDEN = json.loads(
    (ROOT / "tests" / "data" / "bert4keras" / "functions.json").read_text("utf-8")
)
# Functions that change a setting or a variable, draw, or need a graph; other tests of
# the interface hold them. Keras 2 has the last three, which tf.keras has not.
ELSEWHERE = {
    *("batch_set_value", "clear_session", "function", "gradients", "set_epsilon"),
    *("set_floatx", "set_value", "identity", "is_tensor", "slice"),
}
# Calls without a symbolic tensor as their result, and calls that take its first rows.
NOT_SYMBOLIC = "count_params|get_value|eval|update|concatenate.*shape|cast.*shape"
NOT_SYMBOLIC += r"|\w\[:"

IS_TENSORFLOW = K.backend() == "tensorflow"
# Other backends do not keep the logits of a sigmoid, and PyTorch refuses such a class.
OF_TENSORFLOW = {"K.binary_crossentropy(labels, K.sigmoid(x * 9))", "K.backend()"}
OF_TENSORFLOW |= {"K.one_hot(rows_int, 2)"}


def assert_equal(answer, expected, call):
    if isinstance(expected, list) and isinstance(expected[0], list):
        for one, other in zip(answer, expected, strict=True):
            assert_equal(one, other, call)
    elif isinstance(expected, list):
        (dtype, values), (expected_dtype, numbers) = answer, expected
        if not IS_TENSORFLOW or ("int" in dtype and re.search("arg|shape", call)):
            # Keras 3 counts in int32, and sizes are Python's. JAX has 32 bits.
            expected_dtype = dtype
        assert dtype == expected_dtype, call
        np.testing.assert_allclose(values, numbers, 2e-6, 2e-6, err_msg=call)
    else:
        assert answer == expected, call


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # JAX
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # PyTorch
def test_each_call_equals_bert4keras():
    assert list(GOLDEN) == CALLS
    calls = CALLS if IS_TENSORFLOW else [c for c in CALLS if c not in OF_TENSORFLOW]
    for call, answer in answers("roformer_keras.bert4keras", calls).items():
        assert_equal(answer, GOLDEN[call], call)


def test_each_function_is_called():
    called = set(re.findall(r"K\.(\w+)", " ".join(CALLS)))
    assert called | ELSEWHERE == set(covered_names()["backend.K"])
    assert not called & ELSEWHERE


# Keras's tensordot compares None with -1.
@pytest.mark.filterwarnings("ignore:NotImplemented should not be used")
@pytest.mark.slow
def test_symbolic_tensors_of_any_batch_give_the_same():
    arrays, computed = tensors(K), 0
    for call in CALLS:
        used = [
            name
            for name in re.findall(r"\b[a-z]\w*\b", call)
            if isinstance(TENSORS.get(name), list)
        ]
        inputs = {
            name: keras.Input(arrays[name].shape[1:], dtype=type_of(name))
            for name in used
        }
        # A symbolic tensor does not tell its logits.
        if not used or re.search(NOT_SYMBOLIC, call) or "K.sigmoid(x * 9)" in call:
            continue
        output = eval(call, {"K": K, **arrays, **inputs})
        if K.is_keras_tensor(output):
            function = keras.Function(list(inputs.values()), output)
            numbers = function([arrays[name] for name in inputs])
            assert_equal(plain(K, numbers), GOLDEN[call], call)
            computed += 1
    assert computed > 190


def test_functions_of_keras_2_alone():
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(K.eval(K.slice(x, (1, 0), (-1, 2))), x[1:, :2])
    np.testing.assert_array_equal(K.eval(K.identity(x, name="same")), x)
    assert K.is_tensor(K.identity(x)) and not K.is_tensor(x)


def test_cross_entropies_of_scripts_are_finite_in_a_model():
    """Keras 2 computes them from the logits of a sigmoid, and clips elsewhere."""
    x = keras.Input((1,))
    model = keras.Model(x, keras.layers.Activation("sigmoid")(x))
    model.compile(loss=lambda y_true, y_pred: K.binary_crossentropy(y_true, y_pred))
    assert model.evaluate(np.array([[30.0]]), np.zeros((1, 1)), verbose=0) == 30
    assert K.eval(K.binary_crossentropy(0.0, K.constant(1.0))) == pytest.approx(
        15.33324
    )


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("learning_phase", "training of a layer's call"),
        ("rnn", "keras.layers.RNN"),
        ("placeholder", "keras.Input"),
        ("foldl", "keras.ops.scan"),
        ("conv2d", "keras.ops.conv"),
        ("tan", "keras.ops.tan;"),
        ("nothing", "https://keras.io/api/ops"),
    ],
)
def test_other_names_say_what_keras_3_has(name, way):
    with pytest.raises(AttributeError, match=f"K.{name} is not covered.*{way}"):
        getattr(K, name)


def test_wrong_arguments_are_those_of_a_function():
    with pytest.raises(TypeError, match="missing a required argument: 'axis'"):
        K.squeeze(K.ones((1,)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'keepdim'"):
        K.sum(K.ones((1,)), keepdim=True)


def test_symbolic_is_a_decorator():
    """Optimizers in published scripts use it."""
    assert K.symbolic(len) is symbolic(len) is len
